"""Which predictions stay when only the last tokens are left, by the layer at which they settle."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.features.cluster.description import RANGES, depth_ranges
from streamscope.features.compute.reader import FeatureReader
from streamscope.features.extract import Extract
from streamscope.features.needed_context import NeededContext
from streamscope.instruments.about_model import title_of
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Opened, Tokens
from streamscope.instruments.observations import NUMBERS, Contrast, Estimates, Measure, Observations, Reasons, each
from streamscope.instruments.table import Column, Table, counts, described, key, quantity

BINS = 10
"""Of confidence, as many tokens in each."""
AT_ONCE = 512
"""Windows in a forward pass."""
NAMES = {"kept": "share of tokens", "beyond": "share of tokens"}


def observe(how: NeededContext, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: groups of k* × windows, and pairs of groups × windows; units: the tokens of a document that are predicted
    to be followed by one word, clustered by the document and by the word."""
    tokens = rows_of(how, model, data, progress)
    groups = groups_of(how, tokens["k_star"].to_numpy(), model.config.n_layers)
    names, of = np.unique(tokens[["document", "word"]].to_numpy(), axis=0, return_inverse=True)
    of, documents = of.ravel(), len(np.unique(names[:, 0]))
    units = pd.DataFrame(
        {"unit": [f"{d}, {word}" for d, word in names], "cluster": [tuple(one) for one in names.tolist()]}
    )
    bins = bins_of(tokens["confidence"].to_numpy())
    measured: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for window in how.windows:
        kept = tokens[f"kept_{window}"].to_numpy(float)
        measured["kept"].append(kept)
        measured["beyond"].append(kept - (np.bincount(bins, kept) / np.bincount(bins))[bins])
    blocks, contrasts = dict[str, Observations](), dict[str, list[Contrast]]()
    for name, values in measured.items():
        for suffix, made in (
            ("", alone(values, groups, how.windows, of)),
            ("-pairs", pairs(values, groups, how.windows, of)),
        ):
            cells, total, size = (list(part) for part in zip(*made, strict=True)) if made else ([], [], [])
            if not cells:
                continue
            blocks[name + suffix] = Observations(
                measure=Measure(name=name, unit=NAMES[name], resolution=1e-9), cells=pd.DataFrame(cells), units=units,
                total=np.stack(total), size=np.stack(size),
            )  # fmt: skip
            more = {} if suffix else {"null": None}
            contrasts[name + suffix] = each(name, blocks[name + suffix].cells, **more)
    title = f"{title_of(model)}: predictions that stay with the last tokens alone; {len(tokens):,} tokens of "
    title += f"{documents} documents, from position {how.least}"
    counted = {name: int(inside.sum()) for name, inside in groups.items()}
    return InstrumentData(blocks, contrasts, {"title": title}, extra=counted)


Cells = list[tuple[dict[str, Any], np.ndarray, np.ndarray]]


def alone(
    values: list[np.ndarray], groups: Mapping[str, np.ndarray], windows: tuple[int, ...], of: np.ndarray
) -> Cells:
    """(keys, totals, sizes) [units] of every group under every window."""
    found: Cells = []
    for window, value in zip(windows, values, strict=True):
        for name, inside in groups.items():
            total, n = (np.bincount(of[inside], weight, minlength=of.max() + 1) for weight in (value[inside], None))
            found.append(({"depths": name, "window": window}, total, n))
    return found


def pairs(
    values: list[np.ndarray], groups: Mapping[str, np.ndarray], windows: tuple[int, ...], of: np.ndarray
) -> Cells:
    """Each group minus each that is named after it, under every window; Holm's family are all of them.

    A unit need not hold tokens of both groups, so that the difference R₁ − R₂ of their means is one cell, whose totals
    are linearised: N (Σ₁ (y − R₁) / n₁ − Σ₂ (y − R₂) / n₂) + (R₁ − R₂) n, of n tokens of N in the unit. Their sum over
    N is the difference, and what a unit moves it by is that of the two means.
    """
    found: Cells = []
    for window, y in zip(windows, values, strict=True):
        for (one, first), (other, second) in combinations(groups.items(), 2):
            either, means = first | second, [y[inside].mean() for inside in (first, second)]
            moved = first * (y - means[0]) / first.sum() - second * (y - means[1]) / second.sum()
            n = np.bincount(of[either], minlength=of.max() + 1)
            total = either.sum() * np.bincount(of, moved, minlength=len(n)) + (means[0] - means[1]) * n
            found.append(({"depths": one, "other": other, "window": window}, total, n))
    return found


def rows_of(how: NeededContext, model: Any, data: Opened, progress: Progress) -> pd.DataFrame:
    """One row per token from `least` on: document, k_star, confidence, predicted word, and kept_W of every window.

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
        row |= {"confidence": found.X[at, place["confidence"]], "word": whole}
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


def tables(how: NeededContext, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """A row per group and window; and one per pair of groups."""
    made = dict[str, Table]()
    for suffix, keys in (("", ["depths", "window"]), ("-pairs", ["depths", "other", "window"])):
        if f"kept{suffix}" not in estimates:  # one group has no other
            continue
        parts = [estimates[f"{name}{suffix}"].wide(keys, describe=NUMBERS[2:4]) for name in NAMES]
        frame = pd.concat([part for part, _ in parts], axis=1)
        frame = frame.loc[:, ~frame.columns.duplicated()]
        missing: Reasons = {at: why for _, some in parts for at, why in some.items()}
        if not suffix:
            frame.insert(2, "tokens", frame["depths"].map(seen.extra))
        columns, title = (
            (PAIRS, f"{seen.about['title']}: one group minus another") if suffix else (GROUPS, seen.about["title"])
        )
        made["pairs" if suffix else "needed_context"] = Table(frame, columns, missing, title)
    return made


DEPTHS = key("depths", "k*", "layers until the prediction is the final one", "layers")
WINDOW = key("window", "window", "tokens that are left, the query among them", "tokens", "d")
SHARE = "share of tokens"
STAY, OVER = (
    "whose prediction stays",
    "kept − what all tokens of about as much confidence keep, the group's own among them",
)
BOTH = "documents and predicted words"
COUNTS = counts("documents × predicted words", "documents, or predicted words where these are fewer")
GROUPS = (
    DEPTHS, WINDOW,
    Column(name="tokens", title="tokens", unit="tokens", format=",d", doc="of the group"),
    *described("kept", "kept", SHARE, STAY, format=".3f", source="PLS §4.2, C.5"),
    *described("beyond", "beyond", SHARE, OVER, format="+.3f"),
    *COUNTS,
)  # fmt: skip
PAIRS = (
    DEPTHS, key("other", "minus k*", "of the tokens that are compared with", "layers"), WINDOW,
    *quantity("kept", "kept", SHARE, f"difference of tokens {STAY}", format="+.3f", sd=BOTH),
    *quantity("beyond", "beyond", SHARE, f"difference of {OVER}", format="+.3f", sd=BOTH),
    *COUNTS,
)  # fmt: skip
