"""Norms, positions, gates, dropout and Canon layers against formulas written out in full; fast paths of attention."""

import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.functional import jacobian

from streamscope.models import config as c
from streamscope.models.hooks import capture, edit
from streamscope.models.layers import attention, projections
from streamscope.models.layers.attention import NARROW_HEAD, causal_attention
from streamscope.models.layers.canon import CanonLayer, _ShiftedSum, shifted_sum
from streamscope.models.layers.noise import LEVELS, dropout, keep_mask
from streamscope.models.layers.positions import alibi_slopes
from streamscope.models.layers.projections import Projection
from streamscope.models.make import build
from tests.tiny import assert_gradients, randomise

B, T, D, H, K = 2, 7, 24, 4, 6


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive_norm(kind: str, x: Tensor) -> Tensor:
    """One vector [D], without γ and β, with sums written as Python loops."""
    groups = [list(range(h * K, (h + 1) * K)) for h in range(H)] if kind == "channel" else [list(range(D))]
    y = torch.empty(D, dtype=torch.float64)
    for group in groups:
        mean = 0.0 if kind == "rms" else sum(float(x[i]) for i in group) / len(group)
        scale = math.sqrt(sum((float(x[i]) - mean) ** 2 for i in group) / len(group) + 0.1)
        for i in group:
            y[i] = (x[i] - mean) / scale
    return y


@pytest.mark.parametrize("spec", [c.LayerNorm(eps=0.1), c.ChannelLayerNorm(eps=0.1), c.RMSNorm(eps=0.1)])
@pytest.mark.parametrize("path", ["fused", "scale", "normalized"])
def test_norm(spec: c.Norm, path: str) -> None:
    """A large eps, so that leaving it out or misplacing it shows."""
    norm, x = randomise(spec.module(spec, D, H).double(), std=1.0), random(B, T, D) * 0.5
    seen: dict[str, Tensor] = {}
    if path != "fused":
        getattr(norm, f"hook_{path}").add_hook(lambda t, hook: seen.update({path: t}))
    y, bare = norm(x), torch.stack([torch.stack([naive_norm(spec.kind, v) for v in row]) for row in x])
    bias = 0.0 if norm.bias is None else norm.bias
    torch.testing.assert_close(y, norm.weight * bare + bias, rtol=1e-12, atol=1e-12)
    assert set(seen) == ({path} if path != "fused" else set())
    if path == "normalized":
        torch.testing.assert_close(seen[path], bare, rtol=1e-12, atol=1e-12)


def rope(x: Tensor, base: float, rotated: int) -> Tensor:
    """Pairs (i, i + R/2) as complex numbers, turned by exp(i t base^(−2i/R))."""
    half, y = rotated // 2, x.clone()
    for t in range(x.shape[1]):
        for i in range(half):
            z = torch.complex(x[:, t, :, i], x[:, t, :, i + half])
            z = z * complex(math.cos(t * base ** (-2 * i / rotated)), math.sin(t * base ** (-2 * i / rotated)))
            y[:, t, :, i], y[:, t, :, i + half] = z.real, z.imag
    return y


