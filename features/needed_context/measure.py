"""Which predictions stay when only the last tokens are kept, by the layer at which they settle."""

from collections.abc import Mapping
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.compute import RANGES, FeatureReader, depth_ranges
from streamscope.features.extract import Extract
from streamscope.features.needed_context import NeededContext
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Tokens
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, joined
from streamscope.instruments.table import Table, counts, described, key, number, quantity

BINS = 10  # bins of confidence, with equal numbers of tokens
AT_ONCE = 512  # windows per forward pass
SHARE = "share of tokens"
LIMITS = {"kept": (0.0, 1.0), "beyond": (-1.0, 1.0)}


def observe(options: NeededContext, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: groups of k* × windows, and pairs of groups × windows. Units: tokens of a document with one predicted
    word, clustered by document and by word."""
    tokens = rows_of(options, model, data, progress)
    groups = groups_of(options, tokens["k_star"].to_numpy(), model.config.n_layers)
    names, of = np.unique(tokens[["document", "word"]].to_numpy(), axis=0, return_inverse=True)
    of, documents = of.ravel(), len(np.unique(names[:, 0]))
    units = pd.DataFrame({"unit": [f"{d}, {word}" for d, word in names], "cluster": [*map(tuple, names.tolist())]})
    bins = bins_of(tokens["confidence"].to_numpy())
    hits = {window: tokens[f"kept_{window}"].to_numpy(float) for window in options.windows}
    beyond = {window: x - (np.bincount(bins, x) / np.bincount(bins))[bins] for window, x in hits.items()}
    measurements = InstrumentData(extra={name: int(inside.sum()) for name, inside in groups.items()})
    for name, values in {"kept": hits, "beyond": beyond}.items():
        measure = Measure(name=name, unit=SHARE, resolution=1e-9, limits=LIMITS[name])
        cells, total, size = group_cells(values, groups, of)
        block = measurements.add(measure, cells, units, total, size, null=None)
        if pairs := pair_contrasts(name, block):  # a single group has none
            measurements.blocks[f"{name}-pairs"], measurements.contrasts[f"{name}-pairs"] = block, pairs
    title = f"{title_of(model)}: predictions kept with only the last tokens; {counted(len(tokens), 'token', ',')} of "
    title += f"{counted(documents, 'document')}, from position {options.least}"
    measurements.about["title"] = title
    return measurements


def group_cells(
    values: Mapping[int, np.ndarray], groups: Mapping[str, np.ndarray], of: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """(keys, totals, sizes [cells, units]) of every group (name -> [tokens] whether it is in) and window (window ->
    [tokens])."""
    cells = list(product(values, groups))
    sums = partial(np.bincount, minlength=of.max() + 1)
    total = [sums(of[groups[name]], values[window][groups[name]]) for window, name in cells]
    size = [sums(of[groups[name]]) for _, name in cells]
    return pd.DataFrame(cells, columns=["window", "depths"])[["depths", "window"]], np.stack(total), np.stack(size)


def pair_contrasts(quantity: str, groups: Observations) -> list[Contrast]:
    """Each group minus each later group, under every window; Holm's family is all of them. A unit need not hold tokens
    of both groups, so each group counts over its own units."""
    contrasts = []
    for window, rows in groups.cells.groupby("window", sort=False)["depths"]:
        for (i, first), (j, second) in combinations(rows.items(), 2):
            labels = {"depths": first, "other": second, "window": window}
            contrasts.append(Contrast(quantity=quantity, weights={i: 1.0, j: -1.0}, labels=labels, own_units=True))
    return contrasts


def rows_of(options: NeededContext, model: Any, data: Opened, progress: Progress) -> pd.DataFrame:
    """One row per token from `least` on: document, k_star, confidence, predicted word, and kept_W per window. Raises
    `InputError` if no document is long enough."""
    reader = FeatureReader(model, Extract(tier="core", anchor_heads=("all",), entity_heads=("all",)))
    place = {column.name: i for i, column in enumerate(reader.columns)}
    documents = [d for d in data[Tokens].documents() if max(options.least, d.unscored) < len(d.ids) - 1]
    parts: list[dict[str, Any]] = []
    for document, window in progress(list(product(documents, (0, *options.windows)))):
        ids, positions = np.array(document.ids), np.arange(max(options.least, document.unscored), len(document.ids) - 1)
        if not window:  # the whole document
            features = reader.read([document.ids])
            k_star, confidence = (features.X[positions, place[name]] for name in ("processing_depth", "confidence"))
            row = {"document": document.document, "k_star": k_star.astype(int), "confidence": confidence}
            parts.append(row | {"word": features.prediction[positions]})
            continue
        rows = np.column_stack([np.full(len(positions), ids[0]), ids[positions[:, None] + np.arange(1 - window, 1)]])
        parts[-1][f"kept_{window}"] = predictions(model, rows) == parts[-1]["word"]
    if not parts:
        raise InputError(f"no document has {options.least + 2} tokens; give longer documents or a smaller --least")
    return pd.concat(map(pd.DataFrame, parts), ignore_index=True)


@torch.no_grad()
def predictions(model: Any, rows: np.ndarray) -> np.ndarray:
    """[n] argmax of the next token after each of the rows [n, T] of token ids."""
    results = []
    for batch in np.array_split(rows, -(-len(rows) // AT_ONCE)):
        tokens = torch.tensor(batch, device=model.cfg.device)
        last = torch.full((len(tokens), 1), tokens.shape[1] - 1, device=tokens.device)
        results.append(model(tokens, last)[:, 0].argmax(-1).cpu().numpy())
    return np.concatenate(results)


def groups_of(options: NeededContext, k_star: np.ndarray, n_layers: int) -> dict[str, np.ndarray]:
    """Group name -> [tokens] whether k* is in the group, for groups with tokens. Raises `InputError` for text that is
    not a number or a range within 0 … L."""
    ranges = depth_ranges(k_star, n_layers)
    groups = {} if options.depths else {name: ranges == i for i, name in enumerate(RANGES)}
    for text in options.depths:
        first, _, last = text.partition("-")
        ends = (first, last or first)
        if not all(end.isdecimal() for end in ends) or not int(ends[0]) <= int(ends[1]) <= n_layers:
            raise InputError(f"--depths {text}: give K or K-K, with layers from 0 to {n_layers}")
        groups[text] = (k_star >= int(ends[0])) & (k_star <= int(ends[1]))
    return {name: inside for name, inside in groups.items() if inside.any()}


def bins_of(confidence: np.ndarray) -> np.ndarray:
    """[tokens] one of `BINS` bins of equal size by confidence; equal values share a bin."""
    edges = np.quantile(confidence, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.unique(np.searchsorted(edges, confidence, side="right"), return_inverse=True)[1]


def tables(options: NeededContext, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    title = data.about["title"]
    frame, missing = joined([estimates["kept"], estimates["beyond"]], ["depths", "window"], GROUPS)
    frame.insert(2, "tokens", frame["depths"].map(data.extra))
    results = {"needed_context": Table(frame, GROUPS, missing, title)}
    if "kept-pairs" in estimates:  # a single group has no pair
        pair_estimates = [estimates["kept-pairs"], estimates["beyond-pairs"]]
        frame, missing = joined(pair_estimates, ["depths", "other", "window"], PAIRS)
        results["pairs"] = Table(frame, PAIRS, missing, f"{title}: one group minus another")
    return results


DEPTHS = key("depths", "k*", "layers until the prediction is final", "layers")
WINDOW = key("window", "window", "tokens that are kept, including the query", "tokens", "d")
STAY, OVER = "tokens whose prediction stays", "kept − what all tokens of similar confidence keep"
BOTH = "documents and predicted words"
COUNTS = counts("documents × predicted words", "documents, or predicted words if there are fewer")
GROUPS = (
    DEPTHS, WINDOW,
    number("tokens", "tokens", "tokens", "tokens of the group", ",d"),
    *described("kept", "predictions kept", SHARE, STAY, format=".3f", source="PLS §4.2, C.5"),
    *described("beyond", "kept beyond confidence", SHARE, OVER, format="+.3f"),
    *COUNTS,
)  # fmt: skip
PAIRS = (
    DEPTHS, key("other", "minus k*", "k* of the group that is subtracted", "layers"), WINDOW,
    *quantity("kept", "predictions kept", SHARE, f"difference: {STAY}", format="+.3f", sd=BOTH),
    *quantity("beyond", "kept beyond confidence", SHARE, f"difference: {OVER}", format="+.3f", sd=BOTH),
    *counts("documents × predicted words", "documents or predicted words, in either group, whichever is fewest"),
)  # fmt: skip
