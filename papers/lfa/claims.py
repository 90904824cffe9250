"""From runs to architectures and to claims of paper LFA: seeds are the units, one correction (Holm) over all."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.instruments.stats.estimators import cohens_d, constant
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.papers.comparison.printed import Bound, Order, Printed, claims_to_judge, numbers, smallest
from streamscope.papers.comparison.seeds import FLAT, NAN, means, nothing, paired, seeds_of
from streamscope.papers.comparison.verdicts import CANNOT, COUNTED, bound_row, measured, with_verdicts
from streamscope.papers.lfa.competence import competence, unable
from streamscope.papers.lfa.runs import CONTROL, PRESETS, Arms, in_order

ORDERS = [claim for claim in claims_to_judge("lfa") if isinstance(claim, Order)]
BOUNDS = [claim for claim in claims_to_judge("lfa") if isinstance(claim, Bound)]
EXACT = {"parameters"}
"""Quantities that training does not change: their difference needs no interval."""
PAIRED, WELCH = "paired by seed", "Welch"
EXPLORED = "exploratory: not corrected, described and not tested"
WITHDRAWN = "withdrawn: measured among the candidates only, the paper's equation is over all keys"


def _printed(preset: str, quantity: str) -> Printed | None:
    return numbers("lfa").get((preset, quantity))


def architectures(quantities: pd.DataFrame) -> pd.DataFrame:
    """`seeds.means` of every arm, with the paper's numbers.

    Intervals of shares are cut at 0 and 1, but for differences, as costs are.
    """

    def limits(quantity: str, family: str, unit: str) -> tuple[float, float]:
        share = unit.startswith("share") and ".minus_" not in quantity and family != "cost"
        return (0.0, 1.0) if share else (-np.inf, np.inf)

    return means(quantities, in_order((*PRESETS, *quantities["preset"])), _printed, limits)


# ---- arm against arm ----------------------------------------------------------------------------


class Contrast(NamedTuple):
    """One arm against another over training seeds; `why` says why there is no interval, `test` how there is one."""

    difference: float
    ci_low: float
    ci_high: float
    p: float
    seeds: str
    why: str
    test: str


def contrast(quantities: pd.DataFrame, quantity: str, a: str, b: str) -> Contrast:
    """x_a − x_b: paired by seed where both arms have runs of the same seeds, by Welch's interval where not.

    Runs of one seed share the order of their data. Parameters are counted: their difference is its own interval and
    there is no p.
    """
    x, y = (seeds_of(quantities, quantity, preset)[0] for preset in (a, b))
    for values, preset in ((x, a), (y, b)):
        if not len(values):
            return Contrast(NAN, NAN, NAN, NAN, "0", nothing(quantities, quantity, preset), "")
    gap = float(x.mean() - y.mean())
    if quantity in EXACT and constant(x) and constant(y):
        return Contrast(gap, gap, gap, NAN, _counts(x, y), "", "")
    seeds = [set(quantities.loc[quantities["preset"] == preset, "seed"]) for preset in (a, b)]
    if seeds[0] == seeds[1]:
        numbers = paired(quantities, quantity, a, b)
        why = numbers["why"].get("ci_low", "")
        why = "one pair of seeds" if why == "one seed" else why
        n = str(numbers["n"])
        return Contrast(numbers["mean"], numbers["ci_low"], numbers["ci_high"], numbers["p"], n, why, PAIRED)
    few = [preset for preset, values in ((a, x), (b, y)) if len(values) < 2]
    if few or (constant(x) and constant(y)):
        why = f"one seed of {' and '.join(few)}" if few else "seeds without spread"
        return Contrast(gap, NAN, NAN, NAN, _counts(x, y), why, WELCH)
    with warnings.catch_warnings():  # an arm that is the same in all seeds has a variance of 0, which is right
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        test = stats.ttest_ind(x, y, equal_var=False)
    low, high = map(float, test.confidence_interval(0.95))
    return Contrast(gap, low, high, float(test.pvalue), _counts(x, y), "", WELCH)


def _counts(x: np.ndarray, y: np.ndarray) -> str:
    return str(len(x)) if len(x) == len(y) else f"{len(x)} and {len(y)}"


def comparisons(quantities: pd.DataFrame, claims: pd.DataFrame, arms: Arms | None = None) -> pd.DataFrame:
    """Each arm against the control over seeds, per quantity: `contrast`, and d.

    The control is the arm of std-t that differs least from the other (`Arms.pair`); of another arm of std-t, std-t. A
    contrast that is a claim has the p, the corrected p and the verdict of the claim, here as there; of any other the p
    is not corrected (`EXPLORED`): it describes and tests nothing. `d` is Cohen's, pooled over the seeds of the two
    (`estimators.cohens_d`), positive where the arm has more than the control.
    """

    arms = arms or Arms()
    judged = {(c.quantity, frozenset((c.more, c.less))): c for c in claims.itertuples() if c.less}
    have, rows = in_order(quantities["preset"]), []
    every = quantities[quantities["family"] != "suites"]
    for quantity, own in every.groupby("quantity", sort=False):
        family, unit = own[["family", "unit"]].iloc[0]
        table = own if set(have) <= set(own["preset"]) else every  # the whole table knows why an arm has none
        for arm in (p for p in have if p != CONTROL):
            control = CONTROL if arm.startswith(f"{CONTROL}+") else arms.pair(CONTROL, arm)[0]
            one = contrast(table, str(quantity), arm, control)
            claim = judged.get((quantity, frozenset((arm, control))))
            x, y = (seeds_of(table, str(quantity), p)[0] for p in (arm, control))
            cells = {
                "mean": float(x.mean()) if len(x) else NAN, "control_mean": float(y.mean()) if len(y) else NAN,
                "difference": one.difference, "ci_low": one.ci_low, "ci_high": one.ci_high,
                "p": one.p if claim is None else claim.p, "p_holm": NAN if claim is None else claim.p_holm,
                "d": cohens_d(x, y) if min(len(x), len(y)) > 1 else NAN,
            }  # fmt: skip
            why = {name: _missing(name, one, claim) for name, value in cells.items() if value != value}
            rows.append({
                "family": family, "quantity": quantity, "unit": unit, "preset": arm, "control": control, **cells,
                "seeds": one.seeds, "test": one.test, "verdict": _verdict(str(quantity), claim),
                "undefined": note(why),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _verdict(quantity: str, claim: Any) -> str:
    if claim is not None:
        return str(claim.direction)
    return COUNTED if quantity in EXACT else EXPLORED


def _missing(name: str, one: Contrast, claim: Any) -> str:
    """Why a cell of a comparison has no value."""
    if name == "p_holm" and claim is None and one.test:
        return EXPLORED
    if name in ("p", "p_holm") and claim is not None:
        return reasons(claim.undefined).get(name) or one.why
    if name == "d":
        return one.why or ("parameters are counted" if not one.test else FLAT)
    return one.why or "parameters are counted"


# ---- claims ---------------------------------------------------------------------------------------


def order_row(claim: Order, quantities: pd.DataFrame, arms: Arms | None = None) -> dict[str, Any]:
    """One row for a claim that one architecture has more of something than another: their arms that differ least."""
    paper = [_printed(p, claim.quantity) for p in (claim.more, claim.less)]
    expected = paper[0].value - paper[1].value if paper[0] and paper[1] else NAN
    more, less = (claim.more, claim.less)
    if claim.quantity not in EXACT:  # what is counted is counted of the models that the paper describes
        more, less = (arms or Arms()).pair(more, less)
    row = {
        "claim": f"{more} > {less}", "more": more, "less": less, "quantity": claim.quantity, "where": claim.where,
        "paper": expected, "printed": f"{paper[0].text} against {paper[1].text}" if paper[0] and paper[1] else "",
        "smallest": smallest(claim, quantities),
    }  # fmt: skip
    one = contrast(quantities, claim.quantity, more, less)
    return {**measured(row, *one[:-1]), "test": one.test}


def claims(quantities: pd.DataFrame, arms: Arms | None = None) -> pd.DataFrame:
    """One row per claim of the paper: printed, measured with its interval over seeds, Holm over all, verdicts.

    A claim about where heads look is not judged of arms that do not copy (`papers.lfa.competence`), nor a contrast of
    two arms that differ in more than their architecture (parameters are counted whatever else differs), nor one over
    all keys of which only the candidates were measured.
    """
    able = competence(quantities)
    rows = [order_row(c, quantities, arms) for c in ORDERS]
    rows += [{**bound_row(c, quantities), "more": c.preset, "less": "", "test": ""} for c in BOUNDS]
    few = [""] * len(ORDERS) + [c.preset if c.side == "below" else "" for c in BOUNDS]
    why = [_instead(row, little, quantities, able, arms or Arms()) for row, little in zip(rows, few, strict=True)]
    instead = {i: text for i, text in enumerate(why) if text}
    return with_verdicts(rows, instead, quantities)


def _instead(row: dict[str, Any], few: str, quantities: pd.DataFrame, able: pd.DataFrame, arms: Arms) -> str:
    """Why a claim cannot be judged on these runs; "" where it can, and where there is nothing to judge.

    `few` is the preset of which it says that it has little.
    """
    own = quantities[quantities["preset"].isin([row["more"], row["less"]])]
    measured_here, other = set(own["quantity"]), row["quantity"].replace(".keys.", ".candidates.")
    both = {row["more"], row["less"]} <= {*own["preset"], ""}
    if both and row["quantity"] not in measured_here and other in measured_here:
        return WITHDRAWN
    if row["quantity"] in EXACT or row["difference"] != row["difference"]:
        return ""
    if why := unable(row["quantity"], (row["more"], row["less"]), able, row["less"] or few):
        return f"{CANNOT}: {why}"
    if not row["less"]:
        return ""
    difference = arms.confounded(row["more"], row["less"])
    return f"confounded: {difference}" if difference else ""
