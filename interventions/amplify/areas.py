"""Areas under a curve of losses against α, in every reading of DST §4.2 (SPEC §7.3).

    raw ∫ loss dx                               excess ∫ (loss − loss(1)) dx
    relative 100 ∫ (loss / loss(1) − 1) dx      perplexity ∫ e^loss dx

each by the trapezoid rule over x = α, log2 α or ln α; weighted Σ α loss(α). The paper computes "the area under the loss
curve from α=1 to α=16" and prints 99.8, 97.2 and 107.4 for losses whose trapezoid is 30.81, 30.87 and 33.44. No reading
gives its numbers. As rounded, the losses leave open which of the first two raw areas is less.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Contrast, Measure, Observations
from streamscope.interventions.observe import SMALLEST

AXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"linear": lambda a: a, "log2": np.log2, "ln": np.log}
KINDS = ("raw", "excess", "relative", "perplexity", "weighted")
UNIT = "by kind: nats × α (raw, excess, weighted), percent of the loss at α = 1 × α (relative), perplexity × α"


def trapezoid(x: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weights w such that Σ w_i y_i is the trapezoid rule's integral of y over ascending x."""
    steps = np.diff(np.asarray(x, float))
    return np.concatenate([[0.0], steps / 2]) + np.concatenate([steps / 2, [0.0]])


def areas(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray, units: pd.DataFrame) -> Observations:
    """A cell for each kind and axis: the area is a ratio of sums over documents, that of perplexity linearised.

    Args:
        alphas: ascending, the first is 1.
        losses: summed loss in nats, [alphas, documents].
        tokens: targets per document.
        units: the documents, as `Observations` wants them.

    Raises `InputError` unless α ascends from 1 and there are at least two.
    """
    a, y, n = np.asarray(alphas, float), np.asarray(losses, float), np.asarray(tokens, float)
    if len(a) < 2 or a[0] != 1 or (np.diff(a) <= 0).any():
        raise InputError(f"an area needs α from 1 upwards, at least two, not {', '.join(f'{x:g}' for x in a)}")
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


def contrasts(block: Observations) -> list[Contrast]:
    """Every area, described."""
    rows = block.cells.to_dict("records")
    return [Contrast(quantity="area", weights={i: 1.0}, labels=row, null=None) for i, row in enumerate(rows)]
