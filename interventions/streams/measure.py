"""The loss of a model with one of its streams removed, one row per place, with documents as units."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, effect_contrasts, joined
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.table import Table, counts, described, key, number, quantity
from streamscope.interventions.edits import streams as e
from streamscope.interventions.edits.means import document_rows, hook_means
from streamscope.interventions.edits.streams import Replacement, hook_names
from streamscope.interventions.observe import NATS, PERCENT, document_losses
from streamscope.interventions.streams import Streams
from streamscope.models.config import FrozenToken
from streamscope.models.head_spec import parse_layers
from streamscope.models.hooks import Edits, Query, run
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.stream_states import streams_of
from streamscope.text.shards import TokenShards

DRAWN = ("random", "resample")
"""Methods with random replacements."""
SYMBOL = {"token": "x_t", "context": "x_e", "resid": "x"}
TARGET = {"zero": "0", "random": "random vocabulary", "mean": "mean", "resample": "other text"}
PAPER = {("token", "zero"): 36.0, ("context", "zero"): 9.5, ("token", "random"): 28.0}
"""Percent in DST Table 4, for another model and corpus, at an unstated place."""
EVERYWHERE, HEAD = "everywhere", "head"
EMPTY = "by construction, x_e is 0 until layer 0 writes it"


def _stream_part(stream: str, x: Tensor) -> Tensor:
    """The stream's part [T, D] of a hook's activation [T, D] or [T, N, D]."""
    return x[:, int(stream[1:])] if stream[1:].isdigit() else x


def stream_means(model: StreamTransformer, stream: str, rows: Iterable[Sequence[int]]) -> dict[str, Tensor]:
    """Mean [D] of a stream at every hook where it is read; see `hook_means`."""
    return hook_means(model, hook_names(stream, model.config.n_layers), rows, part=partial(_stream_part, stream))


def stream_of(model: StreamTransformer, stream: str, ids: Sequence[int]) -> dict[str, Tensor]:
    """The stream of one text [T, D] at every hook where it is read, in an unedited run."""
    found = run(model, Query(tokens=[list(ids)], hooks=hook_names(stream, model.config.n_layers))).hooks
    return {name: _stream_part(stream, x[0]) for name, x in found.items()}


def random_embeddings(model: StreamTransformer, stream: str, seed: int, draw: int) -> dict[str, Tensor]:
    """Embeddings of n_ctx tokens drawn uniformly from the vocabulary, [n_ctx, D], the same at every hook.

    Rows of a learned position table are added: the tokens' meaning is lost, their positions are not.
    """
    n, rng = model.config.n_ctx, np.random.default_rng([seed, draw])
    ids = torch.from_numpy(rng.integers(0, model.config.d_vocab, n)).to(model.cfg.device)
    with torch.no_grad():
        x = model.embed(ids[None])[0]
        if model.pos_embed is not None:
            x = x + model.pos_embed.weight[:n]
    return dict.fromkeys(hook_names(stream, model.config.n_layers), x)


def window(shards: TokenShards, n_ctx: int, seed: int, draw: int) -> list[int]:
    """BOS and n_ctx − 1 tokens from a random place inside a document. `InputError` for data shorter than the
    context."""
    starts = set(shards.starts.tolist()) | {int(s) + 1 for s in shards.starts}
    last = shards.n_tokens - (n_ctx - 1)
    allowed = [i for i in range(max(0, last)) if i not in starts] if last < 10_000 else None
    if last < 1 or allowed == []:
        raise InputError(
            f"the data have {counted(shards.n_tokens, 'token')}, resampling needs more than the context of {n_ctx}"
        )
    rng = np.random.default_rng([seed, draw, 1])
    while True:
        at = int(rng.choice(allowed)) if allowed is not None else int(rng.integers(0, last))
        if at not in starts:
            return [int(shards.tokens[0]), *shards.tokens[at : at + n_ctx - 1].tolist()]


def observe(how: Streams, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model and every edit, one per draw; random methods are means over draws. Units: documents."""
    places = parse_places(how.where, model.config.n_layers)
    cells, opened = cells_of(chosen_streams(model, how.streams), how.method, places, how.reach), data[Documents]
    pairs = dict.fromkeys((cell.stream, cell.method) for cell in cells)
    made = {pair: replacements(how, model, opened, *pair) for pair in pairs}
    keys, sweep, index = list[dict[str, Any]](), list[Edits](), list[range]()
    contrasts: dict[str, list[Contrast]] = {"loss": [], "percent": []}
    for cell in cells:
        some = made[cell.stream, cell.method]
        at = range(len(keys) + 1, len(keys) + 1 + len(some))
        index.append(at)
        keys += [{**cell.labels, "draw": i} for i in range(len(some))]
        sweep += [cell.edits(replacement, model.config.n_layers) for replacement in some]
        edited = {i: 1 / len(at) for i in at}
        common: dict[str, Any] = {
            "labels": cell.labels, "family": f"{cell.stream}, {cell.method}",
            "missing": EMPTY if empty_stream(model, cell) else "",
        }  # fmt: skip
        contrasts["loss"] += effect_contrasts("loss", edited, 0, **common)
        contrasts["percent"].append(Contrast(quantity="percent", weights=edited, null=None, **common))
    losses = document_losses(model, opened.shards, sweep, **opened.limits, progress=progress)
    table = pd.DataFrame([{**dict.fromkeys(keys[0], ""), "layer": -1, "draw": -1}, *keys])
    blocks = losses.blocks(table, opened.units(), loss=NATS, percent=PERCENT)
    title = f"{title_of(model)}: loss without a stream; {opened.title()}, {counted(losses.tokens.sum(), 'token', ',')}"
    return InstrumentData(blocks, contrasts, {"title": title}, extra=(cells, index))


