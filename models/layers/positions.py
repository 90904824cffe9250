"""Position encodings (rotary, ALiBi, learned, none) with one interface, so attention has no branches.

rotate(x)    rotated queries or keys [B, T, H, K]; rotate(x, at): x holds only positions at [B, P]
slopes       decrease of the scores per token of distance [H], or None
bias(T)      with slopes: bias [H, T, T] of the scores; [B, H, T, T] for slopes [B, H] in use
"""

import math
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from streamscope.models import config as c
from streamscope.models.layers.head import Embedding


@c.NoPositions.computed_by
@c.Learned.computed_by
class Positions(nn.Module):
    """No effect inside attention; the model adds a learned table (`PositionTable`)."""

    slopes: Tensor | None

    def __init__(self, spec: c.Positions, d_head: int, n_heads: int, n_ctx: int) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("slopes", None, persistent=False)

    def rotate(self, x: Float[Tensor, "B T H K"], index: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T H K"]:
        return x


_TABLES: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()
"""The rotary tables in use: layers and models with equal positions hold the same tensors."""


@torch.inference_mode(False)  # a model in training may share them
def rotary_tables(
    base: float, stretch: c.Stretch | None, rotated: int, n_ctx: int, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "T 1 R"], Float[Tensor, "T 1 R"]]:
    """cos and sin of t θ_i [T, 1, R], computed in fp64 on the CPU; on "meta" without values, for sizes of any file."""
    if device.type == "meta":
        table = torch.empty(n_ctx, 1, rotated, dtype=dtype, device=device)
        return table, torch.empty_like(table)
    key = base, stretch, rotated, n_ctx, dtype, device
    cos, sin = _TABLES.get(("cos", *key)), _TABLES.get(("sin", *key))
    if cos is None or sin is None:
        theta = base ** (-torch.arange(0, rotated, 2, dtype=torch.float64, device="cpu") / rotated)
        if stretch is not None:
            s = ((stretch.original * theta / (2 * math.pi) - stretch.low) / (stretch.high - stretch.low)).clamp(0, 1)
            theta = theta * ((1 - s) / stretch.factor + s)
        angle = torch.outer(torch.arange(n_ctx, dtype=torch.float64, device="cpu"), theta)
        angle = torch.cat([angle, angle], -1)[:, None, :]
        cos, sin = angle.cos().to(device, dtype), angle.sin().to(device, dtype)
        _TABLES[("cos", *key)], _TABLES[("sin", *key)] = cos, sin
    return cos, sin


@c.Rope.computed_by
class Rope(nn.Module):
    """RoPE: x_t -> x_t cos(t θ) + rotate_half(x_t) sin(t θ), θ_i = base^(−2i/R) on the first R dimensions.

    Stretching replaces θ_i by θ_i ((1 − s_i)/factor + s_i) (`config.Stretch`).
    """

    cos: Tensor
    sin: Tensor
    slopes = None

    def __init__(self, spec: c.Rope, d_head: int, n_heads: int, n_ctx: int) -> None:
        super().__init__()
        self.rotated = int(d_head * spec.fraction)
        self.table = spec.base, spec.stretch, self.rotated, n_ctx
        cos, sin = rotary_tables(*self.table, torch.float32, torch.get_default_device())
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "Rope":
        """Take the tables anew for `.to`, `.double` and the like, in the new dtype or at least fp32."""
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.cos.dtype, torch.float32)
        self.cos, self.sin = rotary_tables(*self.table, dtype, self.cos.device)
        return self

    def rotate(self, x: Float[Tensor, "B T H K"], index: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T H K"]:
        """Rotate queries or keys; position 0 is the first token. `index` holds the positions of x, if not all."""
        r, tail = x[..., : self.rotated], x[..., self.rotated :]
        half = self.rotated // 2
        where = slice(x.shape[1]) if index is None else index
        turned = torch.cat([-r[..., half:], r[..., :half]], -1)
        r = (r * self.cos[where] + turned * self.sin[where]).to(x.dtype)
        return torch.cat([r, tail], -1) if tail.shape[-1] else r


@c.Alibi.computed_by
class Alibi(Positions):
    """ALiBi: score(q, k) − m_h (q − k), m_h = 2^(−8h/H), with the paper's rule if H is not a power of two."""

    slopes: Tensor

    def __init__(self, spec: c.Positions, d_head: int, n_heads: int, n_ctx: int) -> None:
        super().__init__(spec, d_head, n_heads, n_ctx)
        self.slopes = torch.tensor(alibi_slopes(n_heads))

    def bias(self, n: int, slopes: Float[Tensor, "*B H"] | None = None) -> Float[Tensor, "*B H T T"]:
        """The bias −m_h (q − k) for k ≤ q; `slopes` replace m_h."""
        m = self.slopes if slopes is None else slopes
        t = torch.arange(n, device=m.device)
        return -m[..., None, None] * (t[:, None] - t[None, :]).clamp(min=0)


def alibi_slopes(n_heads: int) -> list[float]:
    """The slopes of Press et al. (2022), a geometric sequence; past a power of two, filled from the next one."""
    below = 2 ** int(math.log2(n_heads))
    slopes, more = ([2.0 ** (-8.0 * (h + 1) / n) for h in range(n)] for n in (below, 2 * below))
    return slopes + more[::2][: n_heads - below]


class PositionTable(Embedding):
    """A learned position table [n_ctx, D]."""

    W_pos = property(attrgetter("weight"))

    def forward(  # type: ignore[override]
        self, n: int, batch: int, positions: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The first n rows for every sequence of the batch, or the rows `positions`."""
        return self.weight[:n].expand(batch, -1, -1) if positions is None else self.weight[positions]
