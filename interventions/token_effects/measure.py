"""The rows of every token, window by window, and the mean of every edit over documents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import SMALLEST
from streamscope.interventions.observe.answers import ticks
from streamscope.interventions.selection import Group, HeadFinder
from streamscope.interventions.token_effects import TokenEffects
from streamscope.interventions.token_effects.sweep import Effects, token_effects
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.models.text.strides import WindowedShards
from streamscope.probes.contract import Opened, Progress, Seen, Tokens, checkpoint_of, title_of
from streamscope.probes.documents import WINDOW, Document
from streamscope.probes.observations import Contrast, Estimates, Measure, Observations
from streamscope.probes.prompts.alignment import check_tokenizer
from streamscope.probes.result import Column, LongTable, Table, counts, described, key, quantity

AT_ONCE = 128
"""Documents whose effects are in memory at a time; a row group of the file."""
GATE, ALL_HEADS = "attn.hook_gate", "all heads"
NO_GATE = "no gate that moves within a document"
DELTAS = {"delta_loss": "edited − unedited, of the target", "delta_log_p": "edited − unedited, of ŷ"}


def observe(how: TokenEffects, model: Any, data: Opened, progress: Progress) -> Seen:
    """Cells: edits; units: documents. The rows go to a file as they come, only their sums are kept."""
    groups, opened = groups_of(how, model), data[Tokens]
    chosen = list(opened.documents())
    if not chosen:
        raise InputError("no document of the data has a token to predict; give another --data")
    sums = np.zeros((4, len(groups), len(chosen)))
    halves = Halves.of(model, groups, len(chosen))
    names = [group.name for group in groups]
    windows = WINDOW if isinstance(opened.shards, WindowedShards) else ()
    rows = LongTable.of(
        _tables(model, groups, how.scale, chosen, sums, halves, progress, windows=bool(windows)),
        columns(names, windows), f"{title_of(model)}: tokens",
    )  # fmt: skip
    cells = pd.DataFrame([cell_of(group) for group in groups])
    units = opened.units()
    tokens = np.array([len(one.positions) for one in chosen], float)
    seen = Seen({}, {}, extra=rows)
    for name, totals in zip((*DELTAS, *(f"abs_{name}" for name in DELTAS)), sums, strict=True):
        measure = Measure(name=name, unit="nats/token", resolution=SMALLEST["loss"])
        seen.blocks[name] = Observations(measure=measure, cells=cells, units=units, total=totals, size=tokens)
        labels = cells.astype(object).where(cells.notna(), None).to_dict("records")
        null = None if name.startswith("abs") else 0.0
        seen.contrasts[name] = [
            Contrast(quantity=name, weights={i: 1.0}, labels=at, null=null) for i, at in enumerate(labels)
        ]
    if halves:
        seen.blocks["gate"], seen.contrasts["gate"] = halves.observed(units)
    cut, out = sum(one.length - 1 > opened.n_ctx for one in chosen), opened.shards.n_documents - len(chosen)
    where = f"{len(chosen)} documents, {cut} of them cut at {opened.n_ctx} tokens, {out} left out"
    if windows:
        where = f"{len(chosen):,} windows read: {opened.title()}"
    seen.about["title"] = f"{title_of(model)}: change without the heads (scale {how.scale:g}); {where}"
    edits = {group.name: [head.label for head in group.heads] for group in groups}
    seen.about["effects"] = {**checkpoint_of(model), "edits": edits, "scale": how.scale, **opened.about()}
    return seen


@dataclass(frozen=True)
class Halves:
    """|Δ loss| of the removal of single heads where a gate is above its median of the document, and where below.

    The gate is the head's own, or that of the head beside it in its layer (the last one's is the first): tokens at
    which every removal costs more are told from those at which this one does.
    """

    heads: tuple[Head, ...]
    edits: tuple[int, ...]
    """Which edits remove these heads alone."""
    total: np.ndarray
    """Σ |Δ loss| [heads, own or beside, above or below, documents]."""
    size: np.ndarray
    """Tokens, of the same shape."""
    n_heads: int

    @classmethod
    def of(cls, model: Any, groups: Sequence[Group], documents: int) -> "Halves | None":
        """None for one head in a layer, and for edits of several heads alone."""
        alone = [i for i, group in enumerate(groups) if len(group.heads) == 1]
        if not alone or model.config.n_heads < 2:
            return None
        shape = (len(alone), 2, 2, documents)
        heads = tuple(groups[i].heads[0] for i in alone)
        return cls(heads, tuple(alone), np.zeros(shape), np.zeros(shape), model.config.n_heads)

    def add(self, at: int, model: Any, one: Document, size: np.ndarray) -> None:
        """Document `at`, whose removals change the loss by `size` [edits, T]; a model without gates has no halves."""
        if not any(name.endswith(GATE) for name in model.hook_dict):
            return
        with torch.no_grad():
            ids = torch.tensor([one.ids[:-1]], device=model.cfg.device)
            _, cache = model.run_with_cache(ids, names_filter=lambda name: name.endswith(GATE))
        for i, (head, edit) in enumerate(zip(self.heads, self.edits, strict=True)):
            gates = cache[f"blocks.{head.layer}.{GATE}"][0, one.unscored :].double().mean(-1).cpu().numpy()
            for k, which in enumerate((head.head, (head.head + 1) % self.n_heads)):
                gate = gates[:, which]
                for j, half in enumerate((gate > np.median(gate), gate < np.median(gate))):
                    self.total[i, k, j, at], self.size[i, k, j, at] = size[edit][half].sum(), half.sum()

    def observed(self, units: pd.DataFrame) -> tuple[Observations, list[Contrast]]:
        """Cells: heads × gates × halves; contrasts: own, by the head's own gate, above minus below; beyond, that minus
        the same by the gate beside it; of every head and of the mean over heads."""
        names, n = [head.label for head in self.heads], len(self.heads)
        cells = pd.DataFrame(
            [(name, gate, half) for name in names for gate in ("own", "beside") for half in ("above", "below")],
            columns=["edit", "gate", "half"],
        )
        kept, why = self.size.any((0, 1, 2)), ""  # a document of one token has no halves
        if not kept.any():
            kept, why = ~kept, NO_GATE
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


def settled(how: TokenEffects, data: Opened) -> TokenEffects:
    """With the heads that are ranked or found in the model by name."""
    alone = _alone(how, HeadFinder(data.model, check_tokenizer(data.model)))
    together = groups_of(how, data.model)[len(alone) :]
    return replace(
        how,
        heads=tuple(map(_spec, alone)) if alone else None,
        groups=tuple(f"{group.name}={'+'.join(map(_spec, group.heads))}" for group in together),
    )


def _spec(head: Head) -> str:
    return f"L{head.layer}.H{head.head}"


def _alone(how: TokenEffects, finder: HeadFinder) -> tuple[Head, ...]:
    if how.heads is None and how.groups:
        return ()
    return finder.groups(["+".join(how.heads or ("all",))])[0].heads


def groups_of(how: TokenEffects, model: Any) -> list[Group]:
    """One group per head of --heads, then those of --groups. Raises `InputError` for two of one name."""
    finder = HeadFinder(model, check_tokenizer(model))
    groups = [Group(head.label, (head,)) for head in _alone(how, finder)]
    groups += finder.groups(how.groups) if how.groups else []
    if len({group.name for group in groups}) < len(groups):
        raise InputError("a group has the name of a single head; name it as NAME=SPEC")
    return groups


def cell_of(group: Group) -> dict[str, Any]:
    """The keys of an edit; layer and index are those of a single head."""
    head = group.heads[0] if len(group.heads) == 1 else None
    where = {"layer": head.layer, "index": head.head} if head else {"layer": np.nan, "index": np.nan}
    return {"edit": group.name, "heads": group.label, **where}


def _tables(
    model: Any, groups: Sequence[Group], scale: float, chosen: Sequence[Document], sums: np.ndarray,
    halves: "Halves | None", progress: Progress, windows: bool = False,
) -> Iterator[pd.DataFrame]:  # fmt: skip
    """The rows of the documents, some at a time; `sums` [4, edits, documents] gets Σ Δ and Σ |Δ| of each, `halves` the
    same by gate. Of `windows` the rows say which."""
    sweep = [scale_heads(group.heads, scale) for group in groups]
    done = ticks(progress, sum(len(one.positions) for one in chosen) * (1 + len(sweep)))
    for first in range(0, len(chosen), AT_ONCE):
        some = chosen[first : first + AT_ONCE]
        found = token_effects(model, [one.ids for one in some], sweep, without=[d.unscored for d in some], done=done)
        for i, one in enumerate(found, first):
            moved = np.stack([one.delta_loss, one.delta_log_p]).astype("float32").astype(float)  # as they are kept
            sums[:2, :, i], sums[2:, :, i] = moved.sum(-1), np.abs(moved).sum(-1)
            if halves:
                halves.add(i, model, chosen[i], np.abs(moved[0]))
        yield table_of(list(zip(some, found, strict=True)), [group.name for group in groups], windows=windows)
    done(0)


def table_of(found: Sequence[tuple[Document, Effects]], names: Sequence[str], *, windows: bool = False) -> pd.DataFrame:
    """One row per position, int32 and float32; `names` are those of the edits."""

    def joined(of: Callable[[Document, Effects], Any], kind: str) -> np.ndarray:
        return np.concatenate([of(one, effects) for one, effects in found]).astype(kind)

    rows = [len(one.positions) for one, _ in found]
    table = {
        "document": np.repeat([one.document for one, _ in found], rows).astype("int32"),
        "position": joined(lambda one, _: one.positions, "int32"),
        "token_id": joined(lambda one, _: one.ids[one.unscored : -1], "int32"),
        "target_id": joined(lambda one, _: one.ids[one.unscored + 1 :], "int32"),
        "prediction_id": joined(lambda _, effects: effects.prediction, "int32"),
        "loss": joined(lambda _, effects: effects.loss, "float32"),
        "log_p": joined(lambda _, effects: effects.log_p, "float32"),
    }
    if windows:
        for name in ("window", "offset"):
            table[name] = np.repeat([getattr(one, name) for one, _ in found], rows).astype("int32")
    for measure in DELTAS:
        for i, name in enumerate(names):
            moved = [getattr(effects, measure)[i] for _, effects in found]
            table[f"{measure}_{name}"] = np.concatenate(moved).astype("float32")
    return pd.DataFrame(table)


def tables(how: TokenEffects, seen: Seen, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """The rows of all tokens, and the means of every edit."""
    means = [name for name in estimates if name != "gate"]
    parts = [estimates[name].wide(["edit", "heads", "layer", "index"], describe=("low", "high")) for name in means]
    frame = pd.concat([part for part, _ in parts], axis=1)
    frame = frame.loc[:, ~frame.columns.duplicated()].assign(tokens=len(seen.extra))
    missing = {at: why for _, some in parts for at, why in some.items()}
    found = {
        "token_effects": seen.extra,
        "edits": Table(frame, EDITS, missing, seen.about["title"], by="abs_delta_loss"),
    }
    if "gate" in seen.blocks and seen.blocks["gate"].sizes.any():
        frame, missing = estimates["gate"].wide(["edit"])
        found["gates"] = Table(frame, GATES, missing, "|Δ loss| where the gate is open beside where it is closed")
    return found


INDEX = (
    key("document", "document", "number in the order of the data, from 0", "document", "d"),
    key("position", "position", "tokens before it in its document", "tokens", "d"),
    key("token_id", "token", "token at the position", "token id", "d"),
    key("target_id", "target", "token after it", "token id", "d"),
    key("prediction_id", "prediction", "token that the unedited model says", "token id", "d"),
    Column(name="loss", title="loss", unit="nats", format=".4f", doc="−ln p of the target, unedited"),
    Column(name="log_p", title="ln p", unit="nats", format=".4f", doc="ln p of the prediction ŷ, unedited"),
)


def columns(names: Sequence[str], windows: Sequence[Column] = ()) -> tuple[Column, ...]:
    """Those of the rows: of the token and its window, then of every edit, Δ loss first."""
    effects = (
        Column(name=f"{measure}_{name}", title=f"{measure} of {name}", unit="nats", format="+.4f", doc=doc, shown=False)
        for measure, doc in DELTAS.items() for name in names
    )  # fmt: skip
    return (*INDEX, *windows, *effects)


EDITS = (
    key("edit", "edit", "the head, or the name of the heads together"),
    Column(name="heads", title="heads", unit="name", doc="whose outputs are scaled", shown=False),
    Column(name="layer", title="layer", unit="layer", format="g", doc="of a single head, from 0", shown=False),
    Column(name="index", title="head", unit="head", format="g", doc="of a single head in its layer, from 0",
           shown=False),
    *quantity("delta_loss", "Δ loss", "nats/token", "mean change of the loss of the token that comes", sd="documents"),
    *quantity("delta_log_p", "Δ ln p", "nats/token", "mean change of the prediction's log-probability", sd="documents"),
    *described("abs_delta_loss", "|Δ loss|", "nats/token", "mean size of the change of the loss"),
    *described("abs_delta_log_p", "|Δ ln p|", "nats/token", "mean size of the change of the prediction's ln p"),
    Column(name="tokens", title="tokens", unit="tokens", format="d", shown=False, doc="predicted tokens"),
    *counts("documents, or windows of them", "documents"),
)  # fmt: skip
GATES = (
    key("edit", "edit", "the head that is removed; all heads: the mean over those that are removed alone"),
    *quantity("own", "by its gate", "nats/token", "|Δ loss| above the median of its own gate − below", sd="documents"),
    *quantity("beyond", "beyond a gate beside", "nats/token", "the same − by the gate of the next head of its layer",
              sd="documents"),
    *counts("documents, or windows of them", "documents"),
)  # fmt: skip
