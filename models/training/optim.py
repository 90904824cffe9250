"""Optimisers by the role of a parameter, linear warm-up and a cosine to a floor for each group's own peak rate.

hyper       everything inside a hyper-connection       AdamW or SGD with rates of its own
matrix      two axes, not a table of tokens or positions   Muon where chosen, else AdamW
rest        tables, vectors, tensors of more axes      AdamW, decay on two or more axes
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models.hyper_mixing import HyperConnection
from models.positions import PositionTable
from models.training.config import Training
from models.transformer import Embedding


def decays(name: str, p: nn.Parameter) -> bool:
    """Weight decay applies to tensors with two or more axes: not to biases, γ and β."""
    return p.ndim >= 2


def roles(model: nn.Module) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """{"hyper", "matrix", "rest"}: the trainable parameters with their names; each is in one list."""
    inside = {
        id(p): "hyper" if isinstance(module, HyperConnection) else "rest"
        for module in model.modules()
        if isinstance(module, HyperConnection | Embedding | PositionTable)
        for p in module.parameters()
    }
    found: dict[str, list[tuple[str, nn.Parameter]]] = {"hyper": [], "matrix": [], "rest": []}
    for name, p in model.named_parameters():
        if p.requires_grad:
            found[inside.get(id(p), "matrix" if p.ndim == 2 else "rest")].append((name, p))
    return found


class Optimizers:
    """Several optimisers that step as one. Groups and state are theirs, one after the other."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """One step of every part."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As torch's: {"state": {index: tensors}, "param_groups"}; parameters are counted through all parts."""
        state: dict[int, Any] = {}
        first = 0
        for part in self.parts:
            state |= {first + i: moments for i, moments in part.state_dict()["state"].items()}
            first += _size(part)
        return {"state": state, "param_groups": self.param_groups}

    def load_state(self, state: dict[int, dict[str, torch.Tensor]]) -> None:
        """The inverse of `state_dict()["state"]`; rates, betas and decays stay what the options say."""
        first = 0
        for part in self.parts:
            own = {i - first: moments for i, moments in state.items() if 0 <= i - first < _size(part)}
            part.load_state_dict({"state": own, "param_groups": part.state_dict()["param_groups"]})
            first += _size(part)


def _size(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def make_optimizer(model: nn.Module, training: Training) -> Optimizers:
    """The optimisers of all roles; each group's peak rate is in `group["peak_lr"]`. AdamW's groups come first."""
    t, by_role = training, roles(model)
    assert t.lr is not None and t.beta2 is not None, "with_recipe fills them"
    order = {id(p): i for i, p in enumerate(model.parameters())}
    muon = by_role["matrix"] if t.optimizer == "muon" else []
    rest = by_role["rest"] + ([] if muon else by_role["matrix"])
    rest.sort(key=lambda named: order[id(named[1])])  # a checkpoint knows parameters by their place
    hyper = {"params": [p for _, p in by_role["hyper"]], "lr": t.hc_lr, "weight_decay": t.hc_decay}
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in rest if decays(n, p)], "weight_decay": t.weight_decay},
        {"params": [p for n, p in rest if not decays(n, p)], "weight_decay": 0.0},
    ]
    if by_role["hyper"] and t.hc_optimizer == "adamw":
        groups.append({**hyper, "betas": (t.hc_beta1, t.hc_beta2)})
    parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=t.lr, betas=(t.beta1, t.beta2), fused=True)]
    if muon:
        matrices = [p for _, p in muon]
        parts.append(
            torch.optim.Muon(matrices, lr=t.muon_lr, momentum=t.muon_momentum, weight_decay=t.muon_decay, nesterov=True)
        )
    if by_role["hyper"] and t.hc_optimizer == "sgd":
        parts.append(torch.optim.SGD([hyper]))
    optimizer = Optimizers(parts)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def lr_factor(step: int, steps: int, warmup: int, floor: float) -> float:
    """Share of the peak rate at `step` (from 0): (step+1)/warmup, then a cosine from 1 to `floor`."""
    warmup = min(warmup, max(1, steps // 10))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_lr(optimizer: Optimizers, factor: float) -> float:
    """Set every group's rate to `factor` times its peak; returns the first group's rate."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak_lr"]
    return optimizer.param_groups[0]["lr"]
