"""HDBSCAN* of rows: the package `hdbscan` fits, and what it found is kept as arrays that label new tokens (Campello et
al. 2013; McInnes & Healy 2017, "Accelerated Hierarchical Density Based Clustering").

    tree, selected, labels, probabilities = fit(z, min_cluster_size=10, min_samples=1, selection="eom")
    attach(tree, neighbour, level)                      where a new token joins the tree

d_mr(a, b) = max(core(a), core(b), |a − b|) over rows z [n, D]. core(a) is the distance to the `min_samples`-th other
row; the row itself is not counted, as in the package (scikit-learn counts it).

λ = 1/d. From the root (λ = 0) to dense regions, a cluster loses rows until it splits into two parts of at least
`min_cluster_size` rows: these are new clusters. Stability S(C) = Σ over its rows (λ at which the row leaves C − λ at
which C is born); "eom" selects the disjoint clusters of largest total stability, "leaf" those that do not split.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from hdbscan import HDBSCAN
from sklearn.neighbors import NearestNeighbors

RESOLUTION = 1e-5
"""Smaller distances between a new row and a fitted one are raised to it, in standard deviations of a feature."""
TIED = RESOLUTION / 10
"""Smaller differences between distances count as ties: rounding of single-precision features."""
SPARE = 8
"""More rows than wanted, among which the nearest are looked for by exact distances."""
Selection = Literal["eom", "leaf"]


def nearest(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances [n, k] (ascending) and indices [n, k] of the k rows of y nearest to each row of x, ties by index.

    Fewer than k if y has fewer.
    """
    candidates = NearestNeighbors(algorithm="brute").fit(y).kneighbors(x, min(k + SPARE, len(y)), return_distance=False)
    exact = np.sqrt(np.square(x[:, None] - y[candidates]).sum(-1))  # scikit-learn's are of |x|² + |y|² − 2xy
    order = np.lexsort((candidates, exact))[:, :k]
    return np.take_along_axis(exact, order, 1), np.take_along_axis(candidates, order, 1)


@dataclass(frozen=True)
class CondensedTree:
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


def fit(
    z: np.ndarray, *, min_cluster_size: int, min_samples: int, selection: Selection
) -> tuple[CondensedTree, np.ndarray, np.ndarray, np.ndarray]:
    """(tree, owner [clusters], labels [n], probabilities [n]) of rows z [n, D].

    `owner` is the selected cluster that contains each cluster (itself included), −1 if none; never the root. Labels are
    clusters of the tree, −1 for noise.
    """
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


def probability(tree: CondensedTree, cluster: np.ndarray, level: np.ndarray) -> np.ndarray:
    """min(λ, death) / death of selected clusters; 0 where `cluster` is −1."""
    death = tree.death[cluster]
    return np.where(cluster >= 0, np.minimum(level, death) / np.where(death > 0, death, 1), 0.0)


def attach(tree: CondensedTree, neighbour: np.ndarray, level: np.ndarray) -> np.ndarray:
    """[points] the cluster of the condensed tree for a new point that joins row `neighbour` at λ = `level`.

    This is the neighbour's smallest cluster. If the neighbour is not reached at that λ, it is the first ancestor born
    below it (`hdbscan.approximate_predict`). Distances 1/λ are compared up to rounding.
    """
    cluster = tree.last[neighbour]
    further, nearer = 1 / (1 / level + TIED), 1 / np.maximum(1 / level - TIED, TIED)
    climbs = nearer < tree.level[neighbour]
    while (up := climbs & (cluster > 0) & (tree.birth[cluster] >= further)).any():
        cluster = np.where(up, tree.parent[cluster], cluster)
    return cluster
