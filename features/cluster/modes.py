"""Computational modes: tokens that the model processes in the same way (PLS §4.1, App. C.4), a scikit-learn clusterer.

Columns are standardised, projected on the leading principal components, then clustered by k-means (scikit-learn) or
HDBSCAN* (Campello et al. 2013; McInnes & Healy 2017). Clusters are numbered by size, 0 the largest.

The package `hdbscan` fits; what it found is kept as arrays that label new tokens, because the package asks for one
neighbour more there than a fit does. d_mr(a, b) = max(core(a), core(b), |a − b|) over rows z [n, D], and core(a) is the
distance to the `min_samples`-th other row (scikit-learn counts the row itself). λ = 1/d. From the root (λ = 0) to dense
regions, a cluster loses rows until it splits into two parts of at least `min_cluster_size` rows: these are new
clusters. Stability S(C) = Σ over its rows (λ at which the row leaves C − λ at which C is born); "eom" selects the
disjoint clusters of largest total stability, "leaf" those that do not split.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from hdbscan import HDBSCAN
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

RESOLUTION = 1e-5
"""Smaller distances between a new row and a fitted one are raised to it, in standard deviations of a feature."""
TIED = RESOLUTION / 10  # smaller differences between distances count as ties: rounding of single-precision features
SPARE = 8  # more rows than wanted, among which the nearest are looked for by exact distances
COMPONENTS = 30
DIGITS = 5
"""Decimals of standardised rows that HDBSCAN* sees: features of equal tokens differ in their last bits between batches,
and the package would make several clusters of them."""
_PCA = ("mean_", "scale_", "components_", "explained_variance_ratio_")
_DENSITY = ("rows_", "weights_", "core_", "owner_", "numbers_")


def nearest(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances [n, k] (ascending) and indices [n, k] of the k rows of y nearest to each row of x, ties by index."""
    candidates = NearestNeighbors(algorithm="brute").fit(y).kneighbors(x, min(k + SPARE, len(y)), return_distance=False)
    exact = np.sqrt(np.square(x[:, None] - y[candidates]).sum(-1))  # scikit-learn's are of |x|² + |y|² − 2xy
    order = np.lexsort((candidates, exact))[:, :k]
    return np.take_along_axis(exact, order, 1), np.take_along_axis(candidates, order, 1)


class CondensedTree(NamedTuple):
    """Clusters c = 0 (all rows), 1, …, parents before children.

    parent [clusters] int64 (−1 for the root); birth [clusters], the λ at which it splits off; death [clusters], the
    largest λ at which a row leaves it or it splits; last [rows], the smallest cluster of the row; level [rows], the λ
    at which the row leaves that cluster.
    """

    parent: np.ndarray
    birth: np.ndarray
    death: np.ndarray
    last: np.ndarray
    level: np.ndarray


def condensed(
    z: np.ndarray, *, min_cluster_size: int, min_samples: int, selection: Literal["eom", "leaf"]
) -> tuple[CondensedTree, np.ndarray, np.ndarray, np.ndarray]:
    """(tree, owner [clusters], labels [n], probabilities [n]) of rows z [n, D]. `owner` is the selected cluster that
    contains each cluster (itself included), −1 if none; never the root. Labels are clusters of the tree, −1 for
    noise."""
    n = len(z)
    model = HDBSCAN(
        min_cluster_size, min(min_samples, n - 1), cluster_selection_method=selection, algorithm="boruvka_kdtree",
        approx_min_span_tree=False, core_dist_n_jobs=1, prediction_data=True,
    ).fit(z)  # fmt: skip
    edges = model.condensed_tree_.to_numpy()
    lam = np.minimum(edges["lambda_val"], 1 / RESOLUTION)
    inner = edges["child"] >= n
    m = int(inner.sum()) + 1
    tree = CondensedTree(np.full(m, -1), np.zeros(m), np.zeros(m), np.zeros(n, np.int64), np.zeros(n))
    clusters, rows = edges["child"][inner] - n, edges["child"][~inner]
    tree.parent[clusters], tree.birth[clusters] = edges["parent"][inner] - n, lam[inner]
    tree.last[rows], tree.level[rows] = edges["parent"][~inner] - n, lam[~inner]
    np.maximum.at(tree.death, edges["parent"] - n, lam)
    selected = np.array(sorted(c - n for c in model.prediction_data_.cluster_map), np.int64)
    owner = np.full(m, -1)
    for c in range(1, m):
        above = owner[tree.parent[c]]
        owner[c] = above if above >= 0 or c not in selected else c
    return tree, owner, np.append(selected, -1)[model.labels_], model.probabilities_  # −1 stays −1


