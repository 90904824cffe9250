"""Random numbers inside a forward pass, the same whether or not it is compiled."""

import torch
from torch import Tensor


@torch.library.custom_op("streamscope::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(like: Tensor) -> Tensor:
    """ε ~ N(0, I) of a tensor's shape and dtype.

    Closed to the compiler, so that a compiled block draws the numbers of a plain one, and because the generator that
    the compiler writes for a CPU costs 15 % of a training step.
    """
    return torch.randn_like(like)


@noise.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty_like(like)
