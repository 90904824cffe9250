"""Whether clusters mean something: beside clusters of raw activations, and over seeds and subsamples.

PLS B.8 gives ARI = 0.008 against raw activations, without saying what became of noise. Both readings are reported: over
all tokens, noise as one more cluster, and over the tokens that are in a cluster on both sides. The control is the same
with the raw clusters dealt to the tokens at random.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from streamscope.cli.errors import InputError
from streamscope.features.cluster.agreement import (
    adjusted_mutual_information,
    adjusted_mutual_information_interval,
    adjusted_rand,
    adjusted_rand_interval,
)
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.store import KEY, Features, Raw, read_features, read_raw
from streamscope.instruments.observations import Measure, Observations
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS
from streamscope.instruments.undefined_cells import mark


def raw_rows(raw: Raw, found: Features, path: Path | str = "raw activations") -> np.ndarray:
    """Raw activations [n, D] of the tokens of a feature table, in its order; `path` is what errors call them.

    Raises `InputError` for activations of another checkpoint, of other data, and for another set of tokens.
    """
    if (theirs := raw.about["checkpoint"]) != found.about["checkpoint"]:
        raise InputError(
            f"{path} is of another checkpoint ({str(theirs)[:12]}) than the features; extract both at once"
        )
    if (raw.about.get("data") or {}).get("corpus") != (found.about.get("data") or {}).get("corpus"):
        raise InputError(f"{path} is of other data than the features; extract both at once")
    if raw.table.duplicated(KEY).any():
        raise InputError(f"{path}: a document and position is there twice; extract it again")
    index = pd.MultiIndex.from_frame(raw.table[KEY])
    at = index.get_indexer(pd.MultiIndex.from_frame(found.table[KEY]))
    if (missing := int((at < 0).sum())) or len(index) != len(at):
        more = len(index) - (len(at) - missing)
        raise InputError(
            f"{path}: {missing} tokens of the features are missing, {more} are others; extract both at once"
        )
    ids = ["token_id", "target_id"]
    if differ := int((raw.table[ids].to_numpy()[at] != found.table[ids].to_numpy()).any(1).sum()):
        raise InputError(f"{path}: {differ} of {len(at)} tokens or targets are others; extract both at once")
    return raw.X[at]


def raw_rows_of(paths: Sequence[Path], tables: Sequence[Path]) -> np.ndarray:
    """Raw activations [n, D] of the tokens of several feature tables, a file of `paths` for each, in their order.

    Raises `InputError` as `raw_rows`, and for files of different hooks.
    """
    raw = [read_raw(path) for path in paths]
    for path, one in zip(paths, raw, strict=True):
        if one.hooks != raw[0].hooks:
            raise InputError(f"{path} has other hooks than {paths[0]}: {', '.join(one.hooks)}; extract both alike")
    each = zip(raw, tables, paths, strict=True)
    return np.concatenate([raw_rows(one, read_features(table), path) for one, table, path in each])


def agreement_table(
    ours: np.ndarray, raw: np.ndarray, documents: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """ARI and AMI of labels `ours` [n] with `raw` [n], −1 for noise; a row per measure and set of tokens.

    Columns: n, documents, clusters on either side, value, interval (ARI bootstrap, AMI jackknife; over documents),
    control. Undefined for fewer than two tokens, intervals for fewer than eight documents.
    """
    both = (ours >= 0) & (raw >= 0)
    dealt = np.random.default_rng(seed).permutation(raw)
    rows = []
    for tokens, inside in (("all, noise a cluster", np.full(len(ours), True)), ("in clusters of both", both)):
        a, b, d = ours[inside], raw[inside], documents[inside]
        control = np.random.default_rng(seed).permutation(b) if tokens.startswith("in") else dealt
        for measure in ("ARI", "AMI"):
            row: dict[str, Any] = {"tokens": tokens, "measure": measure, "n": len(a), "documents": len(set(d.tolist()))}
            row |= {"clusters": len(set(a.tolist()) - {-1}), "raw_clusters": len(set(b.tolist()) - {-1})}
            row |= dict.fromkeys(("value", "value_low", "value_high", "control"), np.nan)
            if len(a) > 1:
                of = adjusted_rand if measure == "ARI" else adjusted_mutual_information
                row |= {"value": of(a, b), "control": of(a, control)}
            if row["documents"] >= BOOTSTRAP_CLUSTERS:
                interval = (
                    adjusted_rand_interval(a, b, d, resamples=resamples, seed=seed)
                    if measure == "ARI"
                    else adjusted_mutual_information_interval(a, b, d, seed=seed)
                )
                row |= dict(zip(("value_low", "value_high"), interval, strict=True))
            rows.append(row)
    table = pd.DataFrame(rows)
    table = mark(table, ["value", "control"], table["n"] < 2, "fewer than two tokens in clusters of both")
    few = table["documents"] < BOOTSTRAP_CLUSTERS
    return mark(table, ["value_low", "value_high"], few, f"fewer than {BOOTSTRAP_CLUSTERS} documents")


def apart(ours: np.ndarray, raw: np.ndarray, ids: np.ndarray, documents: np.ndarray) -> Observations | None:
    """Does the same token lie in different clusters? Labels [n] of features and of raw activations, token ids [n].

    Of the tokens in clusters of both that occur in another document there as well: the share of the other documents'
    tokens of the same id that lie in another cluster. Cells: features, raw, and features dealt to the tokens at random;
    units: the tokens of an id in a document, clustered by both, for the pairs of an id cross documents. None where
    there is no such token.
    """
    both = np.flatnonzero((ours >= 0) & (raw >= 0))
    dealt = np.random.default_rng(0).permutation(ours[both])
    token, of = (np.unique(one[both], return_inverse=True)[1] for one in (ids, documents))
    others = _alike(token) - _alike(token, of)
    if not (there := others > 0).any():
        return None
    names, unit = np.unique(np.stack([documents[both], ids[both]], 1)[there], axis=0, return_inverse=True)
    units = pd.DataFrame({"unit": [f"{d}, {i}" for d, i in names], "cluster": [tuple(one) for one in names.tolist()]})
    unit, total = unit.ravel(), []
    for labels in (ours[both], raw[both], dealt):
        same = _alike(token, labels) - _alike(token, labels, of)
        share = 1 - same[there] / others[there]
        total.append(np.bincount(unit, share, minlength=len(names)))
    return Observations(
        measure=Measure(name="apart", unit="share of tokens", resolution=1e-9),
        cells=pd.DataFrame({"clusters_of": ["features", "raw", "dealt"]}),
        units=units,
        total=np.stack(total), size=np.bincount(unit, minlength=len(names)).astype(float),
    )  # fmt: skip


def _alike(*labels: np.ndarray) -> np.ndarray:
    """[n] how many rows have the same labels, each row itself among them."""
    _, of, n = np.unique(np.stack(labels, 1), axis=0, return_inverse=True, return_counts=True)
    return n[of.ravel()]


def stability_table(
    modes: ComputationalModes,
    X: pd.DataFrame,
    documents: np.ndarray,
    runs: int,
    *,
    sample: float = 0.8,
    progress: Callable[[Iterable], Iterable] = iter,
) -> pd.DataFrame:
    """ARI of fitted `modes` with fits on other seeds and on random documents, over the tokens in both.

    `runs` fits of each kind; HDBSCAN* draws no random numbers, so that other seeds are undefined by construction: one
    row that says so. Columns: kind, run, n, clusters, coverage, ari (noise a cluster), ari_clustered.
    """
    kinds: Sequence[str] = ("seed", "documents") if modes.method == "kmeans" else ("documents",)
    names, of = np.unique(documents, return_inverse=True)
    rows = []
    for kind, run in progress([(kind, run) for kind in kinds for run in range(1, runs + 1)]):
        inside = np.full(len(X), True)
        if kind == "documents":
            rng = np.random.default_rng([modes.seed, run])
            chosen = rng.permutation(len(names))[: max(1, round(sample * len(names)))]
            inside = np.isin(of, chosen)
        again = clone(modes).set_params(seed=modes.seed + (run if kind == "seed" else 0)).fit(X[inside])
        a, b = modes.labels_[inside], again.labels_
        row = {"kind": kind, "run": run, "n": int(inside.sum()), "clusters": int(b.max()) + 1}
        both = (a >= 0) & (b >= 0)
        inner = adjusted_rand(a[both], b[both]) if both.sum() > 1 else np.nan
        rows.append(row | {"coverage": (b >= 0).mean(), "ari": adjusted_rand(a, b), "ari_clustered": inner})
    table = pd.DataFrame(rows).astype({"ari": float, "ari_clustered": float, "coverage": float})
    table = mark(table, ["ari_clustered"], table["ari_clustered"].isna(), "fewer than two tokens in clusters of both")
    if "seed" not in kinds:
        none = {"kind": "seed", "run": 0, "n": len(X), "clusters": 0, "undefined": ""}
        table = pd.concat([table, pd.DataFrame([none])], ignore_index=True)
        where = table["kind"] == "seed"
        table = mark(table, ["coverage", "ari", "ari_clustered"], where, "HDBSCAN* draws no random numbers")
    return table
