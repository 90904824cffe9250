"""Agreement of two clusterings: intervals that hold what they should."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from streamscope.cli.errors import InputError
from streamscope.features.cluster.checks import adjusted_mutual_information_interval, adjusted_rand_interval


def labels(n: int, clusters: int, same: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two clusterings, equal at a share `same` of the tokens, with noise (−1)."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-1, clusters, (2, n))
    return a, np.where(rng.random(n) < same, a, b)


@pytest.mark.parametrize(("n", "clusters", "same"), [(40, 3, 0.5), (2000, 300, 0.3), (2000, 5, 0), (300, 299, 0.1)])
def test_the_interval_is_of_scikit_learns_index(
    n: int, clusters: int, same: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that takes every document once gives the index of the tokens themselves."""
    a, b = labels(n, clusters, same)
    a[: n // 3] = -1  # a large cluster beside small ones
    draw = type("Draw", (), {"multinomial": lambda self, count, p: np.ones(count)})
    monkeypatch.setattr(np.random, "default_rng", lambda seed: draw())
    interval = adjusted_rand_interval(a, b, np.arange(n) % 10, resamples=1)
    assert interval == pytest.approx([adjusted_rand_score(a, b)] * 2, abs=1e-12)


def test_equal_clusterings() -> None:
    a, _ = labels(600, 20, 0)
    documents = np.repeat(np.arange(20), 30)
    assert adjusted_rand_interval(a, 7 - a, documents, resamples=100) == (1, 1)
    assert adjusted_mutual_information_interval(a, 7 - a, documents) == pytest.approx((1, 1))
    one = np.zeros(600, int)
    assert adjusted_rand_interval(one, one, documents, resamples=10) == (1, 1), "a single cluster"


def test_the_level_is_that_of_few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends are the quantiles of the level expanded for 8 documents, where those of 95 % cover 83 %."""
    a, b = labels(240, 6, 0.5)
    asked: list[float] = []
    monkeypatch.setattr(np, "quantile", lambda draws, ends: asked.extend(ends) or ends)
    adjusted_rand_interval(a, b, np.repeat(np.arange(8), 30), resamples=2)
    outside = stats.norm.sf(np.sqrt(8 / 7) * stats.t(7).ppf(0.975))
    assert asked == pytest.approx([outside, 1 - outside]) and outside < 0.006


@pytest.mark.slow
def test_intervals_cover_independence_and_repetition_does_not_count() -> None:
    """Small clusters, where a bootstrap that paired tokens with their copies would lie far above 0."""
    covered = {"ARI": 0, "AMI": 0}
    documents = np.repeat(np.arange(30), 20)
    for seed in range(30):
        a, b = labels(600, 60, 0, seed)
        low, high = adjusted_rand_interval(a, b, documents, resamples=200, seed=seed)
        covered["ARI"] += low <= 0 <= high
        low, high = adjusted_mutual_information_interval(a, b, documents, seed=seed)
        covered["AMI"] += low <= 0 <= high
    assert min(covered.values()) >= 25


def test_resamples_are_weighted_documents() -> None:
    """Against tokens repeated in so many words, with copies apart: counted pair by pair."""
    from streamscope.features.cluster.checks import _pairs, _tokens

    a, _ = labels(60, 4, 0)
    documents = np.repeat(np.arange(10), 6)
    weight = np.random.default_rng(0).integers(0, 3, 10).astype(float)
    tokens = [(i, copy) for i in range(60) for copy in range(int(weight[documents[i]]))]
    pairs = 0
    for n, (i, copy) in enumerate(tokens):
        for j, other in tokens[:n]:
            apart = documents[i] != documents[j] or copy == other
            pairs += a[i] == a[j] and apart
    assert _pairs(_tokens(a, documents), weight) == pairs


def test_too_few_documents() -> None:
    a, b = labels(60, 4, 0)
    for interval in (adjusted_rand_interval, adjusted_mutual_information_interval):
        with pytest.raises(InputError, match="at least 8"):
            interval(a, b, np.repeat(np.arange(6), 10))
