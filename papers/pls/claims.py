"""The claims of paper PLS that are judged here, and which numbers it prints of PLS and of the control C2.

Quantities are those of `papers.pls.measure`. The paper's heads are L5.H4+L5.H5 (entity), L5.H2+L5.H3 (anchor). In
another training other heads do the same, so a claim about heads is judged of those that attention names there
(found-entity, found-anchor); the tables have the heads of the paper's numbers as well.
"""

import re

from streamscope.papers.comparison.printed import Bound, Order, Printed, Ratio, claims_to_judge, number, numbers

SECOND_PEAK = "depth.second_peak"


def of_found_heads(quantity: str) -> str:
    """The quantity of the heads found by attention instead of the paper's: entity -> found-entity, named -> found."""
    return re.sub(r"\.(entity|anchor)\b", r".found-\1", quantity).replace(".named", ".found")


CLAIMS: tuple[Ratio | Order | Bound, ...] = claims_to_judge("pls")


def printed(preset: str, quantity: str) -> Printed | None:
    """What the paper prints of a quantity, if it does; of the heads of its numbers as of those found."""
    return numbers("pls").get((preset, quantity), numbers("pls").get((preset, of_found_heads(quantity))))


def factor(quantity: str) -> float:
    """The printed ratio of PLS to C2, NaN where there is none."""
    ratio = printed("|pls| > |c2|", quantity)
    return number(ratio.text) if ratio else float("nan")
