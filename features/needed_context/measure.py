"""Which predictions stay when only the last tokens are left, by the layer at which they settle."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.features.cluster.description import RANGES, depth_ranges
from streamscope.features.compute.reader import FeatureReader
from streamscope.features.extract import Extract
from streamscope.features.needed_context import NeededContext
from streamscope.models.errors import InputError
from streamscope.probes.contract import Opened, Progress, Seen, Tokens, title_of
from streamscope.probes.observations import NUMBERS, Contrast, Estimates, Measure, Observations, Reasons, each
from streamscope.probes.result import Column, Table, counts, described, key, quantity

BINS = 10
"""Of confidence, as many tokens in each."""
AT_ONCE = 512
"""Windows in a forward pass."""
NAMES = {"kept": "share of tokens", "beyond": "share of tokens"}


def observe(how: NeededContext, model: Any, data: Opened, progress: Progress) -> Seen:
    """Cells: groups of k* × windows; units: documents, tokens that keep their prediction over tokens."""
    tokens = rows_of(how, model, data, progress)
    n_layers = model.config.n_layers
    groups = groups_of(how, tokens["k_star"].to_numpy(), n_layers)
    documents, of = np.unique(tokens["document"].to_numpy(), return_inverse=True)
    bins = bins_of(tokens["confidence"].to_numpy())
    cells, size = [], []
    total: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for window in how.windows:
        kept = tokens[f"kept_{window}"].to_numpy(float)
        expected = (np.bincount(bins, kept) / np.bincount(bins))[bins]
        for name, inside in groups.items():
            cells.append({"depths": name, "window": window})
            n = np.bincount(of[inside], minlength=len(documents))
            size.append(n)
            for what, values in (("kept", kept), ("beyond", kept - expected)):
                sums = np.bincount(of[inside], values[inside], minlength=len(documents))
                total[what].append(np.where(n > 0, sums, np.nan))
    units = pd.DataFrame({"unit": [str(d) for d in documents], "cluster": documents})
    blocks = {
        name: Observations(
            measure=Measure(name=name, unit=unit, resolution=1e-9), cells=pd.DataFrame(cells), units=units,
            total=np.stack(total[name]), size=np.maximum(np.stack(size), 1),
        )
        for name, unit in NAMES.items()
    }  # fmt: skip
    contrasts: dict[str, list[Contrast]] = {name: each(name, block.cells, null=None) for name, block in blocks.items()}
    for name, block in list(blocks.items()):
        blocks[f"{name}-pairs"], contrasts[f"{name}-pairs"] = block, pairs(name, block, list(groups), how.windows)
    title = f"{title_of(model)}: predictions that stay with the last tokens alone; {len(tokens):,} tokens of "
    title += f"{len(documents)} documents, from position {how.least}"
    counted = {name: int(inside.sum()) for name, inside in groups.items()}
    return Seen(blocks, contrasts, {"title": title}, extra=counted)


def pairs(name: str, block: Observations, groups: list[str], windows: tuple[int, ...]) -> list[Contrast]:
    """Each group minus each that is named after it, under every window; Holm's family are all of them."""
    found = []
    for window in windows:
        for one, other in combinations(groups, 2):
            weights = {block.cell(depths=one, window=window): 1.0, block.cell(depths=other, window=window): -1.0}
            labels = {"depths": one, "other": other, "window": window}
            found.append(Contrast(quantity=name, weights=weights, labels=labels))
    return found


def rows_of(how: NeededContext, model: Any, data: Opened, progress: Progress) -> pd.DataFrame:
    """One row per token from `least` on: document, k_star, confidence, and kept_W of every window.

    Raises `InputError` where no document is long enough.
    """
    reader = FeatureReader(model, Extract(tier="core", anchor_heads=("all",), entity_heads=("all",)))
    place = {column.name: i for i, column in enumerate(reader.columns)}
    parts = []
    for one in progress(list(data[Tokens].documents())):
        at = np.arange(max(how.least, one.unscored), len(one.ids) - 1)
        if not len(at):
            continue
        found, ids = reader.read([one.ids]), np.array(one.ids)
        whole = found.prediction[at]
        row = {"document": one.document, "k_star": found.X[at, place["processing_depth"]].astype(int)}
        row |= {"confidence": found.X[at, place["confidence"]]}
        for window in how.windows:
            last = ids[at[:, None] + np.arange(1 - window, 1)]
            said = predictions(model, np.column_stack([np.full(len(at), ids[0]), last]))
            row[f"kept_{window}"] = said == whole
        parts.append(pd.DataFrame(row))
    if not parts:
        raise InputError(f"no document has {how.least + 2} tokens; give longer ones, or a smaller --least")
    return pd.concat(parts, ignore_index=True)


