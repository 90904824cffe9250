"""Paper LFA: its four architectures, measured over training seeds and held against what the paper prints.

    python -m papers.lfa runs/tinystories/*
    python -m papers.lfa runs/std-t-0 runs/std-t-1 runs/lfa-0 runs/lfa-1 --out results/lfa
    python -m papers.lfa --tables results/lfa --out results/lfa        judge and write again, without a model

Takes finished runs of std-t, d-cas, lfa and cfm that differ in preset, seed, positions and norm only. Per run: loss,
PDS, coreference heads against chance, recency and the longest word, stability, SPS, and what suppressing the position
heads does beside bottom-k and random controls. Per architecture: mean and interval over seeds, and against std-t,
paired by seed. Per claim of the paper: whether it holds here, by a rule. --out writes tables, figures and a README.md
that says it all.

The presets differ in more than their architecture: std-t has learned positions and LayerNorm, the others RoPE and
ChannelLayerNorm. A std-t that differs in the architecture alone is made with --set; where given it is the control:

    python -m models.train std-t --set positions=rope --set norm=channel --seed 0 … --out runs/std-t-rope-cln-0
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.papers.comparison import PageOptions

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.papers.lfa_page import LfaReport
    from streamscope.papers.lfa_rows import Settings
    from streamscope.papers.runs import Run

    Source = tuple[list[Run], dict[str, pd.DataFrame], Settings, dict[str, Any], dict[str, Any]]
    """Runs, their tables, the settings and the documents of the measurement, and who made it."""

MIN_DRAWS = 20
WIDEST = 48
"""Characters of a verdict on the screen; README.md and claims.parquet have all."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Arguments of `python -m papers.lfa`."""

    data: str | None = None
    """SOURCE to measure the loss on; default: the runs' validation data."""
    k: tuple[int, ...] = (1, 3)
    """Heads to suppress, those with the largest PDS."""
    draws: int = 20
    """Random sets of heads per selection, at least 20."""
    documents: int = 20
    """Documents to measure the loss under suppression on; the loss itself takes all."""
    batch_size: int = 32
    """Documents per batch."""
    resamples: int = 2000
    """Bootstrap resamples for the intervals of Cohen's d."""
    seed: int = 0
    """Of the random sets, and of the halves in which coreference heads are chosen and scored."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure what is not measured yet or read what was, print, write."""
    options = parse(Options, argv, __doc__)
    if options.draws < MIN_DRAWS:
        raise InputError(f"--draws {options.draws}: at least {MIN_DRAWS} random sets make a control")
    if (
        not options.k
        or min(options.k) < 1
        or options.documents < 2
        or options.batch_size < 1
        or options.seed < 0
        or options.resamples < 100
    ):
        raise InputError(
            "--k, --batch-size: at least 1; --documents: at least 2; --resamples: at least 100; --seed: 0 or more"
        )
    options.check_out()
    report, figure = _report(options)
    _print(report)
    if options.out is not None:
        from streamscope.papers.lfa_page import write

        write(report, figure, options.out, options.static, options.html)


def _report(options: Options) -> "tuple[LfaReport, Any]":
    """Measure or read again, compare, judge; the report without its list of files, and the figure."""
    from streamscope.papers.lfa_claims import claims
    from streamscope.papers.lfa_figure import figure
    from streamscope.papers.lfa_page import LfaReport
    from streamscope.papers.lfa_runs import CONTROL, Arms
    from streamscope.papers.lfa_seeds import architectures, comparisons, with_reference

    runs, measured, settings, documents, about = _reread(options) if options.tables else _measure(options)
    arms = Arms(runs)
    quantities = with_reference(measured["quantities"], measured["heads"])
    judged = claims(quantities, arms)
    tables = {
        "runs": quantities, "architectures": architectures(quantities),
        "comparisons": comparisons(quantities, judged, arms), "claims": judged,
        **{name: table for name, table in measured.items() if name != "quantities"},
    }  # fmt: skip
    report = LfaReport(runs=runs, tables=tables, settings=settings, documents=documents, about=about)
    others = dict.fromkeys(arms.confounded(arms.pair(CONTROL, run.arm)[0], run.arm) for run in runs)
    return report, figure(quantities, tables["architectures"], [text for text in others if text])


def _measure(options: Options) -> "Source":
    """The runs, measured where they were not."""
    from streamscope.models.provenance import provenance
    from streamscope.papers.lfa_rows import Settings
    from streamscope.papers.lfa_runs import measure_all, open_runs
    from streamscope.papers.runs import typed
    from streamscope.probes.command import progress_bar

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
    from streamscope.papers.comparison import reopen
    from streamscope.papers.lfa_rows import Settings
    from streamscope.papers.lfa_runs import TABLES, in_arms
    from streamscope.papers.lfa_seeds import DERIVED, renamed

    given = [f.name for f in fields(Settings) if getattr(options, f.name) != getattr(Options(), f.name)]
    if given or options.data is not None:
        name = (given or ["data"])[0].replace("_", "-")
        raise InputError(f"--{name} is for measuring, and --tables measures nothing; leave it out")
    assert options.tables is not None
    runs, tables, about = reopen(options.tables, "papers.lfa")
    if missing := [name for name in ("runs", *TABLES[1:]) if name not in tables]:
        raise InputError(f"--tables {options.tables} lacks {missing[0]}.parquet; restore it")
    tables["quantities"] = renamed(tables["runs"][~tables["runs"]["quantity"].isin(DERIVED)], tables["heads"])
    settings = Settings(**{**about["settings"], "k": tuple(about["settings"]["k"])})
    return in_arms(runs), {name: tables[name] for name in TABLES}, settings, about["data"], about


def _print(report: "LfaReport") -> None:
    """Architectures beside the paper, the comparison, and the claims with their verdicts."""
    from streamscope.papers.lfa_page import MAIN
    from streamscope.papers.verdicts import summary
    from streamscope.probes.command import INTERVAL, show
    from streamscope.probes.undefined import legend

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
    short = tables["claims"].assign(direction=tables["claims"]["direction"].str.slice(0, WIDEST))
    show(short, "claims of the paper, intervals over seeds", columns, 4)
    print(summary(tables["claims"]))
    if lines := legend(_values(tables["runs"])):
        print(lines)


def _values(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """The rows without a value, their reasons alone."""
    from streamscope.probes.undefined import note, reasons

    lost = quantities[quantities["value"].isna()]
    return lost.assign(undefined=[note({"value": reasons(text)["value"]}) for text in lost["undefined"]])


if __name__ == "__main__":
    command(main)
