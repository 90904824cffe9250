"""Every feature of PLS, with its formula in words and as code (PLS App. B, C), read from documents in one forward pass.

    columns(6, 6, Extract(tier="structural"))             163 features, 167 with position, 455 with the top 5
    FeatureReader(model, Extract()).read(documents).X     [n, features], by the same definitions

A family of features, such as p of every layer, is a row of `TRAJECTORY`, `LARGEST`, `POSITION` or `CORE`: a name with
its axes in braces, component, unit, source, formula, and what a forward pass (`ForwardRecord`) gives for it, an array
[n, *axes]. Attention is reduced layer by layer, and each layer is unembedded once.

Ã_h[q, k] = ḡ_h[q] A_h[q, k] is attention times the head's gate (1 without a gate), over keys k < q. L layers, H heads,
n rows: the positions within the context that have a next token (two with `logits_row` next). "stable" features hold
the values of layer s = min(k*, L−1) and 0 in other layers; "final" ones those of layer L−1 and 0 in other layers, which
makes these columns `constant`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.features.extract import HEADS_OF, Extract, Feature
from streamscope.instruments.contract import readable
from streamscope.models.hooks import attached, match, pad, time_axes
from streamscope.models.readout import settling_depth, top_two

RANGES = ("early", "middle", "late")


class AttentionStats(NamedTuple):
    """Statistics of the effective attention Ã of n queries, by head; `None` if the tier needs none (PLS B.5, C.2).

    Sums and maxima run over the keys before the query, without the query itself. Position 0 has no key, so its
    statistics are 0.
    """

    peak: Float[Tensor, "n H"]
    """max_k Ã[q, k]."""
    mass: Float[Tensor, "n H"]
    """Σ_k Ã[q, k]."""
    entropy: Float[Tensor, "n H"]
    """−Σ_k a ln a, a = Ã / mass, in nats; 0 if the peak is below `theta_entropy`."""
    top: Any = None
    """[n, H, k], the k largest weights, descending; 0 if there are fewer keys, and if ḡ is below `theta_gate`."""
    distance: Any = None
    """[n, H], Σ_k Ã[q, k] (q − k), in tokens."""
    local: Any = None
    """[n, H], Σ Ã[q, k] over the keys q − window … q − 1."""


@torch.no_grad()
def attention_stats(
    pattern: Float[Tensor, "B H T T"], rows: Bool[Tensor, "B T"], options: Extract,
    gate: Float[Tensor, "n H O"] | None = None,
) -> AttentionStats:  # fmt: skip
    """The statistics of a pattern at the queries `rows`, in fp32 at least; the pattern itself is not kept. ḡ is the
    mean or root mean square of the gate over its width. Entropy does not depend on it. B batch, T position."""
    a = pattern.transpose(1, 2)[rows]  # a copy, [n, H, T]
    a = a.to(torch.promote_types(a.dtype, torch.float32))
    query, keys = rows.nonzero()[:, 1, None, None], torch.arange(a.shape[-1], device=a.device)
    a.masked_fill_(keys == query, 0.0)  # weights after the query are 0 already
    mass = a.sum(-1)
    if gate is None:
        g = torch.ones_like(mass)
    else:
        g = gate.to(a.dtype)
        g = g.mean(-1) if options.gate_reduce == "mean" else g.square().mean(-1).sqrt()
    peak = g * a.amax(-1)
    entropy = torch.where(mass > 0, mass.log() + torch.special.entr(a).sum(-1) / mass, 0.0)
    entropy = torch.where(peak < options.theta_entropy, 0.0, entropy)
    if options.tier == "structural":
        return AttentionStats(peak, g * mass, entropy)
    top = None
    if options.tier == "topk":
        top = a.topk(min(options.k, len(keys)), -1).values * torch.where(g < options.theta_gate, 0.0, g)[..., None]
        top = torch.nn.functional.pad(top, (0, options.k - top.shape[-1]))
    near = query - torch.arange(1, min(options.window, len(keys) - 1) + 1, device=a.device)  # [n, 1, window]
    local = sum((a.gather(-1, near.clamp(min=0).expand(-1, a.shape[1], -1)) * (near >= 0)).unbind(-1))
    return AttentionStats(peak, g * mass, entropy, top, g * (a * (query - keys)).sum(-1), g * local)


@dataclass(frozen=True)
class ForwardRecord:
    """What a forward pass of L layers shows of n positions; `p` and `margin` belong to the followed token."""

    how: Extract
    truth: Int[Tensor, " n"]
    """The next token."""
    stats: AttentionStats
    """Attention statistics at the n queries, with an axis of layers after the first, [n, L, H]."""
    predicted: Int[Tensor, "L n"]
    p: Float[Tensor, "L n"]
    margin: Float[Tensor, "L n"]
    confidence: Float[Tensor, " n"]
    """p^(L−1) of the final prediction, whichever token is followed (PLS B.4.1)."""

    @cached_property
    def k_star(self) -> Int[Tensor, " n"]:
        """The layer from which on the prediction stays the same."""
        return stability(self.predicted, self.how.kstar)

    def placed(self, values: Float[Tensor, "n L ..."]) -> Float[Tensor, "n where L ..."]:
        """A statistic at the stable layer, then at the final one, each at its layer's place and 0 at the others."""
        layers, last = torch.arange(values.shape[1], device=values.device), values.shape[1] - 1
        stable = layers == self.k_star.clamp(max=last)[:, None]
        is_read = torch.stack([stable, (layers == last).expand_as(stable)], 1)
        return torch.where(is_read.reshape(*is_read.shape, *[1] * (values.ndim - 2)), values[:, None], 0.0)

    def kappa(self) -> Int[Tensor, " n"]:
        """κ: the longest run of layers that predict the counted token."""
        return longest_run(self.predicted == (self.truth if self.how.kappa_target == "truth" else self.predicted[-1]))

    def masses(self) -> Float[Tensor, "n groups"]:
        """The summed largest weights of the paper's heads."""
        peak = self.stats.peak
        groups = [zip(*self.how.heads(name, *peak.shape[1:]), strict=True) for name in HEADS_OF]
        return torch.stack([peak[:, list(layers), list(heads)].sum(1) for layers, heads in groups], 1)


