"""Every feature of PLS, with its formula in words and as code (PLS App. B.7, C.3).

    columns(6, 6, Extract(tier="structural"))       163 features, 167 with position, 455 with the top 5
    compute(seen, columns(6, 6, …))                 [n, features], by the same definitions

A family of features, such as p of every layer, is one function of a forward pass (`ForwardRecord`), decorated with its
name, unit, formula and axes. It returns [n, *axes]; each value goes to the column named by its place on the axes.
Columns are ordered as in `TIERS`.

Ã_h[q, k] = ḡ_h[q] A_h[q, k] is attention times the head's gate (1 without a gate), over keys k < q; L layers, H heads.
"stable" features hold the values of layer s = min(k*, L−1) and 0 in other layers; "final" ones those of layer L−1 and 0
in other layers, which makes these columns `constant`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.features.extract import HEADS_OF, Extract
from streamscope.features.schema import Feature

WHERE = ("stable", "final")


# ---- statistics of attention -------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionStats:
    """Attention statistics of every query and head; `None` if not requested (PLS B.5.3–B.5.5, C.2).

    Sums and maxima run over the keys before the query, without the query itself. Position 0 has no key, so its
    statistics are 0.
    """

    peak: Float[Tensor, "*B T H"]
    """max_k A[q, k]."""
    mass: Float[Tensor, "*B T H"]
    """Σ_k A[q, k]."""
    entropy: Float[Tensor, "*B T H"]
    """−Σ_k a ln a, a = A / mass, in nats."""
    top: Float[Tensor, "*B T H k"] | None = None
    """The k largest weights, descending; 0 if there are fewer keys."""
    distance: Float[Tensor, "*B T H"] | None = None
    """Σ_k A[q, k] (q − k), in tokens."""
    local: Float[Tensor, "*B T H"] | None = None
    """Σ A[q, k] over the keys q − window … q − 1."""


@torch.no_grad()
def attention_stats(
    pattern: Float[Tensor, "B H T T"], *, k: int | None = None, window: int | None = None, distance: bool = False
) -> AttentionStats:
    """The statistics of a pattern [B, H, T, T], in fp32 at least; the pattern itself is not kept.

    `k`, `window` and `distance` request the optional ones. B batch, T position, H heads.
    """
    n = pattern.shape[-1]
    a = pattern.to(torch.promote_types(pattern.dtype, torch.float32), copy=True)
    a.diagonal(0, -2, -1).zero_()  # weights after the query are 0 already
    mass = a.sum(-1)
    entropy = torch.where(mass > 0, mass.log() + torch.special.entr(a).sum(-1) / mass, 0.0)
    statistics = {"peak": a.amax(-1), "mass": mass, "entropy": entropy}
    if distance:
        t = torch.arange(n, device=a.device)
        statistics["distance"] = (a * (t[:, None] - t)).sum(-1)
    if window is not None:
        statistics["local"] = local = torch.zeros_like(mass)
        for back in range(1, min(window, n - 1) + 1):
            local[..., back:] += a.diagonal(-back, -2, -1)
    stats = {name: x.transpose(1, 2) for name, x in statistics.items()}
    if k is not None:
        top = a.topk(min(k, n), -1).values
        stats["top"] = torch.nn.functional.pad(top, (0, k - top.shape[-1])).transpose(1, 2)
    return AttentionStats(**stats)


def apply_gate(stats: AttentionStats, gate: Float[Tensor, "*B T H O"] | None, options: Extract) -> AttentionStats:
    """The statistics of Ã = ḡ A; ḡ is the gate's mean or root mean square over its width, 1 without a gate.

    Entropy does not depend on ḡ, but is 0 if the peak of Ã is below `theta_entropy`. The k largest weights are 0 if ḡ
    is below `theta_gate`.
    """
    g = torch.ones_like(stats.peak)
    if gate is not None:
        g = gate.to(g.dtype)
        g = g.mean(-1) if options.gate_reduce == "mean" else g.square().mean(-1).sqrt()
    peak, open_gate = g * stats.peak, torch.where(g < options.theta_gate, 0.0, g)[..., None]
    return AttentionStats(
        peak=peak, mass=g * stats.mass, entropy=torch.where(peak < options.theta_entropy, 0.0, stats.entropy),
        top=None if stats.top is None else open_gate * stats.top,
        distance=None if stats.distance is None else g * stats.distance,
        local=None if stats.local is None else g * stats.local,
    )  # fmt: skip


# ---- a forward pass and its features -----------------------------------------------------------


class Trajectory(NamedTuple):
    """Predictions of L layers at n positions; `p` and `margin` belong to the followed token."""

    predicted: Int[Tensor, "L n"]
    p: Float[Tensor, "L n"]
    margin: Float[Tensor, "L n"]
    confidence: Float[Tensor, " n"]
    """p^(L−1) of the final prediction, whichever token is followed (PLS B.4.1)."""


class Shape(NamedTuple):
    """Sizes and options that determine the columns."""

    n_layers: int
    n_heads: int
    how: Extract


@dataclass(frozen=True)
class ForwardRecord:
    """What a forward pass shows of n positions."""

    shape: Shape
    trajectory: Trajectory
    truth: Int[Tensor, " n"]
    """The next token."""
    stats: Sequence[AttentionStats]
    """Attention statistics of every layer, at the n queries."""

    @property
    def last(self) -> int:
        """The index of the final layer."""
        return self.shape.n_layers - 1

    @cached_property
    def k_star(self) -> Int[Tensor, " n"]:
        """The layer from which on the prediction stays the same."""
        return stability(self.trajectory.predicted, self.shape.how.kstar)

    @property
    def stable(self) -> Int[Tensor, " n"]:
        """min(k*, L−1)."""
        return self.k_star.clamp(max=self.last)

    def of_layers(self, kind: str) -> Float[Tensor, "L n ..."]:
        """A statistic of attention in every layer."""
        return torch.stack([getattr(layer, kind) for layer in self.stats])

    def stable_and_final(self, kind: str) -> Float[Tensor, "n where L ..."]:
        """A statistic at the stable layer, then at the final one, each at its layer's place."""
        values = self.of_layers(kind)
        final = torch.full_like(self.stable, self.last)
        return torch.stack([at_layers(values, self.stable), at_layers(values, final)], 1)


