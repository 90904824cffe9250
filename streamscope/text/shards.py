"""Token shards on disk, and batches from them.

    shards = pack(open_corpus("stories"), tokenizer, part="train")
    windows = Windows(shards, n_ctx=256)
    for indices in np.array_split(epoch_order(len(windows), seed=0, epoch=0), ...):
        inputs, targets = windows.batch(indices)

A corpus is tokenized once: `pack` caches the result by the corpus' fingerprint, the tokenizer's sha256 and the part. In
the cache, `<key>/` holds

- `tokens.bin`: all documents concatenated, each as BOS and its tokens (uint16, or uint32 for more than 65,536 ids);
- `starts.npy`: int64, D+1 offsets; document i is tokens[starts[i]:starts[i+1]];
- `meta.json`: a description, with the sha256 of the other two, which is checked on opening.

Several packed corpora with shares are a `Mixture`, and `MixedWindows(mixture, n_ctx).draw(seed, start, n)` the windows
that training takes from each.

B batch, T position, D documents. Targets are the inputs' next tokens, or -100 where there is none.
"""

import array
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from streamscope.cli.disk import read_json, sha256
from streamscope.cli.errors import InputError, reading
from streamscope.cli.terminal import counted
from streamscope.text.cache import cache_root, cached
from streamscope.text.corpus import Corpus, MixtureCorpus
from streamscope.text.tokenizer import Tokenizer

FORMAT = 1
Part = Literal["all", "train", "valid"]
Packing = Literal["stream", "document"]
NO_TARGET = -100  # torch's default `ignore_index`
SPLIT_BINS = 10_000
BLOCK = 1000  # number of draws in which the shares are exact
_BLOCKS = 2**31  # stream of the random order of parts; the orders of windows have streams from 1
GROUP_DOCUMENTS, GROUP_CHARACTERS = 512, 1_000_000  # bounds the memory of tokenizing


class TokenShards:
    """A packed corpus, memory-mapped: `tokens` [n_tokens], `starts` [n_documents + 1], `meta`.

    `begins` and `ends` [n_documents] are the places of each document in `tokens`. Of windows (`overlapping_windows`)
    `source` is their document, `window` their number in it, `offset` their first position there and `unscored` their
    number of leading targets that are only context; a whole document is its only window.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        with reading(folder, "delete the folder"):
            self.meta: dict[str, Any] = read_json(folder / "meta.json", dict[str, Any], "delete the folder")
            sizes = {name: (folder / name).stat().st_size for name in self.meta["bytes"]}
            if self.meta["format"] != FORMAT or sizes != self.meta["bytes"]:
                raise ValueError(f"sizes are {sizes} instead of {self.meta['bytes']}")
            if changed := [name for name in sizes if sha256(folder / name) != self.meta["sha256"][name]]:
                raise ValueError(f"the content of {changed[0]} has changed")
            tokens = np.memmap(folder / "tokens.bin", dtype=self.meta["dtype"], mode="r")
            self._hold(tokens, np.load(folder / "starts.npy"))
            self.d_vocab, self.pad_id = int(self.meta["d_vocab"]), int(self.meta["pad_id"])

    def _hold(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        self.tokens, self.starts, self.begins, self.ends = tokens, starts, starts[:-1], starts[1:]
        self.source = np.arange(len(self.begins))
        self.window = self.offset = self.unscored = np.zeros(len(self.begins), dtype=np.int64)

    @property
    def n_tokens(self) -> int:
        return int(self.starts[-1])

    @property
    def n_documents(self) -> int:
        return len(self.begins)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per document, including BOS: int64 [n_documents]."""
        return self.ends - self.begins

    def document(self, i: int) -> np.ndarray:
        """The tokens of document `i`, BOS first: int64 [length]."""
        if not 0 <= i < self.n_documents:
            raise IndexError(f"document {i} of {self.n_documents}")
        return np.array(self.tokens[self.begins[i] : self.ends[i]], dtype=np.int64)

    def only(self, documents: Sequence[int]) -> "TokenShards":
        rows, selection = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in documents], copy(self)
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
    rule = _rule(part, valid_fraction, valid_blocks)
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


