"""Optimisers by the role of a parameter, with linear warm-up and a cosine to a floor of each group's peak rate.

hyper       everything inside a hyper-connection           AdamW or SGD with their own rates
matrix      two axes, except token and position tables     Muon if chosen, else AdamW
kernel      Canon's, [channels, k]                         like a matrix with `muon_kernels`, else AdamW
rest        tables, vectors, tensors with more axes        AdamW, decay on two or more axes

The classes here compute in fp32 and round once, when parameters and moments are stored. MLX, whose recipes the options
follow, rounds after every operation.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from streamscope.cli.errors import InputError
from streamscope.models.decoder import Embedding
from streamscope.models.layers.canon import CanonLayer
from streamscope.models.layers.hyper_mixing import HyperConnection
from streamscope.models.tensors import DTYPES
from streamscope.models.training.config import Training


def roles(model: nn.Module) -> dict[str, str]:
    """The roles of the trainable parameters by name: "hyper", "matrix", "kernel" or "rest"."""
    kinds = {HyperConnection: "hyper", CanonLayer: "kernel", Embedding: "rest"}  # both tables are embeddings
    inside = {
        p: role
        for module in model.modules()
        for kind, role in kinds.items()
        if isinstance(module, kind)
        for p in module.parameters()
    }
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {name: inside.get(p, "matrix" if p.ndim == 2 else "rest") for name, p in trained}


def store_parameters(model: nn.Module, training: Training) -> None:
    """Store the parameters in `training.param_dtype`, except hyper-connections (`residual.hc_dtype`). Gradients and
    moments take the dtype of their parameter, so call it before `make_optimizer`."""
    for name, role in roles(model).items():
        if role != "hyper":
            p = model.get_parameter(name)
            p.data = p.data.to(DTYPES[training.param_dtype or "fp32"])


def _wide(t: Tensor) -> Tensor:
    return t.detach().to(torch.promote_types(t.dtype, torch.float32))


def round_stochastically(x: Tensor, generator: torch.Generator) -> Tensor:
    """Round fp32 to bf16, up or down with the probability that makes the expectation x: a bf16 number is the upper half
    of an fp32 number, so add 16 uniform random bits and cut off the lower half."""
    noise = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    return ((x.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)


class _WideOptimizer(torch.optim.Optimizer):
    """Base of optimisers that compute in fp32 and round when they store: stochastically with a seed.

    The random numbers depend only on seed, `place` (of the class), group and step, so a resumed run and every rank of a
    distributed run draw the same.
    """

    moments: tuple[str, ...]
    usual: dict[str, Any]
    """Defaults of the options of a group."""
    place: int
    _update: Callable[[int, dict[str, Any], list[Tensor], list[dict[str, Any]]], None]

    def __init__(self, params: Any, *, stochastic_seed: int | None = None, **options: Any) -> None:
        super().__init__(params, self.usual | options)
        self.seed = stochastic_seed

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for i, group in enumerate(self.param_groups):
            if params := [p for p in group["params"] if p.grad is not None]:
                self._update(i, group, params, [self._state(p) for p in params])

    def _state(self, p: Tensor) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state["step"] = 0.0  # a number, because reading a tensor would wait for the device
            state.update({name: torch.zeros_like(p) for name in self.moments})
        state["step"] = float(state["step"]) + 1  # a tensor after a checkpoint
        return state

    def _store(self, pairs: Iterable[tuple[Tensor, Tensor]], step: float, group: int) -> None:
        """Copy each fp32 value to its target, unless they share memory."""
        generator = None
        for target, value in pairs:
            if target.data_ptr() == value.data_ptr():
                continue
            if self.seed is not None and target.dtype == torch.bfloat16:
                if generator is None:
                    key = hash((self.seed, self.place, group, int(step)))  # of integers, so equal in every process
                    generator = torch.Generator(target.device).manual_seed(key)
                value = round_stochastically(value, generator)
            target.copy_(value)


class AdamW(_WideOptimizer):
    """AdamW (arXiv 1711.05101) with optional bias correction, which MLX omits by default.

        m ← β1 m + (1−β1) g     v ← β2 v + (1−β2) g²     W ← (1 − lr wd) W − lr (m / c1) / (sqrt(v / c2) + eps)

    c1 = 1 − β1^t and c2 = 1 − β2^t, or both are 1: then the first step is (1−β1) / sqrt(1−β2) times as large, 3.2 times
    at .9 and .999. With correction and without stochastic rounding, torch's fused AdamW is used instead.
    """

    moments, place = ("exp_avg", "exp_avg_sq"), 0
    usual = {"eps": 1e-8, "weight_decay": 0.0, "bias_correction": True}

    def _update(self, i: int, group: dict[str, Any], params: list[Tensor], states: list[dict[str, Any]]) -> None:
        t, lr, (beta1, beta2) = states[0]["step"], group["lr"], group["betas"]
        ms, vs = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        g = [_wide(p.grad) for p in params]  # type: ignore[arg-type]
        w, m, v = ([_wide(x) for x in tensors] for tensors in (params, ms, vs))
        torch._foreach_lerp_(m, g, 1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, g, g, 1 - beta2)
        c1, c2 = (1 - beta1**t, 1 - beta2**t) if group["bias_correction"] else (1.0, 1.0)
        scale = torch._foreach_sqrt(v)
        torch._foreach_div_(scale, math.sqrt(c2))
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_mul_(w, 1 - lr * group["weight_decay"])
        torch._foreach_addcdiv_(w, m, scale, value=-lr / c1)
        self._store([*zip(params, w, strict=True), *zip(ms, m, strict=True), *zip(vs, v, strict=True)], t, i)


GRAM_STEPS = 3
"""Steps of `orthogonalise` that wide matrices take in their Gram matrix. In fp32 this is as exact as single steps; more
steps lose digits of the small singular values."""


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """Approximate U V^T of each matrix of a stack [n, rows, columns] by Newton–Schulz steps in x's dtype (Muon's
    quintic).

    Singular values end between about .7 and 1.2. The coefficients are those of Keller Jordan's Muon. A step is X ← P X,
    P = a I + b G + c G², G = X X^T. With few rows, the P of several steps are multiplied first (G ← P G P), and X once.
    In half precision every step multiplies X.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if x.dtype.itemsize < 4 or 2 * x.shape[-2] > x.shape[-1]:
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if tall else x
    for first in range(0, steps, GRAM_STEPS):
        gram = x @ x.mT
        product: Any = None
        for n_left in reversed(range(min(GRAM_STEPS, steps - first))):
            p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            p.diagonal(dim1=-2, dim2=-1).add_(a)
            product = p if product is None else p @ product
            gram = p @ gram @ p if n_left else gram
        x = product @ x
    return x.mT if tall else x


