"""Means, ratios and shares as instruments estimate them: one cell of observations, under plain names."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.instruments.observations import Contrast, Measure, Observations, estimate
from streamscope.instruments.stats.estimators import Shared, degrees_of_freedom, ratio_and_error, read_clusters, wilson

NATS = Measure(name="loss", unit="nats/token", resolution=1e-6)


def block(
    total: np.ndarray, size: np.ndarray | float = 1.0, clusters: Any = None, measure: Measure = NATS, **keys: Any
) -> Observations:
    """Observations [cells, units] whose cells have these keys, or numbers; a NaN stands for a unit not in its cell."""
    units = pd.DataFrame({"unit": [f"u{i}" for i in range(total.shape[1])]})
    units["cluster"] = units["unit"] if clusters is None else pd.Series(list(clusters), dtype=object)
    cells = pd.DataFrame(keys or {"cell": range(len(total))})
    return Observations(measure=measure, cells=cells, units=units, total=total, size=np.where(np.isnan(total), 0, size))


class Estimate(NamedTuple):
    """A value with a 95 % interval; n clusters, sd between them."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


def ratio_of_sums(totals: Any, counts: Any, clusters: Any = None) -> Estimate:
    """Σ totals / Σ counts over units, each its own cluster without labels."""
    labels = None if clusters is None else [tuple(x) if np.ndim(x) else x for x in clusters]
    measure = Measure(name="ratio", unit="of the values", resolution=0.0)
    observed = block(np.asarray(totals, float)[None], np.asarray(counts, float)[None], labels, measure)
    row = estimate(observed, [Contrast(quantity="ratio", weights={0: 1.0})]).frame.iloc[0]
    return Estimate(*(float(row[name]) for name in ("value", "sd", "low", "high")), int(row["clusters"]))


def mean(values: Any, clusters: Any = None) -> Estimate:
    x = np.asarray(values, float)
    return ratio_of_sums(x, np.ones_like(x), clusters)


def proportion(hits: Any, clusters: Any = None) -> Estimate:
    x = np.asarray(hits, float)
    within = read_clusters(clusters, len(x))
    low, high = wilson(x, None if clusters is None else within)
    return Estimate(x.mean(), float("nan"), low, high, within.count)


class TTest(NamedTuple):
    """Arrays over the leading axes."""

    difference: np.ndarray
    error: np.ndarray
    t: np.ndarray
    df: np.ndarray
    p: np.ndarray


def clustered_t(totals: np.ndarray, counts: np.ndarray, shared: Shared | None = None) -> TTest:
    """Many tests at once that Σ y_d / Σ n_d is 0, clusters on the last axis; a contrast of observations is one."""
    difference, error = ratio_and_error(totals, counts, shared)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, difference / error, np.nan)
    df = np.broadcast_to(degrees_of_freedom(counts, shared), error.shape)
    return TTest(difference, error, t, df, 2 * stats.t.sf(np.abs(t), df))
