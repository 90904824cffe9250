"""The report of `papers.modes`: every run measured, seeds summarised, claims judged; or an earlier one judged again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.papers.comparison.printed import Bound, Order, Ratio, claims_to_judge
from streamscope.papers.comparison.report import Report, each_model, print_claims, reopen, stack, write_report
from streamscope.papers.comparison.runs import Run, typed
from streamscope.papers.modes.measure import Settings, measure_run
from streamscope.papers.modes.options import Options
from streamscope.papers.pls.claims import printed
from streamscope.papers.pls.depth import UNITS as DEPTH_UNITS
from streamscope.papers.pls.depth import with_second_peak
from streamscope.papers.pls.seeds import claims, comparisons, presets
from streamscope.papers.pls.units import UNITS as PLS_UNITS

CLAIMS = claims_to_judge("modes")
"""The limit of "near zero" and of "not", 0.1, is ours; the paper has none. "Sharper functional boundaries in the
supervised model" are read as more tokens inside one. Claims of depth are judged by `papers.pls`."""
FLAT = "hdbscan.flat"
BY_CONSTRUCTION = (
    "undefined by construction: but for the layer k* the features are 0 in most columns, so a cluster has one k*"
)
UNITS: dict[str, dict[str, str]] = {
    **{name: PLS_UNITS[name] for name in ("runs", "presets", "comparisons", "claims")},
    "depth": DEPTH_UNITS,
    "clusters": {"n": "tokens", "share": "share of all tokens", "k_star_mean": "layers", "k_star_sd": "layers"},
    "agreement": {"value": "1: the same clusters, 0: as by chance", "n": "tokens", "documents": "documents"},
}


def unfit(claim: Bound | Order | Ratio) -> str:
    """Why a claim cannot be judged by these features, the text of its verdict; "" where it can."""
    return BY_CONSTRUCTION if claim.quantity == FLAT else ""


@dataclass(frozen=True, kw_only=True)
class ModesReport(Report):
    """Runs, tables and settings of the comparison."""

    settings: Settings


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


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: ModesReport) -> None:
    """Both models, and the claims with their verdicts."""

    columns = ("quantity", "preset", "mean", INTERVAL, "printed", "n")
    print_rows(report.tables["presets"], "modes, means over seeds", columns)
    shown = ("claim", "quantity", "printed", "difference", INTERVAL, "direction")
    print_claims(report.tables["claims"], "claims of the paper, intervals over seeds", shown)


def write(report: ModesReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(report, UNITS, figure, folder, static, html, settings=vars(report.settings))
