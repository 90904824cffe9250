"""Computational modes of one run: its features clustered, and against clusters of raw activations of the same tokens.

    hdbscan.*         455-D features of `tokens` tokens, 30 principal components, HDBSCAN (10, 1) (PLS C.4)
    kmeans.*          163-D features of `kmeans_tokens` tokens, ten clusters (PLS §4.1)
    clusters, largest, coverage    number, tokens of the largest, share of tokens in any
    variance          share of the variance that the principal components hold
    sd, sd_dealt      σ(k*) within clusters, mean over tokens; the same of tokens dealt at random into them
    flat              share of clusters with σ(k*) = 0
    ari, ami          agreement with clusters of raw [x_t; x_e] after the last layer, by the same pipeline; of HDBSCAN
                      all tokens, noise as a cluster, and `_clustered`: tokens in clusters of both
    identity, identity_raw         AMI of either clusters with the token ids, over the tokens in clusters of both
    identity_gap      identity_raw − identity: how much more the raw clusters are about which token it is
    depth.early, …    shares of tokens by the layer where their prediction settles (`papers.pls.depth`)

The columns that are not 0 at the stable layer only say k* itself, so that σ(k*) = 0 within clusters is partly by
construction: the features hold it, whatever the model does.
"""

from typing import Any, Literal

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_mutual_info_score

from streamscope.features.cluster.checks import agreement_table, raw_rows
from streamscope.features.cluster.description import cluster_table, depth_spread
from streamscope.features.cluster.measure import AGREEMENT, coverage, varying_features
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.extract import Extract
from streamscope.features.schema import Tier
from streamscope.features.store import Features, features_of, raw_of
from streamscope.instruments.data import Tokens
from streamscope.instruments.observations import each, estimate
from streamscope.instruments.open_data import OpenTokens
from streamscope.instruments.table import Table
from streamscope.instruments.undefined_cells import reasons
from streamscope.papers.comparison.seeds import Progress, Rows
from streamscope.papers.modes.options import Settings
from streamscope.papers.pls.depth import shares_of_depth
from streamscope.text.shards import TokenShards


