"""Token shards on disk, and batches from them.

    shards = pack(open_corpus("stories"), tokenizer, part="valid")
    for documents, inputs, targets in document_batches(shards, n_ctx=256, batch_size=16):
        …

A corpus is tokenized once: `pack` caches the result by the corpus' fingerprint, the tokenizer's sha256 and the part. In
the cache, `<key>/` holds

- `tokens.bin`: all documents concatenated, each as BOS and its tokens (uint16, or uint32 for more than 65,536 ids);
- `starts.npy`: int64, D+1 offsets; document i is tokens[starts[i]:starts[i+1]];
- `meta.json`: a description, with the sha256 of the other two, which is checked on opening.

`text.windows` has the windows that training reads. B batch, T position, D documents. Targets are the inputs' next
tokens, or -100 where there is none.
"""

import array
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from streamscope.cli.disk import read_json, sha256
from streamscope.cli.errors import InputError, reading
from streamscope.text.cache import cache_root, cached
from streamscope.text.corpus import Corpus
from streamscope.text.tokenizer import Tokenizer

FORMAT = 1
Part = Literal["all", "train", "valid"]
Packing = Literal["stream", "document"]
NO_TARGET = -100  # torch's default `ignore_index`
SPLIT_BINS = 10_000
OF_WINDOWS = ("source", "window", "offset", "unscored", "begins", "ends", "lengths")
"""What shards have of each window."""
GROUP_DOCUMENTS, GROUP_CHARACTERS = 512, 1_000_000  # bounds the memory of tokenizing


class TokenShards:
    """A packed corpus, memory-mapped: `tokens` [n_tokens], `starts` [n_documents + 1], `meta`.

    `begins` and `ends` [n_documents] are the places of each document in `tokens`, and `lengths` its tokens including
    BOS. Of windows (`overlapping_windows`), which then are the documents, `source` is their document, `window` their
    number in it, `offset` their first position there and `unscored` their number of leading targets that are only
    context; a whole document is its only window. Windows have a `stride` above 0, and `documents`, the shards that they
    are windows of; `possible` is their number before selection.
    """

    stride = 0
    documents: "TokenShards"
    possible: int

    def __init__(self, folder: Path):
        self.folder = folder
        with reading(folder, "delete the folder"):
            self.meta: dict[str, Any] = read_json(folder / "meta.json", dict[str, Any], "delete the folder")
            for name, size in self.meta["bytes"].items():
                if self.meta["format"] != FORMAT or (folder / name).stat().st_size != size:
                    raise ValueError(f"{name} has not {size} bytes, or is of another format")
                if sha256(folder / name) != self.meta["sha256"][name]:
                    raise ValueError(f"the content of {name} has changed")
            tokens = np.memmap(folder / "tokens.bin", dtype=self.meta["dtype"], mode="r")
            self._hold(tokens, np.load(folder / "starts.npy"))
            self.d_vocab, self.pad_id = int(self.meta["d_vocab"]), int(self.meta["pad_id"])

    def _hold(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        self.tokens, self.starts, self.begins, self.ends = tokens, starts, starts[:-1], starts[1:]
        self.n_tokens, self.n_documents, self.lengths = int(starts[-1]), len(self.begins), self.ends - self.begins
        self.source = np.arange(self.n_documents)
        self.window = self.offset = self.unscored = np.zeros(self.n_documents, dtype=np.int64)

    def document(self, i: int) -> np.ndarray:
        """The tokens of document `i`, BOS first: int64 [length]."""
        if not 0 <= i < self.n_documents:
            raise IndexError(f"document {i} of {self.n_documents}")
        return np.array(self.tokens[self.begins[i] : self.ends[i]], dtype=np.int64)

    def only(self, documents: Sequence[int] | np.ndarray) -> "TokenShards":
        selection, chosen = copy(self), np.asarray(documents, dtype=np.int64)
        if self.stride:
            for name in OF_WINDOWS:
                setattr(selection, name, getattr(self, name)[chosen])
            selection.n_documents = selection.possible = len(chosen)
            return selection
        rows = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in chosen]
        selection._hold(np.concatenate([np.zeros(0, self.tokens.dtype), *rows]), np.cumsum([0, *map(len, rows)]))
        return selection


