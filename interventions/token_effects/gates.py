"""Do gates say where the removal of a head matters? |Δ loss| by the head's own gate, beside that by another head's.

    Halves    tokens above the median of the gate in their document, and below it            (DST §2.6)
    Modes     tokens of modes in which the gate is low throughout, and of the other modes    (PLS §3.4)

A gate per channel is meaned over the channels. The other gate is that of the head beside it in its layer (the last
one's is the first): tokens at which every removal costs more are told from those at which this one does.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from streamscope.interventions.observe import SMALLEST
from streamscope.interventions.selection import Group
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.probes.contract import checkpoint_of
from streamscope.probes.documents import Document
from streamscope.probes.observations import Contrast, Measure, Observations
from streamscope.probes.result import counts, described, key, quantity
from streamscope.probes.tables import read_about

GATE, ALL_HEADS = "attn.hook_gate", "all heads"
NO_GATE = "no gate that moves within a document"
NO_MODE = "no gate is low throughout a mode"
CONSISTENT = 0.9
"""Share of a mode's tokens at which a gate is below its median of the document, from which on it is low in the mode."""
LABELS = ("document", "position", "token_id", "cluster")


def gates_of(model: Any, one: Document) -> dict[int, np.ndarray]:
    """Layer -> gate [T, heads] at the positions of the document; empty for a model without gates."""
    if not any(name.endswith(GATE) for name in model.hook_dict):
        return {}
    with torch.no_grad():
        ids = torch.tensor([one.ids[:-1]], device=model.cfg.device)
        _, cache = model.run_with_cache(ids, names_filter=lambda name: name.endswith(GATE))
    return {
        int(name.split(".")[1]): value[0, one.unscored :].double().mean(-1).cpu().numpy()
        for name, value in cache.items()
    }


def blank(model: Any, groups: Sequence[Group], documents: int) -> dict[str, Any]:
    """Fields of a `Split` before its first document; none for one head in a layer, and for edits of several heads."""
    alone = [i for i, group in enumerate(groups) if len(group.heads) == 1]
    if not alone or model.config.n_heads < 2:
        return {}
    heads, shape = tuple(groups[i].heads[0] for i in alone), (len(alone), 2, 2, documents)
    return {
        "heads": heads, "edits": tuple(alone), "total": np.zeros(shape), "size": np.zeros(shape),
        "n_heads": model.config.n_heads,
    }  # fmt: skip


