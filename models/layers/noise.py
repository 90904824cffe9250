"""Random numbers inside a forward pass, the same whether or not it is compiled.

They come from torch's global generator, whose state is in a run's checkpoint. The operators are closed to the compiler,
so that a compiled block draws the numbers of a plain one, and because the generator that the compiler writes for a CPU
is slow.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SEEDED = (torch.Tag.nondeterministic_seeded,)
LEVELS = 2**16
"""How many values a random number of `kept` has."""


@torch.library.custom_op("streamscope::noise", mutates_args=(), tags=_SEEDED)
def noise(like: Tensor) -> Tensor:
    """ε ~ N(0, I) of a tensor's shape and dtype. The compiler's own generator costs 15 % of a training step."""
    return torch.randn_like(like)


@noise.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty_like(like)


@torch.library.custom_op("streamscope::kept", mutates_args=(), tags=_SEEDED)
def kept(like: Tensor, dropped: int) -> Tensor:
    """A mask of a tensor's shape, each element True with probability 1 − dropped / 2^16 by itself.

    Every element has 16 random bits; a draw of the generator gives those of four. torch's `bernoulli_` takes four times
    as long, the compiler's generator ten times: a quarter of a training step of `pls`.
    """
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    bits = words.view(torch.int16)[: like.numel()].view(like.shape)
    return bits >= dropped - LEVELS // 2


@kept.register_fake
def _(like: Tensor, dropped: int) -> Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)


def dropout(x: Tensor, p: float) -> Tensor:
    """x with every element 0 with probability p, and otherwise divided by 1 − p.

    On a CPU p is rounded to a multiple of 2^−16, in the division too, so the expectation is x. Other devices have
    kernels that draw and multiply at once.
    """
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped = min(round(p * LEVELS), LEVELS - 1)
    return x * kept(x.detach(), dropped) * (LEVELS / (LEVELS - dropped))


class Dropout(nn.Dropout):
    """`dropout` with probability `p` in training, the identity otherwise."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input
