"""HSS and entropy: sums of patterns over blocks of samples as scopes × blocks, with one row per scope."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import lgamma
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Measure, Observations, each
from streamscope.instruments.table import Table, described, key, number
from streamscope.models.hooks import Query, run
from streamscope.probes.roles import PATTERN, SINK, by_layer, sink_names, sinks_sentence
from streamscope.probes.specialization import Specialization

CHUNK_NUMBERS = 2**24
"""Attention weights held at once when streaming (64 MiB in float32, twice that while capturing)."""
ALONE = "a single head has no other to differ from"
ALL_SINKS = "fewer than two heads are not BOS sinks"
WITHOUT_SINKS = "without sinks"
"""The scope of all heads but the BOS sinks. A model without sinks has it too, so that models can be compared."""
KEYS = ("scope", "layer", "index")


class Sums:
    """Sums of patterns and entropies by block of samples; memory does not depend on the number of samples."""

    def __init__(self, blocks: int) -> None:
        self.counts = [0] * blocks
        self.patterns: Any = None  # [blocks, L, H, T, T]
        self.entropies: Any = None  # [blocks, L, H]

    def add(self, captures: Any) -> None:
        """Add every sample of `captures`. Raises `InputError` for samples of another length."""
        for sample in zip(*by_layer(captures, "hook_pattern").values(), strict=True):
            a = torch.stack([layer.detach().float().cpu() for layer in sample])
            if self.patterns is None:
                self.patterns = torch.zeros(len(self.counts), *a.shape)
                self.entropies = torch.zeros(len(self.counts), *a.shape[:2], dtype=torch.float64)
            if a.shape != self.patterns.shape[1:]:
                raise InputError(f"samples need one length, got {a.shape[-1]} and {self.patterns.shape[-1]} tokens")
            block = sum(self.counts) % len(self.counts)
            self.counts[block] += 1
            self.patterns[block] += a
            self.entropies[block] += torch.special.entr(a.double()).sum(-1).mean(-1)

    def means(self, left_out: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """1 − cosine [L·H, L·H] between the heads' mean patterns, and entropy [L, H], with one block left out."""
        keep = [b for b, count in enumerate(self.counts) if count and b != left_out]
        n = sum(self.counts[b] for b in keep)
        patterns, entropies = self.patterns.sum(0), self.entropies.sum(0)
        if left_out is not None:
            patterns, entropies = patterns - self.patterns[left_out], entropies - self.entropies[left_out]
        a = (patterns / n).to(torch.float64).flatten(2).flatten(0, 1)
        return distances(a).numpy(), (entropies / n).numpy()

    def to_bos(self) -> np.ndarray:
        """Mean attention to BOS [L, H], over the queries after it."""
        found: np.ndarray = (self.patterns.sum(0)[:, :, 1:, 0].double().mean(-1) / sum(self.counts)).numpy()
        return found


def distances(a: Tensor) -> Tensor:
    """1 − cosine between every two rows of a [heads, numbers]; HSS (DST Eq. 18) is its mean over pairs of heads. Raises
    `InputError` for a pattern that is zero everywhere or not finite."""
    norms = a.norm(dim=1, keepdim=True)
    if not (norms.isfinite() & (norms > 0)).all():
        raise InputError("an attention pattern is not finite or zero everywhere, so it has no direction to compare")
    unit = a / norms
    return 1 - unit @ unit.T


