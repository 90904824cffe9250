"""HSS and entropy: sums of patterns over blocks of samples as scopes × blocks, with one row per scope."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import lgamma
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Estimates, Measure
from streamscope.instruments.table import Table, described, key, number
from streamscope.models.hooks import Query, run
from streamscope.probes.roles import PATTERN, SINK, by_layer, sinks_sentence
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
        """Add every sample of `captures`, all of one length."""
        for sample in zip(*by_layer(captures, "hook_pattern").values(), strict=True):
            a = torch.stack([layer.detach().float().cpu() for layer in sample])
            if self.patterns is None:
                self.patterns = torch.zeros(len(self.counts), *a.shape)
                self.entropies = torch.zeros(len(self.counts), *a.shape[:2], dtype=torch.float64)
            block = sum(self.counts) % len(self.counts)
            self.counts[block] += 1
            self.patterns[block] += a
            self.entropies[block] += torch.special.entr(a.double()).sum(-1).mean(-1)

    def means(self, left_out: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """1 − cosine [L·H, L·H] between the heads' mean patterns, and entropy [L, H], with one block left out."""
        n, patterns, entropies = sum(self.counts), self.patterns.sum(0), self.entropies.sum(0)
        if left_out is not None:
            n -= self.counts[left_out]
            patterns, entropies = patterns - self.patterns[left_out], entropies - self.entropies[left_out]
        return distances((patterns / n).double().flatten(2).flatten(0, 1)).numpy(), (entropies / n).numpy()

    def to_bos(self) -> np.ndarray:
        """Mean attention to BOS [L, H], over the queries after it."""
        attention: np.ndarray = (self.patterns.sum(0)[:, :, 1:, 0].double().mean(-1) / sum(self.counts)).numpy()
        return attention


def distances(a: Tensor) -> Tensor:
    """1 − cosine between every two rows of a [heads, numbers]; HSS (DST Eq. 18) is its mean over pairs of heads. Raises
    `InputError` for a pattern that an edit has made zero everywhere."""
    norms = a.norm(dim=1, keepdim=True)
    if not (norms > 0).all():
        raise InputError("an attention pattern is zero everywhere, so it has no direction to compare")
    unit = a / norms
    return 1 - unit @ unit.T


