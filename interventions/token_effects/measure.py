"""The effect of every edit on every token: the rows, window by window, and the mean of every edit over documents.

    found = token_effects(model, [[0, 17, 4, 9], [0, 5]], [scale_heads([head], 0.0) for head in heads])
    found[0].delta_loss                       [edits, 3], nats: edited − unedited, at positions 0, 1, 2

Position q predicts token q + 1. With p_e the distribution under edit e (p_0 unedited), y the next token and ŷ = argmax
p_0 the model's own prediction:

    loss = −ln p_0(y)        Δ loss = ln p_0(y) − ln p_e(y)
    log p = ln p_0(ŷ)        Δ log p = ln p_e(ŷ) − ln p_0(ŷ)
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, checkpoint_of, title_of
from streamscope.instruments.data import Opened, Tokens
from streamscope.instruments.observations import Estimates, Observations, each, joined
from streamscope.instruments.open_data import WINDOW, Document
from streamscope.instruments.prompts.alignment import check_tokenizer
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key, number, quantity
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import NATS, Forecast, chunk_log_probs, ticks
from streamscope.interventions.selection import Group, HeadFinder
from streamscope.interventions.token_effects import TokenEffects
from streamscope.interventions.token_effects.gates import SPLITS, Halves, Modes, gates_of
from streamscope.models.hooks import Edits, batches, pad
from streamscope.models.readout import map_logits
from streamscope.models.sweep import prefix_of
from streamscope.text.shards import WindowedShards

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
        mask, unedited_first, by_member = mask.to(ids.device), [{}, *sweep], []
        prefix = prefix_of(model, ids[:, :-1], unedited_first)
        predicted = map_logits(prefix.run({})[0][mask], model.head, lambda logits, _: logits.argmax(-1).double()).long()
        targets = torch.stack([ids[:, 1:][mask], predicted], 1)
        for member, edits in enumerate(unedited_first):
            h = prefix.run(edits)[0][mask]
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
    windows = WINDOW if isinstance(opened.shards, WindowedShards) else ()
    rows = LongTable.of(
        _tables(model, groups, options.scale, chosen, sums, split.values(), progress, windows=bool(windows)),
        columns(names, windows), f"{title_of(model)}: tokens",
    )  # fmt: skip
    single = [group.heads[0] if len(group.heads) == 1 else (np.nan, np.nan) for group in groups]
    cells = pd.DataFrame({"edit": names, "heads": [group.label for group in groups]})
    cells["layer"], cells["index"] = [layer for layer, _ in single], [index for _, index in single]
    units = opened.units()
    tokens = np.array([len(document.positions) for document in chosen], float)
    measurements = InstrumentData({}, {}, extra=rows)
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
    """The rows of the documents in chunks; `sums` [4, edits, documents] gets Σ Δ and Σ |Δ| of each, `splits` the same
    by gate. Rows of `windows` name their window."""
    sweep = [scale_heads(group.heads, scale) for group in groups]
    n = sum(len(document.positions) for document in chosen)
    tick = ticks(progress, n * (1 + len(sweep)))
    forecast = Forecast(progress, model, [{}, *sweep], n, f"{counted(len(chosen), 'document', ',')}")

    def done(member: int, n: int) -> None:
        tick(n)
        forecast(member, n)

    for first in range(0, len(chosen), AT_ONCE):
        batch = chosen[first : first + AT_ONCE]
        ids, unscored = [document.ids for document in batch], [document.unscored for document in batch]
        batch_effects = token_effects(model, ids, sweep, without=unscored, on_batch=done)
        for i, effects in enumerate(batch_effects, first):
            moved = np.stack([effects.delta_loss, effects.delta_log_p]).astype("float32").astype(float)  # as stored
            sums[:2, :, i], sums[2:, :, i] = moved.sum(-1), np.abs(moved).sum(-1)
            if splits:
                gates = gates_of(model, chosen[i])
                for split in splits:
                    split.add(i, gates, np.abs(moved[0]))
        yield table_of(list(zip(batch, batch_effects, strict=True)), [group.name for group in groups], windows=windows)
    tick(0)


def table_of(pairs: Sequence[tuple[Document, Effects]], names: Sequence[str], *, windows: bool = False) -> pd.DataFrame:
    """One row per position, int32 and float32; `names` are the edits."""

    def joined(of: Callable[[Document, Effects], Any], kind: str) -> np.ndarray:
        return np.concatenate([of(document, effects) for document, effects in pairs]).astype(kind)

    rows = [len(document.positions) for document, _ in pairs]
    table = {
        "document": np.repeat([document.document for document, _ in pairs], rows).astype("int32"),
        "position": joined(lambda document, _: document.positions, "int32"),
        "token_id": joined(lambda document, _: document.ids[document.unscored : -1], "int32"),
        "target_id": joined(lambda document, _: document.ids[document.unscored + 1 :], "int32"),
        "prediction_id": joined(lambda _, effects: effects.prediction, "int32"),
        "loss": joined(lambda _, effects: effects.loss, "float32"),
        "log_p": joined(lambda _, effects: effects.log_p, "float32"),
    }
    if windows:
        for name in ("window", "offset"):
            table[name] = np.repeat([getattr(document, name) for document, _ in pairs], rows).astype("int32")
    for measure in DELTAS:
        for i, name in enumerate(names):
            moved = [getattr(effects, measure)[i] for _, effects in pairs]
            table[f"{measure}_{name}"] = np.concatenate(moved).astype("float32")
    return pd.DataFrame(table)


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


def columns(names: Sequence[str], windows: Sequence[Column] = ()) -> tuple[Column, ...]:
    """Columns of the token and its window, then of every edit, Δ loss first."""
    effects = (
        number(f"{measure}_{name}", f"{measure} of {name}", "nats", doc, "+.4f", False)
        for measure, doc in DELTAS.items() for name in names
    )  # fmt: skip
    return (*INDEX, *windows, *effects)


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