Place = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """Features of one kind, as the decorator of the function that computes all of them.

    `name` is a template with the names of the axes; `formula`, `axes` and `layer` may depend on options and place.
    """

    name: str
    component: str
    unit: str
    source: str
    formula: str | Callable[[Shape, Place], str]
    axes: Callable[[Shape], Mapping[str, Sequence[Any]]] = lambda shape: {}
    layer: Callable[[Shape, Place], int | None] = lambda shape, place: place.get("layer")
    values: Callable[[ForwardRecord], Tensor] | None = None

    def __call__(self, values: Callable[[ForwardRecord], Tensor]) -> "Family":
        return replace(self, values=values)

    def places(self, shape: Shape) -> Iterator[Place]:
        """Every combination of places on the axes, the last axis fastest."""
        axes = self.axes(shape)
        return (dict(zip(axes, place, strict=True)) for place in product(*axes.values()))

    def columns(self, shape: Shape) -> Iterator[Feature]:
        """The features of the family."""
        for place in self.places(shape):
            zero = place.get("where") == "final" and "head" in place and place["layer"] < shape.n_layers - 1
            yield Feature(
                name=self.name.format(**place), component=self.component, layer=self.layer(shape, place),
                head=place.get("head"), rank=place.get("rank"), unit=self.unit, source=self.source, constant=zero,
                formula=self.formula if isinstance(self.formula, str) else self.formula(shape, place),
            )  # fmt: skip

    def by_name(self, record: ForwardRecord) -> dict[str, Tensor]:
        """Feature name -> values [n]."""
        assert self.values is not None
        axes, values = self.axes(record.shape), self.values(record)
        assert values.shape[1:] == tuple(map(len, axes.values())), f"{self.name}: {values.shape}"
        names = (self.name.format(**place) for place in self.places(record.shape))
        return dict(zip(names, values.flatten(1).unbind(1) if axes else [values], strict=True))


def columns(n_layers: int, n_heads: int, options: Extract) -> tuple[Feature, ...]:
    """The features of a tier in order; their numbers are 5, 3L+1+4LH, 4 more, 3L+1+2LH(k+1)+4.

    Raises `InputError` for heads of tier core that the model does not have.
    """
    shape = Shape(n_layers, n_heads, options)
    return tuple(feature for family in TIERS[options.tier] for feature in family.columns(shape))


def compute(record: ForwardRecord, features: Sequence[Feature]) -> Float[Tensor, "n features"]:
    """The values [n, features] of some features of the tier, in their order."""
    values: dict[str, Tensor] = {}
    for family in TIERS[record.shape.how.tier]:
        values |= family.by_name(record)
    return torch.stack([values[feature.name].to(record.trajectory.p.dtype) for feature in features], -1)