@dataclass(frozen=True)
class Family:
    """Features of one kind; `name` has their axes in braces, and `formula` may have words that `columns` fills in."""

    name: str
    component: str
    unit: str
    source: str
    formula: str
    values: Callable[[ForwardRecord], Tensor]
    first: int = 0
    """The first layer that has one."""
    final: bool = False
    """Whether a feature that is not of the stable layer is of the last one."""


def columns(n_layers: int, n_heads: int, options: Extract) -> tuple[Feature, ...]:
    """The features of a tier in order; their numbers are 5, 3L+1+4LH, 4 more, 3L+1+2LH(k+1)+4. Raises `InputError` for
    heads of tier core that the model does not have."""
    followed, zeroed, last = "ŷ" if options.target == "final" else "y", options.traj_prob == "zeroed", n_layers - 1
    words = {
        "followed": followed,
        "if_hit": f" if argmax p^(ℓ) = {followed} else 0" if zeroed else "",
        "best_other": "second-highest p^(ℓ)" if zeroed else f"max p^(ℓ) of tokens other than {followed}",
        "late": "; L where that is L−1" if options.kstar == "author" else "",
        "counted": "y" if options.kappa_target == "truth" else "ŷ",
        "window": str(options.window),
    }
    features = []
    for family in TIERS[options.tier]:
        axes: dict[str, Sequence[Any]] = {
            "where": ("stable", "final"), "layer": range(family.first, n_layers), "head": range(n_heads),
            "rank": range(1, options.k + 1), "group": tuple(HEADS_OF),
        }  # fmt: skip
        names = re.findall(r"{(\w+)}", family.name)
        for values in product(*[axes[name] for name in names]):  # the last axis fastest
            place = dict(zip(names, values, strict=True))
            where, layer = place.get("where"), place.get("layer")
            heads = options.heads(place["group"], n_layers, n_heads) if "group" in place else ()
            features.append(Feature(
                name=family.name.format(**place), component=family.component, unit=family.unit, source=family.source,
                layer=last if family.final and where != "stable" else layer, head=place.get("head"),
                rank=place.get("rank"), constant=where == "final" and layer is not None and layer < last,
                formula=family.formula.format(**words, heads=", ".join([head.label for head in heads])),
            ))  # fmt: skip
    return tuple(features)


