"""The report of `papers.krom`: losses and mixing of trained runs, and what they say of the blog's claims."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.provenance import provenance
from streamscope.instruments.command import progress_bar
from streamscope.models.training.config import Training
from streamscope.papers.comparison.losses import against, bundled, losses, order
from streamscope.papers.comparison.report import reopen
from streamscope.papers.comparison.runs import Run, fields_of, must_agree, opened, same_models
from streamscope.papers.krom.claims import ARCHITECTURES, ORDER
from streamscope.papers.krom.curves import at_the_end, of_arms
from streamscope.papers.krom.curves import compared as compared_curves
from streamscope.papers.krom.found import BUNDLED, CONTROL, Found
from streamscope.papers.krom.mixing import arm, by_factors, factors, judged, mixing_row, topology, way
from streamscope.papers.krom.variants import topology_row

PRESETS = ("gpt2", "canon", "kromhc", "kromcanon")
OWN = {"training.hc_optimizer", "training.hc_lr", "training.hc_decay", "training.rounding", "steps"}
"""What runs of the mixing table may have of their own."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by preset, arm and seed. Raises `InputError` for what differs in more than the arm, and for doubles."""

    runs = [opened(folder, PRESETS) for folder in folders]
    for run in runs:
        residual = run.config["model"]["residual"]
        if residual["kind"] != "single" and "hc_dtype" not in residual:
            raise InputError(
                f"{run.folder} has residual {residual['kind']}: this comparison is of a single stream and of "
                "hyper-connections (hc, mhc, mhc_lite, kromhc)"
            )
    runs = [replace(run, variant=topology(run)) for run in runs]
    hyper = {id(run): tuple(arm(run).values()) if "hc_dtype" in run.config["model"]["residual"] else () for run in runs}
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

    t, residual, default = run.config["training"], run.config["model"]["residual"], Training()
    if "hc_dtype" not in residual:
        return True
    usual = all(t[name] == getattr(default, name) for name in ("hc_optimizer", "hc_lr", "hc_decay"))
    return (
        usual and residual.get("b_res", -8.0) == -8 and residual["hc_dtype"] == "fp32"
    )  # what is in fp32 is rounded by no rule


def read(runs: Sequence[Run]) -> Found:
    """The tables of all runs. The loss comparison is over standard runs of the most common number of steps."""

    plain = [run for run in runs if standard(run)]
    steps = Counter(run.manifest["steps"] for run in plain).most_common(1)[0][0] if plain else 0
    plain = [run for run in plain if run.manifest["steps"] == steps]
    every: list[pd.DataFrame] = []
    ways: list[pd.DataFrame] = []
    rows = []
    for run in progress_bar("mixing")([r for r in runs if by_factors(r)]):
        one = factors(run)
        row = mixing_row(run, one)
        key = {name: row[name] for name in ("preset", "b_res", "storage", "optimizer", "lr", "decay", "steps", "seed")}
        for table, parts in ((one, every), (way(run, one), ways)):
            parts.append(table.assign(**key)[[*key, *table.columns]])
        rows.append(row)
    others = [r for r in runs if "hc_dtype" in r.config["model"]["residual"] and not by_factors(r)]
    together = [pd.concat(parts, ignore_index=True) if parts else pd.DataFrame() for parts in (every, ways)]
    tables = {
        "losses": losses(plain) if plain else pd.DataFrame(), "factors": together[0], "ways": together[1],
        "mixing": pd.DataFrame(rows), "topologies": pd.DataFrame(topology_row(r) for r in others),
        "curves": of_arms(runs, steps), "online": at_the_end(runs, steps),
    }  # fmt: skip
    return judge(list(runs), tables, {**provenance("cpu"), "argv": "python -m papers.krom"})


def again(folder: Path) -> Found:
    """An earlier comparison, judged again. Raises `InputError` for a folder without one."""

    runs, tables, about = reopen(folder, "papers.krom")
    return judge(runs, tables, about)


def judge(runs: list[Run], tables: dict[str, pd.DataFrame], about: dict[str, Any]) -> Found:
    """What follows from measured tables: differences to gpt2, the blog's order, factors that mix."""

    none = pd.DataFrame()
    rows, factors, mixing = (tables.get(name, none) for name in ("losses", "factors", "mixing"))
    compared = bool(len(rows)) and CONTROL in set(rows["preset"]) and rows["preset"].nunique() > 1
    return Found(
        runs=runs,
        about=about,
        losses=rows,
        curves=tables.get("curves", none),
        gaps=compared_curves(tables.get("curves", none)),
        online=tables.get("online", none),
        online_gaps=compared_curves(tables.get("online", none)),
        comparison=against(rows, CONTROL, ARCHITECTURES) if compared else none,
        order=order(rows, ORDER) if compared else none,
        factors=factors,
        mixing=judged(mixing, factors) if len(mixing) else none,
        ways=tables.get("ways", none),
        topologies=tables.get("topologies", none),
        bundled=bundled(BUNDLED) if compared else none,
    )
