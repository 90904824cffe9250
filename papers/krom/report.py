"""The comparison of `papers.krom`: losses and mixing of trained runs, and what they say of the blog's claims."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.command import progress_bar
from streamscope.papers.comparison.curves import curves, gaps, online
from streamscope.papers.comparison.losses import against, losses, order
from streamscope.papers.comparison.report import Comparison, Tables
from streamscope.papers.comparison.runs import Run, fields_of, must_agree, opened, same_models
from streamscope.papers.comparison.seeds import over_seeds
from streamscope.papers.figures.krom import runs as all_runs
from streamscope.papers.figures.style import Style
from streamscope.papers.krom import signs, similarity, sweep, variants
from streamscope.papers.krom.claims import ARCHITECTURES, CONTROL, OF_CONTROL, ORDER
from streamscope.papers.krom.mixing import (
    ARM,
    RECIPE,
    arm,
    arm_label,
    by_factors,
    factors,
    hyper_connected,
    mixing_row,
    topology,
    way,
)
from streamscope.papers.krom.mixing import judged as counted
from streamscope.papers.krom.variants import topology_row

MEASURED = ("losses", "factors", "ways", "mixing", "topologies", "curves", "online")
PRESETS = ("gpt2", "canon", "kromhc", "kromcanon")
OWN = {"training.hc_optimizer", "training.hc_lr", "training.hc_decay", "training.rounding", "steps"}
"""What runs of the mixing table may have of their own."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by preset, arm and seed. Raises `InputError` for what differs in more than the arm, and for doubles."""

    runs = [opened(folder, PRESETS) for folder in folders]
    for run in runs:
        residual = run.config["model"]["residual"]
        if residual["kind"] != "single" and not hyper_connected(run):
            raise InputError(
                f"{run.folder} has residual {residual['kind']}: this comparison is of a single stream and of "
                "hyper-connections (hc, mhc, mhc_lite, kromhc)"
            )
    runs = [replace(run, variant=topology(run)) for run in runs]
    hyper = {id(run): tuple(arm(run).values()) if hyper_connected(run) else () for run in runs}
    runs.sort(key=lambda r: (PRESETS.index(r.preset), r.variant, str(hyper[id(r)]), r.seed))
    seen: dict[Any, Path] = {}
    for run in runs:
        key = (run.arm, str(hyper[id(run)]), run.seed)
        if key in seen:
            raise InputError(f"{seen[key]} and {run.folder} are one arm and seed; give one of them")
        seen[key] = run.folder
        here, there = ({k: v for k, v in r.conditions.items() if k not in OWN} for r in (run, runs[0]))
        must_agree(runs[0], run, there, here)
    same_models(runs, fields_of(runs, ["residual"]))  # what differs there is the arm
    return runs


def standard(run: Run) -> bool:
    """Whether a run has the recipe of the comparison: bias −8 in fp32, and the default rates of hyper-connections."""

    if not hyper_connected(run):
        return True
    own, residual = arm(run), run.config["model"]["residual"]
    usual = {name: own[name] for name in RECIPE} == RECIPE and residual.get("b_res", -8.0) == -8
    return usual and residual["hc_dtype"] == "fp32"  # which is rounded by no rule


def measure(options: Any) -> tuple[list[Run], Tables, dict[str, Any]]:
    """The tables of all runs, as `read` gives them."""
    runs = open_runs(options.runs)
    return runs, read(runs), {}


def read(runs: Sequence[Run]) -> Tables:
    """What is read of all runs. The loss comparison is over standard runs of the most common number of steps."""
    plain = [run for run in runs if standard(run)]
    steps = Counter(run.manifest["steps"] for run in plain).most_common(1)[0][0] if plain else 0
    plain = [run for run in plain if run.manifest["steps"] == steps]

    def name(run: Run) -> str:
        """The arm of a run, with its recipe where it is none of the loss comparison."""
        if any(run is one for one in plain):
            return run.arm
        return arm_label(run) if hyper_connected(run) else f"{run.arm}, {run.manifest['steps']:,} steps"

    mixed = [(run, factors(run)) for run in progress_bar("mixing")([r for r in runs if by_factors(r)])]
    rows = [mixing_row(run, one) for run, one in mixed]
    others = [r for r in runs if hyper_connected(r) and not by_factors(r)]
    ways = [way(run, one) for run, one in mixed]
    return {
        "losses": losses(plain) if plain else pd.DataFrame(),
        "factors": _keyed(rows, [one for _, one in mixed]), "ways": _keyed(rows, ways),
        "mixing": pd.DataFrame(rows), "topologies": pd.DataFrame(topology_row(r) for r in others),
        "curves": curves(runs, name), "online": online(runs, name),
    }  # fmt: skip


