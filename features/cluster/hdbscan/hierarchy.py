"""The exact single-linkage hierarchy of mutual reachability (HDBSCAN*), from matrix products instead of trees.

    edges = spanning_tree(z, weights, min_samples=1)
    tree = single_linkage(edges, len(z))

d_mr(a, b) = max(core(a), core(b), |a − b|) over distinct rows z [n, D], core(a) the distance to the `min_samples`-th
other token, where a row of weight w stands for w equal tokens (Campello, Moulavi & Sander 2013, Def. 5 and 6; the
token itself is not counted, as in the `hdbscan` package, while scikit-learn counts it).

Distances come in blocks of a matrix product, |a − b|² = |a|² + |b|² − 2ab, for boxes of rows (`boxes`) that
can matter: in 30 dimensions a search that goes down a tree, row by row, pays more for its way than it saves.

1. The nearest `LISTED` rows of each row. Borůvka's algorithm runs on these lists as long as they prove an edge: the
   least known edge out of a component is in the tree if no row of the component could have an unlisted one below it.
2. What is left (a few hundred components of 50,000 rows) is joined by the least distance between every two of them.

At worst two passes of n² D multiplications. Memory is n · LISTED + LEAF · n + boxes² + components². Distances below
`RESOLUTION` are set to it: features of equal tokens differ in the last bits from batch to batch, and clusters must not
be cut by that.
"""

from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import squareform

from streamscope.features.cluster.hdbscan.boxes import LEAF, SLACK, boxes
from streamscope.features.cluster.hdbscan.neighbours import Progress, augmented, nearest, one_thread, products

RESOLUTION = 1e-5
"""In standard deviations of a feature; the rounding of |a|² + |b|² − 2ab at the size of 455 features is 1e-6."""
TIED = RESOLUTION / 10
"""Distances that differ by less are equal: that rounding, and of features in single precision up to 10 standard
deviations from 0."""
LISTED = 8


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


def core_distances(distance: np.ndarray, index: np.ndarray, weights: np.ndarray, min_samples: int) -> np.ndarray:
    """[n] distance of each row to the `min_samples`-th other token, from the lists of its neighbours."""
    tokens = np.cumsum(weights[index], axis=1) + (weights - 1)[:, None]
    enough = tokens >= min_samples
    at = np.where(enough.any(1), enough.argmax(1), index.shape[1] - 1)
    core = distance[np.arange(len(at)), at]
    return np.maximum(np.where(weights > min_samples, 0.0, core), RESOLUTION)


@one_thread
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
    """Tree edges between components, from the least d_mr of every two that can be neighbours in the tree.

    Along a tree over one row of each box, the longest edge between two components bounds theirs in the true tree: boxes
    farther apart are left out. `core` is None where it is the distance to the nearest row: d_mr is the distance then.
    """
    cells = boxes(z, component)
    ends, of = cells.bounds, component[cells.order[cells.bounds[:-1]]]
    left, right = augmented(z[cells.order], z[cells.order])
    product, core2 = products(right), None if core is None else core[cells.order] ** 2

    def squared(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        d2 = product(left[rows], columns)
        if core2 is not None:
            np.maximum(d2, core2[columns], out=d2)
            np.maximum(d2, core2[rows, None], out=d2)
        return d2

    first = np.searchsorted(of, np.arange(of[-1] + 1))
    coarse = np.vstack([squared(rows, ends[:-1]).copy() for rows in np.array_split(ends[:-1], 1 + len(of) // LEAF)])
    coarse = np.minimum.reduceat(np.minimum.reduceat(coarse, first, axis=0), first, axis=1)
    limit = _longest_on_the_way(np.maximum(coarse, coarse.T)) * (1 + SLACK) + SLACK
    pairs: list[np.ndarray] = []
    for i in progress(range(len(of) - 1)):
        gap = cells.gaps(cells.low[i], cells.high[i])[i + 1 :]
        near = i + 1 + np.flatnonzero((gap <= limit[of[i], of[i + 1 :]]) & (of[i + 1 :] != of[i]))
        if len(near):
            least = squared(np.arange(ends[i], ends[i + 1]), cells.rows(near)).min(0)
            size = ends[near + 1] - ends[near]
            least = np.minimum.reduceat(least, np.cumsum(size) - size)
            pairs.append(np.stack([np.full(len(near), i), near, least]))
    box, other, least = np.concatenate(pairs, axis=1)
    box, other = box.astype(np.int64), other.astype(np.int64)
    order = np.lexsort((other, box, least))
    _, at = np.unique(of[box[order]] * len(first) + of[other[order]], return_index=True)
    box, other, least = box[order][at], other[order][at], np.maximum(least[order][at], RESOLUTION**2)
    graph = csr_matrix((least, (of[box], of[other])), shape=(len(first),) * 2)
    tree = minimum_spanning_tree(graph).tocoo()
    chosen = np.isin(of[box] * len(first) + of[other], tree.row * len(first) + tree.col)

    a, b, length = [], [], []
    for i, j in zip(box[chosen], other[chosen], strict=True):
        rows, columns = np.arange(ends[i], ends[i + 1]), np.arange(ends[j], ends[j + 1])
        d2 = squared(rows, columns)
        p, q = rows[d2.argmin() // len(columns)], columns[d2.argmin() % len(columns)]
        exact = np.square(z[cells.order[p]] - z[cells.order[q]]).sum()
        a.append(cells.order[p])
        b.append(cells.order[q])
        length.append(exact if core2 is None else max(exact, core2[p], core2[q]))
    return Edges(np.array(a), np.array(b), np.maximum(np.sqrt(length), RESOLUTION))


def _longest_on_the_way(squared: np.ndarray) -> np.ndarray:
    """[m, m] the longest edge on the way between two nodes along the spanning tree of squared distances [m, m]."""
    flat = squareform(np.maximum(squared, RESOLUTION**2), checks=False)
    return squareform(cophenet(linkage(flat, "single")))


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
