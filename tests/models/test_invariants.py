"""What holds for every architecture: causality, padding, segments, the frozen stream, configurations."""

import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models import config as c
from streamscope.models.config.presets import PRESETS, preset
from streamscope.models.config.serialization import from_dict, kinds, override, parse_mixing, to_dict
from streamscope.models.hooks import capture, edit
from streamscope.models.layers.residual import map_state
from streamscope.models.make import build
from tests.tiny import PARTS, randomise, some

VECTOR = c.Gate(shape="vector", source="normed", bias=True, init="normal")
SWIGLU = c.Mlp(gate=c.Independent(), activation="silu")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in PRESETS}
SLOW = {name for name in PRESETS if name not in PARTS}
for kind, order, values, raw in itertools.product(
    ("token_factor", "frozen_token"), ("sequential", "parallel"), ("token", "combined"), (False, True)
):
    part = kinds(c.Residual)[kind](order=order, values=values, value_norm=not raw)
    VARIANTS[f"{kind} {order} {values}{' raw' if raw else ''}"] = ("dst-kron", {"residual": part})
    if (kind == "frozen_token") ^ (order == "parallel") ^ (values == "combined") ^ raw:  # any three choices stay
        SLOW.add(list(VARIANTS)[-1])
for positions in ("rope", "alibi", "learned", "none"):
    VARIANTS[f"positions {positions}"] = ("lfa", {"positions": positions})
for mixing in ("id-id/dns-dns", "kron-ind/ind-dns", "ind-kron/dns-ind", "dns-id/ind-ind"):
    VARIANTS[f"mixing {mixing}"] = ("lfa", {"mixing": mixing})
VARIANTS |= {
    "q kron, k ind": ("lfa", {"attention.q": "kron", "attention.k": "ind"}),
    "gate vector, normed": ("dst-ind", {"attention.gate": VECTOR}),
    "gate scalar, value": ("std-t", {"attention.gate": c.Gate(source="value", init="normal")}),
    "swiglu, rms": ("std-t", {"mlp": SWIGLU, "norm": "rms", "readout.norm": "rms"}),
    "partial rope": ("std-t", {"positions": c.Rope(fraction=0.25)}),
    "untied": ("lfa", {"readout.tied": False}),
    "own layer norms": ("pls", {"readout.layer_norms": "own"}),
    "detached token stream": ("lfa", {"residual.detach_token": True}),
    "canon, swiglu, k 2": ("gpt2", {"canon": c.Canon(kernel=2, activation="silu"), "mlp": SWIGLU}),
    "canon AD, no residual, own values": ("dst-kron", {"canon": c.Canon(places="AD", residual=False)}),
    "supervised, gated, kromhc, canon": ("pls", {"residual": "kromhc", "canon": "canon"}),
}
for connection in ("hc", "mhc", "mhc_lite", "kromhc"):
    mild = {} if connection == "hc" else {"residual.b_res": -1.0}
    for option, value in [("dynamic", True), ("dynamic", False), ("freeze_res", True), ("post_input", "mixed")]:
        VARIANTS[f"{connection}, {option} {value}"] = (
            "gpt2",
            {"residual": connection, f"residual.{option}": value, **mild},
        )
        if connection != "kromhc" and (option, value) != ("dynamic", True):
            SLOW.add(list(VARIANTS)[-1])
FROZEN = [
    name for name, (base, over) in VARIANTS.items() if preset(base, "tiny", **over).residual.kind == "frozen_token"
]
SLOW |= {"positions learned", "positions rope", "mixing kron-ind/ind-dns", "mixing dns-id/ind-ind", "partial rope"}
SLOW |= {"q kron, k ind", "canon, swiglu, k 2", "kromhc, freeze_res True"}  # parts that the others have too
every = pytest.mark.parametrize("variant", some(VARIANTS, VARIANTS.keys() - SLOW))


def make(variant: str, **more: Any) -> Any:
    """A tiny model in float64, its weights large enough that every part matters, γ and β included."""
    name, overrides = VARIANTS[variant]
    return randomise(build(name, "tiny", **overrides, **more).double(), std=0.1)


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(seed))


def flat(state: Any) -> list[Tensor]:
    return [t for t in state if t is not None] if isinstance(state, tuple) else [state]


@every
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_logit(variant: str) -> None:
    model, x = make(variant), tokens(1, 12)
    before = model(x)
    for position in (1, 6, 11):
        y = x.clone()
        y[0, position] = (y[0, position] + 1) % 256
        after = model(y)
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-10)
        assert (after[:, position] - before[:, position]).abs().max() > 1e-4, "and it does change its own"


