"""Computational modes: clusters of tokens that a model processes alike (PLS §4.1, App. C.4).

    python -m features.cluster                                            features.parquet, HDBSCAN, into clusters/
    python -m features.cluster topk.parquet --raw topk-raw.parquet --out modes
    python -m features.cluster features.parquet --method kmeans           ten clusters of all columns, as in §4.1
    python -m features.cluster a.parquet b.parquet                        tokens of two corpora, clustered together
    python -m features.cluster --predict other.parquet --out modes        labels for new tokens, nothing is fitted

Writes to the folder --out: labels.parquet (one row per token: cluster, −1 for noise, probability, k*, a UMAP position
for display), clusters.parquet (one row per cluster), depth.parquet, summary.parquet, modes.safetensors (what --predict
reads), clusters.html; with --raw agreement.parquet, how far the clusters are those of raw activations under the same
pipeline; with --stability stability.parquet, how far they come back from other seeds and from a part of the documents.
What an earlier run left in the folder and this one does not write is deleted: these two, and predicted labels.

Labels of several tables have a column `file`, the place of the token's table among them; documents are numbered on.

Columns that are zero by construction are left out and counted. Features are those of `features.extract`; what the
pipeline does, and which library does it, is said in `features.cluster.modes`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Bounds, Count, Seed, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, progress_bar, show

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.features.cluster.modes import ComputationalModes
    from streamscope.features.store import Features

MODES = "modes.safetensors"
AGREEMENT_UNITS = {"value": "1: the same clusters, 0: as by chance", "n": "tokens", "documents": "documents"}
STABILITY_UNITS = {"ari": "with the clusters of all tokens", "n": "tokens in both", "coverage": "share of its tokens"}
OPTIONAL = ("agreement", "stability")
"""Tables that are written where an option asks for them."""
LABEL_UNITS = {"k_star": "layers", "probability": "λ/λ_max", "cluster": "−1: noise"}
SHOWN = ("cluster", "n", "distinct", "documents", "probability", "k_star_mean", "k_star_sd", "early", "middle", "late")
"""Columns of clusters.parquet on the screen, for the `LARGEST` clusters."""
LARGEST = 15


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m features.cluster`."""

    features: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("features.parquet"),)
    """Tables of `features.extract`, of one model and different data."""
    out: Path = Path("clusters")
    """Folder to write to."""
    method: Literal["hdbscan", "kmeans"] = "hdbscan"
    """hdbscan leaves tokens between clusters out (C.4), kmeans assigns every token (§4.1)."""
    components: Count | Literal["auto", "all"] = "auto"
    """Principal components, at most as many as columns; auto: 30 for hdbscan, all columns as they are for kmeans."""
    min_cluster_size: Annotated[int, Bounds(low=2)] = 10
    """Tokens of the smallest cluster (hdbscan)."""
    min_samples: Count = 1
    """Neighbours that make a token dense (hdbscan)."""
    selection: Literal["eom", "leaf"] = "eom"
    """Clusters of most excess of mass, or the smallest ones (hdbscan)."""
    clusters: Annotated[int, Bounds(low=2)] = 10
    """Clusters of kmeans."""
    seed: Seed = 0
    """Of kmeans, UMAP, resamples and subsamples."""
    drop_constant: bool = False
    """Leave out columns that happen to be constant in this table instead of refusing it."""
    umap: bool = True
    """Place tokens on a map (15 neighbours, minimal distance 0.1) for display."""
    raw: tuple[Path, ...] = ()
    """Raw activations of the same tokens (`features.extract --raw`), to cluster alike and compare; one per table."""
    resamples: Annotated[int, Bounds(low=100)] = 1000
    """Of the bootstrap over documents."""
    stability: Whole = 0
    """Fits on other seeds (kmeans) and on random 80 % of the documents."""
    predict: Path | None = None
    """Give the tokens of this table the clusters that the folder --out holds; writes predicted-NAME.parquet there."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, cluster, print, write."""
    options = parse(Options, argv, __doc__)
    _check(options)
    if options.predict is not None:
        _predict(options, options.predict)
        return

    import numpy as np

    from streamscope.features.cluster.checks import agreement_table, raw_rows_of, stability_table
    from streamscope.features.cluster.description import (
        CLUSTER_UNITS,
        DEPTH_UNITS,
        SUMMARY_UNITS,
        cluster_table,
        depth_table,
        plot,
        summary_table,
    )
    from streamscope.features.store import read_features
    from streamscope.probes.tables import write_atomically, write_table

    found = read_features(options.features)
    if (n := len(found.table)) < max(options.min_cluster_size, 2):
        raise InputError(f"{n} tokens are fewer than --min-cluster-size {options.min_cluster_size}; extract more")
    if options.min_samples >= n:
        raise InputError(f"--min-samples {options.min_samples}: a token has {n - 1} others; give fewer or extract more")
    x, dropped = _columns(options, found)
    if options.method == "kmeans" and (distinct := len(x.drop_duplicates())) < options.clusters:
        raise InputError(f"{distinct} distinct feature vectors are fewer than --clusters {options.clusters}")
    umap = _umap(options) if options.umap else None
    raw = raw_rows_of(options.raw, options.features) if options.raw else None
    modes = _modes(options).fit(x, progress=progress_bar("distances"))
    labels = _labels(found, modes.labels_, modes.probabilities_)
    z, vector = np.unique(modes.transform(x), axis=0, return_inverse=True)
    if umap is not None:
        _place(umap, labels, z, vector)
    n_layers, kstar = found.about["n_layers"], found.about["options"]["kstar"]
    clusters, depth = cluster_table(labels, vector, n_layers, kstar), depth_table(labels, n_layers, kstar)
    counts = (modes.n_distinct_, x.shape[1], dropped)
    summary = summary_table(labels, clusters, *counts, modes.explained_variance_ratio_)
    about = _about(options, found, options.features)
    tables = {
        "labels": (labels, LABEL_UNITS),
        "summary": (summary, SUMMARY_UNITS),
        "depth": (depth, DEPTH_UNITS),
        "clusters": (clusters, CLUSTER_UNITS),
    }
    documents = labels["document"].to_numpy()
    if raw is not None:
        theirs = _modes(options).fit(raw, progress=progress_bar("raw")).labels_
        draws = {"resamples": options.resamples, "seed": options.seed}
        tables["agreement"] = (agreement_table(modes.labels_, theirs, documents, **draws), AGREEMENT_UNITS)
    if options.stability:
        again = stability_table(modes, x, documents, options.stability, progress=progress_bar("stability"))
        tables["stability"] = (again, STABILITY_UNITS)
    name = f"{found.about['preset']}, {options.method}"
    covered = (labels["cluster"] >= 0).mean()
    title = f"{name}: {len(clusters):,} clusters hold {covered:.1%} of {len(labels):,} tokens"
    for name, (table, units) in tables.items():
        if name != "labels":
            _print(name, table, title)
        units = {column: unit for column, unit in units.items() if column in table}
        write_table(table, options.out / f"{name}.parquet", units=units, about=about)
    modes.save(options.out / MODES, checkpoint=found.about["checkpoint"], features=found.about["options"])
    page = plot(labels, clusters, n_layers, title).to_html(include_plotlyjs=True)
    write_atomically(options.out / "clusters.html", lambda part: part.write_text(page, encoding="utf-8"))
    print(f"{', '.join(f'{one}.parquet' for one in tables)}, {MODES}, clusters.html in {options.out}")
    optional = [options.out / f"{name}.parquet" for name in OPTIONAL if name not in tables]
    if removed := _remove([*optional, *sorted(options.out.glob("predicted-*.parquet"))]):
        print(f"deleted, of an earlier run: {', '.join(path.name for path in removed)}")


