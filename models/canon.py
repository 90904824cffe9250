"""Canon layers: a token's activation plus a short causal convolution over it, channel by channel (SPEC §3).

    y_t,c = x_t,c + act( Σ_{j=0..k−1} w_c,j x_{t−k+1+j},c )

No bias; positions before the sequence count as 0. Every product is local in time, so padding on the right
and later tokens never reach a position.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn
from transformer_lens.hook_points import HookPoint

from models import config as c
from models.registry import implements


@implements(c.Canon)
class CanonLayer(nn.Module):
    """x [B, T, C] -> [B, T, C]. `weight` is [C, k]; its last column is the current token's."""

    def __init__(self, spec: c.Canon, channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(channels, spec.kernel))
        self.hook_out = HookPoint()

    def init_weights(self, std: float, generator: Generator) -> None:
        """U(±1/sqrt(k)), PyTorch's and MLX's default for a kernel of k, or N(0, std)."""
        if self.spec.init == "uniform":
            bound = self.spec.kernel**-0.5
            nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        else:
            nn.init.normal_(self.weight, std=std, generator=generator)

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        k, n = self.spec.kernel, x.shape[1]
        w = self.weight.to(x.dtype)  # under autocast an fp32 kernel would turn a bf16 activation into fp32
        past = F.pad(x, (0, 0, k - 1, 0))
        y = past[:, :n] * w[:, 0]
        for j in range(1, k):  # shifted sums: a depthwise conv1d needs [B, C, T], and fuses with nothing
            y = torch.addcmul(y, past[:, j : j + n], w[:, j])
        if self.spec.activation == "silu":
            y = F.silu(y)
        return self.hook_out(x + y if self.spec.residual else y)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} channels, kernel {self.spec.kernel}"
