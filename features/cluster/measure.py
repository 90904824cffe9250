"""Tokens clustered by their features: labels, what clusters are like, agreement with other fits."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.disk import parse
from streamscope.cli.errors import InputError
from streamscope.features.cluster import Cluster
from streamscope.features.cluster.checks import agreement_table, apart, raw_rows_of, stability_table
from streamscope.features.cluster.description import RANGES, cluster_table, depth_ranges, depth_spread
from streamscope.features.cluster.modes import PCA, ComputationalModes
from streamscope.features.cluster.parts import other_way, parts_table
from streamscope.features.extract.measure import TOKEN
from streamscope.features.store import KEY, Features
from streamscope.features.tables import FeatureTables, OpenFeatures
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import NUMBERS, Contrast, Estimates, Measure, Observations, estimate
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key, quantity
from streamscope.models.tensors import read_tensors

SHARE = Measure(name="share of tokens", unit="share of the tokens", resolution=1e-9)
LARGEST = 15
"""Clusters on the screen."""


def observe(how: Cluster, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: in a cluster or not, and by k*; units: documents, tokens that are so over tokens."""
    opened: OpenFeatures = data[FeatureTables]
    found = opened.found
    if how.raw and len(how.raw) != len(opened.files):
        raise InputError(f"--raw: {len(how.raw)} files for {len(opened.files)} tables; give one for each")
    x, constant = varying(found)
    umap = _umap(how.seed) if how.umap else None
    if how.fitted is None:
        _enough(how, x)
        raw = raw_rows_of(how.raw, opened.files) if how.raw else None
        modes = clusterer(how).fit(x, progress=progress)
        labels = labels_of(found, modes.labels_, modes.probabilities_)
    else:
        raw, modes = None, read_modes(how.fitted, opened)
        x = found.table[list(modes.feature_names_in_)]
        labels = labels_of(found, *modes.predict_soft(x, progress=progress))
    z, vector = np.unique(modes.transform(x), axis=0, return_inverse=True)
    unplaced = _place(umap, labels, z, vector) if umap is not None else ""
    n_layers, kstar = found.about["n_layers"], found.about["options"]["kstar"]
    clusters, held = cluster_table(labels, vector, n_layers, kstar), labels["cluster"].to_numpy() >= 0
    blocks = {"depth": depths(labels, n_layers, kstar), "coverage": coverage(labels)}
    title = f"{found.about['preset']}, {modes.method}: {len(clusters):,} clusters hold {held.mean():.1%} of "
    title += f"{len(labels):,} tokens"
    made = {
        "clusters": clusters_of(clusters, labels, title),
        "labels": LongTable.of([labels], tuple(one for one in LABELS if one.name in labels), f"{title}{unplaced}"),
    }  # fmt: skip
    used = {"columns": x.shape[1], "zero": sum(column.constant for column in found.columns), "constant": len(constant)}
    documents = labels["document"].to_numpy()
    if raw is not None:
        theirs = clusterer(how).fit(raw, progress=progress).labels_
        table = agreement_table(modes.labels_, theirs, documents, resamples=how.resamples, seed=how.seed)
        made["agreement"] = Table.noted(table, AGREEMENT, "agreement with clusters of raw activations")
        ids = found.table["token_id"].to_numpy()
        if (block := apart(modes.labels_, theirs, ids, documents)) is not None:
            made["same_token"] = same_token(block)
    if how.stability:
        table = stability_table(modes, x, documents, how.stability, progress=progress)
        made["stability"] = Table.noted(table, STABILITY, "agreement with other fits")
    if how.parts:
        other = other_way(how, found)
        ways = [(clusterer(how), x)] + ([] if other is None else [(clusterer(other[0]), varying(other[1])[0])])
        made["parts"] = parts_table(ways, documents, how.parts, how.seed, progress)
    about = {
        "clusters": {"method": modes.method, "parameters": modes.get_params(), "columns": list(x.columns),
                     "checkpoint": found.about["checkpoint"], "options": found.about["options"],
                     "sha256": fingerprint(found), "files": [str(path) for path in opened.files]},
        "constant": constant, "model": f"{found.about['preset']} ({found.about['run']})", "title": title,
    }  # fmt: skip
    contrasts = {"depth": each(blocks["depth"], "share"), "coverage": each(blocks["coverage"], "coverage")}
    return InstrumentData(blocks, contrasts, about, modes.arrays(), (made, (labels, clusters, len(z), modes, used)))


