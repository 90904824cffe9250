"""Which tokens stand for a cluster: the nearest to its centre, and some that lie far from each other (PLS §4.3).

Distances are Euclidean between standardised features, (x − mean) / sd over all tokens of the table; features that do
not vary count nothing.
"""

from typing import NamedTuple

import numpy as np


class Scale(NamedTuple):
    """Mean and 1 / sd [d] of features over a table; 0 for one that does not vary."""

    mean: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> "Scale":
        """Of x [n, d]."""
        mean, sd = x.mean(0, dtype=float), x.std(0, dtype=float)
        varies = sd > 1e-9 * (1 + np.abs(mean))
        return cls(mean, np.where(varies, 1 / np.where(varies, sd, 1), 0.0))

    def standardised(self, x: np.ndarray) -> np.ndarray:
        """z [n, d]."""
        return (x - self.mean) * self.inverse


def from_centre(z: np.ndarray) -> np.ndarray:
    """Distance [n] of each row of z [n, d] to the mean of the rows."""
    return np.sqrt(np.square(z - z.mean(0)).sum(1))


def nearest(z: np.ndarray, k: int) -> np.ndarray:
    """The k rows nearest to the centre, nearest first; of equal distances the earlier row."""
    return np.argsort(from_centre(z), kind="stable")[:k]


def farthest_points(z: np.ndarray, k: int) -> np.ndarray:
    """Greedy k-centre: the row nearest to the centre, then always the row farthest from all chosen so far.

    The largest distance of any row to its nearest chosen one is at most twice what any k rows can reach (Gonzalez
    1985). Ties go to the earlier row. Fewer than k rows where fewer are different.
    """
    chosen = [int(nearest(z, 1)[0])]
    distance = np.square(z - z[chosen[0]]).sum(1)
    while len(chosen) < min(k, len(z)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.square(z - z[chosen[-1]]).sum(1))
    return np.array(chosen)
