"""Tokens clustered by their features: labels, sizes, processing depth and agreement with other fits.

k* is one of the features, so clusters separate depths in part by construction. The control is σ(k*), the standard
deviation of k* over the tokens of a cluster, of clusters of the same sizes with tokens assigned at random.
"""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.disk import parse
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.cluster import Cluster, checks
from streamscope.features.cluster.checks import fitted_copy
from streamscope.features.cluster.modes import COMPONENTS, ComputationalModes
from streamscope.features.compute import RANGES, depth_ranges
from streamscope.features.extract.measure import TOKEN
from streamscope.features.store import KEY, Features
from streamscope.features.tables import FeatureTables, OpenFeatures
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import NUMBERS, Contrast, Estimates, Measure, Observations, each, estimate
from streamscope.instruments.progress import Progress, ticks
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key, number, quantity
from streamscope.models.tensors import read_tensors
from streamscope.probes.stream_states import MASSIVE

SHARE = Measure(name="share of tokens", unit="share of the tokens", resolution=1e-9, limits=(0.0, 1.0))
LARGEST = 15  # number of clusters shown on the screen


def observe(options: Cluster, model: object, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: share of tokens in a cluster, and by k*. Units: documents."""
    opened: OpenFeatures = data[FeatureTables]
    features = opened.found
    if options.raw and len(options.raw) != len(opened.files):
        raise InputError(
            f"--raw: {counted(len(options.raw), 'file')} for {len(opened.files)} tables; give one file per table"
        )
    umap = _umap(options.seed) if options.umap else None
    advance = ticks(progress, 2 + options.umap)
    raw = None
    if options.fitted is None:
        x, constant = varying_features(features)
        if options.method == "hdbscan" and (n := len(x)) < options.min_cluster_size:
            smallest = f"--min-cluster-size {options.min_cluster_size}"
            raise InputError(f"{counted(n, 'token')}, fewer than {smallest}; extract more")
        if options.method == "hdbscan" and (least := options.min_samples) >= n:
            raise InputError(f"--min-samples {least}: a token has {n - 1} others; give fewer or extract more")
        raw = checks.raw_rows_of(options.raw, opened.files) if options.raw else None
        modes = fitted_copy(clusterer(options), x, "feature vectors")
        labels = labels_of(features, modes.labels_, modes.probabilities_)
    else:
        modes = read_modes(options.fitted, opened)
        x = features.table[list(modes.feature_names_in_)]
        constant = [c.name for c in features.columns if not c.constant and c.name not in x]
        labels = labels_of(features, *modes.predict_soft(x))
    z, vector = np.unique(modes.transform(x), axis=0, return_inverse=True)
    advance(1)
    unplaced = "" if umap is None else _place(umap, labels, z, vector)
    advance(1)
    n_layers, kstar = features.about["n_layers"], features.about["options"]["kstar"]
    clusters, share = cluster_table(labels, vector, n_layers, kstar), (labels["cluster"] >= 0).mean()
    spread = depth_spread(labels) if len(clusters) else {}
    title = (
        f"{features.about['preset']}, {modes.method}: {counted(len(clusters), 'cluster', ',')} with {share:.1%} of "
        f"{counted(len(labels), 'token', ',')}"
    )
    documents = labels["document"].to_numpy()
    size = {
        "tokens": len(labels), "documents": len(np.unique(documents)), "distinct": len(z), "columns": x.shape[1],
        "zero": sum(column.constant for column in features.columns), "constant": len(constant),
        "clusters": len(clusters),
    }  # fmt: skip
    results = {
        "clusters": clusters_of(clusters, spread.get("dealt", np.nan), title),
        "labels": LongTable.of([labels], tuple(c for c in LABELS if c.name in labels), f"{title}{unplaced}"),
    }
    advance(0)
    if raw is not None:
        labels_of_raw, left_out = raw_labels(options, raw)
        table = checks.agreement_table(
            modes.labels_, labels_of_raw, documents, resamples=options.resamples, seed=options.seed
        )
        note = f"; {counted(left_out, 'token', ',')} with massive activations are noise there" if left_out else ""
        results["agreement"] = Table.noted(table, AGREEMENT, f"Agreement with clusters of raw activations{note}")
        ids = features.table["token_id"].to_numpy()
        if (block := checks.same_token_split(modes.labels_, labels_of_raw, ids, documents)) is not None:
            results["same_token"] = same_token(block)
    if options.stability:
        table = checks.stability_table(modes, x, documents, options.stability, progress=progress)
        results["stability"] = Table.noted(table, STABILITY, "Agreement with other fits")
    if options.parts:
        ways = [(clusterer(options), x)]
        if (comparison := checks.other_way(options, features)) is not None:
            ways.append((clusterer(comparison[0]), varying_features(comparison[1])[0]))
        results["parts"] = checks.parts_table(ways, documents, options.parts, options.seed, progress)
    about = {
        "clusters": {"method": modes.method, "parameters": modes.get_params(), "columns": list(x.columns),
                     "checkpoint": features.about["checkpoint"], "options": features.about["options"],
                     "sha256": fingerprint(features), "files": [str(path) for path in opened.files]},
        "constant": constant, "model": f"{features.about['preset']} ({features.about['run']})", "title": title,
    }  # fmt: skip
    in_cluster = (labels["cluster"] >= 0).to_numpy()
    covered = shares(labels, [({"group": "all"}, np.full(len(labels), True), in_cluster)])
    blocks = {"depth": depths(labels, n_layers, kstar), "coverage": covered}
    quantities = {"depth": "share", "coverage": "coverage"}
    contrasts = {name: each(quantities[name], block.cells, null=None) for name, block in blocks.items()}
    extra = (results, size, summary_of(modes, clusters, spread))
    return InstrumentData(blocks, contrasts, about, modes.arrays(), extra)


def raw_labels(options: Cluster, raw: np.ndarray) -> tuple[np.ndarray, int]:
    """(clusters [n] of raw activations [n, D], number of tokens with massive ones, which are noise). Massive is a norm
    above `MASSIVE` times the median: a few such tokens would set the scale of the z-scores."""
    norm = np.linalg.norm(raw.astype(np.float64), axis=1)
    keep = norm <= MASSIVE * np.median(norm)
    labels = np.full(len(raw), -1)
    labels[keep] = fitted_copy(clusterer(options), raw[keep], "raw activations").labels_
    return labels, int((~keep).sum())


def tables(options: Cluster, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    results, size, (found, missing) = data.extra
    frame, reasons = estimates["depth"].wide(["group", "depth"], describe=NUMBERS[1:4])
    tokens = data.blocks["depth"].sizes.sum(1)
    depth = Table(frame.assign(tokens=tokens.astype(int)), DEPTH, reasons, "Processing depth k* of the tokens")
    covered, reasons = estimates["coverage"].wide(["group"], describe=NUMBERS[1:4])
    row = {**size, **covered.drop(columns=["group", "n", "clusters"]).iloc[0], **found}
    summary = Table(pd.DataFrame([row]), SUMMARY, {**reasons, **missing}, data.about["title"])
    return {"clusters": results["clusters"], "summary": summary, "depth": depth, **results}


def clusterer(options: Cluster) -> ComputationalModes:
    return ComputationalModes(
        options.method, components=None if options.components == "all" else options.components, seed=options.seed,
        min_cluster_size=options.min_cluster_size, min_samples=options.min_samples, selection=options.selection,
        n_clusters=options.clusters,
    )  # fmt: skip


def varying_features(features: Features) -> tuple[pd.DataFrame, list[str]]:
    """The features that vary, and the names of those that are constant by chance. `InputError` if none varies."""
    x = features.table[[column.name for column in features.columns if not column.constant]]
    constant = x.columns[(x.min() == x.max()).to_numpy()].to_list()
    if len(constant) == len(x.columns):
        raise InputError("all feature columns are constant: nothing to cluster; extract more tokens")
    return x.drop(columns=constant), constant


def read_modes(path: Path, opened: OpenFeatures) -> ComputationalModes:
    """The fitted clusters in the result at `path`, for the open features. Raises `InputError` for a result of another
    kind or of several runs, and for features of another model or options."""
    file = path.with_suffix(".safetensors")
    if not file.is_file():
        raise InputError(f"{file} does not exist: python -m features.cluster --out {path} writes it")
    arrays, meta = read_tensors(file, f"write it again with python -m features.cluster --out {path}")
    of = parse(meta.get("about", "{}"), dict[str, Any], f"about of {file}").get("clusters")
    if of is None or "mean_" not in arrays:
        raise InputError(f"{file} does not hold the clusters of one run; python -m features.cluster writes them")
    for field in ("checkpoint", "options"):
        if of[field] != opened.found.about[field]:
            raise InputError(f"{opened.where} has another {field} than the clusters in {path}; extract it as for those")
    plain = {name: value.numpy() for name, value in arrays.items()}
    return ComputationalModes.of(of["parameters"], of["columns"], plain)


def fingerprint(features: Features) -> str:
    """sha256 of the rows: documents, positions, tokens and features."""
    digest = hashlib.sha256(np.ascontiguousarray(features.table[[*KEY, "token_id"]].to_numpy(np.int64)).tobytes())
    digest.update(np.ascontiguousarray(features.X).tobytes())
    return digest.hexdigest()


def labels_of(features: Features, cluster: np.ndarray, probability: np.ndarray) -> pd.DataFrame:
    """One row per token: its position, k*, cluster (−1: noise) and probability."""
    table = features.table.filter(["file", *KEY, "token_id", "token", "target", "prediction"])
    k_star = features.table["k_star" if "k_star" in features.table else "processing_depth"].astype("int32")
    return table.assign(k_star=k_star, cluster=cluster.astype("int32"), probability=probability.astype("float32"))


def unclustered_labels(features: Features, umap: bool) -> pd.DataFrame:
    """`labels_of` for tokens without clusters, with their place on the map of principal components."""
    labels = labels_of(features, np.full(len(features.table), -1), np.ones(len(features.table)))
    if umap:
        x, _ = varying_features(features)
        modes = ComputationalModes("kmeans", n_clusters=1, components=COMPONENTS).fit(x)
        _place(_umap(0), labels, *np.unique(modes.transform(x), axis=0, return_inverse=True))
    return labels


def _umap(seed: int) -> Any:
    """UMAP as in PLS C.4, for display. Imported here because it compiles on import."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError:
        raise InputError("the map needs umap-learn: pip install 'streamscope[cluster]', or use --no-umap") from None
    return UMAP(n_neighbors=15, min_dist=0.1, random_state=seed, n_jobs=1)


def _place(umap: Any, labels: pd.DataFrame, z: np.ndarray, vector: np.ndarray) -> str:
    """Add columns x and y with the map position of each distinct vector; returns a note for the title."""
    if len(z) <= umap.n_neighbors:
        return f"; no map, which needs more than {umap.n_neighbors} distinct vectors ({len(z)} here)"
    note = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        labels[["x", "y"]] = umap.fit_transform(z)[vector].astype("float32")
    for warning in caught:
        if "Graph is not fully connected" in str(warning.message):  # no chain of neighbours joins some groups
            note = "; the relative position of unconnected groups on the map is arbitrary"
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return note


def units_of(labels: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Units (documents; copies of one are a cluster, named by the first), and the unit of each token."""
    documents, of = np.unique(labels["document"].to_numpy(), return_inverse=True)
    texts, first = labels.sort_values(KEY).groupby("document")["token_id"].agg(tuple), dict[tuple[int, ...], int]()
    clusters = [first.setdefault(text, document) for document, text in texts.items()]
    return pd.DataFrame({"unit": documents.astype(str), "cluster": clusters}), of


def shares(labels: pd.DataFrame, cells: Iterable[tuple[dict[str, Any], np.ndarray, np.ndarray]]) -> Observations:
    """Shares per document, from (keys, tokens [n] in the denominator, tokens [n] in the numerator)."""
    units, of = units_of(labels)
    keys, inside, hits = zip(*cells, strict=True)
    count = partial(np.bincount, minlength=len(units))
    return Observations(
        measure=SHARE, cells=pd.DataFrame(keys), units=units,
        total=np.stack([count(of[tokens & hit]) for tokens, hit in zip(inside, hits, strict=True)]),
        size=np.stack([count(of[tokens]) for tokens in inside]),
    )  # fmt: skip


def depths(labels: pd.DataFrame, n_layers: int, kstar: str = "author") -> Observations:
    """Shares by depth range and by k*, for all tokens, clustered tokens and noise. PLS Table 1: early, middle, late."""
    in_cluster = labels["cluster"].to_numpy() >= 0
    conditions = at_depth(labels["k_star"].to_numpy(), n_layers, kstar, "k* = {}")
    groups = {"all": np.full(len(labels), True), "clusters": in_cluster, "noise": ~in_cluster}
    return shares(
        labels,
        [
            ({"group": group, "depth": name}, inside, hit)
            for group, inside in groups.items() if inside.any() for name, hit in conditions.items()
        ],
    )  # fmt: skip


def at_depth(k_star: np.ndarray, n_layers: int, kstar: str, name: str) -> dict[str, np.ndarray]:
    """Depth range, then `name` of each k* -> [tokens] whether the token is there."""
    ranges = depth_ranges(k_star, n_layers, kstar)
    return {depth: ranges == i for i, depth in enumerate(RANGES)} | {
        name.format(k): k_star == k for k in range(n_layers + 1)
    }


def cluster_table(labels: pd.DataFrame, vector: np.ndarray, n_layers: int, kstar: str = "author") -> pd.DataFrame:
    """One row per cluster: size, distinct feature vectors, documents, σ(k*), shares by depth range and by k*. `labels`:
    columns document, k_star, cluster, probability. `vector` [tokens]: the number of the distinct vector."""
    depth = at_depth(labels["k_star"].to_numpy(), n_layers, kstar, "k{}")
    by = labels.assign(vector=vector, **depth).query("cluster >= 0").groupby("cluster")
    clusters = pd.DataFrame({
        "n": by.size(), "share": by.size() / len(labels), "distinct": by["vector"].nunique(),
        "documents": by["document"].nunique(), "probability": by["probability"].mean(),
        "k_star_mean": by["k_star"].mean(), "k_star_sd": by["k_star"].std(ddof=0),
    })  # fmt: skip
    return clusters.join(by[list(depth)].mean()).reset_index()


def depth_spread(labels: pd.DataFrame, *, draws: int = 20, seed: int = 0) -> dict[str, float]:
    """Mean σ(k*) over clustered tokens, the same for tokens assigned at random, share of clusters with σ(k*) = 0."""
    members = labels[labels["cluster"] >= 0]
    k_star, of = members["k_star"].astype(float), members["cluster"].to_numpy()

    def deviations(values: pd.Series) -> pd.Series:
        return values.groupby(of).std(ddof=0)

    rng, spreads, size = np.random.default_rng(seed), deviations(k_star), k_star.groupby(of).size()
    dealt = [size @ deviations(pd.Series(rng.permutation(k_star))) / len(members) for _ in range(draws)]
    return {"sd": size @ spreads / len(members), "dealt": np.mean(dealt), "flat": (spreads < 1e-6).mean()}


def clusters_of(clusters: pd.DataFrame, dealt: float, title: str) -> Table:
    """The rows of `cluster_table` with the columns that the figures need."""
    order = clusters.sort_values("n", ascending=False, kind="stable")
    order = order.assign(largest=range(1, len(order) + 1), held=order["share"].cumsum(), dealt=dealt)
    depth = [column for column in clusters if column[:1] == "k" and column[1:].isdigit()]
    by_depth = (_share(name, f"k* = {name[1:]}", f"tokens with k* = {name[1:]}", False) for name in depth)
    return Table(order.sort_index(), (*CLUSTERS, *by_depth, *FIGURE_COLUMNS), {}, title, "n", LARGEST)


def same_token(block: Observations) -> Table:
    """One row: how often tokens of one id lie in different clusters, for features and for raw activations."""
    contrasts = [
        Contrast(quantity=name, weights={i: 1.0}, labels={"of": "tokens"}, null=None)
        for i, name in enumerate(block.cells["clusters_of"])
    ] + [Contrast(quantity="more", weights={0: 1.0, 1: -1.0}, labels={"of": "tokens"})]
    frame, missing = estimate(block, contrasts).wide(["of"], describe=NUMBERS[2:4])
    frame = frame.drop(columns="of").assign(tokens=int(block.sizes[0].sum()))
    return Table(frame, SAME_TOKEN, missing, "How often the same token lies in different clusters, across documents")


def summary_of(
    modes: ComputationalModes, clusters: pd.DataFrame, spread: Mapping[str, float]
) -> tuple[dict[str, float], dict[tuple[int, str], str]]:
    """Components, sizes and depths of the clusters, and why some have no value."""
    explained, n = modes.explained_variance_ratio_, clusters["n"]
    sizes = {"largest": n.max(), "median": n.median(), "single": (clusters["distinct"] == 1).sum()}
    missing = {} if len(explained) else {"variance": "no components: all columns were used directly"}
    missing |= {} if len(clusters) else dict.fromkeys((*sizes, "sd", "dealt", "flat"), "no cluster")
    numbers = {name: float(x) for name, x in {"variance": explained.sum(), **sizes, **spread}.items()}
    row = {"components": len(explained), **numbers, **dict.fromkeys(missing, np.nan)}
    return row, {(0, name): reason for name, reason in missing.items()}


def _share(name: str, title: str, doc: str, shown: bool = True) -> Column:
    return number(name, title, "share of the cluster's tokens", doc, ".3f", shown)


def _layers(name: str, title: str, doc: str, shown: bool = True) -> Column:
    return number(name, title, "layers", doc, ".3f", shown)


CLUSTERS = (
    key("cluster", "cluster", "0 is the largest cluster in the data it was fitted on", "cluster", "d"),
    number("n", "tokens", "tokens", "tokens in the cluster", ",.0f"),
    number("share", "share of tokens", "share of all tokens", "tokens in the cluster", ".4f", False),
    number("distinct", "distinct vectors", "distinct feature vectors", "distinct feature vectors among its tokens",
           ",.0f"),
    number("documents", "documents", "documents", "documents with a token in the cluster", ",.0f"),
    number("probability", "probability", "mean λ/λ_max", "mean membership of its tokens; 1 for kmeans", ".3f"),
    _layers("k_star_mean", "mean k*", "mean k* of its tokens: layers until the prediction is final"),
    _layers("k_star_sd", "σ(k*)", "standard deviation of k* over its tokens"),
    *(_share(name, f"settled {name}", "tokens whose prediction settles there (`depth_ranges`)") for name in RANGES),
)  # fmt: skip
FIGURE_COLUMNS = (
    number("largest", "rank by size", "clusters, largest first", "rank of the cluster by size", ",.0f", False),
    number("held", "cumulative share", "share of all tokens", "tokens in this cluster and all larger ones", ".3f",
           False),
    _layers("dealt", "σ(k*), random", "control, equal in all rows: mean σ(k*) with tokens assigned at random", False),
)  # fmt: skip
SUMMARY = (
    number("tokens", "tokens", "tokens", "tokens in the feature tables", ",.0f"),
    number("documents", "documents", "documents", "documents they come from", ",.0f", False),
    number("distinct", "distinct", "distinct vectors", "distinct vectors in the space of the clusters", ",.0f", False),
    number("columns", "columns used", "columns", "feature columns that were clustered", ",.0f"),
    number("zero", "zero columns", "columns", "columns that are zero by construction, left out", ",.0f", False),
    number("constant", "constant columns", "columns", "other columns with one value in all rows of the fit, left out",
           ",.0f"),
    number("clusters", "clusters", "clusters", "number of clusters", ",.0f"),
    *described("coverage", "coverage", "share of tokens", "tokens that are in a cluster", format=".3f", sd="documents"),
    number("components", "components", "principal components", "principal components used for clustering", ",.0f",
           False),
    number("variance", "variance kept", "share of variance", "variance in the components", ".3f"),
    number("largest", "largest cluster", "tokens", "tokens in the largest cluster", ",.0f"),
    number("median", "median cluster", "tokens", "tokens in the median cluster", ",.0f", False),
    number("single", "single-vector clusters", "clusters", "clusters with one distinct vector", ",.0f", False),
    _layers("sd", "σ(k*)", "standard deviation of k* within clusters, mean over tokens"),
    _layers("dealt", "σ(k*), random", "control: the same with tokens assigned to clusters at random"),
    number("flat", "σ(k*) = 0", "share of clusters", "clusters whose tokens all have one k*", ".3f"),
)  # fmt: skip
DEPTH = (
    key("group", "tokens", "all tokens, those in clusters, or noise"),
    key("depth", "k*", "early, middle, late, or the number of layers until the prediction is final", "layers"),
    *described("share", "share", "share of the tokens", "tokens of the group with this k*", format=".3f",
               sd="documents", source="PLS Table 1"),
    number("tokens", "group size", "tokens", "tokens in the group", ",.0f"),
    *counts("documents", "documents"),
)  # fmt: skip
AGREEMENT = (
    key("tokens", "tokens", "all tokens with noise as a cluster, or only tokens clustered on both sides"),
    key("measure", "measure", "adjusted Rand index, or adjusted mutual information"),
    *described("value", "agreement", "1: same clusters, 0: chance level", "agreement, with interval over documents",
               format=".3f", source="PLS B.8"),
    number("control", "random control", "1: same clusters, 0: chance level",
           "the same with the raw clusters assigned to the tokens at random", ".3f"),
    number("n", "tokens compared", "tokens", "tokens that are compared", ",.0f"),
    number("documents", "documents", "documents", "documents they come from", ",.0f"),
    number("clusters", "feature clusters", "clusters", "clusters of the features", ",.0f"),
    number("raw_clusters", "raw clusters", "clusters", "clusters of the raw activations", ",.0f"),
)  # fmt: skip
OTHER = "share of tokens of the same id in other documents"
SAME_TOKEN = (
    *described("features", "features", OTHER, "in another cluster of the features", format=".3f", source="PLS §2.3"),
    *described("raw", "raw", OTHER, "in another cluster of the raw activations", format=".3f"),
    *described("dealt", "random", OTHER, "control: features' clusters assigned to tokens at random", format=".3f"),
    *quantity("more", "features − raw", OTHER, "how much more often features separate the same token", format="+.3f",
              sd="documents and ids"),
    number("tokens", "tokens", "tokens", "tokens that are compared", ",.0f"),
    *counts("documents × ids", "documents, or ids if there are fewer"),
)  # fmt: skip
STABILITY = (
    key("kind", "refit on", "another seed, or a random part of the documents"),
    key("run", "fit", "number of the refit", "fit", "d"),
    number("n", "tokens", "tokens", "tokens in both fits", ",.0f"),
    number("clusters", "clusters", "clusters", "clusters of the refit", ",.0f"),
    number("coverage", "coverage", "share of its tokens", "tokens in a cluster", ".3f"),
    number("ari", "ARI", "1: same clusters, 0: chance level",
           "agreement with the fit on all tokens, noise as a cluster", ".3f"),
    number("ari_clustered", "ARI, clustered", "1: same clusters, 0: chance level",
           "agreement on tokens clustered in both", ".3f"),
)  # fmt: skip
TABLE = key("file", "file", "number of its table among the given ones", "table", "d")
PLACE = tuple(number(name, name, "UMAP", "position on the map", ".2f", False) for name in "xy")
LABELS = (
    TABLE,
    *(column for column in TOKEN if column.name not in ("target_id", "prediction_id")),
    number("k_star", "k*", "layers", "layers until the prediction is final", ",.0f"),
    key("cluster", "cluster", "number of its cluster, −1 for noise", "cluster", "d"),
    number("probability", "probability", "λ/λ_max", "membership in the cluster", ".3f"),
    *PLACE,
)  # fmt: skip
