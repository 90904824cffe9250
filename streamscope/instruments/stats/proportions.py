"""Shares of hits: how many cases a head gets right, and whether it beats a rule on the same cases."""

from collections import namedtuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtr, ndtri, stdtr

from streamscope.instruments.stats.estimators import (
    CONFIDENCE,
    Clusters,
    cluster_totals,
    degrees_of_freedom,
    ratio_and_error,
    read_clusters,
    sign_flip,
    t_quantile,
)

Z = float(ndtri(0.5 + CONFIDENCE / 2))


ProportionDifference = namedtuple(
    "ProportionDifference", ("n", "clusters", "share", "reference", "difference", "low", "high", "p")
)
"""Hits of one method minus hits of another on the same cases, as shares; p that they hit equally often."""


def wilson(hits: np.ndarray, clusters: Clusters | None, inflation: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95 % intervals of shares of hits (0 or 1) [..., cases]; None: every case is a cluster.

    p = k/n; the interval is {π : |p − π| ≤ z sqrt(π(1−π)/n)}, never outside [0, 1], never of width 0. Clusters: n is
    replaced by the effective n* = p(1−p)/SE² · (z/t_df)², SE of the ratio estimator, at most n (Korn & Graubard
    1998, with Wilson for Clopper-Pearson); n* = D where all or no cases hit. With `inflation` n or n* is divided by it
    (`observations.Measure`).
    """
    n = _worth(hits, clusters) / inflation
    p, z2 = hits.mean(-1), Z**2
    centre, half = p + z2 / (2 * n), np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2)))
    return np.maximum(0.0, (centre - half) / (1 + z2 / n)), np.minimum(1.0, (centre + half) / (1 + z2 / n))


def score_p(
    hits: np.ndarray, null: np.ndarray | float, clusters: Clusters | None, inflation: float = 1.0
) -> np.ndarray:
    """p that shares of hits [..., cases] are `null`: 2 Φ(−|p − π| / sqrt(π(1−π)/n*)), below .05 where π is outside
    `wilson`.

    1 where π is 0 or 1.
    """
    error = np.sqrt(null * (1 - null) * inflation / _worth(hits, clusters))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 1.0, 2 * ndtr(-np.abs(hits.mean(-1) - null) / error))


def _worth(hits: np.ndarray, clusters: Clusters | None) -> np.ndarray:
    """n, or n* of clusters."""
    if clusters is None:
        return np.asarray(hits.shape[-1], float)
    return effective_n(*cluster_totals(hits, clusters.codes), clusters)


def effective_n(totals: np.ndarray, counts: np.ndarray, clusters: Clusters | None = None) -> np.ndarray:
    """Independent cases worth as much as clusters of hits [..., clusters]: p(1−p)/SE² · (z/t)², from 1 to Σ counts."""
    shared, d = (None, len(counts)) if clusters is None else (clusters.shared, clusters.count)
    share, error = ratio_and_error(totals, counts, shared)
    spread, ratio_zt = share * (1 - share), Z / t_quantile(degrees_of_freedom(counts, shared))
    with np.errstate(invalid="ignore"):
        worth = spread / np.maximum(error**2, spread / counts.sum()) * ratio_zt**2
    return np.where(spread == 0, float(d), np.maximum(1.0, worth))


def paired_proportions(
    hits: ArrayLike, reference: ArrayLike, clusters: ArrayLike | None = None, *, resamples: int = 9999, seed: int = 0
) -> ProportionDifference:
    """Does a head hit more often than a rule (recency, chance's pick) on the same cases?

    difference = (b − c)/n with b cases only this method hits, c only the reference. Without clusters: p of McNemar's
    exact test, min(1, 2 P(Bin(b+c, ½) ≤ min(b, c))), conservative; adjusted Wald interval of Bonett & Price 2012,
    British Journal of Mathematical and Statistical Psychology 65:430,
    p12 − p21 ± z sqrt((p12 + p21 − (p12 − p21)²)/(n+2)) with p12 = (b+1)/(n+2), p21 = (c+1)/(n+2). With clusters
    (several pronouns of one story): p of `estimators.sign_flip` on whole clusters, which is McNemar's test when
    clusters hold one case; interval R ± t_df SE of the ratio estimator. With labels of several kinds (nouns that cases
    share) signs cannot be flipped independently: p is t's of the ratio estimator, 1 where both hit the same cases.

    low and high are NaN where clusters differ by the same, low, high and p with one cluster. "Beats the rule by at
    least x points" holds when low ≥ x, not when the difference is x and p small. Choose the head on other cases.
    """
    x, y = np.asarray(hits, float), np.asarray(reference, float)
    n = len(x)
    b, c = int(((x == 1) & (y == 0)).sum()), int(((x == 0) & (y == 1)).sum())
    difference, groups = (b - c) / n, n
    low = high = p = float("nan")
    if clusters is None:
        p = min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))
        p12, p21 = (b + 1) / (n + 2), (c + 1) / (n + 2)
        centre, half = p12 - p21, Z * float(np.sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2)))
        low, high = max(-1.0, centre - half), min(1.0, centre + half)
    elif (groups := (cluster_index := read_clusters(clusters, n)).count) > 1:
        shared, (totals, counts) = cluster_index.shared, cluster_totals(x - y, cluster_index.codes)
        error, df = float(ratio_and_error(totals, counts, shared)[1]), float(degrees_of_freedom(counts, shared))
        if shared is None:
            p = sign_flip(x - y, clusters, resamples=resamples, seed=seed)
        else:
            p = float(2 * stdtr(df, -abs(difference) / error)) if error > 0 else 1.0
        if error != 0:
            half = float(t_quantile(df)) * error
            low, high = max(-1.0, difference - half), min(1.0, difference + half)
    return ProportionDifference(n, groups, float(x.mean()), float(y.mean()), difference, low, high, p)
