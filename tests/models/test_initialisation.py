"""How weights start: by rule, by preset, and what the first layer then writes."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models import build
from streamscope.models import config as c
from streamscope.models.checkpoint import bundled, run_folder
from streamscope.models.config.presets import PRESETS, preset
from streamscope.models.config.serialization import from_dict, override, to_dict
from streamscope.models.hooks import capture
from streamscope.models.transformer import StreamTransformer

AUTHORS = ("llama", "hdpl")  # torch's defaults
PORT = ("gpt2", "canon", "kromhc", "kromcanon")  # MLX's defaults


def deviation(name: str, config: c.ModelConfig) -> float | None:
    """The standard deviation at which a parameter starts, by SPEC §1.1, §5, §9; None: by no such rule."""
    d, last = config.d_model, name.split(".")[-2]
    if ".canon_" in name:
        return 0.5 / math.sqrt(3)
    if last == "v" and getattr(config.residual, "value_norm", True) is False:  # raw values, as large as normed ones
        return 1 / (0.02 * math.sqrt(d if config.attention.v.kind == "dense" else config.d_head))
    if last not in ("embed", "pos_embed", "unembed", *"qkvo", "up", "down") and not name.endswith("mlp.gate.weight"):
        return None
    if config.name == "hdpl" and last in (*"qkv", "up", "gate"):
        return None
    if config.name in PORT and "embed" in name:
        return 1 / math.sqrt(d)
    if config.name in (*AUTHORS, *PORT):
        return 1 / math.sqrt(3 * (4 * d if last == "down" else d))
    return 0.02 / math.sqrt(2 * config.n_layers) if last in ("o", "down") else 0.02


@pytest.mark.parametrize("name", PRESETS)
def test_every_weight_starts_at_the_spread_of_its_formula(name: str) -> None:
    model = build(name, "small")
    seen = set()
    for parameter, p in model.state_dict().items():
        std = deviation(parameter, model.config) if parameter.endswith("weight") else None
        if std is None:
            continue
        seen.add(parameter.split(".")[-2])
        n = p.numel()
        assert abs(float(p.detach().mean())) < 5 * std / math.sqrt(n), parameter
        assert abs(float(p.detach().pow(2).mean().sqrt()) / std - 1) < 5 / math.sqrt(2 * n), parameter
        uniform = name in AUTHORS or (name in PORT and "embed" not in parameter)
        within = math.sqrt(3) * std * 1.0001
        assert (p.abs().max() <= within) == uniform or n < 100, f"{parameter}: uniform or normal"
    assert {"embed", "o", "down"} <= seen
    if name in AUTHORS:
        assert torch.equal(model.unembed.weight, model.embed.weight) and model.unembed.weight is not model.embed.weight


def test_what_layer_0_writes_before_training() -> None:
    """The audit's figures (SPEC §9), to 5 %: a Kronecker map of N(0, .02) starts 54 times weaker than a dense one."""
    found, tokens = {}, torch.randint(4096, (8, 64), generator=torch.Generator().manual_seed(0))
    for name in ("dst-dense", "dst-kron", "lfa"):
        changes = {"attention.v.init": "none"} if name == "lfa" else {}  # not the preset's rule for raw values
        with torch.no_grad(), capture(model := build(name, "small", **changes), "blocks.0.hook_attn_out") as seen:
            model(tokens)
        found[name] = float(seen["blocks.0.hook_attn_out"].std())
    assert found == pytest.approx({"dst-dense": 5.9e-3, "dst-kron": 1.1e-4, "lfa": 2.1e-5}, rel=0.05)


def test_rules_by_projection() -> None:
    """Fan-ins 192 dense, 32 of a block, 6 Kronecker; o is divided by sqrt(12) unless that is switched off."""
    changes = {"attention.q": "ind", "attention.v": "kron", "mlp.up.init": "orthogonal", "mlp.up.init.gain": "2"}
    changes |= {f"attention.{p}.init": "fan_in_uniform" for p in "qkvo"}
    model = build("std-t", "small", **changes)
    attn = model.blocks[0].attn
    for name, fan_in, scale in [("q", 32, 1), ("k", 192, 1), ("v", 6, 1), ("o", 192, 12**-0.5)]:
        bound = scale * fan_in**-0.5
        top = float(getattr(attn, name).weight.detach().abs().max())
        assert 0.8 * bound < top <= bound, name
    up = model.blocks[0].mlp.up.weight
    torch.testing.assert_close(up.T @ up, 4 * torch.eye(192), rtol=0, atol=1e-4)
    plain = build("std-t", "small", **changes, **{"init.scale_residual": False}).blocks[0].attn
    torch.testing.assert_close(attn.o.weight * 12**0.5, plain.o.weight)
    changes = {"attention.v": "ind", "attention.o": "kron", "init.weights": "orthogonal", "init.scale_residual": False}
    changes |= {"init.embed.std": 0.3, "init.positions": "fan_in_normal"}
    model = build("std-t", "small", **changes)
    attn = model.blocks[1].attn
    for block in (*attn.v.weight, attn.o.weight, attn.q.weight):
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)), rtol=0, atol=1e-5)
    assert not torch.equal(attn.v.weight[0], attn.v.weight[1])
    assert float(model.embed.weight.detach().std()) == pytest.approx(0.3, rel=0.01)
    assert float(model.pos_embed.weight.detach().std()) == pytest.approx(192**-0.5, rel=0.03)


