"""Statistics of a layer's attention per query and head; the pattern itself is not kept (PLS B.5.3–B.5.5, C.2).

    stats = attention_stats(pattern, k=5, window=5)         pattern [B, H, T, T]
    apply_gate(stats, gate, how)                        with Ã = ḡ A

B batch, T position, H heads. Sums and maxima run over the keys before the query, without the query itself. Position 0
has no key, so its statistics are 0.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.features.extract import Extract


@dataclass(frozen=True)
class AttentionStats:
    """Attention statistics of every query and head; `None` if not requested."""

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
    """The statistics of a pattern, in fp32 at least; `k`, `window` and `distance` request the optional ones."""
    n = pattern.shape[-1]
    a = pattern.to(torch.promote_types(pattern.dtype, torch.float32), copy=True)
    a.diagonal(0, -2, -1).zero_()  # weights after the query are 0 already
    mass = a.sum(-1)
    entropy = torch.where(mass > 0, mass.log() + torch.special.entr(a).sum(-1) / mass, 0.0)
    found = {"peak": a.amax(-1), "mass": mass, "entropy": entropy}
    if distance:
        t = torch.arange(n, device=a.device)
        found["distance"] = (a * (t[:, None] - t)).sum(-1)
    if window is not None:
        found["local"] = local = torch.zeros_like(mass)
        for back in range(1, min(window, n - 1) + 1):
            local[..., back:] += a.diagonal(-back, -2, -1)
    stats = {name: x.transpose(1, 2) for name, x in found.items()}
    if k is not None:
        top = a.topk(min(k, n), -1).values
        stats["top"] = torch.nn.functional.pad(top, (0, k - top.shape[-1])).transpose(1, 2)
    return AttentionStats(**stats)


def apply_gate(stats: AttentionStats, gate: Float[Tensor, "*B T H O"] | None, how: Extract) -> AttentionStats:
    """The statistics of Ã = ḡ A; ḡ is the gate's mean or root mean square over its width, 1 without a gate.

    Entropy does not depend on ḡ, but is 0 if the peak of Ã is below `theta_entropy`. The k largest weights are 0 if ḡ
    is below `theta_gate`.
    """
    g = torch.ones_like(stats.peak)
    if gate is not None:
        g = gate.to(g.dtype)
        g = g.mean(-1) if how.gate_reduce == "mean" else g.square().mean(-1).sqrt()
    peak = g * stats.peak
    return replace(
        stats,
        peak=peak,
        mass=g * stats.mass,
        entropy=torch.where(peak < how.theta_entropy, 0.0, stats.entropy),
        top=None if stats.top is None else torch.where(g < how.theta_gate, 0.0, g)[..., None] * stats.top,
        distance=None if stats.distance is None else g * stats.distance,
        local=None if stats.local is None else g * stats.local,
    )
