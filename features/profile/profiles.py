"""Profiles of clusters: size, depth, tokens and their kinds, attention, confidence, samples in texts (PLS §4.3).

Labels are the rows of the table `labels` of `features.cluster`, in the order of the features. Distances are Euclidean
between standardised features, (x − mean) / sd over all tokens of the table; constant features are ignored.
"""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from streamscope.features.profile.contexts import Contexts, visible
from streamscope.features.profile.token_kinds import enrichment, kinds
from streamscope.features.store import KEY, Features

NOISE = -1
TOP = 8  # number of tokens and predictions listed per cluster
MEANS = {"head activation": "head_act", "head top-k": "topk", "trajectory": "traj_prob", "core": ""}
"""Component -> prefix of the features whose means are in the profile; top-k features only at rank 1."""


def profiles(
    features: Features, labels: pd.DataFrame, far: np.ndarray, files: Sequence[str] = ()
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per cluster, largest first, noise (−1) last; and the kinds of tokens of each (`enrichment`).

    `far` [n]: distance of each token to the centre of its cluster. Columns cluster, n, share, documents, depth_sd,
    radius (rms distance to the centre, sds), probability, `tokens` and `predictions` (the most frequent with shares,
    JSON), `files` (shares of several tables, JSON), and `mean_NAME` of head activations, layer probabilities and core
    features.
    """
    table, clusters = features.table, labels["cluster"].to_numpy()
    tokens = table[["document", "token", "prediction"]].assign(
        depth=labels["k_star"].to_numpy(float), probability=labels["probability"].to_numpy(float), square=np.square(far)
    )
    by = tokens.groupby(clusters)
    texts = {f"{name}s": by[name].agg(most_common) for name in ("token", "prediction")}
    if files:
        texts["files"] = table["file"].map(dict(enumerate(files))).groupby(clusters).agg(most_common)
    in_profile = [
        c.name for c in features.columns
        if not c.constant and c.name.startswith(MEANS.get(c.component, "\0")) and c.rank in (None, 1)
    ]  # fmt: skip
    means = table[in_profile].astype(float).groupby(clusters).mean()
    rows = pd.DataFrame({
        "n": by.size(), "share": by.size() / len(labels), "documents": by["document"].nunique(),
        "depth_sd": by["depth"].std(ddof=0), "probability": by["probability"].mean(),
        "radius": np.sqrt(by["square"].mean()), **texts,
    }).join(means.add_prefix("mean_"))  # fmt: skip
    ordered = rows.loc[in_order(clusters)].rename_axis("cluster").reset_index()
    previous_tokens, next_tokens = (v.tolist() for v in Contexts(features).neighbours())
    members = kinds(table["token"].tolist(), previous_tokens, next_tokens, (table["position"] == 0).to_numpy())
    return ordered, enrichment(clusters, members)


def samples(
    features: Features, labels: pd.DataFrame, z: np.ndarray, far: np.ndarray, files: Sequence[str] = (), *,
    representative: int = 8, diverse: int = 15,
) -> pd.DataFrame:  # fmt: skip
    """Representative tokens of each cluster in their texts: nearest to the centre, and by farthest point.

    Columns cluster, kind (representative or diverse), rank from 1, distance to the centre (sds of the features),
    k_star, document, position, token, prediction, target, left and right (the text around the token), text (the token
    in it), prediction_text (on one line), and `file` for several tables.
    """
    contexts, rows, chosen = Contexts(features), [], []
    clusters = labels["cluster"].to_numpy()
    for cluster in in_order(clusters):
        index = np.flatnonzero(clusters == cluster)
        near, spread = nearest(z[index], representative), farthest_points(z[index], diverse)
        for kind, picks in (("representative", index[near]), ("diverse", index[spread])):
            chosen += picks.tolist()
            rows += [(cluster, kind, rank, far[i]) for rank, i in enumerate(picks, 1)]
    table = pd.DataFrame(rows, columns=["cluster", "kind", "rank", "distance"])
    table["k_star"] = labels["k_star"].to_numpy()[chosen]
    table = table.join(features.table.iloc[chosen][[*KEY, "token", "prediction", "target"]].reset_index(drop=True))
    if files:
        table["file"] = np.array(files)[features.table["file"].to_numpy()[chosen]]
    texts = [contexts.at(row) for row in chosen]
    table = table.assign(left=[text.left for text in texts], right=[text.right for text in texts])
    return table.assign(text=[text.marked() for text in texts], prediction_text=table["prediction"].map(visible))


def most_common(texts: pd.Series) -> str:
    """The most frequent texts (visible form) with their shares, as JSON; ties in alphabetical order."""
    shares = texts.map(visible).value_counts(normalize=True).sort_index().sort_values(ascending=False, kind="stable")
    return json.dumps({text: round(share, 4) for text, share in shares.head(TOP).items()}, ensure_ascii=False)


def in_order(clusters: np.ndarray) -> list[int]:
    """The clusters of tokens, largest first, noise last."""
    names, sizes = np.unique(clusters, return_counts=True)
    return names[np.lexsort((names, -sizes, names == NOISE))].tolist()


def standardised(x: np.ndarray) -> np.ndarray:
    """Features x [n, d] in standard deviations from their mean, as float64; 0 for constant features."""
    mean, sd = x.mean(0, dtype=float), x.std(0, dtype=float)
    varies = sd > 1e-9 * (1 + np.abs(mean))
    return (x - mean) * np.where(varies, 1 / np.where(varies, sd, 1), 0.0)


def centre_distance(z: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Distance [n] of each row of z [n, d] to the mean of its cluster."""
    rows = pd.DataFrame(z)
    return np.linalg.norm(rows - rows.groupby(clusters).transform("mean"), axis=1)


def nearest(z: np.ndarray, k: int) -> np.ndarray:
    """The k rows nearest to the centre, nearest first; ties go to the earlier row."""
    return np.argsort(np.linalg.norm(z - z.mean(0), axis=1), kind="stable")[:k]


def farthest_points(z: np.ndarray, k: int) -> np.ndarray:
    """Greedy k-centre: the row nearest to the centre, then always the row farthest from all chosen ones. The largest
    distance of a row to its nearest chosen row is at most twice the optimum for k rows (Gonzalez 1985). Ties go to the
    earlier row. Returns fewer than k rows if fewer differ."""
    chosen = [int(nearest(z, 1)[0])]
    distance = np.square(z - z[chosen[0]]).sum(1)
    while len(chosen) < min(k, len(z)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.square(z - z[chosen[-1]]).sum(1))
    return np.array(chosen)
