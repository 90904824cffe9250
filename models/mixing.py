"""Measures a model's mixing matrices, for the training log and for `probes.mixing_monitor`.

One row per module, metric and part ("factor 0", "head 3"; "" where a module has one value), in the model's order:

    {"module": "blocks.0.attn_hc", "metric": "swap_static", "part": "factor 0", "value": 0.1192}

A value that does not exist is None, with the reason under "undefined". Hyper-connections, head gates and Kronecker
projections have rows; a model without any has none. METRICS has the formulas.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from streamscope.models import config as c
from streamscope.models.hooks import capture
from streamscope.models.layers.gate import HeadGate
from streamscope.models.layers.hyper_mixing import HyperConnection
from streamscope.models.layers.projections import MixedProjection

METRICS = {
    "distance_static": "‖H_res − I‖_F with the biases alone (SPEC §1.5)",
    "distance_dynamic": "mean over tokens of ‖H_res − I‖_F",
    "sigma2_static": "second singular value of H_res with the biases alone; 1 keeps a difference of streams, 0 ends it",
    "sigma2_dynamic": "mean over tokens of the second singular value of H_res",
    "swap_static": "s_k = softmax(b_res^k)_1, probability of the swap in factor k (SPEC §1.4)",
    "swap_dynamic": "mean over tokens of s_k",
    "swap_best": "σ(−(g_k − 2|α_res|)), g_k = b_res,0^k − b_res,1^k: the largest s_k that a token can have (SPEC §1.5)",
    "alpha_res": "α_res, scale of the dynamic term",
    "gradient": "‖∂L/∂b_res‖_2 (Σ over tokens of the gradients of the logits), L the training loss, nats per token",
    "gate_mean": "mean over tokens (and channels) of the gate g of a head",
    "gate_sd": "standard deviation of g over tokens (and channels)",
    "gate_low": "share of g below 0.1",
    "routing_norm": "‖W − diag W‖_F of a Kronecker matrix W [H to, H from]",
    "routing_share": "‖W − diag W‖_F² / ‖W‖_F², the share between different heads; (H−1)/H if all cells are equal",
}
UNITS = {"gradient": "nats per token", "alpha_res": "logits", "routing_norm": "weight"}
LOW_GATE = 0.1
NO_MIXING = 0.05
"""‖H_res − I‖_F below which a module does not mix: a swap of 1 % in both of two factors."""
PARTS = ("attn", "mlp")
"""The branches of a layer, in their order."""
Row = dict[str, Any]


class PlacedConnection(NamedTuple):
    """A hyper-connection by its layer and the branch that it stands around."""

    layer: int
    part: str

    @classmethod
    def from_path(cls, path: str) -> "PlacedConnection":
        """The connection with this name in the model, such as blocks.2.attn_hc."""
        _, layer, name = path.split(".")
        return cls(int(layer), name.removesuffix("_hc"))

    @property
    def label(self) -> str:
        return f"L{self.layer}.{self.part}"

    @property
    def number(self) -> int:
        """Index in the order of writing, from 0."""
        return len(PARTS) * self.layer + PARTS.index(self.part)

    @property
    def path(self) -> str:
        return f"blocks.{self.layer}.{self.part}_hc"

    @property
    def entry(self) -> str:
        """Hook of the streams that enter it."""
        return f"blocks.{self.layer}.hook_streams_{'pre' if self.part == 'attn' else 'mid'}"

    @property
    def exit(self) -> str:
        """Hook of the streams that leave it."""
        return f"blocks.{self.layer}.hook_streams_{'mid' if self.part == 'attn' else 'post'}"


def connections(model: nn.Module) -> dict[str, HyperConnection]:
    return {name: m for name, m in model.named_modules() if isinstance(m, HyperConnection)}


def gates(model: nn.Module) -> dict[str, HeadGate]:
    return {name: m for name, m in model.named_modules() if isinstance(m, HeadGate)}


def routing(model: nn.Module) -> dict[str, Float[Tensor, "H H"]]:
    """The Kronecker matrices W [H to, H from] by the name of their projection, detached."""
    projections = ((name, m) for name, m in model.named_modules() if isinstance(m, MixedProjection))
    return {name: m.weight.detach() for name, m in projections if m.sums_channels}


def inert_modules(model: nn.Module) -> dict[str, str]:
    """{name: reason} of the hyper-connections whose mixing cannot change any output: H_res = I, and `unseen`."""
    fixed = {name: "H_res = I by construction" for name, m in connections(model).items() if "res" not in m.b}
    return unseen(model) | fixed


def unseen(model: nn.Module) -> dict[str, str]:
    """{name: reason} of the hyper-connections where every doubly stochastic H_res gives the same output.

    Mixing changes neither equal streams nor the sum of streams. So it has no effect in the first module, nor in the
    last one unless its H_post depends on the mixed streams.
    """
    modules = connections(model)
    reasons = {}
    for i, (name, module) in enumerate(modules.items()):
        exact = "res" not in module.b or isinstance(module.spec, c.MHCLite | c.KromHC)
        if i == 0 and (exact or isinstance(module.spec, c.Stochastic)):
            reasons[name] = "its streams are equal: mixing changes nothing"
        elif i == len(modules) - 1 and exact and not (module.spec.post_input == "mixed" and module.spec.dynamic):
            reasons[name] = "only the sum of its streams is read: mixing changes nothing"
    return reasons


def has_mixing(model: nn.Module) -> bool:
    """Whether `measure` returns any row."""
    return bool(connections(model) or gates(model) or routing(model))


def distance(H: Float[Tensor, "*B N N"]) -> Float[Tensor, "*B"]:
    """The distance ‖H − I‖_F."""
    return (H - torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)).flatten(-2).norm(dim=-1)


def sigma2(H: Float[Tensor, "*B N N"]) -> Float[Tensor, "*B"]:
    """The second singular value, N ≥ 2; the first one of a doubly stochastic H is 1, for equal streams."""
    return torch.linalg.svdvals(H)[..., 1]


def factor_swaps(H: Float[Tensor, "*B N N"]) -> Float[Tensor, "*B K"]:
    """s_k of H = U_1 ⊗ … ⊗ U_K: Σ_j H_0j over j whose k-th of K bits is 1; the first factor is the highest bit."""
    n = H.shape[-1]
    bits = n.bit_length() - 1
    j = torch.arange(n, device=H.device)
    mask = torch.stack([(j >> (bits - 1 - k)) & 1 for k in range(bits)], -1)
    return H[..., 0, :] @ mask.to(H.dtype)


def best_swap(gap: Float[Tensor, " K"], alpha: float) -> Float[Tensor, " K"]:
    """The largest possible swap, σ(−(g − 2|α|)): a tanh moves each of the two logits by at most |α| (SPEC §1.5)."""
    return (2 * abs(alpha) - gap).sigmoid()


def measure(
    model: Any, tokens: Int[Tensor, "B T"] | None = None, targets: Int[Tensor, "B T"] | None = None
) -> list[Row]:
    """Compute every metric of every module. Dynamic ones and gates need `tokens`, gradients also `targets`.

    The model keeps its mode (use eval to switch dropout off) and the `.grad` of its parameters.
    """
    modules, without = connections(model), inert_modules(model)
    gate_hooks = {name: f"{name.removesuffix('gate')}hook_gate" for name in gates(model)}
    hooks = [*(f"{name}.hook_res" for name in modules), *gate_hooks.values()]
    captured, gradients = _capture(model, modules, hooks, tokens, targets)
    rows: list[Row] = []
    with torch.no_grad():
        for name, module in modules.items():
            rows += _connection(name, module, captured.get(f"{name}.hook_res"))
            if targets is not None:
                grad = gradients.get(name)
                reason = without.get(name, "the loss does not depend on it" if grad is None else "")
                norm = None if reason or grad is None else grad.float().norm()
                rows.append(_row(name, "gradient", norm, reason=reason))
        for name, hook in gate_hooks.items():
            if hook in captured:
                rows += _gate(name, captured[hook])
        for name, W in routing(model).items():
            W = W.float()
            off, norm = (W - W.diag().diag()).norm(), W.norm()
            share, reason = ((off / norm) ** 2, "") if norm > 0 else (None, "W is zero")
            rows += [_row(name, "routing_norm", off), _row(name, "routing_share", share, reason=reason)]
    return rows


def _capture(
    model: Any, modules: dict[str, HyperConnection], names: list[str], tokens: Tensor | None, targets: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(activations by hook, gradients of b_res by module) of one pass."""
    if tokens is None or not names:
        return {}, {}
    free = {name: m.b["res"] for name, m in modules.items() if "res" in m.b}
    with_gradients = targets is not None and bool(free)
    with torch.set_grad_enabled(with_gradients), capture(model, names) as captured:
        if not with_gradients:
            model(tokens, logits_at=torch.zeros(len(tokens), 1, dtype=torch.long, device=tokens.device))
            return dict(captured), {}
        loss, _ = model.loss(tokens, targets)
        grads = torch.autograd.grad(loss, list(free.values()), allow_unused=True)
    return dict(captured), {name: g for name, g in zip(free, grads, strict=True) if g is not None}