def pack(
    corpus: Corpus, tokenizer: Tokenizer, *, cache_dir: Path | None = None, part: Part = "all",
    valid_fraction: float = 0.05, valid_blocks: int | None = None,
) -> TokenShards:  # fmt: skip
    """Tokenize `corpus`, or read it tokenized from the cache (`text.cache`) in `cache_dir`.

    `part` is "all" documents, or the "train" or "valid" side of the split of `in_validation`, with `valid_fraction` as
    the expected share of the latter. With `valid_blocks`, every document is split into this number of equal blocks
    instead, whose ends are held out (`pieces`).
    """
    rule = "every document"
    if part != "all" and valid_blocks is not None:
        side = "the last" if part == "valid" else "all but the last"
        rule = f"{side} {valid_fraction:g} of each of the {valid_blocks} blocks of every document"
    elif part != "all":
        side, bound = "below" if part == "valid" else "not below", round(valid_fraction * SPLIT_BINS)
        rule = f"documents whose text's sha256 (first 8 hex digits, modulo {SPLIT_BINS}) is {side} {bound}"
    identity = {"format": FORMAT, "corpus": corpus.fingerprint(), "tokenizer": tokenizer.sha256, "rule": rule}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def build(folder: Path) -> None:
        texts = corpus.documents()
        if part != "all" and valid_blocks is None:
            texts = (text for text in texts if in_validation(text, valid_fraction) == (part == "valid"))
        rows: Iterable[Sequence[int]] = chain.from_iterable(map(tokenizer.encode_batch, _groups(texts)))
        if part != "all" and valid_blocks is not None:
            bos = [] if tokenizer.adds_bos else [tokenizer.bos_id]
            documents = (pieces([*bos, *ids], part, valid_fraction, valid_blocks) for ids in rows)
            rows = (piece[len(bos) :] for document in documents for piece in document)
        meta = json.dumps({**identity, "part": part, **_write(folder, rows, tokenizer, corpus.source)}, indent=1)
        (folder / "meta.json").write_text(meta, encoding="utf-8")

    shards = cached(cache_root(cache_dir) / key, build, TokenShards)
    shards.meta["source"] = corpus.describe()  # of this run; equal content may have several sources
    return shards


def in_validation(document: str, valid_fraction: float) -> bool:
    """Whether a document is held out: int(sha256(document)[:8], 16) % 10,000 < 10,000 valid_fraction.

    It only depends on the text, so equal documents are on the same side.
    """
    bucket = int(hashlib.sha256(document.encode()).hexdigest()[:8], 16) % SPLIT_BINS
    return bucket < round(valid_fraction * SPLIT_BINS)


