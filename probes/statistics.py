"""Estimates with intervals that follow the design of the experiment.

A unit is what was sampled independently: a minimal pair (its two orders are one unit), a document, a training
seed. Observations within a unit may depend on each other in any way; units may not. Everything here treats
clusters as the units and reduces to the textbook formula when every cluster holds one observation.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from models.errors import InputError

BOOTSTRAP_CLUSTERS = 8  # below this no bootstrap interval of d held 93 % in simulation
_BATCH_CELLS = 2_000_000  # resampled numbers in memory at once


class Estimate(NamedTuple):
    """A mean with a 95 % interval; n units, sd between units."""

    mean: float
    sd: float
    ci_low: float
    ci_high: float
    n: int


def finite(values: ArrayLike, name: str, at_least: int = 1) -> np.ndarray:
    """`values` as a float vector. Raises `InputError` for another shape, NaN or infinity, and too few of them."""
    array = np.asarray(values, float)
    if array.ndim != 1:
        raise InputError(f"{name} must be one row of numbers, got shape {array.shape}")
    if len(array) < at_least:
        raise InputError(f"{name}: needs at least {at_least} values, got {len(array)}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise InputError(f"{name}: {bad} of {len(array)} values are not finite; leave undefined cells out")
    return array


def cluster_codes(clusters: ArrayLike | None, n: int) -> np.ndarray:
    """Codes 0..D−1 of n cluster labels (any hashable); None makes every observation its own cluster.

    Raises `InputError` for another number of labels and for missing ones.
    """
    if clusters is None:
        return np.arange(n)
    codes, _ = pd.factorize(np.asarray(clusters))
    if len(codes) != n:
        raise InputError(f"{n} values but {len(codes)} cluster labels")
    if (codes < 0).any():
        raise InputError(f"{int((codes < 0).sum())} cluster labels are missing")
    return codes


def cluster_totals(values: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums [..., D] of values [..., n] by cluster code, and the counts [D]."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    counts = np.diff(np.append(starts, len(codes))).astype(float)
    return np.add.reduceat(values[..., order], starts, axis=-1), counts


def ratio_and_error(totals: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R = Σ y_d / Σ n_d over the last axis and its standard error; leading axes are separate estimates.

    With e_d = y_d − R n_d, Var R = D/(D−1) · Σ e_d² / (Σ n_d)² (linearised; Cochran, Sampling Techniques, §6).
    With equal n_d this is sd / sqrt(D) of the cluster means, exactly; with unequal ones a few long clusters decide,
    which `degrees_of_freedom` accounts for.
    """
    d = totals.shape[-1]
    size = counts.sum(-1)
    ratio = np.asarray(totals.sum(-1) / size)
    residual = totals - ratio[..., None] * counts
    return ratio, np.asarray(np.sqrt(d / (d - 1) * np.square(residual).sum(-1)) / size)


def degrees_of_freedom(counts: np.ndarray) -> np.ndarray:
    """Degrees of freedom of t for `ratio_and_error`, from the cluster sizes n_d on the last axis.

    df = 1 / (Σ p_d² + (Σ w_d)² − Σ w_d²), p_d = n_d / Σ n, w_d = p_d² / (1 − p_d): Satterthwaite's for a clustered
    variance and independent observations (Bell & McCaffrey 2002, Survey Methodology 28:169, for the mean). D−1 with
    equal sizes, less the more the sizes differ. On documents of 10 to 250 tokens a nominal 5 % test rejects 4 to 6.5 %
    of true nulls at 3 to 60 documents, whether tokens of a document depend on each other or not; with D−1 it rejects
    up to 8.5 %, at 5 documents.
    """
    p = counts / counts.sum(-1, keepdims=True)
    w = p**2 / (1 - p)
    return np.asarray(1 / (np.square(p).sum(-1) + w.sum(-1) ** 2 - np.square(w).sum(-1)))


