"""HDBSCAN* on a hierarchy: condensed tree, flat clusters, memberships, new points (Campello et al. 2013; McInnes &
Healy 2017, "Accelerated Hierarchical Density Based Clustering").

    tree = condense(linkage, weights, min_cluster_size=10)
    owner = select(tree, "eom")
    labels, probabilities = memberships(tree, owner)

λ = 1/d. From the root (λ = 0) to dense regions, a cluster loses tokens until it splits into two or more parts of at
least `min_cluster_size` tokens: these are new clusters. Merges at one distance, up to rounding (`TIED`), count as one
split, so the order of ties has no effect.

Stability S(C) = Σ over its tokens (λ at which the token leaves C − λ at which C is born).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamscope.features.cluster.hdbscan.hierarchy import RESOLUTION, TIED, Linkage

Selection = Literal["eom", "leaf"]


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
