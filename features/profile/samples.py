"""Representative tokens of a cluster: the nearest to its centre, and some far from each other (PLS §4.3).

Distances are Euclidean between standardised features, (x − mean) / sd over all tokens of the table; constant features
are ignored.
"""

import numpy as np


def standardised(x: np.ndarray) -> np.ndarray:
    """Features x [n, d] in standard deviations from their mean, as float64; 0 for constant features."""
    mean, sd = x.mean(0, dtype=float), x.std(0, dtype=float)
    varies = sd > 1e-9 * (1 + np.abs(mean))
    return (x - mean) * np.where(varies, 1 / np.where(varies, sd, 1), 0.0)


def centre_distance(z: np.ndarray) -> np.ndarray:
    """Distance [n] of each row of z [n, d] to the mean of the rows."""
    return np.sqrt(np.square(z - z.mean(0)).sum(1))


def own_centre_distance(z: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Distance [n] of each row to the mean of its cluster."""
    far = np.zeros(len(z))
    for cluster in np.unique(clusters):
        far[clusters == cluster] = centre_distance(z[clusters == cluster])
    return far


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
