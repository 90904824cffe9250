"""AdamW with decay on matrices only, linear warm-up and a cosine to a floor."""

import math

import torch
from torch import nn

from models.training.config import Training


def decays(name: str, p: nn.Parameter) -> bool:
    """Weight decay applies to tensors with two or more axes: not to biases, γ and β."""
    return p.ndim >= 2


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """Two groups, with and without decay; the peak rate is in `group["peak_lr"]`."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if decays(n, p)], "weight_decay": training.weight_decay},
        {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0},
    ]
    assert training.lr is not None
    optimizer = torch.optim.AdamW(groups, lr=training.lr, betas=(training.beta1, training.beta2), fused=True)
    for group in optimizer.param_groups:
        group["peak_lr"] = training.lr
    return optimizer


def lr_factor(step: int, steps: int, warmup: int, floor: float) -> float:
    """Share of the peak rate at `step` (from 0): (step+1)/warmup, then a cosine from 1 to `floor`."""
    warmup = min(warmup, max(1, steps // 10))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Set every group's rate to `factor` times its peak; returns the first group's rate."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak_lr"]
    return optimizer.param_groups[0]["lr"]
