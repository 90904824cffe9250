"""Directions between two sets of states, and tests of whether they are meaningful.

    r = (mean_a − mean_b) / ‖·‖                        difference of means (SPEC §1.6)
    top right singular vectors of A − mean_b           the SVD variant, with a on the positive side

A norm or a cosine alone shows nothing: two sets with any labels differ in their means. So each number has a control
from shuffled labels, and a direction from one half of the prompts must separate the other half.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import cohens_d

Z = float(stats.norm.ppf(0.975))
TINY = 1e-9
"""A contrast below this share of the states' size is rounding."""


def random_cosine(width: int) -> float:
    """E|cos| of two random directions in `width` dimensions: sqrt(2/(π d)), within a factor 1 ± 1/(4d)."""
    return float(np.sqrt(2 / (np.pi * width)))


def unit(x: np.ndarray) -> np.ndarray:
    """x / ‖x‖ over the last axis; zeros stay zeros."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def mean_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """mean_a − mean_b [..., D] of states [prompts, ..., D]; exactly 0 if it is only rounding."""
    difference = a.mean(0) - b.mean(0)
    size = np.maximum(np.linalg.norm(a, axis=-1).max(0), np.linalg.norm(b, axis=-1).max(0))
    small = np.linalg.norm(difference, axis=-1) <= TINY * size
    return np.where(small[..., None], 0.0, difference)


def singular_directions(a: np.ndarray, b: np.ndarray, k: int = 3) -> np.ndarray:
    """Top right singular vectors [layers, k, D] of a − mean_b, a and b [prompts, layers, D].

    The sign of a singular vector is free: each points so that a's mean lies above b's. If a has fewer than k prompts or
    dimensions, the last vectors are zeros.
    """
    centred = (a - b.mean(0)).swapaxes(0, 1)  # [layers, prompts, D]
    _, _, right = np.linalg.svd(centred, full_matrices=False)
    found = np.zeros((right.shape[0], k, right.shape[-1]))
    found[:, : min(k, right.shape[1])] = right[:, :k]
    side = np.einsum("lkd,ld->lk", found, a.mean(0) - b.mean(0))
    return found * np.where(side < 0, -1.0, 1.0)[..., None]


def pair_cosines(directions: np.ndarray) -> np.ndarray:
    """Mean over the pairs of streams of cos(r_s, r_s') [layers], of unit directions [layers, streams, D]."""
    gram = np.einsum("lsd,ltd->lst", directions, directions)
    upper = np.triu_indices(directions.shape[1], 1)
    return gram[:, upper[0], upper[1]].mean(-1)


def concentration(norms: np.ndarray) -> np.ndarray:
    """1 − H(p)/ln n over the last axis, p the normalised norms (SPEC §1.6). 0: even; 1: all in one stream."""
    total = norms.sum(-1, keepdims=True)
    p = np.divide(norms, total, out=np.full_like(norms, 1 / norms.shape[-1]), where=total > 0)
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
    return np.asarray(1 - entropy / np.log(norms.shape[-1]))


class Separation(NamedTuple):
    """AUC with its 95 % interval over prompts, and Cohen's d, for projections of held-out prompts."""

    auc: float
    auc_low: float
    auc_high: float
    d: float
    n_a: int
    n_b: int


def separation(a: np.ndarray, b: np.ndarray) -> Separation:
    """How far projections a [n_a] lie above b [n_b]: P(a > b) + P(a = b)/2, and (m_a − m_b) / pooled sd.

    Interval: |AUC^ − θ| = z sqrt(θ(1−θ)/(n_a n_b) · (1 + N((1−θ)/(2−θ) + θ/(1+θ)))), N = (n_a + n_b)/2 − 1, solved for
    θ (Newcombe 2006, Statistics in Medicine 25:559, method 5), which also has a length at AUC 0 and 1. d is NaN
    without spread.
    """
    ranks = stats.rankdata(np.concatenate([a, b]))
    auc = float((ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2) / (len(a) * len(b)))
    low, high = auc_interval(auc, len(a), len(b))
    return Separation(auc, low, high, cohens_d(a, b), len(a), len(b))


def auc_interval(auc: float, n_a: int, n_b: int) -> tuple[float, float]:
    """The 95 % interval of `separation`."""
    n = (n_a + n_b) / 2 - 1

    def half(theta: float) -> float:
        variance = theta * (1 - theta) * (1 + n * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (n_a * n_b)
        return Z * float(np.sqrt(variance))

    edge = 1e-12  # at 0 and 1 the variance is 0, so both also solve the equation
    low = 0.0 if auc <= edge else float(optimize.brentq(lambda t: auc - t - half(t), 0.0, min(auc, 1 - edge)))
    high = 1.0 if auc >= 1 - edge else float(optimize.brentq(lambda t: t - auc - half(t), max(auc, edge), 1.0))
    return low, high


def halves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two disjoint halves of n prompts from a seeded shuffle; the second is larger if n is odd."""
    if n < 4:
        raise InputError(f"each half needs two prompts, {n} in all are too few")
    order = np.random.default_rng(seed).permutation(n)
    return order[: n // 2], order[n // 2 :]


class HeldOutProjections(NamedTuple):
    """Held-out prompts along the direction of the other half, NaN in layers without a direction.

    a [n_a, layers], b [n_b, layers], relative to the middle between the other half's means; `of_a`, `of_b`: prompts.
    """

    a: np.ndarray
    b: np.ndarray
    of_a: np.ndarray
    of_b: np.ndarray


def project_held_out(a: np.ndarray, b: np.ndarray, seed: int = 0) -> HeldOutProjections:
    """Projections of the second halves on the difference of means of the first halves.

    a, b [prompts, layers, D]. Sets of one size are split alike, because prompt i of both may be counterparts: otherwise
    their common part would count against the direction.
    """
    (fit_a, test_a), (fit_b, test_b) = halves(len(a), seed), halves(len(b), seed)
    r = unit(mean_difference(a[fit_a], b[fit_b]))
    middle = np.einsum("ld,ld->l", (a[fit_a].mean(0) + b[fit_b].mean(0)) / 2, r)
    middle[~r.any(-1)] = np.nan
    along = [np.einsum("nld,ld->nl", x, r) - middle for x in (a[test_a], b[test_b])]
    return HeldOutProjections(along[0], along[1], test_a, test_b)


def held_out(a: np.ndarray, b: np.ndarray, seed: int = 0) -> list[Separation | None]:
    """Per layer, the separation of `project_held_out`; None in layers without a direction."""
    found = project_held_out(a, b, seed)
    return [None if np.isnan(x[0]) else separation(x, y) for x, y in zip(found.a.T, found.b.T, strict=True)]


def shuffled_differences(a: np.ndarray, b: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Differences of means [draws, ..., D] with prompts assigned to the two sets at random, sizes kept."""
    both, generator = np.concatenate([a, b]), np.random.default_rng(seed)
    orders = [generator.permutation(len(both)) for _ in range(draws)]
    return np.stack([mean_difference(both[order[: len(a)]], both[order[len(a) :]]) for order in orders])