def with_resolved_heads(how: Streams, data: Opened) -> Streams:
    """These options with the streams given by name, so that a control is measured without the same ones."""
    return replace(how, streams=chosen_streams(data.model, how.streams))


def chosen_streams(model: Any, chosen: Sequence[str]) -> tuple[str, ...]:
    """The streams to remove; a single stream only if named.

    Raises `InputError` for a stream the model lacks, and for a single stream that was not named.
    """
    streams = streams_of(model, chosen)
    if streams == ("resid",) and not chosen:
        raise InputError(
            f"{model.config.name} has one residual stream, and nothing is left without it: use interventions.ablate "
            "for its heads or interventions.patch for its layers, or --streams resid to measure it anyway"
        )
    return streams


def parse_places(specs: Sequence[str], n_layers: int) -> list[int | str]:
    """Layers ascending, then head and everywhere as given; all by default. Raises `InputError` as `parse_layers`."""
    last = [spec for spec in dict.fromkeys(specs or (HEAD, EVERYWHERE)) if spec in (HEAD, EVERYWHERE)]
    layers = [spec.replace("L", "") for spec in specs if spec not in (HEAD, EVERYWHERE)]
    for spec in layers:
        if not spec.replace("-", "").isdigit():
            raise InputError(f"--where {spec}: give layers as 3 or 2-4, head or everywhere")
    found = parse_layers(layers, n_layers, "--where") if specs else list(range(n_layers))
    return [*found, *last]


@dataclass(frozen=True)
class Cell:
    """One stream, replaced in one way at one place.

    where: a layer, "head" or "everywhere". reach: "layer" or "onwards"; "" for the other places.
    """

    stream: str
    method: str
    where: int | str
    reach: str

    @property
    def labels(self) -> dict[str, Any]:
        """Columns that name the cell; the definition in the notation of DST Table 4: x_t → 0."""
        place, layer = (f"L{self.where}", self.where) if isinstance(self.where, int) else (self.where, -1)
        return {
            "stream": self.stream, "definition": f"{SYMBOL.get(self.stream, self.stream)} → {TARGET[self.method]}",
            "method": self.method, "where": place, "reach": self.reach, "layer": layer,
        }  # fmt: skip

    def edits(self, replacement: Replacement, n_layers: int) -> Edits:
        """The edits for a replacement."""
        if self.where == EVERYWHERE:
            return e.replace_everywhere(self.stream, replacement, n_layers)
        if self.where == HEAD:
            return e.replace_for_head(self.stream, replacement, n_layers)
        assert isinstance(self.where, int)
        make = e.replace_in_layer if self.reach == "layer" else e.replace_onwards
        return make(self.stream, replacement, self.where)


