"""The same tools and names on a TransformerLens bridge around a randomly initialised GPT-2."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from streamscope.models.errors import InputError
from streamscope.models.hooks import Query, capture, edit, run

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TOKENS = torch.randint(100, (2, 6), generator=torch.Generator().manual_seed(6))
NAMES = {
    "blocks.0.attn.hook_z": (2, 6, 2, 16),
    "blocks.0.attn.hook_q": (2, 6, 2, 16),
    "blocks.1.attn.hook_pattern": (2, 2, 6, 6),
    "blocks.0.hook_resid_pre": (2, 6, 32),
    "blocks.1.hook_resid_post": (2, 6, 32),
    "blocks.1.hook_attn_out": (2, 6, 32),
    "blocks.0.mlp.hook_post": (2, 6, 128),
    "ln_final.hook_scale": (2, 6, 1),
}


def halve(x: Tensor, hook: Any) -> Tensor:
    return x * 0.5


@pytest.fixture(scope="module")
def gpt2() -> tuple[Any, nn.Module]:
    """(bridge, an untouched copy of the model inside), built without network or files."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=32, initializer_range=0.2)
    inner, copy = GPT2LMHeadModel(config).eval(), GPT2LMHeadModel(config).eval()
    copy.load_state_dict(inner.state_dict())
    return build_bridge_from_module(inner, "GPT2LMHeadModel", hf_config=config), copy


def clean(bridge: Any) -> bool:
    return not any(p._forward_hooks or p.fwd_hooks for p in bridge.hook_dict.values())


def test_capture_reads_our_names(gpt2: tuple[Any, nn.Module]) -> None:
    """Names, shapes and meaning are those of our table."""
    bridge, copy = gpt2
    with torch.no_grad(), capture(bridge, list(NAMES)) as found:
        logits = bridge(TOKENS)
    assert {name: tuple(x.shape) for name, x in found.items()} == NAMES
    torch.testing.assert_close(logits, copy(TOKENS).logits, rtol=0, atol=1e-5)
    assert torch.allclose(found["blocks.1.attn.hook_pattern"].sum(-1), torch.ones(2, 2, 6))
    final = copy.transformer.ln_f(found["blocks.1.hook_resid_post"]) @ copy.lm_head.weight.T
    torch.testing.assert_close(final, logits, rtol=0, atol=1e-5)
    assert clean(bridge)


def test_edit_changes_the_output(gpt2: tuple[Any, nn.Module]) -> None:
    """An edit at hook_z is head ablation: the same as zero rows in the copy's output projection."""
    bridge, copy = gpt2

    def without_head_one(z: Tensor, hook: Any) -> Tensor:
        z = z.clone()
        z[:, :, 1] = 0
        return z

    with torch.no_grad():
        plain = bridge(TOKENS)
        with edit(bridge, {"blocks.0.attn.hook_z": without_head_one}):
            ablated = bridge(TOKENS)
        weight = copy.transformer.h[0].attn.c_proj.weight
        kept = weight.clone()
        weight[16:] = 0
        expected = copy(TOKENS).logits
        weight.copy_(kept)
        assert torch.equal(bridge(TOKENS), plain)
    torch.testing.assert_close(ablated, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(ablated, plain, atol=1e-3)


def test_run_on_a_bridge(gpt2: tuple[Any, nn.Module]) -> None:
    """Prompts of several lengths in one batch: the numbers of each prompt alone."""
    bridge, copy = gpt2
    prompts = [TOKENS[0].tolist(), TOKENS[1, :2].tolist(), TOKENS[1, :4].tolist()]
    hooks = (*NAMES, "hook_embed", "hook_pos_embed")
    result = run(bridge, Query(tokens=prompts, hooks=hooks, logits=[[5, 0], [1], [3]]))
    assert result.logits is not None
    for i, (prompt, at) in enumerate(zip(prompts, [[5, 0], [1], [3]], strict=True)):
        alone = torch.tensor([prompt])
        with torch.no_grad(), capture(bridge, hooks) as found:
            bridge(alone)
            torch.testing.assert_close(result.logits[i], copy(alone).logits[0, at], rtol=0, atol=1e-5)
        for name in hooks:
            torch.testing.assert_close(result.hooks[name][i], found[name][0], rtol=0, atol=1e-5, msg=name)


def test_errors_on_a_bridge(gpt2: tuple[Any, nn.Module]) -> None:
    """Misspelt, unfired, wrong shape: the same errors, and nothing stays behind."""
    bridge, _ = gpt2
    with pytest.raises(InputError, match="did you mean"), capture(bridge, "blocks.0.attn.hook_zz"):
        pytest.fail("the block ran")
    with pytest.raises(InputError, match="did not fire"), capture(bridge, "blocks.0.attn.hook_z"):
        pass
    bad = {"blocks.0.attn.hook_z": lambda z, hook: z[:, 1:]}
    with pytest.raises(InputError, match="hook_z returned"), edit(bridge, bad):
        bridge(TOKENS)
    assert clean(bridge)


def test_switched_off_points(gpt2: tuple[Any, nn.Module]) -> None:
    """A point that the bridge's settings switch off is bad input, told as such."""
    bridge, _ = gpt2
    with pytest.raises(InputError, match="use_hook_mlp_in"), capture(bridge, "blocks.0.hook_mlp_in"):
        bridge(TOKENS)
    assert clean(bridge)


def test_a_pattern_edits_each_point_once(gpt2: tuple[Any, nn.Module]) -> None:
    """A bridge has several names for one point; a pattern that matches two of them is still one edit."""
    bridge, _ = gpt2
    points = [bridge.hook_dict[n] for n in ("blocks.0.hook_resid_post", "blocks.0.hook_out")]
    assert points[0] is points[1]
    with torch.no_grad():
        with edit(bridge, {"blocks.0.hook_resid_post": halve}):
            once = bridge(TOKENS)
        with edit(bridge, {"blocks.0.hook_[ro]*[us]t": halve}):  # hook_resid_post and hook_out
            by_pattern = bridge(TOKENS)
    assert torch.equal(once, by_pattern)