def compute(record: ForwardRecord) -> Float[Tensor, "n features"]:
    """The values [n, features] of the tier's features, in the order of `columns`."""
    n = len(record.truth)
    return torch.cat([family.values(record).reshape(n, -1).to(record.p.dtype) for family in TIERS[record.how.tier]], 1)


def stability(predicted: Int[Tensor, "L n"], kstar: str) -> Int[Tensor, " n"]:
    """k*: the first layer from which on all layers predict what the last one does; "author": L instead of L−1."""
    depth, n_layers = settling_depth(predicted), len(predicted)
    return torch.where(depth == n_layers - 1, n_layers, depth) if kstar == "author" else depth


def depth_ranges(k_star: np.ndarray, n_layers: int, kstar: str = "author") -> np.ndarray:
    """[tokens] 0 early (k* < L/3), 1 middle, 2 late (k* ≥ 5L/6; with `kstar` strict, where k* ends at L−1, k* ≥
    min(5L/6, L−1)). For L = 6 these are layers 0–1, 2–4 and 5–6 (PLS Table 1)."""
    late = min(5 * n_layers / 6, n_layers - 1) if kstar == "strict" else 5 * n_layers / 6
    return np.where(k_star >= late, 2, np.where(k_star < n_layers / 3, 0, 1))


def longest_run(hit: Bool[Tensor, "L n"]) -> Int[Tensor, " n"]:
    """κ: the largest number of layers in a row that hit."""
    run = best = torch.zeros(hit.shape[1], dtype=torch.long, device=hit.device)
    for layer in hit:
        run = (run + 1) * layer
        best = torch.maximum(best, run)
    return best


def span(stats: AttentionStats) -> Float[Tensor, "n L"]:
    """Mean distance of attention over all heads, in tokens; 0 without a key."""
    mass = stats.mass.sum(-1)
    return stats.distance.sum(-1) / mass.clamp(min=torch.finfo(mass.dtype).tiny)


SPAN = "Σ_h Σ_k Ã_h[q, k] (q − k) / Σ_h Σ_k Ã_h[q, k]; 0 without a key"
K_STAR = "min k with argmax p^(ℓ) = ŷ for all ℓ ≥ k{late}"
ENTROPY = "−Σ_k a ln a, a = Ã_h[q, k] / Σ_j Ã_h[q, j]; 0 where max_k Ã_h < θ_entropy"
TRAJECTORY = (
    Family("traj_prob_L{layer}", "trajectory", "probability", "PLS B.5.1", "p^(ℓ)({followed}){if_hit}",
           lambda record: record.p.T),
    Family("traj_margin_L{layer}", "trajectory", "probability", "PLS B.5.1", "traj_prob − {best_other}",
           lambda record: record.margin.T),
    Family("traj_drop_L{layer}", "trajectory", "probability", "PLS B.5.1",
           "max(0, traj_prob of layer ℓ−1 − traj_prob)",
           lambda record: (record.p[:-1] - record.p[1:]).clamp(min=0).T, first=1),
    Family("k_star", "stability", "layers", "PLS B.5.2", K_STAR, lambda record: record.k_star),
    Family("kappa", "stability", "layers", "PLS B.5.2", "longest run of layers with argmax p^(ℓ) = {counted}",
           ForwardRecord.kappa),
)  # fmt: skip
LARGEST = Family("head_act_{where}_L{layer}H{head}", "head activation", "attention", "PLS B.5.3", "max_k Ã_h[q, k]",
                 lambda record: record.placed(record.stats.peak))  # fmt: skip
