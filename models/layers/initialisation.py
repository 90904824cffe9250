"""Draws initial weights by the rules of `models.config.Init`."""

import math

import torch
from torch import Tensor, nn

from streamscope.models import config as c


@torch.no_grad()
def fill(
    weight: Tensor, rule: c.Init, fan_in: int, *, std: float, generator: torch.Generator, scale: float = 1.0
) -> None:
    """Draw `weight` in place by `rule`, times `scale`; a weight with three axes is a stack of independent blocks.

    `std` is the σ of a normal rule that has none.
    """
    if isinstance(rule, c.Normal):
        nn.init.normal_(weight, std=scale * (std if rule.std is None else rule.std), generator=generator)
    elif isinstance(rule, c.FanInNormal):
        nn.init.normal_(weight, std=scale * rule.gain / math.sqrt(fan_in), generator=generator)
    elif isinstance(rule, c.FanInUniform):
        bound = scale * rule.gain / math.sqrt(fan_in)
        nn.init.uniform_(weight, -bound, bound, generator=generator)
    elif isinstance(rule, c.Orthogonal):
        for block in weight if weight.ndim == 3 else [weight]:
            nn.init.orthogonal_(block, gain=scale * rule.gain, generator=generator)
    else:
        raise NotImplementedError(f"no draw for {type(rule).__name__}")
