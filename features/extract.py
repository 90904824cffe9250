"""Vectors that say how each token was processed, as parquet: trajectory, stability, heads at work (PLS §2, App. B, C).

    python -m features.extract                                       163 columns of the bundled LFA
    python -m features.extract runs/pls --data stories.txt --tier topk --max-tokens 50000 --out topk.parquet
    python -m features.extract runs/pls --raw                        and [x_t; x_e] of the last layer beside them
    python -m features.extract runs/pls --raw blocks.*.hook_mlp_out
    python -m features.extract runs/pls --launch ray --workers 8     parts of the documents shared among workers

One row for every position with a next token in its document: document, position, token and its id, target (the next
token), prediction (the final layer's), then the features. Columns, units, formulas and sources are in the file's
metadata (`features.store.read_features`). Attention is effective attention, times the head's gate where it has one; a
layer's prediction is read through its norm and the head (the logit lens where layers are not supervised).

Documents longer than the context are cut there and counted: what a row says is always said of a whole context.
Memory does not grow with the number of tokens. Killed, the same command goes on where it was, to the same file; so do
several at once, and with --launch: each part of the documents is read by one worker, in the same batches as alone.
Without --raw, raw activations of an earlier run under that name are deleted: they are not of the new table.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from streamscope.features.schema import FeatureOptions
from streamscope.models.bounds import Count
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.models.launch import LaunchOptions, is_worker, launch
from streamscope.probes.command import RunOptions, check_options, open_run, progress_bar, show

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from streamscope.features.reader import FeatureReader
    from streamscope.models.text.shards import TokenShards

PART_ROWS = 8192
"""Rows of a part: what is in memory at once, and a row group of the file."""
BATCH_TOKENS = 1024
"""Padded tokens of a forward pass: activations stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions, RunOptions):
    """Arguments of `python -m features.extract`."""

    data: str | None = None
    """SOURCE of documents; default: the run's validation data."""
    text_field: str = "text"
    """Field of JSON lines, column of parquet, that holds the text."""
    out: Path | None = Path("features.parquet")
    """Write the features (.parquet) here."""
    max_tokens: Count | None = None
    """Rows to write; default: all."""
    raw: tuple[str, ...] | None = None
    """Hooks (names or patterns) whose activations go to a second file; --raw alone: the last layer's streams."""
    features: Annotated[FeatureOptions, tyro.conf.arg(name="")] = FeatureOptions()


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, extract, print."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.out is None:
        raise InputError("--out: features are only written to a file, name one")
    name, model = open_run(options)

    from streamscope.features.reader import FeatureReader
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.provenance import pick_device, provenance
    from streamscope.models.tensors import sha256
    from streamscope.models.training.data import evaluation_shards

    folder = run_folder(options.run)
    shards = evaluation_shards(folder, model._text(), options.data, text_field=options.text_field)
    raw = None if options.raw is None else options.raw or stream_names(model)
    reader = FeatureReader(model, options.features, raw or ())
    about = {"run": options.run, "preset": model.config.name, "checkpoint": sha256(folder / "model.safetensors")}
    made = provenance(pick_device(options.device))
    plan(reader, shards, options.max_tokens)  # tells what is wrong before anybody is started
    words, logs = sys.argv[1:] if argv is None else argv, options.out.with_name(f".{options.out.name}.logs")
    launch(options, "streamscope.features.extract", words, logs=logs)
    bar, only = progress_bar("features"), is_worker(options)
    counts = extract(
        reader, shards, options.out, model=about, max_tokens=options.max_tokens, progress=bar, worker=only, **made
    )
    if not only:
        shutil.rmtree(logs, ignore_errors=True)
        _report(name, options.out, counts, reader.raw)


def stream_names(model: Any) -> tuple[str, ...]:
    """The streams that leave the last layer: x_t and x_e, the parallel ones, or the single one."""
    from streamscope.probes.stream_states import stream_hooks

    return tuple(f"blocks.{model.config.n_layers - 1}.hook_{kind}_post" for kind in stream_hooks(model) or ("resid",))


def raw_path(out: Path) -> Path:
    """Where the raw activations of `out` go."""
    return out.with_stem(f"{out.stem}-raw")


