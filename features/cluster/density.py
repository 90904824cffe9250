"""HDBSCAN* on distinct rows that stand for tokens: hierarchy, condensed tree, flat clusters, memberships, new points
(Campello et al. 2013; McInnes & Healy 2017, "Accelerated Hierarchical Density Based Clustering").

    edges = spanning_tree(z, weights, min_samples=1)
    tree = condense(single_linkage(edges, len(z)), weights, min_cluster_size=10)
    owner = select(tree, "eom")
    labels, probabilities = memberships(tree, owner)

d_mr(a, b) = max(core(a), core(b), |a − b|) over distinct rows z [n, D]. core(a) is the distance to the `min_samples`-th
other token; a row of weight w stands for w equal tokens. The token itself is not counted, as in the package `hdbscan`,
which finds the spanning tree; scikit-learn counts it.

λ = 1/d. From the root (λ = 0) to dense regions, a cluster loses tokens until it splits into two or more parts of at
least `min_cluster_size` tokens: these are new clusters. Merges at one distance, up to rounding (`TIED`), count as one
split, so the order of ties has no effect.

Stability S(C) = Σ over its tokens (λ at which the token leaves C − λ at which C is born).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from hdbscan import HDBSCAN
from sklearn.neighbors import NearestNeighbors

RESOLUTION = 1e-5
"""Smaller distances are raised to it, in standard deviations of a feature. Features of equal tokens differ in their
last bits between batches."""
TIED = RESOLUTION / 10
"""Smaller differences between distances count as ties: rounding of single-precision features."""
SPARE = 8
"""More rows than wanted, among which the nearest are looked for by exact distances."""
Selection = Literal["eom", "leaf"]


class Edges(NamedTuple):
    """Edges between rows, unsorted: row `a`, row `b`, `length`. They hold a spanning tree, and may hold more."""

    a: np.ndarray
    b: np.ndarray
    length: np.ndarray


class Linkage(NamedTuple):
    """Merges in order of distance: merge i joins nodes `left[i]` and `right[i]` at `distance[i]` into node n + i."""

    left: np.ndarray
    right: np.ndarray
    distance: np.ndarray


def nearest(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances [n, k] (ascending) and indices [n, k] of the k rows of y nearest to each row of x, ties by index.

    Fewer than k if y has fewer.
    """
    found = NearestNeighbors(algorithm="brute").fit(y).kneighbors(x, min(k + SPARE, len(y)), return_distance=False)
    exact = np.sqrt(np.square(x[:, None] - y[found]).sum(-1))  # scikit-learn's are of |x|² + |y|² − 2xy
    order = np.lexsort((found, exact))[:, :k]
    return np.take_along_axis(exact, order, 1), np.take_along_axis(found, order, 1)


def core_distances(z: np.ndarray, weights: np.ndarray, min_samples: int) -> np.ndarray:
    """[n] distance of each row to its `min_samples`-th other token; to the last where there are fewer."""
    distance, index = nearest(z, z, min_samples + 1)
    enough = np.cumsum(weights[index], axis=1) > min_samples  # the token itself is the first
    at = np.where(enough.any(1), enough.argmax(1), index.shape[1] - 1)
    return np.maximum(distance[np.arange(len(z)), at], RESOLUTION)


def spanning_tree(z: np.ndarray, weights: np.ndarray, min_samples: int = 1) -> Edges:
    """The minimum spanning tree of d_mr over the rows of z [n, D], exact, from the `hdbscan` package."""
    of = np.repeat(np.arange(len(z)), np.minimum(weights, min_samples + 1))  # more copies change no core distance
    if len(of) == 1:
        return Edges(of[:0], of[:0], np.empty(0))
    peer = HDBSCAN(
        min_samples=min(min_samples, len(of) - 1), algorithm="boruvka_kdtree", approx_min_span_tree=False,
        gen_min_span_tree=True, core_dist_n_jobs=1,
    ).fit(z[of])  # fmt: skip
    a, b, length = peer.minimum_spanning_tree_.to_numpy().T
    return Edges(of[a.astype(int)], of[b.astype(int)], np.maximum(length, RESOLUTION))


def single_linkage(edges: Edges, n: int) -> Linkage:
    """The merges of n rows along a spanning tree, shortest edge first, ties in row order.

    Edges that close a circle are left out. Raises `ValueError` if the rows are not connected.
    """
    order = np.lexsort((np.maximum(edges.a, edges.b), np.minimum(edges.a, edges.b), edges.length))
    above, node = list(range(n)), list(range(n))
    left, right, distance = [], [], []

    def root(i: int) -> int:
        while above[i] != i:
            above[i] = i = above[above[i]]
        return i

    for a, b, length in zip(*(one[order].tolist() for one in edges), strict=True):
        a, b = root(a), root(b)
        if a != b:
            left.append(node[a])
            right.append(node[b])
            distance.append(length)
            above[b] = a
            node[a] = n + len(left) - 1
    if len(left) != n - 1:
        raise ValueError(f"{len(left)} edges join no tree of {n} rows")
    return Linkage(np.array(left, np.int64), np.array(right, np.int64), np.array(distance))