@pytest.mark.parametrize(("fraction", "base"), [(1.0, 10_000.0), (1 / 3, 10_000.0), (2 / 3, 50.0)])
def test_rope(fraction: float, base: float) -> None:
    """A model in fp64 has tables of that precision."""
    spec = c.Rope(fraction=fraction, base=base)
    part, x = spec.module(spec, K, H, 64), random(B, 64, H, K)
    expected = rope(x, base, round(K * fraction))
    torch.testing.assert_close(part.rotate(x), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(part.double().rotate(x), expected, rtol=0, atol=1e-12)


def test_stretched_positions_wave_by_wave() -> None:
    """Llama 3.1's rule, case by case; with original 0 every wave is as many times as long."""
    factor, original, low, high, width, base = 8.0, 40, 1.0, 4.0, 24, 500.0
    spec = c.Rope(base=base, stretch=c.Stretch(factor=factor, original=original, low=low, high=high))
    part = spec.module(spec, width, 1, 50).double()
    seen = set()
    for i in range(width // 2):
        theta = base ** (-2 * i / width)
        wave = 2 * math.pi / theta
        if wave > original / low:
            theta, kind = theta / factor, "stretched"
        elif wave < original / high:
            kind = "as it was"
        else:
            s = (original / wave - low) / (high - low)
            theta, kind = (1 - s) * theta / factor + s * theta, "between"
        seen.add(kind)
        want = torch.tensor([math.cos(t * theta) for t in range(50)], dtype=torch.float64)
        torch.testing.assert_close(part.cos[:, 0, i], want, rtol=0, atol=1e-12)
    assert len(seen) == 3
    linear, plain = c.Rope(base=base, stretch=c.Stretch(factor=5.0, original=0)), c.Rope(base=base)
    five, one = (spec.module(spec, width, 1, 50).double() for spec in (linear, plain))
    torch.testing.assert_close(five.sin[::5], one.sin[:10], rtol=0, atol=1e-12)


def test_alibi_slopes() -> None:
    """Powers of two: 2^(−8h/H). Otherwise the next power's sequence fills in, every other one."""
    assert alibi_slopes(1) == [2**-8]
    assert alibi_slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert alibi_slopes(8) == [2**-h for h in range(1, 9)]
    assert alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert alibi_slopes(12) == [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


@torch.no_grad()
def test_alibi_enters_the_scores() -> None:
    tokens = torch.full((1, 6), 3)
    model = build("d-cas", "tiny", positions="alibi")
    with capture(model, "blocks.0.attn.hook_attn_scores") as found:
        model(tokens)
    scores = found["blocks.0.attn.hook_attn_scores"][0]
    content = scores[:, 0, 0]  # the same token everywhere: without a bias all scores of layer 0 agree
    for h, slope in enumerate(alibi_slopes(4)):
        torch.testing.assert_close(scores[h, 5, :6], content[h] - slope * torch.arange(5.0, -1.0, -1.0))


@pytest.mark.parametrize("shape", ["scalar", "vector"])
@pytest.mark.parametrize("source", ["query", "normed", "value"])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_gate(shape: Any, source: Any, bias: bool) -> None:
    """σ(W s + b) of the query, the normed input or the values' input multiplies a head before the output's map."""
    gate = c.Gate(shape=shape, source=source, bias=bias, init="normal" if bias else "zero")
    attn = build("pls", "tiny", init_std=0.3, **{"attention.gate": gate}).blocks[0].attn.double()
    assert (0.2 < attn.gate.weight.std() < 0.4 and not attn.gate.bias.any()) if bias else not attn.gate.weight.any()
    randomise(attn, std=1.0)
    x, x_v = random(2, 5, 32), random(2, 5, 32, seed=9)
    seen: dict[str, Tensor] = {}
    for name in ("z_ungated", "gate", "q"):
        getattr(attn, f"hook_{name}").add_hook(lambda t, hook, name=name: seen.update({name: t}))
    y, weight, g = attn(x, x_v), attn.gate.weight, seen["gate"]
    assert g.shape == (2, 5, 4, 8 if shape == "vector" else 1)
    for h in range(4):
        s = {"query": seen["q"][:, :, h], "normed": x, "value": x_v[..., 8 * h : 8 * h + 8]}[source]
        z = s @ (weight[:, h] if source == "normed" else weight[h]) + (attn.gate.bias[h] if bias else 0.0)
        torch.testing.assert_close(g[:, :, h], 1 / (1 + torch.exp(-z)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y, (g * seen["z_ungated"]).flatten(2) @ attn.o.weight.T, rtol=1e-12, atol=1e-12)


PLACES = ["blocks.0.hook_resid_pre", "blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"]


@torch.no_grad()
def test_dropout_of_embedding_and_branches_only_in_training() -> None:
    model, tokens = build("std-t", "tiny", dropout=0.5), torch.arange(32).expand(8, -1)
    for training in (False, True):
        torch.manual_seed(0)
        with capture(model.train(training), [*PLACES, "hook_embed", "hook_pos_embed"]) as found:
            model(tokens)
        for name in PLACES:
            share = (found[name] == 0).double().mean().item()
            assert abs(share - 0.5 * training) < 0.03, name
    kept = found[PLACES[0]] != 0
    scaled = 2 * (found["hook_embed"] + found["hook_pos_embed"])
    torch.testing.assert_close(found[PLACES[0]][kept], scaled[kept])


@pytest.mark.parametrize("explicit", [False, True])
@torch.no_grad()
def test_dropout_of_attention_weights_only_in_training(explicit: bool) -> None:
    model, tokens = build("std-t", "tiny", **{"attention.dropout": 0.5}), torch.arange(16)[None]
    names = ["blocks.0.attn.hook_z", *(["blocks.0.attn.hook_pattern"] if explicit else [])]

    def z(training: bool) -> Tensor:
        torch.manual_seed(0)
        with capture(model.train(training), names) as found:
            model(tokens)
        return found["blocks.0.attn.hook_z"]

    plain = build("std-t", "tiny")
    with capture(plain, names) as found:
        plain(tokens)
    evaluated, trained = z(False), z(True)
    assert torch.equal(evaluated, found["blocks.0.attn.hook_z"])
    weight = (trained[0, 0] / evaluated[0, 0]).round(decimals=4)  # [H, K]; one key: weight 1 becomes 0 or 2
    assert (weight == weight[:, :1]).all() and set(weight[:, 0].tolist()) <= {0.0, 2.0}
    assert not torch.allclose(trained[:, 1:], evaluated[:, 1:])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
def test_elements_are_kept_by_themselves_with_the_probability_asked_for(p: float) -> None:
    torch.manual_seed(1)
    n = 2**22
    mask = keep_mask(torch.empty(n), round(p * LEVELS)).double()
    sigma = math.sqrt(p * (1 - p) / n)
    assert abs(mask.mean().item() - (1 - p)) < 4 * sigma + 0.5 / LEVELS
    for lane in range(4):  # the four elements that share a draw
        assert abs(mask[lane::4].mean().item() - (1 - p)) < 8 * sigma + 0.5 / LEVELS
    centred = mask - (1 - p)
    for lag in (1, 2, 3, 4, 8, 64):  # uncorrelated, inside one draw and between draws
        covariance = (centred[:-lag] * centred[lag:]).mean().item()
        assert abs(covariance) < 4 * p * (1 - p) / math.sqrt(n), lag


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-3, 0.999, 1e-7, 1 - 1e-7])
def test_what_is_kept_is_scaled_to_the_expectation(p: float) -> None:
    x = torch.ones(7, 3, 5)  # not a multiple of four elements
    dropped = min(round(p * LEVELS), LEVELS - 1)
    torch.manual_seed(2)
    values = set(torch.cat([dropout(x, p).flatten() for _ in range(400)]).tolist())
    scale = LEVELS / (LEVELS - dropped)
    assert values <= {0.0, torch.tensor(scale).item()}
    assert abs(dropped / LEVELS - p) <= 1 / LEVELS
    assert (0.0 in values) == (dropped > 0)
    y = dropout(x.requires_grad_(), p)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, scale))