@dataclass(frozen=True)
class Split(ABC):
    """|Δ loss| of the removal of single heads at two kinds of tokens, that a gate tells apart: the head's own gate, or
    that of the head beside it."""

    heads: tuple[Head, ...]
    edits: tuple[int, ...]
    """Which edits remove these heads alone."""
    total: np.ndarray
    """Σ |Δ loss| [heads, own or beside, two kinds, documents]."""
    size: np.ndarray
    """Tokens, of the same shape."""
    n_heads: int
    KINDS: ClassVar[tuple[str, str]]

    def add(self, at: int, gates: dict[int, np.ndarray], size: np.ndarray) -> None:
        """Document `at`, whose removals change the loss by `size` [edits, T]; without `gates` it has no tokens."""
        for i, (head, edit) in enumerate(zip(self.heads, self.edits, strict=True)):
            for k, which in enumerate((head.head, (head.head + 1) % self.n_heads) if gates else ()):
                for j, kind in enumerate(self.kinds(gates[head.layer][:, which], head.layer, which, at)):
                    self.total[i, k, j, at], self.size[i, k, j, at] = size[edit][kind].sum(), kind.sum()

    @abstractmethod
    def kinds(self, gate: np.ndarray, layer: int, head: int, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Which tokens of document `at` are of the first kind, and of the second, by the gate [T] of a head."""

    @abstractmethod
    def observed(self, units: pd.DataFrame) -> tuple[Observations, list[Contrast]]:
        """Cells and contrasts, of every head and of all."""

    @abstractmethod
    def title(self) -> str:
        """Of the table."""

    def cells(self, names: Sequence[str]) -> pd.DataFrame:
        """Those of `total`, in its order."""
        kinds = [(name, gate, kind) for name in names for gate in ("own", "beside") for kind in self.KINDS]
        return pd.DataFrame(kinds, columns=["edit", "gate", "kind"])


class Halves(Split):
    """Tokens where a gate is above its median of the document, and where it is below."""

    KINDS: ClassVar = ("above", "below")

    @classmethod
    def of(cls, model: Any, groups: Sequence[Group], documents: int) -> "Halves | None":
        """None for one head in a layer, and for edits of several heads alone."""
        fields = blank(model, groups, documents)
        return cls(**fields) if fields else None

    def kinds(self, gate: np.ndarray, layer: int, head: int, at: int) -> tuple[np.ndarray, np.ndarray]:
        return gate > np.median(gate), gate < np.median(gate)

    def title(self) -> str:
        return "|Δ loss| where the gate is open beside where it is closed"

    def observed(self, units: pd.DataFrame) -> tuple[Observations, list[Contrast]]:
        """Contrasts: own, by the head's own gate, above minus below; beyond, that minus the same by the gate beside it;
        of every head and of the mean over heads."""
        names, n = [head.label for head in self.heads], len(self.heads)
        kept, why = self.size.any((0, 1, 2)), ""  # a document of one token has no halves
        if not kept.any():
            kept, why = ~kept, NO_GATE
        cells = self.cells(names)
        size, total = (x[..., kept].reshape(len(cells), -1) for x in (self.size, self.total))
        block = Observations(
            measure=Measure(name="gate", unit="nats/token", resolution=SMALLEST["loss"]), cells=cells,
            units=units[kept].reset_index(drop=True), total=np.where(size > 0, total, np.nan), size=size,
        )  # fmt: skip
        contrasts = []
        for name, rows in ((ALL_HEADS, range(n)), *((name, (i,)) for i, name in enumerate(names))):
            own = {4 * i + j: sign / len(rows) for i in rows for j, sign in ((0, 1.0), (1, -1.0))}
            beside = {at + 2: -weight for at, weight in own.items()}
            contrasts += [
                Contrast(quantity="own", weights=own, labels={"edit": name}, missing=why),
                Contrast(quantity="beyond", weights={**own, **beside}, labels={"edit": name}, missing=why),
            ]
        return block, contrasts


@dataclass(frozen=True)
class Modes(Split):
    """Tokens of the modes in which a gate is low throughout, and tokens of the other modes."""

    cluster: tuple[np.ndarray, ...]
    """Mode of every position [T] of each document, −1 for none."""
    low: np.ndarray
    """Whether the gate of a head is low throughout a mode [layers, heads, modes]."""
    KINDS: ClassVar = ("low", "other")

    @classmethod
    def of(cls, model: Any, groups: Sequence[Group], chosen: Sequence[Document], path: Path) -> "Modes | None":
        """With the modes at `path`, None as `Halves.of`; every document is read once more, for its gates alone.

        Raises `InputError` for labels of another model or of other tokens, and where no position has a mode.
        """
        cluster = read_modes(path, model, chosen)
        n = 1 + max(int(mode.max(initial=-1)) for mode in cluster)
        if not n:
            raise InputError(f"--modes {path}: none of the {len(chosen)} documents has a token in a mode")
        below, tokens = np.zeros((model.config.n_layers, model.config.n_heads, n)), np.zeros(n)
        for one, mode in zip(chosen, cluster, strict=True):
            held = mode >= 0
            tokens += np.bincount(mode[held], minlength=n)
            for layer, gate in gates_of(model, one).items():
                for head, under in enumerate((gate < np.median(gate, 0)).T):
                    below[layer, head] += np.bincount(mode[held & under], minlength=n)
        low = (below >= CONSISTENT * tokens) & (tokens > 0)
        fields = blank(model, groups, len(chosen))
        return cls(**fields, cluster=cluster, low=low) if fields else None

    def kinds(self, gate: np.ndarray, layer: int, head: int, at: int) -> tuple[np.ndarray, np.ndarray]:
        mode, low = self.cluster[at], self.low[layer, head]
        if not low.any():  # of such a head there is nothing to compare
            return (np.zeros(len(mode), bool),) * 2
        return (mode >= 0) & low[mode], (mode >= 0) & ~low[mode]

    def title(self) -> str:
        some = sum(bool(self.low[head.layer, head.head].any()) for head in self.heads)
        modes, n = int(sum(self.low[head.layer, head.head].sum() for head in self.heads)), self.low.shape[-1]
        held, all_of = sum(int((mode >= 0).sum()) for mode in self.cluster), sum(map(len, self.cluster))
        return (
            f"|Δ loss| in modes where the gate is low at {CONSISTENT:.0%} of the tokens beside the others: {some} of "
            f"{len(self.heads)} heads have some, {modes / len(self.heads):.1f} of {n} on average; {held:,} of "
            f"{all_of:,} tokens are in a mode"
        )

    def observed(self, units: pd.DataFrame) -> tuple[Observations, list[Contrast]]:
        """In parts of each head's mean over tokens in modes, so that of all heads no kind has more of the strong ones.

        Contrasts: low and other, as they are; own, low minus other by the head's own gate; beyond, that minus the same
        by the gate beside it; of every head, and of all heads' tokens together.
        """
        with np.errstate(invalid="ignore", divide="ignore"):  # a head without such a mode has no tokens
            mean = self.total.sum((2, 3), keepdims=True) / self.size.sum((2, 3), keepdims=True)
            part = np.where(self.size > 0, self.total / mean, 0.0)
        names = [ALL_HEADS, *(head.label for head in self.heads)]
        cells = self.cells(names)
        total, size = (np.concatenate([x.sum(0, keepdims=True), x]).reshape(len(cells), -1) for x in (part, self.size))
        block = Observations(
            measure=Measure(name="mode", unit=PART, resolution=0.01), cells=cells, units=units,
            total=np.where(size > 0, total, np.nan), size=size,
        )  # fmt: skip
        contrasts = []
        for i, name in enumerate(names):
            labels, at = {"edit": name}, 4 * i
            why = "" if size[at : at + 2].any() else NO_MODE
            own = {at: 1.0, at + 1: -1.0}
            contrasts += [
                Contrast(quantity="low", weights={at: 1.0}, labels=labels, null=None, missing=why),
                Contrast(quantity="other", weights={at + 1: 1.0}, labels=labels, null=None, missing=why),
                Contrast(quantity="own", weights=own, labels=labels, missing=why),
                Contrast(quantity="beyond", weights={**own, at + 2: -1.0, at + 3: 1.0}, labels=labels,
                         missing=why or ("" if size[at + 2 : at + 4].any() else NO_MODE)),
            ]  # fmt: skip
        return block, contrasts


def read_modes(path: Path, model: Any, chosen: Sequence[Document]) -> tuple[np.ndarray, ...]:
    """Mode of the positions [T] of each document, −1 where there is none, of the labels that `features.cluster` wrote.

    Raises `InputError` for another file, labels of other weights, and labels of other tokens.
    """
    about = read_about(path).get("about", {})
    table = pd.read_parquet(path)
    if lacks := [name for name in LABELS if name not in table]:
        raise InputError(f"--modes {path} has no column {lacks[0]!r}; give the labels of `features.cluster`")
    if table.duplicated(["document", "position"]).any():
        raise InputError(f"--modes {path} labels a token twice; give labels of one table of features")
    named = about.get("data", {}).get("FeatureTables", {}).get("checkpoint")
    if named is not None and named != checkpoint_of(model)["checkpoint"]:
        raise InputError(f"--modes {path} is of another checkpoint than this model; cluster features of this one")
    by_document = {int(number): rows.set_index("position") for number, rows in table.groupby("document")}
    modes = []
    for one in chosen:
        rows = by_document.get(one.document, table.iloc[:0].set_index("position")).reindex(one.positions)
        known = rows["cluster"].notna().to_numpy()
        if (rows["token_id"].to_numpy()[known] != np.asarray(one.ids[one.unscored : -1])[known]).any():
            raise InputError(f"--modes {path}: document {one.document} has other tokens; give labels of this data")
        modes.append(rows["cluster"].fillna(-1).to_numpy().astype(int))
    return tuple(modes)


PART = "of the head's mean |Δ loss|"
GATES = (
    key("edit", "edit", "the head that is removed; all heads: the mean over those that are removed alone"),
    *quantity("own", "by its gate", "nats/token", "|Δ loss| above the median of its own gate − below", sd="documents"),
    *quantity("beyond", "beyond a gate beside", "nats/token", "the same − by the gate of the next head of its layer",
              sd="documents"),
    *counts("documents, or windows of them", "documents"),
)  # fmt: skip
MODES = (
    key("edit", "edit", "the head that is removed; all heads: tokens of all that are removed alone"),
    *described("low", "low modes", PART, "|Δ loss| in modes where the gate is low throughout", format=".3f"),
    *described("other", "other modes", PART, "|Δ loss| in all other modes", format=".3f"),
    *quantity("own", "low − other", PART, "in modes where its own gate is low − in others", sd="documents"),
    *quantity("beyond", "beyond a gate beside", PART, "the same − by the modes of the next head of its layer",
              sd="documents"),
    *counts("documents, or windows of them", "documents"),
)  # fmt: skip
SPLITS = {"gate": ("gates", GATES), "mode": ("modes", MODES)}
"""Block -> table and its columns."""
