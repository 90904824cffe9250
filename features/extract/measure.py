"""Extraction part by part: which documents are read together, their tables, and the processing depth of tokens."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from streamscope.cli.errors import InputError
from streamscope.features.compute import FeatureReader
from streamscope.features.extract import FORMAT, INDEX, Extract
from streamscope.instruments.contract import InstrumentData, Progress, checkpoint_of, title_of
from streamscope.instruments.data import Opened, Tokens
from streamscope.instruments.observations import Estimates, Measure, Observations, each
from streamscope.instruments.open_data import WINDOW, unit_names
from streamscope.instruments.table import LongTable, Scratch, Table, counts, described, key, number, write_batches
from streamscope.models.hooks import batches
from streamscope.text.shards import TokenShards

PART_ROWS = 8192  # rows of a part: the rows held in memory, and one row group of the file
BATCH_TOKENS = 1024  # padded tokens per forward pass, so that activations stay in the cache
SHARE = Measure(name="share of tokens", unit="share", resolution=0.0, limits=(0.0, 1.0))


def observe(options: Extract, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: values of k*. Units: documents. The rows stay in the files of their parts.

    A part is a file per output, the features and raw activations if any, in a folder that stays if the command is
    killed. Each is under its name when it is complete, the features last, so that a part is whole if they are there.
    """
    opened, scratch, device = data[Tokens], Scratch(), torch.device(model.cfg.device).type
    raw = None if options.raw is None else options.raw or stream_names(model)
    reader, pieces = FeatureReader(model, options, raw or ()), pieces_of(model)
    documents, counted = plan(reader, opened.shards, opened.spec.max_tokens)
    about = json.loads(json.dumps({  # the form in which files hold it
        **checkpoint_of(model), "format": FORMAT, "tier": options.tier, "raw": reader.raw,
        "options": {name: value for name, value in asdict(options).items() if name != "raw"},
        "schema": [asdict(feature) for feature in reader.columns], "data": {**opened.about(), **counted},
    }))  # fmt: skip
    identity = json.dumps({**about, "rows": PART_ROWS, "batch": BATCH_TOKENS, "device": device}, sort_keys=True)
    # what is left of something else is not taken for this
    folder = (data.work or scratch.folder) / hashlib.sha256(identity.encode()).hexdigest()[:16]
    parts, files = [part for _, part in documents.groupby("part")], []
    for i in progress(range(len(parts))):
        paths = [folder / f"{i:06d}-{output}.parquet" for output in range(2 if reader.raw else 1)]
        if not paths[0].exists():
            arrow_tables = tables_of(reader, opened.shards, parts[i], pieces)
            for path, table in reversed(list(zip(paths, arrow_tables, strict=True))):
                write_batches(path, [table], {})
        files.append(paths)
    features, *raw_files = zip(*files, strict=True)
    windows, model_name = WINDOW if opened.shards.stride else (), title_of(model)
    numbers = [
        number(f.name, f.name, f.unit, f.formula, ".4g", f.name in SCREEN_FEATURES, source=f.source)
        for f in reader.columns
    ]
    words = f"{model_name}: {len(numbers)} features of every token"
    results = {"features": LongTable(features, (*TOKEN, *windows, *numbers), words, keep=scratch)}
    if reader.raw:
        vectors = [
            key(name, name, f"{name} at the position, flattened", "activation", shown=False) for name in reader.raw
        ]
        words = f"{model_name}: activations of {', '.join(reader.raw)}"
        results["raw"] = LongTable(raw_files[0], (*TOKEN, *windows, *vectors), words, keep=scratch)
    depth = depths(results["features"], reader, documents, opened.shards)
    cut = (
        opened.title() if windows else
        f"{counted['cut']:,} documents cut at {opened.n_ctx} tokens ({counted['cut_tokens']:,} tokens lost)"
    )  # fmt: skip
    title = (
        f"{model_name}: layers until the prediction is final; {counted['rows']:,} tokens of "
        f"{counted['documents']:,} documents; {cut}, {counted['short']:,} too short for a row"
    )
    contrasts = {"depth": each("share", depth.cells, null=None)}
    return InstrumentData({"depth": depth}, contrasts, {"features": about, "title": title}, extra=results)


def depths(table: LongTable, reader: FeatureReader, read: pd.DataFrame, shards: TokenShards) -> Observations:
    """The number of tokens of each document with each k*."""
    name = "processing_depth" if reader.how.tier == "core" else "k_star"
    places, rows, without = read[["place", "rows", "without"]].to_numpy().T
    documents, of = np.unique(shards.source[places], return_inverse=True)
    last = np.zeros(len(documents), np.int64)
    np.maximum.at(last, of, shards.offset[places] + without + rows + 1 + reader.offset)
    texts = shards.documents if shards.stride else shards
    cells = pd.DataFrame({"k_star": range(reader.model.config.n_layers + 1)})
    total = np.zeros((len(cells), len(documents)))
    for batch in table.batches(["document", name]):
        column = np.searchsorted(documents, batch["document"].to_numpy())
        np.add.at(total, (batch[name].to_numpy().astype(int), column), 1)
    units = unit_names([(d, texts.document(d)[:stop]) for d, stop in zip(documents.tolist(), last, strict=True)])
    return Observations(measure=SHARE, cells=cells, units=units, total=total, size=np.bincount(of, rows))


