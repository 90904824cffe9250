"""Does a claim of a paper hold on these runs? A rule, applied to an interval over training seeds.

    direction   holds            the 95 % interval lies on the side that the paper says
                opposite         it lies on the other side
                not resolved     it holds 0 (or the limit), and says so with the number of seeds
                undefined        there is no interval, and why
    size        unless opposite: the printed difference lies inside the interval, or this one is larger or smaller

A limit has Student's interval over the seeds of one preset. Intervals are not corrected for the number of claims. Where
every seed gives the same number there is no interval and no p: that number's side is the verdict, which says so.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.printed import Bound
from papers.seeds import FLAT, NAN, estimate, nothing, seeds_of
from probes.t_tests import clustered_t
from probes.undefined import note

if TYPE_CHECKING:
    import pandas as pd

HOLDS, OPPOSITE = "holds", "opposite"


def direction(low: float, high: float, seeds: str, why: str = "") -> str:
    """Verdict of an interval of what the paper says is positive. `seeds` is for the text, as "3" or "3 and 2".

    Raises `ValueError` for an interval without ends and without a reason, and one that is turned round.
    """
    if low != low or high != high:
        if not why:
            raise ValueError("an interval without ends needs a reason")
        return f"undefined: {why.removeprefix('undefined ')}"
    if low > high:
        raise ValueError(f"the interval {low} … {high} is turned round")
    if low > 0:
        return HOLDS
    return OPPOSITE if high < 0 else f"not resolved at n={seeds} seeds"


def size(expected: float, low: float, high: float) -> str:
    """Where the printed difference lies; all three in the direction that the paper says. "" where one is missing."""
    if expected != expected or low != low or high != high:
        return ""
    if low <= expected <= high:
        return "printed value inside"
    return "smaller than printed" if high < expected else "larger than printed"


def judge_bound(claim: Bound, quantities: "pd.DataFrame") -> dict[str, Any]:
    """One row for a claim that an architecture lies above or below a limit; the sign is such that positive holds."""
    sign = 1.0 if claim.side == "above" else -1.0
    row = {
        "claim": f"{claim.preset} {claim.side} {claim.text}", "quantity": claim.quantity, "where": claim.where,
        "paper": NAN, "printed": claim.text,
    }  # fmt: skip
    values, _ = seeds_of(quantities, claim.quantity, claim.preset)
    if not len(values):
        return judged(row, NAN, NAN, NAN, NAN, "0", nothing(quantities, claim.quantity, claim.preset))
    beyond = sign * (values - claim.limit)
    found = estimate(beyond)
    p = float(clustered_t(beyond, np.ones(len(beyond))).p) if "ci_low" not in found["why"] else NAN
    why = found["why"].get("ci_low", "")
    why = f"one seed of {claim.preset}" if why == "one seed" else why
    return judged(row, found["mean"], found["ci_low"], found["ci_high"], p, str(len(values)), why)


def judge_pairs(row: dict[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the verdict of `seeds.paired`: more than less, over the pairs of seeds."""
    why = found["why"].get("ci_low", "")
    why = "one pair of seeds" if why == "one seed" else why
    return judged(row, found["mean"], found["ci_low"], found["ci_high"], found["p"], str(found["n"]), why)


def judged(
    row: dict[str, Any], difference: float, low: float, high: float, p: float, seeds: str, why: str
) -> dict[str, Any]:
    """The row with its verdict, and reasons for what is undefined."""
    cells = {"difference": difference, "ci_low": low, "ci_high": high, "p": p}
    missing = {k: why or "nothing to test, the number is exact" for k, x in cells.items() if x != x}
    if row["paper"] != row["paper"]:
        missing["paper"] = "the paper prints no difference, or in no known unit"
    flat = why == FLAT and difference == difference
    verdict = _same_in_all(difference, seeds) if flat else direction(low, high, seeds, why)
    beside = "" if verdict.startswith(OPPOSITE) else size(row["paper"], low, high)
    return {**row, **cells, "seeds": seeds, "direction": verdict, "size": beside, "undefined": note(missing)}


def _same_in_all(difference: float, seeds: str) -> str:
    """Verdict of a difference without spread over seeds; one that rounding could make is none."""
    value = round(difference, 12)
    verdict = direction(value, value, seeds)
    return f"{verdict}: the same at n={seeds} seeds" if value else verdict


def verdicts(table: "pd.DataFrame") -> "pd.Series":
    """How many claims hold, are opposite, not resolved, undefined."""
    return table["direction"].str.replace(r"( at n=|: ).*", "", regex=True).value_counts()
