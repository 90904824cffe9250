"""Sizes and processing depth of clusters of tokens (PLS Table 1, App. C.5).

k* [tokens] is in 0 … L. Depth ranges for L layers: early k* < L/3, late k* ≥ 5L/6, middle between; for L = 6 these are
the paper's layers 0–1, 2–4 and 5–6. With --kstar strict, k* ends at L−1 and late is k* ≥ min(5L/6, L−1). σ(k*) is the
standard deviation of k* over the tokens of a cluster. k* is one of the features, so clusters separate depths in part by
construction. The control is σ(k*) of clusters of the same sizes with tokens assigned at random.
"""

import numpy as np
import pandas as pd

RANGES = ("early", "middle", "late")


def depth_ranges(k_star: np.ndarray, n_layers: int, kstar: str = "author") -> np.ndarray:
    """[tokens] 0 early, 1 middle, 2 late; `kstar` as in `features.extract.Extract`."""
    late = min(5 * n_layers / 6, n_layers - 1) if kstar == "strict" else 5 * n_layers / 6
    return np.where(k_star >= late, 2, np.where(k_star < n_layers / 3, 0, 1))


def cluster_table(labels: pd.DataFrame, vector: np.ndarray, n_layers: int, kstar: str = "author") -> pd.DataFrame:
    """One row per cluster: size, distinct feature vectors, documents, σ(k*), shares by depth range and by k*.

    `labels`: columns document, k_star, cluster, probability. `vector` [tokens]: the number of the distinct vector.
    """
    depth = pd.DataFrame(
        {name: depth_ranges(labels["k_star"].to_numpy(), n_layers, kstar) == i for i, name in enumerate(RANGES)}
        | {f"k{k}": labels["k_star"].to_numpy() == k for k in range(n_layers + 1)}
    ).astype(float)
    of = labels["cluster"].to_numpy()
    in_cluster = of >= 0
    table = pd.concat([labels[["document", "k_star", "probability"]].assign(vector=vector), depth], axis=1)[in_cluster]
    by = table.groupby(of[in_cluster])
    clusters = pd.DataFrame({"n": by.size(), "share": by.size() / len(labels), "distinct": by["vector"].nunique()})
    clusters["documents"], clusters["probability"] = by["document"].nunique(), by["probability"].mean()
    clusters["k_star_mean"], clusters["k_star_sd"] = by["k_star"].mean(), by["k_star"].std(ddof=0)
    return pd.concat([clusters, by[list(depth)].mean()], axis=1).rename_axis("cluster").reset_index()


def depth_spread(labels: pd.DataFrame, *, draws: int = 20, seed: int = 0) -> dict[str, float]:
    """Mean σ(k*) over clustered tokens, the same for tokens assigned at random, share of clusters with σ(k*) = 0."""
    members = labels[labels["cluster"] >= 0]
    k_star, of = members["k_star"].astype(float), members["cluster"].to_numpy()

    def deviations(values: pd.Series) -> pd.Series:
        return values.groupby(of).std(ddof=0)

    rng, spreads, size = np.random.default_rng(seed), deviations(k_star), k_star.groupby(of).size()
    dealt = [size @ deviations(pd.Series(rng.permutation(k_star))) / len(members) for _ in range(draws)]
    without = float((spreads < 1e-6).mean())
    return {"sd": float(size @ spreads / len(members)), "dealt": float(np.mean(dealt)), "without": without}
