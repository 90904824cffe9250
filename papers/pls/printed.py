"""What paper PLS prints of its model and of the control C2, and the claims that it makes of them.

Quantities are those of `papers.pls.measure`. The paper's heads are L5.H4+L5.H5 (entity), L5.H2+L5.H3 (anchor); which
heads do what is not the same in another model, so every claim of heads is also judged on those found by attention.
"""

import re
from typing import NamedTuple

from streamscope.papers.comparison.printed import Bound, Order, Printed, number

TABLE1, TABLE2 = "Table 1", "Table 2"
CAPITALS = "Capitalization Entity (h54+h55) -11.4% -2.1% 5.4 $\\times$"
GENDER = "Gender Anchor (h52+h53) -2.0% -0.3% 6.7 $\\times$"
WINOGRAD = "Winograd Entity (h54+h55) +1.15% +0.05% 23 $\\times$"
SPREAD = "Winograd ablation effect: mean 0.05%, standard deviation 0.63%"
WIDE = "wide variance (mean 1.15%, standard deviation 6.32%)"
LEVERAGE = "PLS (blue) shows $4\\times$ greater control range than C2 (orange)."
LARGEST = "capitalization, where the effect is both largest and most mechanistically transparent."
BIMODAL = "bimodal structure: 26% of predictions converge at layers 0–1, with a second peak at maximum depth."
EARLY, MIDDLE, LATE = "Early (layers 0–1) 26% 5%", "Middle (layers 2–4) 48% 53%", "Late (layers 5–6) 26% 42%"


class Ratio(NamedTuple):
    """The claim that PLS has more of a quantity than C2, by a printed factor of sizes."""

    quantity: str
    text: str
    where: str
    quote: str


PRINTED: tuple[Printed, ...] = (
    Printed("pls", "effect.capitalization.entity", "-11.4%", TABLE2, CAPITALS),
    Printed("c2", "effect.capitalization.entity", "-2.1%", TABLE2, CAPITALS),
    Printed("pls", "effect.gender.anchor", "-2.0%", TABLE2, GENDER),
    Printed("c2", "effect.gender.anchor", "-0.3%", TABLE2, GENDER),
    Printed("pls", "effect.winograd.entity", "+1.15%", TABLE2, WINOGRAD),
    Printed("c2", "effect.winograd.entity", "+0.05%", TABLE2, WINOGRAD),
    Printed("pls", "spread.winograd.entity", "6.32%", "§5.2, Fig. 4b", WIDE),
    Printed("c2", "spread.winograd.entity", "0.63%", "§5.2, Fig. 4b", SPREAD),
    Printed("pls", "depth.early", "26%", TABLE1, EARLY),
    Printed("c2", "depth.early", "5%", TABLE1, EARLY),
    Printed("pls", "depth.middle", "48%", TABLE1, MIDDLE),
    Printed("c2", "depth.middle", "53%", TABLE1, MIDDLE),
    Printed("pls", "depth.late", "26%", TABLE1, LATE),
    Printed("c2", "depth.late", "42%", TABLE1, LATE),
)

_OF_HEADS: tuple[Ratio | Order | Bound, ...] = (
    Ratio("effect.capitalization.entity", "5.4", TABLE2, CAPITALS),
    Ratio("effect.gender.anchor", "6.7", TABLE2, GENDER),
    Ratio("effect.winograd.entity", "23", TABLE2, WINOGRAD),
    Ratio("spread.winograd.entity", "10", "§5.2", "10 times ratio in variance"),
    Ratio("range.capitalization.entity", "4", "Fig. 3", LEVERAGE),
    Bound("effect.capitalization.entity", "pls", "below", "0", TABLE2, CAPITALS),
    Bound("effect.gender.anchor", "pls", "below", "0", TABLE2, GENDER),
    Bound("effect.winograd.entity", "pls", "above", "0", TABLE2, WINOGRAD),
    Bound("monotonicity.capitalization.entity", "pls", "above", "0.9", "§5.2", "smooth, monotonic changes"),
    Bound("own.capitalization.entity", "pls", "above", "0", "§5.3", "entity heads drive capitalization with minimal"),
    Bound("own.gender.anchor", "pls", "above", "0", "§5.3", "Anchor heads drive gender with minimal effect on"),
    Bound("smear.entity", "c2", "above", "0", "§5.3", "Entity heads impact gender more than capitalization."),
    Bound("diagonality.named", "pls", "above", "0", "§5.3, Fig. 4a", "PLS (left) shows diagonal sparsity"),
    Order("diagonality.named", "pls", "c2", "§5.3, Fig. 4a"),
    Order("kept.capitalization.entity", "pls", "c2", "§1, §5.4"),
    Order("kept.gender.anchor", "pls", "c2", "§1, §5.4"),
    Order("kept.winograd.entity", "pls", "c2", "§1, §5.4"),
)
SECOND_PEAK = "depth.second_peak"
DEPTH: tuple[Order | Bound, ...] = (
    Order("depth.early", "pls", "c2", TABLE1),
    Order("depth.middle", "c2", "pls", TABLE1),
    Order("depth.late", "c2", "pls", TABLE1),
    Bound(SECOND_PEAK, "pls", "above", "0", "Fig. 2", BIMODAL),
    Bound(SECOND_PEAK, "c2", "below", "0", "Fig. 2", "C2 (right) concentrates in middle-to-late layers."),
    Order(SECOND_PEAK, "pls", "c2", "Fig. 2, Table 1"),
)


def found(quantity: str) -> str:
    """The quantity of the heads found by attention instead of the paper's: entity -> found-entity, named -> found."""
    return re.sub(r"\.(entity|anchor)\b", r".found-\1", quantity).replace(".named", ".found")


FOUND = tuple(claim._replace(quantity=found(claim.quantity)) for claim in _OF_HEADS)
"""The claims of heads again, of the heads that attention names in this model: what the paper did in its own."""
OTHERS: tuple[Order | Bound, ...] = (
    Order("loss", "c2", "pls", "§3.3"),
    Bound("largest.capitalization", "pls", "above", "0", "§5.2", LARGEST),
)
"""That supervision costs the last layer nothing, read of "balances supervision strength against final-layer
optimization"; and which task has the largest effect."""
CLAIMS: tuple[Ratio | Order | Bound, ...] = (*_OF_HEADS, *DEPTH, *OTHERS, *FOUND)


def printed(preset: str, quantity: str) -> Printed | None:
    """What the paper prints of a quantity, if it does; also beside heads that were found."""
    return next((p for p in PRINTED if p.preset == preset and quantity in (p.quantity, found(p.quantity))), None)


def factor(quantity: str) -> float:
    """The printed ratio of PLS to C2, NaN where there is none."""
    ratios = [c for c in CLAIMS if isinstance(c, Ratio) and c.quantity == quantity]
    return number(ratios[0].text) if ratios else float("nan")
