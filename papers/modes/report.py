"""The report of `papers.modes`: every run measured, seeds summarised, claims judged; or an earlier one judged again."""

from pathlib import Path

import pandas as pd

from streamscope.cli.provenance import pick_device, provenance
from streamscope.papers.comparison.report import each_model, reopen, stack
from streamscope.papers.comparison.runs import Run, typed
from streamscope.papers.modes.measure import Settings, measure_run
from streamscope.papers.modes.options import Options
from streamscope.papers.modes.page import ModesReport
from streamscope.papers.modes.printed import CLAIMS, printed, unfit
from streamscope.papers.pls.depth import with_second_peak
from streamscope.papers.pls.seeds import claims, comparisons, presets


def measure(options: Options, runs: list[Run]) -> ModesReport:
    """Every table, of the runs and over pairs of seeds."""

    settings = Settings(
        tokens=options.tokens, kmeans_tokens=options.kmeans_tokens, resamples=options.resamples, seed=options.seed
    )
    device = pick_device(options.device)
    tables = stack(
        (run.preset, run.seed, measure_run(model, shards, settings, progress))
        for run, model, shards, progress in each_model(runs, device)
    )
    tables["runs"] = tables.pop("quantities")
    about = {**provenance(device), "argv": typed("papers.modes", options, runs)}
    return ModesReport(runs=runs, tables=judged(tables), settings=settings, about=about)


def judged(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables with what follows from the quantities of the runs: means, differences, verdicts."""

    quantities = with_second_peak(tables["runs"], tables["depth"])
    return {
        **tables, "runs": quantities, "presets": presets(quantities, printed),
        "comparisons": comparisons(quantities, printed),
        "claims": claims(quantities, CLAIMS, printed, unfit).drop(columns="heads"),
    }  # fmt: skip


def again(folder: Path) -> ModesReport:
    """The report of an earlier comparison, judged anew from its tables."""

    runs, tables, about = reopen(folder, "papers.modes")
    tables = dict(sorted(judged(tables).items()))
    return ModesReport(runs=runs, tables=tables, settings=Settings(**about["settings"]), about=about)