TOP = Family("topk_{where}_L{layer}H{head}_r{rank}", "head top-k", "attention", "PLS C.2",
             "r-th largest Ã_h[q, k], r = rank; 0 where ḡ_h < θ_gate",
             lambda record: record.placed(record.stats.top))  # fmt: skip
SPREAD = Family("head_ent_{where}_L{layer}H{head}", "head entropy", "nats", "PLS B.5.4", ENTROPY,
                lambda record: record.placed(record.stats.entropy))  # fmt: skip
POSITION = (
    Family("attn_span_{where}", "position", "tokens", "PLS B.5.5", SPAN,
           lambda record: record.placed(span(record.stats)).sum(-1), final=True),
    Family("local_mass_{where}", "position", "attention", "PLS B.5.5", "Σ_h Σ_k Ã_h[q, k], q−{window} ≤ k < q",
           lambda record: record.placed(record.stats.local.sum(-1)).sum(-1), final=True),
)  # fmt: skip
CORE = (
    Family("processing_depth", "core", "layers", "PLS B.4.1", "k*", lambda record: record.k_star),
    Family("confidence", "core", "probability", "PLS B.4.1", "p^(L−1)(ŷ)",
           lambda record: record.confidence, final=True),
    Family("{group}_mass", "core", "attention", "PLS B.4.1", "Σ_h max_k Ã_h[q, k], h in {heads}", ForwardRecord.masses),
    Family("context_span", "core", "tokens", "PLS B.4.1", SPAN, lambda record: span(record.stats)[:, -1], final=True),
)  # fmt: skip
TIERS: dict[str, tuple[Family, ...]] = {
    "core": CORE,
    "structural": (*TRAJECTORY, LARGEST, SPREAD),
    "structural+position": (*TRAJECTORY, LARGEST, SPREAD, *POSITION),
    "topk": (*TRAJECTORY, TOP, SPREAD, *POSITION),
}


class Rows(NamedTuple):
    """Features of n positions."""

    X: np.ndarray
    """[n, d] float32, in the order of `columns`."""
    prediction: np.ndarray
    """[n] argmax of the final layer."""
    raw: dict[str, np.ndarray]
    """Hook name -> [n, F] float32, all axes but the position flattened."""


