"""From runs to presets and claims of DST: training seeds are the units, pairs of one seed for two presets."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from streamscope.instruments.undefined_cells import note
from streamscope.papers.comparison.printed import smallest
from streamscope.papers.comparison.seeds import NAN, estimate, nothing, paired, seeds_of
from streamscope.papers.comparison.verdicts import bound_row, pairs_row, with_verdicts
from streamscope.papers.dst.claims import PAPER_ALPHAS, bounds, orders, printed_value
from streamscope.papers.dst.factors import Cells, agreeing, factors


def presets(quantities: pd.DataFrame) -> pd.DataFrame:
    """One row per quantity and preset: n seeds, mean, sd, 95 % t interval over seeds."""
    rows = []
    names = list(dict.fromkeys(quantities["preset"]))
    for quantity, family, unit in quantities.drop_duplicates("quantity")[["quantity", "family", "unit"]].to_numpy():
        for preset in names:
            values, left_out = seeds_of(quantities, quantity, preset)
            if len(values):
                row = estimate(values)
                why = row.pop("why")
            else:
                row = {"n": 0, **dict.fromkeys(("mean", "sd", "ci_low", "ci_high"), NAN)}
                why = dict.fromkeys(("mean", "sd", "ci_low", "ci_high"), nothing(quantities, quantity, preset))
            key = {"quantity": quantity, "family": family, "unit": unit, "preset": preset}
            rows.append({**key, **row, "left_out": ", ".join(left_out), "undefined": note(why)})
    return pd.DataFrame(rows)


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
        row = {
            "claim": f"{order.more} > {order.less}", "quantity": order.quantity, "where": order.where,
            "paper": two[0] - two[1], "printed": f"{two[0]:.4g} against {two[1]:.4g}",
            "smallest": smallest(order, quantities),
        }  # fmt: skip
        if order.quantity.startswith("area."):
            row["paper"] = NAN  # in no known unit
        gaps = _by_seed(quantities, order.quantity, order.more) - _by_seed(quantities, order.quantity, order.less)
        gaps = gaps.dropna()
        found = paired(quantities, order.quantity, order.more, order.less)
        rows.append({**pairs_row(row, found), "runs": f"{int((gaps > 0).sum())} of {len(gaps)}"})
    return {"claims": with_verdicts(rows, instead, quantities), "factors": by_cell}


def _by_seed(quantities: pd.DataFrame, quantity: str, preset: str) -> pd.Series:
    mine = (quantities["quantity"] == quantity) & (quantities["preset"] == preset)
    return quantities[mine].set_index("seed")["value"]
