"""Claims of paper LFA, judged by `papers.verdicts`.

Differences of two architectures have Welch's interval (`comparisons.compare_seeds`); `p_holm` is over all claims.
"""

from typing import TYPE_CHECKING, Any

from papers.lfa_printed import BOUNDS, ORDERS, printed
from papers.lfa_seeds import EXACT, difference
from papers.printed import Order
from papers.seeds import NAN
from papers.verdicts import judge_bound, judged
from probes.undefined import reasons

if TYPE_CHECKING:
    import pandas as pd


def judge_order(claim: Order, quantities: "pd.DataFrame") -> dict[str, Any]:
    """One row for a claim that one architecture has more of something than another."""
    paper = [printed(p, claim.quantity) for p in (claim.more, claim.less)]
    expected = paper[0].value - paper[1].value if paper[0] and paper[1] else NAN
    row = {
        "claim": f"{claim.more} > {claim.less}", "quantity": claim.quantity, "where": claim.where, "paper": expected,
        "printed": f"{paper[0].text} against {paper[1].text}" if paper[0] and paper[1] else "",
    }  # fmt: skip
    found = difference(quantities, claim.quantity, claim.more, claim.less)
    if isinstance(found, str):
        return judged(row, NAN, NAN, NAN, NAN, "0", found)
    seeds = str(found.n_a) if found.n_a == found.n_b else f"{found.n_a} and {found.n_b}"
    why = _why(found.undefined, {claim.more: found.n_a, claim.less: found.n_b})
    p = NAN if claim.quantity in EXACT else found.p
    return judged(row, found.difference, found.ci_low, found.ci_high, p, seeds, why)


def _why(undefined: str, seeds: dict[str, int]) -> str:
    """Why a comparison has no interval."""
    few = [preset for preset, n in seeds.items() if n < 2]
    return f"one seed of {' and '.join(few)}" if few else reasons(undefined).get("ci_low", "")


def claims(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """One row per claim of the paper: printed, measured with its interval over seeds, Holm over all, verdicts."""
    import pandas as pd

    from probes.report import with_holm

    rows = [judge_order(c, quantities) for c in ORDERS] + [judge_bound(c, quantities) for c in BOUNDS]
    return with_holm(pd.DataFrame(rows))
