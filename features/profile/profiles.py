"""Profiles of clusters: size, depth, tokens and their kinds, attention, confidence, samples in their texts (PLS §4.3).

Reads the tables of `features.extract` and `features.cluster`; the command is `features.profile`.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamscope.features.cluster.measure import fingerprint
from streamscope.features.profile.contexts import Contexts, visible
from streamscope.features.profile.enrichment import enrichment
from streamscope.features.profile.samples import Scale, farthest_points, from_centre, nearest
from streamscope.features.profile.token_kinds import kinds
from streamscope.features.schema import Feature
from streamscope.features.store import KEY, Features, read_about_of, read_features
from streamscope.models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

NOISE = -1
TOP = 8
"""Tokens and predictions listed per cluster."""
MEANS = {"head activation": "head_act", "head top-k": "topk", "trajectory": "traj_prob", "core": ""}
"""Component -> how the names of the features begin whose means are in the profile; top-k only of rank 1."""
UNITS = {
    "n": "tokens", "share": "of all tokens", "documents": "with a token of the cluster", "depth_mean": "layers, k*",
    "depth_sd": "layers, k*", "probability": "mean membership", "radius": "rms distance to the centre, sds",
}  # fmt: skip


@dataclass(frozen=True)
class Clustered:
    """Features with a label per row: rows in the order of the labels' file."""

    features: Features
    labels: "pd.DataFrame"
    """document, position, k_star, cluster, probability; x and y where there is a map."""
    left_out: int
    """Rows of the features without a label."""
    about: dict[str, Any]
    """Of the labels' file."""
    files: tuple[str, ...] = ()
    """Names of the tables by their number in the column `file`; none where there is one table."""


def read_clusters(features: Path | Sequence[Path], labels: Path) -> Clustered:
    """Features, of one table or several in their order, and labels of the same tokens.

    Raises `InputError` for files of another kind, labels made from other features, labels without a row of features.
    """
    import pandas as pd

    paths = [features] if isinstance(features, Path) else list(features)
    named = " ".join(map(str, paths))
    if not labels.exists():
        raise InputError(f"{labels} does not exist; python -m features.cluster --features {named} writes one")
    about = read_about_of(labels, "clusters")
    found = read_features(paths)
    if about["sha256"] != fingerprint(found):
        theirs = " ".join(about["files"]) or "features that were extracted then"
        raise InputError(f"{labels} are clusters of other features ({theirs}) than {named}, or in another order")
    table = pd.read_parquet(labels)
    missing = [name for name in (*KEY, "k_star", "cluster") if name not in table]
    if missing:
        raise InputError(f"{labels}: column {missing[0]} is missing; cluster again")
    if twice := int(table.duplicated(KEY).sum()):
        raise InputError(f"{labels}: {twice} tokens occur twice; cluster again")
    rows = found.table[KEY].assign(row=np.arange(len(found.table))).merge(table, on=KEY)
    if len(rows) < len(table):
        raise InputError(f"{len(table) - len(rows)} of {len(table)} labels have no row in {named}; cluster again")
    files = tuple(about["files"]) if len(paths) > 1 else ()
    return Clustered(found, rows, len(found.table) - len(rows), about, files)


def profiles(clustered: Clustered) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """One row per cluster, largest first, noise (−1) last; and the kinds of tokens of each (`enrichment`).

    Columns cluster, those of `UNITS`, `tokens` and `predictions` (the most frequent, with shares, JSON), `files` (which
    of several tables, alike), `mean_NAME` of head activations, layer probabilities and core features.
    """
    import pandas as pd

    labels, found = clustered.labels, clustered.features
    at, clusters = labels["row"].to_numpy(), labels["cluster"].to_numpy()
    table, depth = found.table.iloc[at].reset_index(drop=True), labels["k_star"].to_numpy(float)
    columns, x = profiled(found.columns), found.X[at]
    values, scale = table[[column.name for column in columns]].to_numpy(float), Scale.of(x)
    rows = []
    for cluster, index in _members(clusters):
        mine = table.iloc[index]
        row: dict[str, Any] = {"cluster": cluster, "n": len(index), "share": len(index) / len(labels)}
        row["documents"] = mine["document"].nunique()
        row |= {"depth_mean": depth[index].mean(), "depth_sd": depth[index].std()}
        row["radius"] = float(np.sqrt(np.square(from_centre(scale.standardised(x[index]))).mean()))
        if "probability" in labels:
            row["probability"] = labels["probability"].to_numpy(float)[index].mean()
        for name in ("token", "prediction"):
            row[f"{name}s"] = json.dumps(most_common(mine[name]), ensure_ascii=False)
        if clustered.files:
            row["files"] = json.dumps(most_common(mine["file"].map(dict(enumerate(clustered.files)))))
        rows.append(row | {f"mean_{c.name}": m for c, m in zip(columns, values[index].mean(0), strict=True)})
    before, after = (v[at].tolist() for v in Contexts(found.table).neighbours())
    members = kinds(table["token"].tolist(), before, after, (table["position"] == 0).to_numpy())
    return pd.DataFrame(rows), enrichment(clusters, members)


def samples(clustered: Clustered, *, representative: int = 8, diverse: int = 15) -> "pd.DataFrame":
    """Tokens that stand for each cluster, in their texts: nearest to the centre, and by farthest point.

    Columns cluster, kind (representative or diverse), rank from 1, distance to the centre (sds of the features),
    k_star, document, position, token, prediction, target, left and right (the text around the token), and `file` where
    there are several tables.
    """
    import pandas as pd

    labels, found = clustered.labels, clustered.features
    at = labels["row"].to_numpy()
    x = found.X[at]
    scale, contexts = Scale.of(x), Contexts(found.table)
    rows, chosen = [], []
    for cluster, index in _members(labels["cluster"].to_numpy()):
        z = scale.standardised(x[index])
        distance = from_centre(z)
        for kind, some in (("representative", nearest(z, representative)), ("diverse", farthest_points(z, diverse))):
            chosen += index[some].tolist()
            rows += [(cluster, kind, rank, distance[i]) for rank, i in enumerate(some, 1)]
    table = pd.DataFrame(rows, columns=["cluster", "kind", "rank", "distance"])
    table["k_star"] = labels["k_star"].to_numpy()[chosen]
    table = table.join(found.table.iloc[at[chosen]][[*KEY, "token", "prediction", "target"]].reset_index(drop=True))
    if clustered.files:
        table["file"] = np.array(clustered.files)[found.table["file"].to_numpy()[at[chosen]]]
    texts = [contexts.at(row) for row in at[chosen].tolist()]
    return table.assign(left=[text.left for text in texts], right=[text.right for text in texts])


def profiled(columns: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The features whose means are in a profile."""
    return tuple(
        c for c in columns
        if not c.constant and c.name.startswith(MEANS.get(c.component, "\0")) and c.rank in (None, 1)
    )  # fmt: skip


def most_common(texts: "pd.Series", top: int = TOP) -> dict[str, float]:
    """The most frequent texts, as they are shown, with their shares; ties in the order of the alphabet."""
    counts = Counter(map(visible, texts))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top]
    return {text: round(n / len(texts), 4) for text, n in ordered}


def _members(clusters: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(cluster, its rows), largest first, noise last."""
    names, codes, counts = np.unique(clusters, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    order = sorted(range(len(names)), key=lambda i: (names[i] == NOISE, -counts[i], names[i]))
    return [(int(names[i]), rows[i]) for i in order]
