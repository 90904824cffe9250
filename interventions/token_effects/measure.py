"""The effect of every edit on every token: the rows, window by window, and the mean of every edit over documents.

    found = token_effects(model, [[0, 17, 4, 9], [0, 5]], [scale_heads([head], 0.0) for head in heads])
    found[0].delta_loss                       [edits, 3], nats: edited − unedited, at positions 0, 1, 2

Position q predicts token q + 1. With p_e the distribution under edit e (p_0 unedited), y the next token and ŷ = argmax
p_0 the model's own prediction:

    loss = −ln p_0(y)        Δ loss = ln p_0(y) − ln p_e(y)
    log p = ln p_0(ŷ)        Δ log p = ln p_e(ŷ) − ln p_0(ŷ)

Whether gates predict where removing a head matters: |Δ loss| by the head's own gate, and by another head's.

    Halves    tokens above the gate's median in their document, and below it                 (DST §2.6)
    Modes     tokens of modes in which the gate is low throughout, and of the other modes    (PLS §3.4)

A gate per channel is averaged over the channels. The other gate is that of the next head in the layer (for the last
head the first). It separates tokens where every removal costs more from tokens where this one does. Layers with one
head have no such table.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, checkpoint_of, title_of
from streamscope.instruments.data import Opened, Tokens, check_tokenizer
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, each, joined
from streamscope.instruments.open_data import WINDOW, Document
from streamscope.instruments.progress import Forecast, ticks
from streamscope.instruments.table import (
    LongTable,
    Table,
    counts,
    described,
    key,
    number,
    quantity,
    read_about,
    read_parquet,
)
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import NATS, chunk_log_probs
from streamscope.interventions.selection import Group, HeadFinder
from streamscope.interventions.token_effects import TokenEffects
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Edits, batches, pad
from streamscope.models.readout import map_logits
from streamscope.models.sweep import pass_shares, passes

AT_ONCE = 128
"""Documents in memory at a time; one row group of the file."""
DELTAS = {"delta_loss": "change of the loss of the target", "delta_log_p": "change of ln p of the prediction"}
BATCH_TOKENS = 4096
"""Padded tokens per batch."""


@dataclass(frozen=True)
class Effects:
    """Effects on one sequence of T + 1 tokens, in nats: unedited `loss`, `log_p` (of the model's own prediction) and
    `prediction` (token ids) [T]; changes `delta_loss`, `delta_log_p` [edits, T]."""

    loss: np.ndarray
    log_p: np.ndarray
    prediction: np.ndarray
    delta_loss: np.ndarray
    delta_log_p: np.ndarray


@torch.no_grad()
def token_effects(
    model: Any, sequences: Sequence[Sequence[int]], sweep: Sequence[Edits], *, without: Sequence[int] | None = None,
    on_batch: Callable[[int, int], None] = lambda member, n: None,
) -> list[Effects]:  # fmt: skip
    """The effect of each edit at each position of each sequence, except the last token and the first `without`
    positions, which are only context.

    Values equal one pass per sequence and edit, up to rounding; edits must treat the rows of a batch alike. `on_batch`
    gets the number of a member that has finished some positions, and how many. Raises `InputError` for values that are
    not finite.
    """
    lengths = [len(ids) - 1 for ids in sequences]
    skipped = [0] * len(lengths) if without is None else list(without)
    effects: dict[int, Effects] = {}
    for rows in batches(lengths, BATCH_TOKENS):
        ids = pad([list(sequences[i]) for i in rows]).to(model.cfg.device)
        places, begin = torch.arange(ids.shape[1] - 1), torch.tensor([skipped[i] for i in rows])[:, None]
        mask = (places >= begin) & (places < torch.tensor([lengths[i] for i in rows])[:, None])
        mask, by_member = mask.to(ids.device), []
        for member, (streams, _) in enumerate(passes(model, ids[:, :-1], [{}, *sweep])):
            h = streams[mask]
            if member == 0:
                predicted = map_logits(h, model.head, lambda logits, _: logits.argmax(-1).double()).long()
                targets = torch.stack([ids[:, 1:][mask], predicted], 1)
            by_member.append(map_logits(h, model.head, partial(chunk_log_probs, targets)).cpu().numpy())
            on_batch(member, len(h))
        values = np.stack(by_member)  # [1 + edits, positions, 2]
        if lost := int((~np.isfinite(values)).any(2).sum()):
            raise InputError(f"log-probabilities are not finite at {counted(lost, 'position')}")
        cuts = np.cumsum([lengths[i] - skipped[i] for i in rows])[:-1]
        parts = zip(np.split(values, cuts, axis=1), np.split(predicted.cpu().numpy(), cuts), strict=True)
        for i, (value, own_prediction) in zip(rows, parts, strict=True):
            y, own_log_p = value[..., 0], value[..., 1]
            effects[i] = Effects(-y[0], own_log_p[0], own_prediction, y[0] - y[1:], own_log_p[1:] - own_log_p[0])
    return [effects[i] for i in range(len(sequences))]


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
        (layers, heads), low = np.array(self.heads).T, (below >= CONSISTENT * tokens) & (tokens > 0)
        # [heads, modes]
        self.own, self.neighbours = low[layers, heads], low[layers, (heads + 1) % model.config.n_heads]
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
        document_index, mode, tokens, lost = (np.array(column) for column in zip(*self.sums, strict=True))
        part = (lost / np.maximum(lost.sum(0) / tokens.sum(), np.finfo(float).tiny)).T  # [heads, units]
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


def observe(options: TokenEffects, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: edits. Units: documents. Rows go to a file as they come; only their sums are kept."""
    groups = HeadFinder(model, check_tokenizer(model)).heads_and_groups(options.heads, options.groups)
    opened = data[Tokens]
    chosen = list(opened.documents())
    if not chosen:
        raise InputError("no document of the data has a token to predict; give another --data")
    sums = np.zeros((4, len(groups), len(chosen)))
    split: dict[str, Halves | Modes] = {}
    if model.config.n_heads > 1 and any(len(group.heads) == 1 for group in groups):
        split["gate"] = Halves(model, groups, len(chosen))
        if options.modes is not None:
            split["mode"] = Modes(model, groups, chosen, options.modes)
    elif options.modes is not None:
        raise InputError("--modes needs heads that are removed one at a time, in layers of several heads; give --heads")
    names = [group.name for group in groups]
    windows = WINDOW if opened.shards.stride else ()
    rows = LongTable.of(
        _tables(model, groups, options.scale, chosen, sums, split.values(), progress, windows=bool(windows)),
        (*INDEX, *windows, *(
            number(f"{measure}_{name}", f"{measure} of {name}", "nats", doc, "+.4f", False)
            for measure, doc in DELTAS.items() for name in names
        )),
        f"{title_of(model)}: tokens",
    )  # fmt: skip
    single = [group.heads[0] if len(group.heads) == 1 else (np.nan, np.nan) for group in groups]
    cells = pd.DataFrame({"edit": names, "heads": [group.label for group in groups]})
    cells["layer"], cells["index"] = [layer for layer, _ in single], [index for _, index in single]
    units = opened.units()
    tokens = np.array([len(document.positions) for document in chosen], float)
    measurements = InstrumentData(extra=rows)
    for name, totals in zip((*DELTAS, *(f"abs_{name}" for name in DELTAS)), sums, strict=True):
        limits = (0.0, np.inf) if name.startswith("abs") else None
        measure = replace(NATS, name=name, limits=limits)
        measurements.blocks[name] = Observations(measure=measure, cells=cells, units=units, total=totals, size=tokens)
        labels = cells.astype(object).where(cells.notna(), None)
        measurements.contrasts[name] = each(name, labels, null=None if name.startswith("abs") else 0.0)
    for name, block in split.items():
        measurements.blocks[name], measurements.contrasts[name] = block.observe(units)
        measurements.about[name] = block.title
    cut, out = sum(document.length - 1 > opened.n_ctx for document in chosen), opened.shards.n_documents - len(chosen)
    where = f"{counted(len(chosen), 'document')}, {cut} of them cut at {opened.n_ctx} tokens, {out} left out"
    if windows:
        where = f"{counted(len(chosen), 'window', ',')} read: {opened.title()}"
    measurements.about["title"] = f"{title_of(model)}: change from scaling heads by {options.scale:g}; {where}"
    edits = {group.name: [head.label for head in group.heads] for group in groups}
    measurements.about["effects"] = {**checkpoint_of(model), "edits": edits, "scale": options.scale, **opened.about()}
    return measurements


def with_resolved_heads(options: TokenEffects, data: Opened) -> TokenEffects:
    finder = HeadFinder(data.model, check_tokenizer(data.model))
    single = finder.single(options.heads, options.groups)
    several = finder.heads_and_groups(options.heads, options.groups)[len(single) :]
    heads = tuple(group.spec.partition("=")[2] for group in single)
    return replace(options, heads=heads, groups=tuple(group.spec for group in several))


def _tables(
    model: Any, groups: Sequence[Group], scale: float, chosen: Sequence[Document], sums: np.ndarray,
    splits: Collection[Halves | Modes], progress: Progress, windows: bool = False,
) -> Iterator[pd.DataFrame]:  # fmt: skip
    """The rows of the documents in chunks, int32 and float32; `sums` [4, edits, documents] gets Σ Δ and Σ |Δ| of each,
    `splits` the same by gate. Rows of `windows` name their window."""
    sweep = [scale_heads(group.heads, scale) for group in groups]
    n = sum(len(document.positions) for document in chosen)
    tick = ticks(progress, n * (1 + len(sweep)))
    forecast = Forecast(progress, pass_shares(model, [{}, *sweep]), n, f"{counted(len(chosen), 'document', ',')}")

    def done(member: int, n: int) -> None:
        tick(n)
        forecast(member, n)

    for first in range(0, len(chosen), AT_ONCE):
        batch = chosen[first : first + AT_ONCE]
        ids, unscored = [document.ids for document in batch], [document.unscored for document in batch]
        frames, batch_effects = [], token_effects(model, ids, sweep, without=unscored, on_batch=done)
        for i, (document, effects) in enumerate(zip(batch, batch_effects, strict=True), first):
            moved = np.stack([effects.delta_loss, effects.delta_log_p]).astype("float32").astype(float)  # as stored
            sums[:2, :, i], sums[2:, :, i] = moved.sum(-1), np.abs(moved).sum(-1)
            if splits:
                gates = gates_of(model, document)
                for split in splits:
                    split.add(i, gates, np.abs(moved[0]))
            own_ids = np.asarray(document.ids[document.unscored :])
            columns = {
                "document": document.document, "position": np.asarray(document.positions), "token_id": own_ids[:-1],
                "target_id": own_ids[1:], "prediction_id": effects.prediction, "loss": effects.loss,
                "log_p": effects.log_p,
            }  # fmt: skip
            columns |= {"window": document.window, "offset": document.offset} if windows else {}
            columns |= {
                f"{measure}_{group.name}": x
                for measure in DELTAS for group, x in zip(groups, getattr(effects, measure), strict=True)
            }  # fmt: skip
            frames.append(pd.DataFrame(columns))
        table = pd.concat(frames, ignore_index=True)
        yield table.astype({name: "float32" if kind.kind == "f" else "int32" for name, kind in table.dtypes.items()})
    tick(0)


def tables(options: TokenEffects, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    means = [estimate for name, estimate in estimates.items() if name not in SPLITS]
    frame, missing = joined(means, ["edit", "heads", "layer", "index"], EDITS)
    out = {
        "token_effects": data.extra,
        "edits": Table(frame.assign(tokens=len(data.extra)), EDITS, missing, data.about["title"], by="abs_delta_loss"),
    }
    for name, (table, columns) in SPLITS.items():
        if name in data.blocks and data.blocks[name].sizes.any():
            frame, missing = estimates[name].wide(["edit"], describe=("low", "high"))
            frame[["n", "clusters"]] = estimates[name].where(quantity="own").frame[["n", "clusters"]]
            out[table] = Table(frame, columns, missing, data.about[name])
    return out


INDEX = (
    key("document", "document", "number of the document in the data, from 0", "document", "d"),
    key("position", "position", "position in the document, from 0", "tokens", "d"),
    key("token_id", "token", "token at the position", "token id", "d"),
    key("target_id", "target", "the next token", "token id", "d"),
    key("prediction_id", "prediction", "prediction of the unedited model", "token id", "d"),
    number("loss", "loss", "nats", "−ln p of the target in the unedited model", ".4f"),
    number("log_p", "ln p", "nats", "ln p of the prediction ŷ in the unedited model", ".4f"),
)  # fmt: skip
EDITS = (
    key("edit", "edit", "the head, or the name of the group"),
    key("heads", "heads", "the scaled heads", shown=False),
    number("layer", "layer", "layer", "layer of a single head, from 0", "g", False),
    number("index", "head", "head", "number of a single head in its layer, from 0", "g", False),
    *quantity("delta_loss", "Δ loss", "nats/token", "mean change of the loss of the next token", sd="documents"),
    *quantity("delta_log_p", "Δ ln p", "nats/token", "mean change of the prediction's log-probability", sd="documents"),
    *described("abs_delta_loss", "|Δ loss|", "nats/token", "mean size of the change of the loss"),
    *described("abs_delta_log_p", "|Δ ln p|", "nats/token", "mean size of the change of the prediction's ln p"),
    number("tokens", "tokens", "tokens", "predicted tokens", "d", False),
    *counts("documents or windows", "documents"),
)  # fmt: skip
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
