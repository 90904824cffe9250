"""Optimisers by the role of a parameter, linear warm-up and a cosine to a floor for each group's own peak rate.

hyper       everything inside a hyper-connection       AdamW or SGD with rates of its own
matrix      two axes, not a table of tokens or positions   Muon where chosen, else AdamW
kernel      Canon's, [channels, k]                     as a matrix where `muon_kernels` is on, else AdamW
rest        tables, vectors, tensors of more axes      AdamW, decay on two or more axes

The classes here compute in fp32 whatever is stored, and round once, when parameters and moments are stored again. MLX,
whose recipes the options follow, rounds after every operation.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from streamscope.cli.errors import InputError
from streamscope.models.decoder import Embedding
from streamscope.models.layers.canon import CanonLayer
from streamscope.models.layers.hyper_mixing import DTYPES, HyperConnection
from streamscope.models.layers.positions import PositionTable
from streamscope.models.training.config import Training


def decays(name: str, p: nn.Parameter) -> bool:
    """Weight decay applies to tensors with two or more axes: not to biases, γ and β."""
    return p.ndim >= 2


def roles(model: nn.Module) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """{"hyper", "matrix", "kernel", "rest"}: the trainable parameters with their names; each is in one list."""
    kinds = {HyperConnection: "hyper", CanonLayer: "kernel", Embedding: "rest", PositionTable: "rest"}
    inside = {
        id(p): role
        for module in model.modules()
        for kind, role in kinds.items()
        if isinstance(module, kind)
        for p in module.parameters()
    }
    found: dict[str, list[tuple[str, nn.Parameter]]] = {"hyper": [], "matrix": [], "kernel": [], "rest": []}
    for name, p in model.named_parameters():
        if p.requires_grad:
            found[inside.get(id(p), "matrix" if p.ndim == 2 else "rest")].append((name, p))
    return found


def store_parameters(model: nn.Module, training: Training) -> None:
    """Keep the parameters in `training.param_dtype`; those of hyper-connections in their own `residual.hc_dtype`.

    Before the optimiser is made: gradients and moments have the dtype of their parameter.
    """
    by_role = roles(model)
    for _, p in by_role["matrix"] + by_role["kernel"] + by_role["rest"]:
        p.data = p.data.to(DTYPES[training.param_dtype or "fp32"])


# ---- the optimisers that torch lacks -----------------------------------------------------------


def _wide(t: Tensor) -> Tensor:
    """In fp32 at least; the tensor itself where it is."""
    return t.detach().to(torch.promote_types(t.dtype, torch.float32))


def round_stochastically(x: Tensor, generator: torch.Generator) -> Tensor:
    """fp32 -> bf16, up or down with the probability that makes the expectation x.

    A bf16 number is the upper half of an fp32 one: a uniform number of 16 bits is added, the lower half cut off.
    """
    noise = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    return ((x.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)


class _Stored(torch.optim.Optimizer):
    """Base: state made on first use, and the way back from fp32 to what is stored.

    With `stochastic_seed` what is stored in bf16 is rounded stochastically, by numbers that depend on seed, step and
    group alone: a resumed run and every rank of a distributed one draw the same.
    """

    moments: tuple[str, ...]
    place: int
    """Keeps the random numbers of one class apart from another's."""

    def __init__(self, params: Any, defaults: dict[str, Any], stochastic_seed: int | None) -> None:
        super().__init__(params, defaults)
        self.seed = stochastic_seed

    def _state(self, p: Tensor) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state["step"] = 0.0  # a number: reading a tensor would wait for the device
            state.update({name: torch.zeros_like(p) for name in self.moments})
        state["step"] = float(state["step"]) + 1  # a checkpoint gives it back as a tensor
        return state

    def _store(self, pairs: Iterable[tuple[Tensor, Tensor]], step: float, group: int) -> None:
        """Copy each (target, fp32 value) that is not one tensor."""
        generator = None
        for target, value in pairs:
            if target.data_ptr() == value.data_ptr():
                continue
            if self.seed is not None and target.dtype == torch.bfloat16:
                if generator is None:
                    key = hash((self.seed, self.place, group, int(step)))  # integers: the same in every process
                    generator = torch.Generator(target.device).manual_seed(key)
                value = round_stochastically(value, generator)
            target.copy_(value)