def stream(
    model: Any, how: Specialization, samples: Iterable[Sequence[int]], *, edits: Any = None,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Sums:  # fmt: skip
    """The sums over the samples of token ids (BOS first) that are long enough.

    Memory does not grow with their number (`CHUNK_NUMBERS`). Raises `InputError` if none is long enough.
    """
    size = max(1, CHUNK_NUMBERS // (model.cfg.n_layers * model.cfg.n_heads * how.length**2))
    each = iter([int(t) for t in ids[: how.length]] for ids in progress(samples) if len(ids) >= how.length)
    sums = Sums(how.blocks)
    while some := list(islice(each, size)):
        sums.add(run(model, Query(tokens=some, hooks=(PATTERN,)), edits))
    if sums.patterns is None:
        raise InputError(f"no sample has {how.length} tokens; give longer texts or a smaller --length")
    return sums


def observe(how: Specialization, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: scopes. Units: blocks of samples."""
    if how.length > model.cfg.n_ctx:
        raise InputError(f"--length {how.length} is longer than the context of {model.cfg.n_ctx}")
    opened = data[Documents]
    rows = (ids[: how.length] for ids in opened.rows() if len(ids) >= how.length)
    samples = list(islice(rows, how.samples))
    if opened.units()["cluster"].duplicated().any():
        samples = blocks_of_neighbours(samples, how.blocks)
    seen = observed(stream(model, how, samples, progress=progress), samples)
    even, n = lgamma(how.length + 1) / how.length, model.cfg.n_layers * model.cfg.n_heads
    seen.about["title"] = (
        f"{title_of(model)}: {counted(len(samples), 'sample')} of {how.length} tokens "
        f"({opened.title()}); uniform attention has entropy {even:.4f}{sinks_sentence(seen.about['sinks'], n)}"
    )
    return seen


def blocks_of_neighbours(samples: Sequence[Any], blocks: int) -> list[Any]:
    """The samples reordered so that `Sums` puts neighbours (windows of one document) into one block: 0 3 1 4 2 for five
    samples and two blocks. Then blocks share documents only at their borders."""
    runs = [run.tolist() for run in np.array_split(np.arange(len(samples)), blocks)]
    return [samples[runs[j % blocks][j // blocks]] for j in range(len(samples))]


def observed(sums: Sums, samples: Sequence[Sequence[int]] = ()) -> InstrumentData:
    """The jackknife as observations: with θ over all blocks and θ_g without block g of G, the value of block g is

        θ + (G − 1)(θ̄ − θ_g)

    whose mean is θ and whose standard error is the jackknife's, se² = (G − 1)/G · Σ (θ_g − θ̄)²; for a mean these are
    the block means (Efron & Tibshirani 1993, §11).
    """
    used = [b for b, count in enumerate(sums.counts) if count]
    every = [sums.means(), *(sums.means(b) for b in (used if len(used) > 1 else []))]
    n_layers, n_heads = every[0][1].shape
    names = [hashlib.sha1(str(samples[b :: len(sums.counts)]).encode()).hexdigest()[:10] for b in used]
    units = pd.DataFrame({"unit": [f"{b}:{name}" for b, name in zip(used, names, strict=True)]})
    units["cluster"] = units["unit"]
    extra = {"samples": sum(sums.counts), "distances": every[0][0]}
    sinks = sink_names(sums.to_bos())
    act = np.flatnonzero((sums.to_bos() < SINK).ravel())
    seen = InstrumentData({}, {}, {"title": "specialization", "sinks": sinks}, extra=extra)
    kinds: dict[str, tuple[str, ScopeValues]] = {
        "hss": ("1 − cosine", _hss(every, n_layers, n_heads, act)),
        "entropy": ("nats", _entropy(every, n_layers, n_heads)),
    }
    for name, (unit, found) in kinds.items():
        values = np.array([value for _, value in found])
        left = values[:, 1:] if len(used) > 1 else values
        total = values[:, :1] + (len(used) - 1) * (left.mean(1, keepdims=True) - left)
        cells = pd.DataFrame([label for label, _ in found], columns=list(KEYS))
        others = (cells["scope"] == "all") * (n_layers - 1) * n_heads + n_heads - 1
        others = others.where(cells["scope"] != WITHOUT_SINKS, len(act) - 1)
        alone = ((name == "hss") & (others < 1)).to_numpy()
        seen.blocks[name] = Observations(
            measure=Measure(name=name, unit=unit, resolution=0.0, limits=(0.0, np.inf)), cells=cells, units=units,
            total=np.where(alone[:, None], 0.0, total), size=np.broadcast_to(~alone[:, None], total.shape),
        )  # fmt: skip
        missing = np.where(alone, np.where(cells["scope"] == WITHOUT_SINKS, ALL_SINKS, ALONE), "").tolist()
        seen.contrasts[name] = each(name, cells, null=None, missing=missing)
    return seen


ScopeValues = list[tuple[tuple[str, int, int], list[float]]]
"""(scope, layer, index), and its values with all blocks and without each."""


def _hss(every: Sequence[tuple[np.ndarray, np.ndarray]], n_layers: int, n_heads: int, act: np.ndarray) -> ScopeValues:
    """L0, … (a layer), layers (their mean), all (every pair of heads); and without sinks: every pair of `act`."""
    i, j = np.triu_indices(n_heads, 1)
    starts = np.arange(n_layers)[:, None] * n_heads
    within = [d[i + starts, j + starts] for d, _ in every]  # [L, pairs of a layer]
    alone = [np.full(n_layers, np.nan) if n_heads == 1 else d.mean(1) for d in within]
    whole = np.triu_indices(n_layers * n_heads, 1)
    found: ScopeValues = [((f"L{layer}", layer, -1), [float(d[layer]) for d in alone]) for layer in range(n_layers)]
    found.append((("layers", -1, -1), [float(d.mean()) for d in alone]))
    pairs = [float(d[whole].mean()) if len(whole[0]) else float("nan") for d, _ in every]
    found.append((("all", -1, -1), pairs))
    i, j = act[np.stack(np.triu_indices(len(act), 1))]
    acting = [float(d[i, j].mean()) if len(i) else float("nan") for d, _ in every]
    return [*found, ((WITHOUT_SINKS, -1, -1), acting)]


def _entropy(every: Sequence[tuple[np.ndarray, np.ndarray]], n_layers: int, n_heads: int) -> ScopeValues:
    """L0 (the mean of a layer), L0.H1, …, all."""
    found: ScopeValues = []
    for layer in range(n_layers):
        found.append(((f"L{layer}", layer, -1), [float(e[layer].mean()) for _, e in every]))
        for h in range(n_heads):
            found.append(((f"L{layer}.H{h}", layer, h), [float(e[layer, h]) for _, e in every]))
    return [*found, (("all", -1, -1), [float(e.mean()) for _, e in every])]


def tables(how: Specialization, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """hss: by layer, their mean, all; entropy: by layer and head; pairs: 1 − cosine between every two heads."""
    out, title = {}, seen.about["title"]
    for name, columns in (("hss", HSS), ("entropy", ENTROPY)):
        frame, missing = estimates[name].wide(KEYS, describe=("low", "high"))
        frame = frame.drop(columns="clusters").rename(columns={"n": "blocks"})
        out[name] = Table(frame.assign(n=seen.extra["samples"]), columns, missing, f"{title}; {name}", name)
    heads = [one["scope"] for one in seen.blocks["entropy"].cells.to_dict("records") if one["index"] >= 0]
    i, j = np.triu_indices(len(heads), 1)
    pairs = pd.DataFrame({"head": [f"{heads[a]}+{heads[b]}" for a, b in zip(i, j, strict=True)]})
    pairs["distance"] = seen.extra["distances"][i, j]
    out["pairs"] = Table(pairs, PAIRS, {}, f"{title}; 1 − cosine between two heads", "distance", 10)
    return out


SCOPE = (
    key("scope", "heads", "L0: a layer; layers: mean over layers; all: the whole model; without sinks: all but the BOS "
        "sinks; L0.H1: one head"),
    number("layer", "layer", "layer", "counted from 0; −1 for several", "d", False),
    number("index", "index", "head", "number of the head in its layer; −1 for several", "d", False),
)  # fmt: skip
SAMPLES = (
    number("blocks", "blocks", "blocks of samples", "blocks of the jackknife", "d", False),
    number("n", "samples", "samples", "number of samples", "d", False),
)  # fmt: skip
HSS = (
    *SCOPE,
    *described("hss", "HSS", "1 − cosine", "mean over pairs of heads of 1 − cosine", source="DST Eq. 16, 18"),
    *SAMPLES,
)  # fmt: skip
ENTROPY = (
    *SCOPE,
    *described("entropy", "entropy", "nats", "mean over queries and samples", source="DST Table 3"),
    *SAMPLES,
)  # fmt: skip
PAIRS = (
    key("head", "heads", "the two heads"),
    number("distance", "1 − cosine", "1 − cosine", "1 − cosine between their mean patterns", ".4f"),
)  # fmt: skip
