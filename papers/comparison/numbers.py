"""The page of a comparison that is a few numbers of every run: over seeds, judged, printed and written.

A module that makes one says how the numbers come about (its docstring, from its second paragraph on), measures them as
rows of preset, seed, quantity, unit, value and undefined, and judges them; all else is here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.papers.comparison.options import RunsOptions
    from streamscope.papers.comparison.runs import Run

    Claims = Callable[[pd.DataFrame], pd.DataFrame]
    Found = tuple[list[Run], pd.DataFrame]

ROW = "the unit of the row"
UNITS = {**dict.fromkeys(("mean", "ci_low", "ci_high", "value"), ROW), "n": "training seeds"}
CLAIM_UNITS = dict.fromkeys(("difference", "ci_low", "ci_high", "smallest"), "the unit of the quantity")
CLAIMS = ("claim", "quantity", "difference", "ci_low", "ci_high", "p_holm", "direction")


@dataclass(frozen=True)
class Page:
    """What a page says beside its numbers."""

    module: str
    """The module that makes it, as papers.dst.calibration."""
    title: str
    lead: str
    """Which paper it is about."""
    doc: str
    """The docstring of the module."""
    shown: str
    """Title of the table over seeds."""
    nothing: str = ""
    """What stands for the claims where none of the arms has one."""

    def text(self, runs: "Sequence[Run]", table: "pd.DataFrame", judged: "pd.DataFrame", about: dict[str, Any]) -> Any:
        """Files -> README.md."""
        from streamscope.papers.comparison.markdown import interval, number
        from streamscope.papers.comparison.markdown import table as markdown
        from streamscope.papers.comparison.report import Report, commands, dose, files_line, made_by, rule
        from streamscope.papers.comparison.verdicts import judged_rows, summary

        rows = [
            [r.preset, f"`{r.quantity}`", r.unit, number(r.mean), interval(r.ci_low, r.ci_high), r.n]
            for r in table.itertuples()
        ]
        said = [rule("seeds", "0"), judged_rows(judged), summary(judged)] if len(judged) else [self.nothing]

        def text(files: Sequence[str]) -> str:
            parts = [
                f"# {self.title}", self.lead,
                f"{dose(runs)}.\n\n{made_by(about)}\n{files_line(files)}", self.doc.split("\n\n", 2)[-1].strip("\n"),
                "## Over seeds", markdown(("arm", "quantity", "unit", "mean", "95 % over seeds", "seeds"), rows),
                "## Claims", *said, commands(Report(runs=list(runs), tables={}, about=about)),
            ]  # fmt: skip
            return "\n\n".join(parts) + "\n"

        return text


def made(
    page: Page, options: "RunsOptions", measure: "Callable[[], Found]", claims: "Claims", order: Any = list
) -> None:
    """Measure, or read what --tables has; judge, print, and write the page where --out says.

    `order` puts the runs of an earlier page in their order.
    """
    from streamscope.cli.provenance import provenance
    from streamscope.instruments.command import show
    from streamscope.papers.comparison.report import reopen, write_page
    from streamscope.papers.comparison.runs import typed
    from streamscope.papers.comparison.seeds import over_seeds

    if options.tables is not None:
        again, tables, about = reopen(options.tables, page.module)
        runs, found = order(again), tables["runs"]
    else:
        runs, found = measure()
        about = {**provenance("cpu"), "argv": typed(page.module, options, runs)}
    table, judged = over_seeds(found), claims(found)
    show(table, page.shown, digits=3)
    if len(judged):
        show(judged, "claims", CLAIMS, 4)
    if options.out is not None:
        tables = {"runs": found, "arms": table, "claims": judged}
        units = {"runs": UNITS, "arms": UNITS, "claims": CLAIM_UNITS}
        write_page(page.text(runs, table, judged, about), tables, units, about, options.out, runs=runs)