def canon_loop(x: Tensor, w: Tensor, spec: c.Canon) -> Tensor:
    """y_t,c = x_t,c + act(Σ_j w_c,j x_{t−k+1+j},c), number by number."""
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for channel in range(x.shape[2]):
                total = 0.0
                for j in range(spec.kernel):
                    source = t - spec.kernel + 1 + j
                    total += float(w[channel, j] * x[b, source, channel]) if source >= 0 else 0.0
                total = total / (1 + math.exp(-total)) if spec.activation == "silu" else total
                y[b, t, channel] = total + (float(x[b, t, channel]) if spec.residual else 0.0)
    return y


@pytest.mark.parametrize("spec", [
    c.Canon(), c.Canon(kernel=2), c.Canon(kernel=3, activation="silu"), c.Canon(residual=False),
    c.Canon(residual=False, activation="silu", kernel=2),
], ids=lambda s: f"k{s.kernel}-{s.activation}-{s.residual}")  # fmt: skip
@torch.no_grad()
def test_canon_equals_the_loop(spec: c.Canon) -> None:
    made, x = CanonLayer(spec, 6).double(), random(2, 7, 6)
    made.weight.copy_(random(*made.weight.shape, seed=2))
    torch.testing.assert_close(made(x), canon_loop(x, made.weight, spec), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("residual", "reaches"),
    [({}, True), ({"residual": "token_factor", "residual.values": "combined"}, True),
     ({"residual": "token_factor"}, False), ({"residual": "frozen_token", "residual.value_norm": False}, False)],
)  # fmt: skip
@torch.no_grad()
def test_canon_a_reaches_the_values_that_share_its_norm(residual: dict[str, Any], reaches: bool) -> None:
    model = build("gpt2", "tiny", **residual, **{"canon": "canon", "canon.places": "A"})
    tokens, names = torch.arange(24).reshape(2, 12), [f"blocks.0.attn.hook_{letter}" for letter in "qkv"]
    with capture(model, names) as before:
        model(tokens)
    with edit(model, {"blocks.0.canon_a.hook_out": lambda x, hook: x * 2}), capture(model, names) as after:
        model(tokens)
    assert [not torch.equal(before[n], after[n]) for n in names] == [True, True, reaches]


