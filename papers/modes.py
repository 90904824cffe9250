"""Paper PLS: computational modes with and without per-layer supervision, over pairs of training seeds.

    python -m papers.modes runs/tinystories/pls-{0,1,2} runs/tinystories/c2-{0,1,2} --out results/pls_modes

Takes finished runs of pls and c2, each seed of both, that differ in the supervision only. Per run: features of
validation tokens, clustered as in App. C.4 (455-D, HDBSCAN) and §4.1 (163-D, k-means); clusters, coverage, processing
depth; agreement with clusters of raw activations, and of both with token identity. Over pairs of seeds: means and
differences with intervals beside what the paper prints. Per claim of the paper: whether it holds here, by a rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.cli import command, parse
from models.errors import InputError
from papers.comparison import PageOptions

if TYPE_CHECKING:
    from papers.modes_page import ModesReport
    from papers.runs import Run

LEAST = 1000
"""Tokens below which clusters of ten say nothing."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Arguments of `python -m papers.modes`."""

    tokens: int = 50_453
    """Validation tokens for HDBSCAN, as many as in the paper."""
    kmeans_tokens: int = 10_000
    """Validation tokens for k-means, as many as in the paper."""
    resamples: int = 1000
    """Of the bootstrap over documents."""
    seed: int = 0
    """Of k-means and the resamples."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if min(options.tokens, options.kmeans_tokens) < LEAST or options.resamples < 100 or options.seed < 0:
        raise InputError(f"--tokens, --kmeans-tokens: at least {LEAST}; --resamples: at least 100; --seed: 0 or more")
    options.check_out()

    from papers.modes_page import show, write
    from papers.pls_runs import open_runs

    report = measure(options, open_runs(options.runs))
    show(report)
    if options.out is not None:
        from papers.modes_figure import figure

        write(report, figure(report.tables), options.out, options.static, options.html)


def measure(options: Options, runs: "list[Run]") -> "ModesReport":
    """Every table, of the runs and over pairs of seeds."""
    from models.provenance import pick_device, provenance
    from papers.comparison import each_model, stack
    from papers.modes_measure import Settings, measure_run
    from papers.modes_page import ModesReport
    from papers.modes_printed import CLAIMS, printed
    from papers.pls_seeds import claims, comparisons, presets
    from papers.runs import typed

    settings = Settings(
        tokens=options.tokens, kmeans_tokens=options.kmeans_tokens, resamples=options.resamples, seed=options.seed
    )
    device = pick_device(options.device)
    tables = stack(
        (run.preset, run.seed, measure_run(model, shards, settings, progress))
        for run, model, shards, progress in each_model(runs, device)
    )
    quantities = tables.pop("quantities")
    tables |= {"runs": quantities, "presets": presets(quantities, printed)}
    tables |= {
        "comparisons": comparisons(quantities, printed),
        "claims": claims(quantities, CLAIMS, printed).drop(columns="heads"),
    }
    about = {**provenance(device), "argv": typed("papers.modes", options, runs)}
    return ModesReport(runs=runs, tables=tables, settings=settings, about=about)


if __name__ == "__main__":
    command(main)
