"""The windows of packed text that training reads.

    windows = Windows(shards, n_ctx=256)
    for indices in np.array_split(epoch_order(len(windows), seed=0, epoch=0), ...):
        inputs, targets = windows.batch(indices)

Several packed corpora with shares are a `Mixture`, and `MixedWindows(mixture, n_ctx).draw(seed, start, n)` the windows
that training takes from each. B batch, T position.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.text.corpus import Corpus
from streamscope.text.shards import Packing, TokenShards, gather

BLOCK = 1000  # number of draws in which the shares are exact
_BLOCKS = 2**31  # stream of the random order of parts; the orders of windows have streams from 1


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
        return gather(self.shards, begin, end, self.n_ctx)


def epoch_order(n: int, seed: int, epoch: int, *streams: int) -> np.ndarray:
    """The order of `n` windows in an epoch: a permutation, int64 [n], that only depends on the arguments.

    `streams` separate several orders of one seed; trailing zeros have no effect.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, *streams]))).permutation(n)


_order = lru_cache(maxsize=16)(epoch_order)  # an epoch of a part of a mixture lasts for many blocks


class Mixture:
    """The packed parts of a mixture in its order, with the attributes of `TokenShards` for all of them."""

    def __init__(self, corpus: Corpus, parts: Sequence[TokenShards]) -> None:
        self.parts, self.shares = tuple(parts), tuple(weight / sum(corpus.weights) for weight in corpus.weights)
        counts = [{"n_tokens": p.n_tokens, "n_documents": p.n_documents} for p in parts]
        self.n_tokens, self.n_documents = sum(p.n_tokens for p in parts), sum(p.n_documents for p in parts)
        self.meta: dict[str, Any] = {
            "corpus": corpus.fingerprint(), **{name: self.parts[0].meta[name] for name in ("tokenizer", "rule")},
            "parts": [{"share": share, **p.meta, **n} for share, p, n in zip(self.shares, parts, counts, strict=True)],
            "source": corpus.describe(),
        }  # fmt: skip


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
            for k in np.flatnonzero(self.counts):
                n, start, stop = len(self.windows[k]), block * self.counts[k], (block + 1) * self.counts[k]
                orders = [_order(n, seed, e, phase, int(k) + 1) for e in range(start // n, (stop - 1) // n + 1)]
                draws[part == k] = self.first[k] + np.concatenate(orders)[start % n :][: self.counts[k]]
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
