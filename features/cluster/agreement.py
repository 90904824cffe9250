"""How far two clusterings of the same tokens agree: ARI and AMI, with intervals over documents.

    adjusted_rand(a, b)                           (index − E) / (max − E) over pairs of tokens (Hubert & Arabie 1985)
    adjusted_rand_interval(a, b, documents)       bootstrap, whole documents drawn
    adjusted_mutual_information(a, b)             (I − E I) / (mean H − E I), in nats (Vinh, Epps & Bailey 2010)
    adjusted_mutual_information_interval(…)       jackknife, groups of documents left out

A bootstrap draws some documents twice, and a token and its copy share a cluster in both clusterings. Counting them as a
pair inflates the ARI (from 0 to 0.09 with 2,000 tokens in clusters of ten), so copies of one document form no pairs.
Mutual information cannot exclude them this way; the jackknife repeats no document.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, t_quantile

GROUPS = 20
"""Groups of documents for the jackknife."""


class _Cells(NamedTuple):
    """Counts of tokens by cluster and document: `n` tokens in cell (`cluster`, `document`)."""

    cluster: np.ndarray
    document: np.ndarray
    n: np.ndarray

    def pairs(self, weight: np.ndarray) -> float:
        """Pairs of tokens in one cluster, with each document counted `weight` [documents] times without its copies."""
        w = weight[self.document]
        per_cluster = np.bincount(self.cluster, w * self.n)
        return float(((per_cluster**2).sum() - (w * self.n) @ (w * self.n)) / 2 + w @ (self.n * (self.n - 1)) / 2)


def _codes(*columns: np.ndarray) -> np.ndarray:
    """An integer from 0 for each distinct combination of values."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = np.unique(code * len(values) + inverse, return_inverse=True)[1]
    return code


def _cells(cluster: np.ndarray, document: np.ndarray) -> _Cells:
    cell, n = np.unique(np.stack([cluster, document]), axis=1, return_counts=True)
    return _Cells(cell[0], cell[1], n.astype(float))


def _rand(both: float, a: float, b: float, every: float) -> float:
    expected, largest = a * b / every, (a + b) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def adjusted_rand(a: np.ndarray, b: np.ndarray) -> float:
    """ARI of labels a [n] and b [n]: 1 for equal partitions, 0 expected by chance (`sklearn.adjusted_rand_score`)."""
    return _rand_of(a, b, np.zeros(len(a), np.int64))(np.ones(1))


def adjusted_rand_interval(
    a: np.ndarray, b: np.ndarray, documents: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of the ARI; documents [n] are resampled. Raises `InputError` for under 8 documents."""
    document = _codes(documents)
    count = _document_count(document)
    statistic, rng = _rand_of(a, b, document), np.random.default_rng(seed)
    draws = [statistic(rng.multinomial(count, np.full(count, 1 / count)).astype(float)) for _ in range(resamples)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _rand_of(a: np.ndarray, b: np.ndarray, document: np.ndarray) -> Callable[[np.ndarray], float]:
    """The ARI as a function of how often each document is drawn."""
    a, b = _codes(a), _codes(b)
    cells = [_cells(c, document) for c in (_codes(a, b), a, b, np.zeros_like(a))]
    return lambda weight: _rand(*(one.pairs(weight) for one in cells))


def _document_count(document: np.ndarray) -> int:
    count = int(document.max()) + 1
    if count < BOOTSTRAP_CLUSTERS:
        raise InputError(f"an interval over documents needs at least {BOOTSTRAP_CLUSTERS} of them, got {count}")
    return count


def adjusted_mutual_information(a: np.ndarray, b: np.ndarray) -> float:
    """AMI of labels a [n] and b [n], normalised by the mean entropy (`sklearn.adjusted_mutual_info_score`).

    The expectation sums over pairs of cluster sizes, not of clusters: fast with 1,000 clusters on each side.
    """
    a, b = _codes(a), _codes(b)
    n, sizes = len(a), (np.bincount(a), np.bincount(b))
    if len(sizes[0]) == len(sizes[1]) == 1 or len(sizes[0]) == len(sizes[1]) == n:
        return 1.0
    joint = np.bincount(_codes(a, b))
    h_a, h_b, h = (-(s / n * np.log(s / n)).sum() for s in (*sizes, joint))
    expected, mean = _expected_information(*sizes, n), (h_a + h_b) / 2
    return float((h_a + h_b - h - expected) / (mean - expected))


def _expected_information(a: np.ndarray, b: np.ndarray, n: int) -> float:
    """E I in nats over random tables with the margins a and b (Vinh et al. 2010, Eq. 24a)."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    (a, of_a), (b, of_b) = (np.unique(s, return_counts=True) for s in (a, b))
    total = 0.0
    for size, times in zip(a, of_a, strict=True):
        low, high = np.maximum(1, size + b - n), np.minimum(size, b)
        length = np.maximum(high - low + 1, 0)
        other, many = np.repeat(b, length), np.repeat(of_b, length)
        ij = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length) + np.repeat(low, length)
        f = log_factorial
        log_p = f[size] + f[other] + f[n - size] + f[n - other] - f[n] - f[ij]
        log_p -= f[size - ij] + f[other - ij] + f[n - size - other + ij]
        total += times * float((many * ij / n * np.log(n * ij / (size * other)) * np.exp(log_p)).sum())
    return total


def adjusted_mutual_information_interval(
    a: np.ndarray, b: np.ndarray, documents: np.ndarray, *, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the AMI: estimate ± t · sd, from a jackknife over `GROUPS` random groups of documents.

    Variance (G − 1)/G Σ (θ_g − mean)², t with G − 1 degrees of freedom. Raises `InputError` for under 8 documents.
    """
    document = _codes(documents)
    count = _document_count(document)
    groups = min(GROUPS, count)
    group = np.random.default_rng(seed).permutation(count)[document] % groups
    left = np.array([adjusted_mutual_information(a[group != g], b[group != g]) for g in range(groups)])
    half = t_quantile(0.95, groups - 1) * np.sqrt((groups - 1) / groups * ((left - left.mean()) ** 2).sum())
    value = adjusted_mutual_information(a, b)
    return float(value - half), float(value + half)
