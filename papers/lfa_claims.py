"""Claims of paper LFA, judged by `papers.verdicts`.

Differences of two architectures have Welch's interval (`comparisons.compare_seeds`), a limit has Student's over the
seeds of one. Intervals are not corrected for the number of claims; `p_holm` is.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from papers.lfa_printed import BOUNDS, ORDERS, Bound, Order, printed
from papers.lfa_seeds import EXACT, difference
from papers.seeds import NAN, estimate, nothing, seeds_of
from papers.verdicts import OPPOSITE, direction, size
from probes.t_tests import clustered_t
from probes.undefined import note, reasons

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
        return _row(row, NAN, NAN, NAN, NAN, "0", found)
    seeds = str(found.n_a) if found.n_a == found.n_b else f"{found.n_a} and {found.n_b}"
    why = _why(found.undefined, {claim.more: found.n_a, claim.less: found.n_b})
    p = NAN if claim.quantity in EXACT else found.p
    return _row(row, found.difference, found.ci_low, found.ci_high, p, seeds, why)


def judge_bound(claim: Bound, quantities: "pd.DataFrame") -> dict[str, Any]:
    """One row for a claim that an architecture lies above or below a limit; the sign is such that positive holds."""
    sign = 1.0 if claim.side == "above" else -1.0
    row = {
        "claim": f"{claim.preset} {claim.side} {claim.text}", "quantity": claim.quantity, "where": claim.where,
        "paper": NAN, "printed": claim.text,
    }  # fmt: skip
    values, _ = seeds_of(quantities, claim.quantity, claim.preset)
    if not len(values):
        return _row(row, NAN, NAN, NAN, NAN, "0", nothing(quantities, claim.quantity, claim.preset))
    beyond = sign * (values - claim.limit)
    found = estimate(beyond)
    p = float(clustered_t(beyond, np.ones(len(beyond))).p) if "ci_low" not in found["why"] else NAN
    why = found["why"].get("ci_low", "")
    why = f"one seed of {claim.preset}" if why == "one seed" else why
    return _row(row, found["mean"], found["ci_low"], found["ci_high"], p, str(len(values)), why)


def _why(undefined: str, seeds: dict[str, int]) -> str:
    """Why a comparison has no interval."""
    few = [preset for preset, n in seeds.items() if n < 2]
    return f"one seed of {' and '.join(few)}" if few else reasons(undefined).get("ci_low", "")


def _row(
    row: dict[str, Any], difference: float, low: float, high: float, p: float, seeds: str, why: str
) -> dict[str, Any]:
    """The row with its verdict, and reasons for what is undefined."""
    cells = {"difference": difference, "ci_low": low, "ci_high": high, "p": p}
    missing = {k: why or "nothing to test, the number is exact" for k, x in cells.items() if x != x}
    if row["paper"] != row["paper"]:
        missing["paper"] = "the paper prints no difference"
    verdict = direction(low, high, seeds, why)
    beside = "" if verdict == OPPOSITE else size(row["paper"], low, high)
    return {**row, **cells, "seeds": seeds, "direction": verdict, "size": beside, "undefined": note(missing)}


def claims(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """One row per claim of the paper: printed, measured with its interval over seeds, Holm over all, verdicts."""
    import pandas as pd

    from probes.report import with_holm

    rows = [judge_order(c, quantities) for c in ORDERS] + [judge_bound(c, quantities) for c in BOUNDS]
    return with_holm(pd.DataFrame(rows))
