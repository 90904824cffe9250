"""Converts single hyper-connections of lucidrains/hyper-connections and wz1119/KromHC to our layers.

    layer = hyper_connection(read(Path("model.pt")), "kromhc", prefix="blocks.3.hc.")
    layer(X, branch)    X [B, T, N, D]; in their code `decorate_branch(branch)` on [B · N, T, D]

hyper-connections   `HyperConnections` (HC). The package's mHC computes its coefficients stream by stream.
kromhc              `KromHC` and `MHCLite`. Its mHC ends with exact columns, the paper's and ours with exact rows.

Both mHC are refused, because none of our layers equals them. Their norms divide by the length itself, so ε is 1e-24 in
such a layer (`HyperConnection.eps`), and 1e-5 in a model.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.models.config import HC, Hyper, KromHC, MHCLite
from streamscope.models.interop.importers.tensors import Table, take, transposed, whole
from streamscope.models.layers.hyper_mixing import CONNECTIONS, HyperConnection

EPS = 1e-24
"""ε for lengths up to 1e-12, by which their code does not divide either."""
KINDS = ("hyper-connections", "kromhc")


def hyper_connection(theirs: Mapping[str, Tensor], kind: str, prefix: str = "", **options: Any) -> HyperConnection:
    """Convert the module whose tensors begin with `prefix`, keeping its dtypes.

    `options` are fields that the tensors do not determine, such as dyn_act="none" for `HyperConnections(tanh=False)`.
    Raises `InputError` for an unsupported kind, and for missing, additional or differently shaped tensors.
    """
    if kind not in KINDS:
        raise unknown("kind of hyper-connection", kind, list(KINDS))
    own = {name.removeprefix(prefix): x for name, x in theirs.items() if name.startswith(prefix)}
    for name in ("static_beta", "norm.gamma", "static_alpha"):
        if name not in own:
            raise InputError(f"{prefix}{name} is missing; is it a module of {kind}?")
    n, width = own["static_beta"].numel(), own["norm.gamma"].numel()
    spec = _spec(own, kind, n, options)
    d_model = width if isinstance(spec, HC) else width // n
    layer = CONNECTIONS[type(spec)](spec, d_model, 0)
    shapes = {name: x.shape for name, x in layer.state_dict().items()}
    layer.load_state_dict(take(_table(spec), own, shapes), assign=True)
    layer.eps = EPS
    return layer


def _spec(own: Mapping[str, Tensor], kind: str, n: int, options: Mapping[str, Any]) -> Hyper:
    """The part, from the names and the number of logits of H_res."""
    sinkhorn = "pre_branch_scale" in own and (kind == "hyper-connections" or own["static_alpha"].ndim == 2)
    if sinkhorn:
        raise InputError("these are manifold-constrained connections (mHC), which none of our layers equals")
    if kind == "hyper-connections":
        return HC(n=n, **options)
    krom = n >= 2 and not n & (n - 1) and own["static_alpha"].numel() == n + 2 * (n.bit_length() - 1)
    return KromHC(n=n, **options) if krom else MHCLite(n=n, **options)


def _table(spec: Hyper) -> Table:
    """Rows of a module; their tensors hold pre before res on the last axis."""
    p = 1 if isinstance(spec, HC) else spec.n
    order = slice(None) if not isinstance(spec, MHCLite) else _inverses(spec.n)

    def pre(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return x[0][..., :p].reshape(shape)

    def res(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return x[0][..., p:].reshape(shape)[..., order]

    def pre_maps(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return x[0][..., :p].mT

    def res_maps(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return x[0][..., p:].mT.reshape(shape)[order]

    def gamma(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return x[0] + 1  # stored minus 1

    def shaped(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return x[0].reshape(shape)

    alphas = (
        [("alpha.pre", "dynamic_alpha_scale", whole), ("alpha.post", "dynamic_beta_scale", whole)]
        if isinstance(spec, HC)
        else [("alpha.pre", "pre_branch_scale", shaped), ("alpha.res", "residual_scale", shaped),
              ("alpha.post", "h_post_scale", whole)]
    )  # fmt: skip
    return [
        ("norm_weight", "norm.gamma", gamma),
        ("b.pre", "static_alpha", pre),
        ("b.res", "static_alpha", res),
        ("b.post", "static_beta", whole),
        ("W.pre", "dynamic_alpha_fn", pre_maps),
        ("W.res", "dynamic_alpha_fn", res_maps),
        ("W.post", "dynamic_beta_fn", shaped if isinstance(spec, HC) else transposed),
        *alphas,
    ]


def _inverses(n: int) -> list[int]:
    """The index of every permutation's inverse, in the order of `itertools`; their code mixes by the transpose."""
    orders = list(itertools.permutations(range(n)))
    place = {order: i for i, order in enumerate(orders)}
    return [place[tuple(sorted(range(n), key=order.__getitem__))] for order in orders]
