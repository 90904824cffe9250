"""Checks of a clustering: agreement with raw activations, stability over seeds and subsamples, disjoint parts.

PLS B.8 reports ARI = 0.008 with raw activations and does not say how noise was counted. Both readings are reported: all
tokens with noise as one more cluster, and only tokens that are in a cluster on both sides. As a control, the raw
clusters are assigned to the tokens at random.

Intervals resample whole documents: a bootstrap for the ARI (Hubert & Arabie 1985), a jackknife over groups of documents
for the AMI (Vinh et al. 2010). A bootstrap draws some documents twice, and a token and its copy share a cluster in both
clusterings. Counting them as a pair inflates the ARI (from 0 to 0.09 with 2,000 tokens in clusters of ten), so copies
of one document form no pairs. Mutual information cannot exclude them this way; the jackknife repeats no document.

Fits on overlapping documents are not independent, so for an interval of the number of clusters the documents are split
into disjoint parts (`parts_table`). Each part is clustered (`clusters`, `coverage`) and clustered again without a fifth
of its documents. `ari` is the agreement of the two fits on the tokens of both with noise as a cluster, `ari_clustered`
on the tokens in clusters of both. The same parts can be clustered in another way; differences are paired by part.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import coo_array, csr_array
from scipy.special import stdtrit
from sklearn.base import clone
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.cluster import Cluster
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.store import KEY, Features, Raw, read_features, read_raw
from streamscope.instruments.contract import Progress
from streamscope.instruments.observations import Contrast, Measure, Observations, estimate_all, joined
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, UPPER, expanded_level
from streamscope.instruments.table import Table, counts, described, key, mark, quantity

LEFT_OUT = 0.2  # share of a part's documents left out of the second fit
LIKENESS = "1: same clusters, 0: chance level"
QUANTITIES = {"clusters": "clusters", "coverage": "share of tokens", "ari": LIKENESS, "ari_clustered": LIKENESS}
"""Quantity -> unit."""
VECTORS_OF_PART = "feature vectors in a part of the documents"
GROUPS = 20  # groups of documents for the jackknife


def raw_rows(raw: Raw, features: Features, path: Path | str = "raw activations") -> np.ndarray:
    """Raw activations [n, D] for the rows of a feature table, in its order; errors name them `path`. Raises
    `InputError` for another checkpoint, other data or another set of tokens."""
    if raw.about["checkpoint"] != features.about["checkpoint"]:
        raise InputError(f"{path} has another checkpoint than the features; extract both at once")
    corpora = [(about.get("data") or {}).get("corpus") for about in (raw.about, features.about)]
    theirs, ours = (pd.MultiIndex.from_frame(table[[*KEY, "token_id", "target_id"]])
                    for table in (raw.table, features.table))  # fmt: skip
    if corpora[0] != corpora[1] or not theirs.is_unique or not theirs.sort_values().equals(ours.sort_values()):
        raise InputError(f"{path} holds other data or tokens than the features; extract both at once")
    return raw.X[theirs.get_indexer(ours)]


def raw_rows_of(paths: Sequence[Path], tables: Sequence[Path]) -> np.ndarray:
    """Raw activations [n, D] for the tokens of several feature tables, one file of `paths` per table. Raises
    `InputError` as `raw_rows` does, and for files with different hooks."""
    raw = [read_raw(path) for path in paths]
    for path, part in zip(paths, raw, strict=True):
        if part.hooks != raw[0].hooks:
            raise InputError(f"{path} has other hooks than {paths[0]}: {', '.join(part.hooks)}; use one --raw for both")
    sources = zip(raw, tables, paths, strict=True)
    return np.concatenate([raw_rows(part, read_features(table), path) for part, table, path in sources])


def agreement_table(
    labels: np.ndarray, raw: np.ndarray, documents: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """ARI and AMI between `labels` [n] and `raw` labels [n], −1 for noise: one row per measure and set of tokens.
    Columns: n, documents, clusters of each side, value with interval over documents (ARI bootstrap, AMI jackknife) and
    control. Values are undefined for fewer than two tokens, intervals for fewer than eight documents."""
    measures = {
        "ARI": (adjusted_rand_score, partial(adjusted_rand_interval, resamples=resamples)),
        "AMI": (adjusted_mutual_info_score, adjusted_mutual_information_interval),
    }
    sets = {"all, noise a cluster": np.full(len(labels), True), "in clusters of both": (labels >= 0) & (raw >= 0)}
    rows = []
    for (tokens, inside), (measure, (agreement, interval)) in product(sets.items(), measures.items()):
        a, b, d = labels[inside], raw[inside], documents[inside]
        dealt, n_documents, undefined = np.random.default_rng(seed).permutation(b), len(np.unique(d)), (np.nan, np.nan)
        value, control = (agreement(a, b), agreement(a, dealt)) if len(a) > 1 else undefined
        low, high = interval(a, b, d, seed=seed) if n_documents >= BOOTSTRAP_CLUSTERS else undefined
        rows.append({
            "tokens": tokens, "measure": measure, "n": len(a), "documents": n_documents,
            "clusters": len(set(a.tolist()) - {-1}), "raw_clusters": len(set(b.tolist()) - {-1}),
            "value": value, "value_low": low, "value_high": high, "control": control,
        })  # fmt: skip
    table = pd.DataFrame(rows)
    table = mark(table, ["value", "control"], table["n"] < 2, "fewer than two tokens in clusters of both")
    too_few = table["documents"] < BOOTSTRAP_CLUSTERS
    return mark(table, ["value_low", "value_high"], too_few, f"fewer than {BOOTSTRAP_CLUSTERS} documents")


def same_token_split(
    feature_labels: np.ndarray, raw: np.ndarray, ids: np.ndarray, documents: np.ndarray
) -> Observations | None:
    """How often the same token id lies in different clusters, from labels [n] of features and of raw activations.

    For each token in clusters of both whose id also occurs there in another document: the share of those other tokens
    that lie in another cluster. Cells: features, raw, and features assigned at random. Units: tokens of one id in one
    document, clustered two-way by document and id. None if there is no such token.
    """
    rows = np.flatnonzero((feature_labels >= 0) & (raw >= 0))
    shuffled = np.random.default_rng(0).permutation(feature_labels[rows])
    token, document = (np.unique(values[rows], return_inverse=True)[1] for values in (ids, documents))
    counts = _same_label_counts(token) - _same_label_counts(token, document)
    if not (repeated := counts > 0).any():
        return None
    names, unit = np.unique(np.stack([documents[rows], ids[rows]], 1)[repeated], axis=0, return_inverse=True)
    units = pd.DataFrame({"unit": [f"{d}, {i}" for d, i in names], "cluster": [tuple(pair) for pair in names.tolist()]})
    unit, total = unit.ravel(), []
    for labels in (feature_labels[rows], raw[rows], shuffled):
        same_cluster = _same_label_counts(token, labels) - _same_label_counts(token, labels, document)
        share = 1 - same_cluster[repeated] / counts[repeated]
        total.append(np.bincount(unit, share, minlength=len(names)))
    return Observations(
        measure=Measure(name="different cluster", unit="share of tokens", resolution=1e-9, limits=(0.0, 1.0)),
        cells=pd.DataFrame({"clusters_of": ["features", "raw", "dealt"]}),
        units=units,
        total=np.stack(total), size=np.bincount(unit, minlength=len(names)).astype(float),
    )  # fmt: skip


def _same_label_counts(*labels: np.ndarray) -> np.ndarray:
    """[n] the number of rows with the same labels as each row, itself included."""
    _, row, n = np.unique(np.stack(labels, 1), axis=0, return_inverse=True, return_counts=True)
    return n[row.ravel()]


def fitted_copy(modes: ComputationalModes, x: pd.DataFrame | np.ndarray, rows: str) -> ComputationalModes:
    """A copy of unfitted modes, fitted to rows x [n, d]. Raises `InputError` for k-means with fewer distinct rows than
    clusters."""
    if modes.method == "kmeans" and (distinct := len(np.unique(x, axis=0))) < modes.n_clusters:
        raise InputError(f"{distinct} distinct {rows} are fewer than --clusters {modes.n_clusters}")
    return clone(modes).fit(x)


def stability_table(
    modes: ComputationalModes, X: pd.DataFrame, documents: np.ndarray, runs: int, *,
    progress: Progress = iter,
) -> pd.DataFrame:  # fmt: skip
    """ARI between fitted `modes` and refits on other seeds or on random 80 % of the documents, over tokens in both.
    `runs` refits of each kind. HDBSCAN* uses no random numbers: its seed row is undefined and says so. Columns: kind,
    run, n, clusters, coverage, ari (noise counts as a cluster), ari_clustered."""
    kinds = ("seed", "documents") if modes.method == "kmeans" else ("documents",)
    names, of = np.unique(documents, return_inverse=True)
    rows = []
    for kind, run in progress(list(product(kinds, range(1, runs + 1)))):
        inside, seed = np.full(len(X), True), modes.seed + run
        if kind == "documents":
            order = np.random.default_rng([modes.seed, run]).permutation(len(names))
            inside, seed = np.isin(of, order[: max(1, round(0.8 * len(names)))]), modes.seed
        b = fitted_copy(clone(modes).set_params(seed=seed), X[inside], VECTORS_OF_PART).labels_
        ari, inner = refit_agreement(modes.labels_[inside], b)
        row = {"kind": kind, "run": run, "n": int(inside.sum()), "clusters": int(b.max()) + 1}
        rows.append(row | {"coverage": (b >= 0).mean(), "ari": ari, "ari_clustered": inner})
    if "seed" not in kinds:
        rows.append({"kind": "seed", "run": 0, "n": len(X), "clusters": 0})
    table = pd.DataFrame(rows)
    fitted, undefined = table["run"] > 0, table["ari_clustered"].isna()
    table = mark(table, ["ari_clustered"], fitted & undefined, "fewer than two tokens in clusters of both")
    return mark(table, ["coverage", "ari", "ari_clustered"], ~fitted, "HDBSCAN* draws no random numbers")


def refit_agreement(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """ARI of two fits with noise as a cluster, and on the tokens in clusters of both; NaN for fewer than two."""
    mask = (a >= 0) & (b >= 0)
    return adjusted_rand_score(a, b), adjusted_rand_score(a[mask], b[mask]) if mask.sum() > 1 else np.nan


def adjusted_rand_interval(
    a: np.ndarray, b: np.ndarray, documents: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of the ARI; documents [n] are resampled. The level is that of
    `estimators.cluster_bootstrap`, expanded for few documents."""
    names, document = np.unique(documents, return_inverse=True)
    count = len(names)
    joint = np.unique(np.stack([a, b]), axis=1, return_inverse=True)[1].ravel()
    tables = [_tokens(clusters, document) for clusters in (joint, a, b, np.zeros(len(a)))]
    rng, draws = np.random.default_rng(seed), []
    for _ in range(resamples):
        weight = rng.multinomial(count, np.full(count, 1 / count)).astype(float)
        index, pairs_a, pairs_b, every = (_pairs(table, weight) for table in tables)
        expected, largest = pairs_a * pairs_b / every, (pairs_a + pairs_b) / 2
        draws.append(1.0 if largest == expected else (index - expected) / (largest - expected))
    level = expanded_level(count)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _tokens(clusters: np.ndarray, document: np.ndarray) -> csr_array:
    return coo_array((np.ones(len(clusters)), (np.unique(clusters, return_inverse=True)[1], document))).tocsr()


