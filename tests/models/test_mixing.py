"""The mixing metrics on matrices set by hand, and against plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamscope.models import mixing
from streamscope.models.hooks import capture
from streamscope.models.make import build
from streamscope.models.mixing import factor_swaps, has_mixing, inert_modules, measure, no_mixing_message
from tests.tiny import randomise

TOKENS = torch.randint(1, 256, (2, 9), generator=torch.Generator().manual_seed(0))
TARGETS = TOKENS.roll(-1, 1)


def krom(b: float, **options: Any) -> Any:
    return build("kromhc", "tiny", **{"residual.b_res": b, **options}).eval()


def values(rows: list[dict[str, Any]], metric: str) -> list[float]:
    return [row["value"] for row in rows if row["metric"] == metric]


@pytest.mark.parametrize(
    ("b", "s", "off"), [(-8, 0.00034, 0.0016), (-2, 0.1192, 0.5386), (-1, 0.2689, 1.0941), (0, 0.5, 1.7321)]
)
def test_the_table_of_the_spec(b: float, s: float, off: float) -> None:
    """SPEC §1.5: swap and ‖H − I‖_F by bias, in every module; σ_2 = 1 − 2s."""
    rows = measure(krom(b))
    for metric, expected in (("swap_static", s), ("distance_static", off), ("sigma2_static", 1 - 2 * s)):
        found = values(rows, metric)
        assert len(found) == (8 if metric == "swap_static" else 4)
        assert found == pytest.approx([expected] * len(found), abs=1e-4), metric


def test_the_best_swap_of_the_paper() -> None:
    """L0/ffn of the blog: α .84, factor swaps .100 and .148 give .3735 and .4825 (SPEC §1.5); the sign of α is free."""
    gaps = torch.tensor([math.log(0.9 / 0.1), math.log(0.852 / 0.148)])
    model = krom(-2.0)
    module = model.blocks[0].mlp_hc
    with torch.no_grad():
        module.b["res"][:, 0], module.b["res"][:, 1] = gaps, 0.0
        module.alpha["res"].fill_(-0.84)
    rows = [r for r in measure(model) if r["module"] == "blocks.0.mlp_hc"]
    assert values(rows, "swap_static") == pytest.approx([0.1, 0.148], abs=1e-5)
    assert values(rows, "swap_best") == pytest.approx([0.3735, 0.4825], abs=5e-4)
    assert values(rows, "alpha_res") == pytest.approx([-0.84])


@torch.no_grad()
def test_numbers_that_are_not_finite_are_undefined() -> None:
    model = krom(-2.0)
    model.blocks[0].mlp_hc.alpha["res"].fill_(math.nan)
    (row,) = (r for r in measure(model) if r["metric"] == "alpha_res" and r["module"] == "blocks.0.mlp_hc")
    assert row["value"] is None and row["undefined"] == "not finite"


@torch.no_grad()
def test_no_token_exceeds_the_best_swap_and_some_come_near() -> None:
    """σ(−2 + 2 · ½) at α = ½, whatever W is."""
    model = krom(-2.0)
    for name, p in model.named_parameters():
        if name.endswith("W.res"):
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
        if name.endswith("alpha.res"):
            p.fill_(0.5)
    with capture(model, "blocks.*.*_hc.hook_res") as seen:
        model(TOKENS)
    swaps = torch.cat([factor_swaps(H).flatten(0, 1) for H in seen.values()])
    assert (swaps <= (bound := 1 / (1 + math.e)) + 1e-6).all() and swaps.max() > 0.95 * bound
    assert values(measure(model), "swap_best") == pytest.approx([bound] * 8)


@torch.no_grad()
def test_dynamic_values_are_means_over_tokens() -> None:
    model = randomise(krom(-1.0), 0.2)
    rows = measure(model, TOKENS)
    with capture(model, "blocks.*.*_hc.hook_res") as seen:
        model(TOKENS)
    for name, H in seen.items():
        own = [r for r in rows if r["module"] == name.removesuffix(".hook_res")]
        each = [np.linalg.norm(h - np.eye(4)) for h in H.flatten(0, 1).numpy()]
        second = [np.linalg.svd(h)[1][1] for h in H.flatten(0, 1).numpy()]
        assert np.std(each) > 1e-3, "tokens must differ, or a mean tests nothing"
        assert values(own, "distance_dynamic") == pytest.approx([np.mean(each)], abs=1e-5)
        assert values(own, "sigma2_dynamic") == pytest.approx([np.mean(second)], abs=1e-5)


def test_gradients_are_those_of_backward_and_leave_no_trace() -> None:
    model = randomise(krom(-1.0), 0.2)
    rows = {r["module"]: r for r in measure(model, TOKENS, TARGETS) if r["metric"] == "gradient"}
    assert all(p.grad is None for p in model.parameters())
    model.loss(TOKENS, TARGETS)[0].backward()
    for i, (name, module) in enumerate(mixing.connections(model).items()):
        expected = float(module.b["res"].grad.norm())
        if i == 0:
            assert rows[name]["value"] is None and "streams are equal" in rows[name]["undefined"]
            assert expected < 1e-6
        else:
            assert expected > 1e-6 and rows[name]["value"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("options", "metric", "why"), [
    ({"residual": "mhc"}, "swap_static", "not a product"),
    ({"residual.dyn_act": "none"}, "swap_best", "no tanh"),
    ({"residual.dynamic": False}, "alpha_res", "static coefficients"),
    ({"residual.freeze_res": True}, "distance_static", "by construction"),
    ({"residual": "mhc", "residual.n": 1}, "sigma2_static", "one stream"),
], ids=str)  # fmt: skip
def test_what_does_not_exist_says_why(options: dict[str, Any], metric: str, why: str) -> None:
    rows = [r for r in measure(build("kromhc", "tiny", **options).eval(), TOKENS, TARGETS) if r["metric"] == metric]
    assert rows and all(r["value"] is None and why in r["undefined"] for r in rows)


def test_gates_set_by_hand() -> None:
    """A bias alone: g = σ(bias) at every token; .05 counts as low, .5 does not."""
    model = build("pls", "tiny").eval()
    gate = model.blocks[1].attn.gate
    with torch.no_grad():
        gate.weight.zero_()
        gate.bias.zero_()
        gate.bias[2] = math.log(0.05 / 0.95)
    rows = [r for r in measure(model, TOKENS) if r["module"] == "blocks.1.attn.gate"]
    assert values(rows, "gate_mean") == pytest.approx([0.5, 0.5, 0.05, 0.5])
    assert values(rows, "gate_sd") == pytest.approx([0.0] * 4, abs=1e-6)
    assert values(rows, "gate_low") == [0.0, 0.0, 1.0, 0.0]
    rows = list(mixing._gate("gate", torch.tensor([[[[0.05], [0.3]], [[0.45], [0.3]]]])))  # two tokens, two heads
    assert values(rows, "gate_sd") == pytest.approx([0.2, 0.0], abs=1e-6) and values(rows, "gate_low") == [0.5, 0.0]


def test_routing_set_by_hand() -> None:
    model = build("dst-kron", "tiny").eval()
    W = torch.eye(4)
    W[0, 3], W[2, 1] = 2.0, -2.0
    with torch.no_grad():
        model.blocks[0].attn.v.weight.copy_(W)
        model.blocks[1].attn.v.weight.zero_()
    rows = [r for r in measure(model) if r["module"].endswith("attn.v")]
    assert values(rows, "routing_norm") == pytest.approx([math.sqrt(8), 0.0])
    assert values(rows, "routing_share")[0] == pytest.approx(8 / 12)
    assert rows[-1]["undefined"] == "W is zero"


def warned(model: Any, *tokens: Tensor) -> str:
    return no_mixing_message(measure(model, *tokens), inert_modules(model))


@torch.no_grad()
def test_the_warning_holds_at_minus_eight_and_for_no_module_that_mixes() -> None:
    frozen, plain = krom(-8.0), build("gpt2", "tiny")
    text = warned(frozen, TOKENS)
    assert "not mixing" in text and "all 3 modules whose mixing can act" in text and "\n" not in text
    assert warned(krom(-2.0), TOKENS) == ""
    frozen.blocks[1].attn_hc.b["res"].zero_()
    assert warned(frozen, TOKENS) == "", "one module mixes"
    assert warned(krom(-8.0, **{"residual.freeze_res": True}), TOKENS) == "", "nothing could mix"
    assert not has_mixing(plain) and measure(plain, TOKENS, TARGETS) == []
    assert warned(build("dst-kron", "tiny").eval(), TOKENS) == ""
    dynamic = krom(-8.0)
    for module in mixing.connections(dynamic).values():
        module.W["res"].normal_(generator=torch.Generator().manual_seed(3))
        module.alpha["res"].fill_(6.0)
    assert warned(dynamic) != "" and warned(dynamic, TOKENS) == "", "tokens mix, though the static distance is small"


@pytest.mark.parametrize(("post_input", "dynamic", "without"), [
    ("mixed", True, ["blocks.0.attn_hc"]),
    ("mixed", False, ["blocks.0.attn_hc", "blocks.1.mlp_hc"]),
    ("same", True, ["blocks.0.attn_hc", "blocks.1.mlp_hc"]),
])  # fmt: skip
@torch.no_grad()
def test_modules_that_cannot_act_do_not_count(post_input: str, dynamic: bool, without: list[str]) -> None:
    """Full mixing planted in them alone: no logit changes, and the streams still count as not mixing."""
    own = {"residual.post_input": post_input, "residual.dynamic": dynamic}
    model, changes = randomise(krom(-8.0, **own), 0.2), {}
    before = model(TOKENS)
    for name, module in mixing.connections(model).items():
        kept = module.b["res"].clone()
        module.b["res"].zero_()
        changes[name] = float((model(TOKENS) - before).abs().max())
        module.b["res"].copy_(kept)
    assert [n for n in changes if changes[n] < 1e-4] == without == list(inert_modules(model))
    assert all(change > 1e-2 for name, change in changes.items() if name not in without)
    planted = krom(-8.0, **own)
    for name in without:
        planted.get_submodule(name).b["res"].zero_()
    assert "not mixing" in warned(planted, TOKENS) and no_mixing_message(measure(planted, TOKENS), ()) == ""
