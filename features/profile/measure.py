"""Clusters described: which tokens they hold, how deep, which heads are at work, and samples in their texts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.user_code import digest
from streamscope.features.cluster import Cluster
from streamscope.features.cluster.measure import fingerprint, placed
from streamscope.features.extract.measure import TOKEN
from streamscope.features.profile import Profile
from streamscope.features.profile.contexts import Contexts
from streamscope.features.profile.own_labels import named, read_labels
from streamscope.features.profile.profiles import profiles, samples
from streamscope.features.profile.samples import Scale, from_centre
from streamscope.features.profile.token_kinds import NAMES
from streamscope.features.schema import Feature
from streamscope.features.store import Features
from streamscope.features.tables import FeatureTables, OpenFeatures
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import NUMBERS, Contrast, Estimates, Measure, Observations
from streamscope.instruments.result import Result
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key

DEPTH = Measure(name="k*", unit="layers", resolution=1e-9)
DISTANCE = Measure(name="distance to the centre", unit="sds of the features", resolution=1e-6)
P = 0.05
"""Kinds of tokens with a corrected p above this are not named."""
HEADS = 4
"""Heads named per cluster."""
TEXTS = 4
"""Tokens and predictions named per cluster."""


def observe(how: Profile, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: clusters, noise (−1) last; units: documents, Σ k* over tokens."""
    opened: OpenFeatures = data[FeatureTables]
    found = opened.found
    result = None if how.clusters is None else read_clusters(how.clusters, opened)
    if how.labels is None:
        result = result or Cluster(umap=how.umap).measure(model, opened, progress=progress)
        labels, about, own = result.table("labels").frame, result.about["clusters"], None
    else:
        own = read_labels(how.labels, found)
        labels = placed(found, how.umap) if result is None else result.table("labels").frame
        labels = labels.assign(cluster=own.cluster, probability=np.float32(1))
        about = {"method": "labels of one's own", "labels": str(how.labels), "sha256": digest(how.labels),
                 "names": list(own.names), "files": [str(path) for path in opened.files]}  # fmt: skip
    files = [str(path) for path in opened.files[1:] and opened.files]
    table, kinds = profiles(found, labels, files)
    some = samples(found, labels, files, representative=how.representative, diverse=how.diverse)
    far = distances(found, labels, table["cluster"])
    block = depth(labels, table["cluster"])
    title = f"{found.about['preset']}: {len(labels):,} tokens in {(table['cluster'] >= 0).sum()} clusters"
    title += "" if own is None else f"; {own.title}"
    return InstrumentData(
        {"depth": block, "distance": far},
        {"depth": [
            Contrast(quantity="depth_mean", weights={i: 1.0}, labels=cell, null=None)
            for i, cell in enumerate(block.cells.to_dict("records"))
        ], "distance": [
            one for i, cluster in enumerate(table["cluster"]) for one in (
                Contrast(quantity="distance", weights={i: 1.0}, labels={"cluster": cluster}, null=None),
                Contrast(quantity="farther", weights={i: 1.0, len(table) + i: -1.0}, labels={"cluster": cluster},
                         null=None, missing="no other cluster" if (table["cluster"].drop(i) < 0).all() else ""),
            )
        ]},
        {"clusters": about, "model": f"{found.about['preset']} ({found.about['run']})",
         "title": title},
        extra=(table, kinds, some, in_texts(opened, labels), found.columns, own and own.names),
    )  # fmt: skip


