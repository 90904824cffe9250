"""Claims of paper LFA, judged by `papers.comparison.verdicts`: one family of tests, one correction (Holm)."""

from typing import Any

import pandas as pd

from streamscope.papers.comparison.printed import Bound, Order, claims_to_judge, numbers, smallest
from streamscope.papers.comparison.seeds import NAN
from streamscope.papers.comparison.verdicts import CANNOT, bound_row, measured, with_verdicts
from streamscope.papers.lfa.competence import competence, unable
from streamscope.papers.lfa.runs import Arms
from streamscope.papers.lfa.seeds import EXACT, contrast

ORDERS = [claim for claim in claims_to_judge("lfa") if isinstance(claim, Order)]
BOUNDS = [claim for claim in claims_to_judge("lfa") if isinstance(claim, Bound)]
WITHDRAWN = "withdrawn: measured among the candidates only, the paper's equation is over all keys"


def order_row(claim: Order, quantities: pd.DataFrame, arms: Arms | None = None) -> dict[str, Any]:
    """One row for a claim that one architecture has more of something than another: their arms that differ least."""
    paper = [numbers("lfa").get((p, claim.quantity)) for p in (claim.more, claim.less)]
    expected = paper[0].value - paper[1].value if paper[0] and paper[1] else NAN
    more, less = (claim.more, claim.less)
    if claim.quantity not in EXACT:  # what is counted is counted of the models that the paper describes
        more, less = (arms or Arms()).pair(more, less)
    row = {
        "claim": f"{more} > {less}", "more": more, "less": less, "quantity": claim.quantity, "where": claim.where,
        "paper": expected, "printed": f"{paper[0].text} against {paper[1].text}" if paper[0] and paper[1] else "",
        "smallest": smallest(claim, quantities),
    }  # fmt: skip
    found = contrast(quantities, claim.quantity, more, less)
    return {**measured(row, *found[:-1]), "test": found.test}


def claims(quantities: pd.DataFrame, arms: Arms | None = None) -> pd.DataFrame:
    """One row per claim of the paper: printed, measured with its interval over seeds, Holm over all, verdicts.

    A claim about where heads look is not judged of arms that do not copy (`papers.lfa.competence`), nor a contrast of
    two arms that differ in more than their architecture (parameters are counted whatever else differs), nor one over
    all keys of which only the candidates were measured.
    """
    able = competence(quantities)
    rows = [order_row(c, quantities, arms) for c in ORDERS]
    rows += [{**bound_row(c, quantities), "more": c.preset, "less": "", "test": ""} for c in BOUNDS]
    instead = {i: text for i, row in enumerate(rows) if (text := _instead(row, quantities, able, arms or Arms()))}
    return with_verdicts(rows, instead, quantities)


def _instead(row: dict[str, Any], quantities: pd.DataFrame, able: pd.DataFrame, arms: Arms) -> str:
    """Why a claim cannot be judged on these runs; "" where it can, and where there is nothing to judge."""
    own = quantities[quantities["preset"].isin([row["more"], row["less"]])]
    measured_here, other = set(own["quantity"]), row["quantity"].replace(".keys.", ".candidates.")
    both = {row["more"], row["less"]} <= {*own["preset"], ""}
    if both and row["quantity"] not in measured_here and other in measured_here:
        return WITHDRAWN
    if row["quantity"] in EXACT or row["difference"] != row["difference"]:
        return ""
    if why := unable(row["quantity"], (row["more"], row["less"]), able):
        return f"{CANNOT}: {why}"
    if not row["less"]:
        return ""
    found = arms.confounded(row["more"], row["less"])
    return f"confounded: {found}" if found else ""
