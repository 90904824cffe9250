"""Means, ratios and shares as instruments estimate them: one cell of observations, under plain names."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.instruments.observations import Contrast, Measure, Observations, estimate
from streamscope.instruments.stats.estimators import Shared, degrees_of_freedom, ratio_and_error, read_clusters
from streamscope.instruments.stats.proportions import wilson


class Estimate(NamedTuple):
    """A value with a 95 % interval; n clusters, sd between them."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


def ratio_of_sums(totals: Any, counts: Any, clusters: Any = None) -> Estimate:
    """Σ totals / Σ counts over units, each its own cluster without labels."""
    y = np.asarray(totals, float)
    labels = range(len(y)) if clusters is None else [tuple(x) if np.ndim(x) else x for x in clusters]
    block = Observations(
        measure=Measure(name="ratio", unit="of the values", resolution=0.0), cells=pd.DataFrame({"cell": [0]}),
        units=pd.DataFrame({"unit": range(len(y)), "cluster": pd.Series(list(labels), dtype=object)}),
        total=y[None], size=np.asarray(counts, float)[None],
    )  # fmt: skip
    row = estimate(block, [Contrast(quantity="ratio", weights={0: 1.0})]).frame.iloc[0]
    return Estimate(*(float(row[name]) for name in ("value", "sd", "low", "high")), int(row["clusters"]))


def mean(values: Any, clusters: Any = None) -> Estimate:
    """The mean over observations."""
    x = np.asarray(values, float)
    return ratio_of_sums(x, np.ones_like(x), clusters)


def proportion(hits: Any, clusters: Any = None) -> Estimate:
    """A share with Wilson's interval."""
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
