"""Draws windows from several packed corpora, each with its share of the training tokens.

    mixture = Mixture(corpus, [pack(part, tokenizer, part="train") for part in corpus.parts])
    windows = MixedWindows(mixture, n_ctx=64)
    inputs, targets = windows.batch(windows.draw(seed=0, start=8 * step, n=8))

Draw g is a pure function of (seed, g). Every block of `BLOCK` draws has round(BLOCK · share) windows of each part, in
random order. The windows of a part come in epochs: each once, in a new order, before any comes again. So the shares are
exact to a thousandth after every block, and a small part is read more often.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.text.corpus import MixtureCorpus
from streamscope.text.shards import Packing, TokenShards, Windows, epoch_order

BLOCK = 1000  # number of draws in which the shares are exact
_BLOCKS = 2**31  # stream of the random order of parts; the orders of windows have streams from 1
_order = lru_cache(maxsize=16)(epoch_order)  # an epoch of a part lasts for many blocks


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
