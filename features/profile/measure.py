"""Profiles of clusters: size, depth, tokens and their kinds, attention, confidence, samples in texts (PLS §4.3).

Labels are the rows of the table `labels` of `features.cluster`, in the order of the features. Distances are Euclidean
between standardised features, (x − mean) / sd over all tokens of the table; constant features are ignored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from streamscope.cli.disk import sha256
from streamscope.cli.errors import InputError, reading
from streamscope.cli.terminal import counted
from streamscope.features.cluster import Cluster
from streamscope.features.cluster.measure import PLACE, TABLE, fingerprint, unclustered_labels, units_of
from streamscope.features.extract import Feature
from streamscope.features.extract.measure import TOKEN
from streamscope.features.profile import Profile, token_kinds
from streamscope.features.profile.contexts import Contexts, visible
from streamscope.features.store import KEY, Features
from streamscope.features.tables import FeatureTables, OpenFeatures
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import NUMBERS, Estimates, Measure, Observations, each
from streamscope.instruments.result import Result
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key, number, read_parquet

DEPTH = Measure(name="k*", unit="layers", resolution=1e-9, limits=(0.0, np.inf))
DISTANCE = Measure(name="distance to the centre", unit="sds of the features", resolution=1e-6, limits=(0.0, np.inf))
P = 0.05  # kinds of tokens with a larger corrected p are not listed
HEADS = 4  # heads listed per cluster
TEXTS = 4  # tokens and predictions listed per cluster
NOISE = -1
TOP = 8  # number of tokens and predictions listed per cluster
MEANS = {"head activation": "head_act", "head top-k": "topk", "trajectory": "traj_prob", "core": ""}
"""Component -> prefix of the features whose means are in the profile; top-k features only at rank 1."""
OWN_TOKEN = ("token_id", "token")  # columns of own labels that must equal those of the features


def observe(options: Profile, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: clusters, noise (−1) last. Units: documents, with Σ k* of their tokens in the cluster."""
    opened: OpenFeatures = data[FeatureTables]
    features = opened.found
    result = None if options.clusters is None else read_clusters(options.clusters, opened)
    if options.labels is None:
        result = result or Cluster(umap=options.umap).measure(model, opened, progress=progress)
        labels, about, names, words = result.table("labels").frame, result.about["clusters"], None, ""
    else:
        cluster, names, words = read_labels(options.labels, features)
        labels = unclustered_labels(features, options.umap) if result is None else result.table("labels").frame
        labels = labels.assign(cluster=cluster, probability=np.float32(1))
        about = {"method": "own labels", "labels": str(options.labels), "sha256": sha256(options.labels),
                 "names": list(names), "files": [str(path) for path in opened.files]}  # fmt: skip
    files = [str(path) for path in opened.files[1:] and opened.files]
    z = standardised(features.X)
    far = centre_distance(z, labels["cluster"].to_numpy())
    table, kinds = profiles(features, labels, far, files)
    sample_rows = samples(
        features, labels, z, far, files, representative=options.representative, diverse=options.diverse
    )
    clusters = table["cluster"]
    title = f"{features.about['preset']}: {counted(len(labels), 'token', ',')} in "
    title += counted((clusters >= 0).sum(), "cluster") + (f"; {words}" if words else "")
    contexts = Contexts(features)
    tokens = labels[[column.name for column in TOKENS if column.name in labels]]
    tokens = tokens.assign(text=[contexts.at(row).marked() for row in range(len(labels))])
    measurements = InstrumentData(
        about={"clusters": about, "model": f"{features.about['preset']} ({features.about['run']})", "title": title},
        extra=(table, kinds, sample_rows, tokens, features.columns, names),
    )
    cells, sums = clusters.to_frame("cluster"), _sums(labels, clusters, labels["k_star"].to_numpy(float))
    measurements.add(DEPTH, cells, *sums, block="depth", quantity="depth_mean", null=None)
    reasons = ["no other cluster" if (clusters.drop(i) < 0).all() else "" for i in range(len(clusters))]
    levels, differences = each("distance", cells, null=None), each("farther", cells, null=None, missing=reasons)
    differences = [replace(c, weights={**c.weights, len(levels) + i: -1.0}) for i, c in enumerate(differences)]
    measurements.blocks["distance"] = distances(labels, far, clusters)
    measurements.contrasts["distance"] = levels + differences
    return measurements


