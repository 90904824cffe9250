"""Student's and Welch's tests over many cells at once, the units on the last axis."""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from streamscope.instruments.stats.estimators import Shared, degrees_of_freedom, ratio_and_error


class TTest(NamedTuple):
    """Arrays over the leading axes: difference, its standard error, t, degrees of freedom, two-sided p."""

    difference: np.ndarray
    error: np.ndarray
    t: np.ndarray
    df: np.ndarray
    p: np.ndarray


def clustered_t(totals: np.ndarray, counts: np.ndarray, shared: Shared | None = None) -> TTest:
    """Student's test that Σ y_d / Σ n_d is 0, clusters on the last axis: t = R / SE with df degrees of freedom.

    R and SE are `estimators.ratio_and_error`'s, df `estimators.degrees_of_freedom`'s, D−1 for clusters of one size;
    with two orders in every pair this is the paired t test on pair means. NaN where no cluster differs from another.
    `shared` says which cells share labels of several kinds (`estimators.read_clusters`).
    """
    difference, error = ratio_and_error(totals, counts, shared)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, difference / error, np.nan)
    df = np.broadcast_to(degrees_of_freedom(counts, shared), error.shape)
    return TTest(difference, error, t, df, 2 * stdtr(df, -np.abs(t)))


def welch_t(a: np.ndarray, b: np.ndarray) -> TTest:
    """Welch's test that two means are equal, units on the last axis: t = (ā − b̄)/sqrt(s_a²/n_a + s_b²/n_b).

    Degrees of freedom of Welch and Satterthwaite. NaN where neither group has any spread.
    """
    va, vb = a.var(-1, ddof=1) / a.shape[-1], b.var(-1, ddof=1) / b.shape[-1]
    difference = a.mean(-1) - b.mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(va + vb > 0, difference / np.sqrt(va + vb), np.nan)
        df = (va + vb) ** 2 / (va**2 / (a.shape[-1] - 1) + vb**2 / (b.shape[-1] - 1))
    return TTest(difference, np.sqrt(va + vb), t, df, 2 * stdtr(df, -np.abs(t)))


def constant(values: np.ndarray, scale: float | None = None) -> bool:
    """Whether values differ by no more than float64 rounds numbers of size `scale` (default: their own)."""
    scale = float(np.abs(values).max()) if scale is None else float(scale)
    return bool(np.ptp(values) <= 8 * np.finfo(float).eps * scale)
