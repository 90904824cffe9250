"""Computational modes on tables whose clusters are known, beside scikit-learn and the hdbscan package."""

import itertools
from unittest import SkipTest

import hdbscan
import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from streamscope.features.cluster.modes import ComputationalModes, distinct_rows, hashes, nearest


def blobs(sizes: tuple[int, ...], d: int = 6, noise: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Blobs on the corners of a cube, labelled by size, and points farther from all than these lie apart: −1."""
    rng = np.random.default_rng(seed)
    corners = np.array(list(itertools.product([0, 20.0], repeat=d)))
    centers = corners[rng.permutation(len(corners))]
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = centers[y] + rng.standard_normal((len(y), d))
    far = 1000 * rng.standard_normal((noise, d))
    return np.vstack([x, far]), np.append(y, np.full(noise, -1))


@pytest.mark.parametrize("method", ["hdbscan", "kmeans"])
def test_scikit_learns_checks(method: str) -> None:
    modes = ComputationalModes(method, n_clusters=2 if method == "kmeans" else 10)
    run = 0
    for estimator, check in estimator_checks_generator(modes):
        if check.func.__name__ == "check_do_not_raise_errors_in_init_or_set_params":
            continue  # the type checker of the tests raises there
        try:
            check(estimator)
            run += 1
        except SkipTest:
            pass
    assert run > 30


@pytest.mark.parametrize("components", ["auto", None, 3])
def test_blobs_are_found_and_numbered_by_size(components: int | str | None) -> None:
    x, y = blobs((120, 80, 50, 20), noise=5)
    modes = ComputationalModes(components=components).fit(x)
    np.testing.assert_array_equal(modes.labels_[y >= 0], y[y >= 0])
    if components != 3:  # corners may coincide there
        assert (modes.labels_[y < 0] == -1).all()
    assert (modes.probabilities_[modes.labels_ < 0] == 0).all()
    assert modes.probabilities_.max() == 1


def test_kmeans_takes_the_best_of_ten_starts() -> None:
    """On rows without clusters, where most starts end in a worse place."""
    x = np.random.default_rng(0).random((300, 6))
    modes = ComputationalModes("kmeans", n_clusters=12).fit(x)
    rows = modes.transform(x)
    assert modes.explained_variance_ratio_.size == 0  # the paper's k-means is on all columns
    starts = [sklearn.cluster.KMeans(12, n_init=1, random_state=seed).fit(rows).inertia_ for seed in range(20)]
    assert (cdist(rows, modes.centers_).min(1) ** 2).sum() < np.quantile(starts, 0.2)


def loose(seed: int, n: int = 700, d: int = 4) -> np.ndarray:
    """Clusters of very different density, with points everywhere between."""
    rng = np.random.default_rng(seed)
    x = 3 * rng.standard_normal((6, d))[rng.integers(6, size=n)]
    return x + rng.standard_normal((n, d)) * rng.random((n, 1))


@pytest.mark.parametrize("selection", ["eom", "leaf"])
@pytest.mark.parametrize("seed", range(6))
def test_labels_and_probabilities_are_scikit_learns(seed: int, selection: str) -> None:
    """min_samples counts the point itself there, so that its 1 and our 1 both mean the plain distance."""
    x = loose(seed)
    ours = ComputationalModes(components=None, selection=selection).fit(x)
    z = ours.transform(x).round(5)
    peer = sklearn.cluster.HDBSCAN(10, min_samples=1, cluster_selection_method=selection, copy=True).fit(z)
    assert peer.labels_.max() > 1
    assert adjusted_rand_score(ours.labels_, peer.labels_) == 1
    np.testing.assert_array_equal(ours.labels_ < 0, peer.labels_ < 0)
    np.testing.assert_allclose(ours.probabilities_, peer.probabilities_, atol=1e-9)


def test_min_samples_is_that_of_the_package() -> None:
    """Where core distances tie the package cuts by the order of the rows, so that a few tokens differ."""
    for seed in range(4):
        modes = ComputationalModes(components=None, min_samples=4).fit(loose(seed))
        z = modes.transform(loose(seed))
        peer = hdbscan.HDBSCAN(10, 4, approx_min_span_tree=False).fit_predict(z)
        assert adjusted_rand_score(modes.labels_, peer) > 0.98


def test_standardising_and_components_are_scikit_learns() -> None:
    x = loose(0, d=9) * np.arange(1, 10) + np.arange(9)
    x = np.vstack([x, x[:50], x[:20]])  # repeated rows weigh as much as they should
    modes = ComputationalModes(components=5).fit(x)
    scaled = StandardScaler().fit_transform(x)
    pca = PCA(5, svd_solver="full").fit(scaled)
    np.testing.assert_allclose(modes.explained_variance_ratio_, pca.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(modes.transform(x)), np.abs(pca.transform(scaled)), atol=1e-8)


@pytest.mark.parametrize("method", ["hdbscan", "kmeans"])
def test_order_and_repetition_of_rows(method: str) -> None:
    x = np.vstack([loose(0), np.repeat(loose(1)[:5], 30, axis=0), np.zeros((40, 4))])
    order = np.random.default_rng(0).permutation(len(x))
    first, second = (ComputationalModes(method).fit(rows) for rows in (x, x[order]))
    np.testing.assert_array_equal(first.labels_[order], second.labels_)
    np.testing.assert_array_equal(first.probabilities_[order], second.probabilities_)
    for row in np.unique(x, axis=0):
        assert len(set(first.labels_[(x == row).all(1)])) == 1


def test_equal_rows_are_one_cluster_and_rounding_does_not_cut_it() -> None:
    """60 equal tokens among blobs; the package alone makes noise and several clusters of them once they are shaken."""
    x, y = blobs((100, 80))
    rng = np.random.default_rng(0)
    same = np.full((60, 6), 10.0)
    for rows in (same, same + 1e-8 * rng.standard_normal(same.shape)):
        labels = ComputationalModes().fit_predict(np.vstack([x, rows]))
        np.testing.assert_array_equal(labels, np.append(y, np.full(60, 2)))


def test_hashes_tell_rows_apart_and_equal_rows_alike() -> None:
    """Round numbers, whose differences are in the highest bits only, as counts, one-hot rows and powers of 2."""
    grid = np.array(np.meshgrid(*[[0.0, 1.0, 2.0, -1.0, 0.5]] * 6)).reshape(6, -1).T
    rows = np.vstack([grid, 2.0 ** np.arange(-300, 300, 100)[:, None] * np.ones(6), np.eye(6) * 7])
    assert len(np.unique(hashes(rows))) == len(np.unique(rows, axis=0)) > 15_000
    np.testing.assert_array_equal(hashes(rows[::-1].copy()), hashes(rows)[::-1])
    first, inverse, counts = distinct_rows(np.vstack([rows, rows[:9]]))
    np.testing.assert_array_equal(rows[first][inverse], np.vstack([rows, rows[:9]]))
    assert counts.sum() == len(rows) + 9


@pytest.mark.parametrize("selection", ["eom", "leaf"])
def test_tokens_leave_the_tree_where_the_package_says(selection: str) -> None:
    """Row by row through the package's edges: the cluster a row falls out of, when, and the selected one above it."""
    modes = ComputationalModes(components=None, selection=selection).fit(loose(3, n=200))
    z, tree = np.round(modes.transform(loose(3, n=200)), 5), modes.tree_
    peer = hdbscan.HDBSCAN(10, 1, cluster_selection_method=selection, approx_min_span_tree=False).fit(z)
    row = {tuple(one): i for i, one in enumerate(modes.rows_)}
    births, deaths = {200: 0.0}, dict.fromkeys(range(200, 200 + len(tree.parent)), 0.0)
    for parent, child, lam, _ in peer.condensed_tree_.to_numpy().tolist():
        deaths[parent] = max(deaths[parent], lam)
        if child >= 200:
            births[child] = lam
            assert tree.parent[child - 200] == parent - 200
            continue
        i = row[tuple(z[child])]
        assert (tree.last[i], tree.level[i]) == (parent - 200, lam)
        owner = modes.owner_[tree.last[i]]
        assert (-1 if owner < 0 else modes.numbers_[owner]) == modes.labels_[child]
    assert tree.birth.tolist() == [births[c] for c in sorted(births)]
    assert tree.death.tolist() == [deaths[c] for c in sorted(deaths)]


@pytest.mark.parametrize("selection", ["eom", "leaf"])
@pytest.mark.parametrize("seed", range(3))
def test_fitted_tokens_get_their_labels_back(seed: int, selection: str) -> None:
    modes = ComputationalModes(selection=selection).fit(loose(seed))
    np.testing.assert_array_equal(modes.predict(loose(seed)), modes.labels_)


def test_new_tokens_of_blobs() -> None:
    x, _ = blobs((120, 80, 50))
    modes = ComputationalModes().fit(x[::2])
    assert modes.labels_.min() == 0
    labels, probabilities = modes.predict_soft(x[1::2])
    np.testing.assert_array_equal(labels[labels >= 0], modes.labels_[: len(labels)][labels >= 0])
    assert (labels >= 0).mean() > 0.9 and ((probabilities > 0) == (labels >= 0)).all()
    assert (modes.predict(np.full((2, 6), [[500.0], [-70.0]])) == -1).all()


@pytest.mark.parametrize("min_samples", [1, 3])
def test_prediction_is_joining_the_tree(min_samples: int) -> None:
    """Against a search through all selected clusters and their fitted tokens, point by point."""
    x, new = loose(0, n=300), loose(0, n=340)[300:] + 0.05
    modes = ComputationalModes(components=None, min_samples=min_samples).fit(x)
    z, tree = modes.transform(x).round(5), modes.tree_
    row = {tuple(one): i for i, one in enumerate(modes.rows_)}
    at = [row[tuple(one)] for one in z]
    labels, probabilities = modes.predict_soft(new)
    d = np.sqrt(((z[:, None] - z) ** 2).sum(-1))
    core = np.sort(d, axis=1)[:, min_samples]
    for point, label, probability in zip(modes.transform(new).round(5), labels, probabilities, strict=True):
        gap = np.sqrt(((z - point) ** 2).sum(-1))
        reach = np.maximum(np.maximum(gap, core), np.sort(gap)[min_samples - 1])
        joins, lam = at[int(reach.argmin())], 1 / reach.min()
        cluster = tree.last[joins]
        if lam < tree.level[joins]:
            while cluster > 0 and tree.birth[cluster] >= lam:
                cluster = tree.parent[cluster]
        expected, share = -1, 0.0
        while cluster > 0 and expected < 0:
            if modes.owner_[cluster] == cluster:
                expected, share = modes.numbers_[cluster], min(lam / tree.death[cluster], 1.0)
            cluster = tree.parent[cluster]
        assert label == expected and probability == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize("method", ["hdbscan", "kmeans"])
def test_arrays_and_back(method: str) -> None:
    table = pd.DataFrame(loose(0), columns=list("abcd"))
    modes = ComputationalModes(method).fit(table)
    loaded = ComputationalModes.of(modes.get_params(), list("abcd"), modes.arrays())
    assert loaded.get_params() == modes.get_params() and list(loaded.feature_names_in_) == list("abcd")
    new = pd.DataFrame(loose(1), columns=list("abcd"))
    for one, other in zip(modes.predict_soft(new), loaded.predict_soft(new), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [60, 6000])
def test_nearest_are_the_nearest(n: int) -> None:
    rng = np.random.default_rng(0)
    z, x = rng.standard_normal((n, 5)), rng.standard_normal((100, 5))
    distance, index = nearest(x, z, 7)
    full = cdist(x, z)
    np.testing.assert_array_equal(index, np.argsort(full, axis=1)[:, :7])
    np.testing.assert_allclose(distance, np.sort(full, axis=1)[:, :7], rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-2, 1e-5])
def test_nearest_among_nearly_equal_rows(scale: float) -> None:
    """Forty rows closer to each other than |x|² + |y|² − 2xy tells apart, far from the middle."""
    rng = np.random.default_rng(1)
    z = np.repeat(rng.standard_normal((60, 5)) * 30, 40, axis=0)
    z += scale * rng.standard_normal(z.shape)
    distance, index = nearest(z, z, 6)
    full = cdist(z, z)
    np.testing.assert_allclose(distance, np.sort(full, axis=1)[:, :6], rtol=1e-4, atol=3e-7)
    np.testing.assert_allclose(np.take_along_axis(full, index, 1), distance, rtol=1e-6, atol=1e-9)


def test_bad_parameters() -> None:
    many = {"method": "kmeans", "n_clusters": 900}
    for bad in ({"method": "dbscan"}, {"selection": "root"}, {"min_cluster_size": 1}, many):
        with pytest.raises(ValueError):
            ComputationalModes().set_params(**bad).fit(loose(0))