def _pairs(tokens: csr_array, weight: np.ndarray) -> float:
    """Pairs of tokens in one cluster, with each document counted `weight` [documents] times without its copies."""
    per_cluster, within = tokens @ weight, tokens.power(2).sum(0)
    return float(per_cluster @ per_cluster - within @ weight**2 + (within - tokens.sum(0)) @ weight) / 2


def adjusted_mutual_information_interval(
    a: np.ndarray, b: np.ndarray, documents: np.ndarray, *, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the AMI: estimate ± t · sd, from a jackknife over `GROUPS` random groups of documents. Variance
    (G − 1)/G Σ (θ_g − mean)², t with G − 1 degrees of freedom."""
    names, document = np.unique(documents, return_inverse=True)
    groups = min(GROUPS, len(names))
    group = np.random.default_rng(seed).permutation(len(names))[document] % groups
    jackknife = np.array([adjusted_mutual_info_score(a[group != g], b[group != g]) for g in range(groups)])
    half = stdtrit(groups - 1, UPPER) * np.sqrt((groups - 1) / groups * ((jackknife - jackknife.mean()) ** 2).sum())
    value = adjusted_mutual_info_score(a, b)
    return float(value - half), float(value + half)


def other_way(options: Cluster, features: Features) -> tuple[Cluster, Features] | None:
    """The options and features to compare with, if any. Raises `InputError` for other weights or other tokens."""
    path, index = options.against, [*KEY, "token_id"]
    if path is None and options.against_size is None and options.against_samples is None:
        return None
    reference = features if path is None else read_features(path)
    if reference.about["checkpoint"] != features.about["checkpoint"]:
        raise InputError(f"--against {path} has another checkpoint than the features; extract both from one run")
    if not np.array_equal(reference.table[index], features.table[index]):
        raise InputError(f"--against {path} holds other tokens than the features; extract both from one text")
    size, samples = options.against_size or options.min_cluster_size, options.against_samples or options.min_samples
    return replace(options, min_cluster_size=size, min_samples=samples), reference


def parts_table(
    ways: Sequence[tuple[ComputationalModes, pd.DataFrame]], documents: np.ndarray, parts: int, seed: int,
    progress: Progress,
) -> Table:  # fmt: skip
    """One row per quantity, from unfitted modes and features [tokens]; a second way is compared with the first. Raises
    `InputError` for fewer than five documents per part."""
    documents_read, of = np.unique(documents, return_inverse=True)
    if (n := len(documents_read)) < 5 * parts:
        raise InputError(f"--parts {parts}: too many for {counted(n, 'document')}, a part needs five; extract more")
    rng = np.random.default_rng(seed)
    assigned = rng.permutation(np.arange(n) % parts)
    draw = rng.random(n)
    values = np.full((len(QUANTITIES), len(ways), parts), np.nan)
    for part in progress(list(range(parts))):
        inside, of_part = np.flatnonzero(assigned[of] == part), np.flatnonzero(assigned == part)
        out = of_part[np.argsort(draw[of_part])[: max(1, round(LEFT_OUT * len(of_part)))]]
        again = ~np.isin(of[inside], out)
        for w, (modes, features) in enumerate(ways):
            x = features.iloc[inside]
            labels, refit = (fitted_copy(modes, rows, VECTORS_OF_PART).labels_ for rows in (x, x[again]))
            agreement = refit_agreement(labels[again], refit)
            values[:, w, part] = (labels.max() + 1, (labels >= 0).mean(), *agreement)
    names, blocks, contrasts = ("own", "against")[: len(ways)], dict[str, Observations](), dict[str, list[Contrast]]()
    units = pd.DataFrame({"unit": [str(i) for i in range(parts)], "cluster": range(parts)})
    for (name, unit), totals in zip(QUANTITIES.items(), values, strict=True):
        measure, labelled = Measure(name=name, unit=unit, resolution=1e-9), partial(Contrast, labels={"of": name})
        cells = pd.DataFrame({"way": names})
        size = np.isfinite(totals)  # a part without clusters has no `ari_clustered`
        blocks[name] = Observations(measure=measure, cells=cells, units=units, total=totals, size=size)
        contrasts[name] = [labelled(quantity=way, weights={w: 1.0}, null=None) for w, way in enumerate(names)]
        if len(ways) > 1:
            contrasts[name].append(labelled(quantity="difference", weights={0: 1.0, 1: -1.0}, family="parts"))
    wide = [joined([estimates], ["of"], COLUMNS) for estimates in estimate_all(blocks, contrasts).values()]
    frame = pd.concat([rows for rows, _ in wide], ignore_index=True)
    frame.insert(1, "unit", list(QUANTITIES.values()))
    missing = {(i, column): reason for i, (_, reasons) in enumerate(wide) for (_, column), reason in reasons.items()}
    columns = tuple(column for column in COLUMNS if column.name in frame)
    return Table(frame, columns, missing, f"{parts} disjoint parts of the documents, clustered separately")


ROW_UNIT = "unit of the row"
COLUMNS = (
    key("of", "quantity",
        "number of clusters, share of tokens in clusters, or agreement with a fit on 80 % of the documents"),
    key("unit", "unit", "unit of the row", shown=False),
    *described("own", "own", ROW_UNIT, "mean over the parts", format=".3f"),
    *described("against", "compared with", ROW_UNIT, "the same with the other features or parameters", format=".3f"),
    *quantity("difference", "difference", ROW_UNIT, "own − compared with, paired by part", format="+.3f", sd="parts"),
    counts("parts", "parts")[0],
)  # fmt: skip
