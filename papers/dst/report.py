"""The report of `papers.dst`: every run measured, seeds summarised, claims judged; or an earlier one judged again."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd

from streamscope.models.config.presets import PRESETS
from streamscope.models.errors import InputError
from streamscope.models.provenance import pick_device, provenance
from streamscope.papers.comparison.report import each_model, reopen, stack
from streamscope.papers.comparison.runs import SHAPE, Run, must_agree, opened, same_models, typed
from streamscope.papers.dst.measure import INITIAL, Settings, initialization, measure_run, whole_loss
from streamscope.papers.dst.options import Options
from streamscope.papers.dst.page import DstReport
from streamscope.papers.dst.printed import CONTROL, TABLE1
from streamscope.papers.dst.seeds import claims, presets
from streamscope.papers.losses import against, losses


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs by preset and seed. Raises `InputError` for doubles and for runs of other data, shape or recipe."""

    if not folders:
        raise InputError("give run folders: python -m papers.dst runs/dst-kron-0 …")
    names = list(PRESETS)
    runs = sorted((opened(f, names) for f in folders), key=lambda r: (names.index(r.preset), r.seed))
    for one, two in pairwise(runs):
        if (one.preset, one.seed) == (two.preset, two.seed):
            raise InputError(f"{one.folder} and {two.folder} are both {one.name}; give one of them")
        must_agree(runs[0], two, runs[0].conditions, two.conditions)
    same_models(runs)
    return runs


def measure(options: Options, alphas: Sequence[float], runs: list[Run]) -> DstReport:
    """Every table, of the runs and over seeds."""

    settings = Settings(documents=options.documents, alphas=tuple(alphas), draws=options.draws, seed=options.seed)
    device = pick_device(options.device)
    tables = stack(
        (run.preset, run.seed, measure_run(model, shards, settings, progress))
        for run, model, shards, progress in each_model(runs, device)
    )
    rows = losses(runs)
    tables |= {"runs": pd.concat([tables.pop("quantities"), whole_loss(rows)], ignore_index=True), "losses": rows}
    if CONTROL in set(rows["preset"]) and rows["preset"].nunique() > 1:
        tables["loss"] = against(rows, CONTROL, TABLE1)
    about = {**provenance(device), "argv": typed("papers.dst", options, runs)}
    return DstReport(runs=runs, tables=judged(tables, runs, settings.alphas), settings=settings, about=about)


def judged(tables: dict[str, pd.DataFrame], runs: list[Run], alphas: Sequence[float]) -> dict[str, pd.DataFrame]:
    """The tables with what follows from the quantities of the runs: means over seeds, verdicts; and how runs began."""

    found = {**tables, "presets": presets(tables["runs"]), "claims": claims(tables["runs"], alphas)}
    if any(run.preset in INITIAL for run in runs):
        shape = {name: runs[0].config["model"][name] for name in SHAPE}
        seeds = [run.seed for run in runs]
        found["initialization"] = initialization(shape, runs[0].manifest["scale"], seeds)
    return found


def again(folder: Path) -> DstReport:
    """The report of an earlier comparison, judged anew from its tables."""

    runs, tables, about = reopen(folder, "papers.dst")
    settings = Settings(**{**about["settings"], "alphas": tuple(about["settings"]["alphas"])})
    tables = dict(sorted(judged(tables, runs, settings.alphas).items()))
    return DstReport(runs=runs, tables=tables, settings=settings, about=about)
