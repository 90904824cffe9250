"""Whether gates predict where removing a head matters: |Δ loss| by the head's own gate, and by another head's.

    Halves    tokens above the gate's median in their document, and below it                 (DST §2.6)
    Modes     tokens of modes in which the gate is low throughout, and of the other modes    (PLS §3.4)

A gate per channel is averaged over the channels. The other gate is that of the next head in the layer (for the last
head the first). It separates tokens where every removal costs more from tokens where this one does. Layers with one
head have no such table.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import checkpoint_of
from streamscope.instruments.observations import Contrast, Measure, Observations
from streamscope.instruments.open_data import Document
from streamscope.instruments.table import counts, described, key, quantity, read_about, read_parquet
from streamscope.interventions.observe import NATS
from streamscope.interventions.selection import Group
from streamscope.models.head_spec import Head

GATE, ALL_HEADS = "attn.hook_gate", "all heads"
NO_GATE = "no gate varies within a document"
NO_MODE = "its gate is not low throughout any mode"
PART = "share of the head's mean |Δ loss|"
KINDS = ("low", "other")
OF_MODES = Measure(name="mode", unit=PART, resolution=0.01)
CONSISTENT = 0.9
"""A gate counts as low in a mode if it is below its document's median at this share of the mode's tokens."""
LABELS = ("document", "position", "token_id", "cluster")


def gates_of(model: Any, document: Document) -> dict[int, np.ndarray]:
    """Layer -> gate [T, heads] at the positions of the document; empty for a model without gates."""
    if not any(name.endswith(GATE) for name in model.hook_dict):
        return {}
    with torch.no_grad():
        ids = torch.tensor([document.ids[:-1]], device=model.cfg.device)
        _, cache = model.run_with_cache(ids, names_filter=lambda name: name.endswith(GATE))
    return {
        int(name.split(".")[1]): value[0, document.unscored :].double().mean(-1).cpu().numpy()
        for name, value in cache.items()
    }


def single_heads(groups: Sequence[Group]) -> tuple[tuple[int, ...], tuple[Head, ...]]:
    """The groups of one head: their numbers, and the heads."""
    single = [(i, group.heads[0]) for i, group in enumerate(groups) if len(group.heads) == 1]
    return tuple(i for i, _ in single), tuple(head for _, head in single)


class Halves:
    """|Δ loss| from removing single heads, at tokens where a gate is above its median of the document, and below."""

    title = "|Δ loss| where the gate is open, minus where it is closed"

    def __init__(self, model: Any, groups: Sequence[Group], documents: int) -> None:
        self.edits, self.heads = single_heads(groups)
        # [heads, own or next head's gate, above or below, documents]
        self.total, self.size = np.zeros((2, len(self.heads), 2, 2, documents))
        self.n_heads = model.config.n_heads

    def add(self, index: int, gates: dict[int, np.ndarray], size: np.ndarray) -> None:
        """Add document `index` with changes of the loss `size` [edits, T]; without `gates` it has no halves."""
        for i, (head, edit) in enumerate(zip(self.heads, self.edits, strict=True)):
            for k, head_index in enumerate((head.head, (head.head + 1) % self.n_heads) if gates else ()):
                gate = gates[head.layer][:, head_index]
                for j, half in enumerate((gate > np.median(gate), gate < np.median(gate))):
                    self.total[i, k, j, index], self.size[i, k, j, index] = size[edit][half].sum(), half.sum()

    def observe(self, units: pd.DataFrame) -> tuple[Observations, list[Contrast]]:
        """Cells: heads × gates × halves. Units: documents. Contrasts per head and for the mean over heads: own, above
        minus below the median of the head's own gate; beyond, that minus the same for the next head's gate."""
        names, n = [head.label for head in self.heads], len(self.heads)
        keys = list(product(names, ("own", "beside"), ("above", "below")))
        cells = pd.DataFrame(keys, columns=["edit", "gate", "half"])
        with_halves, reason = self.size.any((0, 1, 2)), ""  # documents of one token have no halves
        if not with_halves.any():
            with_halves, reason = ~with_halves, NO_GATE
        size, total = (x[..., with_halves].reshape(len(cells), -1) for x in (self.size, self.total))
        block = Observations(
            measure=Measure(name="gate", unit="nats/token", resolution=NATS.resolution), cells=cells,
            units=units[with_halves].reset_index(drop=True), total=total, size=size,
        )  # fmt: skip
        contrasts = []
        for name, rows in ((ALL_HEADS, range(n)), *((name, (i,)) for i, name in enumerate(names))):
            weights = {4 * i + j: sign / len(rows) for i in rows for j, sign in ((0, 1.0), (1, -1.0))}
            neighbour = {cell + 2: -weight for cell, weight in weights.items()}
            contrasts += [
                Contrast(quantity="own", weights=weights, labels={"edit": name}, missing=reason),
                Contrast(quantity="beyond", weights={**weights, **neighbour}, labels={"edit": name}, missing=reason),
            ]
        return block, contrasts


class Modes:
    """|Δ loss| from removing single heads, in modes where a gate is low throughout, and in the other modes. Relative to
    each head's mean over tokens in modes, so that strong heads do not dominate. Heads without a low mode are left out.
    Raises `InputError` for labels of another model or of other tokens, and if no position has a mode."""

    def __init__(self, model: Any, groups: Sequence[Group], chosen: Sequence[Document], path: Path) -> None:
        self.edits, self.heads = single_heads(groups)
        self.cluster = read_modes(path, model, chosen)
        n = 1 + max(int(mode.max(initial=-1)) for mode in self.cluster)
        if not n:
            raise InputError(f"--modes {path}: none of the {len(chosen)} documents has a token in a mode")
        below, tokens = np.zeros((model.config.n_layers, model.config.n_heads, n)), np.zeros(n)
        for document, mode in zip(chosen, self.cluster, strict=True):  # a second pass over the documents, for the gates
            in_mode = mode >= 0
            tokens += np.bincount(mode[in_mode], minlength=n)
            for layer, gate in gates_of(model, document).items():
                for head, under in enumerate((gate < np.median(gate, 0)).T):
                    below[layer, head] += np.bincount(mode[in_mode & under], minlength=n)
        low = (below >= CONSISTENT * tokens) & (tokens > 0)
        neighbours = [(head.layer, (head.head + 1) % model.config.n_heads) for head in self.heads]
        self.own = np.array([low[head.layer, head.head] for head in self.heads])  # [heads, modes]
        self.neighbours = np.array([low[neighbour] for neighbour in neighbours])
        self.sums: list[tuple[int, int, int, np.ndarray]] = []  # document, mode, tokens, Σ |Δ loss| [heads]

    def add(self, index: int, gates: dict[int, np.ndarray], size: np.ndarray) -> None:
        """Add document `index` with changes of the loss `size` [edits, T]; the gates themselves are already known."""
        for mode in np.unique(self.cluster[index]):
            if mode >= 0 and gates:
                inside = self.cluster[index] == mode
                self.sums.append((index, int(mode), int(inside.sum()), size[list(self.edits)][:, inside].sum(1)))

    @property
    def title(self) -> str:
        """How many heads have low modes, and how many tokens are in a mode."""
        n_in_mode, tokens = sum(int((mode >= 0).sum()) for mode in self.cluster), sum(map(len, self.cluster))
        return (
            f"|Δ loss| in modes where the gate is low at {CONSISTENT:.0%} of the tokens, and in other modes: "
            f"{int(self.own.any(1).sum())} of {len(self.own)} heads have low modes, {self.own.sum(1).mean():.1f} of "
            f"{self.own.shape[1]} on average; {n_in_mode:,} of {tokens:,} tokens are in a mode"
        )

    def observe(self, units: pd.DataFrame) -> tuple[Observations, list[Contrast]]:
        """Cells: heads × own gate or the next head's × low or other modes. Units: tokens of a document in one mode,
        clustered two-way by document and mode. Contrasts: low, other, own = low − other, beyond = own − the same by the
        next head's gate. A unit is in low modes or in others, so each cell counts over its own units."""
        names = [ALL_HEADS, *(head.label for head in self.heads)]
        cells = pd.DataFrame(list(product(names, ("own", "next"), KINDS)), columns=["edit", "gate", "kind"])
        if not self.sums:
            nothing = np.zeros((len(cells), len(units)))
            block = Observations(measure=OF_MODES, cells=cells, units=units, total=nothing, size=nothing)
            return block, [c for i, name in enumerate(names) for c in _contrasts(4 * i, name, NO_GATE, NO_GATE)]
        document_index, mode, tokens = (np.array(column) for column in list(zip(*self.sums, strict=True))[:3])
        lost = np.array([entry[3] for entry in self.sums]).T  # [heads, units]
        part = lost / np.maximum(lost.sum(1, keepdims=True) / tokens.sum(), np.finfo(float).tiny)
        rows, contrasts = list[np.ndarray](), list[Contrast]()
        for i, name in enumerate(names):
            selection = slice(None) if not i else slice(i - 1, i)
            own_parts, neighbour = (
                by_modes(part[selection], tokens, flags[selection][:, mode]) for flags in (self.own, self.neighbours)
            )
            rows += [own_parts, neighbour]
            reason = "" if own_parts.any() else NO_MODE
            contrasts += _contrasts(4 * i, name, reason, reason or ("" if neighbour.any() else NO_MODE))
        documents = units["unit"].to_numpy()[document_index]
        where = pd.DataFrame({
            "unit": [f"{document}, mode {k}" for document, k in zip(documents, mode, strict=True)],
            "cluster": list(zip(units["cluster"].to_numpy()[document_index].tolist(), mode.tolist(), strict=True)),
        })  # fmt: skip
        total, size = np.concatenate(rows, axis=1)
        return Observations(measure=OF_MODES, cells=cells, units=where, total=total, size=size), contrasts


