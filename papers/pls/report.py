"""The report of `papers.pls`: every run measured, seeds summarised, claims judged; or an earlier one judged again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.papers.comparison.losses import against, losses
from streamscope.papers.comparison.report import Report, each_model, print_claims, reopen, stack, write_report
from streamscope.papers.comparison.runs import Run, typed
from streamscope.papers.pls.competence import competence, of_effects, unable, unfit
from streamscope.papers.pls.depth import with_second_peak
from streamscope.papers.pls.derived import with_derived
from streamscope.papers.pls.measure import Measured, Settings, measure_run
from streamscope.papers.pls.options import Options
from streamscope.papers.pls.runs import CONTROL, RUN
from streamscope.papers.pls.seeds import claims, comparisons, pairs, presets
from streamscope.papers.pls.units import UNITS


@dataclass(frozen=True, kw_only=True)
class PlsReport(Report):
    """Runs, tables and settings of the comparison."""

    settings: Settings
    left_out: dict[str, str]
    """Task -> its cases, and what was left out."""


def measure(options: Options, runs: list[Run]) -> PlsReport:
    """Every table, of the runs, of the pairs, and over seeds."""

    settings = Settings(
        tasks=options.tasks, groups=options.groups, layers=options.layers, tokens=options.tokens, draws=options.draws,
        seed=options.seed,
    )  # fmt: skip
    device = pick_device(options.device)
    measured: dict[tuple[str, int], Measured] = {
        (run.preset, run.seed): measure_run(model, shards, settings, progress)
        for run, model, shards, progress in each_model(runs, device)
    }
    tables = stack((*key, one.tables) for key, one in measured.items())
    tables |= pairs(measured, settings.within)
    tables |= {"runs": tables.pop("quantities"), "losses": losses(runs)}
    tables["loss"] = against(tables["losses"], CONTROL, {})
    tables = judged(tables)
    about = {**provenance(device), "argv": typed("papers.pls", options, runs)}
    left_out = next(iter(measured.values())).left_out
    return PlsReport(runs=runs, tables=tables, settings=settings, left_out=left_out, about=about)


def judged(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables with what follows from the quantities of the runs: means, differences, competence, verdicts."""

    quantities = with_derived(with_second_peak(tables["runs"], tables["depth"]), tables["losses"])
    baselines = tables["baselines"] if "baselines" in tables else of_effects(tables["effects"])
    able = competence(baselines)
    means = presets(quantities)
    cannot = [unable(r.quantity, (r.preset,), able) for r in means.itertuples()]
    return {
        **tables, "baselines": baselines, "competence": able, "runs": quantities,
        "presets": means.assign(cannot=cannot), "comparisons": comparisons(quantities),
        "claims": claims(quantities, unfit=unfit(quantities, able, tables.get("roles"))),
    }  # fmt: skip


def again(folder: Path) -> PlsReport:
    """The report of an earlier comparison, judged anew from its tables; ratios and leverage of pairs as they were."""

    runs, tables, about = reopen(folder, "papers.pls")
    given: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in about["settings"].items()}
    tables = dict(sorted(judged(tables).items()))
    settings = Settings(**{"layers": "last", **given})  # tables that do not say it are of the last layer
    return PlsReport(runs=runs, tables=tables, settings=settings, left_out=about["cases"], about=about)


# ---- screen and disk ---------------------------------------------------------------------------


def show(report: PlsReport) -> None:
    """The comparison of effects, and the claims with their verdicts."""

    compared = report.tables["comparisons"]
    effects = compared[compared["family"].isin(["effect", "spread"]) & ~compared["quantity"].str.contains("_odds")]
    columns = ("quantity", "kind", "value", INTERVAL, "p", "p_holm", "n", "paper")
    print_rows(effects, f"{RUN} over {CONTROL}, pairs of training seeds", columns)
    shown = ("heads", "claim", "quantity", "printed", "unit", "difference", INTERVAL, "direction")
    print_claims(report.tables["claims"], "claims of the paper, intervals over pairs of seeds", shown, 5)


def write(report: PlsReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(report, UNITS, figure, folder, static, html, settings=vars(report.settings), cases=report.left_out)
