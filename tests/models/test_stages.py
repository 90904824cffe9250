"""Where hooks act: in the order in which they fire, and unknown ones as early as they could."""

import pytest
import torch

from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.sweep import EMBED, first_start, start_of


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_starts_follow_the_order_in_which_hooks_fire(name: str) -> None:
    model = build(name, "tiny")
    fired: list[str] = []
    hooks = [(n, lambda x, hook, n=n: fired.append(n)) for n in model.hook_dict]
    with torch.no_grad():
        model.run_with_hooks(torch.randint(256, (1, 5)), fwd_hooks=hooks)
    starts = [start_of(n, 2) for n in fired]
    assert starts == sorted(starts)
    assert set(starts) == {(EMBED, False), (0, False), (0, True), (1, False), (1, True), (2, False)}


def test_starts_of_well_known_hooks_and_of_unknown_ones() -> None:
    places = {
        "blocks.2.hook_resid_pre": False,
        "blocks.2.attn.hook_pattern": False,
        "blocks.2.attn.hook_gate": False,
        "blocks.2.attn.hook_z": True,
        "blocks.2.attn.o.hook_latent": True,
        "blocks.2.hook_streams_mid": True,
        "blocks.2.mlp_hc.hook_pre": True,
        "blocks.2.hook_context_post": True,
        "blocks.2.mlp.hook_invented": False,
    }
    for name, from_z in places.items():
        assert start_of(name, 4) == (2, from_z), name
    assert start_of("ln_final.hook_scale", 4) == (4, False) and start_of("blocks.12.attn.hook_z", 20) == (12, True)
    assert start_of("hook_invented", 4) == start_of("hook_embed", 4) == (EMBED, False)
    model = build("lfa", "tiny")
    assert first_start(model, {"blocks.*.attn.hook_z": torch.relu, "blocks.1.hook_mlp_out": torch.relu}) == (0, True)
    assert first_start(model, {}) > first_start(model, {"ln_final.hook_scale": torch.relu})
