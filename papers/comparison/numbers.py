"""A comparison that is a few numbers of every run: over seeds, judged, printed and written.

A module that makes one says how the numbers come about (its docstring, from its second paragraph on), measures them as
rows of preset, seed, quantity, unit, value and undefined, and judges them; all else is here.
"""

from collections.abc import Callable
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


def compare(
    module: str,
    title: str,
    options: "RunsOptions",
    measure: "Callable[[], Found]",
    claims: "Claims",
    order: Any = list,
) -> None:
    """Measure, or read what --tables has; judge, print under `title`, and write where --out says.

    `module` makes the tables, as papers.dst.calibration; `order` puts the runs of an earlier comparison in their order.
    """
    from streamscope.cli.provenance import provenance
    from streamscope.instruments.command import show
    from streamscope.papers.comparison.report import reopen, write_page
    from streamscope.papers.comparison.runs import typed
    from streamscope.papers.comparison.seeds import over_seeds

    if options.tables is not None:
        again, tables, about = reopen(options.tables, module)
        runs, found = order(again), tables["runs"]
    else:
        runs, found = measure()
        about = {**provenance("cpu"), "argv": typed(module, options, runs)}
    table, judged = over_seeds(found), claims(found)
    show(table, title, digits=3)
    if len(judged):
        show(judged, "claims", CLAIMS, 4)
    if options.out is not None:
        tables = {"runs": found, "arms": table, "claims": judged}
        units = {"runs": UNITS, "arms": UNITS, "claims": CLAIM_UNITS}
        write_page(tables, units, about, options.out, runs=runs)