def measure_run(model: Any, shards: TokenShards, settings: Settings, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables of one run: runs, agreement, depth, clusters. Raises `InputError` as `features.extract` does."""
    rows, tables = Rows(), {}
    features, raw = _extracted(model, shards, "topk", settings.tokens, progress)
    tables["depth"] = shares_of_depth(rows, features, model.config.n_layers)
    labels, theirs, modes = _clustered("hdbscan", features, raw, settings)
    tables["clusters"] = _shape(rows, features, labels, modes, model.config.n_layers)
    parts = [_agreement(rows, "hdbscan", features, labels, theirs, settings)]
    features, raw = _extracted(model, shards, "structural", settings.kmeans_tokens, progress)
    labels, theirs, _ = _clustered("kmeans", features, raw, settings)
    parts.append(_agreement(rows, "kmeans", features, labels, theirs, settings))
    tables["agreement"] = pd.concat(parts, ignore_index=True)
    return {"runs": pd.DataFrame(rows.rows), **tables}


def modes_of(rows: Rows, model: Any, shards: TokenShards, tokens: int, seed: int, progress: Progress) -> None:
    """The quantities hdbscan.clusters to hdbscan.flat of the first tokens, and none of raw activations."""
    features, _ = _extracted(model, shards, "topk", tokens, progress)
    x, _ = varying_features(features)
    modes = ComputationalModes("hdbscan", seed=seed)
    labels = modes.fit(x).labels_
    _shape(rows, features, labels, modes, model.config.n_layers)


def _extracted(
    model: Any, shards: TokenShards, tier: Tier, tokens: int, progress: Progress
) -> tuple[Features, np.ndarray]:
    """The features of the first tokens, and the raw activations of the last layer's streams."""

    data = OpenTokens(Tokens(max_tokens=tokens), shards, model.config.n_ctx)
    result = Extract(tier=tier, raw=()).measure(model, data, progress=progress(f"{tier} features"))
    features = features_of(result)
    return features, raw_rows(raw_of(result), features)


def _clustered(
    method: Literal["hdbscan", "kmeans"], features: Features, raw: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray, ComputationalModes]:
    """Labels of the tokens by their features and by their raw activations, and the fit of the features."""

    x, _ = varying_features(features)
    modes = ComputationalModes(method, seed=settings.seed)
    labels = modes.fit(x).labels_
    theirs = ComputationalModes(method, seed=settings.seed).fit(raw).labels_
    return labels, theirs, modes


def _shape(
    rows: Rows, features: Features, labels: np.ndarray, modes: ComputationalModes, n_layers: int
) -> pd.DataFrame:
    """Number, size and depth of the clusters; the table of `features.cluster`."""

    one = features.table[["document", "k_star"]].assign(cluster=labels, probability=modes.probabilities_)
    one["k_star"] = one["k_star"].astype(int)
    n = len(one)
    clusters = cluster_table(one, np.zeros(n, int), n_layers).drop(columns="distinct")
    rows.add("hdbscan.clusters", "clusters", "clusters", len(clusters), n=n)
    covered = estimate(held := coverage(one), each("coverage", held.cells, null=None)).frame.iloc[0]
    interval = (covered["low"], covered["high"])
    rows.add("hdbscan.coverage", "clusters", "share of tokens", covered["value"], interval=interval, n=n)
    explained = float(modes.explained_variance_ratio_.sum())
    rows.add("hdbscan.variance", "clusters", "share of variance", explained, n=modes.n_distinct_)
    why = "" if len(clusters) else "no cluster"
    spread = depth_spread(one) if len(clusters) else dict.fromkeys(("sd", "dealt", "without"), np.nan)
    largest = float(clusters["n"].max()) if len(clusters) else np.nan
    rows.add("hdbscan.largest", "clusters", "tokens", largest, n=n, why=why)
    rows.add("hdbscan.sd", "depth of clusters", "layers", spread["sd"], n=n, why=why)
    rows.add("hdbscan.sd_dealt", "depth of clusters", "layers", spread["dealt"], n=n, why=why)
    rows.add("hdbscan.flat", "depth of clusters", "share of clusters", spread["without"], n=len(clusters), why=why)
    return clusters


def _agreement(
    rows: Rows, method: str, features: Features, labels: np.ndarray, raw: np.ndarray, settings: Settings
) -> pd.DataFrame:
    """ARI and AMI with the raw clusters, and AMI of both with the token ids."""

    documents = features.table["document"].to_numpy()
    table = agreement_table(labels, raw, documents, resamples=settings.resamples, seed=settings.seed)
    table = Table.noted(table, AGREEMENT, "agreement").short("value")
    if method == "kmeans":
        table = table[table["tokens"].str.startswith("all")].assign(tokens="all")
    for r in table.to_dict("records"):
        name = f"{method}.{r['measure'].lower()}" + ("_clustered" if r["tokens"].startswith("in") else "")
        why = reasons(r["undefined"]).get("value", "")
        interval = (r["ci_low"], r["ci_high"])
        rows.add(name, "agreement", r["measure"], r["value"], interval=interval, n=r["n"], why=why)
    both = (labels >= 0) & (raw >= 0)
    ids = features.table["token_id"].to_numpy()[both]
    values, why = [np.nan] * 2, "fewer than two tokens in clusters of both"
    if both.sum() > 1:
        values, why = [adjusted_mutual_info_score(one[both], ids) for one in (labels, raw)], ""
    for name, value in zip(("identity", "identity_raw"), values, strict=True):
        rows.add(f"{method}.{name}", "agreement", "AMI", value, n=int(both.sum()), why=why)
    rows.add(f"{method}.identity_gap", "agreement", "AMI", values[1] - values[0], n=int(both.sum()), why=why)
    return table.assign(method=method)
