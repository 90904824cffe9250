"""LoRA: train an update of low rank for each chosen projection; the model's own weights are frozen.

    W' = W + (α / r) B A        A [r, d_in], B [d_out, r]; Hu et al. 2021, "LoRA", arXiv 2106.09685, §4.1

A starts as N(0, 1/r) and B as 0, so tuning starts from the model itself. Only A and B have gradients and moments. They
are a parametrisation of the projection's `weight`: whoever reads it, training or instrument, reads W'. `merged` gives
the weights of an ordinary model, which is what a run folder holds; a checkpoint holds W, A and B.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from streamscope.cli.errors import InputError
from streamscope.models.layers.projections import DenseProjection


class Lora(nn.Module):
    """W' = W + (α / r) B A of one weight, in its dtype, also under autocast."""

    def __init__(self, weight: Float[Tensor, "o i"], rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        (rows, columns), self.scale = weight.shape, alpha / rank
        start = torch.randn(rank, columns, generator=generator) / rank**0.5
        self.a = nn.Parameter(start.to(weight))
        self.b = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Float[Tensor, "o i"]) -> Float[Tensor, "o i"]:
        with torch.autocast(weight.device.type, enabled=False):
            return torch.addmm(weight, self.b.to(weight.dtype), self.a.to(weight.dtype), alpha=self.scale)


def add_lora(model: nn.Module, rank: int, alpha: float, names: Sequence[str], seed: int) -> int:
    """Freeze the model; add adapters to its dense projections of these names (or "all"); returns their parameters."""
    dense = {path: m for path, m in model.named_modules() if isinstance(m, DenseProjection)}
    suffixes = sorted({path.rpartition(".")[2] for path in dense})
    names = suffixes if list(names) == ["all"] else names
    if wrong := [name for name in names if name not in suffixes]:
        raise InputError(f"--lora-on {wrong[0]}: the model has no dense projection of this name: {', '.join(suffixes)}")
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for path, module in dense.items():
        if path.rpartition(".")[2] in names:
            if rank > min(module.weight.shape):
                raise InputError(f"--lora {rank} is more than the rank of {path}, {min(module.weight.shape)}")
            parametrize.register_parametrization(module, "weight", Lora(module.weight, rank, alpha, generator))
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the model with every W' in place of W, A and B; the model's own without adapters."""
    weights = dict(model.state_dict())
    for path, module in model.named_modules():
        if isinstance(module, DenseProjection) and parametrize.is_parametrized(module):
            weights = {k: v for k, v in weights.items() if not k.startswith(f"{path}.parametrizations.")}
            weights[f"{path}.weight"] = module.weight.detach()
    return weights
