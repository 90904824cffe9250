"""From observations of cases to a row of a table: a mean or a share with its interval, and Holm's correction.

Instruments declare contrasts instead (`instruments.observations`); these serve tables that are made by hand.
"""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.instruments.stats.estimators import clustered_t, constant, finite, holm, ratio_of_sums, read_clusters
from streamscope.instruments.stats.proportions import proportion
from streamscope.instruments.undefined_cells import note, reasons

NAN = float("nan")


def estimate(values: Any, clusters: Any, *, resolution: float = 0.0) -> dict[str, Any]:
    """n, clusters, mean, sd, ci_low, ci_high, p (of mean 0), undefined: `estimators.mean` and `estimators.clustered_t`.

    sd is between cluster means; units are those of the values. With labels of several kinds (words that cases share),
    `clusters` is the fewest of a kind. Where clusters do not differ by more than
    `resolution` there is no interval and no p, and where there is one cluster no sd either: undefined, with the reason.
    """
    x = finite(values, "values")
    within = read_clusters(clusters, len(x))
    totals, counts = within.totals(x)
    row: dict[str, Any] = {"n": len(x), "clusters": within.count, "mean": float(x.mean())}
    why: dict[str, str] = {}
    if within.count < 2:
        row |= dict.fromkeys(("sd", "ci_low", "ci_high", "p"), NAN)
        why = dict.fromkeys(("sd", "ci_low", "ci_high", "p"), "one independent case")
    else:
        result, test = ratio_of_sums(totals, counts, within=within), clustered_t(totals, counts, within.shared)
        row |= {"sd": result.sd, "ci_low": result.ci_low, "ci_high": result.ci_high, "p": float(test.p)}
        if constant(totals / counts, np.abs(x).max()) or np.ptp(totals / counts) <= resolution:
            row |= dict.fromkeys(("ci_low", "ci_high", "p"), NAN)
            why = dict.fromkeys(("ci_low", "ci_high", "p"), "the same in every independent case")
    return {**row, "undefined": note(why)}


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
