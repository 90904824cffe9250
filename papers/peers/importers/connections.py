"""Converts single hyper-connections of lucidrains/hyper-connections, wz1119/KromHC and DeepSeek-V4 to our layers.

    layer = hyper_connection(read(Path("model.pt")), "kromhc", prefix="blocks.3.hc.")
    layer(X, branch)    X [B, T, N, D]; in their code `decorate_branch(branch)` on [B · N, T, D]

hyper-connections   `HyperConnections` (HC). The package's mHC computes its coefficients stream by stream.
kromhc              `KromHC` and `MHCLite`. Its mHC ends with exact columns, the paper's and ours with exact rows.
deepseek-v4         mHC of DeepSeek-V4 and GLM-5 in the transformers library (`attn_hc`, `ffn_hc`), with its defaults of
                    hc_sinkhorn_iters and hc_eps (options iterations and eps). H_res is its `comb`, transposed.

Both other mHC are refused, because none of our layers equals them. Norms of the first two kinds divide by the length
itself, so ε is 1e-24 in such a layer (`HyperConnection.eps`), and 1e-5 in a model; DeepSeek-V4's is 1e-6.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.models.config import HC, MHC, Hyper, KromHC, MHCLite
from streamscope.models.interop.tables import TRANSPOSED, WHOLE, Conversion, Table, take
from streamscope.models.layers.hyper_mixing import CONNECTIONS, HyperConnection

EPS = 1e-24
"""ε for lengths up to 1e-12, by which their code does not divide either."""
DEEPSEEK_EPS = 1e-6
NAMES = {
    "hyper-connections": ("static_beta", "norm.gamma", "static_alpha"),
    "kromhc": ("static_beta", "norm.gamma", "static_alpha"), "deepseek-v4": ("base", "fn", "scale"),
}  # fmt: skip
"""Tensors of every module of a kind."""


def hyper_connection(tensors: Mapping[str, Tensor], kind: str, prefix: str = "", **options: Any) -> HyperConnection:
    """Convert the module whose tensors begin with `prefix`, keeping its dtypes.

    `options` are fields that the tensors do not determine, such as dyn_act="none" for `HyperConnections(tanh=False)`.
    Raises `InputError` for an unsupported kind, and for missing, additional or differently shaped tensors.
    """
    if kind not in NAMES:
        raise unknown("kind of hyper-connection", kind, list(NAMES))
    weights = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    for name in NAMES[kind]:
        if name not in weights:
            raise InputError(f"{prefix}{name} is missing; is it a module of {kind}?")
    deepseek = kind == "deepseek-v4"
    if deepseek:
        n, width = math.isqrt(weights["base"].numel() + 1) - 1, weights["fn"].shape[-1]  # (n + 2) n biases
        spec: Hyper = MHC(n=n, **{"iterations": 20, "eps": DEEPSEEK_EPS, **options})
    else:
        n, width = weights["static_beta"].numel(), weights["norm.gamma"].numel()
        spec = _spec(weights, kind, n, options)
    d_model = width if isinstance(spec, HC) else width // n
    layer = CONNECTIONS[type(spec)](spec, d_model, 0)
    shapes = {name: x.shape for name, x in layer.state_dict().items()}
    table = _deepseek(n) if deepseek else _table(spec)
    layer.load_state_dict(take(table, weights, weights.__getitem__, shapes), assign=True)
    layer.eps = DEEPSEEK_EPS if deepseek else EPS
    return layer


def _deepseek(n: int) -> Table:
    """Rows of a module of DeepSeek-V4: pre, post and comb (transposed) one below the other, and no γ."""

    def part(start: int) -> Conversion:
        if start < 2 * n:
            return Conversion(lambda x, shape: x[0][start : start + n])
        return Conversion(lambda x, shape: x[0][start:].unflatten(0, (n, n)).transpose(0, 1).reshape(shape))

    def scale(i: int) -> Conversion:
        return Conversion(lambda x, shape: x[0][i])

    table: dict[str, tuple[str, Conversion]] = {
        "norm_weight": ("fn", Conversion(lambda x, shape: torch.ones(shape, dtype=x[0].dtype)))
    }
    for i, name in enumerate(("pre", "post", "res")):
        table |= {f"W.{name}": ("fn", part(i * n)), f"b.{name}": ("base", part(i * n))}
        table |= {f"alpha.{name}": ("scale", scale(i))}
    return table


def _spec(weights: Mapping[str, Tensor], kind: str, n: int, options: Mapping[str, Any]) -> Hyper:
    """The part, from the names and the number of logits of H_res."""
    sinkhorn = "pre_branch_scale" in weights and (kind == "hyper-connections" or weights["static_alpha"].ndim == 2)
    if sinkhorn:
        raise InputError("these are manifold-constrained connections (mHC), which none of our layers equals")
    if kind == "hyper-connections":
        return HC(n=n, **options)
    krom = n >= 2 and not n & (n - 1) and weights["static_alpha"].numel() == n + 2 * (n.bit_length() - 1)
    return KromHC(n=n, **options) if krom else MHCLite(n=n, **options)


def _table(spec: Hyper) -> Table:
    """Rows of a module; their tensors hold pre before res on the last axis."""
    hc = isinstance(spec, HC)
    p = 1 if hc else spec.n
    order = slice(None) if not isinstance(spec, MHCLite) else _inverses(spec.n)
    shaped = Conversion(lambda x, shape: x[0].reshape(shape))
    table = {
        "norm_weight": ("norm.gamma", Conversion(lambda x, shape: x[0] + 1)),  # stored minus 1
        "b.pre": ("static_alpha", Conversion(lambda x, shape: x[0][..., :p].reshape(shape))),
        "b.res": ("static_alpha", Conversion(lambda x, shape: x[0][..., p:].reshape(shape)[..., order])),
        "b.post": ("static_beta", WHOLE),
        "W.pre": ("dynamic_alpha_fn", Conversion(lambda x, shape: x[0][..., :p].mT)),
        "W.res": ("dynamic_alpha_fn", Conversion(lambda x, shape: x[0][..., p:].mT.reshape(shape)[order])),
        "W.post": ("dynamic_beta_fn", shaped if hc else TRANSPOSED),
    }
    if hc:
        return table | {"alpha.pre": ("dynamic_alpha_scale", WHOLE), "alpha.post": ("dynamic_beta_scale", WHOLE)}
    return table | {
        "alpha.pre": ("pre_branch_scale", shaped), "alpha.res": ("residual_scale", shaped),
        "alpha.post": ("h_post_scale", WHOLE),
    }  # fmt: skip


def _inverses(n: int) -> list[int]:
    """The index of every permutation's inverse, in the order of `itertools`; their code mixes by the transpose."""
    orders = list(itertools.permutations(range(n)))
    place = {order: i for i, order in enumerate(orders)}
    return [place[tuple(sorted(range(n), key=order.__getitem__))] for order in orders]
