"""The exact single-linkage hierarchy of mutual reachability (HDBSCAN*), from matrix products instead of trees.

    edges = spanning_tree(z, weights, min_samples=1)
    tree = single_linkage(edges, len(z))

d_mr(a, b) = max(core(a), core(b), |a − b|) over distinct rows z [n, D], core(a) the distance to the `min_samples`-th
other token, where a row of weight w stands for w equal tokens (Campello, Moulavi & Sander 2013, Def. 5 and 6; the
token itself is not counted, as in the `hdbscan` package, while scikit-learn counts it).

Space trees prune almost nothing in 30 dimensions: of pairs of 128-point boxes on real features 88 % are needed. So all
distances are computed, |a − b|² = |a|² + |b|² − 2ab, in float64 blocks that stay in the cache, twice:

1. the nearest `LISTED` rows of each row. Borůvka's algorithm runs on these lists as long as they prove an edge: the
   least known edge out of a component is in the tree if no row of the component could have an unlisted one below it;
2. what is left (a few hundred components of 50,000 rows) is joined by the least distance between every two of them.

Two passes of n² D multiplications; memory n (LISTED + BLOCK) + components². Distances below `RESOLUTION` are set to
it: features of equal tokens differ in the last bits from batch to batch, and clusters must not be cut by that.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

RESOLUTION = 1e-5
"""In standard deviations of a feature; the rounding of |a|² + |b|² − 2ab at the size of 455 features is 1e-6."""
LISTED = 16
BLOCK = 64
"""Rows of distances at a time: 64 × 50,000 float64 are 26 MB."""
GROUPS = 32
Progress = Callable[[Iterable], Iterable]


class Edges(NamedTuple):
    """A spanning tree: row `a` [n−1], row `b` [n−1], `length` [n−1]; not sorted."""

    a: np.ndarray
    b: np.ndarray
    length: np.ndarray


class Linkage(NamedTuple):
    """Merges in order of distance: merge i joins nodes `left[i]` and `right[i]` at `distance[i]` into node n + i."""

    left: np.ndarray
    right: np.ndarray
    distance: np.ndarray


def _augmented(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n, D+2] and [D+2, m] whose product is |a − b|² [n, m]."""
    center = y.mean(0)
    x, y = x - center, y - center
    xx, yy = (x * x).sum(1, keepdims=True), (y * y).sum(1, keepdims=True)
    left = np.hstack([-2 * x, xx, np.ones_like(xx)])
    return left, np.ascontiguousarray(np.hstack([y, np.ones_like(yy), yy]).T)


def nearest(
    x: np.ndarray, y: np.ndarray, k: int, *, others: bool = False, progress: Progress = iter
) -> tuple[np.ndarray, np.ndarray]:
    """Distances [n, k], ascending, and indices [n, k] of the k rows of y nearest to each row of x.

    Fewer than k where y has fewer. With `others`, x is y and a row is not its own neighbour. The candidates are those
    of the k nearest of n/GROUPS groups with the least distance: k nearest rows lie in at most k groups.
    """
    take = min(k + others, len(y))
    groups = GROUPS if len(y) > 4 * GROUPS * take else 1
    left, right = _augmented(x, y)
    if pad := -len(y) % groups:
        right = np.hstack([right, np.zeros((right.shape[0], pad))])
        right[-1, -pad:] = np.inf
        right[-2, -pad:] = 0
    per = right.shape[1] // groups
    distance, index = np.empty((len(x), take - others)), np.empty((len(x), take - others), np.int32)
    buffer = np.empty((BLOCK, right.shape[1]))
    for rows in progress(_blocks(0, len(x))):
        d2 = np.matmul(left[rows], right, out=buffer[: rows.stop - rows.start])
        found = _smallest(d2.reshape(len(d2), groups, per).min(1), take)  # group i: columns i, per + i, 2 per + i, …
        if groups > 1:
            columns = (found[:, :, None] + per * np.arange(groups)).reshape(len(d2), -1)
            found = np.take_along_axis(columns, _smallest(np.take_along_axis(d2, columns, 1), take), 1)
        exact = np.sqrt(((x[rows, None] - y[found]) ** 2).sum(-1))
        if others:  # the row itself first; where many are equal it may not be among them, and any one goes
            exact[found == np.arange(rows.start, rows.stop)[:, None]] = -1
        order = np.lexsort((found, exact))[:, int(others) :]
        distance[rows], index[rows] = np.take_along_axis(exact, order, 1), np.take_along_axis(found, order, 1)
    return distance, index


def _smallest(values: np.ndarray, k: int) -> np.ndarray:
    """Indices [n, k] of the k smallest of each row, in no order."""
    if k >= values.shape[1]:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, k - 1, axis=1)[:, :k]


def core_distances(distance: np.ndarray, index: np.ndarray, weights: np.ndarray, min_samples: int) -> np.ndarray:
    """[n] distance of each row to the `min_samples`-th other token, from the lists of its neighbours."""
    tokens = np.cumsum(weights[index], axis=1) + (weights - 1)[:, None]
    enough = tokens >= min_samples
    at = np.where(enough.any(1), enough.argmax(1), index.shape[1] - 1)
    core = distance[np.arange(len(at)), at]
    return np.maximum(np.where(weights > min_samples, 0.0, core), RESOLUTION)


