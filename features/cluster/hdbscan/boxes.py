"""Bounding boxes of rows: which blocks of a distance matrix can be skipped."""

from typing import NamedTuple

import numpy as np

LEAF = 128
"""Largest number of rows in a box."""
SLACK = 1e-9
"""Relative margin above the rounding of a squared distance."""


class Boxes(NamedTuple):
    """Box i holds the rows `order[bounds[i] : bounds[i + 1]]`; their coordinates lie in `low[i]` … `high[i]`."""

    order: np.ndarray
    bounds: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def gaps(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """[boxes] the smallest squared distance from a point in each box to a point between `low` and `high` [D]."""
        apart = np.maximum(self.low - high, low - self.high)
        return np.square(np.maximum(apart, 0, out=apart)).sum(1)

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """Positions in `order` of the rows of the chosen boxes, box by box."""
        size = self.bounds[chosen + 1] - self.bounds[chosen]
        return np.arange(size.sum()) + np.repeat(self.bounds[chosen] - np.cumsum(size) + size, size)


def boxes(z: np.ndarray, group: np.ndarray | None = None) -> Boxes:
    """Boxes of the rows of z [n, D], made by halving along the axis of largest variance.

    With `group` [n] (integers from 0), a box holds rows of one group and boxes are ordered by group.
    """
    parts = [np.arange(len(z))]
    if group is not None:
        parts = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    found, todo = [], parts[::-1]
    while todo:
        rows = todo.pop()
        if len(rows) <= LEAF:
            found.append(rows)
            continue
        half = len(rows) // 2
        split = rows[np.argpartition(z[rows, z[rows].var(0).argmax()], half)]
        todo += [split[half:], split[:half]]
    order = np.concatenate(found)
    bounds = np.concatenate([[0], np.cumsum([len(rows) for rows in found])])
    low, high = (one.reduceat(z[order], bounds[:-1]) for one in (np.minimum, np.maximum))
    return Boxes(order, bounds, low, high)
