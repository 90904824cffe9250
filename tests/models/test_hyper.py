"""Hyper-connections against SPEC's formulas, one token at a time in NumPy, in float64 to 1e-10."""

import itertools
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import expit, softmax
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.layers.hyper_mixing import CONNECTIONS, EPS, HyperConnection, rms_product, spread
from streamscope.models.make import build
from tests.tiny import assert_gradients

KINDS = {"hc": c.HC, "mhc": c.MHC, "mhc_lite": c.MHCLite, "kromhc": c.KromHC}
D, TIGHT = 6, dict(rtol=0, atol=1e-10)


def connection(spec: c.Hyper, module: int = 1, std: float = 1.0) -> HyperConnection:
    made = CONNECTIONS[type(spec)](spec, D, module).double()
    generator = torch.Generator().manual_seed(3)
    made.init_weights(0.02, generator)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(std * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return made


def streams(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, 3, n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MIXED = {"post_input": "mixed", "dyn_act": "tanh"}
CASES: list[tuple[str, dict[str, Any]]] = [
    (kind, {"n": 4, **options})
    for kind in KINDS
    for options in ({}, {"dynamic": False}, MIXED, {"dyn_act": "none"}, {"freeze_res": True})
]
CASES += [("kromhc", {"n": 2}), ("kromhc", {"n": 8}), ("mhc", {"n": 3, "iterations": 2}), ("mhc_lite", {"n": 3})]
CASES += [("hc", {"n": 1}), ("hc", {"norm": "layer"}), ("mhc", {"n": 1})]


def sinkhorn(z: np.ndarray, iterations: int) -> np.ndarray:
    m = np.exp(z)
    for _ in range(iterations):
        m = m / m.sum(0)
        m = m / m.sum(1, keepdims=True)
    return m


def dynamic(made: HyperConnection, name: str, x: np.ndarray, scale: str) -> np.ndarray | float:
    """α · act(x W); 0 in a static module."""
    if not made.spec.dynamic:
        return 0.0
    y = made.W[name].detach().numpy() @ x
    return float(made.alpha[scale]) * (np.tanh(y) if made.spec.dyn_act == "tanh" else y)


def rms(made: HyperConnection, x: np.ndarray) -> np.ndarray:
    if not made.spec.dynamic:
        return x
    return x / np.sqrt((x**2).mean() + 1e-5) * made.norm_weight.detach().numpy()


def read_stochastic(made: HyperConnection, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(H_pre, H_post, H_res) of one token's streams X [N, D]: SPEC §1.4, §2.1, §2.3, §2.4."""
    spec, n, b = made.spec, made.spec.n, {k: v.detach().numpy() for k, v in made.b.items()}
    x = rms(made, X.ravel())
    pre, post = (expit(dynamic(made, name, x, name) + b[name]) for name in ("pre", "post"))
    if spec.freeze_res:
        return pre, 2 * post, np.eye(n)
    z = dynamic(made, "res", x, "res") + b["res"].ravel()
    if isinstance(spec, c.KromHC):
        swaps = [softmax(pair) for pair in z.reshape(spec.factors, 2)]
        res = reduce(np.kron, [np.array([[p, q], [q, p]]) for p, q in swaps], np.eye(1))
    elif isinstance(spec, c.MHC):
        res = sinkhorn(z.reshape(n, n), spec.iterations)
    else:
        orders = itertools.permutations(range(n))
        res = sum(weight * np.eye(n)[list(order)] for weight, order in zip(softmax(z), orders, strict=True))
    return pre, 2 * post, res


def read_hc(made: HyperConnection, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A_m, B, A_rᵀ) of one token's streams: SPEC §2.2."""
    spec, b = made.spec, {k: v.detach().numpy() for k, v in made.b.items()}
    assert isinstance(spec, c.HC)
    A_m, B, A_r = np.zeros(spec.n), np.zeros(spec.n), np.eye(spec.n)
    for s, x in enumerate(X):
        x = rms(made, x - x.mean() if spec.norm == "layer" else x)
        A_m[s], B[s] = (np.sum(dynamic(made, name, x, name)) + b[name][s] for name in ("pre", "post"))
        if not spec.freeze_res:
            A_r[s] = dynamic(made, "res", x, "pre") + b["res"][s]
    return A_m, B, A_r.T


def branch(h: Tensor) -> Tensor:
    return h.roll(1, -1).tanh() * 1.7 + 0.3


def reference(made: HyperConnection, X: Tensor) -> Tensor:
    """X ← H_res X + H_post ⊗ F(Σ_s H_pre,s X_s) for every token by itself."""
    read, out = read_hc if isinstance(made.spec, c.HC) else read_stochastic, torch.zeros_like(X)
    for at in itertools.product(range(X.shape[0]), range(X.shape[1])):
        x = X[at].numpy()
        pre, post, res = read(made, x)
        mixed = res @ x
        if made.spec.post_input == "mixed":
            post = read(made, mixed)[1]
        out[at] = torch.tensor(mixed + np.outer(post, branch(torch.tensor(pre @ x))))
    return out


@pytest.mark.parametrize(("kind", "fields"), CASES, ids=lambda v: str(v))
@torch.no_grad()
def test_equals_the_loop(kind: str, fields: dict[str, Any]) -> None:
    spec = KINDS[kind](**fields)
    made, X = connection(spec), streams(spec.n)
    torch.testing.assert_close(made(X, branch), reference(made, X), **TIGHT)


@pytest.mark.parametrize("kind", ["mhc", "mhc_lite", "kromhc"])
@pytest.mark.parametrize("module", [0, 1, 6])
def test_coefficients_at_the_start(kind: str, module: int) -> None:
    """H_pre .731 and .269, H_post twice that, the large one at m mod n; W = 0, so the token does not matter."""
    made, X = connection(KINDS[kind](), module, std=0.0), streams(4)
    for x in (None, made.dynamic(X)):
        pre, post = made.H_pre(x).expand(2, 3, 4)[1, 2], made.H_post(x).expand(2, 3, 4)[1, 2]
        expected = torch.full((4,), -1.0).double().index_fill(0, torch.tensor(module % 4), 1.0).sigmoid()
        torch.testing.assert_close(pre, expected)
        torch.testing.assert_close(post, 2 * expected)
    assert not any(W.any() for W in made.W.values())
    assert [a.item() for a in made.alpha.values()] == pytest.approx([0.01] * 3)


def test_the_modules_of_a_model_take_turns() -> None:
    """m = 2ℓ for attention, 2ℓ+1 for the FFN (SPEC §1.4)."""
    model = build("kromhc", "tiny", n_layers=3)
    turns = [m.b["pre"].argmax().item() for block in model.blocks for m in (block.attn_hc, block.mlp_hc)]
    assert turns == [0, 1, 2, 3, 0, 1]


# ---- what they are in a network ---------------------------------------------------------------------

TOKENS = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(0))


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    plain = build("gpt2", "tiny", init_std=0.2).double()
    fields = {f"residual.{name}": value for name, value in options.items()}
    hyper = build("gpt2", "tiny", init_std=0.2, residual=kind, **fields).double()
    hyper.load_state_dict(plain.state_dict(), strict=False)
    return plain, hyper


@pytest.mark.parametrize("dynamic", [True, False])
@torch.no_grad()
def test_hc_begins_as_a_plain_pre_norm_network(dynamic: bool) -> None:
    """arXiv 2409.19606: at the start every stream is the plain residual stream."""
    plain, hyper = pair("hc", reduce="mean", dynamic=dynamic)
    torch.testing.assert_close(hyper(TOKENS), plain(TOKENS), **TIGHT)
    X, x = (model.segment(model.embed_tokens(TOKENS)) for model in (hyper, plain))
    torch.testing.assert_close(X, x[:, :, None].expand(-1, -1, 4, -1), **TIGHT)
    summed = pair("hc", reduce="sum", dynamic=dynamic)[1]  # the final norm removes the factor, but for its eps
    torch.testing.assert_close(summed(TOKENS), plain(TOKENS), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_storage_of_the_parameters(kind: str, stored: str) -> None:
    """Only hyper-connections are stored in bf16; they are computed in fp32, with gradients in their own type."""
    model = build("gpt2", "tiny", residual=kind, **{"residual.hc_dtype": stored})
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[stored]
    for name, p in model.named_parameters():
        assert p.dtype == (dtype if "_hc." in name else torch.float32), name
    assert model.segment(model.embed_tokens(TOKENS)).dtype == torch.float32
    model.loss(TOKENS, TOKENS)[0].backward()
    assert all(p.grad.dtype == p.dtype for p in model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert model.segment(model.embed_tokens(TOKENS)).dtype == torch.float32


@pytest.mark.parametrize("kind", ["hc", "kromhc"])
def test_products_and_their_gradients_are_those_of_the_formulas(kind: str) -> None:
    """Norm then product, streams plus shares of the update: against the plain operations, in fp64."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(2, 5, 4, 6, generator=g, dtype=torch.float64).requires_grad_()
    x = X if kind == "hc" else X.flatten(-2)
    W = torch.randn(7, x.shape[-1], generator=g, dtype=torch.float64).requires_grad_()
    post = torch.randn(2, 5, 4, generator=g, dtype=torch.float64).requires_grad_()
    update = torch.randn(2, 5, 6, generator=g, dtype=torch.float64).requires_grad_()
    for ours, plain, inputs in [
        (rms_product(x, W), F.linear(F.rms_norm(x, x.shape[-1:], eps=EPS), W), (X, W)),
        (spread(X, post, update), X + post[..., None] * update[..., None, :], (X, post, update)),
    ]:
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
        assert_gradients(ours, plain, inputs)


def test_a_token_of_zeros_has_finite_gradients() -> None:
    X = torch.zeros(1, 1, 8, requires_grad=True)
    rms_product(X, torch.ones(3, 8)).sum().backward()
    assert X.grad is not None and torch.isfinite(X.grad).all() and X.grad.any()
