"""Profiles of clusters: size, depth, tokens and their kinds, attention, confidence, samples in texts (PLS §4.3).

Labels are the rows of the table `labels` of `features.cluster`, in the order of the features.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.features.profile.contexts import Contexts, visible
from streamscope.features.profile.enrichment import enrichment
from streamscope.features.profile.samples import Scale, centre_distance, farthest_points, nearest
from streamscope.features.profile.token_kinds import kinds
from streamscope.features.schema import Feature
from streamscope.features.store import KEY, Features

NOISE = -1
TOP = 8
"""Number of tokens and predictions listed per cluster."""
MEANS = {"head activation": "head_act", "head top-k": "topk", "trajectory": "traj_prob", "core": ""}
"""Component -> prefix of the features whose means are in the profile; top-k features only at rank 1."""


def profiles(found: Features, labels: pd.DataFrame, files: Sequence[str] = ()) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per cluster, largest first, noise (−1) last; and the kinds of tokens of each (`enrichment`).

    Columns cluster, n, share, documents, depth_sd, radius (rms distance to the centre, sds), probability, `tokens` and
    `predictions` (the most frequent with shares, JSON), `files` (shares of several tables, JSON), and `mean_NAME` of
    head activations, layer probabilities and core features.
    """
    table, clusters = found.table, labels["cluster"].to_numpy()
    depth, probability = labels["k_star"].to_numpy(float), labels["probability"].to_numpy(float)
    columns, x = profile_features(found.columns), found.X
    values, scale = table[[column.name for column in columns]].to_numpy(float), Scale.of(x)
    rows = []
    for cluster, index in _members(clusters):
        mine = table.iloc[index]
        row: dict[str, Any] = {"cluster": cluster, "n": len(index), "share": len(index) / len(labels)}
        row["documents"] = mine["document"].nunique()
        row |= {"depth_sd": depth[index].std(), "probability": probability[index].mean()}
        row["radius"] = float(np.sqrt(np.square(centre_distance(scale.standardised(x[index]))).mean()))
        for name in ("token", "prediction"):
            row[f"{name}s"] = json.dumps(most_common(mine[name]), ensure_ascii=False)
        if files:
            row["files"] = json.dumps(most_common(mine["file"].map(dict(enumerate(files)))))
        rows.append(row | {f"mean_{c.name}": m for c, m in zip(columns, values[index].mean(0), strict=True)})
    before, after = (v.tolist() for v in Contexts(found.table).neighbours())
    members = kinds(table["token"].tolist(), before, after, (table["position"] == 0).to_numpy())
    return pd.DataFrame(rows), enrichment(clusters, members)


def samples(
    found: Features, labels: pd.DataFrame, files: Sequence[str] = (), *, representative: int = 8, diverse: int = 15
) -> pd.DataFrame:
    """Representative tokens of each cluster in their texts: nearest to the centre, and by farthest point.

    Columns cluster, kind (representative or diverse), rank from 1, distance to the centre (sds of the features),
    k_star, document, position, token, prediction, target, left and right (the text around the token), text (the token
    in it), prediction_text (on one line), and `file` for several tables.
    """
    x = found.X
    scale, contexts = Scale.of(x), Contexts(found.table)
    rows, chosen = [], []
    for cluster, index in _members(labels["cluster"].to_numpy()):
        z = scale.standardised(x[index])
        distance = centre_distance(z)
        for kind, some in (("representative", nearest(z, representative)), ("diverse", farthest_points(z, diverse))):
            chosen += index[some].tolist()
            rows += [(cluster, kind, rank, distance[i]) for rank, i in enumerate(some, 1)]
    table = pd.DataFrame(rows, columns=["cluster", "kind", "rank", "distance"])
    table["k_star"] = labels["k_star"].to_numpy()[chosen]
    table = table.join(found.table.iloc[chosen][[*KEY, "token", "prediction", "target"]].reset_index(drop=True))
    if files:
        table["file"] = np.array(files)[found.table["file"].to_numpy()[chosen]]
    texts = [contexts.at(row) for row in chosen]
    table = table.assign(left=[text.left for text in texts], right=[text.right for text in texts])
    return table.assign(text=[text.marked() for text in texts], prediction_text=table["prediction"].map(visible))


def profile_features(columns: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The features whose means are in a profile."""
    return tuple(
        c for c in columns
        if not c.constant and c.name.startswith(MEANS.get(c.component, "\0")) and c.rank in (None, 1)
    )  # fmt: skip


def most_common(texts: pd.Series, top: int = TOP) -> dict[str, float]:
    """The most frequent texts (visible form) with their shares; ties in alphabetical order."""
    counts = Counter(map(visible, texts))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top]
    return {text: round(n / len(texts), 4) for text, n in ordered}


def _members(clusters: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(cluster, its rows), largest first, noise last."""
    names, codes, counts = np.unique(clusters, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    order = sorted(range(len(names)), key=lambda i: (names[i] == NOISE, -counts[i], names[i]))
    return [(int(names[i]), rows[i]) for i in order]
