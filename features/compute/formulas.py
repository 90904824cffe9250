"""Every feature of PLS, with its formula in words and as code (PLS App. B.7, C.3).

    columns(6, 6, Extract(tier="structural"))       163 features, 167 with position, 455 with the top 5
    compute(record, columns(6, 6, …))               [n, features], by the same definitions

A family of features, such as p of every layer, is a row of `TRAJECTORY`, `HEADS`, `POSITION` or `CORE`: a name with its
axes in braces, component, unit, source, formula, and what a forward pass (`ForwardRecord`) gives for it, [n, *axes].

Ã_h[q, k] = ḡ_h[q] A_h[q, k] is attention times the head's gate (1 without a gate), over keys k < q; L layers, H heads.
"stable" features hold the values of layer s = min(k*, L−1) and 0 in other layers; "final" ones those of layer L−1 and 0
in other layers, which makes these columns `constant`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.features.extract import HEADS_OF, Extract, Feature

RANGES = ("early", "middle", "late")
SCALED = ("peak", "mass", "distance", "local")  # statistics of attention that are proportional to it


class AttentionStats(NamedTuple):
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

    def at(self, rows: Any) -> "AttentionStats":
        return AttentionStats._make(x if x is None else x[rows] for x in self)


@torch.no_grad()
def attention_stats(
    pattern: Float[Tensor, "B H T T"], *, k: int | None = None, window: int | None = None, distance: bool = False
) -> AttentionStats:
    """The statistics of a pattern [B, H, T, T], in fp32 at least; the pattern itself is not kept. `k`, `window` and
    `distance` request the optional ones. B batch, T position, H heads."""
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
    """The statistics of Ã = ḡ A; ḡ is the gate's mean or root mean square over its width, 1 without a gate. Entropy
    does not depend on ḡ, but is 0 if the peak of Ã is below `theta_entropy`. The k largest weights are 0 if ḡ is below
    `theta_gate`."""
    g = torch.ones_like(stats.peak)
    if gate is not None:
        g = gate.to(g.dtype)
        g = g.mean(-1) if options.gate_reduce == "mean" else g.square().mean(-1).sqrt()
    gates = dict.fromkeys(SCALED, g) | {"top": torch.where(g < options.theta_gate, 0.0, g)[..., None]}
    scaled = {name: gates[name] * x for name, x in stats._asdict().items() if name in gates and x is not None}
    return stats._replace(**scaled, entropy=torch.where(scaled["peak"] < options.theta_entropy, 0.0, stats.entropy))


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

    def words(self, group: str | None) -> dict[str, str]:
        """What the options make of a formula."""
        followed, zeroed = "ŷ" if self.how.target == "final" else "y", self.how.traj_prob == "zeroed"
        return {
            "followed": followed,
            "if_hit": f" if argmax p^(ℓ) = {followed} else 0" if zeroed else "",
            "best_other": "second-highest p^(ℓ)" if zeroed else f"max p^(ℓ) of tokens other than {followed}",
            "late": "; L where that is L−1" if self.how.kstar == "author" else "",
            "counted": "y" if self.how.kappa_target == "truth" else "ŷ",
            "window": str(self.how.window),
            "heads": ", ".join(h.label for h in self.how.heads(group, self.n_layers, self.n_heads)) if group else "",
        }


@dataclass(frozen=True)
class ForwardRecord:
    """What a forward pass shows of n positions."""

    shape: Shape
    trajectory: Trajectory
    truth: Int[Tensor, " n"]
    """The next token."""
    stats: Sequence[AttentionStats]
    """Attention statistics of every layer, at the n queries."""

    @cached_property
    def k_star(self) -> Int[Tensor, " n"]:
        """The layer from which on the prediction stays the same."""
        return stability(self.trajectory.predicted, self.shape.how.kstar)

    @property
    def stable_and_last(self) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """The layers min(k*, L−1) and L−1."""
        last = self.shape.n_layers - 1
        return self.k_star.clamp(max=last), torch.full_like(self.k_star, last)

    def of_heads(self, kind: str) -> Float[Tensor, "n where L ..."]:
        """A statistic at the stable layer, then at the final one, each at its layer's place and 0 at the others."""
        values = torch.stack([getattr(layer, kind) for layer in self.stats])
        blocks = values.new_zeros(2, values.shape[1], values.shape[0], *values.shape[2:])
        rows = torch.arange(values.shape[1], device=values.device)
        for block, layer in zip(blocks, self.stable_and_last, strict=True):
            block[rows, layer] = values[layer, rows]
        return blocks.transpose(0, 1)

    def of_layers(self, of_layer: Callable[[AttentionStats], Tensor]) -> Float[Tensor, "n where"]:
        """A number of each layer, at the stable layer and at the final one."""
        values = torch.stack([of_layer(layer) for layer in self.stats])
        return torch.stack([values.gather(0, layer[None])[0] for layer in self.stable_and_last], 1)

    def kappa(self) -> Int[Tensor, " n"]:
        """κ: the longest run of layers that predict the counted token."""
        predicted = self.trajectory.predicted
        return longest_run(predicted == (self.truth if self.shape.how.kappa_target == "truth" else predicted[-1]))

    def masses(self) -> Float[Tensor, "n groups"]:
        """The summed largest weights of the paper's heads."""
        groups = (self.shape.how.heads(name, *self.shape[:2]) for name in HEADS_OF)
        peaks = ([self.stats[layer].peak[:, head] for layer, head in group] for group in groups)
        return torch.stack([torch.stack(group).sum(0) for group in peaks], 1)