def cells_of(
    streams: Sequence[str], methods: Sequence[str], places: Sequence[int | str], reaches: Sequence[str]
) -> list[Cell]:
    """Every stream with every method at every place; random embeddings only for streams that begin as embeddings.

    Raises `InputError` if nothing is left.
    """
    cells = []
    for stream in streams:
        for method in dict.fromkeys(methods):
            if stream == "context" and method == "random":
                continue
            for where in dict.fromkeys(places):
                for reach in dict.fromkeys(reaches) if isinstance(where, int) else ("",):
                    cells.append(Cell(stream, method, where, reach))
    if not cells:
        raise InputError("nothing to measure: the context stream does not begin as embeddings; use --method resample")
    return cells


def replacements(how: Streams, model: Any, opened: OpenDocuments, stream: str, method: str) -> list[Replacement]:
    """What replaces a stream, one per draw; the mean is over the documents."""
    if method == "zero":
        return [e.zero]
    if method == "mean":
        return [e.constant(stream_means(model, stream, document_rows(opened.batches())))]
    if method == "random":
        return [e.sequence(random_embeddings(model, stream, how.seed, i)) for i in range(how.draws)]
    texts = [window(opened.shards, model.config.n_ctx, how.seed, i) for i in range(how.draws)]
    return [e.sequence(stream_of(model, stream, ids)) for ids in texts]


def empty_stream(model: StreamTransformer, cell: Cell) -> bool:
    """Whether x_e is read while still 0: entering layer 0, and in all of layer 0 if attention writes x_t."""
    whole = cell.reach == "onwards" or not isinstance(model.config.residual, FrozenToken)
    return cell.stream == "context" and cell.where == 0 and whole


def tables(how: Streams, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per stream, method and place; `draw_sd` is between draws, which the intervals do not include."""
    cells, index = seen.extra
    names = list(cells[0].labels)
    frame, missing = joined([estimates["loss"], estimates["percent"]], names, COLUMNS)
    block = seen.blocks["loss"]
    loss = block.values
    more: list[dict[str, float]] = []
    for i, (cell, at) in enumerate(zip(cells, index, strict=True)):
        drawn, percent = cell.method in DRAWN, PAPER.get((cell.stream, cell.method), np.nan)
        few = "" if len(at) > 1 else "one draw" if drawn else "the replacement is not random"
        why = {"draw_sd": EMPTY if (i, "delta") in missing else few}
        why["paper_percent"] = "not in the paper" if np.isnan(percent) else ""
        missing |= {(i, name): reason for name, reason in why.items() if reason}
        sd = np.nan if why["draw_sd"] else float(np.std(loss[list(at)], ddof=1))
        more.append({"draws": len(at) if drawn else 0, "draw_sd": sd, "paper_percent": percent})
    frame = frame.assign(**pd.DataFrame(more))
    return {"streams": Table(frame.assign(tokens=int(block.sizes[0].sum())), COLUMNS, missing, seen.about["title"])}


COLUMNS = (
    key("stream", "stream", "the removed stream", shown=False),
    key("definition", "stream → replacement", "the stream and its replacement, in the notation of DST Table 4"),
    key("method", "method", "zero, random, mean or resample", shown=False),
    key("where", "where", "a layer, the head, or everywhere", "place"),
    key("reach", "reach", "readers of the change: that layer only, or everything from there on"),
    number("layer", "layer", "layer", "from 0; −1 for head and everywhere", "d", False),
    *quantity("loss", "loss", "nats/token", "loss without the stream", tested=False, format=".4f"),
    *quantity("baseline", "unedited loss", "nats/token", "loss of the unedited model", tested=False, format=".4f",
              shown=False),
    *quantity("delta", "Δ loss", "nats/token", "loss without the stream − loss", sd="documents"),
    *described("percent", "Δ loss, percent", "percent of the unedited loss", "100 (loss without the stream / loss − 1)",
               format="+.2f", source="DST Table 4"),
    number("draws", "draws", "draws", "number of random replacements; 0 for other methods", "d"),
    number("draw_sd", "sd over draws", "nats/token, between draws", "standard deviation of delta between draws", ".4f",
           False),
    number("paper_percent", "percent, paper", "percent of the unedited loss",
           "value in DST Table 4, for another model and corpus", "+.1f", False, source="DST Table 4"),
    number("tokens", "tokens", "tokens", "predicted tokens", "d", False),
    *counts("documents or windows", "documents"),
)  # fmt: skip
