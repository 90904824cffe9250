"""Single hyper-connections of public code as layers of ours: lucidrains/hyper-connections and wz1119/KromHC.

    made = hyper_connection(read(Path("model.pt")), "kromhc", prefix="blocks.3.hc.")
    made(X, branch)     X [B, T, N, D], as in theirs `decorate_branch(branch)` on [B · N, T, D]

hyper-connections   `HyperConnections` (HC). The package's mHC computes its coefficients stream by stream.
kromhc              `KromHC` and `MHCLite`. Its mHC ends with exact columns, the paper's and ours with exact rows.

Both mHC are refused: no layer of ours equals them. Theirs divide by the length itself, so ε is 1e-24 in a layer from
here (`HyperConnection.eps`) and 1e-5 in a model.
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
"""Of a length of 1e-12 and less, which theirs does not divide by either."""
KINDS = ("hyper-connections", "kromhc")


def hyper_connection(theirs: Mapping[str, Tensor], kind: str, prefix: str = "", **options: Any) -> HyperConnection:
    """The module of theirs whose tensors begin with `prefix`, as ours, in the dtypes it has.

    `options` are fields of the part that no tensor says, as dyn_act="none" for `HyperConnections(tanh=False)`. Raises
    `InputError` for a kind that is not read, and for tensors that are missing, too many or of another shape.
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
    made = CONNECTIONS[type(spec)](spec, d_model, 0)
    shapes = {name: x.shape for name, x in made.state_dict().items()}
    made.load_state_dict(take(_table(spec), own, shapes), assign=True)
    made.eps = EPS
    return made


def _spec(own: Mapping[str, Tensor], kind: str, n: int, options: Mapping[str, Any]) -> Hyper:
    """The part, by the names and by how many numbers choose H_res."""
    sinkhorn = "pre_branch_scale" in own and (kind == "hyper-connections" or own["static_alpha"].ndim == 2)
    if sinkhorn:
        raise InputError("these are manifold-constrained connections (mHC) of theirs, which no layer of ours equals")
    if kind == "hyper-connections":
        return HC(n=n, **options)
    krom = n >= 2 and not n & (n - 1) and own["static_alpha"].numel() == n + 2 * (n.bit_length() - 1)
    return KromHC(n=n, **options) if krom else MHCLite(n=n, **options)


def _table(spec: Hyper) -> Table:
    """Rows of a module; pre comes before res in what theirs holds in one tensor, on the last axis."""
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
        return x[0] + 1  # stored less 1

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
    """For every permutation in the order of `itertools` the place of its inverse: theirs mix by the transposed."""
    orders = list(itertools.permutations(range(n)))
    place = {order: i for i, order in enumerate(orders)}
    return [place[tuple(sorted(range(n), key=order.__getitem__))] for order in orders]