@dataclass(frozen=True)
class CondensedTree:
    """Clusters c = 0 (all tokens), 1, …, parents before children; rows are those of the linkage.

    parent [clusters] int64 (−1 for the root); birth [clusters], the λ at which it splits off; death [clusters], the
    largest λ at which a token leaves it or it splits; stability [clusters] S(C); last [rows], the smallest cluster of
    the row; level [rows], the λ at which the row leaves that cluster.
    """

    parent: np.ndarray
    birth: np.ndarray
    death: np.ndarray
    stability: np.ndarray
    last: np.ndarray
    level: np.ndarray


def condense(linkage: Linkage, weights: np.ndarray, min_cluster_size: int) -> CondensedTree:
    """The condensed tree of rows that stand for `weights` [n] tokens each."""
    n = len(weights)
    left, right, distance = (one.tolist() for one in linkage)
    tokens, rows = weights.tolist() + [0] * (n - 1), [1] * n + [0] * (n - 1)
    for i, (a, b) in enumerate(zip(left, right, strict=True), n):
        tokens[i], rows[i] = tokens[a] + tokens[b], rows[a] + rows[b]
    start = [0] * (2 * n - 1)  # leaves below a node: order[start : start + rows]
    for i in range(2 * n - 2, n - 1, -1):
        start[left[i - n]], start[right[i - n]] = start[i], start[i] + rows[left[i - n]]
    order = np.empty(n, np.int64)
    order[start[:n]] = np.arange(n)

    parent, birth, death, stability = [-1], [0.0], [0.0], [0.0]
    last, level = np.zeros(n, np.int64), np.empty(n)

    def leave(node: int, cluster: int, lam: float) -> None:
        below = order[start[node] : start[node] + rows[node]]
        last[below], level[below] = cluster, lam
        death[cluster] = max(death[cluster], lam)
        stability[cluster] += tokens[node] * (lam - birth[cluster])

    todo = [(2 * n - 2, 0)]
    while todo:
        node, cluster = todo.pop()
        if node < n:
            leave(node, cluster, 1 / RESOLUTION)
            continue
        lam = 1 / distance[node - n]
        parts = _parts(node, n, left, right, distance)
        big = [part for part in parts if tokens[part] >= min_cluster_size]
        for part in parts:
            if tokens[part] < min_cluster_size:
                leave(part, cluster, lam)
        if len(big) == 1:
            todo.append((big[0], cluster))
        for part in big if len(big) > 1 else ():
            death[cluster] = max(death[cluster], lam)
            stability[cluster] += tokens[part] * (lam - birth[cluster])
            todo.append((part, len(parent)))
            parent.append(cluster)
            birth.append(lam)
            death.append(lam)
            stability.append(0.0)
    return CondensedTree(np.array(parent), np.array(birth), np.array(death), np.array(stability), last, level)


def _parts(node: int, n: int, left: list[int], right: list[int], distance: list[float]) -> list[int]:
    """The parts that `node` splits into at its distance: the largest nodes below it that merge at smaller distances."""
    parts, todo, equal = [], [node], distance[node - n] - TIED
    while todo:
        at = todo.pop()
        if at >= n and distance[at - n] >= equal:
            todo += [right[at - n], left[at - n]]
        else:
            parts.append(at)
    return parts


def select(tree: CondensedTree, selection: Selection) -> np.ndarray:
    """[clusters] the selected cluster that contains each cluster (itself included), −1 if none. Never the root.

    eom: excess of mass, the disjoint clusters of largest total stability; leaf: the clusters that do not split.
    """
    m = len(tree.parent)
    chosen = np.zeros(m, bool)
    if selection == "leaf":
        chosen[1:] = True
        chosen[tree.parent[1:]] = False
    else:
        below = np.zeros(m)  # total stability of the best selection under each cluster
        for c in range(m - 1, 0, -1):
            chosen[c] = tree.stability[c] >= below[c] * (1 - 1e-12)  # on a tie up to rounding take the larger cluster
            below[tree.parent[c]] += max(tree.stability[c], below[c])
    owner = np.full(m, -1)
    for c in range(1, m):
        above = owner[tree.parent[c]]
        owner[c] = above if above >= 0 else (c if chosen[c] else -1)
    return owner


def memberships(tree: CondensedTree, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Selected cluster [rows] (−1: noise) and probability λ/λ_max ≤ 1 (0 for noise)."""
    cluster = owner[tree.last]
    return cluster, probability(tree, cluster, tree.level)


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
