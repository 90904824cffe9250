"""Areas under a curve of losses against α, in every reading of DST §4.2 (SPEC §7.3).

The paper computes "the area under the loss curve from α=1 to α=16" and prints 99.8, 97.2 and 107.4 for losses whose
trapezoid is 30.81, 30.87 and 33.44. No reading below gives its numbers, and raw area does not even give its order.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamscope.models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

AXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"linear": lambda a: a, "log2": np.log2, "ln": np.log}
KINDS = {
    "raw": "nats × α",
    "excess": "nats × α, over the loss at α = 1",
    "relative": "percent of the loss at α = 1 × α",
    "perplexity": "perplexity × α",
    "weighted": "nats × α, Σ α loss(α)",
}


def trapezoid(x: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weights w such that Σ w_i y_i is the trapezoid rule's integral of y over ascending x."""
    steps = np.diff(np.asarray(x, float))
    return np.concatenate([[0.0], steps / 2]) + np.concatenate([steps / 2, [0.0]])


class Area(NamedTuple):
    """One reading: area = factor · Σ totals / Σ sizes over documents."""

    kind: str
    axis: str
    totals: np.ndarray
    sizes: np.ndarray
    factor: float = 1.0


def readings(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray) -> list[Area]:
    """Every kind and axis of `areas` as a ratio of sums over documents; that of the perplexity is linearised.

    Arguments and errors are those of `areas`.
    """
    a, y, n = np.asarray(alphas, float), np.asarray(losses, float), np.asarray(tokens, float)
    if len(a) < 2 or a[0] != 1 or (np.diff(a) <= 0).any():
        raise InputError(f"an area needs α from 1 upwards, at least two, not {', '.join(f'{x:g}' for x in a)}")
    mean = y.sum(1) / n.sum()
    found = []
    for kind in KINDS:
        for axis in AXES if kind != "weighted" else ("linear",):
            w = trapezoid(AXES[axis](a)) if kind != "weighted" else a
            if kind in ("raw", "weighted"):
                found.append(Area(kind, axis, w @ y, n))
            elif kind == "excess":
                found.append(Area(kind, axis, w @ (y - y[0]), n))
            elif kind == "relative":
                found.append(Area(kind, axis, w @ (y - y[0]), y[0], 100.0))
            else:
                slope = w * np.exp(mean)
                found.append(Area(kind, axis, slope @ (y - mean[:, None] * n) + slope.sum() * n, n))
    return found


def areas(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray) -> "pd.DataFrame":
    """One row per kind and axis: the area with a 95 % interval over documents.

    Args:
        alphas: ascending, the first is 1.
        losses: summed loss in nats, [alphas, documents].
        tokens: targets per document.

    raw ∫ loss dx; excess ∫ (loss − loss(1)) dx; relative 100 ∫ (loss / loss(1) − 1) dx; perplexity ∫ e^loss dx, each
    by the trapezoid rule over x = α, log2 α or ln α; weighted Σ α loss(α). Intervals are ratio estimates; that of the
    perplexity is linearised. Raises `InputError` unless α ascends from 1 and there are at least two.
    """
    import pandas as pd

    from streamscope.probes.stats.estimators import ratio_of_sums

    rows: list[dict[str, Any]] = []
    for one in readings(alphas, losses, tokens):
        e = ratio_of_sums(one.totals, one.sizes)
        low, area, high = (one.factor * x for x in (e.ci_low, e.mean, e.ci_high))
        rows.append({"kind": one.kind, "axis": one.axis, "area": area, "ci_low": low, "ci_high": high, "n": e.n})
    return pd.DataFrame(rows).assign(alphas=" ".join(f"{x:g}" for x in alphas), undefined="")