@pytest.mark.parametrize("variant", FROZEN)
@torch.no_grad()
def test_the_frozen_stream_is_the_embedding_bit_for_bit(variant: str) -> None:
    model, x = make(variant, n_layers=4), tokens()
    with capture(model, ["hook_embed", "blocks.*.hook_token_*", "blocks.*.hook_context_post"]) as found:
        model(x)
    start = model.embed_tokens(x)
    assert torch.equal(model.segment(start).x_t, start.x_t)
    for name in [n for n in found if "token" in n]:
        assert torch.equal(found[name], start.x_t), name
    if not model.config.positions.table:
        assert torch.equal(start.x_t, found["hook_embed"])
    assert all(found[f"blocks.{layer}.hook_context_post"].abs().min() > 0 for layer in range(4))


@every
@torch.no_grad()
def test_segments_compose_bit_for_bit(variant: str) -> None:
    model, x = make(variant, n_layers=3), tokens()
    whole = model.segment(model.embed_tokens(x))
    for stop in range(4):
        halves = model.segment(model.segment(model.embed_tokens(x), 0, stop), stop)
        assert all(torch.equal(a, b) for a, b in zip(flat(halves), flat(whole), strict=True))
    assert torch.equal(model.logits(whole), model(x))
    prefix = model.segment(model.embed_tokens(x), 0, 1)
    kept = [t.clone() for t in flat(prefix)]
    model.segment(prefix, 1)
    assert all(torch.equal(a, b) for a, b in zip(kept, flat(prefix), strict=True)), "a cached state stays as it was"
    state = map_state(lambda t: torch.cat([t, t, t]), prefix)
    torch.testing.assert_close(model.logits(model.segment(state, 1)), model(x).repeat(3, 1, 1), rtol=0, atol=1e-10)


@every
@torch.no_grad()
def test_logits_at_are_a_slice_of_all_logits(variant: str) -> None:
    model, x = make(variant), tokens()
    full, at = model(x), torch.tensor([[3, 0, -1], [11, -12, 5]])
    torch.testing.assert_close(model(x, logits_at=at), full[torch.arange(2)[:, None], at], rtol=0, atol=1e-10)
    one_each = model(x, logits_at=torch.tensor([4, -2]))
    torch.testing.assert_close(one_each, full[[0, 1], [4, 10]][:, None], rtol=0, atol=1e-10)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("variant", ["std-t", "lfa", "dst-kron", "pls", "kromcanon"])
def test_listening_and_empty_edits_change_nothing(variant: str, grad: bool) -> None:
    """With an edit of a norm in place, a listener (or an edit that returns what it got) has no effect."""
    model, x = make(variant), tokens()
    scale = {"blocks.0.ln1.hook_normalized": lambda n, hook: n * 3.0}
    with torch.set_grad_enabled(grad), edit(model, scale):
        alone = model(x)
        for name in ("blocks.0.hook_attn_in", "blocks.0.hook_attn_v_in", "blocks.0.hook_mlp_in"):
            with capture(model, name):
                torch.testing.assert_close(model(x), alone, rtol=0, atol=1e-10, msg=f"capture of {name}")
            with edit(model, {name: lambda t, hook: t.clone()}):
                torch.testing.assert_close(model(x), alone, rtol=0, atol=1e-10, msg=f"edit of {name}")


def test_detaching_the_token_stream_leaves_the_head_to_train_the_embedding() -> None:
    model, x = make("detached token stream"), tokens()
    model.loss(x, x)[0].backward()
    detached = model.embed.weight.grad.clone()
    model = make("lfa")
    model.loss(x, x)[0].backward()
    assert detached.any() and not torch.allclose(detached, model.embed.weight.grad)


@every
def test_the_seed_decides_the_weights_and_nothing_else(variant: str) -> None:
    name, overrides = VARIANTS[variant]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, other = (build(name, "tiny", seed=seed, **overrides).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not torch.equal(a["embed.weight"], other["embed.weight"])


# ---- configurations ----------------------------------------------------------------------------


@every
def test_configurations_survive_json(variant: str) -> None:
    name, overrides = VARIANTS[variant]
    config = preset(name, "tiny", **overrides)
    assert from_dict(c.ModelConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_every_signature() -> None:
    for v, o, up, down in itertools.product(["id", "ind", "kron", "dns"], repeat=4):
        signature = f"{v}-{o}/{up}-{down}"
        assert list(parse_mixing(signature).values()) == [v, o, up, down]
        if {up, down} & {"id", "kron"}:  # no square map from D to 4 D
            with pytest.raises(InputError, match="keeps the width"):
                preset("lfa", "tiny", mixing=signature)
            continue
        config = preset("lfa", "tiny", mixing=signature)
        assert config.mixing == signature and override(config, parse_mixing(signature)) == config


@pytest.mark.parametrize("name", PRESETS)
def test_the_signature_of_a_preset_gives_the_preset_back(name: str) -> None:
    """Setting the mixing that a model already has changes nothing: a bias of its FFN stays."""
    config = preset(name, "tiny")
    assert preset(name, "tiny", mixing=config.mixing) == config