def tables(how: Cluster, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """A row per cluster; beside it a summary, shares by depth, agreement, stability, and a row per token."""
    made, counted = seen.extra
    frame, missing = estimates["depth"].wide(["group", "depth"], describe=NUMBERS[1:4])
    tokens = seen.blocks["depth"].sizes.sum(1)
    depth = Table(frame.assign(tokens=tokens.astype(int)), DEPTH, missing, "processing depth (k*) of tokens")
    covered, why = estimates["coverage"].wide(["group"], describe=NUMBERS[1:4])
    summary = summary_of(counted, covered, why, seen.about["title"])
    return {"clusters": made["clusters"], "summary": summary, "depth": depth, **made}


# ---- fitting -----------------------------------------------------------------------------------


def clusterer(how: Cluster) -> ComputationalModes:
    """The clusterer of the options."""
    return ComputationalModes(
        how.method,
        components=None if how.components == "all" else how.components,
        min_cluster_size=how.min_cluster_size,
        min_samples=how.min_samples,
        selection=how.selection,
        n_clusters=how.clusters,
        seed=how.seed,
    )


def varying(found: Features) -> tuple[pd.DataFrame, list[str]]:
    """The features that vary, and the names of those that happen to have one value in all rows.

    Raises `InputError` where none varies.
    """
    x = found.table[[column.name for column in found.columns if not column.constant]]
    constant = x.columns[(x.min() == x.max()).to_numpy()].to_list()
    if len(constant) == len(x.columns):
        raise InputError("every column has one value in all rows: nothing to cluster; extract more tokens")
    return x.drop(columns=constant), constant


def _enough(how: Cluster, x: pd.DataFrame) -> None:
    """Raise `InputError` for fewer tokens than the clusters need."""
    n = len(x)
    if n < max(how.min_cluster_size, 2):
        raise InputError(f"{n} tokens are fewer than --min-cluster-size {how.min_cluster_size}; extract more")
    if how.min_samples >= n:
        raise InputError(f"--min-samples {how.min_samples}: a token has {n - 1} others; give fewer or extract more")
    if how.method == "kmeans" and (distinct := len(x.drop_duplicates())) < how.clusters:
        raise InputError(f"{distinct} distinct feature vectors are fewer than --clusters {how.clusters}")


def read_modes(path: Path, opened: OpenFeatures) -> ComputationalModes:
    """Clusters that a result at `path` holds, for the features that are open.

    Raises `InputError` for another kind of result, of several runs too, and for features of another model or options.
    """
    file = path.with_suffix(".safetensors")
    if not file.is_file():
        raise InputError(
            f"there is no {file}; python -m features.cluster --out {file.with_suffix('.parquet')} writes it"
        )
    arrays, meta = read_tensors(file)
    of = parse(meta.get("about", "{}"), dict[str, Any], f"about of {file}").get("clusters")
    if of is None or "mean_" not in arrays:
        raise InputError(f"{file} holds no clusters of one run; python -m features.cluster writes them")
    for what in ("checkpoint", "options"):
        if of[what] != opened.found.about[what]:
            raise InputError(f"{opened.where} has another {what} than the clusters in {path}; extract it alike")
    plain = {name: value.numpy() for name, value in arrays.items()}
    return ComputationalModes.of(of["parameters"], of["columns"], plain)


def fingerprint(found: Features) -> str:
    """sha256 of the rows: which tokens of which documents, and their features."""
    digest = hashlib.sha256(np.ascontiguousarray(found.table[[*KEY, "token_id"]].to_numpy(np.int64)).tobytes())
    digest.update(np.ascontiguousarray(found.X).tobytes())
    return digest.hexdigest()


def labels_of(found: Features, cluster: np.ndarray, probability: np.ndarray) -> pd.DataFrame:
    """One row per token: which it is, its k*, cluster (−1: noise) and probability."""
    names = ["file"] if "file" in found.table else []
    table = found.table[[*names, "document", "position", "token_id", "token", "target", "prediction"]].copy()
    table["k_star"] = found.table["k_star" if "k_star" in found.table else "processing_depth"].astype("int32")
    table["cluster"] = cluster.astype("int32")
    table["probability"] = probability.astype("float32")
    return table


def placed(found: Features, umap: bool) -> pd.DataFrame:
    """`labels_of` tokens that are in no cluster yet, with their place on the map of their principal components."""
    labels = labels_of(found, np.full(len(found.table), -1), np.ones(len(found.table)))
    if umap:
        x, _ = varying(found)
        modes = ComputationalModes("kmeans", n_clusters=1, components=PCA).fit(x)
        _place(_umap(0), labels, *np.unique(modes.transform(x), axis=0, return_inverse=True))
    return labels


APART = "Graph is not fully connected"
"""How a warning in UMAP begins where no chain of neighbours joins groups of points, as of a model of few modes."""


def _umap(seed: int) -> Any:
    """UMAP as PLS C.4 has it, for display; imported only here, for it compiles at its first start."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError:
        raise InputError("the map needs umap-learn: pip install 'streamscope[cluster]', or give --no-umap") from None
    return UMAP(n_neighbors=15, min_dist=0.1, random_state=seed, n_jobs=1)


def _place(umap: Any, labels: pd.DataFrame, z: np.ndarray, vector: np.ndarray) -> str:
    """Add columns x and y, each distinct vector placed once; or say why there are none."""
    if len(z) <= umap.n_neighbors:
        return f"; no map: {len(z)} distinct vectors, it needs more than {umap.n_neighbors}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        labels[["x", "y"]] = umap.fit_transform(z)[vector].astype("float32")
    others = [one for one in said if APART not in str(one.message)]
    for one in others:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return "" if len(others) == len(said) else "; on the map nothing joins some groups: where these lie means nothing"


# ---- shares of tokens --------------------------------------------------------------------------


def shares(labels: pd.DataFrame, cells: Iterable[tuple[dict[str, Any], np.ndarray, np.ndarray]]) -> Observations:
    """Of (keys, tokens [n] that count, tokens [n] that are so): how many of a document's count, how many are so."""
    documents, of = np.unique(labels["document"].to_numpy(), return_inverse=True)
    told = list(cells)
    size = np.stack([np.bincount(of[inside], minlength=len(documents)) for _, inside, _ in told])
    hits = np.stack([np.bincount(of[inside & hit], minlength=len(documents)) for _, inside, hit in told])
    return Observations(
        measure=SHARE, cells=pd.DataFrame([keys for keys, _, _ in told]),
        units=pd.DataFrame({"unit": [str(d) for d in documents], "cluster": documents}),
        total=hits, size=size,
    )  # fmt: skip


def coverage(labels: pd.DataFrame) -> Observations:
    """The share of tokens that are in a cluster."""
    return shares(labels, [({"group": "all"}, np.full(len(labels), True), labels["cluster"].to_numpy() >= 0)])


def depths(labels: pd.DataFrame, n_layers: int, kstar: str = "author") -> Observations:
    """Shares by depth range and by k*, of all tokens, of those in clusters and of noise, as far as there are any.

    PLS Table 1 is the rows early, middle, late of all tokens.
    """
    k_star, held = labels["k_star"].to_numpy(), labels["cluster"].to_numpy() >= 0
    named = {name: depth_ranges(k_star, n_layers, kstar) == i for i, name in enumerate(RANGES)}
    named |= {f"k* = {k}": k_star == k for k in range(n_layers + 1)}
    groups = {"all": np.full(len(labels), True), "clusters": held, "noise": ~held}
    there = ((group, inside) for group, inside in groups.items() if inside.any())
    cells = [({"group": group, "depth": name}, inside, hit) for group, inside in there for name, hit in named.items()]
    return shares(labels, cells)


def each(block: Observations, quantity: str) -> list[Contrast]:
    """Every cell alone, described."""
    cells = enumerate(block.cells.to_dict("records"))
    return [Contrast(quantity=quantity, weights={i: 1.0}, labels=cell, null=None) for i, cell in cells]


# ---- tables ------------------------------------------------------------------------------------


def clusters_of(found: pd.DataFrame, labels: pd.DataFrame, title: str) -> Table:
    """The rows of `cluster_table`, and what the figures need: places by size, tokens so far, σ(k*) by chance."""
    place = found["n"].rank(method="first", ascending=False).astype(int)
    held = found["share"].to_numpy()[np.argsort(place)].cumsum()[place - 1] if len(found) else np.empty(0)
    dealt = depth_spread(labels)["dealt"] if len(found) else np.nan
    depth = [column for column in found if column[:1] == "k" and column[1:].isdigit()]
    columns = (*CLUSTERS, *(_share(name, f"k* = {name[1:]}", f"with k* = {name[1:]}", False) for name in depth), *DRAWN)
    return Table(found.assign(largest=place, held=held, dealt=dealt), columns, {}, title, "n", LARGEST)


def same_token(block: Observations) -> Table:
    """One row: how often tokens of one id lie in different clusters, of features and of raw activations."""
    told: list[Contrast] = [
        Contrast(quantity=name, weights={i: 1.0}, labels={"of": "tokens"}, null=None)
        for i, name in enumerate(block.cells["clusters_of"])
    ]
    told.append(Contrast(quantity="more", weights={0: 1.0, 1: -1.0}, labels={"of": "tokens"}))
    frame, missing = estimate(block, told).wide(["of"], describe=NUMBERS[2:4])
    frame = frame.drop(columns="of").assign(tokens=int(block.sizes[0].sum()))
    return Table(frame, SAME, missing, "tokens of one id in different clusters; of other documents")


def summary_of(
    counted: tuple[pd.DataFrame, pd.DataFrame, int, ComputationalModes, Mapping[str, int]],
    covered: pd.DataFrame,
    why: Mapping[tuple[int, str], str],
    title: str,
) -> Table:
    """One row: how much was clustered, and what it gave."""
    labels, clusters, distinct, modes, used = counted
    explained, row, missing = modes.explained_variance_ratio_, dict[str, Any](), dict(why)
    row |= {"tokens": len(labels), "documents": labels["document"].nunique(), "distinct": distinct}
    row |= {**used, "clusters": len(clusters), **covered.drop(columns=["group", "n", "clusters"]).iloc[0].to_dict()}
    row |= {"components": len(explained), "variance": float(explained.sum()) if len(explained) else np.nan}
    if not len(explained):
        missing[0, "variance"] = "no components: all columns as they are"
    names = ("largest", "median", "single", "sd", "dealt", "flat")
    row |= dict.fromkeys(names, np.nan)
    if len(clusters):
        spread, n = depth_spread(labels), clusters["n"]
        values = (n.max(), n.median(), (clusters["distinct"] == 1).sum(), *spread.values())
        row |= dict(zip(names, map(float, values), strict=True))
    else:
        missing |= {(0, name): "no cluster" for name in names}
    return Table(pd.DataFrame([row]), SUMMARY, missing, title)


def _share(name: str, title: str, doc: str, shown: bool = True) -> Column:
    return Column(name=name, title=title, unit="share of the cluster's tokens", doc=doc, format=".3f", shown=shown)


def _count(name: str, title: str, unit: str, doc: str, shown: bool = True) -> Column:
    return Column(name=name, title=title, unit=unit, doc=doc, format=",.0f", shown=shown)


def _layers(name: str, title: str, doc: str, shown: bool = True) -> Column:
    return Column(name=name, title=title, unit="layers", doc=doc, format=".3f", shown=shown)


CLUSTERS = (
    key("cluster", "cluster", "0 is the one with most of the tokens it was fitted on", "cluster", "d"),
    _count("n", "tokens", "tokens", "of the cluster"),
    Column(name="share", title="share", unit="share of all tokens", format=".4f", doc="of the cluster", shown=False),
    _count("distinct", "distinct", "distinct feature vectors", "of its tokens"),
    _count("documents", "documents", "documents", "with a token of it"),
    Column(name="probability", title="probability", unit="mean λ/λ_max", format=".3f",
           doc="how deep in the cluster its tokens are; 1 for kmeans"),
    _layers("k_star_mean", "k*", "mean over its tokens"),
    _layers("k_star_sd", "σ(k*)", "standard deviation over its tokens"),
    *(_share(name, name, f"{name} in the network (`description.depth_ranges`)") for name in RANGES),
)  # fmt: skip
DRAWN = (
    _count("largest", "clusters", "clusters, largest first", "which place its size has", False),
    Column(name="held", title="held", unit="share of all tokens", format=".3f", shown=False,
           doc="in this cluster and the larger ones"),
    _layers("dealt", "σ(k*), dealt", "the same in all rows: of tokens dealt at random, mean over tokens", False),
)  # fmt: skip
SUMMARY = (
    _count("tokens", "tokens", "tokens", "that were given"),
    _count("documents", "documents", "documents", "that they are from", False),
    _count("distinct", "distinct", "distinct vectors", "in the space of the clusters", False),
    _count("columns", "columns", "columns", "that were used"),
    _count("zero", "zero", "columns", "zero by construction, left out", False),
    _count("constant", "constant", "columns", "with one value in all rows, left out"),
    _count("clusters", "clusters", "clusters", "that were found"),
    *described("coverage", "coverage", "share of tokens", "in a cluster", format=".3f", sd="documents"),
    _count("components", "components", "principal components", "that features were projected on", False),
    Column(name="variance", title="variance", unit="share of variance", format=".3f", doc="that the components hold"),
    _count("largest", "largest", "tokens", "of the largest cluster"),
    _count("median", "median", "tokens", "of the median cluster", False),
    _count("single", "single", "clusters", "of one distinct vector", False),
    _layers("sd", "σ(k*)", "within clusters, mean over tokens", True),
    _layers("dealt", "σ(k*), dealt", "the same of tokens dealt at random", True),
    Column(name="flat", title="σ(k*) = 0", unit="share of clusters", format=".3f", doc="whose tokens have one k*"),
)  # fmt: skip
DEPTH = (
    key("group", "tokens", "all, those in clusters, or noise"),
    key("depth", "k*", "early, middle, late, or layers until the prediction is the final one", "layers"),
    *described("share", "share", "share of the tokens", "with this k*", format=".3f", sd="documents",
               source="PLS Table 1"),
    _count("tokens", "of", "tokens", "in the group"),
    *counts("documents", "documents"),
)  # fmt: skip
AGREEMENT = (
    key("tokens", "tokens", "all, noise as one more cluster, or those that are in clusters of both"),
    key("measure", "measure", "adjusted Rand index, or adjusted mutual information"),
    *described("value", "value", "1: the same clusters, 0: as by chance", "agreement; interval over documents",
               format=".3f", source="PLS B.8"),
    Column(name="control", title="control", unit="1: the same clusters, 0: as by chance", format=".3f",
           doc="the same with the raw clusters dealt to the tokens at random"),
    _count("n", "n", "tokens", "that are compared"),
    _count("documents", "documents", "documents", "that they are from"),
    _count("clusters", "clusters", "clusters", "of the features"),
    _count("raw_clusters", "raw", "clusters", "of the raw activations"),
)  # fmt: skip
OTHER = "share of the other documents' tokens of the same id"
SAME = (
    *described("features", "features", OTHER, "that lie in another cluster", format=".3f", source="PLS §2.3"),
    *described("raw", "raw", OTHER, "the same of clusters of the raw activations", format=".3f"),
    *described("dealt", "dealt", OTHER, "the same of the clusters of features, dealt to the tokens at random",
               format=".3f"),
    *quantity("more", "features − raw", OTHER, "how much more often in another cluster", format="+.3f",
              sd="documents and ids"),
    _count("tokens", "tokens", "tokens", "in clusters of both, with such others"),
    *counts("documents × ids", "documents, or ids where these are fewer"),
)  # fmt: skip
STABILITY = (
    key("kind", "other", "another seed, or a random part of the documents"),
    key("run", "fit", "which of them", "fit", "d"),
    _count("n", "n", "tokens", "in both"),
    _count("clusters", "clusters", "clusters", "of the other fit"),
    Column(name="coverage", title="coverage", unit="share of its tokens", format=".3f", doc="in a cluster"),
    Column(name="ari", title="ARI", unit="1: the same clusters, 0: as by chance", format=".3f",
           doc="with the clusters of all tokens, noise as one more"),
    Column(name="ari_clustered", title="ARI, in both", unit="1: the same clusters, 0: as by chance", format=".3f",
           doc="of the tokens that are in clusters of both"),
)  # fmt: skip
LABELS = (
    key("file", "file", "place of its table among those that were given", "table", "d"),
    *(column for column in TOKEN if column.name not in ("target_id", "prediction_id")),
    _count("k_star", "k*", "layers", "until the prediction is the final one"),
    key("cluster", "cluster", "its number, −1 for noise", "cluster", "d"),
    Column(name="probability", title="probability", unit="λ/λ_max", format=".3f", doc="how deep in the cluster it is"),
    *(Column(name=name, title=name, unit="UMAP", format=".2f", doc="place on the map, for display", shown=False)
      for name in "xy"),
)  # fmt: skip