def test_canon_starts_as_printed() -> None:
    """U(±1/2) for a kernel of four, U(±1/sqrt(2)) for two, N(0, 0.02)."""
    generator = torch.Generator().manual_seed(0)
    for spec, low, high, std in [
        (c.Canon(), -0.5, 0.5, 0.5 / 3**0.5),
        (c.Canon(kernel=2), -(0.5**0.5), 0.5**0.5, (1 / 6) ** 0.5),
        (c.Canon(init="normal"), -0.2, 0.2, 0.02),
    ]:
        made = CanonLayer(spec, 5000)
        made.init_weights(0.02, generator)
        w = made.weight.detach()
        assert low <= w.min() < w.max() <= high
        assert abs(float(w.std()) / std - 1) < 0.02
        assert abs(float(w.mean())) < std / 50


@pytest.mark.parametrize(("length", "kernel"), [(1, 4), (3, 4), (9, 4), (9, 2)])
def test_gradients_of_canon_are_those_of_autograd(length: int, kernel: int) -> None:
    """The same values bit for bit and the same gradients as of the plain sums; short sequences as well."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, length, 5, generator=g, dtype=torch.float64).requires_grad_()
    w = torch.randn(5, kernel, generator=g, dtype=torch.float64).requires_grad_()
    ours, plain = _ShiftedSum.apply(x, w), shifted_sum(x, w)
    assert torch.equal(ours, plain)
    assert_gradients(ours, plain, (x, w))
    x, w = x.bfloat16(), w.bfloat16()
    assert torch.equal(_ShiftedSum.apply(x, w), shifted_sum(x.float(), w.float()).bfloat16()), "rounded once"


def narrow(k: int, n: int = 40) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k, v in bf16 and a gradient of the output."""
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(2, n, 3, k, generator=g).bfloat16().transpose(1, 2) for _ in range(4)]
    return [t.detach().requires_grad_() for t in x[:3]], x[3]


@pytest.mark.parametrize("width", [8, 32, NARROW_HEAD])
def test_narrow_heads_have_the_kernels_value_and_gradients_nearer_to_exact(width: int) -> None:
    inputs, g = narrow(width)
    plain = F.scaled_dot_product_attention(*inputs, is_causal=True)
    z = causal_attention(*inputs)
    assert torch.equal(z, plain) and z.dtype == torch.bfloat16
    assert type(z.grad_fn).__name__ == "_NarrowAttentionBackward"
    exact = [t.detach().double().requires_grad_() for t in inputs]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*exact, is_causal=True), exact, g.double())
    errors = []
    for y in (z, plain):
        found = torch.autograd.grad(y, inputs, g)
        errors.append([float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)])
    assert all(ours < 0.01 and ours < 1.1 * theirs for ours, theirs in zip(*errors, strict=True)), errors


def test_under_autocast_attention_is_in_its_dtype() -> None:
    inputs = [t.detach().float().requires_grad_() for t in narrow(8)[0]]
    with torch.autocast("cpu", torch.bfloat16):
        z = causal_attention(*inputs)
    assert z.dtype == torch.bfloat16
    grads = torch.autograd.grad(z.sum(), inputs)
    assert all(x.dtype == torch.float32 for x in grads)


