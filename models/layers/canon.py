"""Canon layers: each activation plus a short causal convolution, channel by channel (SPEC §3).

    y_t,c = x_t,c + act( Σ_{j=0..k−1} w_c,j x_{t−k+1+j},c )

There is no bias, and positions before the sequence count as 0. Later tokens and right padding never reach a position.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable

from streamscope.models import config as c
from streamscope.models.interop.transformer_lens_core import HookPoint


def shifted_sum(x: Float[Tensor, "B T C"], w: Float[Tensor, "C k"]) -> Float[Tensor, "B T C"]:
    """y_t = Σ_j w_j x_{t−k+1+j} as shifted sums; a depthwise conv1d needs [B, C, T] and cannot be fused."""
    k, n = w.shape[1], x.shape[1]
    past = F.pad(x, (0, 0, k - 1, 0))
    y = past[:, :n] * w[:, 0]
    for j in range(1, k):
        y = torch.addcmul(y, past[:, j : j + n], w[:, j])
    return y


class _ShiftedSum(torch.autograd.Function):
    """`shifted_sum` in at least fp32; on a CPU a few sequences at a time, which stay in the cache.

    Gradients are summed in place, where autograd would write k padded copies. Half-precision elementwise operations are
    slow on a CPU and round at every term.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        wide, y = w.to(torch.promote_types(w.dtype, torch.float32)), torch.empty_like(x)
        for part in _sequences(x):
            y[part] = shifted_sum(x[part].to(wide.dtype), wide)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        k, n, wide = w.shape[1], x.shape[1], w.to(torch.promote_types(w.dtype, torch.float32))
        columns = wide.T.contiguous()
        grad_x, grad_w = torch.empty_like(x), torch.zeros_like(columns)
        for part in _sequences(x):
            inputs, g = x[part].to(wide.dtype), grads[0][part].to(wide.dtype)
            total = g * columns[k - 1]
            grad_w[k - 1] += (g * inputs).sum((0, 1))
            for j in range(max(0, k - n), k - 1):
                late = k - 1 - j  # column j reads x `late` positions earlier
                total[:, :-late].addcmul_(g[:, late:], columns[j])
                grad_w[j] += (g[:, late:] * inputs[:, :-late]).sum((0, 1))
            grad_x[part] = total
        return grad_x, grad_w.T.to(w.dtype)


def _sequences(x: Tensor) -> list[slice]:
    """Slices of the batch: about 32,768 numbers on a CPU, the whole batch elsewhere."""
    size = max(1, 2**15 // max(1, x[0].numel())) if x.device.type == "cpu" and len(x) else len(x)
    return [slice(i, i + size) for i in range(0, len(x), max(1, size))]


@c.Canon.computed_by
class CanonLayer(nn.Module):
    """A Canon layer, [B, T, C] -> [B, T, C]. `weight` is [C, k]; its last column belongs to the current token."""

    def __init__(self, spec: c.Canon, channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(channels, spec.kernel))
        self.hook_conv, self.hook_out = HookPoint(), HookPoint()

    def init_weights(self, std: float, generator: Generator) -> None:
        """Draw from U(±1/sqrt(k)), PyTorch's and MLX's default for a kernel of k, or N(0, std)."""
        if self.spec.init == "uniform":
            bound = self.spec.kernel**-0.5
            nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        else:
            nn.init.normal_(self.weight, std=std, generator=generator)

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        w = self.weight.to(x.dtype)  # under autocast an fp32 kernel would turn a bf16 activation into fp32
        y = shifted_sum(x, w) if torch.compiler.is_compiling() else _ShiftedSum.apply(x, w)  # the compiler fuses sums
        if self.spec.activation == "silu":
            y = F.silu(y)
        y = self.hook_conv(y)
        return self.hook_out(x + y if self.spec.residual else y)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} channels, kernel {self.spec.kernel}"