def _followed_token(shape: Shape) -> str:
    return "ŷ" if shape.how.target == "final" else "y"


def _prob(shape: Shape, place: Place) -> str:
    y = _followed_token(shape)
    return f"p^(ℓ)({y})" + (f" if argmax p^(ℓ) = {y} else 0" if shape.how.traj_prob == "zeroed" else "")


def _margin(shape: Shape, place: Place) -> str:
    best_other = f"max p^(ℓ) of tokens other than {_followed_token(shape)}"
    return f"traj_prob − {'second-highest p^(ℓ)' if shape.how.traj_prob == 'zeroed' else best_other}"


def _layers(shape: Shape) -> dict[str, Sequence[Any]]:
    return {"layer": range(shape.n_layers)}


@Family("traj_prob_L{layer}", "trajectory", "probability", "PLS B.5.1", _prob, _layers)
def traj_prob(record: ForwardRecord) -> Tensor:
    """p of the followed token; `Trajectory` holds zeros under `traj_prob` "zeroed"."""
    return record.trajectory.p.T


@Family("traj_margin_L{layer}", "trajectory", "probability", "PLS B.5.1", _margin, _layers)
def traj_margin(record: ForwardRecord) -> Tensor:
    """The margin of the followed token over the best other one."""
    return record.trajectory.margin.T


@Family(
    "traj_drop_L{layer}", "trajectory", "probability", "PLS B.5.1", "max(0, traj_prob of layer ℓ−1 − traj_prob)",
    lambda shape: {"layer": range(1, shape.n_layers)},
)  # fmt: skip
def traj_drop(record: ForwardRecord) -> Tensor:
    """The probability that a layer takes back."""
    p = record.trajectory.p
    return (p[:-1] - p[1:]).clamp(min=0).T


def _k_star(shape: Shape, place: Place) -> str:
    late = "; L where that is L−1" if shape.how.kstar == "author" else ""
    return f"min k with argmax p^(ℓ) = ŷ for all ℓ ≥ k{late}"


def _kappa(shape: Shape, place: Place) -> str:
    return f"longest run of layers with argmax p^(ℓ) = {'y' if shape.how.kappa_target == 'truth' else 'ŷ'}"


@Family("k_star", "stability", "layers", "PLS B.5.2", _k_star)
def k_star(record: ForwardRecord) -> Tensor:
    """k*: the layer from which on the prediction stays the same."""
    return record.k_star


@Family("kappa", "stability", "layers", "PLS B.5.2", _kappa)
def kappa(record: ForwardRecord) -> Tensor:
    """κ: the longest run of layers that predict the counted token."""
    predicted = record.trajectory.predicted
    return longest_run(
        predicted == (record.truth if record.shape.how.kappa_target == "truth" else predicted[record.last])
    )


def stability(predicted: Int[Tensor, "L n"], kstar: str) -> Int[Tensor, " n"]:
    """k*: the first layer from which on all layers predict what the last one does; "author": L instead of L−1."""
    n_layers = predicted.shape[0]
    agreed = (predicted == predicted[-1]).flip(0).long().cumprod(0).sum(0)
    depth = n_layers - agreed
    return torch.where(depth == n_layers - 1, n_layers, depth) if kstar == "author" else depth


def longest_run(hit: Bool[Tensor, "L n"]) -> Int[Tensor, " n"]:
    """κ: the largest number of layers in a row that hit."""
    run = best = torch.zeros(hit.shape[1], dtype=torch.long, device=hit.device)
    for layer in hit:
        run = (run + 1) * layer
        best = torch.maximum(best, run)
    return best


def _heads(shape: Shape) -> dict[str, Sequence[Any]]:
    return {"where": WHERE, "layer": range(shape.n_layers), "head": range(shape.n_heads)}


@Family("head_act_{where}_L{layer}H{head}", "head activation", "attention", "PLS B.5.3", "max_k Ã_h[q, k]", _heads)
def head_act(record: ForwardRecord) -> Tensor:
    """The largest attention weight of every head."""
    return record.stable_and_final("peak")


@Family(
    "topk_{where}_L{layer}H{head}_r{rank}", "head top-k", "attention", "PLS C.2",
    "r-th largest Ã_h[q, k], r = rank; 0 where ḡ_h < θ_gate",
    lambda shape: {**_heads(shape), "rank": range(1, shape.how.k + 1)},
)  # fmt: skip
def topk(record: ForwardRecord) -> Tensor:
    """The k largest attention weights of every head."""
    return record.stable_and_final("top")


