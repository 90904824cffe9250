"""Rows in boxes: which blocks of a matrix of distances can be left out."""

from typing import NamedTuple

import numpy as np

LEAF = 128
"""Rows in a box, at most."""
SLACK = 1e-9
"""Relative, above the rounding of a squared distance."""


class Boxes(NamedTuple):
    """Box i holds the rows `order[bounds[i] : bounds[i + 1]]`, between `low[i]` and `high[i]` on every axis."""

    order: np.ndarray
    bounds: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def gaps(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """[boxes] the least squared distance between a point in each box and one between `low` and `high` [D]."""
        apart = np.maximum(self.low - high, low - self.high)
        return np.square(np.maximum(apart, 0, out=apart)).sum(1)

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """Places in `order` of the rows of some boxes, one box after the other."""
        size = self.bounds[chosen + 1] - self.bounds[chosen]
        return np.arange(size.sum()) + np.repeat(self.bounds[chosen] - np.cumsum(size) + size, size)


def boxes(z: np.ndarray, group: np.ndarray | None = None) -> Boxes:
    """Boxes of the rows of z [n, D], by halving along the axis of largest variance.

    With `group` [n], numbers from 0, boxes hold rows of one group, and are in the order of the groups.
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