def stream(
    model: Any, options: Specialization, samples: Iterable[Sequence[int]], *, edits: Any = None,
    progress: Progress = iter,
) -> Sums:  # fmt: skip
    """The sums over the samples of token ids (BOS first) that are long enough; `InputError` if none is."""
    size = max(1, CHUNK_NUMBERS // (model.cfg.n_layers * model.cfg.n_heads * options.length**2))
    rows = (ids[: options.length] for ids in progress(samples) if len(ids) >= options.length)
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
    documents = opened.units()["cluster"]
    rows = (row for row in zip(opened.rows(), documents, strict=True) if len(row[0]) >= options.length)
    chosen = [(ids[: options.length], document) for ids, document in islice(rows, options.samples)]
    if documents.duplicated().any():
        chosen = blocks_of_neighbours(chosen, options.blocks)
    samples = [ids for ids, _ in chosen]
    sums = stream(model, options, samples, progress=progress)
    has_bos = getattr(opened.tokenizer, "adds_bos", True)
    measurements = observed(sums, samples, [document for _, document in chosen], has_bos=has_bos)
    even, n = lgamma(options.length + 1) / options.length, model.cfg.n_layers * model.cfg.n_heads
    title = f"{title_of(model)}: {counted(len(samples), 'sample')} of {options.length} tokens ({opened.title()}); "
    title += f"uniform attention has entropy {even:.4f}{sinks_sentence(measurements.about['sinks'], n)}"
    measurements.about["title"] = title
    return measurements


def blocks_of_neighbours(samples: Sequence[Any], blocks: int) -> list[Any]:
    """The samples reordered so that `Sums` puts neighbours (windows of one document) into one block: 0 3 1 4 2 for five
    samples and two blocks. Then blocks share documents only at their borders."""
    runs = [run.tolist() for run in np.array_split(np.arange(len(samples)), blocks)]
    return [samples[runs[j % blocks][j // blocks]] for j in range(len(samples))]


def observed(
    sums: Sums, samples: Sequence[Sequence[int]] = (), documents: Sequence[str] = (), *, has_bos: bool = True
) -> InstrumentData:
    """The jackknife as observations: with θ over all blocks and θ_g without block g of G, the value of block g is

        θ + (G − 1)(θ̄ − θ_g)

    whose mean is θ and whose standard error is the jackknife's, se² = (G − 1)/G · Σ (θ_g − θ̄)²; for a mean these are
    the block means (Efron & Tibshirani 1993, §11). Of fewer `documents` (of each sample, copies by one name) than
    blocks, the blocks of one document are no independent cases.
    """
    nonempty = [b for b, count in enumerate(sums.counts) if count]
    means = [sums.means(), *(sums.means(b) for b in (nonempty if len(nonempty) > 1 else []))]
    distances, entropies = (np.stack(x) for x in zip(*means, strict=True))  # [1 + G, L·H, L·H] and [1 + G, L, H]
    names = [hashlib.sha1(str(samples[b :: len(sums.counts)]).encode()).hexdigest()[:10] for b in nonempty]
    units = pd.DataFrame({"unit": [f"{b}:{name}" for b, name in zip(nonempty, names, strict=True)]})
    few = 0 < len({*documents}) < len(nonempty)
    units["cluster"] = [documents[b] for b in nonempty] if few else units["unit"]
    # without BOS the first token is a word, and no head a sink
    to_bos, extra = sums.to_bos() * has_bos, {"samples": sum(sums.counts), "distances": distances[0]}
    sinks = [f"L{layer}.H{head}" for layer, head in np.argwhere(to_bos >= SINK)]
    measurements = InstrumentData(about={"title": "specialization", "sinks": sinks}, extra=extra)
    kinds = {"hss": ("1 − cosine", _hss(distances, to_bos < SINK)), "entropy": ("nats", _entropy(entropies))}
    for name, (unit, scopes) in kinds.items():
        values = np.stack(list(scopes.values()))
        leave_one_out = values[:, 1:] if len(nonempty) > 1 else values
        total = values[:, :1] + (len(nonempty) - 1) * (leave_one_out.mean(1, keepdims=True) - leave_one_out)
        cells = pd.DataFrame(list(scopes), columns=list(KEYS))
        reasons = np.where(cells["scope"] == WITHOUT_SINKS, ALL_SINKS, ALONE)
        missing = np.where(np.isnan(values[:, 0]), reasons, "").tolist()
        measure = Measure(name=name, unit=unit, resolution=0.0, limits=(0.0, np.inf))
        measurements.add(measure, cells, units, total, null=None, missing=missing)
    return measurements


Scopes = dict[tuple[str, int, int], np.ndarray]
"""(scope, layer, index) -> its values [1 + G] with all blocks and without each, NaN without a pair of heads."""


def _hss(distances: np.ndarray, acts: np.ndarray) -> Scopes:
    """L0, … (a layer), layers (their mean), all (every pair of heads); and without sinks: every pair that acts."""
    i, j = np.triu_indices(acts.size, 1)
    pairs, layer = distances[:, i, j], np.indices(acts.shape)[0].ravel()

    def mean(chosen: np.ndarray) -> np.ndarray:
        return pairs[:, chosen].mean(1) if chosen.any() else np.full(len(pairs), np.nan)

    of_layers: Scopes = {(f"L{n}", n, -1): mean((layer[i] == n) & (layer[j] == n)) for n in range(len(acts))}
    return {
        **of_layers, ("layers", -1, -1): np.mean(list(of_layers.values()), 0), ("all", -1, -1): mean(i >= 0),
        (WITHOUT_SINKS, -1, -1): mean(acts.ravel()[i] & acts.ravel()[j]),
    }  # fmt: skip


def _entropy(entropies: np.ndarray) -> Scopes:
    """L0 (the mean of a layer), L0.H1, …, all."""
    scopes: Scopes = {}
    for layer in range(entropies.shape[1]):
        scopes[f"L{layer}", layer, -1] = entropies[:, layer].mean(1)
        scopes |= {(f"L{layer}.H{h}", layer, h): x for h, x in enumerate(entropies[:, layer].T)}
    return {**scopes, ("all", -1, -1): entropies.mean((1, 2))}


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
