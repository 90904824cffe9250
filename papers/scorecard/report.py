"""The report of `papers.scorecard`: every run measured once, seeds summarised, arms held against each other."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.command import show as print_rows
from streamscope.instruments.stats.means import with_holm
from streamscope.instruments.undefined_cells import note
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.run import read_metrics
from streamscope.papers.comparison.report import Report, dose, each_model, reopen, stack, write_report
from streamscope.papers.comparison.rows import Rows
from streamscope.papers.comparison.runs import SHAPE, Run, must_agree, no_doubles, opened, overrides, typed
from streamscope.papers.comparison.seeds import NAN, estimate, nothing, paired, seeds_of
from streamscope.papers.scales.measured import sources
from streamscope.papers.scorecard import orders
from streamscope.papers.scorecard.measure import Settings, measure_run
from streamscope.papers.scorecard.options import Options
from streamscope.text.cache import cache_root, cached

SAME = ("scale", "training data", "validation data", "tokenizer", *SHAPE)
"""Conditions that every run must share; in others the runs may differ, and the page says in which."""
RESAMPLES = 9999
ALIKE = "the same for every seed of an arm: known, and not to be tested"
SPEED, MACHINE = "speed", "of the machine and of what else ran on it, as well"


OF_THE_ROW = "the unit of the row"
_NUMBERS = dict.fromkeys(("mean", "value", "sd", "ci_low", "ci_high"), OF_THE_ROW)
UNITS = {
    "runs": {**_NUMBERS, "n": "cases, documents, heads or pairs"},
    "arms": {**_NUMBERS, "n": "training seeds"},
    "between": {"eta2": "share of the variance over runs", "runs": "runs", "arms": "arms", "p": "p", "p_holm": "p"},
    "against": {**_NUMBERS, "n": "pairs of seeds", "p": "p", "p_holm": "p"},
    "orders": {**dict.fromkeys(("difference", "ci_low", "ci_high", "smallest"), OF_THE_ROW), "seeds": "pairs of seeds"},
}


@dataclass(frozen=True, kw_only=True)
class Scorecard(Report):
    """Runs, tables and settings of the comparison."""

    settings: Settings
    control: str
    recipes: dict[str, list[str]]
    """Condition -> its values by arm, for those in which runs differ."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs in order of arm and seed. Raises `InputError` for doubles and for runs of other text, shape or dose."""
    presets = list(PRESETS)
    runs = [replace(run, variant=variant(run)) for run in (opened(folder, presets) for folder in folders)]
    runs.sort(key=lambda run: (presets.index(run.preset), run.variant, run.seed))
    no_doubles(runs)
    for run in runs[1:]:
        must_agree(runs[0], run, *({name: one.conditions[name] for name in SAME} for one in (runs[0], run)))
        must_agree(runs[0], run, *({"training tokens seen": one.tokens_seen} for one in (runs[0], run)))
    return runs


def variant(run: Run) -> str:
    """What of a preset was changed, but for how it starts: "+positions=rope", "+attention.v=hdpl"."""
    changed = {name: value for name, value in overrides(run).items() if not name.startswith("init.")}
    kinds = {name.removesuffix(".kind"): value for name, value in changed.items() if name.endswith(".kind")}
    inside = tuple(f"{name}." for name in kinds)
    single = {name: value for name, value in changed.items() if not name.startswith(inside)}
    return "".join(f"+{name}={value}" for name, value in sorted({**kinds, **single}.items()))


