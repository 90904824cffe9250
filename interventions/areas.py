"""Areas under a curve of losses against α, in every reading of DST §4.2 (SPEC §7.3).

The paper computes "the area under the loss curve from α=1 to α=16" and prints 99.8, 97.2 and 107.4 for losses whose
trapezoid is 30.81, 30.87 and 33.44. No reading below gives its numbers, and raw area does not even give its order.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models.errors import InputError

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

    from probes.statistics import ratio_of_sums

    a, y, n = np.asarray(alphas, float), np.asarray(losses, float), np.asarray(tokens, float)
    if len(a) < 2 or a[0] != 1 or (np.diff(a) <= 0).any():
        raise InputError(f"an area needs α from 1 upwards, at least two, not {', '.join(f'{x:g}' for x in a)}")
    mean = y.sum(1) / n.sum()
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for axis in AXES if kind != "weighted" else ("linear",):
            w = trapezoid(AXES[axis](a)) if kind != "weighted" else a
            factor, shift = 1.0, 0.0
            if kind in ("raw", "weighted"):
                e = ratio_of_sums(w @ y, n)
            elif kind == "excess":
                e = ratio_of_sums(w @ (y - y[0]), n)
            elif kind == "relative":
                e, factor = ratio_of_sums(w @ (y - y[0]), y[0]), 100.0
            else:
                slope = w * np.exp(mean)
                e, shift = ratio_of_sums(slope @ (y - mean[:, None] * n), n), float(slope.sum())
            low, area, high = (factor * x + shift for x in (e.ci_low, e.mean, e.ci_high))
            rows.append({"kind": kind, "axis": axis, "area": area, "ci_low": low, "ci_high": high, "n": e.n})
    return pd.DataFrame(rows).assign(alphas=" ".join(f"{x:g}" for x in a), undefined="")
