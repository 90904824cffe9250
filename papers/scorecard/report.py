"""The comparison of `papers.scorecard`: arms held against each other over seeds."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import unknown
from streamscope.cli.provenance import pick_device
from streamscope.instruments.stats.means import with_holm
from streamscope.instruments.undefined_cells import note
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.run import read_metrics
from streamscope.papers.comparison.options import settings_of
from streamscope.papers.comparison.report import Comparison, Tables, each_model, stack
from streamscope.papers.comparison.runs import SHAPE, Run, must_agree, no_doubles, opened, overrides
from streamscope.papers.comparison.seeds import NAN, NUMBERS, Rows, means
from streamscope.papers.comparison.verdicts import LEVEL
from streamscope.papers.figures.scorecard import runs as all_runs
from streamscope.papers.figures.style import Style
from streamscope.papers.scorecard import orders
from streamscope.papers.scorecard.measure import measure_run
from streamscope.papers.scorecard.moderated import differences
from streamscope.papers.scorecard.options import Options, Settings

SAME = ("scale", "training data", "validation data", "tokenizer", *SHAPE)
"""Conditions that every run must share; in others the runs may differ, and the page says in which."""
RESAMPLES = 9999
ALIKE = "the same for every seed of an arm: known, and not to be tested"
UNTESTED = "its arms are not shown to differ (table between)"
SPEED, MACHINE = "speed", "of the machine and of what else ran on it, as well"


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs in order of arm and seed. Raises `InputError` for doubles and for runs of other text, shape or dose."""
    presets = list(PRESETS)
    runs = in_arms([opened(folder, presets) for folder in folders])
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


def measure(options: Options) -> tuple[list[Run], Tables, dict[str, Any]]:
    """The quantities of every run; the settings, the control."""
    runs = open_runs(options.runs)
    control(runs, options.control)
    settings = settings_of(Settings, options)
    tables = stack(
        (run.arm, run.seed, {"runs": pd.concat([measure_run(model, shards, settings, progress), logged(run)])})
        for run, model, shards, progress in each_model(runs, pick_device(options.device))
    )
    return runs, tables, {"settings": vars(settings), "control": options.control}


def control(runs: Sequence[Run], arm: str) -> None:
    """Raises `InputError` where no run is of the control's arm, and there are several arms to compare."""
    if len(arms := list(dict.fromkeys(run.arm for run in runs))) > 1 and arm not in arms:
        raise unknown("--control", arm, arms)


def logged(run: Run) -> pd.DataFrame:
    """The quantity that the weights of a run do not tell: how fast it was trained, the median over its training log."""
    log = read_metrics(run.folder, strict=False) if (run.folder / "metrics.jsonl").is_file() else []
    rates = [row["tokens_per_second"] for row in log if row["kind"] == "train" and "tokens_per_second" in row]
    rows = Rows()
    rows.add(SPEED, "speed", "training tokens per second", np.median(rates) if rates else NAN, n=len(rates),
             detail=str(run.manifest["device"]), why="" if rates else "no training log has it")  # fmt: skip
    return pd.DataFrame(rows.rows)


def judged(quantities: pd.DataFrame, against: str, seed: int = 0) -> Tables:
    """The quantities of the runs, and what follows: means over seeds, between arms or seeds, against the control, and
    orders that papers claim, where two of their arms are there."""
    spread = between(quantities, seed)
    differ = set(spread.loc[spread["p_holm"] <= LEVEL, "quantity"])
    return {
        "runs": quantities, "arms": arms(quantities), "between": spread,
        "against": contrasts(quantities, against, differ), "orders": orders.judged(quantities),
    }  # fmt: skip


def arms(quantities: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and quantity: `seeds.means`."""
    names = list(dict.fromkeys(zip(quantities["preset"], quantities["quantity"], strict=True)))
    table = means(quantities, list(dict.fromkeys(quantities["preset"]))).rename(columns={"preset": "arm"})
    table = table.set_index(["arm", "quantity"]).loc[names].reset_index()
    return table[["arm", "quantity", "family", "unit", "n", *NUMBERS, "undefined"]]


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


def contrasts(quantities: pd.DataFrame, against: str, differ: Collection[str]) -> pd.DataFrame:
    """Every arm less the control, p by moderated t and Holm over the arms of a quantity (`scorecard.moderated`).

    Only the quantities of `differ` are tested: those whose arms differ, by the corrected p of `between`. `side` says
    where an arm lies significantly.
    """
    rows = []
    for name, one in quantities[quantities["value"].notna()].groupby("quantity", sort=False):
        arms = {str(arm): own["value"].to_numpy(float) for arm, own in one.groupby("preset", sort=False)}
        why = f"not measured on {against}" if against not in arms else UNTESTED if name not in differ else ""
        try:
            found = differences(arms, against) if not why else pd.DataFrame()
        except ValueError as error:
            why = str(error)
        if why:
            control = arms.pop(against, np.full(1, NAN)).mean()
            found = pd.DataFrame(
                [{"arm": arm, "n": len(own), "mean": own.mean() - control} for arm, own in arms.items()]
            )
        found["undefined"] = note(dict.fromkeys(("ci_low", "ci_high", "p", "p_holm"), why)) if why else ""
        rows.append(found.assign(control=against, quantity=name, unit=one["unit"].iloc[0]))
    columns = ["arm", "control", "quantity", "unit", "n", "mean", "ci_low", "ci_high", "p", "p_holm", "undefined"]
    table = pd.concat(rows, ignore_index=True).reindex(columns=columns)
    sides = np.where(table["mean"] > 0, "higher", "lower")
    return table.assign(side=np.where(table["p_holm"] <= LEVEL, sides, ""))


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms."""
    return [replace(run, variant=variant(run)) for run in runs]


def wide(tables: Tables) -> Tables:
    """What is printed: means over seeds, an arm per column; the spread between arms where it has a p."""
    rows = tables["arms"].pivot_table(index="quantity", columns="arm", values="mean", sort=False, dropna=False)
    means = rows.map(lambda x: f"{x:.4g}" if x == x else "–").reset_index()
    between = tables["between"]
    return {"arms": means, "between": between if between["p"].notna().any() else between[:0]}


COMPARISON = Comparison(
    module="papers.scorecard", settings=Settings, measure=measure, arms=in_arms,
    judge=lambda runs, tables, facts: judged(tables["runs"], facts["control"], facts["settings"]["seed"]),
    draw=lambda runs, tables: all_runs(tables, Style("page")), as_shown=wide,
)  # fmt: skip
