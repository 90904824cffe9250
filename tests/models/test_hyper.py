"""Hyper-connections against loops over streams written from SPEC's formulas, in float64 to 1e-10."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.hooks import capture, edit
from streamscope.models.layers.hyper_mixing import CONNECTIONS, EPS, HyperConnection, rms_product, spread
from streamscope.models.make import build
from tests.models.naive_hyper import branch, reference
from tests.tiny import assert_gradients

KINDS = {"hc": c.HC, "mhc": c.MHC, "mhc_lite": c.MHCLite, "kromhc": c.KromHC}
STOCHASTIC = ("mhc", "mhc_lite", "kromhc")
D, TIGHT = 6, dict(rtol=0, atol=1e-10)
kinds = pytest.mark.parametrize("kind", KINDS)
stochastic = pytest.mark.parametrize("kind", STOCHASTIC)


def connection(spec: c.Hyper, module: int = 1, seed: int = 3) -> HyperConnection:
    """A connection in float64 with every parameter moved away from its start."""
    made = CONNECTIONS[type(spec)](spec, D, module).double()
    generator = torch.Generator().manual_seed(seed)
    made.init_weights(0.02, generator)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return made


def fresh(spec: c.Hyper, module: int = 0) -> HyperConnection:
    made = CONNECTIONS[type(spec)](spec, D, module)
    made.init_weights(0.02, torch.Generator())
    return made


def streams(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, 3, n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES: list[tuple[str, dict[str, Any]]] = [
    (kind, {"n": 4, **options})
    for kind in KINDS
    for options in (
        {},
        {"dynamic": False},
        {"post_input": "mixed", "dyn_act": "tanh"},
        {"dyn_act": "none"},
        {"freeze_res": True},
    )
]
CASES += [("kromhc", {"n": 2}), ("kromhc", {"n": 8}), ("mhc", {"n": 3, "iterations": 2}), ("mhc_lite", {"n": 3})]
CASES += [("hc", {"n": 1}), ("hc", {"norm": "layer"}), ("mhc", {"n": 1})]


@pytest.mark.parametrize(("kind", "fields"), CASES, ids=lambda v: str(v))
@torch.no_grad()
def test_equals_the_loop(kind: str, fields: dict[str, Any]) -> None:
    spec = KINDS[kind](**fields)
    made, X = connection(spec), streams(spec.n)
    torch.testing.assert_close(made(X, branch), reference(made, X), **TIGHT)


# ---- what the mixing matrices are -----------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
@stochastic
@torch.no_grad()
def test_mixing_is_doubly_stochastic(kind: str, n: int) -> None:
    """Rows and columns sum to 1 ± 1e-6, at the start, in fp32, and (but for Sinkhorn's columns) anywhere."""
    spec = KINDS[kind](n=n)
    for made in (fresh(spec), fresh(spec).double(), connection(spec)):
        dtype = made.b["res"].dtype
        H = made.H_res(made.dynamic(streams(n).to(dtype)))
        assert (H >= 0).all() and (H.sum(-1) - 1).abs().max() < 1e-6
        if kind != "mhc" or made.b["res"][0, 0] == 0:
            assert (H.sum(-2) - 1).abs().max() < 1e-6


@torch.no_grad()
def test_twenty_sinkhorn_iterations_are_enough_only_where_streams_mix() -> None:
    """With mixing logits about 0 the columns sum to 1 ± 1e-4; about −8, unequal by 1, they are off by more than 1 %."""
    noise = torch.randn(200, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixing = CONNECTIONS[c.MHC](c.MHC(), D, 0).mixing
    off = {b: (mixing(noise + b * (1 - torch.eye(4))).sum(-2) - 1).abs().max() for b in (0.0, -8.0)}
    assert off[0.0] < 1e-4 and off[-8.0] > 1e-2


@pytest.mark.parametrize(("b", "s"), [(-8.0, 0.00034), (-2.0, 0.1192), (-1.0, 0.2689), (0.0, 0.5)])
def test_the_spectrum_of_two_factors(b: float, s: float) -> None:
    """Eigenvalues 1, 1−2s, 1−2s, (1−2s)², s the swap probability (SPEC §1.5)."""
    H = fresh(c.KromHC(b_res=b)).double().H_res(None).detach()
    exact = 1 / (1 + math.exp(-b))
    assert abs(exact - s) < 5e-5
    expected = sorted([1.0, 1 - 2 * exact, 1 - 2 * exact, (1 - 2 * exact) ** 2])
    assert torch.linalg.eigvalsh(H).tolist() == pytest.approx(expected, abs=1e-10)


@stochastic
@pytest.mark.parametrize("module", [0, 1, 6])
def test_coefficients_at_the_start(kind: str, module: int) -> None:
    """H_pre .731 and .269, H_post twice that, the large one at m mod n; W = 0, so the token does not matter."""
    made, X = fresh(KINDS[kind](), module), streams(4).float()
    for x in (None, made.dynamic(X)):
        pre, post = made.H_pre(x).expand(2, 3, 4)[1, 2], made.H_post(x).expand(2, 3, 4)[1, 2]
        expected = torch.full((4,), 0.2689414).index_fill(0, torch.tensor(module % 4), 0.7310586)
        torch.testing.assert_close(pre, expected)
        torch.testing.assert_close(post, 2 * expected)
    assert not any(W.any() for W in made.W.values())
    assert [a.item() for a in made.alpha.values()] == pytest.approx([0.01] * 3)


def test_the_modules_of_a_model_take_turns() -> None:
    """m = 2ℓ for attention, 2ℓ+1 for the FFN (SPEC §1.4)."""
    model = build("kromhc", "tiny", n_layers=3)
    turns = [m.b["pre"].argmax().item() for block in model.blocks for m in (block.attn_hc, block.mlp_hc)]
    assert turns == [0, 1, 2, 3, 0, 1]


def test_permutations_of_mhc_lite_begin_with_the_identity() -> None:
    H = fresh(c.MHCLite(n=3, b_res=-100.0)).H_res(None)
    torch.testing.assert_close(H, torch.eye(3))
    uniform = fresh(c.MHCLite(n=3, b_res=0.0)).H_res(None)
    torch.testing.assert_close(uniform, torch.full((3, 3), 1 / 3))


# ---- what they are in a network ---------------------------------------------------------------------

TOKENS = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(0))


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """A plain model and a hyper-connected one with the same weights, in float64."""
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


@stochastic
@torch.no_grad()
def test_doubly_stochastic_streams_that_are_written_alike_are_a_plain_network(kind: str) -> None:
    """Σ H_pre = 1 and H_post = 1 keep the streams equal, and equal streams cannot be mixed, whatever H_res."""
    plain, hyper = pair(kind, reduce="mean", b_res=-0.3)
    for block in hyper.blocks:
        for made in (block.attn_hc, block.mlp_hc):
            made.b["pre"].fill_(-math.log(3))
            made.b["post"].zero_()
            made.b["res"].add_(torch.randn(made.b["res"].shape, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(hyper(TOKENS), plain(TOKENS), rtol=0, atol=1e-8)


@stochastic
def test_mixing_without_a_gradient(kind: str) -> None:
    """The first module sees equal streams, the last one only their sum is read: no gradient in b_res but rounding.

    When H_post reads the mixed streams, the last module has one; unconstrained matrices have one everywhere.
    """

    def gradients(**options: Any) -> list[float]:
        model = pair(kind, b_res=-1.0, **options)[1]
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "_hc." in name:
                    p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        model.loss(TOKENS[:, :-1], TOKENS[:, 1:])[0].backward()
        modules = [m for block in model.blocks for m in (block.attn_hc, block.mlp_hc)]
        return [float(m.b["res"].grad.abs().max()) for m in modules]

    first, *middle, last = gradients()
    assert first < 1e-12 and last < 1e-12 and min(middle) > 1e-6
    first, *rest = gradients(post_input="mixed")
    assert first < 1e-12 and min(rest) > 1e-7


@kinds
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


def test_frozen_mixing_has_no_parameters_of_its_own() -> None:
    model = build("kromhc", "tiny", **{"residual.freeze_res": True})
    assert not any("res" in name.split("_hc.")[-1] for name, _ in model.named_parameters() if "_hc." in name)


@torch.no_grad()
def test_an_edit_of_the_mixing_matrix_mixes() -> None:
    """Swapping two streams at hook_res swaps them in the state."""
    model = build("kromhc", "tiny", init_std=0.2)
    state = model.segment(model.embed_tokens(TOKENS), 0, 1)
    swap = torch.eye(4)[[1, 0, 2, 3]].expand(2, 12, 4, 4)
    names = ("attn_hc.hook_res", "attn_hc.hook_post", "hook_attn_out", "hook_streams_mid")
    hooks = [f"blocks.1.{name}" for name in names]
    with edit(model, {hooks[0]: lambda H, hook: swap.clone()}), capture(model, hooks) as found:
        model.segment(state, 1)
    update = found[hooks[1]][..., None] * found[hooks[2]][..., None, :]
    torch.testing.assert_close(found[hooks[3]], state[:, :, [1, 0, 2, 3]] + update)


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