class Muon(_WideOptimizer):
    """Muon, which orthogonalises all matrices of one shape in one batch, in `dtype`.

        M ← μ M + (1−μ) G     U = (1−μ) G + μ M     W ← (1 − lr wd) W − lr sqrt(max(1, rows / columns)) NS(U)

    This is torch's Muon, with decoupled decay. With `coupled` decay, G is G + wd W and W is not shrunk, as in MLX:
    decay then only changes the direction of a step, because orthogonalising fixes its size.
    """

    moments, place = ("momentum_buffer",), 1
    usual = {"coupled": False, "dtype": torch.bfloat16}

    def _update(self, i: int, group: dict[str, Any], params: list[Tensor], states: list[dict[str, Any]]) -> None:
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        buffers = [s["momentum_buffer"] for s in states]
        g, w, m = ([_wide(x) for x in tensors] for tensors in ([p.grad for p in params], params, buffers))  # type: ignore
        if group["coupled"]:
            g = list(torch._foreach_add(g, w, alpha=decay))
        torch._foreach_lerp_(m, g, 1 - momentum)
        g = list(torch._foreach_lerp(g, m, momentum))
        if not group["coupled"]:
            torch._foreach_mul_(w, 1 - lr * decay)
        by_shape: dict[Any, list[int]] = {}
        for place, x in enumerate(w):
            by_shape.setdefault((x.shape, x.dtype, x.device), []).append(place)
        for ((rows, columns), dtype, _), places in by_shape.items():
            update = orthogonalise(torch.stack([g[k] for k in places]).to(group["dtype"])).to(dtype)
            scale = lr * math.sqrt(max(1.0, rows / columns))
            torch._foreach_add_([w[k] for k in places], list(update), alpha=-scale)
        self._store([*zip(params, w, strict=True), *zip(buffers, m, strict=True)], states[0]["step"], i)