def recipes(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The conditions of training, and the rules by which weights start, in which arms differ, with what each has."""
    of = {run.arm: {**run.conditions, **_start(run)} for run in reversed(runs)}
    names = dict.fromkeys(name for conditions in of.values() for name in conditions)
    found = {}
    for name in names:
        by: dict[str, list[str]] = {}
        for arm, conditions in reversed(of.items()):
            by.setdefault(json.dumps(conditions.get(name), sort_keys=True), []).append(arm)
        if len(by) > 1:
            found[name] = [f"{value}: {', '.join(arms)}" for value, arms in by.items()]
    return found


def _start(run: Run) -> dict[str, Any]:
    return {f"init.{name}": value for name, value in run.config["model"].get("init", {}).items() if name != "kind"}


def measure(options: Options, runs: list[Run]) -> Scorecard:
    """Every run that was not measured before with the same weights, settings and code; then what follows."""
    control(runs, options.control)
    settings = Settings(documents=options.documents, pairs=options.pairs, modes=options.modes, seed=options.seed)
    device, code = pick_device(options.device), sources()
    found = []
    for run, model, shards, progress in each_model(runs, device):
        weights = hashlib.sha256((run.folder / "model.safetensors").read_bytes()).hexdigest()
        documents = {part: shards.meta[part] for part in ("corpus", "tokenizer", "rule")}
        parts = [weights, documents, run.config["model"], asdict(settings), code, torch.__version__, device]
        name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

        def build(folder: Path, model: Any = model, shards: Any = shards, progress: Any = progress) -> None:
            measure_run(model, shards, settings, progress).to_parquet(folder / "quantities.parquet", index=False)

        quantities = [cached(cache_root() / f"scorecard-{name}", build, _read), logged(run)]
        found.append((run.arm, run.seed, {"quantities": pd.concat(quantities, ignore_index=True)}))
    about = {**provenance(device), "argv": typed("papers.scorecard", options, runs)}
    tables = judged(stack(found)["quantities"], options.control, settings.seed)
    return Scorecard(
        runs=runs, tables=tables, settings=settings, control=options.control, recipes=recipes(runs), about=about
    )


def control(runs: Sequence[Run], arm: str) -> None:
    """Raises `InputError` where no run is of the control's arm."""
    if arm not in (arms := list(dict.fromkeys(run.arm for run in runs))):
        raise unknown("--control", arm, arms)


def logged(run: Run) -> pd.DataFrame:
    """The quantity that the weights of a run do not tell: how fast it was trained, the median over its training log."""
    log = read_metrics(run.folder, strict=False) if (run.folder / "metrics.jsonl").is_file() else []
    rates = [row["tokens_per_second"] for row in log if row["kind"] == "train" and "tokens_per_second" in row]
    rows = Rows()
    rows.add(SPEED, "speed", "training tokens per second", np.median(rates) if rates else NAN, n=len(rates),
             detail=str(run.manifest["device"]), why="" if rates else "no training log has it")  # fmt: skip
    return pd.DataFrame(rows.rows)


def _read(folder: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(folder / "quantities.parquet")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is no whole entry ({error})") from None


def judged(quantities: pd.DataFrame, against: str, seed: int = 0) -> dict[str, pd.DataFrame]:
    """The quantities of the runs, and what follows: means over seeds, between arms or seeds, against the control, and
    orders that papers claim, where two of their arms are there."""
    found = {
        "runs": quantities, "arms": arms(quantities), "between": between(quantities, seed),
        "against": contrasts(quantities, against),
    }  # fmt: skip
    said = orders.judged(quantities)
    return {**found, "orders": said} if len(said) else found


def arms(quantities: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and quantity: `estimate` over seeds."""
    rows = []
    for (arm, name), one in quantities.groupby(["preset", "quantity"], sort=False):
        values, _ = seeds_of(quantities, str(name), str(arm))
        front = {"arm": arm, "quantity": name, "family": one["family"].iloc[0], "unit": one["unit"].iloc[0]}
        if not len(values):
            numbers = dict.fromkeys(("mean", "sd", "ci_low", "ci_high"), NAN)
            why = dict.fromkeys(numbers, nothing(quantities, str(name), str(arm)))
            rows.append({**front, "n": 0, **numbers, "undefined": note(why)})
            continue
        found = estimate(values)
        rows.append({**front, **{k: v for k, v in found.items() if k != "why"}, "undefined": note(found["why"])})
    return pd.DataFrame(rows)


def between(quantities: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """How much of a quantity's variance over runs is between arms: η² = SS_between / SS_total.

    p: how often η² is as large when the runs are dealt out anew over the arms, (1 + #) / (1 + `RESAMPLES`); Holm over
    the quantities. Without a second seed of any arm there is no p, and none of speed, which is also the machine's.
    Exchange of runs assumes one spread in all arms.
    """
    rows = []
    for name, one in quantities.groupby("quantity", sort=False):
        kept = one[one["value"].notna()]
        sizes = kept["preset"].value_counts()
        row: dict[str, Any] = {
            "quantity": name, "unit": one["unit"].iloc[0], "runs": len(kept), "arms": len(sizes), "eta2": NAN, "p": NAN,
        }  # fmt: skip
        values = kept["value"].to_numpy(float)
        why = (
            MACHINE if name == SPEED
            else "fewer than two arms have it" if len(sizes) < 2
            else "one seed of every arm" if len(kept) == len(sizes)
            else "the same in every run" if np.ptp(values) == 0
            else ALIKE if kept.groupby("preset")["value"].nunique().eq(1).all()
            else ""
        )  # fmt: skip
        if why:
            rows.append({**row, "undefined": note(dict.fromkeys(("eta2", "p", "p_holm"), why))})
            continue
        codes = pd.factorize(kept["preset"])[0]
        row["eta2"] = eta2(values, codes)
        rng = np.random.default_rng(seed)
        dealt = np.array([eta2(values, rng.permutation(codes)) for _ in range(RESAMPLES)])
        row["p"] = (1 + int((dealt >= row["eta2"] * (1 - 1e-12)).sum())) / (1 + RESAMPLES)
        rows.append({**row, "undefined": ""})
    return with_holm(pd.DataFrame(rows), "p")


def eta2(values: np.ndarray, codes: np.ndarray) -> float:
    """SS_between / SS_total of values [runs] in groups [runs] numbered from 0."""
    centred = values - values.mean()
    sums, sizes = np.bincount(codes, centred), np.bincount(codes)
    return float((sums**2 / sizes).sum() / (centred**2).sum())


def contrasts(quantities: pd.DataFrame, against: str) -> pd.DataFrame:
    """Every arm less the control, paired by seed: mean, interval and p over seeds, Holm over all rows.

    Not of speed, which is also the machine's.
    """
    rows = []
    for (arm, name), one in quantities.groupby(["preset", "quantity"], sort=False):
        if arm == against or name == SPEED:
            continue
        found = paired(quantities, str(name), str(arm), against)
        numbers = {k: found[k] for k in ("n", "mean", "sd", "ci_low", "ci_high", "p", "left_out")}
        front = {"arm": arm, "control": against, "quantity": name, "unit": one["unit"].iloc[0]}
        rows.append({**front, **numbers, "undefined": note(found.get("why", {}))})
    return with_holm(pd.DataFrame(rows), "p") if rows else pd.DataFrame()


def again(folder: Path) -> Scorecard:
    """An earlier scorecard, judged anew from its table of runs."""
    runs, tables, about = reopen(folder, "papers.scorecard")
    runs = [replace(run, variant=variant(run)) for run in runs]
    settings, against = Settings(**about["settings"]), str(about["control"])
    return Scorecard(
        runs=runs, tables=judged(tables["runs"], against, settings.seed), settings=settings, control=against,
        recipes=recipes(runs), about=about,
    )  # fmt: skip


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: Scorecard) -> None:
    """Means over seeds on the screen, an arm per column; then what is between arms."""
    arms = report.tables["arms"]
    wide = arms.pivot_table(index="quantity", columns="arm", values="mean", sort=False, dropna=False)
    rows = wide.map(lambda x: f"{x:.4g}" if x == x else "–").reset_index()
    print_rows(rows, f"scorecard, {dose(report.runs)}", tuple(rows.columns), 3)
    between = report.tables["between"]
    if between["p"].notna().any():
        print_rows(between, "between arms", ("quantity", "runs", "arms", "eta2", "p", "p_holm"), 4)


def write(report: Scorecard, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    facts = {"settings": asdict(report.settings), "control": report.control}
    write_report(report, UNITS, figure, folder, static, html, **facts)
