"""Identity, independent, Kronecker, dense: what each may mix, and what its hook does."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from streamscope.models import config as c
from streamscope.models.config.serialization import kinds
from streamscope.models.hooks import capture, edit
from streamscope.models.layers import projections
from streamscope.models.layers.projections import Projection
from streamscope.models.make import build
from tests.tiny import assert_gradients

H = 3
LINEAR = [k for k in kinds(c.Projection).values() if issubclass(k, c.Projection) and k is not c.Hdpl]
SQUARE = (c.Identity, c.Kronecker)


def make(spec: c.Projection, d_in: int, d_out: int) -> Projection:
    torch.manual_seed(0)
    module = spec.module(spec, d_in, d_out, H).double()
    for p in module.parameters():
        torch.nn.init.normal_(p)
    return module


def slope(module: Projection) -> Tensor:
    """∂y/∂x, [d_out, d_in], at a random point."""
    x = torch.randn(module.d_in, dtype=torch.float64)
    return jacobian(lambda v: module(v[None, None])[0, 0], x)


@pytest.mark.parametrize(
    ("kind", "bias", "d_out"),
    [(k, bias, d) for k in LINEAR for bias in (0, 1) for d in (12, 24) if d == 12 or k not in SQUARE],
    ids=lambda x: getattr(x, "kind", str(x)),
)
def test_matrix_is_the_jacobian(kind: type[c.Projection], bias: int, d_out: int) -> None:
    has_bias = bool(bias) and kind is not c.Identity
    module = make(kind(bias=True) if has_bias else kind(), 12, d_out)
    torch.testing.assert_close(module.matrix(), slope(module).T, rtol=0, atol=1e-14)
    at_zero = module(torch.zeros(1, 1, 12, dtype=torch.float64))[0, 0]
    assert torch.equal(at_zero, module.bias if has_bias else torch.zeros_like(at_zero))


MIXED = [*(f"blocks.{n % 2}.attn.hook_{name}_mix" for n, name in enumerate("qvko")),
         "blocks.0.mlp.hook_up_mix", "blocks.1.mlp.hook_down_mix"]  # fmt: skip


def mixed_model() -> Any:
    changes = {"attention.q": "ind", "attention.k": "kron", "attention.v": "kron"}
    torch.manual_seed(1)
    model = build("cfm", "tiny", **changes).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def weight_of(model: Any, hook: str) -> Tensor:
    return model.get_parameter(hook.replace("hook_", "").replace("_mix", "") + ".weight")


@pytest.mark.parametrize("name", MIXED)
@torch.no_grad()
def test_an_edit_of_the_matrix_is_a_changed_weight(name: str) -> None:
    model, tokens = mixed_model(), torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    plain, weight = model(tokens), weight_of(model, name)
    new, old = torch.randn_like(weight), weight.clone()

    def second_row_only(w: Tensor, hook: Any) -> Tensor:
        assert w.shape == (2, *weight.shape)
        return torch.stack([w[0], new])

    with edit(model, {name: second_row_only}):
        edited = model(tokens)
    assert torch.equal(weight, old)
    weight.copy_(new)
    changed = model(tokens)
    assert (changed - plain).abs().max() > 1e-3
    torch.testing.assert_close(edited[0], plain[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(edited[1], changed[1], rtol=1e-11, atol=1e-11)


def test_gradient_reaches_the_weight_through_its_hook() -> None:
    model, tokens = mixed_model(), torch.arange(8)[None]
    grads = []
    for names in ([], MIXED):
        model.zero_grad()
        with capture(model, names):
            model.loss(tokens, tokens)[0].backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(12, 20), (16, 20), (12, 16)])
def test_padding_inside_a_product_changes_nothing(sizes: tuple, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of CUDA, forced here: widths are padded to multiples of 8 inside the product, parameters are not."""
    shapes, product = [(2, 3, sizes[0]), sizes[::-1], sizes[1:]][: 2 + bias], torch.nn.functional.linear
    inputs = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    plain, shapes = product(*inputs), []

    def seen(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        shapes.append((x.shape[-1], *w.shape))
        return product(x, w, *rest)

    monkeypatch.setattr(projections, "gains_from_padding", lambda x: True)
    monkeypatch.setattr(torch.nn.functional, "linear", seen)
    padded = projections.linear(*inputs)
    assert shapes and all(n % 8 == 0 for shape in shapes for n in shape)
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-12)
    assert_gradients(padded, plain, inputs, atol=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp itself uses it
def test_a_large_product_without_a_gradient_is_that_of_torch() -> None:
    """oneDNN's kernel in fp32: up to rounding, for any layout, few rows, no rows and values that are not finite."""
    torch.manual_seed(0)
    wide, w, bias = torch.randn(5, 7, 2 * 512), torch.randn(640, 512), torch.randn(640)
    assert w.numel() >= projections.ONEDNN
    for x in (wide[..., :512], wide[:1, :1, 512:], wide[..., :512].transpose(0, 1), wide[:0, :, :512]):
        exact = torch.nn.functional.linear(x.double(), w.double(), bias.double())
        plain = torch.nn.functional.linear(x, w, bias)
        assert not projections.prefers_onednn(x, w) and torch.equal(projections.linear(x, w, bias), plain)
        with torch.no_grad():
            assert projections.prefers_onednn(x, w) and not projections.prefers_onednn(x, w[:500])
            assert not projections.prefers_onednn(x.double(), w.double())
            found = projections.linear(x, w, bias)
        assert found.shape == exact.shape
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-4)
    with torch.no_grad():  # which does not switch forward-mode gradients off
        x, v = wide[..., :512], torch.randn(5, 7, 512)
        tangent = torch.func.jvp(lambda x: projections.linear(x, w, bias), (x,), (v,))[1]
        of_weight = torch.func.jvp(lambda w: projections.linear(x, w, bias), (w,), (w.sin(),))[1]
    assert torch.equal(tangent, torch.nn.functional.linear(v, w))
    assert torch.equal(of_weight, torch.nn.functional.linear(x, w.sin()))
    wide[0, 0, 3] = torch.nan
    with torch.no_grad():
        found = projections.linear(wide[..., :512], w)
    assert found[0, 0].isnan().all() and found[0, 1:].isfinite().all()