class Windows:
    """Training windows: `n_ctx` inputs and, for each, the next token.

    - `stream`: concatenated documents; window i is tokens[iT : iT + T + 1], and the incomplete last one is dropped.
      Windows cross documents, and the BOS of the next document is a target.
    - `document`: a window holds one document, or the j-th chunk [jT : jT + T + 1] of a longer one (positions restart
      there), padded on the right with `pad_id` and target -100. Every token except BOS is a target exactly once.
    """

    def __init__(self, shards: TokenShards, n_ctx: int, *, packing: Packing = "stream"):
        self.shards, self.n_ctx, self.packing = shards, n_ctx, packing
        if packing == "stream":
            self._n = (shards.n_tokens - 1) // n_ctx
        else:
            chunks = -(-(shards.lengths - 1) // n_ctx)  # a document of only BOS has no target and so no window
            self._first = np.concatenate([[0], np.cumsum(chunks)])
            self._n = int(self._first[-1])
        if self._n < 1:
            raise InputError(
                f"the corpus has {counted(shards.n_tokens, 'token')}, fewer than one sequence of n_ctx + 1 = "
                f"{n_ctx + 1}: give more text or a smaller n_ctx"
            )

    def at(self, n_ctx: int) -> "Windows":
        return Windows(self.shards, n_ctx, packing=self.packing)

    def __len__(self) -> int:
        return self._n

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """Inputs and targets (int64) of the windows `indices`, each in 0..len-1, else IndexError."""
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self._n:
            raise IndexError(f"windows {chosen.min()} to {chosen.max()} of {self._n}")
        if self.packing == "stream":
            begin = chosen * self.n_ctx
            end = begin + self.n_ctx + 1
        else:
            document = np.searchsorted(self._first, chosen, side="right") - 1
            begin = self.shards.starts[document] + (chosen - self._first[document]) * self.n_ctx
            end = np.minimum(begin + self.n_ctx + 1, self.shards.starts[document + 1])
        return _gather(self.shards, begin, end, self.n_ctx)


def epoch_order(n: int, seed: int, epoch: int, *streams: int) -> np.ndarray:
    """The order of `n` windows in an epoch: a permutation, int64 [n], that only depends on the arguments.

    `streams` separate several orders of one seed; trailing zeros have no effect.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, *streams]))).permutation(n)


_order = lru_cache(maxsize=16)(epoch_order)  # an epoch of a part of a mixture lasts for many blocks


class Mixture:
    """The packed parts of a mixture in its order, with the attributes of `TokenShards` for all of them."""

    def __init__(self, corpus: MixtureCorpus, parts: Sequence[TokenShards]) -> None:
        self.parts, self.shares = tuple(parts), corpus.shares
        counts = [{"n_tokens": p.n_tokens, "n_documents": p.n_documents} for p in parts]
        self.meta: dict[str, Any] = {
            "corpus": corpus.fingerprint(), **{name: self.parts[0].meta[name] for name in ("tokenizer", "rule")},
            "parts": [{"share": share, **p.meta, **n} for share, p, n in zip(self.shares, parts, counts, strict=True)],
            "source": corpus.describe(),
        }  # fmt: skip

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens for part in self.parts)

    @property
    def n_documents(self) -> int:
        return sum(part.n_documents for part in self.parts)


class MixedWindows:
    """The windows of all parts, numbered consecutively: first part, second part, …

    Draw g is a pure function of (seed, g). Every block of `BLOCK` draws has round(BLOCK · share) windows of each part,
    in random order. The windows of a part come in epochs: each once, in a new order, before any comes again. So the
    shares are exact to a thousandth after every block, and a small part is read more often.

    `weights` (one per part, 0 excludes it) are shares of the targets; default: those of the mixture. For packing
    "document", whose windows differ in length, they are converted to shares of windows.
    """

    def __init__(
        self, mixture: Mixture, n_ctx: int, *, packing: Packing = "stream", weights: Sequence[float] | None = None
    ) -> None:
        self.mixture, self.n_ctx, self.packing = mixture, n_ctx, packing
        self.windows: list[Windows] = []
        for part in mixture.parts:
            try:
                self.windows.append(Windows(part, n_ctx, packing=packing))
            except InputError as error:
                raise InputError(f"{part.meta['source']['source']}: {error}") from None
        self.first = np.concatenate([[0], np.cumsum([len(w) for w in self.windows])])
        shares = np.asarray(mixture.shares if weights is None else weights, dtype=np.float64)
        if len(shares) != len(self.windows) or not np.isfinite(shares).all() or shares.min() < 0 or not shares.any():
            raise InputError(
                f"weights {'/'.join(f'{w:g}' for w in shares)}: give one number from 0 for each of the "
                f"{len(self.windows)} parts of the data, not all of them 0"
            )
        if packing == "document":  # by the mean number of targets of a window
            parts = zip(mixture.parts, self.windows, strict=True)
            shares = shares / [(part.n_tokens - part.n_documents) / len(windows) for part, windows in parts]
        self.counts = round_to_block(shares)

    def at(self, n_ctx: int, weights: Sequence[float] | None = None) -> "MixedWindows":
        return MixedWindows(self.mixture, n_ctx, packing=self.packing, weights=weights)

    def __len__(self) -> int:
        return int(self.first[-1])

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"windows {chosen.min()} to {chosen.max()} of {len(self)}")
        part = np.searchsorted(self.first, chosen, side="right") - 1
        inputs = torch.empty((len(chosen), self.n_ctx), dtype=torch.int64)
        targets = torch.empty_like(inputs)
        for k in np.unique(part):
            rows = np.flatnonzero(part == k)
            index = torch.from_numpy(rows)
            inputs[index], targets[index] = self.windows[k].batch(chosen[rows] - self.first[k])
        return inputs, targets

    def draw(self, seed: int, start: int, n: int, phase: int = 0) -> Int[np.ndarray, " n"]:
        """The windows of draws start … start + n − 1; every `phase` has its own order."""
        blocks = range(start // BLOCK, (start + n - 1) // BLOCK + 1)
        draws = np.concatenate([self._block(seed, phase, b) for b in blocks])
        offset = start - blocks.start * BLOCK
        return draws[offset : offset + n]

    def _block(self, seed: int, phase: int, block: int) -> np.ndarray:
        key = (seed, phase, block)
        if getattr(self, "_last", (None, None))[0] != key:
            order = epoch_order(BLOCK, seed, block, phase, _BLOCKS)
            part = np.repeat(np.arange(len(self.counts)), self.counts)[order]
            draws = np.empty(BLOCK, dtype=np.int64)
            for k, count in enumerate(self.counts):
                n = len(self.windows[k])
                epochs, places = np.divmod(np.arange(block * count, (block + 1) * count), n)
                orders = {e: _order(n, seed, int(e), phase, k + 1) for e in np.unique(epochs)}
                draws[part == k] = [self.first[k] + orders[e][place] for e, place in zip(epochs, places, strict=True)]
            self._last = key, draws
        return self._last[1]


def round_to_block(shares: Sequence[float] | np.ndarray) -> np.ndarray:
    """Round shares to integers with sum BLOCK (largest remainders)."""
    exact = np.asarray(shares) / np.sum(shares) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    for k in np.argsort(counts - exact, kind="stable")[: BLOCK - int(counts.sum())]:
        counts[k] += 1
    if ((counts == 0) & (exact > 0)).any():
        raise InputError(f"a weight of the mixture is {exact[exact > 0].min() / BLOCK:.2g} of all: at least 1/{BLOCK}")
    return counts


class WindowedShards(TokenShards):
    """Shards whose documents are W windows; attributes are [W].

    `possible` is the number of windows before selection. `tokens`, `starts` and `meta` are those of the documents.
    """

    def __init__(self, shards: TokenShards, stride: int, windows: dict[str, np.ndarray], possible: int) -> None:
        self.__dict__.update(vars(shards) | windows)
        self.documents, self.stride, self.possible, self.windows = shards, stride, possible, windows
        first = self.starts[self.source]
        self.begins, self.ends = first + self.offset, first + windows["end"]

    def only(self, documents: Sequence[int] | np.ndarray) -> "WindowedShards":
        rows = np.asarray(documents, dtype=np.int64)
        windows = {name: values[rows] for name, values in self.windows.items()}
        return WindowedShards(self.documents, self.stride, windows, len(rows))


def overlapping_windows(
    shards: TokenShards, n_ctx: int, stride: int, max_documents: int | None = None, most: int | None = None
) -> WindowedShards:
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
    offset = window * stride
    table = {
        "source": source, "window": window, "offset": offset,
        "end": np.minimum(offset + n_ctx, targets[source]) + 1,
        "unscored": np.where(window > 0, n_ctx - stride, 0),
    }  # fmt: skip
    every = WindowedShards(shards, stride, table, len(source))
    if most is None or most >= len(source):
        return every
    selection = every.only(np.linspace(0, len(source) - 1, most).round().astype(np.int64))
    selection.possible = len(source)
    return selection


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
        inputs, targets = _gather(shards, begin, begin + lengths[chosen], width)
        context = torch.from_numpy(np.arange(width) < shards.unscored[chosen, None])
        yield chosen, inputs, targets.masked_fill(context, NO_TARGET)


def _gather(
    shards: TokenShards, begin: np.ndarray, end: np.ndarray, n_ctx: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Rows tokens[begin:end] of at most n_ctx + 1 tokens, as inputs and targets of width n_ctx."""
    index = begin[:, None] + np.arange(n_ctx + 1)
    real = index < end[:, None]
    rows = torch.from_numpy(np.array(shards.tokens[np.where(real, index, 0)], dtype=np.int64))
    empty = torch.from_numpy(~real)
    inputs = rows[:, :-1].masked_fill(empty[:, :-1], shards.pad_id)
    return inputs, rows[:, 1:].masked_fill(empty[:, 1:], NO_TARGET)


def _rule(part: str, valid_fraction: float, blocks: int | None = None) -> str:
    if part == "all":
        return "every document"
    if blocks is not None:
        side = "the last" if part == "valid" else "all but the last"
        return f"{side} {valid_fraction:g} of each of the {blocks} blocks of every document"
    side = "below" if part == "valid" else "not below"
    bound = round(valid_fraction * SPLIT_BINS)
    return f"documents whose text's sha256 (first 8 hex digits, modulo {SPLIT_BINS}) is {side} {bound}"


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