def _row(module: str, metric: str, value: Any, part: str = "", reason: str = "") -> Row:
    number = None if value is None else float(value)
    if number is not None and not math.isfinite(number):
        number, reason = None, "not finite"
    row = {"module": module, "metric": metric, "part": part, "value": number}
    return row | ({"undefined": reason} if reason else {})


def _connection(name: str, module: HyperConnection, captured: Tensor | None) -> Iterator[Row]:
    if "res" not in module.b:
        for metric in ("distance_static", "sigma2_static", "swap_static"):
            yield _row(name, metric, None, reason="H_res = I by construction")
        return
    H = module.H_res(None)
    matrices = {"static": H} if captured is None else {"static": H, "dynamic": captured.to(H.dtype)}
    for kind, matrix in matrices.items():
        yield _row(name, f"distance_{kind}", distance(matrix).mean())
        single = module.spec.n == 1
        second = None if single else sigma2(matrix).mean()
        yield _row(name, f"sigma2_{kind}", second, reason="one stream" if single else "")
        if isinstance(module.spec, c.KromHC):
            swaps = factor_swaps(matrix).reshape(-1, module.spec.factors).mean(0)
            yield from (_row(name, f"swap_{kind}", s, f"factor {k}") for k, s in enumerate(swaps))
        elif kind == "static":
            yield _row(name, "swap_static", None, reason="H_res is not a product of 2 x 2 factors")
    scale = module.scale_of["res"]
    alpha = float(module.alpha[scale]) if scale in module.alpha else 0.0
    reason = "" if scale in module.alpha else "static coefficients: there is no dynamic term"
    yield _row(name, "alpha_res", None if reason else alpha, reason=reason)
    if isinstance(module.spec, c.KromHC):
        gaps = module.logits("res", None)
        free = module.spec.dynamic and module.spec.dyn_act != "tanh"
        for k, best in enumerate(best_swap(gaps[:, 0] - gaps[:, 1], alpha)):
            unbounded = "no tanh bounds the dynamic term" if free else ""
            yield _row(name, "swap_best", None if free else best, f"factor {k}", unbounded)


