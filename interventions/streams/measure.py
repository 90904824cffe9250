"""The loss of a model with one of its streams removed, one row per place, with documents as units."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, effect_contrasts, estimate_all
from streamscope.instruments.table import Column, Table, counts, described, key, number, quantity
from streamscope.interventions.edits import streams as e
from streamscope.interventions.edits.means import document_rows
from streamscope.interventions.edits.streams import Replacement
from streamscope.interventions.observe import NATS, PERCENT, Losses, document_losses
from streamscope.interventions.streams import Streams, reference
from streamscope.models.config import FrozenToken
from streamscope.models.head_spec import parse_layers
from streamscope.models.hooks import Edits
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.stream_states import streams_of
from streamscope.text.shards import TokenShards, document_batches

METHODS = ("zero", "random", "mean", "resample")
DRAWN = ("random", "resample")
"""Methods with random replacements."""
SYMBOL = {"token": "x_t", "context": "x_e", "resid": "x"}
TARGET = {"zero": "0", "random": "random vocabulary", "mean": "mean", "resample": "other text"}
PAPER = {("token", "zero"): 36.0, ("context", "zero"): 9.5, ("token", "random"): 28.0}
"""Percent in DST Table 4, for another model and corpus, at an unstated place."""
EVERYWHERE, HEAD = "everywhere", "head"
EMPTY = "by construction, x_e is 0 until layer 0 writes it"


def observe(how: Streams, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model and every edit, one per draw. Units: documents."""
    places = parse_places(how.where, model.config.n_layers)
    cells = cells_of(chosen_streams(model, how.streams), how.method, places, how.reach)
    opened = data[Documents]
    options = {"draws": how.draws, "seed": how.seed, "progress": progress, **opened.limits}
    losses, index = stream_losses(model, opened.shards, cells, **options)
    title = f"{title_of(model)}: loss without a stream; {opened.title()}, {losses.tokens.sum():,} tokens"
    return seen_of(model, cells, losses, index, opened.units(), title)


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
    """Layers ascending, then head and everywhere; all by default. Raises `InputError` as `parse_layers`."""
    last = [name for name in (HEAD, EVERYWHERE) if name in specs or not specs]
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
    def definition(self) -> str:
        """The notation of DST Table 4: x_t → 0."""
        return f"{SYMBOL.get(self.stream, self.stream)} → {TARGET[self.method]}"

    @property
    def place(self) -> str:
        """L3, head or everywhere."""
        return f"L{self.where}" if isinstance(self.where, int) else self.where

    @property
    def labels(self) -> dict[str, Any]:
        """Columns that name the cell."""
        where = {"where": self.place, "reach": self.reach, "layer": self.where if isinstance(self.where, int) else -1}
        return {"stream": self.stream, "definition": self.definition, "method": self.method, **where}

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

    Raises `InputError` for an unknown method, and if nothing is left.
    """
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, list(METHODS))
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


def replacements(
    model: StreamTransformer, shards: TokenShards, streams: Sequence[str], methods: Sequence[str], *, draws: int,
    seed: int, rows: Callable[[], Iterable[Sequence[int]]],
) -> dict[tuple[str, str], list[Replacement]]:  # fmt: skip
    """(stream, method) -> replacements, one per draw. `rows` gives the reference rows of the mean."""
    found: dict[tuple[str, str], list[Replacement]] = {}
    for stream in streams:
        for method in methods:
            if method == "zero":
                made: list[e.Replacement] = [e.zero]
            elif method == "mean":
                made = [e.constant(reference.stream_means(model, stream, rows()))]
            elif method == "random":
                made = [e.sequence(reference.random_embeddings(model, stream, seed, i)) for i in range(draws)]
            else:
                texts = [reference.window(shards, model.config.n_ctx, seed, i) for i in range(draws)]
                made = [e.sequence(reference.stream_of(model, stream, ids)) for ids in texts]
            found[stream, method] = made
    return found


def empty_stream(model: StreamTransformer, cell: Cell) -> bool:
    """Whether x_e is read while still 0: entering layer 0, and in all of layer 0 if attention writes x_t."""
    whole = cell.reach == "onwards" or not isinstance(model.config.residual, FrozenToken)
    return cell.stream == "context" and cell.where == 0 and whole


def stream_losses(
    model: StreamTransformer, shards: TokenShards, cells: Sequence[Cell], *, draws: int = 3, seed: int = 0,
    max_documents: int | None = None, batch_size: int = 32, progress: Callable[[Iterable], Iterable] = iter,
) -> tuple[Losses, list[list[int]]]:  # fmt: skip
    """(losses of every document, the edits of each cell, one per draw). Raises `InputError` without a draw."""
    if draws < 1:
        raise InputError(f"draws {draws}: give at least 1")

    def rows() -> Iterable[Sequence[int]]:
        return document_rows(document_batches(shards, model.config.n_ctx, batch_size, max_documents))

    pairs = list(dict.fromkeys((cell.stream, cell.method) for cell in cells))
    made: dict[tuple[str, str], Any] = {}
    for stream, method in pairs:
        made |= replacements(model, shards, [stream], [method], draws=draws, seed=seed, rows=rows)
    sweep, index = list[Any](), list[list[int]]()
    for cell in cells:
        some = [cell.edits(replacement, model.config.n_layers) for replacement in made[cell.stream, cell.method]]
        index.append(list(range(len(sweep), len(sweep) + len(some))))
        sweep += some
    limits: dict[str, Any] = {"max_documents": max_documents, "batch_size": batch_size, "progress": progress}
    return document_losses(model, shards, sweep, **limits), index


def seen_of(
    model: StreamTransformer, cells: Sequence[Cell], losses: Losses, index: Sequence[Sequence[int]],
    units: pd.DataFrame, title: str = "loss without a stream",
) -> InstrumentData:  # fmt: skip
    """The loss of every document under every edit, in nats and in percent; random methods are means over draws."""
    keys = [{**cell.labels, "draw": i} for cell, at in zip(cells, index, strict=True) for i in range(len(at))]
    table = pd.DataFrame([{**dict.fromkeys(keys[0], ""), "layer": -1, "draw": -1}, *keys])
    contrasts: dict[str, list[Contrast]] = {"loss": [], "percent": []}
    for cell, at in zip(cells, index, strict=True):
        edited = {i + 1: 1 / len(at) for i in at}
        common: dict[str, Any] = {
            "labels": cell.labels, "family": f"{cell.stream}, {cell.method}",
            "missing": EMPTY if empty_stream(model, cell) else "",
        }  # fmt: skip
        contrasts["loss"] += effect_contrasts("loss", edited, 0, **common)
        contrasts["percent"].append(Contrast(quantity="percent", weights=edited, null=None, **common))
    blocks = losses.blocks(table, units, loss=NATS, percent=PERCENT)
    return InstrumentData(blocks, contrasts, {"title": title}, extra=(cells, index))


def tables(how: Streams | None, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One row per stream, method and place; `draw_sd` is between draws, which the intervals do not include."""
    cells, index = seen.extra
    names = list(cells[0].labels)
    frame, missing = estimates["loss"].wide(names)
    percent, more = estimates["percent"].wide(names, describe=("low", "high"))
    frame = pd.concat([frame, percent[["percent", "percent_low", "percent_high"]]], axis=1)
    missing |= more
    block = seen.blocks["loss"]
    change = (block.total[1:] - block.total[0]).sum(1) / block.sizes[0].sum()
    frame["draws"] = [len(at) if cell.method in DRAWN else 0 for cell, at in zip(cells, index, strict=True)]
    frame["draw_sd"] = [float(np.std(change[list(at)], ddof=1)) if len(at) > 1 else np.nan for at in index]
    frame["paper_percent"] = [PAPER.get((cell.stream, cell.method), np.nan) for cell in cells]
    for i, (cell, at) in enumerate(zip(cells, index, strict=True)):
        if (i, "delta") in missing:
            frame.loc[i, "draw_sd"] = np.nan
            missing[i, "draw_sd"] = EMPTY
        elif len(at) < 2:
            missing[i, "draw_sd"] = "one draw" if cell.method in DRAWN else "the replacement is not random"
        if (cell.stream, cell.method) not in PAPER:
            missing[i, "paper_percent"] = "not in the paper"
    return {"streams": Table(frame.assign(tokens=int(block.sizes[0].sum())), COLUMNS, missing, seen.about["title"])}


def ablate_streams(
    model: StreamTransformer, shards: TokenShards, cells: Sequence[Cell], **options: Any
) -> pd.DataFrame:
    """The table of any cells with short names; `options` and errors are those of `stream_losses`."""
    losses, index = stream_losses(model, shards, cells, **options)
    names = [str(i) for i in range(len(losses.tokens))]
    seen = seen_of(model, cells, losses, index, pd.DataFrame({"unit": names, "cluster": names}))
    found = estimate_all(seen.blocks, seen.contrasts)
    return tables(None, seen, found)["streams"].short("delta")


COLUMNS = (
    Column(name="stream", title="stream", unit="name", doc="the removed stream", shown=False),
    key("definition", "stream → replacement", "the stream and its replacement, in the notation of DST Table 4"),
    Column(name="method", title="method", unit="name", doc="zero, random, mean or resample", shown=False),
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