def tables(options: Profile, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per cluster; kinds of tokens; samples; and every token in its text."""
    table, kinds, sample_rows, tokens, features, names = data.extra
    title, by_name = data.about["title"], {feature.name: feature for feature in features}
    wide, missing = estimates["depth"].wide(["cluster"], describe=NUMBERS[1:4])
    wide = wide.drop(columns=["n", "clusters"])
    far, lost = estimates["distance"].wide(["cluster"], describe=NUMBERS[2:4])
    far.insert(1, "tokens", table["n"].to_numpy())
    table = table.merge(wide, on="cluster", validate="1:1").assign(**descriptions(table, kinds))
    if names is not None:
        table, kinds, sample_rows, tokens, far = (
            with_labels(frame, names) for frame in (table, kinds, sample_rows, tokens, far)
        )
    columns = (*_columns_in(PROFILES, table), *means(table, by_name))
    return {
        "profiles": Table(table, columns, missing, title, "n", 15),
        "distances": Table(far, _columns_in(DISTANCES, far), lost, f"{title}; distances to the centre", "tokens", 15),
        "kinds": Table(
            kinds, _columns_in(KINDS, kinds), {}, "Kinds of tokens inside and outside each cluster", "log_odds"
        ),
        "samples": LongTable.of(
            [sample_rows], _columns_in(SAMPLES, sample_rows), "Sample tokens of each cluster", most=23
        ),
        "tokens": LongTable.of([tokens], _columns_in(TOKENS, tokens), title),
    }


def read_clusters(path: Path, opened: OpenFeatures) -> Result:
    """The clusters at `path`. Raises `InputError` for a result of another kind or of other features."""
    result = Result.load(path)
    of = result.about.get("clusters")
    if result.about.get("instrument") != "cluster" or of is None:
        raise InputError(f"{path} is a result of {result.about.get('instrument')}, not of features.cluster")
    if of["sha256"] != fingerprint(opened.found):
        sources = " ".join(of["files"]) or "features extracted at that time"
        raise InputError(
            f"{path} holds clusters of other features ({sources}) than {opened.where}, or in another order"
        )
    return result


def read_labels(path: Path, features: Features) -> tuple[np.ndarray, tuple[str, ...], str]:
    """(cluster [n] of each token of `features`, numbered by size, −1 for none; the label of each cluster; words for the
    title) from the labels at `path`: parquet with the columns document, position (numbered as in the table, or by
    `features.cluster` for several tables), label, and perhaps token or token_id. Tokens without a label (null and −1
    mean none) are noise, labels without a token are left out; both are counted.

    Raises `InputError` for a file of another form, a token with two labels, labels that match no token, and labels
    whose tokens differ from the table's.
    """
    with reading(path, "--labels is parquet with the columns document, position, label"):
        present = pq.read_schema(path).names
    if lacks := [name for name in (*KEY, "label") if name not in present]:
        raise InputError(
            f"{path} lacks the column {lacks[0]!r}, it has {', '.join(present)}; it needs {', '.join(KEY)}, label"
        )
    table = read_parquet(path, [name for name in (*KEY, "label", *OWN_TOKEN) if name in present]).to_pandas()
    for name in KEY:
        if table[name].isna().any() or not pd.api.types.is_integer_dtype(table[name]):
            raise InputError(f"{path}: {name} must be whole numbers, as in the feature table")
    tokens = features.table[[*KEY, *OWN_TOKEN]]
    if (twice := table[table.duplicated(KEY)]).size:
        document, position = twice[KEY].iloc[0]
        raise InputError(f"{path}: document {document}, position {position} has two labels; give each token one")
    matches = tokens.merge(table, on=KEY, suffixes=("", " there"))
    if matches.empty:
        there, here = (f"{frame['document'].min()} to {frame['document'].max()}" for frame in (table, tokens))
        raise InputError(
            f"{path}: no label matches a token of these features (documents {there} there, {here} here); number "
            "documents and positions as in the feature table"
        )
    for name in table.columns.intersection(OWN_TOKEN):
        if (mismatches := matches[matches[name] != matches[f"{name} there"]]).size:
            row = mismatches.astype(object).iloc[0]
            raise InputError(
                f"{path} belongs to other data: {name} of document {row['document']}, position {row['position']} is "
                f"{row[f'{name} there']!r} there, {row[name]!r} in the features"
            )
    table["label"] = _texts(table["label"], path)
    of = tokens[KEY].merge(table, "left", KEY)["label"]
    if of.isna().all():
        raise InputError(f"{path}: every label is null or −1; give at least one")
    counts = of.value_counts()
    names = sorted(counts.index, key=lambda name: (-counts[name], name))
    cluster = of.map({name: i for i, name in enumerate(names)}).fillna(NOISE).astype("int32").to_numpy()
    lost = len(table) - len(matches)
    title = f"labels of {path.name}: {int((cluster < 0).sum()):,} of {len(of):,} tokens have no label, "
    return cluster, tuple(names), f"{title}{lost:,} of {len(table):,} labels have no token"


def _texts(labels: pd.Series, path: Path) -> list[str | None]:
    """Labels as text; None for null and −1."""
    if pd.api.types.is_float_dtype(labels) and (labels.dropna() % 1 == 0).all():  # whole numbers with nulls
        labels = labels.astype("Int64")
    elif not (pd.api.types.is_integer_dtype(labels) or all(isinstance(x, str) for x in labels.dropna())):
        raise InputError(f"{path}: labels must be text or whole numbers, not {labels.dtype}")
    return [None if pd.isna(x) or str(x) == str(NOISE) else str(x) for x in labels]


def with_labels(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The table with a column for the label of each cluster."""
    label = [names[cluster] if cluster >= 0 else "" for cluster in table["cluster"]]
    result = table.copy()
    result.insert(result.columns.get_loc("cluster") + 1, "label", label)
    return result


def _sums(labels: pd.DataFrame, clusters: pd.Series, values: np.ndarray) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Units (documents), and Σ values and counts [clusters, documents] over the tokens of each cluster and document."""
    units, of = units_of(labels)
    index = (pd.Index(clusters).get_indexer(labels["cluster"]), of)
    total, size = np.zeros((2, len(clusters), len(units)))
    np.add.at(total, index, values)
    np.add.at(size, index, 1)
    return units, total, size


def distances(labels: pd.DataFrame, far: np.ndarray, clusters: pd.Series) -> Observations:
    """Σ distance to the centre of the token's cluster, per document: in each cluster, then in all other clusters
    without noise. Their difference compares documents that hold tokens of both."""
    units, total, size = _sums(labels, clusters, far)
    others = (clusters >= 0).to_numpy() & ~np.eye(len(clusters), dtype=bool)
    total, size = (np.concatenate([sums, others @ sums]) for sums in (total, size))
    cells = pd.DataFrame({"cluster": [*clusters, *clusters], "others": np.repeat([False, True], len(clusters))})
    return Observations(measure=DISTANCE, cells=cells, units=units, total=total, size=size)


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
    members = token_kinds.kinds(
        table["token"].tolist(), previous_tokens, next_tokens, (table["position"] == 0).to_numpy()
    )
    return ordered, token_kinds.enrichment(clusters, members)


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


def descriptions(table: pd.DataFrame, kinds: pd.DataFrame) -> dict[str, list[str]]:
    """Text columns per cluster: frequent tokens and predictions, kinds of tokens, heads that differ most."""
    mean = table.filter(like="mean_")
    overall = mean.mul(table["n"], axis=0).sum() / table["n"].sum()
    by = dict(list(kinds.groupby("cluster")))
    return {
        "top_tokens": [_frequent(text) for text in table["tokens"]],
        "top_predictions": [_frequent(text) for text in table["predictions"]],
        "more_or_fewer": [_kinds(by.get(cluster, kinds[:0])) for cluster in table["cluster"]],
        "heads": [_heads(row, overall) for _, row in table.iterrows()],
    }


def _frequent(text: str) -> str:
    entries = list(json.loads(text).items())[:TEXTS]
    return ", ".join(f"`{token}` {share:.0%}" for token, share in entries if share >= 0.005) or "all rare"


def _kinds(kinds: pd.DataFrame) -> str:
    sure = kinds[kinds["p_holm"] < P]
    parts = []
    for name, rows in (("more", sure[sure["log_odds"] > 0]), ("fewer", sure[sure["log_odds"] < 0])):
        texts = [
            f"{token_kinds.NAMES[r['kind']]} {r['share']:.0%} ({r['share_elsewhere']:.0%})"
            for r in rows.to_dict("records")
        ]
        parts += [f"{name}: {', '.join(texts)}"] if texts else []
    return "; ".join(parts)


def _heads(row: pd.Series, overall: pd.Series) -> str:
    """Heads whose attention differs most from that over all tokens, as "L5.H4 at k*" (mean_head_act_stable_L5H4)."""
    names = [name for name in overall.index if name.startswith(("mean_head_act_", "mean_topk_"))]
    order = sorted(names, key=lambda name: -abs(row[name] - overall[name]))[:HEADS]
    return ", ".join(
        re.sub(r".*_(L\d+)(H\d+).*", r"\1.\2", name)
        + f" at {'k*' if '_stable_' in name else 'the end'} {row[name]:.2f} ({overall[name]:.2f})"
        for name in order
    )


def _columns_in(columns: Sequence[Column], frame: pd.DataFrame) -> tuple[Column, ...]:
    return tuple(column for column in columns if column.name in frame)


def means(table: pd.DataFrame, features: Mapping[str, Feature]) -> tuple[Column, ...]:
    names = [name.removeprefix("mean_") for name in table if name.startswith("mean_")]
    return tuple(Column(name=f"mean_{name}", title=name, unit=features[name].unit, format=".4g", shown=False,
                        doc=f"mean over the cluster of {features[name].formula}", source=features[name].source)
                 for name in names)  # fmt: skip


CLUSTER = key("cluster", "cluster", "number of the cluster, −1 for noise", "cluster", "d")
LABEL = key("label", "label", "your own label of the cluster", "label")
TEXT = key("text", "text", "the token in brackets ⟦ ⟧ with the text around it", "text")
FILE = key("file", "file", "table of the token", "table", shown=False)
PROFILES: tuple[Column, ...] = (
    CLUSTER,
    LABEL,
    number("n", "tokens", "tokens", "tokens in the cluster", ",.0f"),
    number("share", "share of tokens", "share of all tokens", "tokens in the cluster", ".3f"),
    number("documents", "documents", "documents", "documents with a token of the cluster", ",.0f"),
    *described("depth_mean", "mean k*", "layers", "mean over the tokens; interval over documents", format=".2f",
               sd="documents"),
    number("depth_sd", "σ(k*)", "layers", "standard deviation of k* over the tokens", ".2f"),
    number("radius", "radius", "sds of the features", "rms distance to the centre", ".3f", False),
    number("probability", "probability", "mean λ/λ_max", "mean membership of its tokens", ".3f", False),
    key("tokens", "tokens, JSON", "the most frequent tokens with their shares", "shares", shown=False),
    key("predictions", "predictions, JSON", "the most frequent predictions with their shares", "shares", shown=False),
    key("files", "files, JSON", "share of its tokens from each table", "shares", shown=False),
    number("top_tokens", "frequent tokens", "share of the cluster", "the most frequent tokens", ""),
    number("top_predictions", "frequent predictions", "share of the cluster", "the most frequent predictions", ""),
    key("more_or_fewer", "kinds of tokens", f"over- and under-represented kinds with corrected p < {P:g}",
        "share (share elsewhere)"),
    key("heads", "distinctive heads", "heads that differ most from all tokens",
        "mean largest attention weight (over all tokens)"),
)  # fmt: skip
DISTANCES = (
    CLUSTER,
    LABEL,
    number("tokens", "tokens", "tokens", "tokens in the cluster", ",.0f"),
    *described("distance", "distance", "sds of the features", "mean distance to the centre", format=".2f",
               source="PLS C.5"),
    *described("farther", "distance − others", "sds of the features",
               "distance − that in the other clusters, in documents with tokens of both", format="+.2f",
               source="PLS C.5"),
    *counts("documents", "documents"),
)  # fmt: skip
KINDS: tuple[Column, ...] = (
    CLUSTER,
    LABEL,
    key("kind", "kind of token", "kind of token (`token_kinds`)"),
    number("n", "tokens", "tokens", "tokens in the cluster", ",.0f"),
    number("k", "of this kind", "tokens", "tokens of the kind in the cluster", ",.0f", False),
    number("share", "share", "share of the cluster's tokens", "tokens of the kind in the cluster", ".3f"),
    number("share_elsewhere", "share elsewhere", "share of the other tokens", "tokens of the kind elsewhere", ".3f"),
    number("log_odds", "log-odds", "nats", "odds of the kind inside over outside (`enrichment`)", "+.2f"),
    number("p", "p", "probability", "two-sided hypergeometric test; assumes independent tokens", "p", False),
    number("p_holm", "p, Holm", "probability", "p, corrected over clusters and kinds", "p"),
)
SAMPLES: tuple[Column, ...] = (
    CLUSTER,
    LABEL,
    key("kind", "kind", "representative (nearest to the centre) or diverse (farthest point)"),
    key("rank", "rank", "rank of the sample, from 1", "rank", "d"),
    number("distance", "distance", "sds of the features", "distance to the centre of the cluster", ".3f", False),
    number("k_star", "k*", "layers", "layers until the prediction is final", ".0f"),
    *(replace(column, shown=False) for column in TOKEN),
    FILE,
    key("left", "text before", "text before the token", "text", shown=False),
    key("right", "text after", "text after the token", "text", shown=False),
    TEXT,
    number("prediction_text", "prediction", "text", "argmax of the final layer, on one line", ""),
)
TOKENS: tuple[Column, ...] = (
    TABLE,
    *(column for column in TOKEN if column.name in ("document", "position", "prediction")),
    CLUSTER,
    LABEL,
    number("k_star", "k*", "layers", "layers until the prediction is final", ".0f"),
    *PLACE,
    TEXT,
)
