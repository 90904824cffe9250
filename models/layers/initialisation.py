"""Draws initial weights by the rules of `models.config.Init`."""

import math

import torch
from torch import Tensor, nn

from streamscope.models import config as c


@torch.no_grad()
def fill(
    weight: Tensor,
    rule: c.Init,
    fan_in: int,
    *,
    std: float,
    generator: torch.Generator,
    scale: float = 1.0,
    input_size: float = 1.0,
) -> None:
    """Draw `weight` in place by `rule`, times `scale`; a weight with three axes is a stack of independent blocks.

    `std` is the σ of a normal rule that has none; `input_size` the s of `UnitOutput`, its input's root mean square.
    """
    if isinstance(rule, c.Normal):
        nn.init.normal_(weight, std=scale * (std if rule.std is None else rule.std), generator=generator)
    elif isinstance(rule, c.FanInNormal):
        nn.init.normal_(weight, std=scale * rule.gain / math.sqrt(fan_in), generator=generator)
    elif isinstance(rule, c.UnitOutput):
        nn.init.normal_(weight, std=scale * rule.gain / (input_size * math.sqrt(fan_in)), generator=generator)
    elif isinstance(rule, c.FanInUniform):
        bound = scale * rule.gain / math.sqrt(fan_in)
        nn.init.uniform_(weight, -bound, bound, generator=generator)
    elif isinstance(rule, c.Orthogonal):
        for block in weight if weight.ndim == 3 else [weight]:
            nn.init.orthogonal_(block, gain=scale * rule.gain, generator=generator)
    else:
        raise NotImplementedError(f"no draw for {type(rule).__name__}")


def embedding_size(config: c.ModelConfig) -> float:
    """Root mean square of the initial embedding that enters layer 0: tokens times `embed_scale`, plus positions."""
    size = config.embed_scale * _size(config.init.embed, (config.d_vocab, config.d_model), config.init_std)
    if isinstance(config.positions, c.Learned):
        size = math.hypot(size, _size(config.init.positions, (config.n_ctx, config.d_model), config.init_std))
    return size


def _size(rule: c.Init, shape: tuple[int, int], std: float) -> float:
    """Root mean square of a table [rows, D] that is drawn by `rule`; its fan-in is D."""
    if isinstance(rule, c.Normal):
        return std if rule.std is None else rule.std
    if not isinstance(rule, c.Scaled):
        raise NotImplementedError(f"no size for {type(rule).__name__}")
    if isinstance(rule, c.Orthogonal):
        return rule.gain / math.sqrt(max(shape))
    return rule.gain / math.sqrt(shape[1] * (3 if isinstance(rule, c.FanInUniform) else 1))
