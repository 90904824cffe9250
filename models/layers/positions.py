"""Position encodings other than `attention.Rope`: ALiBi, learned, none. All have one interface:

rotate(x)    rotated queries or keys [B, T, H, K]; rotate(x, at): x holds only positions at [B, P]
slopes       decrease of the scores per token of distance [H], or None
bias(T)      with slopes: bias [H, T, T] of the scores; [B, H, T, T] for slopes [B, H] in use
"""

import math
from operator import attrgetter

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
