"""What clusters of tokens are like: sizes, processing depth, a figure (PLS Table 1, App. C.5).

k* [tokens] is in 0 … L. Depth ranges for L layers: early k* < L/3, late k* ≥ 5L/6, middle between; for L = 6 these are
the paper's, layers 0–1, 2–4 and 5–6. With --kstar strict k* ends at L−1, and late is k* ≥ min(5L/6, L−1). σ(k*) is the
standard deviation of k* over the tokens of a cluster. Since k* is among the features, clusters are about depth by
construction in part: the control is σ(k*) of clusters of the same sizes whose tokens are dealt at random.
"""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.probes.stats.estimators import mean

RANGES = ("early", "middle", "late")
CLUSTER_UNITS = {
    "n": "tokens", "share": "share of all tokens", "distinct": "distinct feature vectors", "documents": "documents",
    "probability": "mean λ/λ_max", "k_star_mean": "layers", "k_star_sd": "layers",
    **dict.fromkeys(RANGES, "share of the cluster's tokens"),
}  # fmt: skip
DEPTH_UNITS = {"n": "tokens", **dict.fromkeys(("share", "ci_low", "ci_high"), "share of the tokens")}
SUMMARY_UNITS = {"value": "as named"}


def depth_ranges(k_star: np.ndarray, n_layers: int, kstar: str = "author") -> np.ndarray:
    """[tokens] 0 early, 1 middle, 2 late; `kstar` as in `features.extract.Extract`."""
    late = min(5 * n_layers / 6, n_layers - 1) if kstar == "strict" else 5 * n_layers / 6
    return np.where(k_star >= late, 2, np.where(k_star < n_layers / 3, 0, 1))


def cluster_table(labels: pd.DataFrame, vector: np.ndarray, n_layers: int, kstar: str = "author") -> pd.DataFrame:
    """One row per cluster: size, distinct feature vectors, documents, σ(k*), shares by depth range and by k*.

    `labels`: columns document, k_star, cluster, probability. `vector` [tokens]: a number for each distinct vector.
    """
    depth = pd.DataFrame(
        {name: depth_ranges(labels["k_star"].to_numpy(), n_layers, kstar) == i for i, name in enumerate(RANGES)}
        | {f"k{k}": labels["k_star"].to_numpy() == k for k in range(n_layers + 1)}
    ).astype(float)
    of = labels["cluster"].to_numpy()
    held = of >= 0
    table = pd.concat([labels[["document", "k_star", "probability"]].assign(vector=vector), depth], axis=1)[held]
    by = table.groupby(of[held])
    found = pd.DataFrame({"n": by.size(), "share": by.size() / len(labels), "distinct": by["vector"].nunique()})
    found["documents"], found["probability"] = by["document"].nunique(), by["probability"].mean()
    found["k_star_mean"], found["k_star_sd"] = by["k_star"].mean(), by["k_star"].std(ddof=0)
    return pd.concat([found, by[list(depth)].mean()], axis=1).rename_axis("cluster").reset_index()


def depth_table(labels: pd.DataFrame, n_layers: int, kstar: str = "author") -> pd.DataFrame:
    """Shares by depth range and by k*, of all tokens, of those in clusters and of noise, with intervals over documents.

    PLS Table 1 is the rows early, middle, late of all tokens. Groups without tokens have no rows; intervals of groups
    from a single document are undefined.
    """
    k_star, held = labels["k_star"].to_numpy(), labels["cluster"].to_numpy() >= 0
    named = {name: depth_ranges(k_star, n_layers, kstar) == i for i, name in enumerate(RANGES)}
    named |= {f"k* = {k}": k_star == k for k in range(n_layers + 1)}
    rows = []
    for group, inside in (("all", np.full(len(labels), True)), ("clusters", held), ("noise", ~held)):
        documents = labels["document"].to_numpy()[inside]
        for depth, hit in named.items() if inside.any() else ():
            row = {"tokens": group, "depth": depth, "n": int(inside.sum()), **share(hit[inside], documents)}
            rows.append(row)
    return pd.DataFrame(rows)


def share(hit: np.ndarray, documents: np.ndarray) -> dict[str, Any]:
    """Share of tokens with its interval over documents; undefined interval for a single document."""
    if len(set(documents.tolist())) < 2:
        bounds: tuple[float, float, str] = (float("nan"), float("nan"), "ci_low, ci_high: one document")
        return dict(zip(("share", "ci_low", "ci_high", "undefined"), (float(hit.mean()), *bounds), strict=True))
    found = mean(hit.astype(float), documents)
    return {"share": found.mean, "ci_low": found.ci_low, "ci_high": found.ci_high, "undefined": ""}


