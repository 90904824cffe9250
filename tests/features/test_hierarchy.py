"""The hierarchy is the exact one: against scipy on the full matrix of distances."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import cdist, squareform

from streamscope.features.cluster.density import (
    RESOLUTION,
    Edges,
    core_distances,
    nearest,
    single_linkage,
    spanning_tree,
)


def points(kind: str, n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "noise":
        return rng.standard_normal((n, d))
    if kind == "clumps":  # and points between the clumps
        centers = 20 * rng.standard_normal((7, d))
        z = centers[rng.integers(7, size=n)] + rng.standard_normal((n, d)) * rng.choice([0.1, 1, 6], (n, 1))
        return z + 100
    return np.round(2 * rng.standard_normal((n, d)))  # ties without end


def naive_core(d: np.ndarray, min_samples: int) -> np.ndarray:
    """[n] from the full matrix of distances."""
    core: np.ndarray = np.sort(d, axis=1)[:, min_samples]  # place 0 is the row itself
    return core


def naive_heights(z: np.ndarray, min_samples: int) -> np.ndarray:
    """[n, n] distance at which two rows come together, from Campello's definitions."""
    d = cdist(z, z)
    core = naive_core(d, min_samples)
    reach = np.maximum(np.maximum(core[:, None], core), d)
    np.fill_diagonal(reach, 0)
    return squareform(cophenet(linkage(squareform(np.maximum(reach, reach.T)), "single")))


def heights(z: np.ndarray, min_samples: int) -> np.ndarray:
    """The same from ours."""
    distinct, inverse, weights = np.unique(z, axis=0, return_inverse=True, return_counts=True)
    merges, m = single_linkage(spanning_tree(distinct, weights, min_samples), len(distinct)), len(distinct)
    core = core_distances(distinct, weights, min_samples)
    size = [1] * m
    for a, b in zip(merges.left, merges.right, strict=True):
        size.append(size[a] + size[b])
    tree = np.column_stack([merges.left, merges.right, merges.distance, size[m:]]).astype(float)
    found = (squareform(cophenet(tree)) if m > 1 else np.zeros((1, 1)))[np.ix_(inverse, inverse)]
    equal = inverse[:, None] == inverse
    return np.where(equal, core[inverse][:, None] * (~np.eye(len(z), dtype=bool)), found)


@pytest.mark.parametrize("min_samples", [1, 4])
@pytest.mark.parametrize(("kind", "n", "d"), [("noise", 500, 3), ("clumps", 900, 4), ("ties", 500, 3), ("ties", 40, 1)])
def test_heights_are_those_of_the_full_matrix(kind: str, n: int, d: int, min_samples: int) -> None:
    z = points(kind, n, d)
    expected = np.maximum(naive_heights(z, min_samples), RESOLUTION * ~np.eye(n, dtype=bool))
    np.testing.assert_allclose(heights(z, min_samples), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("min_samples", [1, 4])
def test_core_distances_count_tokens(min_samples: int) -> None:
    z = points("ties", 300, 3)
    distinct, inverse, weights = np.unique(z, axis=0, return_inverse=True, return_counts=True)
    expected = np.maximum(naive_core(cdist(z, z), min_samples), RESOLUTION)
    np.testing.assert_allclose(core_distances(distinct, weights, min_samples)[inverse], expected, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 17])
@pytest.mark.parametrize("min_samples", [1, 4])
def test_few_rows(n: int, min_samples: int) -> None:
    z, weights = points("noise", n, 2), np.ones(n, int)
    assert len(single_linkage(spanning_tree(z, weights, min_samples), n).distance) == n - 1
    assert len(core_distances(z, weights, min_samples)) == n


@pytest.mark.parametrize(("n", "k"), [(60, 5), (6000, 7)])
def test_nearest_are_the_nearest(n: int, k: int) -> None:
    z, x = points("noise", n, 5), points("noise", 100, 5, seed=1)
    distance, index = nearest(x, z, k)
    full = cdist(x, z)
    np.testing.assert_array_equal(index, np.argsort(full, axis=1)[:, :k])
    np.testing.assert_allclose(distance, np.sort(full, axis=1)[:, :k], rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-2, 1e-5])
def test_nearest_among_nearly_equal_rows(scale: float) -> None:
    """Forty rows closer to each other than |x|² + |y|² − 2xy tells apart, far from the middle."""
    z = np.repeat(points("noise", 60, 5) * 30, 40, axis=0)
    z += scale * np.random.default_rng(1).standard_normal(z.shape)
    distance, index = nearest(z, z, 6)
    full = cdist(z, z)
    np.testing.assert_allclose(distance, np.sort(full, axis=1)[:, :6], rtol=1e-4, atol=3e-7)
    np.testing.assert_allclose(np.take_along_axis(full, index, 1), distance, rtol=1e-6, atol=1e-9)


def test_rounding_does_not_make_distances() -> None:
    """Rows that differ in their last bits lie at the resolution of each other, whatever the bits."""
    z = np.repeat(points("noise", 30, 4), 40, axis=0)
    shaken = z + 1e-9 * np.random.default_rng(0).standard_normal(z.shape)
    merges = single_linkage(spanning_tree(shaken, np.ones(len(z), int)), len(z))
    assert (merges.distance == RESOLUTION).sum() == 30 * 39
    np.testing.assert_allclose(merges.distance[30 * 39 :], np.sort(linkage(z, "single")[:, 2])[30 * 39 :], atol=1e-7)


def test_rows_that_are_not_connected() -> None:
    edges = spanning_tree(points("noise", 20, 2), np.ones(20, int))
    with pytest.raises(ValueError, match="join no tree"):
        single_linkage(Edges(*(one[1:] for one in edges)), 20)