def spanning_tree(
    z: np.ndarray, weights: np.ndarray, min_samples: int = 1, *, progress: Progress = iter
) -> tuple[Edges, np.ndarray]:
    """A minimum spanning tree of d_mr over the rows of z [n, D] float64, and the core distances [n]."""
    n = len(z)
    if n == 1:
        none = np.empty(0, np.int64)
        return Edges(none, none, np.empty(0)), np.full(1, RESOLUTION)
    distance, index = nearest(z, z, min(n - 1, max(LISTED, 2 * min_samples)), others=True, progress=progress)
    core = core_distances(distance, index, weights, min_samples)
    beyond = np.full(n, np.inf) if index.shape[1] == n - 1 else np.maximum(distance[:, -1], RESOLUTION)
    reach = np.maximum(np.maximum(core[:, None], core[index]), distance)
    component, parts = np.arange(n), list[Edges]()
    while component.max() > 0:
        edges = _proven(component, index, reach, beyond)
        if not len(edges.a):
            break
        parts.append(edges)
        component = _joined(component, component[edges.a], component[edges.b])
    if component.max() > 0:
        parts.append(_between(z, core if min_samples > 1 else None, component, progress))
    return Edges(*(np.concatenate(one) for one in zip(*parts, strict=True))), core


def _proven(component: np.ndarray, index: np.ndarray, reach: np.ndarray, beyond: np.ndarray) -> Edges:
    """The least edge out of every component of which the lists prove that it is the least.

    Components may choose edges of the same length in a circle; `single_linkage` leaves one of them out.
    """
    rows = np.arange(len(index))
    outside = np.where(component[index] != component[:, None], reach, np.inf)
    at = outside.argmin(1)
    length, other = outside[rows, at], index[rows, at].astype(np.int64)
    bound = np.full(component.max() + 1, np.inf)
    unsure = length > beyond
    np.minimum.at(bound, component[unsure], beyond[unsure])
    known = np.isfinite(length)
    a, b, length = rows[known], other[known], length[known]
    of = np.concatenate([component[a], component[b]])
    a, b, length = np.concatenate([a, b]), np.concatenate([b, a]), np.concatenate([length, length])
    order = np.lexsort((np.maximum(a, b), np.minimum(a, b), length, of))
    chosen = order[np.unique(of[order], return_index=True)[1]]
    chosen = chosen[length[chosen] <= bound[of[chosen]]]
    return Edges(a[chosen], b[chosen], length[chosen])


def _joined(component: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Components numbered from 0 after joining `a` with `b`."""
    m = component.max() + 1
    graph = coo_matrix((np.ones(len(a)), (a, b)), shape=(m, m))
    return connected_components(graph, directed=False)[1][component]


def _between(z: np.ndarray, core: np.ndarray | None, component: np.ndarray, progress: Progress) -> Edges:
    """Tree edges between components, from the least d_mr of every two.

    `core` is None where it is the distance to the nearest row: d_mr is the distance then.
    """
    order = np.argsort(component, kind="stable")
    z, component = z[order], component[order]
    core2 = None if core is None else core[order] ** 2
    bounds = np.searchsorted(component, np.arange(component[-1] + 2))
    left, right = _augmented(z, z)

    def squared(rows: slice, columns: slice) -> np.ndarray:
        d2 = left[rows] @ right[:, columns]
        if core2 is not None:
            np.maximum(d2, core2[columns], out=d2)
            np.maximum(d2, core2[rows, None], out=d2)
        return d2

    least = np.full((len(bounds) - 1,) * 2, np.inf)
    for rows in progress(_blocks(0, len(z))):
        low = int(component[rows.start])  # distances to earlier components are those of their rows
        per = np.minimum.reduceat(squared(rows, slice(bounds[low], None)), bounds[low:-1] - bounds[low], axis=1)
        of, starts = np.unique(component[rows], return_index=True)
        least[of, low:] = np.minimum(least[of, low:], np.minimum.reduceat(per, starts, axis=0))
    least = np.maximum(np.minimum(least, least.T), RESOLUTION**2)
    tree = minimum_spanning_tree(csr_matrix(np.triu(least, 1))).tocoo()

    a, b, length = [], [], []
    for pair in zip(tree.row, tree.col, strict=True):
        small, large = sorted((slice(*bounds[c : c + 2].tolist()) for c in pair), key=lambda one: one.stop - one.start)
        best = (np.inf, 0, 0)
        for rows in _blocks(small.start, small.stop):
            d2 = squared(rows, large)
            at = np.unravel_index(d2.argmin(), d2.shape)
            best = min(best, (float(d2[at]), rows.start + int(at[0]), large.start + int(at[1])))
        a.append(order[best[1]])
        b.append(order[best[2]])
        d2 = ((z[best[1]] - z[best[2]]) ** 2).sum()
        length.append(d2 if core2 is None else max(d2, core2[best[1]], core2[best[2]]))
    return Edges(np.array(a), np.array(b), np.maximum(np.sqrt(length), RESOLUTION))


def _blocks(start: int, stop: int) -> list[slice]:
    """Slices of `BLOCK` rows."""
    return [slice(i, min(i + BLOCK, stop)) for i in range(start, stop, BLOCK)]


def single_linkage(edges: Edges, n: int) -> Linkage:
    """The merges of n rows along a spanning tree, shortest edge first, ties in the order of the rows.

    Edges beyond a tree's are left out if they close a circle. Raises `ValueError` when the rows are not connected.
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
