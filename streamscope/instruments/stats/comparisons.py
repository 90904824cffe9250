"""Two architectures over their training seeds: units are seeds, however many prompts each saw.

What one trained model does under two conditions is a contrast of observations (`instruments.observations.estimate`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from streamscope.instruments.stats.estimators import finite, t_quantile
from streamscope.instruments.stats.p_values import relabel
from streamscope.instruments.stats.t_tests import TTest, constant, welch_t
from streamscope.instruments.undefined_cells import note

NAN = float("nan")


class SeedComparison(NamedTuple):
    """Architecture a against b, difference = mean a − mean b in units of the values; p is Welch's."""

    n_a: int
    n_b: int
    mean_a: float
    mean_b: float
    sd_a: float
    sd_b: float
    difference: float
    ci_low: float
    ci_high: float
    t: float
    df: float
    p: float
    p_permutation: float
    p_permutation_min: float
    undefined: str = ""


def compare_seeds(a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> SeedComparison:
    """Architecture a against b, one number per training seed; p of Welch's t test, and of exact relabelling.

    Three seeds against three: Welch rejects 3 to 5 % of true nulls at 5 % (2 against 2: 2.5 %); relabelling has
    p ≥ 2/20 and cannot reject at 5 % (`p_permutation_min`), so it is a check that assumes no normality and not the
    claim. With one seed in a group there is no spread to compare with: interval, t and p are undefined, the
    difference is not.

    Assumes seeds independent between groups (shared data order or initialisation would make pairs).
    Raises `InputError` for values that are not finite and an empty group.
    """
    x, y = finite(a, "first group"), finite(b, "second group")
    few = min(len(x), len(y)) < 2
    test = TTest(*(np.array(NAN),) * 5) if few else welch_t(x, y)
    counted = relabel(x, y, seed=seed) if not few else None
    why: dict[str, str] = {}
    if few:
        reason = f"{len(x)} and {len(y)} training seeds, two in each group are needed to know their spread"
        why = dict.fromkeys(("ci_low", "ci_high", "t", "df", "p", "p_permutation", "p_permutation_min"), reason)
        why |= {f"sd_{g}": "one training seed" for g, values in (("a", x), ("b", y)) if len(values) < 2}
    elif constant(x) and constant(y):
        why = dict.fromkeys(("ci_low", "ci_high", "t", "df", "p"), "seeds without spread")
    difference = float(x.mean() - y.mean())
    half = NAN if "p" in why else t_quantile(confidence, float(test.df)) * float(test.error)
    return SeedComparison(
        n_a=len(x),
        n_b=len(y),
        mean_a=float(x.mean()),
        mean_b=float(y.mean()),
        sd_a=float(x.std(ddof=1)) if len(x) > 1 else NAN,
        sd_b=float(y.std(ddof=1)) if len(y) > 1 else NAN,
        difference=difference,
        ci_low=difference - half,
        ci_high=difference + half,
        t=NAN if "p" in why else float(test.t),
        df=NAN if "p" in why else float(test.df),
        p=NAN if "p" in why else float(test.p),
        p_permutation=counted.p if counted else NAN,
        p_permutation_min=counted.p_min if counted else NAN,
        undefined=note(why),
    )
