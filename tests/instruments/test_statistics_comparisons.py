"""Comparisons, effect sizes and permutation tests against hand-computed values and references."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from streamscope.instruments.stats.estimators import (
    cohens_d,
    rank_among,
    sign_flip,
)

RNG = np.random.default_rng(0)


def test_cohens_d_by_hand() -> None:
    """(2, 4, 6) − (1, 2, 6): means 4 and 3, variances 4 and 7, differences 1, 2, 0 of variance 1."""
    x1, x0 = [2, 4, 6], [1, 2, 6]
    assert cohens_d(x1, x0) == pytest.approx(1 / np.sqrt(5.5))
    assert cohens_d(x1, x0, "d_z") == pytest.approx(1.0)
    assert cohens_d([2, 4, 6, 4], x0) == pytest.approx(1 / np.sqrt((8 / 3 + 7) / 2))


def test_sign_flips_by_enumeration() -> None:
    x = RNG.normal(0.4, 1, size=8)
    sums = np.array([np.dot(s, x) for s in product((1, -1), repeat=8)])
    above, below = (sums >= x.sum() - 1e-9).mean(), (sums <= x.sum() + 1e-9).mean()
    assert sign_flip(x) == pytest.approx(min(1, 2 * min(above, below)))


def test_sign_flips_of_clusters() -> None:
    """A cluster flips as one: its sum is all that counts; clusters that sum to 0 change nothing."""
    assert sign_flip([1, 2, 3, 1, 4, -4, 2, -2], list("aabbccdd")) == 0.5
    assert sign_flip([0.0, 0.0, 0.0]) == sign_flip([0.0, 0.0, 2.0]) == 1


def test_sign_flips_of_many_clusters_are_sampled_with_a_seed() -> None:
    x = RNG.normal(0.3, 1, size=40)
    one, other = sign_flip(x, seed=1), sign_flip(x, seed=2)
    assert one == sign_flip(x, seed=1) != other == pytest.approx(one, abs=0.02)
    assert one == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.02)
    few = sign_flip(x, resamples=99) * 100 / 2  # patterns as extreme, of 99 and the one that was seen
    assert few == pytest.approx(round(few))
    assert sign_flip(np.ones(13)) == 2 / 2**13, "as many as resamples are counted"
    assert sign_flip(x) == sign_flip(x, seed=0)


def test_rank_by_hand() -> None:
    draws = np.arange(20.0)
    assert rank_among(19.5, draws, alternative="greater").p == pytest.approx(1 / 21)
    assert rank_among(19.0, draws, alternative="greater").p == pytest.approx(2 / 21)
    tenth, same = np.array([0.1 + 0.2] * 19), 0.3  # equal but for rounding: .30000000000000004
    assert rank_among(same, tenth, alternative="greater").p == rank_among(same, tenth).p == 1
    assert rank_among(0.3 + 1e-9, tenth, alternative="greater").p == pytest.approx(1 / 20)
    assert rank_among(19.5, draws).p == pytest.approx(2 / 21) == pytest.approx(rank_among(-0.5, draws).p)
    assert rank_among(9.5, draws) == (1, pytest.approx(2 / 21))
    assert rank_among(1.0, [0.0], alternative="greater").p_min == 1 / 2 and rank_among(1.0, [0.0]).p_min == 1