def _keyed(rows: Sequence[Mapping[str, Any]], tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables of runs one above the other, with arm and seed of their rows in front."""
    keys = [{name: row[name] for name in (*ARM, "seed")} for row in rows]
    parts = [one.assign(**key)[[*key, *one]] for key, one in zip(keys, tables, strict=True)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def judged(runs: Sequence[Run], tables: Tables, facts: Mapping[str, Any]) -> Tables:
    """What follows from measured tables: differences to gpt2, the blog's order, factors that mix, all its sentences.

    Comparisons of before lack some of the tables, and what follows from these is empty.
    """
    all_tables = {name: tables.get(name, pd.DataFrame()) for name in MEASURED}
    rows, factors, mixing = all_tables["losses"], all_tables["factors"], all_tables["mixing"]
    compared = bool(len(rows)) and CONTROL in set(rows["preset"]) and rows["preset"].nunique() > 1
    all_tables |= {name: pd.DataFrame() for name in ("comparison", "order")}
    for name, to in (("curves", "gaps"), ("online", "online-gaps")):
        have = set(all_tables[name].get("preset", ()))
        pairs = [(one.less, one.more) for one in ORDER if not one.instead and {one.less, one.more} <= have]
        all_tables[to] = gaps(all_tables[name], pairs)
    if compared:
        all_tables["comparison"] = against(rows, CONTROL, ARCHITECTURES, OF_CONTROL)
        all_tables["order"] = order(rows, ORDER, all_tables["online-gaps"])
    if len(mixing):
        mixing = all_tables["mixing"] = counted(mixing, factors)
        all_tables |= {"arms": arms(mixing), "signs": signs.sign_agreement(factors)}
        all_tables |= {"signs-modules": signs.by_module(factors), "signs-claims": signs.claims(factors)}
    if len(numbers := sweep.quantities(mixing, factors, rows)):
        all_tables |= {"sweep": over_seeds(numbers), "sweep-claims": sweep.claims(mixing, numbers)}
    if len(streams := variants.streams(mixing, all_tables["topologies"])):
        all_tables |= {"alike": similarity.stream_similarity(streams), "alike-claims": similarity.claims(streams)}
        all_tables |= {"variants": variants.claims(streams), "differences": variants.differences(streams)}
    return all_tables


def arms(mixing: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: means over seeds of its mixing, `start` swap, `share` of the way that the loss went."""

    rows = mixing.assign(start=1 / (1 + np.exp(-mixing["b_res"])))
    way = rows["gap"] - rows["b_res"]
    rows["share"] = np.where(way.abs() > 1e-3, rows["by_loss"] / way, np.nan)
    values = [
        "loss", "swap", "swap_dynamic", "start", "swap_without_gradient", "by_loss", "share", "by_loss_controls",
        "towards", "factors", "gradient", "stream_cosine", "shuffled_cosine",
    ]  # fmt: skip
    groups = rows.groupby(ARM, sort=False, dropna=False)
    means = groups[values].mean().reset_index()
    means["n"] = groups.size().to_numpy()
    means["seeds"] = groups["seed"].agg(lambda s: ", ".join(map(str, sorted(s)))).to_numpy()
    for name in ("n_mix", "n_decay", "n_still"):
        means[name] = groups[name].agg(lambda s: ", ".join(map(str, s))).to_numpy()
    return means


COMPARISON = Comparison(
    module="papers.krom", measure=measure, judge=judged, draw=lambda runs, tables: all_runs(tables, Style("page"))
)