@pytest.mark.parametrize("changes", [
    {},
    {"init.embed": "fan_in_normal", "init.weights": "fan_in_normal"},
    {"init.embed": "fan_in_uniform", "attention.v": "kron", "attention.v.init": "unit_output"},
    {"init.embed": "orthogonal", "embed_scale": 3.0},
    {"positions": "learned", "init.positions.std": 0.05, "attention.v": "dns", "attention.v.init": "unit_output"},
], ids=["preset", "fan-in", "kron", "scaled", "learned"])  # fmt: skip
def test_raw_values_start_as_large_as_normed_ones(changes: dict[str, Any]) -> None:
    """LFA Eq. 2 keeps its raw values; what a head copies has size 1 at the start, as with the norm of DST Eq. 8."""

    def size(**more: Any) -> float:
        model = build("lfa", "small", **(changes | more), d_vocab=500)
        tokens = torch.randint(500, (9, 31), generator=torch.Generator().manual_seed(4))
        with torch.no_grad(), capture(model, ["blocks.*.attn.hook_v"]) as values:
            model(tokens)
        return float(torch.stack(list(values.values())).square().mean().sqrt())

    assert size() == pytest.approx(1, rel=0.12)
    assert size(**{"attention.v.init.gain": 3.0}) == pytest.approx(3 * size(), rel=1e-4)
    assert size(**{"attention.v.init": "none"}) < 0.2, "the old start can be set"


@pytest.mark.parametrize("name", ["llama", "kromcanon", "lfa"])
def test_init_std_alone_means_normal_everywhere(name: str) -> None:
    """Else `--set init_std=` would change nothing, in silence, where a preset's rules are not N(0, σ)."""
    config = preset(name, "tiny", init_std="0.2")
    assert config.init == c.Initial() and config.init_std == 0.2
    assert float(build(config).embed.weight.detach().std()) == pytest.approx(0.2, rel=0.05)
    kept = preset(name, "tiny", **{"init_std": 0.2, "init.embed": "fan_in_normal"})
    assert kept.init == override(preset(name, "tiny"), {"init.embed": "fan_in_normal"}).init


@pytest.mark.parametrize("name", bundled())
def test_configurations_without_rules_mean_what_they_meant(name: str) -> None:
    """N(0, .02) drawn one parameter after the other from one generator, as before there were rules."""
    data = json.loads((run_folder(name) / "config.json").read_text())["model"]
    data.pop("init", None)
    for part in (*data["attention"].values(), *data["mlp"].values()):
        if isinstance(part, dict):
            part.pop("init", None)
    config = from_dict(c.ModelConfig, data)
    assert config.init == c.Initial() and from_dict(c.ModelConfig, to_dict(config)) == config
    if name == "stories/hdpl" or config.canon is not None:
        return  # their modules draw by rules of their own in between
    generator = torch.Generator().manual_seed(3)
    for parameter, p in StreamTransformer(config, seed=3).named_parameters():
        last, kind = parameter.split(".")[-2:]
        drawn = last in ("embed", "pos_embed", "unembed", *"qkvo", "up", "down") or ".mlp.gate" in parameter
        if drawn and kind == "weight":
            std = 0.02 * (12**-0.5 if last in ("o", "down") else 1)
            assert torch.equal(p, torch.empty(p.shape).normal_(0, std, generator=generator)), parameter
        elif parameter.endswith("attn.gate.weight"):
            torch.empty(p.shape).normal_(0, 1.0, generator=generator)  # a draw with σ 0


class Part(torch.nn.Module):
    """A part with a weight and, perhaps, a child; `fill` sets weights as its `init_weights`."""

    def __init__(self, fill: Callable[[Any, torch.Generator], Any], inner: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.fill, self.inner = fill, inner
        self.weight = torch.nn.Parameter(torch.full((3,), 2.7e18))  # what memory may hold

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        self.fill(self, generator)


def draw(part: Any, generator: torch.Generator) -> None:
    torch.nn.init.normal_(part.weight, generator=generator)


def with_part(part: torch.nn.Module) -> Any:
    model = build("std-t", "tiny")
    model.blocks[1].part = part
    model.init_weights(3)
    return model.blocks[1].part


def test_a_part_with_weights_of_its_own_leaves_none_of_its_children_unset() -> None:
    found, again = (with_part(Part(lambda part, _: part.weight.data.fill_(2), Part(draw))) for _ in range(2))
    assert found.weight.tolist() == [2, 2, 2] and torch.equal(found.inner.weight, again.inner.weight)
    assert float(found.inner.weight.detach().abs().max()) < 9
    last = with_part(Part(lambda part, _: (part.weight.data.fill_(2), part.inner.weight.data.zero_()), Part(draw)))
    assert not last.inner.weight.any(), "a part sets its children last"
    order = torch.nn.Parameter(torch.arange(3), requires_grad=False)  # no weight, though a parameter
    assert with_part(torch.nn.ParameterList([order]))[0].tolist() == [0, 1, 2]


def test_a_weight_that_nothing_sets_is_named() -> None:
    for bias, line in ((True, r" \(nor have 1 others\)"), (False, ": .*init_weights")):
        with pytest.raises(InputError, match=rf"blocks\.1\.part\.inner\.weight has no initial value{line}"):
            with_part(Part(draw, torch.nn.Linear(2, 3, bias=bias)))