@dataclass(frozen=True)
class Family:
    """Features of one kind; `name` has their axes in braces, and `formula` may have words of `Shape.words`."""

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

    def places(self, shape: Shape) -> Iterator[dict[str, Any]]:
        """Every combination of places on the axes, the last axis fastest."""
        axes: dict[str, Sequence[Any]] = {
            "where": ("stable", "final"), "layer": range(self.first, shape.n_layers), "head": range(shape.n_heads),
            "rank": range(1, shape.how.k + 1), "group": tuple(HEADS_OF),
        }  # fmt: skip
        names = re.findall(r"{(\w+)}", self.name)
        return (dict(zip(names, place, strict=True)) for place in product(*(axes[name] for name in names)))

    def columns(self, shape: Shape) -> Iterator[Feature]:
        last = shape.n_layers - 1
        for place in self.places(shape):
            where, layer = place.get("where"), place.get("layer")
            yield Feature(
                name=self.name.format(**place), component=self.component, unit=self.unit, source=self.source,
                layer=last if self.final and where != "stable" else layer, head=place.get("head"),
                rank=place.get("rank"), constant=where == "final" and layer is not None and layer < last,
                formula=self.formula.format(**shape.words(place.get("group"))),
            )  # fmt: skip

    def by_name(self, record: ForwardRecord) -> dict[str, Tensor]:
        names, values = (self.name.format(**place) for place in self.places(record.shape)), self.values(record)
        return dict(zip(names, values.reshape(len(values), -1).unbind(1), strict=True))


def columns(n_layers: int, n_heads: int, options: Extract) -> tuple[Feature, ...]:
    """The features of a tier in order; their numbers are 5, 3L+1+4LH, 4 more, 3L+1+2LH(k+1)+4. Raises `InputError` for
    heads of tier core that the model does not have."""
    shape = Shape(n_layers, n_heads, options)
    return tuple(feature for family in TIERS[options.tier] for feature in family.columns(shape))


def compute(record: ForwardRecord, features: Sequence[Feature]) -> Float[Tensor, "n features"]:
    """The values [n, features] of some features of the tier, in their order."""
    values: dict[str, Tensor] = {}
    for family in TIERS[record.shape.how.tier]:
        values |= family.by_name(record)
    return torch.stack([values[feature.name].to(record.trajectory.p.dtype) for feature in features], -1)


def stability(predicted: Int[Tensor, "L n"], kstar: str) -> Int[Tensor, " n"]:
    """k*: the first layer from which on all layers predict what the last one does; "author": L instead of L−1."""
    n_layers = predicted.shape[0]
    agreed = (predicted == predicted[-1]).flip(0).long().cumprod(0).sum(0)
    depth = n_layers - agreed
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


