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
        attention: np.ndarray = (self.patterns.sum(0)[:, :, 1:, 0].double().mean(-1) / sum(self.counts)).numpy()
        return attention


def distances(a: Tensor) -> Tensor:
    """1 − cosine between every two rows of a [heads, numbers]; HSS (DST Eq. 18) is its mean over pairs of heads. Raises
    `InputError` for a pattern that is zero everywhere or not finite."""
    norms = a.norm(dim=1, keepdim=True)
    if not (norms.isfinite() & (norms > 0)).all():
        raise InputError("an attention pattern is not finite or zero everywhere, so it has no direction to compare")
    unit = a / norms
    return 1 - unit @ unit.T


def stream(
    model: Any, options: Specialization, samples: Iterable[Sequence[int]], *, edits: Any = None,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Sums:  # fmt: skip
    """The sums over the samples of token ids (BOS first) that are long enough.

    Memory does not grow with their number (`CHUNK_NUMBERS`). Raises `InputError` if none is long enough.
    """
    size = max(1, CHUNK_NUMBERS // (model.cfg.n_layers * model.cfg.n_heads * options.length**2))
    rows = iter([int(t) for t in ids[: options.length]] for ids in progress(samples) if len(ids) >= options.length)
    sums = Sums(options.blocks)
    while chunk := list(islice(rows, size)):
        sums.add(run(model, Query(tokens=chunk, hooks=(PATTERN,)), edits))
    if sums.patterns is None:
        raise InputError(f"no sample has {options.length} tokens; give longer texts or a smaller --length")
    return sums


def observe(options: Specialization, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: scopes. Units: blocks of samples."""
    if options.length > model.cfg.n_ctx:
        raise InputError(f"--length {options.length} is longer than the context of {model.cfg.n_ctx}")
    opened = data[Documents]
    rows = (ids[: options.length] for ids in opened.rows() if len(ids) >= options.length)
    samples = list(islice(rows, options.samples))
    if opened.units()["cluster"].duplicated().any():
        samples = blocks_of_neighbours(samples, options.blocks)
    measurements = observed(stream(model, options, samples, progress=progress), samples)
    even, n = lgamma(options.length + 1) / options.length, model.cfg.n_layers * model.cfg.n_heads
    measurements.about["title"] = (
        f"{title_of(model)}: {counted(len(samples), 'sample')} of {options.length} tokens "
        f"({opened.title()}); uniform attention has entropy {even:.4f}{sinks_sentence(measurements.about['sinks'], n)}"
    )
    return measurements


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
    nonempty = [b for b, count in enumerate(sums.counts) if count]
    all_means = [sums.means(), *(sums.means(b) for b in (nonempty if len(nonempty) > 1 else []))]
    n_layers, n_heads = all_means[0][1].shape
    names = [hashlib.sha1(str(samples[b :: len(sums.counts)]).encode()).hexdigest()[:10] for b in nonempty]
    units = pd.DataFrame({"unit": [f"{b}:{name}" for b, name in zip(nonempty, names, strict=True)]})
    units["cluster"] = units["unit"]
    extra = {"samples": sum(sums.counts), "distances": all_means[0][0]}
    sinks = sink_names(sums.to_bos())
    act = np.flatnonzero((sums.to_bos() < SINK).ravel())
    measurements = InstrumentData({}, {}, {"title": "specialization", "sinks": sinks}, extra=extra)
    kinds: dict[str, tuple[str, ScopeValues]] = {
        "hss": ("1 − cosine", _hss(all_means, n_layers, n_heads, act)),
        "entropy": ("nats", _entropy(all_means, n_layers, n_heads)),
    }
    for name, (unit, scopes) in kinds.items():
        values = np.array([value for _, value in scopes])
        leave_one_out = values[:, 1:] if len(nonempty) > 1 else values
        total = values[:, :1] + (len(nonempty) - 1) * (leave_one_out.mean(1, keepdims=True) - leave_one_out)
        cells = pd.DataFrame([label for label, _ in scopes], columns=list(KEYS))
        n_others = (cells["scope"] == "all") * (n_layers - 1) * n_heads + n_heads - 1
        n_others = n_others.where(cells["scope"] != WITHOUT_SINKS, len(act) - 1)
        is_single = ((name == "hss") & (n_others < 1)).to_numpy()
        measurements.blocks[name] = Observations(
            measure=Measure(name=name, unit=unit, resolution=0.0, limits=(0.0, np.inf)), cells=cells, units=units,
            total=np.where(is_single[:, None], 0.0, total), size=np.broadcast_to(~is_single[:, None], total.shape),
        )  # fmt: skip
        missing = np.where(is_single, np.where(cells["scope"] == WITHOUT_SINKS, ALL_SINKS, ALONE), "").tolist()
        measurements.contrasts[name] = each(name, cells, null=None, missing=missing)
    return measurements


ScopeValues = list[tuple[tuple[str, int, int], list[float]]]
"""(scope, layer, index), and its values with all blocks and without each."""


def _hss(
    all_means: Sequence[tuple[np.ndarray, np.ndarray]], n_layers: int, n_heads: int, act: np.ndarray
) -> ScopeValues:
    """L0, … (a layer), layers (their mean), all (every pair of heads); and without sinks: every pair of `act`."""
    i, j = np.triu_indices(n_heads, 1)
    starts = np.arange(n_layers)[:, None] * n_heads
    layer_distances = [d[i + starts, j + starts] for d, _ in all_means]  # [L, pairs of a layer]
    layer_means = [np.full(n_layers, np.nan) if n_heads == 1 else d.mean(1) for d in layer_distances]
    all_pairs = np.triu_indices(n_layers * n_heads, 1)
    scopes: ScopeValues = [
        ((f"L{layer}", layer, -1), [float(d[layer]) for d in layer_means]) for layer in range(n_layers)
    ]
    scopes.append((("layers", -1, -1), [float(d.mean()) for d in layer_means]))
    pairs = [float(d[all_pairs].mean()) if len(all_pairs[0]) else float("nan") for d, _ in all_means]
    scopes.append((("all", -1, -1), pairs))
    i, j = act[np.stack(np.triu_indices(len(act), 1))]
    acting = [float(d[i, j].mean()) if len(i) else float("nan") for d, _ in all_means]
    return [*scopes, ((WITHOUT_SINKS, -1, -1), acting)]


def _entropy(all_means: Sequence[tuple[np.ndarray, np.ndarray]], n_layers: int, n_heads: int) -> ScopeValues:
    """L0 (the mean of a layer), L0.H1, …, all."""
    scopes: ScopeValues = []
    for layer in range(n_layers):
        scopes.append(((f"L{layer}", layer, -1), [float(e[layer].mean()) for _, e in all_means]))
        for h in range(n_heads):
            scopes.append(((f"L{layer}.H{h}", layer, h), [float(e[layer, h]) for _, e in all_means]))
    return [*scopes, (("all", -1, -1), [float(e.mean()) for _, e in all_means])]


def tables(options: Specialization, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """hss: by layer, their mean, all; entropy: by layer and head; pairs: 1 − cosine between every two heads."""
    out, title = {}, data.about["title"]
    for name, columns in (("hss", HSS), ("entropy", ENTROPY)):
        frame, missing = estimates[name].wide(KEYS, describe=("low", "high"))
        frame = frame.drop(columns="clusters").rename(columns={"n": "blocks"})
        out[name] = Table(frame.assign(n=data.extra["samples"]), columns, missing, f"{title}; {name}", name)
    heads = [cell["scope"] for cell in data.blocks["entropy"].cells.to_dict("records") if cell["index"] >= 0]
    i, j = np.triu_indices(len(heads), 1)
    pairs = pd.DataFrame({"head": [f"{heads[a]}+{heads[b]}" for a, b in zip(i, j, strict=True)]})
    pairs["distance"] = data.extra["distances"][i, j]
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