def tables(options: Extract, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    frame, missing = estimates["depth"].wide(["k_star"], describe=("low", "high"))
    frame = frame.assign(tokens=data.blocks["depth"].total.sum(1).astype(int))
    return {**data.extra, "depth": Table(frame, DEPTH, missing, data.about["title"])}


def stream_names(model: Any) -> tuple[str, ...]:
    """Hooks of the streams that leave the last layer: x_t and x_e, the parallel ones, or the single one."""
    from streamscope.probes.stream_states import stream_hooks

    return tuple(f"blocks.{model.config.n_layers - 1}.hook_{kind}_post" for kind in stream_hooks(model) or ("resid",))


def plan(reader: FeatureReader, shards: TokenShards, max_tokens: int | None) -> tuple[pd.DataFrame, dict[str, int]]:
    """The documents, or windows of them, that have rows, and counts; the last may be cut by `max_tokens`. Raises
    `InputError` if there is none.

    Columns: place in the shards; rows; `without`, the leading positions whose rows belong to the window before; `part`,
    of about `PART_ROWS` rows, the documents that are read together."""
    lengths = shards.lengths
    without = np.maximum(shards.unscored - reader.offset, 0)
    rows = np.maximum(reader.rows_of(lengths) - without, 0)
    starts = np.cumsum(rows) - rows
    if max_tokens is not None:
        n = int(np.searchsorted(starts, max_tokens, side="left"))
        lengths, starts = lengths[:n], starts[:n]
        rows = np.minimum(rows[:n], max_tokens - starts)
    if not rows.any():
        raise InputError("no document has two tokens that follow each other within the context; give longer documents")
    indices = np.flatnonzero(rows)
    documents = pd.DataFrame({"place": indices, "rows": rows[indices], "without": without[indices]})
    documents["part"] = starts[indices] // PART_ROWS
    over = np.maximum(lengths - 1 - reader.model.config.n_ctx, 0)
    n_read, n_sources = np.unique(shards.source[indices]).size, np.unique(shards.source[: len(rows)]).size
    counted = {"rows": rows.sum(), "documents": n_read, "short": n_sources - n_read}
    counted |= {"windows": len(indices)} if shards.stride else {}
    counted |= {"cut": np.count_nonzero(over), "cut_tokens": over.sum()}
    return documents, {name: int(n) for name, n in counted.items()}


def tables_of(reader: FeatureReader, shards: TokenShards, part: pd.DataFrame, pieces: np.ndarray) -> list[pa.Table]:
    """Tables of a part's features and, if requested, of its raw activations; documents in order."""
    first, (places, sizes, without) = 1 + reader.offset, part[["place", "rows", "without"]].to_numpy().T
    cuts = zip(places.tolist(), sizes, without, strict=True)
    documents = [shards.document(d)[: skip + n + first].tolist() for d, n, skip in cuts]
    starts, total = np.cumsum(sizes) - sizes, int(sizes.sum())
    X = np.empty((total, len(reader.columns)), np.float32)
    prediction = np.empty(total, np.int64)
    raw: dict[str, np.ndarray] = {}
    for batch in batches([len(ids) for ids in documents], BATCH_TOKENS):
        rows = reader.read([documents[i] for i in batch], without[batch])
        to = np.concatenate([starts[i] + np.arange(sizes[i]) for i in batch])
        X[to], prediction[to] = rows.X, rows.prediction
        for name, x in rows.raw.items():
            raw.setdefault(name, np.empty((total, x.shape[1]), np.float32))[to] = x
    token = np.concatenate([ids[skip:][:n] for ids, n, skip in zip(documents, sizes, without, strict=True)])
    target = np.concatenate([ids[first + skip :] for ids, skip in zip(documents, without, strict=True)])
    ids = {"token": token, "target": target, "prediction": prediction}
    of = np.repeat(places, sizes)
    values = {"document": shards.source[of], "window": shards.window[of], "offset": shards.offset[of]}
    values["position"] = values["offset"] + np.arange(total) - np.repeat(starts - without, sizes)
    values |= {f"{name}_id": x for name, x in ids.items()} | {name: pieces[x] for name, x in ids.items()}
    kinds = INDEX | ({"window": "int32", "offset": "int32"} if shards.stride else {})
    index = {name: pa.array(values[name], pa.type_for_alias(kind)) for name, kind in kinds.items()}
    features = dict(zip([c.name for c in reader.columns], np.ascontiguousarray(X.T), strict=True))
    lists = {name: pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1]) for name, x in raw.items()}
    return [pa.table(index | features), *([pa.table(index | lists)] if raw else [])]


def pieces_of(model: Any) -> np.ndarray:
    """The text of every token id, or its number without a tokenizer."""
    n, tokenizer = model.config.d_vocab, model.tokenizer
    pieces = [] if tokenizer is None else tokenizer.pieces(range(tokenizer.d_vocab))
    return np.array([*pieces, *map(str, range(len(pieces), n))], dtype=object)


TARGET = "the next token; with --logits-row next, the one after it"
TOKEN = (
    key("document", "document", "number of the document in the data, from 0", "document", "d"),
    key("position", "position", "position of the query in the document, from 0", "tokens", "d"),
    number("token_id", "token id", "token id", "token at the position", "d", False),
    key("token", "token", "token at the query position", "text"),
    number("target_id", "target's id", "token id", TARGET, "d", False),
    key("target", "target", TARGET, "text"),
    number("prediction_id", "prediction's id", "token id", "argmax of the final layer", "d", False),
    key("prediction", "prediction", "argmax of the final layer", "text"),
)  # fmt: skip
SCREEN_FEATURES = ("k_star", "kappa", "processing_depth", "confidence")  # features shown on the screen


DEPTH = (
    key("k_star", "k*", "layers until the prediction is final", "layers", "d"),
    *described("share", "share of tokens", "share of tokens", "tokens with this k*", format=".3f",
               source="PLS Table 1"),
    number("tokens", "tokens", "tokens", "tokens with this k*", "d"),
    *counts("documents", "documents"),
)  # fmt: skip