class FeatureReader:
    """Reads the features of a tier and raw activations at the hooks `raw`, from a model in evaluation mode."""

    def __init__(self, model: Any, options: Extract, raw: Sequence[str] = ()) -> None:
        """Raises `InputError` for a model in training mode, heads that the model lacks, and hooks that do not have
        one vector per position."""
        model = readable(model)
        if model.training:
            raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
        self.model, self.how = model, options
        self.columns = columns(model.config.n_layers, model.config.n_heads, options)
        self.raw = match(model, list(raw))
        for name in self.raw:
            if time_axes(name, 3) != (0,):
                raise InputError(f"--raw {name}: it has no vector per position; name a stream, hook_z or hook_post")
        self.offset = 1 if options.logits_row == "next" else 0

    def rows_of(self, length: Any) -> Any:
        """The number of rows of a document of `length` tokens (scalar or array)."""
        return np.maximum(np.minimum(np.asarray(length) - 1, self.model.config.n_ctx) - self.offset, 0)

    @torch.no_grad()
    def read(self, documents: Sequence[Sequence[int]], without: Sequence[int] | None = None) -> Rows:
        """Features of every row of `documents`, cut at the context, except the first `without` rows of each. Raises
        `InputError` for documents without a row, tokens outside the vocabulary and non-finite activations."""
        model, device, first = self.model, self.model.cfg.device, 1 + self.offset
        stops = self.rows_of([len(ids) for ids in documents])
        skipped = np.zeros_like(stops) if without is None else np.asarray(without)
        if not (stops > skipped).any():
            beyond = " after those left out" if skipped.any() else ""
            raise InputError(f"no document has the {1 + first} tokens that a row needs{beyond}; give longer ones")
        inputs = pad([list(ids[: min(len(ids) - 1, model.config.n_ctx)]) for ids in documents]).to(device)
        model.check_tokens(inputs)
        places = np.arange(inputs.shape[1])
        mask = torch.tensor((places < stops[:, None]) & (places >= skipped[:, None]), device=device)
        following = zip(documents, first + skipped, first + stops, strict=True)
        truth = torch.tensor([i for ids, start, stop in following for i in ids[start:stop]], device=device)
        model.check_tokens(truth[None])  # the last token of a document is no input
        streams, stats, raw = self._forward(inputs, mask)
        record = self._record(streams, truth, stats)
        X = compute(record)
        if not X.isfinite().all():
            raise InputError("features are not finite: the weights of this run are damaged")
        return Rows(X.float().cpu().numpy(), record.predicted[-1].cpu().numpy(), raw)

    def _forward(
        self, inputs: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> tuple[list[Tensor], AttentionStats, dict[str, np.ndarray]]:
        """Per layer the normed stream at the logits rows [n, D] and the statistics at the queries; raw hooks."""
        model, logits_at = self.model, mask.roll(self.offset, 1)
        outputs, streams, stats = dict[str, Tensor](), [], []

        def keep(x: Tensor, hook: Any) -> None:
            outputs[hook.name] = x if hook.name.endswith("hook_pattern") else x[mask]

        patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
        gates = [name.replace("pattern", "gate") for name in patterns]
        names = {*self.raw, *patterns, *set(gates).intersection(model.hook_dict)}
        with attached(model, [(name, keep) for name in names]):
            state = model.embed_tokens(inputs)
            for layer, (pattern, gate) in enumerate(zip(patterns, gates, strict=True)):
                state = model.segment(state, layer, layer + 1)
                streams.append(model.layer_norm(layer)(model.readout(state))[logits_at])  # hooks see all positions
                stats.append(attention_stats(outputs.pop(pattern), mask, self.how, outputs.get(gate)))
        if silent := [name for name in self.raw if name not in outputs]:
            raise InputError(f"hooks that did not fire: {', '.join(silent[:5])}")
        raw = {name: outputs[name].flatten(1).float().cpu().numpy() for name in self.raw}
        if damaged := [name for name, x in raw.items() if not np.isfinite(x).all()]:
            raise InputError(f"{damaged[0]} is not finite: the weights of this run are damaged")
        layers = [None if values[0] is None else torch.stack(values, 1) for values in zip(*stats, strict=True)]
        return streams, AttentionStats._make(layers), raw

    def _record(self, streams: list[Tensor], truth: Tensor, stats: AttentionStats) -> ForwardRecord:
        """With the predictions of every layer (PLS B.5.1)."""
        target, head = truth, self.model.head
        top_tokens: list[tuple[Tensor, ...]] = []
        for stream in reversed(streams):  # last layer first, because its prediction may be the target
            ids, first, second, p = top_two(stream, head, target)
            if not top_tokens and self.how.target == "final":
                target, p = ids, first
            top_tokens.append((ids, first, second, p))
        ids, first, second, p = map(torch.stack, zip(*reversed(top_tokens), strict=True))
        hit = ids == target
        if self.how.traj_prob == "zeroed":
            p, other = torch.where(hit, p, 0.0), second
        else:
            other = torch.where(hit, second, first)
        return ForwardRecord(self.how, truth, stats, ids, p, p - other, first[-1])
