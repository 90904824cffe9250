"""p by counting (sign flips, the rank among random draws), and p of several tests corrected."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import cluster_codes, cluster_totals, finite

Alternative = Literal["two-sided", "greater", "less"]


class Counted(NamedTuple):
    """A p found by counting. p_min is the smallest this test can give; it can reject at α only if p_min ≤ α."""

    statistic: float
    p: float
    p_min: float
    n: int
    exact: bool


def sign_flip(
    differences: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    alternative: Alternative = "two-sided",
    resamples: int = 9999,
    seed: int = 0,
) -> Counted:
    """Are paired differences symmetric about 0? The sign of a whole cluster is flipped at once.

    Statistic: the mean over observations, (1/n) Σ_d s_d Y_d with Y_d the cluster's sum and s_d = ±1. Exact over all
    2^m sign patterns of the m clusters whose sum is not 0 when they are at most `resamples` (m ≤ 13), else that many
    random ones with p = (1 + #{as extreme}) / (1 + resamples). n counts all clusters; p_min = 2^(1−m) two-sided,
    so fewer than six clusters cannot reject at 5 %. p is 1 where every sum is 0.

    Assumes independent clusters with sums symmetric about 0 under the null. Raises `InputError` for values that are
    not finite, labels of another length and fewer than two clusters. scipy.stats.permutation_test.
    """
    from scipy import stats

    x = finite(differences, "differences", 2)
    totals, counts = cluster_totals(x, cluster_codes(clusters, len(x)))
    d = len(totals)
    if d < 2:
        raise InputError(f"a sign-flip test needs at least two clusters, got {d}")
    moving = totals[totals != 0]
    m = len(moving)
    result = stats.permutation_test(
        (np.pad(moving, (0, max(0, 2 - m))) / counts.sum(),),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        alternative=alternative,
        n_resamples=resamples,
        batch=max(1, 1_000_000 // max(m, 1)),
        rng=np.random.default_rng(seed),
    )
    exact = 2 ** max(m, 2) <= resamples
    sides = 2 if alternative == "two-sided" else 1
    p_min = min(1.0, sides / 2**m if exact else sides / (resamples + 1))
    return Counted(float(result.statistic), float(result.pvalue), p_min, d, exact)


def rank_among(observed: float, draws: ArrayLike, *, alternative: Alternative = "two-sided") -> Counted:
    """Rank of an effect among matched-random draws: p = (1 + #{draw as extreme}) / (1 + draws).

    "greater" counts draws ≥ observed, "less" draws ≤ observed, both up to rounding, "two-sided" twice the smaller p, at
    most 1.
    `statistic` is observed − mean of the draws. p_min is 1/(1+draws), twice that two-sided: 19 draws are needed to
    reject at 5 % on one side, 39 on two.

    The p is exact if the selection is as good as one more random draw under the null. The draws are heads, so it
    speaks about these heads of this model, not about prompts or seeds. Phipson & Smyth 2010.
    Raises `InputError` for values that are not finite and for no draws.
    """
    if not np.isfinite(observed):
        raise InputError(f"observed effect {observed} is not finite")
    x = finite(draws, "draws")
    if alternative not in ("two-sided", "greater", "less"):
        raise InputError(f"alternative {alternative!r}: two-sided, greater or less")
    n, tied = len(x), 1e-12 * max(abs(observed), float(np.abs(x).max()))
    above, below = ((1 + int((y >= 0).sum())) / (1 + n) for y in (x - observed + tied, observed - x + tied))
    p = {"greater": above, "less": below, "two-sided": min(1.0, 2 * min(above, below))}[alternative]
    p_min = (2 if alternative == "two-sided" else 1) / (1 + n)
    return Counted(float(observed - x.mean()), p, p_min, n, True)


# ---- several tests at once -------------------------------------------------------------------


def holm(p: ArrayLike) -> np.ndarray:
    """Corrected p of one family, any shape, NaN where undefined: max over j ≤ i of (m−j+1) p_(j), at most 1.

    Holm (1979): it controls the chance of any false rejection under any dependence. m counts the defined cells only: a
    cell that is undefined by construction was never a test.

    Raises `InputError` for p outside [0, 1] and for a family without a defined cell. The tests hold it against
    statsmodels' `multipletests`, which collects garbage at every call and took a fifth of a command's time.
    """
    values = np.asarray(p, float)
    defined = ~np.isnan(values)
    if not defined.any():
        raise InputError("no p to correct: every cell of the family is undefined")
    family = values[defined]
    if ((family < 0) | (family > 1)).any():
        raise InputError("p must lie in [0, 1]")
    order = np.argsort(family)
    family[order] = np.minimum(np.maximum.accumulate(family[order] * np.arange(len(family), 0, -1)), 1.0)
    corrected = np.full(values.shape, np.nan)
    corrected[defined] = family
    return corrected
