"""What an edit does: to its reader only, at every hook, in place or not, and to gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.models.config.presets import PRESETS
from streamscope.models.hooks import capture, edit, expected_hooks
from streamscope.models.layers.hdpl import HdplProjection
from streamscope.models.layers.projections import Projection
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import PARTS, randomise, some

TOKENS = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(1))
VALUE_PATHS = {"own": {}, "shared": {"residual.values": "combined"}, "raw": {"residual.value_norm": False}}
IDENTITY = {"attention.v": "id", "attention.o": "id"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in PRESETS}
MODELS |= {
    "identity-std-t": ("std-t", IDENTITY | {"attention.q": "id", "attention.k": "id"}),
    "identity-lfa": ("lfa", IDENTITY),
    "identity-ffn": (
        "std-t",
        {"positions": "rope", "mlp.d_mlp": 32, "mlp.gate": "id", "mlp.up": "id", "mlp.down": "id"},
    ),
    "values-token-own": ("lfa", {"residual.value_norm": True}),
    "values-combined-raw": ("dst-kron", {"residual.values": "combined", "residual.value_norm": False}),
    "parallel": ("dst-kron", {"residual.order": "parallel"}),
    **{f"canon-{path}": ("dst-kron", {"canon": "canon", **changes}) for path, changes in VALUE_PATHS.items()},
    "kromcanon-static": ("kromcanon", {"residual.dynamic": False}),
    "alibi-rms": ("pls", {"positions": "alibi", "norm": "rms", "readout.norm": "rms"}),
}

DISTINCT = [name for name in MODELS if name not in ("d-cas", "dst-dense", "dst-ind", "dst-full-ind", "c2")]
"""Without the presets whose hooks another one has."""
OTHER_READERS = {name for name in MODELS if name.startswith(("canon-", "values-"))}
OTHER_READERS |= {"identity-lfa", "parallel", "alibi-rms"}
"""Models in which Q, K, V or the FFN read something else than in any of the presets."""


def make(name: str) -> StreamTransformer:
    preset, overrides = MODELS[name]
    return randomise(build(preset, "tiny", init_std=0.3, **overrides).double(), std=0.2)


def editable(model: StreamTransformer) -> list[str]:
    return [name for name, row in expected_hooks(model.config) if row.edit(model.config)]


def on_demand(model: StreamTransformer) -> set[str]:
    return {name for name, row in expected_hooks(model.config) if row.on_demand}


def normed(x: Tensor, model: StreamTransformer, norm: torch.nn.Module) -> Tensor:
    """The normalisation written out, with γ and β of a norm."""
    x = x.unflatten(-1, (model.config.n_heads, -1)) if model.config.norm.kind == "channel" else x[..., None, :]
    x = x if model.config.norm.kind == "rms" else x - x.mean(-1, keepdim=True)
    y = (x / (x.pow(2).mean(-1, keepdim=True) + model.config.norm.eps).sqrt()).flatten(-2) * norm.weight
    return y if norm.bias is None else y + norm.bias


def applied(projection: Projection, x: Tensor) -> Tensor:
    if isinstance(projection, HdplProjection):
        return projection(x)
    return x @ projection.matrix() + projection.bias_or_zeros()


def bend(x: Tensor, hook: Any) -> Tensor:
    return x.roll(1, -1) * 1.3 + 0.2


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("reader", ["hook_attn_in", "hook_attn_v_in", "hook_mlp_in"])
@pytest.mark.parametrize("name", some(DISTINCT, OTHER_READERS | set(PARTS)))
def test_readers(name: str, reader: str, grad: bool) -> None:
    """Q and K, V, and the FFN are computed from their own input; the streams do not see the edit."""
    model = make(name)
    block = model.blocks[1]
    names = [f"blocks.1.{n}" for n in ("attn.hook_q", "attn.hook_k", "attn.hook_v", "hook_attn_out", "mlp.hook_pre")]
    streams = model.config.residual.streams or ("resid",)
    names += [f"blocks.1.hook_{s}_{place}" for s in (*streams, "resid") for place in ("pre", "mid")]
    hyper = "streams" in streams
    names += [f"blocks.1.{b}_hc.hook_{c}" for b in ("attn", "mlp") for c in ("pre", "res", "post") if hyper]
    with torch.set_grad_enabled(grad), edit(model, {f"blocks.1.{reader}": bend}), capture(model, names) as found:
        model(TOKENS)
    x = {n.removeprefix("blocks.1."): v for n, v in found.items()}
    spec, resid = model.config.residual, x["hook_resid_pre"]
    from_token = getattr(spec, "values", "") == "token"
    reads = {"hook_attn_in": resid, "hook_attn_v_in": x["hook_token_pre"] if from_token else resid}
    reads["hook_mlp_in"] = resid if getattr(spec, "order", "") == "parallel" else x["hook_resid_mid"]
    updated = resid + x["hook_attn_out"]
    if hyper:
        X, post = x["hook_streams_pre"], x["attn_hc.hook_post"]
        reads = dict.fromkeys(reads, torch.einsum("btn,btnd->btd", x["attn_hc.hook_pre"], X))
        reads["hook_mlp_in"] = torch.einsum("btn,btnd->btd", x["mlp_hc.hook_pre"], x["hook_streams_mid"])
        mixed = torch.einsum("btij,btjd->btid", x["attn_hc.hook_res"], X)
        updated = (mixed + post[..., None] * x["hook_attn_out"][..., None, :]).mean(-2)
    reads[reader] = bend(reads[reader], None)

    def canon(place: str, y: Tensor) -> Tensor:
        return getattr(block, f"canon_{place}")(y) if place in model.config.canon_widths() else y

    qk = canon("a", normed(reads["hook_attn_in"], model, block.ln1))
    ffn = canon("c", normed(reads["hook_mlp_in"], model, block.ln2))
    v = reads["hook_attn_v_in"]
    v = v if spec.value_path == "raw" else normed(v, model, getattr(block, "ln1_v", block.ln1))
    v = canon("a", v) if spec.value_path == "shared" else v
    attn, first = block.attn, block.mlp.gate if model.config.mlp.gate else block.mlp.up
    expected = canon("b", torch.cat([applied(attn.q, qk), applied(attn.k, qk), applied(attn.v, v)], -1))
    for letter, value in zip("qkv", expected.chunk(3, -1), strict=True):
        torch.testing.assert_close(x[f"attn.hook_{letter}"].flatten(-2), value.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(x["mlp.hook_pre"], canon("d", applied(first, ffn)).detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(x["hook_resid_mid"], updated, rtol=0, atol=1e-12)


@pytest.mark.parametrize("grad", some([False, True], [True]))
@pytest.mark.parametrize(
    "name",
    some(["std-t", "lfa", "dst-kron", "pls", "alibi-rms", "identity-lfa", "kromcanon"], ["lfa", "pls", "kromcanon"]),
)
def test_writing_the_same_value_back(name: str, grad: bool) -> None:
    model = make(name)
    with torch.set_grad_enabled(grad):
        plain = model(TOKENS)
        for hook in editable(model):
            reference = plain
            if hook in on_demand(model):
                with capture(model, hook):
                    reference = model(TOKENS)
            for same in (lambda x, hook: x, lambda x, hook: x.clone()):
                with edit(model, {hook: same}):
                    assert torch.equal(model(TOKENS), reference), hook


@pytest.mark.parametrize("name", some(DISTINCT, {*PARTS, "identity-lfa"}))
@torch.no_grad()
def test_in_place_hooks_do_not_reach_parameters_or_cached_states(name: str) -> None:
    """TransformerLens style, x[:] = 0; return x: weights and a state given to `segment` stay."""
    model = make(name)

    def wipe(x: Tensor, hook: Any) -> Tensor:
        x[:] = 0
        return x

    def tensors(state: Any) -> list[Tensor]:
        return [state.clone()] if isinstance(state, Tensor) else [x.clone() for x in state if x is not None]

    start = model.embed_tokens(TOKENS)
    states = {"blocks.0.": start, "blocks.1.": model.segment(start, 0, 1)}
    copies = {prefix: tensors(state) for prefix, state in states.items()}
    weights = {n: p.clone() for n, p in model.named_parameters()}
    for hook in editable(model):
        with model.hooks(fwd_hooks=[(hook, wipe)]):
            if hook[:9] in states:
                model.segment(states[hook[:9]], int(hook[7]))
                assert all(map(torch.equal, tensors(states[hook[:9]]), copies[hook[:9]])), hook
            else:
                model(TOKENS)
        for n, p in model.named_parameters():
            assert torch.equal(p, weights[n]), f"{hook} changed {n}"


@pytest.mark.parametrize("name", some(MODELS, {*PARTS, "identity-lfa", "identity-ffn", "parallel"}))
@torch.no_grad()
def test_every_editable_hook_is_live_and_in_place_is_the_same_as_out_of_place(name: str) -> None:
    """Another value there changes the logits: a ramp, for a context is zero so far and equal streams are normed."""
    model = make(name)
    plain = model(TOKENS)

    def in_place(x: Tensor, hook: Any) -> Tensor:
        x[0, ..., ::2] = torch.linspace(0.2, 1.1, (x.shape[-1] + 1) // 2, dtype=x.dtype).sin()
        return x

    def out_of_place(x: Tensor, hook: Any) -> Tensor:
        return in_place(x.clone(memory_format=torch.contiguous_format), hook)

    for hook in editable(model):
        logits = []
        for fn in (in_place, out_of_place):
            with model.hooks(fwd_hooks=[(hook, fn)]):
                logits.append(model(TOKENS))
        assert torch.equal(*logits), hook
        assert (logits[0] - plain).abs().max() > 1e-6, hook


@pytest.mark.parametrize("name", ["std-t", "dst-kron", "lfa", "pls", "hdpl", "kromcanon"])
def test_a_gradient_does_not_depend_on_who_else_watches(name: str) -> None:
    """Not so inside ln1 and Canon-A where Q, K and V share them: with both readers captured each computes them."""
    model = make(name)
    chosen = [n for n in editable(model) if ".ln1." not in n and "canon_a" not in n]
    with capture(model, chosen, grad=True) as found:
        loss = model(TOKENS, return_type="loss")
    together = torch.autograd.grad(loss, [found[n] for n in chosen])
    for n, expected in zip(chosen, together, strict=True):
        assert expected.isfinite().all() and expected.abs().max() > 0, n
        with capture(model, n, grad=True) as alone:
            loss = model(TOKENS, return_type="loss")
        (g,) = torch.autograd.grad(loss, alone[n])
        torch.testing.assert_close(g, expected, rtol=1e-6, atol=1e-9, msg=n)


@pytest.mark.parametrize("hook", ["hook_attn_in", "hook_attn_v_in", "hook_mlp_in", "attn.hook_z", "attn.hook_pattern"])
@pytest.mark.parametrize("name", ["std-t", "lfa", "pls"])
def test_gradients_agree_with_edits(name: str, hook: str) -> None:
    """The gradient of a hook predicts what a small edit there does to the loss (central difference)."""
    model, full = make(name), f"blocks.1.{hook}"
    with capture(model, full, grad=True) as found:
        loss = model(TOKENS, return_type="loss")
    (g,) = torch.autograd.grad(loss, found[full])
    direction, step = torch.randn(g.shape, dtype=g.dtype, generator=torch.Generator().manual_seed(2)), 1e-5
    losses = []
    for sign in (1, -1):
        with torch.no_grad(), edit(model, {full: lambda x, hook, s=sign: x + s * step * direction}):
            losses.append(model(TOKENS, return_type="loss"))
    slope = (losses[0] - losses[1]) / (2 * step)
    torch.testing.assert_close(slope, (g * direction).sum(), rtol=1e-5, atol=1e-8)


def test_gradients_without_trainable_weights() -> None:
    model, name = make("std-t").requires_grad_(False), "blocks.0.hook_resid_pre"
    with capture(model, name, grad=True) as found:
        loss = model(TOKENS, return_type="loss")
    assert torch.autograd.grad(loss, found[name])[0].abs().max() > 0