class Optimizers(list[torch.optim.Optimizer]):
    """Several optimisers that step as one; their groups and states are concatenated."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self for group in part.param_groups]

    def step(self) -> None:
        for part in self:
            part.step()

    def zero_grad(self) -> None:
        for part in self:
            part.zero_grad()

    def _indices(self) -> Iterator[tuple[range, torch.optim.Optimizer]]:
        first = 0
        for part in self:
            indices = range(first, first + sum(len(group["params"]) for group in part.param_groups))
            yield indices, part
            first = indices.stop

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: tensors}, "param_groups"} as in torch; indices count through all parts."""
        state = {indices[i]: x for indices, part in self._indices() for i, x in part.state_dict()["state"].items()}
        return {"state": state, "param_groups": self.param_groups}

    def load_state(self, state: dict[int, dict[str, torch.Tensor]]) -> None:
        """Load `state_dict()["state"]`; rates, betas and decays stay those of the options."""
        for indices, part in self._indices():
            own_state = {i: state[index] for i, index in enumerate(indices) if index in state}
            part.load_state_dict({"state": own_state, "param_groups": part.state_dict()["param_groups"]})


def make_optimizer(model: nn.Module, training: Training) -> Optimizers:
    """Make the optimisers of all roles. `group["peak_lr"]` is a group's peak rate; AdamW's groups come first."""
    t, role = training, roles(model)
    assert t.lr is not None and t.beta2 is not None and t.clip is not None, "with_recipe fills them"
    by_muon = {"matrix", *(["kernel"] if t.muon_kernels is not False else [])} if t.optimizer == "muon" else set()

    def of(wanted: Collection[str]) -> list[nn.Parameter]:
        return [p for name, p in model.named_parameters() if role.get(name) in wanted]  # their order is a checkpoint's

    muon, hyper, remainder = of(by_muon), of({"hyper"}), of({"matrix", "kernel", "rest"} - by_muon)
    hyper_group: dict[str, Any] = {"params": hyper, "lr": t.hc_lr, "weight_decay": t.hc_decay}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in remainder if p.ndim >= 2], "weight_decay": t.weight_decay},
        {"params": [p for p in remainder if p.ndim < 2], "weight_decay": t.weight_decay * bool(t.decay_vectors)},
    ]
    if hyper and t.hc_optimizer == "adamw":
        groups.append({**hyper_group, "betas": (t.hc_beta1, t.hc_beta2)})
    seed = None if t.rounding == "nearest" else t.seed
    if seed is not None and all(p.dtype != torch.bfloat16 for p in model.parameters()):
        raise InputError("--rounding stochastic needs bf16 storage: add --param-dtype bf16")
    if seed is not None and hyper and t.hc_optimizer == "sgd":
        raise InputError("--rounding stochastic does not support --hc-optimizer sgd: use adamw, or --rounding nearest")
    adamw: dict[str, Any] = {"lr": t.lr, "betas": (t.beta1, t.beta2)}
    parts: list[torch.optim.Optimizer] = []
    if t.bias_correction is False or seed is not None:
        parts.append(AdamW(groups, **adamw, bias_correction=t.bias_correction is not False, stochastic_seed=seed))
    else:
        parts.append(torch.optim.AdamW(groups, **adamw, fused=True))
    if muon:
        options: dict[str, Any] = {"lr": t.muon_lr, "momentum": t.muon_momentum, "weight_decay": t.muon_decay}
        options |= {"coupled": t.muon_decay_mode == "coupled", "dtype": DTYPES[t.muon_dtype]}
        parts.append(Muon(muon, **options, stochastic_seed=seed))
    if hyper and t.hc_optimizer == "sgd":
        parts.append(torch.optim.SGD([hyper_group]))
    optimizer = Optimizers(parts)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def warmup_steps(steps: int, warmup: int) -> int:
    """Steps of warm-up: `warmup`, but at most a tenth of the training."""
    return min(warmup, max(1, steps // 10))


def lr_factor(step: int, steps: int, warmup: int, floor: float) -> float:
    """Learning rate at `step` (from 0) as a share of the peak: (step+1)/warmup, then a cosine from 1 to `floor`."""
    warmup = warmup_steps(steps, warmup)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_lr(optimizer: Optimizers, factor: float) -> float:
    """Set every group's rate to `factor` times its peak; returns the first group's rate."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak_lr"]
    return optimizer.param_groups[0]["lr"]
