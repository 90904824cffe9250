"""Does a claim of the paper hold on these runs? A rule, applied to an interval over training seeds.

direction   holds            the 95 % interval lies on the side that the paper says
            opposite         it lies on the other side
            not resolved     it holds 0 (or the limit), and says so with the number of seeds
            undefined        there is no interval, and why
size        unless opposite: the printed difference lies inside the interval, or this one is larger or smaller
"""

from typing import TYPE_CHECKING

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


def verdicts(table: "pd.DataFrame") -> "pd.Series":
    """How many claims hold, are opposite, not resolved, undefined."""
    return table["direction"].str.replace(r"( at n=|: ).*", "", regex=True).value_counts()