def pieces(ids: Sequence[int], part: str, valid_fraction: float, blocks: int) -> list[Sequence[int]]:
    """The "train" or "valid" side of one document (BOS first) in contiguous pieces, each starting with BOS.

    Its n tokens are split into blocks [⌊in/B⌋, ⌊(i+1)n/B⌋); the last `valid_fraction` of each, rounded, is held out. A
    document with fewer than 2 tokens to hold out per block is used for training completely.
    """
    bos, body = ids[:1], ids[1:]
    edges = [i * len(body) // blocks for i in range(blocks + 1)]
    held_out = [round(valid_fraction * (stop - start)) for start, stop in pairwise(edges)]
    if min(held_out) < 2:
        return [ids] if part == "train" else []
    cuts = [stop - n for stop, n in zip(edges[1:], held_out, strict=True)]
    sides = zip(edges, cuts, strict=False) if part == "train" else zip(cuts, edges[1:], strict=True)
    return [[*bos, *body[start:stop]] for start, stop in sides if stop > start]


def overlapping_windows(
    shards: TokenShards, n_ctx: int, stride: int, max_documents: int | None = None, most: int | None = None
) -> TokenShards:
    """Split the first `max_documents` documents into overlapping windows, so that every token except the first is
    scored exactly once.

    With context T = `n_ctx` and stride s ≤ T, window w of a document holds the inputs ws … ws + T − 1 and their next
    tokens. The first window scores all of its targets, each later one only its last s. So a token is predicted from
    everything before it, or from at least T − s + 1 tokens. s = T gives separate chunks, as packing "document" in
    training. If there are more than `most` windows, `most` evenly spread ones are selected.
    """
    if not 1 <= stride <= n_ctx:
        raise InputError(f"stride {stride}: give 1 to {n_ctx}, the context; a larger one would skip tokens")
    targets = shards.lengths[:max_documents] - 1
    count = 1 + np.maximum(-((n_ctx - targets) // stride), 0)  # 1 + ⌈(targets − n_ctx) / stride⌉
    source = np.repeat(np.arange(len(targets)), count)
    window = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    windows, offset, first = copy(shards), window * stride, shards.starts[source]
    windows.documents, windows.stride, windows.n_documents = shards, stride, len(source)
    windows.source, windows.window, windows.offset = source, window, offset
    windows.unscored = np.where(window > 0, n_ctx - stride, 0)
    windows.begins, windows.ends = first + offset, first + np.minimum(offset + n_ctx, targets[source]) + 1
    windows.lengths = windows.ends - windows.begins
    if most is not None and most < len(source):
        windows = windows.only(np.linspace(0, len(source) - 1, most).round().astype(np.int64))
    windows.possible = len(source)
    return windows


def document_batches(
    shards: TokenShards, n_ctx: int, batch_size: int, max_documents: int | None = None
) -> Iterator[tuple[np.ndarray, Int[Tensor, "B T"], Int[Tensor, "B T"]]]:
    """Yield whole documents for evaluation: (document indices [B], inputs, targets), padded on the right.

    These are the first `max_documents` documents, cut to n_ctx + 1 tokens, longest first: there is little padding, and
    the largest batch comes first. Leading targets that are only context (`overlapping_windows`) are -100.
    """
    lengths = np.minimum(shards.lengths[:max_documents], n_ctx + 1)
    order = np.argsort(-lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        begin, width = shards.begins[chosen], max(int(lengths[chosen[0]]) - 1, 1)
        inputs, targets = gather(shards, begin, begin + lengths[chosen], width)
        context = torch.from_numpy(np.arange(width) < shards.unscored[chosen, None])
        yield chosen, inputs, targets.masked_fill(context, NO_TARGET)


def gather(
    shards: TokenShards, begin: np.ndarray, end: np.ndarray, n_ctx: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Rows tokens[begin:end] of at most n_ctx + 1 tokens, as inputs and targets of width n_ctx."""
    index = begin[:, None] + np.arange(n_ctx + 1)
    real = index < end[:, None]
    rows = torch.from_numpy(np.array(shards.tokens[np.where(real, index, 0)], dtype=np.int64))
    empty = torch.from_numpy(~real)
    inputs = rows[:, :-1].masked_fill(empty[:, :-1], shards.pad_id)
    return inputs, rows[:, 1:].masked_fill(empty[:, 1:], NO_TARGET)


def document_count(n: int, valid: Mapping[str, Any]) -> str:
    """Text with the number of documents, or of parts of documents if ends of blocks are held out."""
    return f"{n:,} {'parts of ' if valid.get('rule', '').endswith(' blocks of every document') else ''}documents"


def _write(folder: Path, rows: Iterable[Sequence[int]], tokenizer: Tokenizer, source: str) -> dict[str, Any]:
    """The files of shards, and what `meta.json` says of them."""
    dtype = np.dtype(np.uint16 if tokenizer.d_vocab <= 2**16 else np.uint32)
    starts = array.array("q", [0])
    with open(folder / "tokens.bin", "wb") as file:
        for ids in rows:
            file.write(np.asarray(ids, dtype=dtype).tobytes())
            starts.append(starts[-1] + len(ids))
    if len(starts) == 1:
        raise InputError(f"{source} has too little text for one side of the split: change --valid-fraction or "
                         "--valid-blocks, or give --valid")  # fmt: skip
    np.save(folder / "starts.npy", np.asarray(starts, dtype=np.int64))
    files = ("tokens.bin", "starts.npy")
    return {
        "dtype": dtype.name, "d_vocab": tokenizer.d_vocab, "bos_id": tokenizer.bos_id, "pad_id": tokenizer.pad_id,
        "n_documents": len(starts) - 1, "n_tokens": starts[-1],
        "bytes": {name: (folder / name).stat().st_size for name in files},
        "sha256": {name: sha256(folder / name) for name in files},
    }  # fmt: skip


def _groups(documents: Iterator[str]) -> Iterator[list[str]]:
    group, characters = list[str](), 0
    for document in documents:
        group.append(document)
        characters += len(document)
        if len(group) == GROUP_DOCUMENTS or characters >= GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group
