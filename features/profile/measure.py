"""Descriptions of clusters: their tokens, processing depth, heads, and samples in their texts."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
from streamscope.features.profile import Profile
from streamscope.features.profile.contexts import Contexts
from streamscope.features.profile.profiles import NOISE, centre_distance, profiles, samples, standardised
from streamscope.features.profile.token_kinds import NAMES
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
OWN_TOKEN = ("token_id", "token")  # columns of own labels that must equal those of the features


def observe(options: Profile, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: clusters, noise (−1) last. Units: documents, with Σ k* of their tokens in the cluster."""
    opened: OpenFeatures = data[FeatureTables]
    features = opened.found
    result = None if options.clusters is None else read_clusters(options.clusters, opened)
    if options.labels is None:
        result = result or Cluster(umap=options.umap).measure(model, opened, progress=progress)
        labels, about, own_labels = result.table("labels").frame, result.about["clusters"], None
    else:
        own_labels = read_labels(options.labels, features)
        labels = unclustered_labels(features, options.umap) if result is None else result.table("labels").frame
        labels = labels.assign(cluster=own_labels.cluster, probability=np.float32(1))
        about = {"method": "own labels", "labels": str(options.labels), "sha256": sha256(options.labels),
                 "names": list(own_labels.names), "files": [str(path) for path in opened.files]}  # fmt: skip
    files = [str(path) for path in opened.files[1:] and opened.files]
    z = standardised(features.X)
    far = centre_distance(z, labels["cluster"].to_numpy())
    table, kinds = profiles(features, labels, far, files)
    sample_rows = samples(
        features, labels, z, far, files, representative=options.representative, diverse=options.diverse
    )
    clusters = table["cluster"]
    title = f"{features.about['preset']}: {counted(len(labels), 'token', ',')} in "
    title += counted((clusters >= 0).sum(), "cluster") + ("" if own_labels is None else f"; {own_labels.title}")
    contexts = Contexts(features)
    tokens = labels[[column.name for column in TOKENS if column.name in labels]]
    tokens = tokens.assign(text=[contexts.at(row).marked() for row in range(len(labels))])
    measurements = InstrumentData(
        about={"clusters": about, "model": f"{features.about['preset']} ({features.about['run']})", "title": title},
        extra=(table, kinds, sample_rows, tokens, features.columns, own_labels and own_labels.names),
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


class OwnLabels(NamedTuple):
    """Labels for the tokens of a feature table."""

    cluster: np.ndarray
    """[n] cluster of each token, numbered by size; −1 for none."""
    names: tuple[str, ...]
    """The label of each cluster."""
    title: str
    """The labels' source, and how many tokens and labels did not match."""


def read_labels(path: Path, features: Features) -> OwnLabels:
    """The labels at `path` for the tokens of `features`: parquet with the columns document, position (numbered as in
    the table, or by `features.cluster` for several tables), label, and perhaps token or token_id. Tokens without a
    label (null and −1 mean none) are noise, labels without a token are left out; both are counted.

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
    return OwnLabels(cluster, tuple(names), f"{title}{lost:,} of {len(table):,} labels have no token")


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
    in_cluster = (clusters >= 0).to_numpy()
    masks = [in_cluster & (np.arange(len(clusters)) != i) for i in range(len(clusters))]
    total, size = (np.concatenate([sums, np.stack([sums[mask].sum(0) for mask in masks])]) for sums in (total, size))
    cells = pd.DataFrame({"cluster": [*clusters, *clusters], "others": np.repeat([False, True], len(clusters))})
    return Observations(measure=DISTANCE, cells=cells, units=units, total=total, size=size)


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
        texts = [f"{NAMES[r['kind']]} {r['share']:.0%} ({r['share_elsewhere']:.0%})" for r in rows.to_dict("records")]
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
