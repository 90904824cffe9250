"""How far two clusterings of the same tokens agree: intervals over documents for scikit-learn's ARI and AMI.

    adjusted_rand_interval(a, b, documents)                   bootstrap, whole documents drawn (Hubert & Arabie 1985)
    adjusted_mutual_information_interval(a, b, documents)     jackknife, groups of documents left out (Vinh et al. 2010)

A bootstrap draws some documents twice, and a token and its copy share a cluster in both clusterings. Counting them as a
pair inflates the ARI (from 0 to 0.09 with 2,000 tokens in clusters of ten), so copies of one document form no pairs.
Mutual information cannot exclude them this way; the jackknife repeats no document.
"""

import numpy as np
from scipy.sparse import coo_array, csr_array
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, expanded_level, t_quantile

GROUPS = 20
"""Groups of documents for the jackknife."""


def refit_agreement(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """ARI of two fits with noise as a cluster, and on the tokens in clusters of both; NaN for fewer than two."""
    both = (a >= 0) & (b >= 0)
    return adjusted_rand_score(a, b), adjusted_rand_score(a[both], b[both]) if both.sum() > 1 else np.nan


def adjusted_rand_interval(
    a: np.ndarray, b: np.ndarray, documents: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of the ARI; documents [n] are resampled. Raises `InputError` for under 8 documents.

    The level is that of `estimators.cluster_bootstrap`, expanded for few documents.
    """
    count, document = _numbered(documents)
    both = np.unique(np.stack([a, b]), axis=1, return_inverse=True)[1].ravel()
    tables = [_tokens(clusters, document) for clusters in (both, a, b, np.zeros(len(a)))]
    rng, draws = np.random.default_rng(seed), []
    for _ in range(resamples):
        weight = rng.multinomial(count, np.full(count, 1 / count)).astype(float)
        index, one, other, every = (_pairs(table, weight) for table in tables)
        expected, largest = one * other / every, (one + other) / 2
        draws.append(1.0 if largest == expected else (index - expected) / (largest - expected))
    level = expanded_level(0.95, count)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _numbered(documents: np.ndarray) -> tuple[int, np.ndarray]:
    """(number of documents, the document of each token from 0)."""
    names, document = np.unique(documents, return_inverse=True)
    if len(names) < BOOTSTRAP_CLUSTERS:
        raise InputError(f"an interval over documents needs at least {BOOTSTRAP_CLUSTERS} of them, got {len(names)}")
    return len(names), document


def _tokens(clusters: np.ndarray, document: np.ndarray) -> csr_array:
    """[clusters, documents] number of tokens."""
    return coo_array((np.ones(len(clusters)), (np.unique(clusters, return_inverse=True)[1], document))).tocsr()


def _pairs(tokens: csr_array, weight: np.ndarray) -> float:
    """Pairs of tokens in one cluster, with each document counted `weight` [documents] times without its copies."""
    per_cluster, within = tokens @ weight, tokens.power(2).sum(0)
    return float(per_cluster @ per_cluster - within @ weight**2 + (within - tokens.sum(0)) @ weight) / 2


def adjusted_mutual_information_interval(
    a: np.ndarray, b: np.ndarray, documents: np.ndarray, *, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the AMI: estimate ± t · sd, from a jackknife over `GROUPS` random groups of documents.

    Variance (G − 1)/G Σ (θ_g − mean)², t with G − 1 degrees of freedom. Raises `InputError` for under 8 documents.
    """
    count, document = _numbered(documents)
    groups = min(GROUPS, count)
    group = np.random.default_rng(seed).permutation(count)[document] % groups
    left = np.array([adjusted_mutual_info_score(a[group != g], b[group != g]) for g in range(groups)])
    half = t_quantile(0.95, groups - 1) * np.sqrt((groups - 1) / groups * ((left - left.mean()) ** 2).sum())
    value = adjusted_mutual_info_score(a, b)
    return float(value - half), float(value + half)