@pytest.mark.parametrize(
    ("preset", "together"), [("std-t", 3), ("lfa", 2), ("pls", 3), ("dst-kron", 2), ("hdpl", 0), ("kromcanon", 3)]
)
def test_dense_projections_of_one_input_are_one_product(preset: str, together: int, monkeypatch: Any) -> None:
    """Loss and gradients as with a product each; how many are joined depends on what reads the same input."""
    model, results, alone = randomise(build(preset, "tiny", n_layers=1).double().train(), std=0.2), [], list[str]()
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(1))
    joined, project = attention.Attention._project_jointly, attention.Attention.project

    def separate(self: Any, inputs: dict) -> list:
        return [self.project(name, x) for name, x in inputs.items()]

    def counted(self: Any, name: str, x: torch.Tensor) -> torch.Tensor:
        alone.append(name)
        return project(self, name, x)

    monkeypatch.setattr(attention.Attention, "project", counted)
    for fn in (separate, joined):
        monkeypatch.setattr(attention.Attention, "_project_jointly", fn)
        torch.manual_seed(0)
        alone.clear()
        loss = model.loss(tokens, tokens.roll(-1, 1))[0]
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        results.append([loss, *(x for x in grads if x is not None)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert len(alone) == 3 - together + 1, "and the output's"


def test_hooks_of_joined_projections_stay_apart() -> None:
    """An edit of the keys, even in place, leaves queries and values of the same product alone."""
    model, tokens = build("std-t", "tiny", dropout=0.0).train(), torch.arange(8)[None]
    names = [f"blocks.0.attn.hook_{n}" for n in "qv"]
    with torch.no_grad(), capture(model, names) as before:
        model(tokens)
    wiped = model.hooks([("blocks.0.attn.hook_k", lambda x, hook: x.zero_())])
    with torch.no_grad(), wiped, capture(model, names) as seen:
        model(tokens)
    torch.testing.assert_close(dict(seen), dict(before), rtol=0, atol=0)


LINEAR = [k for k in c.Projection.kinds.values() if issubclass(k, c.Projection) and k is not c.Hdpl]
SQUARE = (c.Identity, c.Kronecker)


def projection(spec: c.Projection, d_in: int, d_out: int) -> Projection:
    torch.manual_seed(0)
    module = spec.module(spec, d_in, d_out, 3).double()
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
    module = projection(kind(bias=True) if has_bias else kind(), 12, d_out)
    torch.testing.assert_close(module.matrix(), slope(module).T, rtol=0, atol=1e-14)
    at_zero = module(torch.zeros(1, 1, 12, dtype=torch.float64))[0, 0]
    assert torch.equal(at_zero, module.bias if has_bias else torch.zeros_like(at_zero))


CHANGES = {"attention.q": "ind", "attention.k": "kron", "attention.v": "kron"}
MAPS = [*(f"blocks.{n % 2}.attn.hook_{name}_mix" for n, name in enumerate("qvko")),
         "blocks.0.mlp.hook_up_mix", "blocks.1.mlp.hook_down_mix"]  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
@torch.no_grad()
def test_an_edit_of_the_matrix_is_a_changed_weight(name: str) -> None:
    model = randomise(build("cfm", "tiny", **CHANGES).double())
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    plain = model(tokens)
    weight = model.get_parameter(name.replace("hook_", "").replace("_mix", "") + ".weight")
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
    model, tokens = randomise(build("cfm", "tiny", **CHANGES).double()), torch.arange(8)[None]
    grads = []
    for names in ([], MAPS):
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
    plain = product(*inputs)
    monkeypatch.setattr(projections, "gains_from_padding", lambda x: True)
    monkeypatch.setattr(torch.nn.functional, "linear", padding := Mock(wraps=product))
    padded = projections.linear(*inputs)
    shapes = [(call.args[0].shape[-1], *call.args[1].shape) for call in padding.call_args_list]
    assert shapes and all(n % 8 == 0 for shape in shapes for n in shape)
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-12)
    assert_gradients(padded, plain, inputs, atol=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp itself uses it
def test_a_large_product_without_a_gradient_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's kernel in fp32: up to rounding, for any layout, few rows, no rows and values that are not finite."""
    torch.manual_seed(0)
    wide, w, bias = torch.randn(5, 7, 2 * 512), torch.randn(640, 512), torch.randn(640)
    assert w.numel() >= projections.ONEDNN > w[:500].numel()
    onednn = Mock(wraps=torch.ops.mkldnn._linear_pointwise)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", onednn)
    for x in (wide[..., :512], wide[:1, :1, 512:], wide[..., :512].transpose(0, 1), wide[:0, :, :512]):
        exact = torch.nn.functional.linear(x.double(), w.double(), bias.double())
        plain = torch.nn.functional.linear(x, w, bias)
        onednn.reset_mock()
        assert torch.equal(projections.linear(x, w, bias), plain)
        with torch.no_grad():
            for other in ((x, w[:500]), (x.double(), w.double())):
                projections.linear(*other)
            onednn.assert_not_called()
            found = projections.linear(x, w, bias)
            onednn.assert_called_once()
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
