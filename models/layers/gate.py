"""The gate on the output of each attention head."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamscope.models import config as c


class HeadGate(nn.Module):
    """The head gate g = σ(W s + b): one number (scalar) or d_h numbers (vector) per head (DST Eq. 14, PLS A.4.2).

    For the query or the values, W is per head, [H, d_h, 1 or d_h]. For the normed input it is [D, H, 1 or d_h], so
    every head sees the whole width.
    """

    def __init__(self, spec: c.Gate, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.spec, self.n_heads = spec, n_heads
        width = d_head if spec.shape == "vector" else 1
        wide = spec.source == "normed"
        shape = (d_model, n_heads, width) if wide else (n_heads, d_head, width)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(n_heads, width)) if spec.bias else None
        self.formula = "btd,dho->btho" if wide else "bthi,hio->btho"

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        """Initialise weights to zero (g = 1/2 everywhere) or N(0, std), and biases to 0."""
        nn.init.normal_(self.weight, std=std if self.spec.init == "normal" else 0.0, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, q: Tensor, x: Tensor, x_v: Tensor) -> Float[Tensor, "B T H O"]:
        """g [B, T, H, 1 or K] from queries q [B, T, H, K], normed input x [B, T, D] and input of the values x_v [B, T,
        D]."""
        source = {"query": q, "normed": x, "value": x_v.unflatten(-1, (self.n_heads, -1))}[self.spec.source]
        logits = torch.einsum(self.formula, source, self.weight)
        return torch.sigmoid(logits if self.bias is None else logits + self.bias)