def attach(tree: CondensedTree, neighbour: np.ndarray, level: np.ndarray) -> np.ndarray:
    """[points] the cluster of the condensed tree for a new point that joins row `neighbour` at λ = `level`: the
    smallest of that row or, if it is not reached at λ, the first ancestor born below it. 1/λ compare up to rounding."""
    cluster = tree.last[neighbour]
    further, nearer = 1 / (1 / level + TIED), 1 / np.maximum(1 / level - TIED, TIED)
    climbs = nearer < tree.level[neighbour]
    while (up := climbs & (cluster > 0) & (tree.birth[cluster] >= further)).any():
        cluster = np.where(up, tree.parent[cluster], cluster)
    return cluster


class ComputationalModes(TransformerMixin, ClusterMixin, BaseEstimator):
    """Clusters of feature vectors X [n, d]. Errors are `ValueError`s, by scikit-learn's conventions.

    method: hdbscan or k-means. components: principal components; None for all columns, "auto" for the paper's choice
    (30 for hdbscan, C.4; none for k-means, §4.1), never more than columns or rows. min_cluster_size, min_samples,
    selection ("eom", "leaf"): of HDBSCAN*. n_clusters, seed: of k-means with ten starts.

    labels_ [n]: cluster, −1 for noise. probabilities_ [n]: λ of the token over the largest λ of its cluster; 1 for
    k-means. explained_variance_ratio_: of the components, empty if there are none.
    """

    def __init__(
        self, method: Literal["hdbscan", "kmeans"] = "hdbscan", *, components: int | Literal["auto"] | None = "auto",
        min_cluster_size: int = 10, min_samples: int = 1, selection: Literal["eom", "leaf"] = "eom",
        n_clusters: int = 10, seed: int = 0,
    ) -> None:  # fmt: skip
        self.method = method
        self.components = components
        self.min_cluster_size = min_cluster_size
        self.min_samples = min_samples
        self.selection = selection
        self.n_clusters = n_clusters
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> "ComputationalModes":
        """Cluster the rows of X [n, d]."""
        if self.method not in ("hdbscan", "kmeans"):
            raise ValueError(f"method {self.method!r}: hdbscan or kmeans")
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        scaler = StandardScaler().fit(X)  # the scale of constant columns is 1
        self.mean_, self.scale_, components = scaler.mean_, scaler.scale_, self.components
        if components == "auto":
            components = COMPONENTS if self.method == "hdbscan" else None
        self.components_, self.explained_variance_ratio_ = np.empty((0, X.shape[1])), np.empty(0)
        if components is not None:
            pca = PCA(min(int(components), *X.shape), svd_solver="full").fit(scaler.transform(X))
            self.components_ = pca.components_
            self.explained_variance_ratio_ = np.nan_to_num(pca.explained_variance_ratio_)
        z, (first, inverse, weights) = self._project(X), distinct_rows(X)
        if self.method == "kmeans":
            if (n := len(first)) < self.n_clusters:
                raise ValueError(f"n_samples = {n} distinct rows are fewer than n_clusters = {self.n_clusters}")
            means = KMeans(self.n_clusters, n_init=10, random_state=self.seed).fit(z[first], sample_weight=weights)
            numbers = _by_size(means.labels_, weights, self.n_clusters)
            self.centers_ = means.cluster_centers_[np.argsort(numbers)]
            self.labels_, self.probabilities_ = numbers[means.labels_][inverse], np.ones(len(z))
            return self
        z = np.round(z, DIGITS)
        tree, self.owner_, labels, self.probabilities_ = condensed(
            z, min_cluster_size=self.min_cluster_size, min_samples=self.min_samples, selection=self.selection
        )
        self.rows_, self.weights_ = z[first], weights
        self.core_ = nearest(self.rows_, z, self.min_samples + 1)[0][:, -1]  # the row itself is the first
        self.tree_ = tree._replace(last=tree.last[first], level=tree.level[first])
        self.numbers_ = _by_size(labels, np.ones(len(z)), len(self.owner_))
        self.labels_ = np.where(labels >= 0, self.numbers_[labels], -1)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Standardised and projected rows [n, components] float64, in which tokens are clustered."""
        check_is_fitted(self)
        return self._project(validate_data(self, X, dtype=np.float64, reset=False))

    def _project(self, x: np.ndarray) -> np.ndarray:
        z = (x - self.mean_) / self.scale_
        return z @ self.components_.T if len(self.components_) else z

    def predict(self, X: Any) -> np.ndarray:
        """Labels [n] of new tokens, −1 for noise; nothing is refitted. See `predict_soft`."""
        return self.predict_soft(X)[0]

    def predict_soft(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Labels [n] and probabilities [n] of new tokens. k-means: the nearest centre.

        hdbscan: the token joins its nearest fitted row in d_mr = max(core(x), core(row), |x − row|) at λ = 1/d_mr, and
        takes the cluster that holds that row at λ. core(x) is the distance to the `min_samples`-th fitted token.
        `hdbscan.approximate_predict` counts one token more in core(x) and one less in core(row).
        """
        z = self.transform(X)
        if self.method == "kmeans":
            return nearest(z, self.centers_, 1)[1][:, 0], np.ones(len(z))
        row, reach = self._nearest_row(np.round(z, DIGITS), 2 * self.min_samples)
        level = 1 / np.maximum(reach, RESOLUTION)
        cluster = self.owner_[attach(self.tree_, row, level)]
        death = self.tree_.death[cluster]
        membership = np.minimum(level, death) / np.where(death > 0, death, 1)
        return np.where(cluster >= 0, self.numbers_[cluster], -1), np.where(cluster >= 0, membership, 0.0)

    def _nearest_row(self, z: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest fitted row [n] in d_mr and the distance [n]: among the k rows nearest by |x − row|, or among
        twice as many where a further one may be nearer."""
        distance, index = nearest(z, self.rows_, k)
        rank = (np.cumsum(self.weights_[index], axis=1) >= self.min_samples).argmax(1)  # of the min_samples-th token
        points = np.arange(len(z))
        core = distance[points, rank]
        reach = np.maximum(np.maximum(distance, self.core_[index]), core[:, None])
        tied = reach <= reach.min(1, keepdims=True) + TIED
        choice = np.where(tied, index, len(self.rows_)).argmin(1)  # first of the equally near rows
        row, least = index[points, choice], reach[points, choice]
        if k < len(self.rows_) and (is_open := distance[:, -1] < least).any():
            row[is_open], least[is_open] = self._nearest_row(z[is_open], 2 * k)
        return row, least

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that `predict` needs; parameters and column names come from elsewhere."""
        check_is_fitted(self)
        names = _PCA + (_DENSITY if self.method == "hdbscan" else ("centers_",))
        arrays = {name: getattr(self, name) for name in names}
        if self.method == "hdbscan":
            arrays |= {f"tree.{name}": array for name, array in self.tree_._asdict().items()}
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    @classmethod
    def of(
        cls, parameters: Mapping[str, Any], columns: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> "ComputationalModes":
        """The fitted modes from parameters, column names and `arrays`; `labels_` is not restored."""
        modes = cls(**parameters)
        modes.n_features_in_ = len(arrays["mean_"])
        modes.feature_names_in_ = np.array(columns, object)
        for name, array in arrays.items():
            if not name.startswith("tree."):
                setattr(modes, name, array)
        if modes.method == "hdbscan":
            modes.tree_ = CondensedTree(**{name: arrays[f"tree.{name}"] for name in CondensedTree._fields})
        return modes


def distinct_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first token of each distinct row, the distinct row of each token, and the number of tokens per distinct row.
    They are ordered by hash, so that k-means begins alike whatever the order of the tokens."""
    x = np.ascontiguousarray(x) + 0.0  # no −0
    _, first, inverse, counts = np.unique(hashes(x), return_index=True, return_inverse=True, return_counts=True)
    return first, inverse, counts


def hashes(x: np.ndarray) -> np.ndarray:
    """[n] uint64: Σ over the columns of odd random numbers times the bits of x [n, d], modulo 2⁶⁴. The low bits of
    round numbers are all 0, so the high bits are folded into them first."""
    bits = x.view(np.uint64)
    odd = np.random.default_rng(0).integers(0, 2**64, x.shape[1], np.uint64) | np.uint64(1)
    parts = [bits[i : i + 1024] for i in range(0, len(bits), 1024)]  # blocks that fit the cache
    return np.concatenate([(part ^ (part >> np.uint64(32))) @ odd for part in parts])


def _by_size(cluster: np.ndarray, weights: np.ndarray, n: int) -> np.ndarray:
    """[n] rank of each cluster by tokens, 0 the largest; ties by number."""
    in_cluster = cluster >= 0
    return np.argsort(np.argsort(-np.bincount(cluster[in_cluster], weights[in_cluster], n), kind="stable"))
