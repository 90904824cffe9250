"""Where hooks act: in the order of the table, and unknown ones as early as they could."""

from functools import partial

import pytest
import torch

from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.sweep import EMBED, FFN, HEADS, POST, STAGES, WRITE, Plan, identity, layer_of, stage_of


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_stages_follow_the_order_in_which_hooks_fire(name: str) -> None:
    model = build(name, "tiny")
    fired: list[str] = []
    hooks = [(n, lambda x, hook, n=n: fired.append(n)) for n in model.hook_dict]
    with torch.no_grad():
        model.run_with_hooks(torch.randint(256, (1, 5)), fwd_hooks=hooks)
    stages = [stage_of(n, 2) for n in fired]
    assert stages == sorted(stages)
    assert set(stages) == {EMBED, *range(2 * STAGES + 1)}


def test_stages_of_well_known_hooks_and_of_unknown_ones() -> None:
    places = {
        "hook_embed": EMBED,
        "blocks.2.hook_resid_pre": HEADS,
        "blocks.2.attn.hook_pattern": HEADS,
        "blocks.2.attn.hook_gate": HEADS,
        "blocks.2.attn.hook_z": WRITE,
        "blocks.2.attn.o.hook_latent": WRITE,
        "blocks.2.hook_streams_mid": WRITE,
        "blocks.2.mlp_hc.hook_pre": FFN,
        "blocks.2.hook_mlp_out": FFN,
        "blocks.2.hook_context_post": POST,
        "blocks.2.mlp.hook_invented": HEADS,
    }
    for name, stage in places.items():
        assert stage_of(name, 4) == (stage if stage == EMBED else 2 * STAGES + stage), name
    assert stage_of("ln_final.hook_scale", 4) == 4 * STAGES
    assert stage_of("hook_invented", 4) == EMBED


def test_equal_partial_applications_are_one_and_closures_are_not() -> None:
    def scale(x, hook, *, g, by):
        return g * x

    mean = torch.ones(3)
    assert identity(partial(scale, g=0.5, by=[mean])) == identity(partial(scale, g=0.5, by=[mean]))
    assert identity(partial(scale, g=0.5, by=[mean])) != identity(partial(scale, g=0.25, by=[mean]))
    assert identity(partial(scale, g=0.5, by=[mean])) != identity(partial(scale, g=0.5, by=[mean.clone()]))
    assert identity(partial(scale, g=1, by=[])) != identity(partial(scale, g=True, by=[]))
    assert identity(lambda x, hook: x) != identity(lambda x, hook: x)


def test_a_plan_resolves_patterns_and_keeps_the_order_of_edits() -> None:
    model = build("lfa", "tiny")

    def first(x, hook):
        return x

    def second(x, hook):
        return x

    plan = Plan(model, {"blocks.*.attn.hook_z": first, "blocks.1.attn.hook_z": second})
    assert plan.functions == {"blocks.0.attn.hook_z": [first], "blocks.1.attn.hook_z": [first, second]}
    assert sorted(plan.keys) == [WRITE, STAGES + WRITE]
    assert not plan.anywhere


def test_the_layer_of_a_hook() -> None:
    """By itself: `stage_of` keeps its answers, so a wrong layer would show in the first call alone."""
    assert (layer_of("blocks.3.hook_mlp_out"), layer_of("blocks.12.attn.hook_z")) == (3, 12)
    for name in ("hook_embed", "ln_final.hook_scale", "blocks.3", "blocks.*.hook_z", "other.3.hook_z"):
        assert layer_of(name) is None