def depth_spread(labels: pd.DataFrame, *, draws: int = 20, seed: int = 0) -> dict[str, float]:
    """σ(k*) within clusters, mean over the tokens in clusters; the same of tokens dealt at random; clusters without."""
    one = labels[labels["cluster"] >= 0]
    cluster, k_star = one["cluster"].to_numpy(), one["k_star"].to_numpy(float)
    size = np.bincount(cluster)

    def deviations(values: np.ndarray) -> np.ndarray:
        first = np.bincount(cluster, values) / size
        return np.sqrt(np.maximum(np.bincount(cluster, values**2) / size - first**2, 0))

    rng, found = np.random.default_rng(seed), deviations(k_star)
    dealt = [size @ deviations(rng.permutation(k_star)) / len(one) for _ in range(draws)]
    without = float((found < 1e-6).mean())
    return {"sd": float(size @ found / len(one)), "dealt": float(np.mean(dealt)), "without": without}


def summary_table(
    labels: pd.DataFrame, clusters: pd.DataFrame, distinct: int, used: int, dropped: int, explained: np.ndarray
) -> pd.DataFrame:
    """Named numbers of a clustering: one row per quantity. `explained`: variance ratios of the components, if any."""
    covered = share(labels["cluster"].to_numpy() >= 0, labels["document"].to_numpy())
    rows = {
        "tokens": len(labels),
        "documents": labels["document"].nunique(),
        "distinct vectors": distinct,
        "columns used": used,
        "columns zero by construction, left out": dropped,
        "clusters": len(clusters),
        "coverage": covered["share"],
    }
    if not covered["undefined"]:
        rows |= {"coverage, 95 % low": covered["ci_low"], "coverage, 95 % high": covered["ci_high"]}
    if len(explained):
        rows |= {"principal components": len(explained), "variance they explain": explained.sum()}
    if len(clusters):
        spread = depth_spread(labels)
        rows |= {
            "largest cluster": clusters["n"].max(),
            "median cluster": clusters["n"].median(),
            "clusters of one distinct vector": (clusters["distinct"] == 1).sum(),
            "σ(k*) within clusters, mean over tokens": spread["sd"],
            "σ(k*), tokens dealt at random": spread["dealt"],
            "share of clusters with σ(k*) = 0": spread["without"],
        }
    return pd.DataFrame({"quantity": list(rows), "value": [float(value) for value in rows.values()]})


def plot(labels: pd.DataFrame, clusters: pd.DataFrame, n_layers: int, title: str, shown: int = 40) -> Any:
    """Coverage by the largest m clusters, and k* of all tokens, of noise and of the `shown` largest clusters."""
    import plotly.graph_objects as go
    from plotly.colors import sample_colorscale
    from plotly.subplots import make_subplots

    large = clusters.head(shown).sort_values("k_star_mean")
    names = [f"C{c}  {n:,}" for c, n in zip(large["cluster"], large["n"], strict=True)]
    k_star, noise = labels["k_star"].to_numpy(), labels["cluster"].to_numpy() < 0
    groups = [(f"all  {len(labels):,}", k_star)] + ([(f"noise  {noise.sum():,}", k_star[noise])] if noise.any() else [])
    names = [*(name for name, _ in groups), *names]
    titles = ("share of tokens in the m largest clusters", f"k* by cluster: the {len(large)} largest, by mean k*")
    figure = make_subplots(cols=2, column_widths=[0.35, 0.65], horizontal_spacing=0.13, subplot_titles=titles)
    reached = np.cumsum(clusters["share"].to_numpy())
    figure.add_scatter(
        x=np.arange(1, len(clusters) + 1), y=reached.round(4), mode="lines", line={"color": "#555"}, showlegend=False
    )
    colors = sample_colorscale("Viridis_r", [k / n_layers for k in range(n_layers + 1)])
    for k in range(n_layers + 1):
        shares = [float((values == k).mean()) for _, values in groups] + large[f"k{k}"].tolist()
        bar = go.Bar(y=names, x=np.round(shares, 4), name=f"k* = {k}", orientation="h", marker={"color": colors[k]})
        figure.add_trace(bar, row=1, col=2)
    figure.update_xaxes(title="m", type="log", row=1, col=1)
    figure.update_yaxes(range=[0, 1], row=1, col=1)
    figure.update_xaxes(title="share of the cluster's tokens", range=[0, 1], row=1, col=2)
    figure.update_yaxes(autorange="reversed", row=1, col=2)
    height = max(480, 180 + 17 * len(names))
    return figure.update_layout(title=title, barmode="stack", bargap=0.15, width=1200, height=height)