@Family(
    "head_ent_{where}_L{layer}H{head}", "head entropy", "nats", "PLS B.5.4",
    "−Σ_k a ln a, a = Ã_h[q, k] / Σ_j Ã_h[q, j]; 0 where max_k Ã_h < θ_entropy", _heads,
)  # fmt: skip
def head_ent(record: ForwardRecord) -> Tensor:
    """The entropy of the attention of every head."""
    return record.stable_and_final("entropy")


def at_layers(values: Float[Tensor, "L n ..."], layer: Int[Tensor, " n"]) -> Float[Tensor, "n L ..."]:
    """Each row's values at its own `layer`, 0 in all other layers."""
    block = values.new_zeros(values.shape[1], values.shape[0], *values.shape[2:])
    rows = torch.arange(len(block), device=block.device)
    block[rows, layer] = values[layer, rows]
    return block


SPAN = "Σ_h Σ_k Ã_h[q, k] (q − k) / Σ_h Σ_k Ã_h[q, k]; 0 without a key"


def _mass(shape: Shape, place: Place) -> str:
    return f"Σ_h Σ_k Ã_h[q, k], q−{shape.how.window} ≤ k < q"


def _final_layer(shape: Shape, place: Place) -> int | None:
    return shape.n_layers - 1 if place.get("where", "final") == "final" else None


def _where(shape: Shape) -> dict[str, Sequence[Any]]:
    return {"where": WHERE}


def _stable_and_final(values: Float[Tensor, "L n"], record: ForwardRecord) -> Float[Tensor, "n where"]:
    """The values at the stable layer and at the final one."""
    return torch.stack([values.gather(0, record.stable[None])[0], values[record.last]], 1)


@Family("attn_span_{where}", "position", "tokens", "PLS B.5.5", SPAN, _where, layer=_final_layer)
def attn_span(record: ForwardRecord) -> Tensor:
    """Mean distance in tokens from query to key, over the attention of a layer's heads."""
    return _stable_and_final(torch.stack([span(layer) for layer in record.stats]), record)


@Family("local_mass_{where}", "position", "attention", "PLS B.5.5", _mass, _where, layer=_final_layer)
def local_mass(record: ForwardRecord) -> Tensor:
    """The layer's attention to the nearest keys."""
    return _stable_and_final(record.of_layers("local").sum(-1), record)


def span(stats: AttentionStats) -> Float[Tensor, " n"]:
    """Mean distance of attention over all heads, in tokens; 0 without a key."""
    assert stats.distance is not None
    mass = stats.mass.sum(-1)
    return stats.distance.sum(-1) / mass.clamp(min=torch.finfo(mass.dtype).tiny)


def _group(shape: Shape, place: Place) -> str:
    heads = ", ".join(head.label for head in shape.how.heads(place["group"], shape.n_layers, shape.n_heads))
    return f"Σ_h max_k Ã_h[q, k], h in {heads}"


@Family("processing_depth", "core", "layers", "PLS B.4.1", "k*")
def processing_depth(record: ForwardRecord) -> Tensor:
    """k*, under the paper's name."""
    return record.k_star


@Family("confidence", "core", "probability", "PLS B.4.1", "p^(L−1)(ŷ)", layer=_final_layer)
def confidence(record: ForwardRecord) -> Tensor:
    """The probability of the final prediction."""
    return record.trajectory.confidence


@Family("{group}_mass", "core", "attention", "PLS B.4.1", _group, lambda shape: {"group": tuple(HEADS_OF)})
def group_mass(record: ForwardRecord) -> Tensor:
    """The summed largest weights of the paper's heads."""
    masses = []
    for group in HEADS_OF:
        heads = record.shape.how.heads(group, record.shape.n_layers, record.shape.n_heads)
        masses.append(torch.stack([record.stats[head.layer].peak[:, head.head] for head in heads]).sum(0))
    return torch.stack(masses, 1)


@Family("context_span", "core", "tokens", "PLS B.4.1", SPAN, layer=_final_layer)
def context_span(record: ForwardRecord) -> Tensor:
    """Mean distance of the final layer's attention."""
    return span(record.stats[record.last])


TRAJECTORY = (traj_prob, traj_margin, traj_drop, k_star, kappa)
POSITION = (attn_span, local_mass)
TIERS: dict[str, tuple[Family, ...]] = {
    "core": (processing_depth, confidence, group_mass, context_span),
    "structural": (*TRAJECTORY, head_act, head_ent),
    "structural+position": (*TRAJECTORY, head_act, head_ent, *POSITION),
    "topk": (*TRAJECTORY, topk, head_ent, *POSITION),
}