def span(stats: AttentionStats) -> Float[Tensor, " n"]:
    """Mean distance of attention over all heads, in tokens; 0 without a key."""
    assert stats.distance is not None
    mass = stats.mass.sum(-1)
    return stats.distance.sum(-1) / mass.clamp(min=torch.finfo(mass.dtype).tiny)


def local_mass(stats: AttentionStats) -> Float[Tensor, " n"]:
    assert stats.local is not None
    return stats.local.sum(-1)


SPAN = "Σ_h Σ_k Ã_h[q, k] (q − k) / Σ_h Σ_k Ã_h[q, k]; 0 without a key"
K_STAR = "min k with argmax p^(ℓ) = ŷ for all ℓ ≥ k{late}"
ENTROPY = "−Σ_k a ln a, a = Ã_h[q, k] / Σ_j Ã_h[q, j]; 0 where max_k Ã_h < θ_entropy"
TRAJECTORY = (
    Family("traj_prob_L{layer}", "trajectory", "probability", "PLS B.5.1", "p^(ℓ)({followed}){if_hit}",
           lambda record: record.trajectory.p.T),
    Family("traj_margin_L{layer}", "trajectory", "probability", "PLS B.5.1", "traj_prob − {best_other}",
           lambda record: record.trajectory.margin.T),
    Family("traj_drop_L{layer}", "trajectory", "probability", "PLS B.5.1",
           "max(0, traj_prob of layer ℓ−1 − traj_prob)",
           lambda record: (record.trajectory.p[:-1] - record.trajectory.p[1:]).clamp(min=0).T, first=1),
    Family("k_star", "stability", "layers", "PLS B.5.2", K_STAR, lambda record: record.k_star),
    Family("kappa", "stability", "layers", "PLS B.5.2", "longest run of layers with argmax p^(ℓ) = {counted}",
           ForwardRecord.kappa),
)  # fmt: skip
LARGEST = Family("head_act_{where}_L{layer}H{head}", "head activation", "attention", "PLS B.5.3", "max_k Ã_h[q, k]",
                 lambda record: record.of_heads("peak"))  # fmt: skip
TOP = Family("topk_{where}_L{layer}H{head}_r{rank}", "head top-k", "attention", "PLS C.2",
             "r-th largest Ã_h[q, k], r = rank; 0 where ḡ_h < θ_gate",
             lambda record: record.of_heads("top"))  # fmt: skip
SPREAD = Family("head_ent_{where}_L{layer}H{head}", "head entropy", "nats", "PLS B.5.4", ENTROPY,
                lambda record: record.of_heads("entropy"))  # fmt: skip
POSITION = (
    Family("attn_span_{where}", "position", "tokens", "PLS B.5.5", SPAN, lambda record: record.of_layers(span),
           final=True),
    Family("local_mass_{where}", "position", "attention", "PLS B.5.5", "Σ_h Σ_k Ã_h[q, k], q−{window} ≤ k < q",
           lambda record: record.of_layers(local_mass), final=True),
)  # fmt: skip
CORE = (
    Family("processing_depth", "core", "layers", "PLS B.4.1", "k*", lambda record: record.k_star),
    Family("confidence", "core", "probability", "PLS B.4.1", "p^(L−1)(ŷ)",
           lambda record: record.trajectory.confidence, final=True),
    Family("{group}_mass", "core", "attention", "PLS B.4.1", "Σ_h max_k Ã_h[q, k], h in {heads}", ForwardRecord.masses),
    Family("context_span", "core", "tokens", "PLS B.4.1", SPAN, lambda record: span(record.stats[-1]), final=True),
)  # fmt: skip
TIERS: dict[str, tuple[Family, ...]] = {
    "core": CORE,
    "structural": (*TRAJECTORY, LARGEST, SPREAD),
    "structural+position": (*TRAJECTORY, LARGEST, SPREAD, *POSITION),
    "topk": (*TRAJECTORY, TOP, SPREAD, *POSITION),
}