def t_quantile(confidence: float, df: float) -> float:
    """Two-sided Student quantile: the half-width of an interval in standard errors."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence {confidence} must lie between 0 and 1, as 0.95")
    return float(stats.t.ppf(0.5 + confidence / 2, df))


def ratio_of_sums(totals: np.ndarray, counts: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Σ totals / Σ counts over clusters (documents) with the interval of the ratio estimator.

    For a mean per token when whole documents were sampled: R ± t_df SE, `ratio_and_error` and `degrees_of_freedom`.
    `sd` is the standard deviation of y_d / n_d between clusters.

    Raises `InputError` for fewer than two clusters, empty clusters and values that are not finite.
    """
    y, n = np.asarray(totals, float), np.asarray(counts, float)
    if len(y) != len(n) or len(y) < 2:
        raise InputError(f"an interval over documents needs at least two documents, got {len(y)}")
    if (n <= 0).any() or not (np.isfinite(y).all() and np.isfinite(n).all()):
        raise InputError("totals must be finite and every document must have at least one token")
    ratio, error = ratio_and_error(y, n)
    half = t_quantile(confidence, float(degrees_of_freedom(n))) * error
    return Estimate(float(ratio), float((y / n).std(ddof=1)), float(ratio - half), float(ratio + half), len(y))


def mean(values: ArrayLike, clusters: ArrayLike | None = None, confidence: float = 0.95) -> Estimate:
    """Mean over observations with a t interval whose units are the clusters (`ratio_of_sums`).

    Without clusters: x̄ ± t_{n−1} s/√n. With them, n is the number of clusters D, sd is between cluster means
    and the interval has D−1 degrees of freedom, or fewer where sizes differ. Units are those of the values.

    Assumes independent clusters, and a mean over clusters that is close to normal. Raises `InputError` for
    values that are not finite, labels of another length, and fewer than two clusters.
    """
    x = finite(values, "values", 2)
    totals, counts = cluster_totals(x, cluster_codes(clusters, len(x)))
    if len(counts) < 2:
        raise InputError(f"an interval needs at least two clusters, got {len(counts)}")
    return ratio_of_sums(totals, counts, confidence)


def cluster_bootstrap(
    statistic: Callable[..., np.ndarray],
    *columns: np.ndarray,
    confidence: float = 0.95,
    method: Literal["BCa", "percentile"] = "BCa",
    resamples: int = 5000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap interval of a statistic of per-cluster totals, whole clusters drawn with replacement.

    `columns` are [..., D]: per cluster a count, a sum, a sum of squares, …; `statistic(*columns, axis)` reduces the
    last axis. Leading axes (heads, scales) share the resamples. Returns (low, high) of shape [...]; NaN where the
    statistic does not vary over resamples.

    The level is expanded to that of t with D−1 degrees of freedom, α' = 2 Φ(−sqrt(D/(D−1)) t_{D−1, 1−α/2}), because
    a bootstrap is sqrt((D−1)/D) too narrow (Hesterberg 2015, The American Statistician 69:371). Expanded BCa is the
    default because it held its level best for Cohen's d, 30 pairs, 4,000 simulations: 95.6 % (percentile 94.6 %,
    neither expanded 94.5 and 93.8 %), d_z 95.8 % (93.6 %). With t_3 tails 93.0 and 91.0 %: d itself is unstable
    there. For a mean use `mean`. scipy.stats.bootstrap; Efron & Tibshirani 1993, §14.3.

    Raises `InputError` for fewer than eight clusters, totals that are not finite and columns of different lengths.
    """
    if not columns or len({np.shape(c)[-1] for c in columns}) != 1:
        raise InputError("a bootstrap needs columns of one length, one number per cluster")
    d = columns[0].shape[-1]
    if d < BOOTSTRAP_CLUSTERS:
        raise InputError(f"a bootstrap over clusters needs at least {BOOTSTRAP_CLUSTERS} clusters, got {d}")
    if not all(np.isfinite(c).all() for c in columns):
        raise InputError("a bootstrap needs finite totals; leave undefined cells out")
    expanded = 1 - 2 * stats.norm.sf(np.sqrt(d / (d - 1)) * t_quantile(confidence, d - 1))
    data = np.broadcast_arrays(*columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = _scipy_bootstrap(
            data,
            statistic,
            paired=True,
            vectorized=True,
            axis=-1,
            confidence_level=expanded,
            method=method,
            n_resamples=resamples,
            batch=max(1, _BATCH_CELLS // data[0].size),
            rng=np.random.default_rng(seed),
        )
    interval = result.confidence_interval
    return np.asarray(interval.low), np.asarray(interval.high)


def _scipy_bootstrap(*args: Any, **options: Any) -> Any:
    """scipy's bootstrap; a statistic without variation is NaN in the answer and no warning."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        return stats.bootstrap(*args, **options)


def ratio(totals: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
    """Σ totals / Σ counts, as a statistic for `cluster_bootstrap`."""
    return np.asarray(totals.sum(axis) / counts.sum(axis))
