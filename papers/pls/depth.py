"""Where predictions stabilise: PLS Table 1 and Fig. 2, of the k* that `features.extract` reads.

    depth.early, depth.middle, depth.late      shares of tokens with k* < L/3, between, ≥ 5L/6 (PLS §4.2: L = 6)
    depth.second_peak                          how far both of two peaks stand above the valley between (Fig. 2)

k* is the first layer whose prediction is the final one and stays so, L where only the last layer has it (SPEC §7.4,
the author's rule; the formula's L−1 falls into the same range). Layers are read through the final norm and the head, as
PLS trains them; of C2 that is the logit lens, of layers that nobody trained to be read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from streamscope.features.cluster.description import RANGES, depth_ranges
from streamscope.features.extract import Extract
from streamscope.features.store import Features, features_of
from streamscope.instruments.data import Tokens
from streamscope.instruments.open_data import OpenTokens
from streamscope.instruments.stats.means import hits
from streamscope.papers.comparison.seeds import Progress, Rows
from streamscope.papers.pls.claims import SECOND_PEAK
from streamscope.text.shards import TokenShards


def ranges(n_layers: int) -> dict[str, list[int]]:
    """Early, middle and late k*, as `features.cluster.description.depth_ranges` has them for any number of layers."""

    of = depth_ranges(np.arange(n_layers + 1), n_layers)
    return {name: np.flatnonzero(of == i).tolist() for i, name in enumerate(RANGES)}


def measure_depth(rows: Rows, model: Any, shards: TokenShards, tokens: int, progress: Progress) -> pd.DataFrame:
    """Adds the three shares to `rows`; returns the share of every k*, with 95 % intervals over documents.

    The first `tokens` rows of `shards`, through `features.extract`. Raises `InputError` as it does.
    """

    data = OpenTokens(Tokens(max_tokens=tokens), shards, model.config.n_ctx)
    features = features_of(Extract(tier="structural").measure(model, data, progress=progress("depth")))
    return shares_of_depth(rows, features, model.config.n_layers)


def shares_of_depth(rows: Rows, features: Features, n_layers: int) -> pd.DataFrame:
    """`measure_depth` of features that were extracted."""
    depth, documents = features.table["k_star"].to_numpy(int), features.table["document"].to_numpy()
    for name, layers in ranges(n_layers).items():
        share, low, high, why = _share(np.isin(depth, layers), documents)
        rows.add(f"depth.{name}", "depth", "share of tokens", share, interval=(low, high), n=len(depth), why=why)
    table = []
    for k in range(n_layers + 1):
        share, low, high, why = _share(depth == k, documents)
        row = {"depth": k, "share": share, "ci_low": low, "ci_high": high, "n": len(depth)}
        table.append({**row, "documents": len(set(documents)), "undefined": f"ci_low, ci_high: {why}" if why else ""})
    return pd.DataFrame(table)


def second_peak(shares: Mapping[int, float], n_layers: int) -> tuple[float, str]:
    """min(the largest share at an early k*, the share at k* = L) − the smallest share between.

    NaN, with the reason, where a range has no share.

    Above 0 the distribution of k* has two peaks, one early and one at maximum depth, as the paper's Fig. 2 has it for
    PLS; 0 or below, one of them is missing. k* = L−1 cannot occur (the author's rule), so it is no valley.
    """
    of = ranges(n_layers)
    between = [k for k in of["middle"] if k != n_layers - 1]
    if not between:
        return float("nan"), f"no layer between early and late k* in a model of {n_layers} layers"
    first, last = max(shares[k] for k in of["early"]), shares[n_layers]
    return min(first, last) - min(shares[k] for k in between), ""


def with_second_peak(quantities: pd.DataFrame, depth: pd.DataFrame) -> pd.DataFrame:
    """The quantities of all runs with `depth.second_peak`, from their tables of shares, where it is not among them."""
    if SECOND_PEAK in set(quantities["quantity"]):
        return quantities
    parts = [quantities]
    for (preset, seed), one in depth.groupby(["preset", "seed"], sort=False):
        rows = Rows()
        value, why = second_peak(one.set_index("depth")["share"].to_dict(), int(one["depth"].max()))
        rows.add(SECOND_PEAK, "depth", "share of tokens", value, n=int(one["n"].iloc[0]), why=why)
        parts.append(rows.of(preset, seed))
    return pd.concat(parts, ignore_index=True)


def _share(hit: np.ndarray, documents: np.ndarray) -> tuple[float, float, float, str]:
    """Share, ends of its 95 % interval over documents, and why there is none."""

    numbers = hits(hit, documents)
    return float(numbers["share"]), float(numbers["ci_low"]), float(numbers["ci_high"]), str(numbers["why"])
