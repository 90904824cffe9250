"""The claims of paper PLS that are judged here, and which numbers it prints of PLS and of the control C2.

Quantities are those of `papers.pls.measure`. The paper's heads are L5.H4+L5.H5 (entity), L5.H2+L5.H3 (anchor). Other
heads may do the same in another model, so every claim about heads is judged a second time, on those found by attention.
"""

import re

from streamscope.papers.comparison.printed import Bound, Order, Printed, Ratio, claims_to_judge, number, numbers

SECOND_PEAK = "depth.second_peak"


def of_found_heads(quantity: str) -> str:
    """The quantity of the heads found by attention instead of the paper's: entity -> found-entity, named -> found."""
    return re.sub(r"\.(entity|anchor)\b", r".found-\1", quantity).replace(".named", ".found")


NAMED: tuple[Ratio | Order | Bound, ...] = claims_to_judge("pls")
FOUND = tuple(
    claim._replace(quantity=of_found_heads(claim.quantity))
    for claim in NAMED
    if of_found_heads(claim.quantity) != claim.quantity
)
"""The claims of heads again, of the heads that attention names in this model: what the paper did in its own."""
CLAIMS = (*NAMED, *FOUND)


def printed(preset: str, quantity: str) -> Printed | None:
    """What the paper prints of a quantity, if it does; of found heads what it prints of its own."""
    named = {of_found_heads(own): one for (of, own), one in numbers("pls").items() if of == preset}
    return numbers("pls").get((preset, quantity), named.get(quantity))


def factor(quantity: str) -> float:
    """The printed ratio of PLS to C2, NaN where there is none."""
    ratio = printed("|pls| > |c2|", quantity)
    return number(ratio.text) if ratio else float("nan")
