"""Exact nearest rows from matrix products.

    distance, index = nearest(x, y, k=8)

|x − y|² = |x|² + |y|² − 2xy for blocks of `boxes` that can matter. A float32 product proposes `SPARE` rows more than
wanted, and their distances are recomputed in float64. If float32 rounding, at most 2 (D + 8) 2⁻²⁴ (|x|² + |y|²), could
have hidden a nearer row, the product is repeated in float64.
"""

from collections.abc import Callable, Iterable

import numpy as np
from threadpoolctl import threadpool_limits

from streamscope.features.cluster.hdbscan.boxes import LEAF, SLACK, boxes

SPARE = 8
GROUPS = 32
Progress = Callable[[Iterable], Iterable]
one_thread = threadpool_limits.wrap(limits=1, user_api="blas")
"""Multi-threaded BLAS is slower for products this small: 63 s with two threads, 5 s with one."""


def augmented(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a [n, D+2] and b [m, D+2] with a bᵀ = |x − y|² [n, m]."""
    center = y.mean(0)
    x, y = x - center, y - center
    xx, yy = (x * x).sum(1, keepdims=True), (y * y).sum(1, keepdims=True)
    return np.hstack([-2 * x, xx, np.ones_like(xx)]), np.hstack([y, np.ones_like(yy), yy])


@one_thread
def nearest(
    x: np.ndarray, y: np.ndarray, k: int, *, others: bool = False, progress: Progress = iter
) -> tuple[np.ndarray, np.ndarray]:
    """Distances [n, k] (ascending) and indices [n, k] of the k rows of y nearest to each row of x.

    Fewer than k if y has fewer. With `others`, x is y and a row is not its own neighbour. Each box of x is compared
    with its nearest boxes of y to get a bound, then with all boxes within the bound.
    """
    take = min(k + others, len(y))
    ours, theirs = boxes(x), boxes(y)
    left, right = augmented(x[ours.order], y[theirs.order])
    rounding = 2 * (x.shape[1] + 8) * 2.0**-24
    fast, slow = products(right.astype(np.float32)), products(right)
    distance, index = np.empty((len(x), take - others)), np.empty((len(x), take - others), np.int32)
    for i in progress(range(len(ours.bounds) - 1)):
        block = slice(ours.bounds[i], ours.bounds[i + 1])
        rows, gap = ours.order[block], theirs.gaps(ours.low[i], ours.high[i])
        few = np.argsort(gap, kind="stable")[: 1 + 8 * take // (LEAF // 2)]
        d2 = slow(left[block], theirs.rows(few))
        columns = np.arange(len(y))
        if d2.shape[1] >= take:
            bound = np.partition(d2, take - 1, axis=1)[:, take - 1].max() * (1 + SLACK) + SLACK
            columns = theirs.rows(np.flatnonzero(gap <= bound))
        d2 = fast(left[block].astype(np.float32), columns)
        at = _smallest(d2, min(take + SPARE, len(columns)))
        found = theirs.order[columns[at]]
        exact = np.square(x[rows, None] - y[found]).sum(-1)
        if at.shape[1] < len(columns):
            size = left[block, -2] + right[columns, -1].max()
            beyond = np.take_along_axis(d2, at, 1).max(1) - rounding * size
            unsure = np.flatnonzero(np.partition(exact, take - 1, axis=1)[:, take - 1] >= beyond)
            if len(unsure):
                at = _smallest(slow(left[block][unsure], columns), take)
                found[unsure, :take] = theirs.order[columns[at]]
                exact[unsure, take:] = np.inf
                exact[unsure, :take] = np.square(x[rows[unsure], None] - y[found[unsure, :take]]).sum(-1)
        if others:  # the row itself sorts first; among many equal rows any one is dropped
            exact[(found == rows[:, None]) & (exact < np.inf)] = -1
        order = np.lexsort((found, exact))[:, int(others) : take]
        distance[rows] = np.sqrt(np.take_along_axis(exact, order, 1))
        index[rows] = np.take_along_axis(found, order, 1)
    return distance, index


def products(right: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """left [n, D], columns [m] -> left right[columns]ᵀ [n, m] for n ≤ `LEAF`, valid until the next call.

    The output memory is reused: allocating new pages would cost as much as the product.
    """
    rows, out = np.empty_like(right), np.empty(LEAF * len(right), right.dtype)

    def product(left: np.ndarray, columns: np.ndarray) -> np.ndarray:
        n, m = len(left), len(columns)
        np.take(right, columns, axis=0, out=rows[:m], mode="clip")
        return np.matmul(left, rows[:m].T, out=out[: n * m].reshape(n, m))

    return product


def _smallest(values: np.ndarray, k: int) -> np.ndarray:
    """Columns [n, k] of the k smallest entries of each row of values [n, m], unordered.

    They lie in the k groups (of m/GROUPS columns) with the smallest minima, or in the columns that fill no group.
    """
    n, m = values.shape
    if k >= m:
        return np.broadcast_to(np.arange(m), values.shape)
    per = m // GROUPS
    if per <= 4 * k:
        return np.argpartition(values, k - 1, axis=1)[:, :k]
    least = values[:, : per * GROUPS].reshape(n, GROUPS, per).min(1)  # group i: columns i, per + i, 2 per + i, …
    groups = np.argpartition(least, k - 1, axis=1)[:, :k]
    columns = (groups[:, :, None] + per * np.arange(GROUPS)).reshape(n, -1)
    columns = np.hstack([columns, np.broadcast_to(np.arange(per * GROUPS, m), (n, m - per * GROUPS))])
    at = np.argpartition(np.take_along_axis(values, columns, 1), k - 1, axis=1)[:, :k]
    return np.take_along_axis(columns, at, 1)
