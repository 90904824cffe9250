"""Paper PLS: computational modes with and without per-layer supervision, over pairs of training seeds.

    python -m papers.modes runs/tinystories/pls-{0,1,2} runs/tinystories/c2-{0,1,2} --out results/pls_modes
    python -m papers.modes --tables results/pls_modes --out results/pls_modes

Takes finished runs of pls and c2, each seed of both, that differ in the supervision only. Per run: features of
validation tokens, clustered as in App. C.4 (455-D, HDBSCAN) and §4.1 (163-D, k-means); clusters, coverage, processing
depth; agreement with clusters of raw activations, and of both with token identity. Over pairs of seeds: means and
differences with intervals beside what the paper prints. Per claim of the paper: whether it holds here, by a rule.
--tables judges the claims of an earlier comparison again and writes its page, from its tables alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from streamscope.models.bounds import Bounds, Count, Seed
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.papers.comparison import PageOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from streamscope.papers.modes_page import ModesReport
    from streamscope.papers.runs import Run

LEAST = 1000
"""Tokens below which clusters of ten say nothing."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Arguments of `python -m papers.modes`."""

    tokens: Count = 50_453
    """Validation tokens for HDBSCAN, as many as in the paper."""
    kmeans_tokens: Count = 10_000
    """Validation tokens for k-means, as many as in the paper."""
    resamples: Annotated[int, Bounds(low=100)] = 1000
    """Of the bootstrap over documents."""
    seed: Seed = 0
    """Of k-means and the resamples."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if min(options.tokens, options.kmeans_tokens) < LEAST:
        raise InputError(f"--tokens, --kmeans-tokens: at least {LEAST}")
    options.check_out()

    from streamscope.papers.modes_page import show, write
    from streamscope.papers.pls_runs import open_runs

    report = again(options.tables) if options.tables is not None else measure(options, open_runs(options.runs))
    show(report)
    if options.out is not None:
        from streamscope.papers.modes_figure import figure

        write(report, figure(report.tables), options.out, options.static, options.html)


def measure(options: Options, runs: "list[Run]") -> "ModesReport":
    """Every table, of the runs and over pairs of seeds."""
    from streamscope.models.provenance import pick_device, provenance
    from streamscope.papers.comparison import each_model, stack
    from streamscope.papers.modes_measure import Settings, measure_run
    from streamscope.papers.modes_page import ModesReport
    from streamscope.papers.runs import typed

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


def judged(tables: "dict[str, pd.DataFrame]") -> "dict[str, pd.DataFrame]":
    """The tables with what follows from the quantities of the runs: means, differences, verdicts."""
    from streamscope.papers.modes_printed import CLAIMS, printed, unfit
    from streamscope.papers.pls_depth import with_second_peak
    from streamscope.papers.pls_seeds import claims, comparisons, presets

    quantities = with_second_peak(tables["runs"], tables["depth"])
    return {
        **tables, "runs": quantities, "presets": presets(quantities, printed),
        "comparisons": comparisons(quantities, printed),
        "claims": claims(quantities, CLAIMS, printed, unfit).drop(columns="heads"),
    }  # fmt: skip


def again(folder: "Path") -> "ModesReport":
    """The report of an earlier comparison, judged anew from its tables."""
    from streamscope.papers.comparison import reopen
    from streamscope.papers.modes_measure import Settings
    from streamscope.papers.modes_page import ModesReport

    runs, tables, about = reopen(folder, "papers.modes")
    tables = dict(sorted(judged(tables).items()))
    return ModesReport(runs=runs, tables=tables, settings=Settings(**about["settings"]), about=about)


if __name__ == "__main__":
    command(main)
