"""The same tools and names on a TransformerLens bridge around a randomly initialised GPT-2."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.models.hooks import Query, capture, edit, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TOKENS = torch.randint(100, (2, 6), generator=torch.Generator().manual_seed(6))
NAMES = {
    "blocks.0.attn.hook_z": (2, 6, 2, 16), "blocks.0.attn.hook_q": (2, 6, 2, 16),
    "blocks.1.attn.hook_pattern": (2, 2, 6, 6), "blocks.0.hook_resid_pre": (2, 6, 32),
    "blocks.1.hook_resid_post": (2, 6, 32), "blocks.1.hook_attn_out": (2, 6, 32),
    "blocks.0.mlp.hook_post": (2, 6, 128), "ln_final.hook_scale": (2, 6, 1),
}  # fmt: skip


Gpt2 = tuple[Any, Any, nn.Module]


def bridge_of(module: nn.Module) -> Any:
    """A bridge around a copy."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    return build_bridge_from_module(copy.deepcopy(module), "GPT2LMHeadModel", hf_config=module.config)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Gpt2:
    """(our model of a GPT-2 folder, a bridge around the same weights, the module there), every parameter random."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=32)
    module, generator = GPT2LMHeadModel(config).eval(), torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    folder = tmp_path_factory.mktemp("theirs")
    module.save_pretrained(folder)
    return load(f"hf:{folder}"), bridge_of(module), module


WEIGHTS = "W_E W_U b_U W_pos W_E_pos W_Q W_K W_V W_O b_Q b_K b_V b_O W_in W_out b_in b_out"


def test_weights_are_those_of_a_bridge(gpt2: Gpt2) -> None:
    model, bridge, _ = gpt2
    for name in WEIGHTS.split():
        assert torch.equal(getattr(model, name), getattr(bridge, name)), name
    for name in ("QK", "OV"):
        torch.testing.assert_close(getattr(model, name).AB, getattr(bridge, name).AB)
    assert model.W_gate is None and bridge.W_gate is None
    assert model.all_head_labels == bridge.all_head_labels
    torch.testing.assert_close(model.accumulated_bias(1, True), bridge.accumulated_bias(1, True))
    ids = torch.tensor([3, 8])
    assert torch.equal(model.tokens_to_residual_directions(ids), bridge.tokens_to_residual_directions(ids))


@torch.no_grad()
def test_passes_and_caches_are_those_of_a_bridge(gpt2: Gpt2) -> None:
    """Losses per token, segments of the model, results of heads, and what TransformerLens' cache makes of them."""
    model, _, module = gpt2
    bridge = bridge_of(module)  # of its own, because it is folded below
    close = dict(rtol=0, atol=2e-5)
    for options in ({}, {"return_type": "loss"}, {"return_type": "loss", "loss_per_token": True}, {"stop_at_layer": 1}):
        torch.testing.assert_close(model(TOKENS, **options), bridge(TOKENS, **options), **close, msg=str(options))
    middle = bridge(TOKENS, stop_at_layer=1)
    torch.testing.assert_close(model(middle, start_at_layer=1), bridge(middle, start_at_layer=1), **close)
    for one in (model, bridge):
        one.set_use_attn_result(True)
    (_, cache), (_, theirs) = model.run_with_cache(TOKENS), bridge.run_with_cache(TOKENS)
    for one in (model, bridge):
        one.set_use_attn_result(False)
    torch.testing.assert_close(cache["result", 1], theirs["result", 1], **close)
    for name, options in [
        ("accumulated_resid", {"apply_ln": True, "incl_mid": True}),
        ("decompose_resid", {"layer": 1, "mlp_input": True}),
        ("stack_head_results", {"incl_remainder": True, "apply_ln": True}),
        ("stack_neuron_results", {"layer": 1}),
        ("get_full_resid_decomposition", {}),
        ("get_full_resid_decomposition", {"expand_neurons": False, "apply_ln": True}),
    ]:
        mine, labels = getattr(cache, name)(**options, return_labels=True)
        expected, names = getattr(theirs, name)(**options, return_labels=True)
        assert labels == names
        if options.get("apply_ln") and name != "accumulated_resid":  # which TransformerLens folds into the head
            expected = expected * model.ln_final.weight
        torch.testing.assert_close(mine, expected, **close, msg=name)
    bridge.enable_compatibility_mode(
        disable_warnings=True, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    _, folded = bridge.run_with_cache(TOKENS)
    torch.testing.assert_close(model.logit_bias, bridge.b_U, **close)
    for right, wrong in [(torch.tensor([3, 8]), None), (torch.tensor([3, 8]), torch.tensor([5, 6]))]:
        stacks = [one.logit_attrs(one.decompose_resid(), right, wrong) for one in (cache, folded)]
        torch.testing.assert_close(*stacks, **close)
    for mode in "QKV":
        mine, expected = (one.all_composition_scores(mode) for one in (model, bridge))
        assert mine.head_labels == expected.head_labels
        torch.testing.assert_close(mine.scores, expected.scores, **close, msg=mode)
    lens = cache.accumulated_resid(apply_ln=True) @ model.W_U + model.b_U
    torch.testing.assert_close(lens[:, :, -1], folded.logit_lens().values, **close)
    with pytest.raises(InputError, match=r"only supports bridges.*layer_logits"):
        cache.logit_lens()


def test_capture_reads_our_names(gpt2: Gpt2) -> None:
    _, bridge, module = gpt2
    with torch.no_grad(), capture(bridge, list(NAMES)) as found:
        logits = bridge(TOKENS)
    assert {name: tuple(x.shape) for name, x in found.items()} == NAMES
    torch.testing.assert_close(logits, module(TOKENS).logits, rtol=0, atol=1e-5)
    assert torch.allclose(found["blocks.1.attn.hook_pattern"].sum(-1), torch.ones(2, 2, 6))
    final = module.transformer.ln_f(found["blocks.1.hook_resid_post"]) @ module.lm_head.weight.T
    torch.testing.assert_close(final, logits, rtol=0, atol=1e-5)


def test_run_on_a_bridge(gpt2: Gpt2) -> None:
    _, bridge, module = gpt2
    prompts, places = [TOKENS[0].tolist(), TOKENS[1, :2].tolist(), TOKENS[1, :4].tolist()], [[5, 0], [1], [3]]
    hooks = (*NAMES, "hook_embed", "hook_pos_embed")
    result = run(bridge, Query(tokens=prompts, hooks=hooks, logits=places))
    assert result.logits is not None
    for i, (prompt, at) in enumerate(zip(prompts, places, strict=True)):
        alone = torch.tensor([prompt])
        with torch.no_grad(), capture(bridge, hooks) as found:
            bridge(alone)
            torch.testing.assert_close(result.logits[i], module(alone).logits[0, at], rtol=0, atol=1e-5)
        for name in hooks:
            torch.testing.assert_close(result.hooks[name][i], found[name][0], rtol=0, atol=1e-5, msg=name)


def test_switched_off_points(gpt2: Gpt2) -> None:
    with pytest.raises(InputError, match="use_hook_mlp_in"), capture(gpt2[1], "blocks.0.hook_mlp_in"):
        gpt2[1](TOKENS)
    assert not any(p._forward_hooks or p.fwd_hooks for p in gpt2[1].hook_dict.values())


def test_a_pattern_edits_each_point_once(gpt2: Gpt2) -> None:
    """A bridge has several names for one point; a pattern that matches two of them is still one edit."""
    _, bridge, _ = gpt2
    points = [bridge.hook_dict[n] for n in ("blocks.0.hook_resid_post", "blocks.0.hook_out")]
    assert points[0] is points[1]
    edited = []
    for name in ("blocks.0.hook_resid_post", "blocks.0.hook_[ro]*[us]t"):  # hook_resid_post and hook_out
        with torch.no_grad(), edit(bridge, {name: lambda x, hook: x * 0.5}):
            edited.append(bridge(TOKENS))
    assert torch.equal(*edited)