def extract(
    reader: "FeatureReader",
    shards: "TokenShards",
    out: Path,
    *,
    model: Mapping[str, Any],
    max_tokens: int | None = None,
    progress: Callable[[Iterable], Iterable] = iter,
    worker: bool = False,
    **about: Any,
) -> dict[str, int]:
    """Write the features of `shards` to `out` (and raw activations beside it), going on where a killed run stopped.

    `model` says which one it is (run, preset, checkpoint) and is part of what must be equal to go on; `about` is only
    noted in the file. Others may work on the same `out`: parts are claimed in a ledger, and a `worker` returns when
    there is none left to claim, without the file. Raw activations of an earlier run beside `out` are deleted where none
    are read. Returns counts: rows, documents, those cut at the context and the tokens that lost, documents too short
        for a row, rows found done, and files deleted. Raises `InputError` for data without a row or of a larger
    vocabulary, for a folder of parts of something else, and for what cannot be written.
    """
    import torch

    from streamscope.features.parts import Parts
    from streamscope.features.store import about_features, metadata, remove_tables
    from streamscope.models.ledger import Gone, Ledger

    config = reader.model.config
    if shards.d_vocab > config.d_vocab:
        raise InputError(f"data of {shards.d_vocab} token ids for a model of {config.d_vocab}; give --data of its own")
    work, counts = plan(reader, shards, max_tokens)
    data = {name: shards.meta.get(name) for name in ("source", "corpus", "tokenizer", "rule")}
    data |= {"n_ctx": config.n_ctx, **counts}
    features = about_features(config.n_layers, config.n_heads, reader.options, model=dict(model), data=data)
    how = {"rows": PART_ROWS, "batch": BATCH_TOKENS, "device": torch.device(reader.model.cfg.device).type}
    parts = Parts(out, {**features, "hooks": reader.raw, **how})
    resumed = sum(int(part.rows.sum()) for i, part in enumerate(work) if parts.done(i))
    pieces = _pieces(reader.model)
    ledger, names = Ledger(parts.folder / "ledger"), [f"{i:06d}" for i in range(len(work))]

    def read(name: str) -> None:
        if not parts.done(int(name)):
            parts.write(int(name), _tables(reader, shards, work[int(name)], pieces))

    outputs = [(out, metadata(features | about))]
    if reader.raw:
        raw = {name: value for name, value in features.items() if name not in ("schema", "tier")}
        outputs.append((raw_path(out), metadata({**raw, "kind": "raw", "hooks": reader.raw, **about})))
    if not out.exists():
        ledger.forget("assemble")
    try:
        for name in progress(names):
            ledger.work([name], read, caught=())
        if worker:
            return counts
        ledger.work(names, read, caught=(), wait=True)
        ledger.work(["assemble"], lambda name: parts.assemble(len(work), outputs), caught=(), wait=True)
    except Gone:  # another has assembled the file and tidied up
        return counts | {"resumed": counts["rows"], "removed": 0}
    parts.remove()
    removed = [] if reader.raw else remove_tables([raw_path(out)], "raw")
    return counts | {"resumed": resumed, "removed": len(removed)}


class Part(NamedTuple):
    """Documents that are read together."""

    documents: "np.ndarray"
    rows: "np.ndarray"
    """Of each document."""


