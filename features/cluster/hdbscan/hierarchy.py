"""The exact single-linkage hierarchy of mutual reachability (HDBSCAN*), from matrix products.

    edges = spanning_tree(z, weights, min_samples=1)
    tree = single_linkage(edges, len(z))

d_mr(a, b) = max(core(a), core(b), |a − b|) over distinct rows z [n, D]. core(a) is the distance to the `min_samples`-th
other token; a row of weight w stands for w equal tokens (Campello, Moulavi & Sander 2013, Def. 5 and 6). As in the
`hdbscan` package, the token itself is not counted; scikit-learn counts it.

Distances are computed in blocks, |a − b|² = |a|² + |b|² − 2ab, for boxes of rows (`boxes`) that can matter. In 30
dimensions this is faster than a search tree that visits rows one by one.

1. Find the nearest `LISTED` rows of each row. Run Borůvka's algorithm on these lists as long as they prove an edge: the
   shortest known edge out of a component is in the tree if no unlisted edge of the component can be shorter.
2. Join the remaining components (a few hundred for 50,000 rows) by the smallest distance between every two.

At worst this takes two passes of n² D multiplications, and memory n · LISTED + LEAF · n + boxes² + components².
Distances below `RESOLUTION` are raised to it: features of equal tokens differ in their last bits between batches.
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
"""In standard deviations of a feature; rounding of |a|² + |b|² − 2ab for 455 features is about 1e-6."""
TIED = RESOLUTION / 10
"""Smaller differences between distances count as ties: rounding of the formula and of single-precision features."""
LISTED = 8


class Edges(NamedTuple):
    """Edges of a spanning tree, unsorted: row `a` [n−1], row `b` [n−1], `length` [n−1]."""

    a: np.ndarray
    b: np.ndarray
    length: np.ndarray


class Linkage(NamedTuple):
    """Merges in order of distance: merge i joins nodes `left[i]` and `right[i]` at `distance[i]` into node n + i."""

    left: np.ndarray
    right: np.ndarray
    distance: np.ndarray


def core_distances(distance: np.ndarray, index: np.ndarray, weights: np.ndarray, min_samples: int) -> np.ndarray:
    """[n] distance of each row to its `min_samples`-th other token, from its list of neighbours."""
    tokens = np.cumsum(weights[index], axis=1) + (weights - 1)[:, None]
    enough = tokens >= min_samples
    at = np.where(enough.any(1), enough.argmax(1), index.shape[1] - 1)
    core = distance[np.arange(len(at)), at]
    return np.maximum(np.where(weights > min_samples, 0.0, core), RESOLUTION)


@one_thread
def spanning_tree(
    z: np.ndarray, weights: np.ndarray, min_samples: int = 1, *, progress: Progress = iter
) -> tuple[Edges, np.ndarray]:
    """The minimum spanning tree of d_mr over the rows of z [n, D] float64, and the core distances [n]."""
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
        edges = _proven_edges(component, index, reach, beyond)
        if not len(edges.a):
            break
        parts.append(edges)
        component = _merged_components(component, component[edges.a], component[edges.b])
    if component.max() > 0:
        parts.append(_edges_between_components(z, core if min_samples > 1 else None, component, progress))
    return Edges(*(np.concatenate(one) for one in zip(*parts, strict=True))), core


def _proven_edges(component: np.ndarray, index: np.ndarray, reach: np.ndarray, beyond: np.ndarray) -> Edges:
    """The shortest edge out of each component whose lists prove that it is the shortest.

    Ties can close a circle; `single_linkage` leaves one of those edges out.
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


def _merged_components(component: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Component numbers from 0 after merging `a` with `b`."""
    m = component.max() + 1
    graph = coo_matrix((np.ones(len(a)), (a, b)), shape=(m, m))
    return connected_components(graph, directed=False)[1][component]


def _edges_between_components(
    z: np.ndarray, core: np.ndarray | None, component: np.ndarray, progress: Progress
) -> Edges:
    """Tree edges between components, from the smallest d_mr of every two that can be neighbours in the tree.

    On a tree over one row per box, the longest edge on the path between two components bounds their edge in the true
    tree, so boxes farther apart are skipped. `core` is None if it equals the distance to the nearest row.
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
    limit = _longest_edge_on_path(np.maximum(coarse, coarse.T)) * (1 + SLACK) + SLACK
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


def _longest_edge_on_path(squared: np.ndarray) -> np.ndarray:
    """[m, m] the longest edge on the path between two nodes of the spanning tree of squared distances [m, m]."""
    flat = squareform(np.maximum(squared, RESOLUTION**2), checks=False)
    return squareform(cophenet(linkage(flat, "single")))


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
