"""Representative tokens of a cluster: the nearest to its centre, and some far from each other (PLS §4.3).

Distances are Euclidean between standardised features, (x − mean) / sd over all tokens of the table; constant features
are ignored.
"""

from typing import NamedTuple

import numpy as np


class Scale(NamedTuple):
    """Mean and 1 / sd [d] of features over a table; 0 for constant features."""

    mean: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> "Scale":
        """The scale of x [n, d]."""
        mean, sd = x.mean(0, dtype=float), x.std(0, dtype=float)
        varies = sd > 1e-9 * (1 + np.abs(mean))
        return cls(mean, np.where(varies, 1 / np.where(varies, sd, 1), 0.0))

    def standardised(self, x: np.ndarray) -> np.ndarray:
        """Standardised z [n, d]."""
        return (x - self.mean) * self.inverse


def centre_distance(z: np.ndarray) -> np.ndarray:
    """Distance [n] of each row of z [n, d] to the mean of the rows."""
    return np.sqrt(np.square(z - z.mean(0)).sum(1))


def nearest(z: np.ndarray, k: int) -> np.ndarray:
    """The k rows nearest to the centre, nearest first; ties go to the earlier row."""
    return np.argsort(centre_distance(z), kind="stable")[:k]


def farthest_points(z: np.ndarray, k: int) -> np.ndarray:
    """Greedy k-centre: the row nearest to the centre, then always the row farthest from all chosen ones.

    The largest distance of a row to its nearest chosen row is at most twice the optimum for k rows (Gonzalez 1985).
    Ties go to the earlier row. Returns fewer than k rows if fewer differ.
    """
    chosen = [int(nearest(z, 1)[0])]
    distance = np.square(z - z[chosen[0]]).sum(1)
    while len(chosen) < min(k, len(z)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.square(z - z[chosen[-1]]).sum(1))
    return np.array(chosen)