def _gate(name: str, g: Tensor) -> Iterator[Row]:
    heads = g.float().movedim(2, 0).flatten(1)  # [H, tokens x channels]
    statistics = {
        "gate_mean": [x.mean() for x in heads],
        "gate_sd": [x.std(correction=0) for x in heads],
        "gate_low": [(x < LOW_GATE).float().mean() for x in heads],
    }
    for metric, values in statistics.items():
        yield from (_row(name, metric, value, f"head {h}") for h, value in enumerate(values))


def no_mixing_message(rows: list[Row], without: Collection[str]) -> str:
    """One line if the streams do not mix, else "". `without` are modules without an effect (`inert_modules`).

    Streams do not mix if, in every module that can act, ‖H_res − I‖_F is below `NO_MIXING`, with the biases alone and,
    if measured, in the mean over tokens.
    """
    kinds = ("distance_static", "distance_dynamic")
    active = [r for r in rows if r["module"] not in without and r["value"] is not None]
    distances = {k: [r["value"] for r in active if r["metric"] == k] for k in kinds}
    if not distances["distance_static"] or any(x >= NO_MIXING for values in distances.values() for x in values):
        return ""
    best = [r["value"] for r in active if r["metric"] == "swap_best"]
    reach = f"; the largest swap that any token could have is {100 * max(best):.2f} %" if best else ""
    largest = max(max(values, default=0.0) for values in distances.values())
    return (
        f"streams are not mixing: ‖H_res − I‖ is at most {largest:.4f} in all "
        f"{len(distances['distance_static'])} modules whose mixing can act (mixing starts at {NO_MIXING}){reach}"
    )