class AdamW(_Stored):
    """AdamW (arXiv 1711.05101) with the bias correction optional; MLX's default is without.

        m ← β1 m + (1−β1) g     v ← β2 v + (1−β2) g²     W ← (1 − lr wd) W − lr (m / c1) / (sqrt(v / c2) + eps)

    c1 = 1 − β1^t and c2 = 1 − β2^t, or both 1: first moves are then (1−β1) / sqrt(1−β2) times a corrected one's, 3.2
    times at .9 and .999. Where neither this nor stochastic rounding is asked for, torch's fused AdamW is used.
    """

    moments, place = ("exp_avg", "exp_avg_sq"), 0

    def __init__(
        self, params: Any, *, lr: float, betas: tuple[float, float], bias_correction: bool = True, eps: float = 1e-8,
        weight_decay: float = 0.0, stochastic_seed: int | None = None,
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "bias_correction": bias_correction}, stochastic_seed)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every group."""
        for i, group in enumerate(self.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states = [self._state(p) for p in params]
            t, lr, (beta1, beta2) = states[0]["step"], group["lr"], group["betas"]
            ms, vs = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
            g = [_wide(p.grad) for p in params]
            w, m, v = ([_wide(x) for x in some] for some in (params, ms, vs))  # themselves where they are fp32
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
"""Steps of `orthogonalise` that wide matrices take in their Gram matrix. In fp32 the result is as near to the truth as
by single steps; more of them lose digits of the small singular values."""


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """Newton–Schulz towards U V^T of each matrix of a stack [n, rows, columns], in x's dtype (Muon's quintic).

    Singular values end between about .7 and 1.2. The coefficients are those of Keller Jordan's Muon. A step is
    X ← P X, P = a I + b G + c G², G = X X^T: where rows are few, several steps multiply their P, with G ← P G P, and X
    is multiplied once. In half precision every step multiplies X.
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
        for left in reversed(range(min(GRAM_STEPS, steps - first))):
            p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            p.diagonal(dim1=-2, dim2=-1).add_(a)
            product = p if product is None else p @ product
            gram = p @ gram @ p if left else gram
        x = product @ x
    return x.mT if tall else x