def by_modes(part: np.ndarray, tokens: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Totals of `part` [heads, units] and tokens, in low modes and in others [2, 2, units]; 0 if no head has modes of
    both kinds."""
    mixed = low.any(1) & ~low.all(1)
    part, low = part[mixed], low[mixed]
    return np.array([[(x * kind).sum(0) for kind in (low, ~low)] for x in (part, tokens)], float)


def _contrasts(first: int, name: str, reason: str, beyond: str) -> list[Contrast]:
    low, other, next_low, next_other = range(first, first + 4)
    own = {low: 1.0, other: -1.0}
    plain: dict[str, Any] = {"labels": {"edit": name}, "missing": reason}
    tested: dict[str, Any] = {**plain, "own_units": True}
    return [
        Contrast(quantity="low", weights={low: 1.0}, null=None, **plain),
        Contrast(quantity="other", weights={other: 1.0}, null=None, **plain),
        Contrast(quantity="own", weights=own, **tested),
        Contrast(quantity="beyond", weights={**own, next_low: -1.0, next_other: 1.0}, **tested | {"missing": beyond}),
    ]


def read_modes(path: Path, model: Any, chosen: Sequence[Document]) -> tuple[np.ndarray, ...]:
    """Mode of the positions [T] of each document from labels of `features.cluster`, −1 for none. Raises `InputError`
    for another file, labels of other weights, and labels of other tokens."""
    about = read_about(path).get("about", {})
    table = read_parquet(path).to_pandas()
    if lacks := [name for name in LABELS if name not in table]:
        raise InputError(f"--modes {path} has no column {lacks[0]!r}; give the labels of features.cluster")
    if table.duplicated(["document", "position"]).any():
        raise InputError(f"--modes {path} labels a token twice; give labels of one feature table")
    checkpoint = about.get("data", {}).get("FeatureTables", {}).get("checkpoint")
    if checkpoint is not None and checkpoint != checkpoint_of(model)["checkpoint"]:
        raise InputError(f"--modes {path} comes from another checkpoint than this model; cluster this model's features")
    by_document = {int(number): rows.set_index("position") for number, rows in table.groupby("document")}
    modes = []
    for document in chosen:
        rows = by_document.get(document.document, table.iloc[:0].set_index("position")).reindex(document.positions)
        has_mode = rows["cluster"].notna().to_numpy()
        if (rows["token_id"].to_numpy()[has_mode] != np.asarray(document.ids[document.unscored : -1])[has_mode]).any():
            raise InputError(f"--modes {path}: document {document.document} has other tokens; give labels of this data")
        modes.append(rows["cluster"].fillna(-1).to_numpy().astype(int))
    return tuple(modes)


GATES = (
    key("edit", "edit", "the removed head, or the mean over all heads"),
    *quantity("own", "open − closed gate", "nats/token", "|Δ loss| above the median of its own gate − below",
              sd="documents"),
    *quantity("beyond", "beyond next head's gate", "nats/token",
              "the same − that by the gate of the next head in its layer", sd="documents"),
    *counts("documents or windows", "documents"),
)  # fmt: skip
MODES = (
    key("edit", "edit", "the removed head, or tokens of all heads"),
    *described("low", "low modes", PART, "|Δ loss| in modes where the gate is low throughout", format=".3f"),
    *described("other", "other modes", PART, "|Δ loss| in all other modes", format=".3f"),
    *quantity("own", "low − other", PART, "|Δ loss| in low modes of its own gate − in its other modes",
              sd="documents, in linear order"),
    *quantity("beyond", "beyond next head's gate", PART, "the same − that by the gate of the next head in its layer",
              sd="documents, in linear order"),
    *counts("modes of documents", "documents or modes, in low or in other modes, whichever is fewest"),
)  # fmt: skip
SPLITS = {"gate": ("gates", GATES), "mode": ("modes", MODES)}
"""Block -> table, and its columns."""