def plan(reader: "FeatureReader", shards: "TokenShards", max_tokens: int | None) -> tuple[list[Part], dict[str, int]]:
    """The parts, of about `PART_ROWS` rows, in the order of the documents, and counts; of the last document only the
    beginning may be wanted. Raises `InputError` where no document has a row."""
    import numpy as np

    lengths = shards.lengths
    rows = reader.rows_of(lengths)
    before = np.cumsum(rows) - rows
    if max_tokens is not None:
        n = int(np.searchsorted(before, max_tokens, side="left"))
        lengths, before = lengths[:n], before[:n]
        rows = np.minimum(rows[:n], max_tokens - before)
    if not rows.any():
        raise InputError("no document has two tokens that follow each other within the context; give longer documents")
    used = np.flatnonzero(rows)
    bounds = np.flatnonzero(np.diff(before[used] // PART_ROWS)) + 1
    parts = [Part(documents, rows[documents]) for documents in np.split(used, bounds)]
    over = np.maximum(lengths - 1 - reader.model.config.n_ctx, 0)
    counts = {"rows": rows.sum(), "documents": len(used), "short": len(rows) - len(used)}
    counts |= {"cut": np.count_nonzero(over), "cut_tokens": over.sum()}
    return parts, {name: int(n) for name, n in counts.items()}


def _tables(reader: "FeatureReader", shards: "TokenShards", part: Part, pieces: "np.ndarray") -> "list[pa.Table]":
    """The table of a part's features and, if any are wanted, that of its raw activations; documents in order."""
    import numpy as np
    import pyarrow as pa

    from streamscope.features.store import INDEX
    from streamscope.models.hooks import batches

    offset = reader.offset
    wanted = zip(part.documents.tolist(), part.rows.tolist(), strict=True)
    documents = [shards.document(d)[: n + 1 + offset].tolist() for d, n in wanted]
    starts, total = np.cumsum(part.rows) - part.rows, int(part.rows.sum())
    X = np.empty((total, len(reader.columns)), np.float32)
    prediction = np.empty(total, np.int64)
    raw: dict[str, np.ndarray] = {}
    for batch in batches([len(ids) for ids in documents], BATCH_TOKENS):
        found = reader.read([documents[i] for i in batch])
        to = np.concatenate([starts[i] + np.arange(part.rows[i]) for i in batch])
        X[to], prediction[to] = found.X, found.prediction
        for name, x in found.raw.items():
            raw.setdefault(name, np.empty((total, x.shape[1]), np.float32))[to] = x
    at = np.arange(total) - np.repeat(starts, part.rows)
    token = np.concatenate([ids[:n] for ids, n in zip(documents, part.rows, strict=True)])
    target = np.concatenate([ids[1 + offset :] for ids in documents])
    ids = {"token": token, "target": target, "prediction": prediction}
    values = {"document": np.repeat(part.documents, part.rows), "position": at}
    values |= {f"{name}_id": x for name, x in ids.items()} | {name: pieces[x] for name, x in ids.items()}
    index = {name: pa.array(values[name], pa.type_for_alias(kind)) for name, kind in INDEX.items()}
    features = dict(zip((c.name for c in reader.columns), np.ascontiguousarray(X.T), strict=True))
    tables = [pa.table(index | features)]
    if raw:
        lists = {name: pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1]) for name, x in raw.items()}
        tables.append(pa.table(index | lists))
    return tables


def _pieces(model: Any) -> "np.ndarray":
    """The text of every id; its number for a model without tokenizer."""
    import numpy as np

    n, tokenizer = model.config.d_vocab, model.tokenizer
    known = [] if tokenizer is None else tokenizer.pieces(range(tokenizer.d_vocab))
    return np.array([*known, *(str(i) for i in range(len(known), n))], dtype=object)


def _report(name: str, out: Path, counts: Mapping[str, int], raw: Sequence[str]) -> None:
    """What was written, what was left out, and how deep tokens were processed."""
    import numpy as np
    import pandas as pd
    import pyarrow.parquet as pq

    from streamscope.probes.tables import read_about

    about = read_about(out)["about"]
    depth = "processing_depth" if about["tier"] == "core" else "k_star"
    n = np.zeros(about["model"]["n_layers"] + 1, np.int64)
    for batch in pq.ParquetFile(out).iter_batches(columns=[depth]):
        n += np.bincount(batch[depth].to_numpy().astype(int), minlength=len(n))
    table = pd.DataFrame({"k*": np.arange(len(n)), "tokens": n, "share": n / n.sum()})
    print(
        f"{name}: {counts['rows']:,} tokens of {counts['documents']:,} documents, {len(about['schema'])} features; "
        f"{counts['cut']:,} documents cut at {about['data']['n_ctx']} tokens ({counts['cut_tokens']:,} tokens lost), "
        f"{counts['short']:,} too short for a row; {counts['resumed']:,} tokens found done"
    )
    show(table, "layers until the prediction is the final one")
    print(f"features {out}")
    if raw:
        print(f"raw activations {raw_path(out)}: {', '.join(raw)}")
    if counts["removed"]:
        print(f"deleted {raw_path(out)}: raw activations of an earlier run, not of this table; --raw writes them")


if __name__ == "__main__":
    command(main)