class Muon(_Stored):
    """Muon; the matrices of one shape are orthogonalised together, in `dtype`.

        M ← μ M + (1−μ) G     U = (1−μ) G + μ M     W ← (1 − lr wd) W − lr sqrt(max(1, rows / columns)) NS(U)

    So far torch's, with decoupled decay. With `coupled` decay G is G + wd W and W is not shrunk, as in MLX: decay then
    only turns the direction of a step whose size orthogonalising fixes.
    """

    moments, place = ("momentum_buffer",), 1

    def __init__(
        self, params: Any, *, lr: float, momentum: float, weight_decay: float, coupled: bool = False,
        dtype: torch.dtype = torch.bfloat16, stochastic_seed: int | None = None,
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "coupled": coupled, "dtype": dtype}
        super().__init__(params, defaults, stochastic_seed)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every group."""
        for i, group in enumerate(self.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states, lr, momentum = [self._state(p) for p in params], group["lr"], group["momentum"]
            buffers, decay = [s["momentum_buffer"] for s in states], group["weight_decay"]
            g, w, m = ([_wide(x) for x in some] for some in ([p.grad for p in params], params, buffers))
            if group["coupled"]:
                g = list(torch._foreach_add(g, w, alpha=decay))
            torch._foreach_lerp_(m, g, 1 - momentum)
            g = list(torch._foreach_lerp(g, m, momentum))
            if not group["coupled"]:
                torch._foreach_mul_(w, 1 - lr * decay)
            alike: dict[Any, list[int]] = {}
            for place, x in enumerate(w):
                alike.setdefault((x.shape, x.dtype, x.device), []).append(place)
            for ((rows, columns), dtype, _), places in alike.items():
                update = orthogonalise(torch.stack([g[k] for k in places]).to(group["dtype"])).to(dtype)
                scale = lr * math.sqrt(max(1.0, rows / columns))
                torch._foreach_add_([w[k] for k in places], list(update), alpha=-scale)
            self._store([*zip(params, w, strict=True), *zip(buffers, m, strict=True)], states[0]["step"], i)


# ---- all of them as one ------------------------------------------------------------------------


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
    assert t.lr is not None and t.beta2 is not None and t.clip is not None, "with_recipe fills them"
    order = {id(p): i for i, p in enumerate(model.parameters())}
    matrices = by_role["matrix"] + (by_role["kernel"] if t.muon_kernels is not False else [])
    rest = by_role["rest"] + (by_role["kernel"] if t.muon_kernels is False else [])
    muon = matrices if t.optimizer == "muon" else []
    rest += [] if muon else matrices
    muon.sort(key=lambda named: order[id(named[1])])
    rest.sort(key=lambda named: order[id(named[1])])  # a checkpoint knows parameters by their place
    hyper = {"params": [p for _, p in by_role["hyper"]], "lr": t.hc_lr, "weight_decay": t.hc_decay}
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in rest if decays(n, p)], "weight_decay": t.weight_decay},
        {
            "params": [p for n, p in rest if not decays(n, p)],
            "weight_decay": t.weight_decay if t.decay_vectors else 0.0,
        },
    ]
    if by_role["hyper"] and t.hc_optimizer == "adamw":
        groups.append({**hyper, "betas": (t.hc_beta1, t.hc_beta2)})
    seed = _rounding_seed(model, training, bool(by_role["hyper"]))
    adamw: dict[str, Any] = {"lr": t.lr, "betas": (t.beta1, t.beta2)}
    parts: list[torch.optim.Optimizer] = []
    if t.bias_correction is False or seed is not None:
        parts.append(AdamW(groups, **adamw, bias_correction=t.bias_correction is not False, stochastic_seed=seed))
    else:
        parts.append(torch.optim.AdamW(groups, **adamw, fused=True))
    if muon:
        how: dict[str, Any] = {"lr": t.muon_lr, "momentum": t.muon_momentum, "weight_decay": t.muon_decay}
        how |= {"coupled": t.muon_decay_mode == "coupled", "dtype": DTYPES[t.muon_dtype]}
        parts.append(Muon([p for _, p in muon], **how, stochastic_seed=seed))
    if by_role["hyper"] and t.hc_optimizer == "sgd":
        parts.append(torch.optim.SGD([hyper]))
    optimizer = Optimizers(parts)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def _rounding_seed(model: nn.Module, training: Training, hyper: bool) -> int | None:
    """The seed of stochastic rounding, None without it. Raises `InputError` where it would round nothing."""
    if training.rounding == "nearest":
        return None
    if all(p.dtype != torch.bfloat16 for p in model.parameters()):
        raise InputError("--rounding stochastic rounds what is stored in bf16, and nothing is: add --param-dtype bf16")
    if hyper and training.hc_optimizer == "sgd":
        raise InputError("--rounding stochastic is not made for --hc-optimizer sgd: use adamw, or --rounding nearest")
    return training.seed


def warmup_steps(steps: int, warmup: int) -> int:
    """Steps of warm-up: those asked for, of a short training a tenth of its steps."""
    return min(warmup, max(1, steps // 10))


def lr_factor(step: int, steps: int, warmup: int, floor: float) -> float:
    """Share of the peak rate at `step` (from 0): (step+1)/warmup, then a cosine from 1 to `floor`."""
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
