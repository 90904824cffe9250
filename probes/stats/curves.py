"""Response curves: how a measure follows a gate, and whether it follows it in a straight line (LFA App. D)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from streamscope.models.errors import InputError
from streamscope.probes.stats.estimators import read_clusters, t_quantile
from streamscope.probes.stats.t_tests import clustered_t, constant
from streamscope.probes.undefined import note


class ResponseCurve(NamedTuple):
    """A straight line through the mean response, and how far the response is from it.

    slope in units of the response per unit of the gate; departure, the largest |mean response − line|, in units of
    the response; curvature is the coefficient of (g − ḡ)², and p_curvature tests that it is 0.
    """

    n: int
    clusters: int
    slope: float
    slope_low: float
    slope_high: float
    p_slope: float
    intercept: float
    r2: float
    departure: float
    curvature: float
    curvature_low: float
    curvature_high: float
    p_curvature: float
    undefined: str = ""


def response_curve(
    gates: ArrayLike,
    responses: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resolution: float = 0.0,
    confidence: float = 0.95,
) -> ResponseCurve:
    """Linearity of responses [cases, G] to gates [G], the same cases at every gate.

    Slope and curvature are contrasts within a case, b_i = Σ_g c_g y_ig, so the dependence between the gates of one
    case needs no model; their mean has a t interval over clusters (`t_tests.clustered_t`). The mean of the slopes
    is the least-squares slope of the mean curve ȳ_g. r2 = 1 − Σ(ȳ_g − line)²/Σ(ȳ_g − ȳ)². Read r2 with `departure`:
    a flat curve has a small r2 from noise alone. A large p_curvature is no evidence of a line; a narrow interval
    of the curvature around 0 is.

    Where no case's response changes with the gate by more than `resolution`, everything but the intercept is
    undefined by construction. Raises `InputError` for fewer than three different gates, another shape, values that
    are not finite, and fewer than two clusters.
    """
    g, y = np.asarray(gates, float), np.asarray(responses, float)
    if g.ndim != 1 or y.ndim != 2 or y.shape[1] != len(g):
        raise InputError(f"responses must be [cases, {g.size} gates], got shape {y.shape}")
    if not (np.isfinite(g).all() and np.isfinite(y).all()):
        raise InputError("gates and responses must be finite; leave undefined cells out")
    if len(np.unique(g)) < 3:
        raise InputError(f"linearity needs at least three different gates, got {len(np.unique(g))}")
    within = read_clusters(clusters, len(y))
    curves, counts = within.totals(y.T)  # [G, D]
    if within.count < 2:
        raise InputError(f"an interval needs at least two clusters, got {within.count}")
    x = g - g.mean()
    line = np.linalg.pinv(np.stack([np.ones_like(x), x], 1))[1]
    bend = np.linalg.pinv(np.stack([np.ones_like(x), x, x * x], 1))[2]
    test = clustered_t(np.stack([line @ curves, bend @ curves]), counts, within.shared)
    half = t_quantile(confidence, float(test.df[0])) * test.error
    average = y.mean(0)
    slope, curvature = (float(v) for v in test.difference)
    residual = average - average.mean() - slope * x
    total = float(np.square(average - average.mean()).sum())
    fields = {
        "slope": slope,
        "slope_low": slope - float(half[0]),
        "slope_high": slope + float(half[0]),
        "p_slope": float(test.p[0]),
        "r2": 1 - float(np.square(residual).sum()) / total if total > 0 else float("nan"),
        "departure": float(np.abs(residual).max()),
        "curvature": curvature,
        "curvature_low": curvature - float(half[1]),
        "curvature_high": curvature + float(half[1]),
        "p_curvature": float(test.p[1]),
    }
    why: dict[str, str] = {}
    if np.ptp(y, axis=1).max() <= resolution:
        why = dict.fromkeys(fields, "no case responds to the gate")
    else:
        if constant(average, np.abs(y).max()):
            why["r2"] = "the mean response is the same at every gate"
        scale = np.abs(y).max()
        for name, contrast, error in (("slope", line, test.error[0]), ("curvature", bend, test.error[1])):
            if error <= 8 * np.finfo(float).eps * scale * np.abs(contrast).sum():
                names = (f"{name}_low", f"{name}_high", f"p_{name}")
                why |= dict.fromkeys(names, f"the {name} is the same in every cluster")
    fields |= dict.fromkeys(why, float("nan"))
    return ResponseCurve(
        n=len(y),
        clusters=within.count,
        intercept=float(average.mean() - slope * g.mean()),
        undefined=note(why),
        **fields,
    )
