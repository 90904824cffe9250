"""The report of `papers.lfa`: runs measured or read again, architectures compared, claims judged."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamscope.cli.errors import InputError
from streamscope.papers.comparison.report import Report, write_report
from streamscope.papers.lfa.units import UNITS

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.papers.comparison.runs import Run
    from streamscope.papers.lfa.rows import Settings

    Source = tuple[list[Run], dict[str, pd.DataFrame], Settings, dict[str, Any], dict[str, Any]]
    """Runs, their tables, the settings and the documents of the measurement, and who made it."""

from streamscope.cli.provenance import provenance
from streamscope.instruments.command import INTERVAL, progress_bar, show
from streamscope.instruments.undefined_cells import legend, note, reasons
from streamscope.papers.comparison.report import print_claims, reopen
from streamscope.papers.comparison.runs import typed
from streamscope.papers.lfa.claims import claims
from streamscope.papers.lfa.competence import competence, unable
from streamscope.papers.lfa.derived import DERIVED, derived
from streamscope.papers.lfa.figure import figure
from streamscope.papers.lfa.options import Options
from streamscope.papers.lfa.rows import Settings
from streamscope.papers.lfa.runs import CONTROL, LATER, TABLES, Arms, in_arms, measure_all, open_runs
from streamscope.papers.lfa.seeds import architectures, comparisons, renamed

WIDEST = 48
"""Characters of a verdict on the screen; README.md and claims.parquet have all."""


MAIN = (
    "parameters", "loss", "pds.max", "pds.max.L5", "pds.mean", "pds.over", "pds.over.late", "pds.over.reference", "sps",
    "coreference.keys.top1", "coreference.keys.minus_recency", "coreference.keys.best", "coreference.keys.over30",
    "coreference.keys.best_layer", "attention.best", "attention.tenth",
    "stability.keys.jaccard.coreference", "stability.keys.over_total.coreference", "stability.keys.jaccard.competing",
    "coreference.candidates.top1", "coreference.candidates.minus_recency", "coreference.candidates.best",
    "coreference.candidates.over30", "stability.candidates.jaccard.coreference",
    "stability.candidates.over_total.coreference", "stability.candidates.jaccard.competing",
    "induction.max",
)  # fmt: skip
"""Quantities of the first table and of the comparison; the parquet files have all."""


@dataclass(frozen=True, kw_only=True)
class LfaReport(Report):
    """Runs, tables and settings of the comparison."""

    settings: Settings
    documents: dict[str, Any]


def report_of(options: Options) -> tuple[LfaReport, Any]:
    """Measure or read again, compare, judge; the report without its list of files, and the figure."""

    runs, measured, settings, documents, about = _reread(options) if options.tables else _measure(options)
    arms = Arms(runs)
    quantities = derived(measured["quantities"], measured["heads"], arms)
    judged, able = claims(quantities, arms), competence(quantities)
    means = architectures(quantities)
    cannot = ["" if r.family == "suites" else unable(r.quantity, (r.preset,), able) for r in means.itertuples()]
    tables = {
        "runs": quantities, "competence": able, "architectures": means.assign(cannot=cannot),
        "comparisons": comparisons(quantities, judged, arms), "claims": judged,
        **{name: table for name, table in measured.items() if name != "quantities"},
    }  # fmt: skip
    report = LfaReport(runs=runs, tables=tables, settings=settings, documents=documents, about=about)
    others = dict.fromkeys(arms.confounded(arms.pair(CONTROL, run.arm)[0], run.arm) for run in runs)
    return report, figure(quantities, tables["architectures"], [text for text in others if text])


def _measure(options: Options) -> "Source":
    """The runs, measured where they were not."""

    runs = open_runs(options.runs)
    settings = Settings(
        k=tuple(dict.fromkeys(options.k)), draws=options.draws, seed=options.seed, documents=options.documents,
        batch_size=options.batch_size, resamples=options.resamples,
    )  # fmt: skip
    measured = measure_all(runs, options.data, settings, progress_bar, options.device)
    leave_out = ("data",) if measured.documents["own"] else ()
    about = {**provenance(measured.device), "argv": typed("papers.lfa", options, runs, leave_out)}
    return runs, measured.tables, settings, measured.documents, about


def _reread(options: Options) -> "Source":
    """What an earlier comparison measured, from its tables; names of older tables are made today's."""

    given = [f.name for f in fields(Settings) if getattr(options, f.name) != getattr(Options(), f.name)]
    if given or options.data is not None:
        name = (given or ["data"])[0].replace("_", "-")
        raise InputError(f"--{name} is for measuring, and --tables measures nothing; leave it out")
    assert options.tables is not None
    runs, tables, about = reopen(options.tables, "papers.lfa")
    if missing := [name for name in ("runs", *TABLES[1:]) if name not in (*tables, *LATER)]:
        raise InputError(f"--tables {options.tables} lacks {missing[0]}.parquet; restore it")
    tables["quantities"] = renamed(tables["runs"][~tables["runs"]["quantity"].str.fullmatch(DERIVED)], tables["heads"])
    settings = Settings(**{**about["settings"], "k": tuple(about["settings"]["k"])})
    return in_arms(runs), {name: tables[name] for name in TABLES if name in tables}, settings, about["data"], about


def print_report(report: LfaReport) -> None:
    """Architectures beside the paper, the comparison, and the claims with their verdicts."""

    tables = report.tables
    have = set(tables["runs"]["preset"])
    main = tables["architectures"]
    main = main[main["quantity"].isin(MAIN) & main["preset"].isin(have)]
    title = f"{len(report.runs)} runs: mean over seeds"
    show(main, title, ("quantity", "preset", "mean", "sd", INTERVAL, "printed", "n"))
    against = tables["comparisons"]
    if len(against):
        chosen = against[against["quantity"].isin(MAIN)]
        show(
            chosen, "against std-t over seeds", ("quantity", "preset", "control", "difference", INTERVAL, "p", "p_holm")
        )
    columns = ("claim", "quantity", "difference", INTERVAL, "p_holm", "direction", "size")
    print_claims(tables["claims"], "claims of the paper, intervals over seeds", columns, widest=WIDEST)
    if lines := legend(_values(tables["runs"])):
        print(lines)


def _values(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """The rows without a value, their reasons alone."""

    lost = quantities[quantities["value"].isna()]
    return lost.assign(undefined=[note({"value": reasons(text)["value"]}) for text in lost["undefined"]])


def write(report: LfaReport, figure: Any, folder: Path, static: str, html: bool) -> None:
    """Tables, figures and README.md."""
    write_report(report, UNITS, figure, folder, static, html, data=report.documents, settings=vars(report.settings))
