"""Intervals of means that are skewed and have a smallest or largest possible value: shares, probabilities, counts.

t is symmetric: where values are skewed it covers too little, and it can end beyond the limit. Hall's transformation
removes the skewness. It is a formula of the clusters' totals, so that it costs no time and works where cases share
labels of several kinds. Where skewness cannot be estimated (fewer than 8 clusters, or unequal ones) t on the log-odds
scale is used. How often each holds: docs/guides/measuring.md.
"""

import numpy as np
from scipy.special import expit

from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, Shared, cluster_totals

EVEN = 0.8  # clusters are about equal in size where (Σw)²/Σw² is at least this share of their number
Ends = tuple[float, float]


def bounded_interval(
    value: float, error: float, t: float, residuals: np.ndarray, clusters: int, sizes: np.ndarray, limits: Ends,
    shared: Shared | None = None,
) -> Ends:  # fmt: skip
    """The interval of a mean between `limits`: `hall`'s; `on_log_odds` of fewer than 8 clusters, or unequal ones."""
    if clusters < BOOTSTRAP_CLUSTERS or sizes.sum() ** 2 / (sizes**2).sum() < EVEN * len(sizes):
        return on_log_odds(value, t * error, limits)
    return inside(hall(value, error, t, residuals, shared), value, t * error, limits)


def hall(value: float, error: float, t: float, residuals: np.ndarray, shared: Shared | None = None) -> Ends:
    """Hall's interval of a mean, from its standard error, the quantile t, and residuals e [clusters] that sum to 0.

        g = Σ e³ / (Σ e²)^{3/2}      U(q) = ((1 + g (q − g/6))^{1/3} − 1) / (g/3)
        value − U(t) · error   to   value − U(−t) · error

    g is the skewness of the mean; where it is 0 this is value ± t · error. Of clusters with labels of several kinds
    (`shared`) it is the largest of those by one kind. Hall 1992, Journal of the Royal Statistical Society B 54:221.
    """
    kinds = () if shared is None else shared.kinds
    totals = [residuals, *(cluster_totals(residuals, codes)[0] for codes in kinds)]
    g = max((float((e**3).sum() / (e**2).sum() ** 1.5) for e in totals if (e != 0).any()), key=abs, default=0.0)

    def u(q: float) -> float:
        return q if abs(g) < 1e-9 else float(np.cbrt(1 + g * (q - g / 6)) - 1) / (g / 3)

    return value - u(t) * error, value - u(-t) * error


def inside(ends: Ends, value: float, half: float, limits: Ends) -> Ends:
    """The interval `ends`; an end beyond the limits is that of `on_log_odds`, of the half-width `half` of t."""
    low, high = on_log_odds(value, half, limits)
    return (ends[0] if ends[0] >= limits[0] else low), (ends[1] if ends[1] <= limits[1] else high)


def on_log_odds(value: float, half: float, limits: Ends) -> Ends:
    """y(value) ± y'(value) · half carried back, y = log((x − a)/(b − x)) between the limits a and b: the delta method.

    Without b it is log(x − a), without both x itself. A value at a limit has its end there.
    """
    a, b = limits
    if not a < value < b:
        return max(a, value - half), min(b, value + half)
    low_gap, high_gap = value - a, b - value
    has_low, has_high = np.isfinite(low_gap), np.isfinite(high_gap)
    slope = (1 / low_gap if has_low else 0.0) + (1 / high_gap if has_high else 0.0) or 1.0
    step = slope * half
    if has_low and has_high:
        center = np.log(low_gap) - np.log(high_gap)
        return float(a + (b - a) * expit(center - step)), float(a + (b - a) * expit(center + step))
    if has_low or has_high:
        inner, outer = (low_gap if has_low else high_gap) * np.exp([-step, step])
        return (float(a + inner), float(a + outer)) if has_low else (float(b - outer), float(b - inner))
    return value - half, value + half
