"""From runs to claims of DST: training seeds are the units, pairs of one seed for two presets."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from streamscope.papers.comparison.seeds import NAN
from streamscope.papers.comparison.verdicts import bound_row, order_row, with_verdicts
from streamscope.papers.dst.claims import PAPER_ALPHAS, bounds, orders, printed_value
from streamscope.papers.dst.factors import Cells, agreeing, factors


def judged(
    quantities: pd.DataFrame, alphas: Sequence[float] = PAPER_ALPHAS, cells: Cells | None = None
) -> dict[str, pd.DataFrame]:
    """`claims`: a row per claim about presets that are given: measured, interval over seeds, Holm over all, verdict;
    `factors`: the claims about one model in every cell of its factors, by which they are judged or confounded.

    `runs` counts those whose own value has the sign that the paper says; with one seed it is all there is.
    """
    names = list(dict.fromkeys(quantities["preset"]))
    dual = [p for p in names if ((quantities["preset"] == p) & (quantities["family"] == "streams")).any()]
    cells = cells or Cells()
    about = bounds(cells.models(names), cells.models(dual), alphas)
    by_cell = factors(quantities, about, cells)
    rows: list[dict[str, Any]] = []
    instead: dict[int, str] = {}
    for claim in about:
        row = bound_row(claim, quantities)
        if text := cells.instead(claim, row, by_cell):
            instead[len(rows)] = text
        rows.append({**row, "runs": agreeing(claim, quantities, claim.preset)})
    for order in orders(alphas):
        if not {order.more, order.less} <= set(names):
            continue
        two = [printed_value(preset, order.quantity, order.where) for preset in (order.more, order.less)]
        paper = NAN if order.quantity.startswith("area.") else two[0] - two[1]  # areas are in no known unit
        row = order_row(order, quantities, paper=paper, printed=f"{two[0]:.4g} against {two[1]:.4g}")
        gaps = _by_seed(quantities, order.quantity, order.more) - _by_seed(quantities, order.quantity, order.less)
        gaps = gaps.dropna()
        if text := cells.narrow(order):
            instead[len(rows)] = text
        rows.append({**row, "runs": f"{int((gaps > 0).sum())} of {len(gaps)}"})
    return {"claims": with_verdicts(rows, instead, quantities), "factors": by_cell}


def _by_seed(quantities: pd.DataFrame, quantity: str, preset: str) -> pd.Series:
    mine = (quantities["quantity"] == quantity) & (quantities["preset"] == preset)
    return quantities[mine].set_index("seed")["value"]
