"""Norms, positions, gates, FFN and dropout against formulas written out in full, in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.hooks import capture
from streamscope.models.layers.attention import Attention, HeadGate
from streamscope.models.layers.positions import alibi_slopes
from streamscope.models.layers.residual import Mlp
from streamscope.models.make import build

B, T, D, H, K = 2, 7, 24, 4, 6


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shake(module: torch.nn.Module, seed: int = 3) -> Any:
    """The module in float64 with random parameters, norms included."""
    module = module.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return module


# ---- norms -------------------------------------------------------------------------------------


def naive_norm(kind: str, x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> Tensor:
    """One vector [D], with sums written as Python loops."""
    groups = [list(range(h * K, (h + 1) * K)) for h in range(H)] if kind == "channel" else [list(range(D))]
    y = torch.empty(D, dtype=torch.float64)
    for group in groups:
        values = [x[i].item() for i in group]
        mean = 0.0 if kind == "rms" else sum(values) / len(values)
        scale = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + eps)
        for i, v in zip(group, values, strict=True):
            y[i] = gamma[i] * (v - mean) / scale + (0.0 if beta is None else beta[i])
    return y


@pytest.mark.parametrize("spec", [c.LayerNorm(eps=0.1), c.ChannelLayerNorm(eps=0.1), c.RMSNorm(eps=0.1)])
@pytest.mark.parametrize("path", ["fused", "scale", "normalized"])
def test_norm(spec: c.Norm, path: str) -> None:
    """A large eps, so that leaving it out or misplacing it shows."""
    norm, x = shake(spec.module(spec, D, H)), random(B, T, D) * 0.5
    seen: dict[str, Tensor] = {}
    if path != "fused":
        getattr(norm, f"hook_{path}").add_hook(lambda t, hook: seen.update({path: t}))
    y = norm(x)
    for b in range(B):
        for t in range(T):
            want = naive_norm(spec.kind, x[b, t], norm.weight, norm.bias, 0.1)
            torch.testing.assert_close(y[b, t], want, rtol=1e-12, atol=1e-12)
    assert set(seen) == ({path} if path != "fused" else set())
    if path == "scale":
        assert seen[path].shape == ((B, T, H, 1) if spec.kind == "channel" else (B, T, 1))
    if path == "normalized":
        ones = torch.ones(D, dtype=torch.float64)
        bare = naive_norm(spec.kind, x[0, 0], ones, None, 0.1)
        torch.testing.assert_close(seen[path][0, 0], bare, rtol=1e-12, atol=1e-12)


# ---- positions ---------------------------------------------------------------------------------


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
    spec = c.Rope(fraction=fraction, base=base)
    part, x = spec.module(spec, K, H, 64), random(B, 64, H, K)
    y = part.rotate(x)
    rotated = round(K * fraction)
    torch.testing.assert_close(y, rope(x, base, rotated), rtol=0, atol=1e-6)
    assert torch.equal(y[..., rotated:], x[..., rotated:]), "the rest is not touched"
    assert torch.equal(y[:, 0], x[:, 0]), "position 0 is not turned"


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


def test_rope_of_a_double_model_is_exact_to_double() -> None:
    part, x = c.Rope().module(c.Rope(), K, H, 64).double(), random(B, 64, H, K)
    torch.testing.assert_close(part.rotate(x), rope(x, 10_000.0, K), rtol=0, atol=1e-12)


def test_alibi_slopes() -> None:
    """Powers of two: 2^(−8h/H). Otherwise the next power's sequence fills in, every other one."""
    assert alibi_slopes(1) == [2**-8]
    assert alibi_slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert alibi_slopes(8) == [2**-h for h in range(1, 9)]
    assert alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert alibi_slopes(12) == [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


@torch.no_grad()
def test_alibi_enters_the_scores_and_learned_positions_the_stream() -> None:
    tokens = torch.full((1, 6), 3)
    model = build("d-cas", "tiny", positions="alibi")
    with capture(model, "blocks.0.attn.hook_attn_scores") as found:
        model(tokens)
    scores = found["blocks.0.attn.hook_attn_scores"][0]
    content = scores[:, 0, 0]  # the same token everywhere: without a bias all scores of layer 0 agree
    for h, slope in enumerate(alibi_slopes(4)):
        torch.testing.assert_close(scores[h, 5, :6], content[h] - slope * torch.arange(5.0, -1.0, -1.0))
    model = build("std-t", "tiny")
    with capture(model, ["hook_pos_embed", "hook_embed", "blocks.0.hook_resid_pre"]) as found:
        model(tokens)
    assert torch.equal(found["hook_pos_embed"][0], model.pos_embed.weight[:6])
    assert torch.equal(found["blocks.0.hook_resid_pre"], found["hook_embed"] + found["hook_pos_embed"])


# ---- gates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["scalar", "vector"])
@pytest.mark.parametrize("source", ["query", "normed", "value"])
@pytest.mark.parametrize("bias", [False, True])
def test_gate(shape: Any, source: Any, bias: bool) -> None:
    """σ(W s + b), head by head: scalar or vector, from the query, the normed input, or the values' input."""
    gate = shake(HeadGate(c.Gate(shape=shape, source=source, bias=bias), D, H, D // H))
    q, x, x_v = random(B, T, H, K, seed=1), random(B, T, D, seed=2), random(B, T, D, seed=4)
    g = gate(q, x, x_v)
    assert g.shape == (B, T, H, K if shape == "vector" else 1)
    for h in range(H):
        own = slice(h * K, (h + 1) * K)
        s = {"query": q[:, :, h], "normed": x, "value": x_v[..., own]}[source]
        w = gate.weight[:, h] if source == "normed" else gate.weight[h]
        z = s @ w + (gate.bias[h] if bias else 0.0)
        torch.testing.assert_close(g[:, :, h], 1 / (1 + torch.exp(-z)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("source", ["query", "normed", "value"])
@torch.no_grad()
def test_gate_starts_as_configured(source: Any) -> None:
    tokens = torch.arange(9)[None]
    for init in ("zero", "normal"):
        gate = c.Gate(source=source, init=init, bias=True)
        model = build("d-cas", "tiny", **{"attention.gate": gate, "init_std": 0.3})
        with capture(model, "blocks.1.attn.hook_gate") as found:
            model(tokens)
        g = found["blocks.1.attn.hook_gate"]
        assert torch.equal(g, torch.full_like(g, 0.5)) == (init == "zero")
        assert torch.equal(model.blocks[0].attn.gate.bias, torch.zeros(4, 1))
        if init == "normal":
            assert 0.2 < model.blocks[0].attn.gate.weight.std() < 0.4


@pytest.mark.parametrize("source", ["query", "normed", "value"])
@torch.no_grad()
def test_gate_multiplies_the_heads_output_before_the_output_projection(source: Any) -> None:
    config = build("pls", "tiny", **{"attention.gate.source": source}).config
    attn = shake(Attention(config)).eval()
    x, x_v = random(2, 5, 32), random(2, 5, 32, seed=9)
    seen: dict[str, Tensor] = {}
    for name in ("z_ungated", "gate", "z", "q"):
        getattr(attn, f"hook_{name}").add_hook(lambda t, hook, name=name: seen.update({name: t}))
    y = attn(x, x_v)
    torch.testing.assert_close(seen["gate"], attn.gate(seen["q"], x, x_v), rtol=0, atol=0)
    torch.testing.assert_close(seen["z"], seen["gate"] * seen["z_ungated"], rtol=0, atol=0)
    torch.testing.assert_close(y, seen["z"].flatten(2) @ attn.o.weight.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen["q"].flatten(2), x @ attn.q.weight.T, rtol=1e-12, atol=1e-12)


# ---- FFN, dropout ------------------------------------------------------------------------------


@torch.no_grad()
def test_ffn_plain_and_gated() -> None:
    x = random(2, 5, 32)
    mlp = shake(Mlp(build("pls", "tiny").config))
    h = x @ mlp.up.weight.T + mlp.up.bias
    h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))  # the exact GELU
    torch.testing.assert_close(mlp(x), h @ mlp.down.weight.T + mlp.down.bias, rtol=1e-12, atol=1e-12)
    gated = shake(Mlp(build("d-cas", "tiny", **{"mlp.gate": "dns", "mlp.activation": "silu"}).config))
    g = x @ gated.gate.weight.T
    h = g / (1 + torch.exp(-g)) * (x @ gated.up.weight.T)
    torch.testing.assert_close(gated(x), h @ gated.down.weight.T, rtol=1e-12, atol=1e-12)


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