def _check(options: Options) -> None:
    """Raise `InputError` for options that make no sense, before anything is read."""
    if options.raw and len(options.raw) != len(options.features):
        raise InputError(f"--raw: {len(options.raw)} files for {len(options.features)} tables; give one for each")
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out {options.out} is a file; name a folder")


def _modes(options: Options, seed: int | None = None) -> "ComputationalModes":
    """The clusterer of the options."""
    from streamscope.features.cluster.modes import ComputationalModes

    return ComputationalModes(
        options.method,
        components=None if options.components == "all" else options.components,
        min_cluster_size=options.min_cluster_size,
        min_samples=options.min_samples,
        selection=options.selection,
        n_clusters=options.clusters,
        seed=options.seed if seed is None else seed,
    )


def _columns(options: Options, found: "Features") -> "tuple[pd.DataFrame, int]":
    """The features that vary, and how many were left out as zero by construction."""
    names = [column.name for column in found.columns if not column.constant]
    x = found.table[names]
    constant = [name for name in names if x[name].min() == x[name].max()]
    if constant and not options.drop_constant:
        some = ", ".join(constant[:5]) + (", …" if len(constant) > 5 else "")
        raise InputError(f"{len(constant)} columns have one value in all rows: {some}; --drop-constant leaves them out")
    if len(constant) == len(names):
        raise InputError("every column has one value in all rows: nothing to cluster; extract more tokens")
    if constant:
        print(f"constant in this table, left out: {', '.join(constant)}")
    return x.drop(columns=constant), len(found.columns) - len(names)


