"""The controls of a model as JSON: what they change, what they refuse, and that each does what its instrument does."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.interventions.amplify.measure import amplification
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.streams.measure import replace_at, zero
from streamscope.models.config.presets import PRESETS
from streamscope.models.head_spec import Head
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import Control, control_values, controls, edits_of
from streamscope.models.make import build
from tests.tiny import randomise, refused


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: randomise(build(name, "tiny")).eval() for name in ("lfa", "dst-kron", "pls", "kromcanon", "gpt2")}


def tokens(model: Any) -> Tensor:
    return torch.randint(0, model.config.d_vocab, (2, 13), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, edits: Any) -> Tensor:
    with edit(model, edits):
        return model(tokens(model))


@torch.no_grad()
def activation(model: Any, edits: Any, hook: str) -> Tensor:
    with edit(model, edits), capture(model, hook) as seen:
        model(tokens(model))
    return seen[hook]


def test_heads_are_scaled_and_sharpened_as_by_the_interventions(models: dict[str, Any]) -> None:
    model = models["lfa"]
    for data, edits in (
        ({"heads": {"L1.H2": {"scale": -0.5}}}, scale_heads([Head(1, 2)], -0.5)),
        ({"heads": {"L0.H1": {"alpha": 4}}}, amplification(model, 4.0, [Head(0, 1)])),
    ):
        got = logits(model, edits_of(data, model))
        assert torch.allclose(got, logits(model, edits), atol=1e-5)
        assert (got - logits(model, {})).abs().max() > 1e-2


def test_streams_are_switched_off_as_by_the_interventions(models: dict[str, Any]) -> None:
    for name, stream in (("dst-kron", "token"), ("lfa", "context"), ("kromcanon", "s2")):
        model = models[name]
        for reader, edits in (
            ("unembedding", replace_at(stream, zero, "head", "", 2)),
            ("everywhere", replace_at(stream, zero, "everywhere", "", 2)),
        ):
            got = logits(model, edits_of({"streams": {stream: reader}}, model))
            assert torch.allclose(got, logits(model, edits), atol=1e-5), (name, reader)
            assert (got - logits(model, {})).abs().max() > 1e-2
    both = edits_of({"streams": {"context": "everywhere", "token": "unembedding"}}, models["lfa"])
    expected = replace_at("context", zero, "everywhere", "", 2) | replace_at("token", zero, "head", "", 2)
    assert torch.allclose(logits(models["lfa"], both), logits(models["lfa"], expected), atol=1e-5)


def test_gates_are_forced(models: dict[str, Any]) -> None:
    hook = "blocks.1.attn.hook_gate"
    gate = activation(models["pls"], edits_of({"heads": {"L1.H0": {"gate": "open"}}}, models["pls"]), hook)
    assert (gate[:, :, 0] == 1).all() and (gate[:, :, 1] < 1).all()
    shut = {"heads": {"L1.*": {"gate": "shut"}}}
    assert (activation(models["pls"], edits_of(shut, models["pls"]), "blocks.1.attn.hook_z") == 0).all()


def test_mixing_becomes_the_identity(models: dict[str, Any]) -> None:
    kron = models["dst-kron"]
    for name, edits, hook, n in (
        ("dst-kron", {"mixing": ["L1.v"]}, "blocks.1.attn.hook_v_mix", 4),
        ("lfa", {"mixing": ["L0.o"]}, "blocks.0.attn.hook_o_mix", 8),
        ("kromcanon", {"h_res": ["L1.attn"]}, "blocks.1.attn_hc.hook_res", 4),
    ):
        W = activation(models[name], edits_of(edits, models[name]), hook)
        assert torch.equal(W, torch.eye(n).expand_as(W))
        assert name != "dst-kron" or (W - activation(models[name], {}, hook)).abs().max() > 0.1
    with torch.no_grad():  # in place of W the identity, in a copy of the model
        other = randomise(build("dst-kron", "tiny")).eval()
        other.blocks[1].attn.v.weight.copy_(torch.eye(4))
    assert torch.allclose(logits(kron, edits_of({"mixing": ["L1.v"]}, kron)), logits(other, {}), atol=1e-5)


def test_a_canon_layer_that_is_off_adds_nothing(models: dict[str, Any]) -> None:
    model = models["kromcanon"]
    with torch.no_grad():  # a kernel of zeros, in a copy of the model
        other = randomise(build("kromcanon", "tiny")).eval()
        other.blocks[0].canon_b.weight.zero_()
    got = logits(model, edits_of({"canon": ["L0.b"]}, model))
    assert torch.allclose(got, logits(other, {}), atol=1e-5)
    assert (got - logits(model, {})).abs().max() > 1e-2


def test_only_what_is_changed_is_edited(models: dict[str, Any]) -> None:
    model = models["kromcanon"]
    assert edits_of({}, model) == {} and edits_of({"heads": {"L0.H1": {"scale": 1, "alpha": 1.0}}}, model) == {}
    got = edits_of({"heads": {"L1.H3": {"scale": 0}}, "canon": ["L0.a"]}, model)
    assert set(got) == {"blocks.1.attn.hook_z", *(f"blocks.0.canon_{place}.hook_conv" for place in "abcd")}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_control_or_a_reason(name: str) -> None:
    model = build(name, "tiny")
    found = controls(model.config)
    for key, one in found.items():
        if isinstance(one, str):
            assert one.startswith(("this model", "its ")) and not one.endswith(".")
        else:
            assert torch.equal(control_values({}, model.config)[key], one.unchanged())
    assert {"head_scale", "alpha"} <= {key for key, one in found.items() if isinstance(one, Control)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"head": {}}', "unknown key of the edits 'head': did you mean heads?"),
        ('{"heads": {"L9.H0": {"scale": 0}}}', "'L9.H0': this model has layers 0 to 1"),
        ('{"heads": {"H0": {"scale": 0}}}', "'H0' does not name a head: .*"),
        ('{"heads": {"L0.H0": {"scales": 0}}}', "unknown key of L0.H0 'scales': did you mean scale?"),
        ('{"heads": {"L0.H0": {"scale": "0"}}}', "L0.H0.scale must be a finite number, got '0'"),
        ('{"heads": {"L0.H0": {"scale": NaN}}}', "L0.H0.scale must be a finite number, got nan"),
        ('{"heads": {"L0.H0": {"scale": 1e39}}}', r"L0.H0.scale must be a finite number, got 1e\+39"),
        ('{"heads": {"L0.H0": {"scale": 1' + "0" * 400 + "}}}", "L0.H0.scale must be a finite number, got 10+"),
        ('{"heads": {"L0.H0": {"alpha": 1e-50}}}', "L0.H0.alpha must be a finite number above 0, got 1e-50"),
        ('{"heads": {"L0.H0": {"scale": true}}}', "L0.H0.scale must be a finite number, got True"),
        ('{"heads": {"L0.H0": {"alpha": 0}}}', "L0.H0.alpha must be a finite number above 0, got 0"),
        ('{"heads": {"L0.H0": {"gate": "open"}}}', "L0.H0.gate cannot be changed: this model has no gates"),
        ('{"heads": {"L0.H0": 0}}', "L0.H0 must be an object, got 0"),
        ('{"streams": {"tokens": "everywhere"}}', "unknown stream 'tokens': did you mean token?"),
        ('{"streams": {"token": "nowhere"}}', "streams.token must be unembedding or everywhere, got 'nowhere'"),
        ('{"canon": ["L0.a"]}', "canon cannot be changed: this model has no Canon layers"),
        ('{"mixing": "L0.v"}', "mixing must be a list of places, .*"),
        ('{"latents": {"d": [-1]}}', r"latents of d must be a list of numbers, such as \[17\], got \[-1\]"),
        ('{"mixing": ["L0.q"]}', "unknown place of mixing in 'L0.q' 'q': .*"),
    ],
)  # fmt: skip
def test_wrong_edits_are_one_line(models: dict[str, Any], text: str, line: str) -> None:
    with refused(f"^{line}$".replace("{", r"\{").replace("?$", r"\?$")):
        control_values(json.loads(text), models["lfa"].config)


def test_a_bridge_has_heads_only() -> None:
    class Shape:
        n_layers, n_heads = 2, 3

    assert control_values({"heads": {"L1.H2": {"scale": 0}}}, Shape)["head_scale"][1, 2] == 0
    with refused("stream token cannot be changed: this model runs in a bridge"):
        control_values({"streams": {"token": "everywhere"}}, Shape)
