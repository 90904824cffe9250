"""Inference for cross-validated hits, in which every case has also trained the probes that judge the others."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from streamscope.models.errors import InputError
from streamscope.probes.stats.estimators import (
    cluster_codes,
    cluster_totals,
    degrees_of_freedom,
    finite,
    ratio_and_error,
    t_quantile,
)
from streamscope.probes.stats.proportions import effective_n

SHARED = 1 + 2 / np.pi
"""Variance of a cross-validated share of hits, over that of as many independent hits.

Of two cases in different folds each has trained the probe that judges the other. A linear probe scores case i by
Σ_j y_i y_j k(x_i, x_j): the term (i, j) is in the scores of i and of j. Where the activations say nothing, two scores
so have correlation 1/n_train and their signs, the hits, (2/π)/n_train; summed over all pairs that adds 2/π. In
simulations of such nulls (8 and 96 dimensions, cases or whole groups independent) the factor was 1.6 to 1.8; where
a label is easy to read it falls to 1, so that intervals are then too wide: they hold 98 to 99 %. No estimate of this
variance from one cross-validation is unbiased (Bengio & Grandvalet 2004); Nadeau & Bengio's factor (2003), 2.25 for
five folds, is more cautious.
"""


class CrossValidated(NamedTuple):
    """Share of hits, its sd between cases, a 95 % interval, and p that it is `against`; n groups."""

    mean: float
    sd: float
    ci_low: float
    ci_high: float
    p: float
    n: int


def cross_validated_share(hits: ArrayLike, groups: ArrayLike, against: float) -> CrossValidated:
    """Share p of cross-validated hits, Wilson's interval, and the score test against a fixed share π.

    n* is `proportions.effective_n` over groups, divided by `SHARED`; the interval is {π : |p − π| ≤ z sqrt(π(1−π)/n*)},
    and p_value = 2 Φ(−|p − π| / sqrt(π(1−π)/n*)), below 5 % exactly where π is outside. Where `against` is the share of
    the commonest label in the same cases, that is taken as given; p is 1 where it is 1.

    Raises `InputError` for values that are not finite and fewer than two groups.
    """

    x = finite(hits, "hits", 2)
    totals, counts = cluster_totals(x, cluster_codes(groups, len(x)))
    if len(counts) < 2:
        raise InputError(f"an interval needs at least two groups, got {len(counts)}")
    n, share = effective_n(totals, counts) / SHARED, float(x.mean())
    low, high = proportion_confint(share * n, n, alpha=0.05, method="wilson")
    error = np.sqrt(against * (1 - against) / n)
    p = float(2 * stats.norm.sf(abs(share - against) / error)) if error > 0 else 1.0
    return CrossValidated(share, float(np.sqrt(share * (1 - share))), float(low), float(high), p, len(counts))


def cross_validated_gain(gains: ArrayLike, groups: ArrayLike) -> tuple[float, float, float]:
    """Mean of gains (hits of one task minus hits of another, by the same folds) and its 95 % interval.

    R ± t_df sqrt(`SHARED`) SE of the ratio estimator over groups. Raises `InputError` as `cross_validated_share`.
    """
    x = finite(gains, "gains", 2)
    totals, counts = cluster_totals(x, cluster_codes(groups, len(x)))
    if len(counts) < 2:
        raise InputError(f"an interval needs at least two groups, got {len(counts)}")
    mean, error = (float(v) for v in ratio_and_error(totals, counts))
    half = t_quantile(0.95, float(degrees_of_freedom(counts))) * np.sqrt(SHARED) * error
    return mean, float(mean - half), float(mean + half)


def dealt(words: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A control task [N]: each word type gets one label at random, the labels as frequent as in `labels`.

    words and labels are codes from 0. Words in random order each take the label that is furthest behind, so that no
    control has a commoner label, and with it a better guess, than the task itself.
    """
    left = np.bincount(labels) + 0.5 * rng.random(labels.max() + 1)
    sizes = np.bincount(words)
    given = np.zeros(len(sizes), int)
    for word in rng.permutation(len(sizes)):
        given[word] = left.argmax()
        left[given[word]] -= sizes[word]
    return given[words]
