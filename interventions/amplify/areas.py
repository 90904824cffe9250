"""Areas under the curve of loss against α, in every reading of DST §4.2 (SPEC §7.3).

    raw ∫ loss dx                               excess ∫ (loss − loss(1)) dx
    relative 100 ∫ (loss / loss(1) − 1) dx      perplexity ∫ e^loss dx

each by the trapezoid rule over x = α, log2 α or ln α; weighted: Σ α loss(α). The paper computes "the area under the
loss curve from α=1 to α=16" and prints 99.8, 97.2 and 107.4 for losses with trapezoid areas 30.81, 30.87 and 33.44. No
reading gives its numbers. The printed losses are rounded, so either of the first two raw areas may be smaller.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Measure, Observations
from streamscope.interventions.observe import SMALLEST

AXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"linear": lambda a: a, "log2": np.log2, "ln": np.log}
KINDS = ("raw", "excess", "relative", "perplexity", "weighted")
UNIT = "by kind: nats × α (raw, excess, weighted), percent of the loss at α = 1 × α (relative), perplexity × α"


def trapezoid(x: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weights w with Σ w_i y_i = the trapezoid rule's integral of y over ascending x."""
    steps = np.diff(np.asarray(x, float))
    return np.concatenate([[0.0], steps / 2]) + np.concatenate([steps / 2, [0.0]])


def areas(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray, units: pd.DataFrame) -> Observations:
    """A cell for each kind and axis. Areas are ratios of sums over documents; that of perplexity is linearised.

    alphas: ascending from 1. losses: summed loss in nats, [alphas, documents]. tokens: targets per document. units: the
    documents. Raises `InputError` unless α ascends from 1 and has at least two values.
    """
    a, y, n = np.asarray(alphas, float), np.asarray(losses, float), np.asarray(tokens, float)
    if len(a) < 2 or a[0] != 1 or (np.diff(a) <= 0).any():
        raise InputError(f"an area needs at least two α that ascend from 1, not {', '.join(f'{x:g}' for x in a)}")
    mean = y.sum(1) / n.sum()
    cells, totals, sizes = [], [], []
    for kind in KINDS:
        for axis in AXES if kind != "weighted" else ("linear",):
            w = trapezoid(AXES[axis](a)) if kind != "weighted" else a
            slope = w * np.exp(mean)
            cells.append({"kind": kind, "axis": axis})
            totals.append({
                "raw": w @ y, "weighted": w @ y, "excess": w @ (y - y[0]), "relative": 100.0 * w @ (y - y[0]),
                "perplexity": slope @ (y - mean[:, None] * n) + slope.sum() * n,
            }[kind])  # fmt: skip
            sizes.append(y[0] if kind == "relative" else n)
    measure = Measure(name="area under the curve", unit=UNIT, resolution=SMALLEST["loss"])
    return Observations(
        measure=measure, cells=pd.DataFrame(cells), units=units, total=np.stack(totals), size=np.stack(sizes)
    )
