"""From observations of cases to a row of a table: a mean or a share with its interval, and Holm's correction.

Instruments declare contrasts instead (`instruments.observations`); these serve tables that are made by hand.
"""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments import observations
from streamscope.instruments.observations import Contrast, Measure, Observations
from streamscope.instruments.stats.estimators import finite, holm, read_clusters
from streamscope.instruments.stats.proportions import proportion
from streamscope.instruments.undefined_cells import note, reasons

NAN = float("nan")


ESTIMATED = {"value": "mean", "sd": "sd", "low": "ci_low", "high": "ci_high", "p": "p"}


def estimate(values: Any, clusters: Any, *, resolution: float = 0.0) -> dict[str, Any]:
    """n, clusters, mean, sd, ci_low, ci_high, p (of mean 0), undefined: `observations.estimate` of one cell.

    sd is between cluster means; units are those of the values. With labels of several kinds (words that cases share),
    `clusters` is the fewest of a kind. Where clusters do not differ by more than
    `resolution` there is no interval and no p, and where there is one cluster no sd either: undefined, with the reason.
    """
    x = finite(values, "values")
    units = pd.DataFrame({"unit": range(len(x)), "cluster": pd.Series(list(clusters), dtype=object)})
    rounding = 8 * np.finfo(float).eps * float(np.abs(x).max())  # of cases that cancel in their cluster as well
    measure = Measure(name="mean", unit="of the values", resolution=max(resolution, rounding))
    cells = pd.DataFrame({"cell": [0]})
    block = Observations(measure=measure, cells=cells, units=units, total=x[None], size=1.0)
    found = observations.estimate(block, [Contrast(quantity="mean", weights={0: 1.0})])
    row = found.frame.iloc[0]
    why = {short: found.reasons[0, name] for name, short in ESTIMATED.items() if (0, name) in found.reasons}
    numbers = {short: float(row[name]) for name, short in ESTIMATED.items()}
    return {"n": len(x), "clusters": int(row["clusters"]), **numbers, "undefined": note(why)}


def with_holm(summary: pd.DataFrame, p: str = "p") -> pd.DataFrame:
    """Add the column `<p>_holm`: Holm's correction over the rows with a p; undefined where p is undefined."""
    new, corrected = summary.copy(), f"{p}_holm"
    new.insert(new.columns.get_loc(p) + 1, corrected, holm(new[p]) if new[p].notna().any() else NAN)
    why = [reasons(text) for text in new["undefined"]]
    new["undefined"] = [note(r | ({corrected: r[p]} if p in r else {})) for r in why]
    return new


def hits(values: np.ndarray, clusters: Any) -> dict[str, Any]:
    """Share, ci_low, ci_high of hits, Wilson's interval over clusters; undefined with one cluster."""
    if read_clusters(clusters, len(values)).count < 2:
        why = "one independent case"
        return {"share": float(np.mean(values)), "ci_low": NAN, "ci_high": NAN, "why": why}
    result = proportion(values, clusters)
    return {"share": result.mean, "ci_low": result.ci_low, "ci_high": result.ci_high, "why": ""}
