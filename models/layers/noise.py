"""Random numbers inside a forward pass, equal with and without compilation.

They come from torch's global generator, whose state is in a run's checkpoint. The operators are opaque to the compiler,
so a compiled block draws the same numbers. They also avoid the compiler's own CPU generator, which is slow.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SEEDED = (torch.Tag.nondeterministic_seeded,)
LEVELS = 2**16
"""Number of values that a random number of `keep_mask` can take."""


@torch.library.custom_op("streamscope::noise", mutates_args=(), tags=_SEEDED)
def noise(like: Tensor) -> Tensor:
    """ε ~ N(0, I) in a tensor's shape and dtype; the compiler's own generator costs 15 % of a training step."""
    return torch.randn_like(like)


@noise.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty_like(like)


@torch.library.custom_op("streamscope::keep_mask", mutates_args=(), tags=_SEEDED)
def keep_mask(like: Tensor, dropped: int) -> Tensor:
    """A mask of a tensor's shape, each element independently True with probability 1 − dropped / 2^16.

    Each element uses 16 random bits, so one draw serves four. torch's `bernoulli_` is four times as slow, the
    compiler's generator ten times: a quarter of a training step of `pls`.
    """
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    bits = words.view(torch.int16)[: like.numel()].view(like.shape)
    return bits >= dropped - LEVELS // 2


@keep_mask.register_fake
def _(like: Tensor, dropped: int) -> Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each element of x to 0 with probability p, and divide the others by 1 − p.

    On a CPU, p is rounded to a multiple of 2^−16, also in the division, so the expectation is x. Other devices use
    torch's kernel.
    """
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped = min(round(p * LEVELS), LEVELS - 1)
    return x * keep_mask(x.detach(), dropped) * (LEVELS / (LEVELS - dropped))


class Dropout(nn.Dropout):
    """`dropout` with probability `p` in training, otherwise the identity."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input