def _labels(found: "Features", cluster: "np.ndarray", probability: "np.ndarray") -> "pd.DataFrame":
    """One row per token, as `labels.parquet` has them."""
    names = ["file"] if "file" in found.table else []
    table = found.table[[*names, "document", "position", "token_id", "token", "target", "prediction"]].copy()
    table["k_star"] = found.table["k_star" if "k_star" in found.table else "processing_depth"].astype("int32")
    table["cluster"] = cluster.astype("int32")
    table["probability"] = probability.astype("float32")
    return table


def _umap(options: Options) -> Any:
    """UMAP as PLS C.4 has it, for display; imported only here, for it compiles at its first start."""
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError:
        raise InputError("the map needs umap-learn: pip install 'streamscope[cluster]', or give --no-umap") from None
    return UMAP(n_neighbors=15, min_dist=0.1, random_state=options.seed, n_jobs=1)


def _about(options: Options, found: "Features", files: Sequence[Path]) -> dict[str, Any]:
    """What a table of clusters says about itself."""
    from streamscope.models.provenance import provenance
    from streamscope.models.text.readers import digest

    asked = asdict(options) | {"features": [str(path) for path in options.features], "out": str(options.out)}
    asked |= {"raw": [str(path) for path in options.raw], "predict": options.predict and str(options.predict)}
    read = [{"path": str(path), "sha256": digest(path, path.parent)["sha256"]} for path in files]
    about = {"features": read[0] if len(read) == 1 else read, "method": asked.pop("method"), "options": asked}
    about |= {name: found.about[name] for name in ("run", "preset", "checkpoint", "data")}
    return {"clusters": about, **provenance("cpu")}


def _remove(paths: Sequence[Path]) -> list[Path]:
    """Delete those of `paths` that are tables of clusters, which a new run left behind; other files are not ours."""
    from streamscope.features.store import read_about_of

    removed = []
    for path in paths:
        try:
            read_about_of(path, "clusters")
        except InputError:
            continue
        path.unlink()
        removed.append(path)
    return removed


def _place(umap: Any, labels: "pd.DataFrame", z: "np.ndarray", vector: "np.ndarray") -> None:
    """Add columns x and y: each distinct vector is placed once."""
    import sys

    from rich.console import Console

    if len(z) <= umap.n_neighbors:
        print(f"no map: {len(z)} distinct vectors, it needs more than {umap.n_neighbors}")
        return
    with Console(file=sys.stderr).status(f"map of {len(z):,} distinct vectors"):
        labels[["x", "y"]] = umap.fit_transform(z)[vector].astype("float32")


def _print(name: str, table: "pd.DataFrame", title: str) -> None:
    """A table as it is of use on the screen, and why cells are undefined."""
    from streamscope.features.cluster.description import RANGES
    from streamscope.probes.undefined import legend

    columns: tuple[str, ...] = tuple(column for column in table if column not in ("ci_low", "ci_high", "undefined"))
    if "ci_low" in table:
        columns = (*columns, INTERVAL)
    if name == "clusters":
        title, columns = f"the {min(LARGEST, len(table))} largest of {len(table):,} clusters", SHOWN
        table = table.head(LARGEST)
    elif name == "depth":
        title, table = "processing depth (k*, layers); by k* in depth.parquet", table[table["depth"].isin(RANGES)]
    elif name == "summary":
        table = table.assign(value=[f"{v:,.0f}" if v == round(v) else f"{v:.3f}" for v in table["value"]])
    else:
        title = {"agreement": "agreement with clusters of raw activations", "stability": "other fits"}[name]
    show(table, title, columns)
    if lines := legend(table):
        print(lines)


def _predict(options: Options, path: Path) -> None:
    """Labels of the tokens of another table, by the clusters in the folder --out."""
    from streamscope.features.cluster.modes import ComputationalModes
    from streamscope.features.store import read_features
    from streamscope.probes.tables import write_table

    modes = ComputationalModes.load(options.out / MODES)
    found = read_features(path)
    for what, theirs, ours in (
        ("checkpoint", modes.about_["checkpoint"], found.about["checkpoint"]),
        ("options", modes.about_["features"], found.about["options"]),
    ):
        if theirs != ours:
            raise InputError(f"{path} has another {what} than the clusters in {options.out}; extract it alike")
    x = found.table[list(modes.feature_names_in_)]
    labels = _labels(found, *modes.predict_soft(x, progress=progress_bar("tokens")))
    out = options.out / f"predicted-{path.stem}.parquet"
    about = _about(options, found, (path,))
    about["clusters"] |= {"method": modes.method, "parameters": modes.get_params()}
    write_table(labels, out, units=LABEL_UNITS, about=about)
    print(f"{(labels['cluster'] >= 0).mean():.1%} of {len(labels):,} tokens are in a cluster: {out}")


if __name__ == "__main__":
    command(main)