@torch.no_grad()
def predictions(model: Any, rows: np.ndarray) -> np.ndarray:
    """[n] argmax of the next token behind each of the rows [n, T] of token ids."""
    found = []
    for some in np.array_split(rows, -(-len(rows) // AT_ONCE)):
        tokens = torch.tensor(some, device=model.cfg.device)
        last = torch.full((len(tokens), 1), tokens.shape[1] - 1, device=tokens.device)
        found.append(model(tokens, last)[:, 0].argmax(-1).cpu().numpy())
    return np.concatenate(found)


def groups_of(how: NeededContext, k_star: np.ndarray, n_layers: int) -> dict[str, np.ndarray]:
    """Name -> [tokens] whether k* is of the group, as far as there are such tokens.

    Raises `InputError` for what is no number or range of numbers within 0 … L.
    """
    if not how.depths:
        ranges = depth_ranges(k_star, n_layers)
        named = {name: ranges == i for i, name in enumerate(RANGES)}
    else:
        named = {}
        for text in how.depths:
            first, _, last = text.partition("-")
            ends = (first, last or first)
            if not all(end.isdecimal() for end in ends) or not int(ends[0]) <= int(ends[1]) <= n_layers:
                raise InputError(f"--depths {text}: give K or K-K, layers from 0 to {n_layers}")
            named[text] = (k_star >= int(ends[0])) & (k_star <= int(ends[1]))
    return {name: inside for name, inside in named.items() if inside.any()}


def bins_of(confidence: np.ndarray) -> np.ndarray:
    """[tokens] one of `BINS` bins of as many tokens each, by confidence; equal values in the same bin."""
    edges = np.quantile(confidence, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.unique(np.searchsorted(edges, confidence, side="right"), return_inverse=True)[1]


def tables(how: NeededContext, seen: Seen, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """A row per group and window; and one per pair of groups."""
    made = {}
    for suffix, keys in (("", ["depths", "window"]), ("-pairs", ["depths", "other", "window"])):
        parts = [estimates[f"{name}{suffix}"].wide(keys, describe=NUMBERS[1:4]) for name in NAMES]
        frame = pd.concat([part for part, _ in parts], axis=1)
        frame = frame.loc[:, ~frame.columns.duplicated()]
        missing: Reasons = {at: why for _, some in parts for at, why in some.items()}
        made[suffix] = frame, missing
    frame, missing = made[""]
    frame.insert(2, "tokens", frame["depths"].map(seen.extra))
    title = seen.about["title"]
    return {
        "needed_context": Table(frame, GROUPS, missing, title),
        "pairs": Table(made["-pairs"][0], PAIRS, made["-pairs"][1], f"{title}: one group minus another"),
    }


DEPTHS = key("depths", "k*", "layers until the prediction is the final one", "layers")
WINDOW = key("window", "window", "tokens that are left, the query among them", "tokens", "d")
SHARE = "share of tokens"
STAY, OVER = "whose prediction stays", "kept − what all tokens of as much confidence keep"
GROUPS = (
    DEPTHS, WINDOW,
    Column(name="tokens", title="tokens", unit="tokens", format=",d", doc="of the group"),
    *described("kept", "kept", SHARE, STAY, format=".3f", sd="documents", source="PLS §4.2, C.5"),
    *described("beyond", "beyond", SHARE, OVER, format="+.3f", sd="documents"),
    *counts("documents", "documents"),
)  # fmt: skip
PAIRS = (
    DEPTHS, key("other", "minus k*", "of the tokens that are compared with", "layers"), WINDOW,
    *quantity("kept", "kept", SHARE, f"difference of tokens {STAY}", format="+.3f", sd="documents"),
    *quantity("beyond", "beyond", SHARE, f"difference of {OVER}", format="+.3f", sd="documents"),
    *counts("documents", "documents"),
)  # fmt: skip