def tables(how: Profile, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """A row per cluster; kinds of tokens, samples, and every token in its text."""
    table, kinds, some, tokens, features, names = seen.extra
    title, known = seen.about["title"], {one.name: one for one in features}
    wide, missing = estimates["depth"].wide(["cluster"], describe=NUMBERS[1:4])
    wide = wide.drop(columns=["n", "clusters"])
    far, lost = estimates["distance"].wide(["cluster"], describe=NUMBERS[2:4])
    far.insert(1, "tokens", table["n"].to_numpy())
    table = table.merge(wide, on="cluster", validate="1:1").assign(**words(table, kinds))
    if names is not None:
        table, kinds, some, tokens, far = (named(one, names) for one in (table, kinds, some, tokens, far))
    columns = (*_there(PROFILES, table), *means(table, known))
    return {
        "profiles": Table(table, columns, missing, title, "n", 15),
        "distances": Table(far, _there(DISTANCES, far), lost, f"{title}; distances to the centre", "tokens", 15),
        "kinds": Table(kinds, _there(KINDS, kinds), {}, "kinds of tokens, in a cluster and elsewhere", "log_odds"),
        "samples": LongTable.of([some], _there(SAMPLES, some), "tokens that stand for the clusters", most=23),
        "tokens": LongTable.of([tokens], _there(TOKENS, tokens), title),
    }


def read_clusters(path: Path, opened: OpenFeatures) -> Result:
    """Clusters of the features that are open. Raises `InputError` for another result, and for other features."""
    result = Result.load(path)
    of = result.about.get("clusters")
    if result.about.get("instrument") != "cluster" or of is None:
        raise InputError(f"{path} is no result of features.cluster, but of {result.about.get('instrument')}")
    if of["sha256"] != fingerprint(opened.found):
        theirs = " ".join(of["files"]) or "features that were extracted then"
        raise InputError(f"{path} are clusters of other features ({theirs}) than {opened.where}, or in another order")
    return result


def depth(labels: pd.DataFrame, clusters: pd.Series) -> Observations:
    """Σ k* over the tokens of a document that are in a cluster."""
    documents, of = np.unique(labels["document"].to_numpy(), return_inverse=True)
    at = (pd.Index(clusters).get_indexer(labels["cluster"]), of)
    total, size = np.zeros((2, len(clusters), len(documents)))
    np.add.at(total, at, labels["k_star"].to_numpy(float))
    np.add.at(size, at, 1)
    return Observations(
        measure=DEPTH, cells=pd.DataFrame({"cluster": clusters.to_numpy()}),
        units=pd.DataFrame({"unit": [str(d) for d in documents], "cluster": documents}),
        total=total, size=size,
    )  # fmt: skip


def distances(found: Features, labels: pd.DataFrame, clusters: pd.Series) -> Observations:
    """Σ distance to the centre of the token's cluster over the tokens of a document: in each cluster, then in all
    clusters but that one, noise left out; a difference of the two is of the documents that hold tokens of both."""
    cluster, x = labels["cluster"].to_numpy(), found.X
    scale, far = Scale.of(x), np.zeros(len(labels))
    for one in clusters:
        inside = np.flatnonzero(cluster == one)
        far[inside] = from_centre(scale.standardised(x[inside]))
    documents, of = np.unique(labels["document"].to_numpy(), return_inverse=True)
    at = (pd.Index(clusters).get_indexer(cluster), of)
    total, size = np.zeros((2, len(clusters), len(documents)))
    np.add.at(total, at, far)
    np.add.at(size, at, 1)
    held = (clusters >= 0).to_numpy()
    others = [held & (np.arange(len(clusters)) != i) for i in range(len(clusters))]
    total, size = (np.concatenate([one, np.stack([one[some].sum(0) for some in others])]) for one in (total, size))
    cells = pd.DataFrame({"cluster": [*clusters, *clusters], "others": np.repeat([False, True], len(clusters))})
    return Observations(
        measure=DISTANCE, cells=cells,
        units=pd.DataFrame({"unit": [str(d) for d in documents], "cluster": documents}),
        total=total, size=size,
    )  # fmt: skip


def in_texts(opened: OpenFeatures, labels: pd.DataFrame) -> pd.DataFrame:
    """Every token in its text, with its cluster, k*, and place on the map where there is one."""
    contexts = Contexts(opened.found.table)
    names = [one.name for one in TOKENS if one.name in labels and one.name != "text"]
    return labels[names].assign(text=[contexts.at(row).marked() for row in range(len(labels))])


# ---- words -------------------------------------------------------------------------------------


def words(table: pd.DataFrame, kinds: pd.DataFrame) -> dict[str, list[str]]:
    """What is shown of each row: frequent tokens and predictions, kinds of tokens, heads that differ most."""
    mean = table.filter(like="mean_")
    overall = mean.mul(table["n"], axis=0).sum() / table["n"].sum()
    by = dict(list(kinds.groupby("cluster")))
    return {
        "top_tokens": [_shares(text) for text in table["tokens"]],
        "top_predictions": [_shares(text) for text in table["predictions"]],
        "more_or_fewer": [_kinds(by.get(cluster, kinds[:0])) for cluster in table["cluster"]],
        "heads": [_heads(row, overall) for _, row in table.iterrows()],
    }


def _shares(text: str) -> str:
    known = list(json.loads(text).items())[:TEXTS]
    return ", ".join(f"`{token}` {share:.0%}" for token, share in known if share >= 0.005) or "all rare"


def _kinds(kinds: pd.DataFrame) -> str:
    sure = kinds[kinds["p_holm"] < P]
    found = []
    for name, rows in (("more", sure[sure["log_odds"] > 0]), ("fewer", sure[sure["log_odds"] < 0])):
        each = [f"{NAMES[r['kind']]} {r['share']:.0%} ({r['share_elsewhere']:.0%})" for r in rows.to_dict("records")]
        found += [f"{name}: {', '.join(each)}"] if each else []
    return "; ".join(found)


def _heads(row: pd.Series, overall: pd.Series) -> str:
    """The heads whose attention differs most from that over all tokens: L5H4 at k*, of mean_head_act_stable_L5H4."""
    names = [name for name in overall.index if name.startswith(("mean_head_act_", "mean_topk_"))]
    order = sorted(names, key=lambda name: -abs(row[name] - overall[name]))[:HEADS]
    head = {name: next(part for part in name.split("_") if part[:1] == "L" and part[1:2].isdigit()) for name in order}
    return ", ".join(
        f"{head[name]} at {'k*' if '_stable_' in name else 'the end'} {row[name]:.2f} ({overall[name]:.2f})"
        for name in order
    )


# ---- columns -----------------------------------------------------------------------------------


def _there(columns: Sequence[Column], frame: pd.DataFrame) -> tuple[Column, ...]:
    """Those of the columns that the frame has."""
    return tuple(one for one in columns if one.name in frame)


def means(table: pd.DataFrame, features: Mapping[str, Feature]) -> tuple[Column, ...]:
    """Those of the means of features."""
    names = [name.removeprefix("mean_") for name in table if name.startswith("mean_")]
    return tuple(Column(name=f"mean_{name}", title=name, unit=features[name].unit, format=".4g", shown=False,
                        doc=f"mean over the cluster: {features[name].formula}", source=features[name].source)
                 for name in names)  # fmt: skip


def _number(name: str, title: str, unit: str, doc: str, format: str, shown: bool = False) -> Column:
    return Column(name=name, title=title, unit=unit, doc=doc, format=format, shown=shown)


CLUSTER = key("cluster", "cluster", "its number, −1 for tokens in none", "cluster", "d")
LABEL = key("label", "label", "its name, where the clusters are labels of one's own", "label")
TEXT = key("text", "text", "the token in brackets ⟦ ⟧, with what stands around it", "text")
FILE = _number("file", "file", "table", "that the token is from", "")
PROFILES: tuple[Column, ...] = (
    CLUSTER,
    LABEL,
    _number("n", "tokens", "tokens", "of the cluster", ",.0f", True),
    _number("share", "share", "share of all tokens", "of the cluster", ".3f", True),
    _number("documents", "documents", "documents", "with a token of the cluster", ",.0f", True),
    *described("depth_mean", "k*", "layers", "mean over the tokens; interval over documents", format=".2f",
               sd="documents"),
    _number("depth_sd", "σ(k*)", "layers", "standard deviation over the tokens", ".2f", True),
    _number("radius", "radius", "sds of the features", "rms distance to the centre", ".3f"),
    _number("probability", "probability", "mean λ/λ_max", "how deep in the cluster its tokens are", ".3f"),
    _number("tokens", "tokens, JSON", "shares", "the most frequent tokens with their shares", ""),
    _number("predictions", "predictions, JSON", "shares", "the most frequent predictions with their shares", ""),
    _number("files", "files, JSON", "shares", "which table tokens are from, with their shares", ""),
    _number("top_tokens", "tokens", "share of the cluster", "the most frequent ones", "", True),
    _number("top_predictions", "predictions", "share of the cluster", "the most frequent ones", "", True),
    _number("more_or_fewer", "kinds", "share (share elsewhere)", f"kinds of tokens with p, Holm, < {P:g}", "", True),
    _number("heads", "heads", "mean largest attention weight (over all tokens)", "those that differ most", "", True),
)  # fmt: skip
DISTANCES = (
    CLUSTER,
    LABEL,
    _number("tokens", "tokens", "tokens", "of the cluster", ",.0f", True),
    *described("distance", "distance", "sds of the features", "mean distance to the centre", format=".2f",
               source="PLS C.5"),
    *described("farther", "farther", "sds of the features", "distance − that in the other clusters, in documents that "
               "hold tokens of both", format="+.2f", source="PLS C.5"),
    *counts("documents", "documents"),
)  # fmt: skip
KINDS: tuple[Column, ...] = (
    CLUSTER,
    LABEL,
    key("kind", "kind", "of tokens (`token_kinds`)"),
    _number("n", "tokens", "tokens", "of the cluster", ",.0f", True),
    _number("k", "of the kind", "tokens", "of the cluster that are of this kind", ",.0f"),
    _number("share", "share", "share of the cluster's tokens", "that are of this kind", ".3f", True),
    _number("share_elsewhere", "elsewhere", "share of the other tokens", "that are of this kind", ".3f", True),
    _number("log_odds", "log-odds", "nats", "of the kind, inside over outside (`enrichment`)", "+.2f", True),
    _number("p", "p", "probability", "hypergeometric, two-sided; takes tokens as independent", "p"),
    _number("p_holm", "p, Holm", "probability", "p, corrected over clusters and kinds", "p", True),
)
SAMPLES: tuple[Column, ...] = (
    CLUSTER,
    LABEL,
    key("kind", "kind", "representative: nearest to the centre; diverse: by farthest point"),
    key("rank", "rank", "from 1", "rank", "d"),
    _number("distance", "distance", "sds of the features", "to the centre of the cluster", ".3f"),
    _number("k_star", "k*", "layers", "until the prediction is the final one", ".0f", True),
    *(_number(one.name, one.title, one.unit, one.doc, one.format) for one in TOKEN),
    FILE,
    _number("left", "left", "text", "before the token", ""),
    _number("right", "right", "text", "behind the token", ""),
    TEXT,
    _number("said", "prediction", "text", "the final layer's argmax", "", True),
)
TOKENS: tuple[Column, ...] = (
    key("file", "file", "place of its table among those that were given", "table", "d"),
    *(one for one in TOKEN if one.name in ("document", "position", "prediction")),
    CLUSTER,
    LABEL,
    _number("k_star", "k*", "layers", "until the prediction is the final one", ".0f", True),
    *(_number(name, name, "UMAP", "place on the map, for display", ".2f") for name in "xy"),
    TEXT,
)
