"""Cohen's d in its readings, and an interval that knows which cases belong together."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.stats.estimators import cluster_totals, finite, read_clusters, statistic_interval

Kind = Literal["pooled", "d_z"]
KINDS = ("pooled", "d_z")


def cohens_d(condition: ArrayLike, baseline: ArrayLike, kind: Kind = "pooled") -> float:
    """Standardised difference (no unit) of two conditions; NaN where the standardiser is 0.

    pooled     (m1 − m0) / sqrt((s1² + s0²)/2)     the default, LFA Eq. 9 as read in SPEC §7.3
    d_z        mean(x1 − x0) / sd(x1 − x0)         pairs of cases; t = d_z sqrt(n) when independent

    s are sample standard deviations (n−1) over cases. With r the correlation of the conditions and equal spreads
    d_z = d_pooled / sqrt(2(1−r)): at r = 0.86 d_z is 1.9 times d_pooled. None is corrected for small n (Hedges).

    Raises `InputError` for values that are not finite, fewer than two, and unequal lengths for d_z.
    """
    if kind not in KINDS:
        raise unknown("kind of d", str(kind), list(KINDS))
    x1, x0 = finite(condition, "condition", 2), finite(baseline, "baseline", 2)
    difference = x1.mean() - x0.mean()
    if kind == "d_z" and len(x1) != len(x0):
        raise InputError(f"d_z needs pairs of cases, got {len(x1)} and {len(x0)} values")
    spread = (x1 - x0).std(ddof=1) if kind == "d_z" else np.sqrt((x1.var(ddof=1) + x0.var(ddof=1)) / 2)
    scale = max(np.abs(x1).max(), np.abs(x0).max())
    return float(difference / spread) if spread > 8 * np.finfo(float).eps * scale else float("nan")


def d_interval(
    condition: ArrayLike,
    baseline: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 5000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of the pooled `cohens_d` of paired cases: whole clusters drawn with replacement, expanded BCa.

    d of a resample follows from five totals per cluster (n, Σx1, Σx0, Σx1², Σx0²), so no case is copied.
    Level held and limits: `estimators.cluster_bootstrap`; with labels of several kinds `statistic_interval`. Raises
    `InputError` as `cohens_d`, and for fewer than eight clusters.
    """
    x1, x0 = finite(condition, "condition", 2), finite(baseline, "baseline", 2)
    if len(x1) != len(x0):
        raise InputError(f"an interval of d over pairs needs equal lengths, got {len(x1)} and {len(x0)}")
    within = read_clusters(clusters, len(x1))
    low, high = statistic_interval(
        d_of_totals,
        *d_totals(x1, x0, within.codes),
        within=within,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    return float(low), float(high)


def d_totals(x1: np.ndarray, x0: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Per cluster n, Σx1, Σx0, Σx1², Σx0² [..., D] of cases [..., n], with one origin per row.

    The origin is the row's grand mean, so that squares do not swallow small differences.
    """
    origin = (x1.mean(-1, keepdims=True) + x0.mean(-1, keepdims=True)) / 2
    a, b = x1 - origin, x0 - origin
    sums = [cluster_totals(values, codes)[0] for values in (a, b, a * a, b * b)]
    return cluster_totals(a, codes)[1], *sums


def d_of_totals(
    n: np.ndarray, x1: np.ndarray, x0: np.ndarray, x11: np.ndarray, x00: np.ndarray, axis: int = -1
) -> np.ndarray:
    """The pooled d of paired cases from `d_totals`, summed over `axis`."""
    m, s1, s0 = n.sum(axis), x1.sum(axis), x0.sum(axis)
    variance = (x11.sum(axis) - s1**2 / m + x00.sum(axis) - s0**2 / m) / (m - 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((s1 - s0) / m / np.sqrt(variance))
