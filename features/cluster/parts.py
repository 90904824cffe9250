"""Clusters of disjoint parts of the documents: an interval for their number, and a comparison of two ways to cluster.

Fits on overlapping documents are not independent, so the documents are split into disjoint parts. Each part is
clustered (`clusters`, `coverage`) and clustered again without a fifth of its documents. `ari` is the agreement of the
two fits on the tokens of both with noise as a cluster, `ari_clustered` on the tokens in clusters of both. The same
parts can be clustered in another way, by other features or parameters; differences are paired by part.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.cluster.checks import refit_agreement
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.store import KEY, Features, read_features
from streamscope.instruments.contract import Progress
from streamscope.instruments.observations import Contrast, Measure, Observations, estimate_all, joined
from streamscope.instruments.table import Table, counts, described, key, quantity

if TYPE_CHECKING:
    from streamscope.features.cluster import Cluster

LEFT_OUT = 0.2
"""Share of a part's documents left out of the second fit."""
LIKENESS = "1: same clusters, 0: chance level"
QUANTITIES = {
    "clusters": "clusters", "coverage": "share of tokens", "ari": LIKENESS, "ari_clustered": LIKENESS,
}  # fmt: skip
"""Quantity -> unit."""


def other_way(options: "Cluster", features: Features) -> tuple["Cluster", Features] | None:
    """The options and features to compare with, if any. Raises `InputError` for other weights or other tokens."""
    if options.against is None and options.against_size is None and options.against_samples is None:
        return None
    reference = features if options.against is None else read_features(options.against)
    if reference.about["checkpoint"] != features.about["checkpoint"]:
        raise InputError(
            f"--against {options.against} has another checkpoint than the features; extract both from one run"
        )
    index = [*KEY, "token_id"]
    if not np.array_equal(reference.table[index].to_numpy(), features.table[index].to_numpy()):
        raise InputError(
            f"--against {options.against} holds other tokens than the features; extract both from one text"
        )
    size, samples = options.against_size or options.min_cluster_size, options.against_samples or options.min_samples
    return replace(options, min_cluster_size=size, min_samples=samples), reference


def parts_table(
    ways: Sequence[tuple[ComputationalModes, pd.DataFrame]], documents: np.ndarray, parts: int, seed: int,
    progress: Progress,
) -> Table:  # fmt: skip
    """One row per quantity, from unfitted modes and features [tokens]; a second way is compared with the first.

    Raises `InputError` for fewer than five documents per part.
    """
    names, of = np.unique(documents, return_inverse=True)
    if len(names) < 5 * parts:
        raise InputError(
            f"--parts {parts}: too many for {counted(len(names), 'document')}, a part needs five; extract more"
        )
    rng = np.random.default_rng(seed)
    assigned = rng.permutation(np.arange(len(names)) % parts)[of]
    draw = rng.random(len(names))
    values = np.full((len(ways), len(QUANTITIES), parts), np.nan)
    for part in progress(list(range(parts))):
        inside = np.flatnonzero(assigned == part)
        part_documents = np.unique(of[inside])
        out = part_documents[np.argsort(draw[part_documents])[: max(1, round(LEFT_OUT * len(part_documents)))]]
        again = ~np.isin(of[inside], out)
        for w, (modes, x) in enumerate(ways):
            values[w, :, part] = _numbers(modes, x.iloc[inside], again)
    return _table(values)


def _numbers(modes: ComputationalModes, x: pd.DataFrame, again: np.ndarray) -> list[float]:
    """The quantities of one part; `again` [tokens] marks the tokens of the second fit."""
    labels = clone(modes).fit(x).labels_
    agreement = refit_agreement(labels[again], clone(modes).fit(x[again]).labels_)
    return [float(labels.max() + 1), float((labels >= 0).mean()), *agreement]


def _table(values: np.ndarray) -> Table:
    """Estimates over the parts, from values [ways, quantities, parts]."""
    ways, blocks, contrasts = ("own", "against")[: len(values)], dict[str, Observations](), dict[str, list[Contrast]]()
    units = pd.DataFrame({"unit": [str(i) for i in range(values.shape[2])], "cluster": range(values.shape[2])})
    for i, (name, unit) in enumerate(QUANTITIES.items()):
        measure = Measure(name=name, unit=unit, resolution=1e-9)
        cells = pd.DataFrame({"way": ways})
        blocks[name] = Observations(measure=measure, cells=cells, units=units, total=values[:, i], size=1.0)
        labels: dict[str, Any] = {"of": name}
        way_contrasts = [
            Contrast(quantity=way, weights={w: 1.0}, labels=labels, null=None) for w, way in enumerate(ways)
        ]
        if len(ways) > 1:
            way_contrasts.append(
                Contrast(quantity="difference", weights={0: 1.0, 1: -1.0}, labels=labels, family="parts")
            )
        contrasts[name] = way_contrasts
    parts = [joined([estimates], ["of"], COLUMNS) for estimates in estimate_all(blocks, contrasts).values()]
    frame = pd.concat([part for part, _ in parts], ignore_index=True)
    frame.insert(1, "unit", list(QUANTITIES.values()))
    missing = {(i, column): reason for i, (_, reasons) in enumerate(parts) for (_, column), reason in reasons.items()}
    columns = tuple(column for column in COLUMNS if column.name in frame)
    return Table(frame, columns, missing, f"{values.shape[2]} disjoint parts of the documents, clustered separately")


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
