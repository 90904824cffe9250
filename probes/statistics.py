"""Estimates with intervals that follow the design of the experiment."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from models.errors import InputError


class Estimate(NamedTuple):
    """A mean with a 95 % interval; n units, sd between units."""

    mean: float
    sd: float
    ci_low: float
    ci_high: float
    n: int


def ratio_of_sums(totals: np.ndarray, counts: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Σ totals / Σ counts over clusters (documents) with the interval of the ratio estimator.

    For a mean per token when whole documents were sampled: with R = Σ y_d / Σ n_d and e_d = y_d − R n_d,
    Var R = D/(D−1) · Σ e_d² / (Σ n_d)² and the interval is R ± t_{D−1} sqrt(Var R) (linearised; Cochran,
    Sampling Techniques, §6). `sd` is the standard deviation of y_d / n_d between clusters.

    Raises `InputError` for fewer than two clusters, empty clusters and values that are not finite.
    """
    y, n = np.asarray(totals, float), np.asarray(counts, float)
    if len(y) != len(n) or len(y) < 2:
        raise InputError(f"an interval over documents needs at least two documents, got {len(y)}")
    if (n <= 0).any() or not (np.isfinite(y).all() and np.isfinite(n).all()):
        raise InputError("totals must be finite and every document must have at least one token")
    d = len(y)
    mean = y.sum() / n.sum()
    variance = d / (d - 1) * np.square(y - mean * n).sum() / n.sum() ** 2
    half = stats.t.ppf(0.5 + confidence / 2, d - 1) * np.sqrt(variance)
    return Estimate(float(mean), float((y / n).std(ddof=1)), float(mean - half), float(mean + half), d)
