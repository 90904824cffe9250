"""Direct logit attribution by TransformerLens' cache: the parts add up to the logit, on trained and random weights."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.models.config.presets import PRESETS
from streamscope.models.interop.activation_cache import Cache
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import randomise, some

CLOSE = dict(rtol=1e-5, atol=1e-9)
TOKENS = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(4))
RIGHT, WRONG = torch.tensor([7, 9]), torch.tensor([30, 2])
BIASES = {f"attention.{name}.bias": True for name in "qkvo"} | {"mlp.up.bias": True, "mlp.down.bias": True}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "channel-final": ("lfa", {"readout.norm": "channel"}),
    "rms-blocks": ("std-t", {"norm": "rms"}),
    "biases": ("std-t", {**BIASES, "norm": "channel", "readout.norm": "channel"}),
    "parallel": ("std-t", {**BIASES, "residual.order": "parallel"}),
    "grouped": ("std-t", {**BIASES, "attention.kv_heads": 2, "mlp.gate": "dense", "readout.norm": "rms"}),
}  # fmt: skip
ADDS_UP = [name for name in PRESETS if "krom" not in name]


def make(name: str) -> StreamTransformer:
    preset, overrides = OTHERS.get(name, (name, {}))
    return randomise(build(preset, "tiny", init_std=0.2, **overrides).double())


def picked(logits: Tensor, ids: Tensor) -> Tensor:
    """[B, T], the logits of one token for each sequence."""
    return logits[torch.arange(len(ids)), :, ids]


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "lfa"])
def test_only_our_cache_applies_a_norm(name: str) -> None:
    """TransformerLens' class omits the norm's weight, so it refuses; ours takes the activations of caching hooks."""
    model = load(f"stories/{name}")
    hooks = model.get_caching_hooks()
    with model.hooks(*hooks[1:]):
        logits = model(text := "Lily had a red ball. She gave it to")
    theirs, ours = ActivationCache(hooks[0], model), Cache(hooks[0], model)
    for call in (
        lambda: theirs.logit_attrs(theirs.decompose_resid(), " her"),
        lambda: theirs.accumulated_resid(apply_ln=True),
        lambda: theirs.stack_neuron_results(1, apply_ln=True),
        lambda: theirs.get_full_resid_decomposition(apply_ln=True),
    ):
        with pytest.raises(InputError, match=r"omits the norm's weight: use Cache\(cache_dict, model\)"):
            call()
    token = model.to_single_token(" her")
    parts = ours.logit_attrs(ours.decompose_resid(), " her").sum(0) + model.logit_bias[token]
    torch.testing.assert_close(parts, logits[..., token], rtol=1e-4, atol=1e-4, msg=text)


@torch.no_grad()
@pytest.mark.parametrize("name", [*some(ADDS_UP), *OTHERS])
def test_parts_add_up_to_the_logit(name: str) -> None:
    """Of every decomposition, through each way to it: parts, heads with what remains, neurons and heads, projected."""
    model = make(name)
    logits, cache = model.run_with_cache(TOKENS)
    without_bias, u = logits - model.logit_bias, model.W_U[:, 7]
    expected = picked(without_bias, RIGHT)
    for made in (
        cache.decompose_resid,
        partial(cache.stack_head_results, incl_remainder=True),
        partial(cache.stack_neuron_results, 2, incl_remainder=True),
        cache.get_full_resid_decomposition,
        partial(cache.get_full_resid_decomposition, expand_neurons=False),
    ):
        stack, normed = made(), [made(apply_ln=True) @ u]
        if "project_output_onto" in inspect.signature(made).parameters:
            normed.append(made(apply_ln=True, project_output_onto=u))
        torch.testing.assert_close(cache.logit_attrs(stack, RIGHT).sum(0), expected, **CLOSE)
        difference = expected - picked(without_bias, WRONG)
        torch.testing.assert_close(cache.logit_attrs(stack, RIGHT, WRONG).sum(0), difference, **CLOSE)
        for parts in normed:
            torch.testing.assert_close(parts.sum(0), without_bias[..., 7], **CLOSE)
    torch.testing.assert_close(cache.accumulated_resid(apply_ln=True)[-1] @ model.W_U, logits, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["std-t", "lfa", "channel-final", "gpt2"])
def test_neurons_projected_are_neurons_times_the_projection(name: str) -> None:
    """One by one, also of some neurons and positions, and before a middle layer."""
    model = make(name)
    _, cache = model.run_with_cache(TOKENS)
    onto = model.W_U[:, :3]
    for options in ({"layer": 2}, {"layer": 1}, {"layer": 2, "pos_slice": 3, "neuron_slice": [1, 5]}, {"layer": 0}):
        whole = cache.stack_neuron_results(**options, apply_ln=True) @ onto
        projected = cache.stack_neuron_results(**options, apply_ln=True, project_output_onto=onto)
        torch.testing.assert_close(projected, whole, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["std-t", "lfa", "channel-final"])
def test_slices_of_positions_and_batches(name: str) -> None:
    model = make(name)
    _, cache = model.run_with_cache(TOKENS)
    whole = cache.logit_attrs(cache.decompose_resid(), 7)
    for at in (3, -1, [1, 2]):
        part = cache.logit_attrs(cache.decompose_resid(pos_slice=at), 7, pos_slice=at)
        torch.testing.assert_close(part, whole[..., at], **CLOSE)
    torch.testing.assert_close(cache.logit_attrs(cache.decompose_resid(), 7, batch_slice=[1]), whole[:, [1]], **CLOSE)
    second = cache.apply_slice_to_batch_dim([1])
    torch.testing.assert_close(second.logit_attrs(second.decompose_resid(), 7), whole[:, [1]], **CLOSE)
    _, alone = model.run_with_cache(TOKENS[:1], remove_batch_dim=True)
    torch.testing.assert_close(alone.logit_attrs(alone.decompose_resid(), 7), whole[:, 0], **CLOSE)
    _, cut = model.run_with_cache(TOKENS, pos_slice=[2])
    torch.testing.assert_close(cut.logit_attrs(cut.decompose_resid(), 7), whole[..., [2]], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["std-t", "lfa", "gpt2", "biases", "parallel"])
@pytest.mark.parametrize("mlp_input", [False, True])
def test_parts_before_a_middle_layer_add_up_to_what_it_reads(name: str, mlp_input: bool) -> None:
    """The output of its norm is the parts plus β; a state through the norm is all of it."""
    model = make(name)
    norm = model.blocks[1].ln2 if mlp_input else model.blocks[1].ln1
    read: list[Tensor] = []
    handle = norm.register_forward_hook(lambda module, inputs, output: read.append(output))
    _, cache = model.run_with_cache(TOKENS)
    handle.remove()
    bias = 0.0 if norm.bias is None else norm.bias
    for made, ways in (
        (cache.accumulated_resid, lambda states: states[-1]),
        (cache.decompose_resid, lambda parts: parts.sum(0) + bias),
        (cache.get_full_resid_decomposition, lambda parts: parts.sum(0) + bias),
    ):
        of_layer = partial(made, layer=1, mlp_input=mlp_input, apply_ln=True)
        if name == "parallel" and mlp_input:
            with pytest.raises(InputError, match="parallel, so its FFN reads attention's input: leave out mlp_input"):
                of_layer()
        else:
            torch.testing.assert_close(ways(of_layer()), read[0], **CLOSE)


@torch.no_grad()
def test_states_go_through_the_norm_of_their_own_layer() -> None:
    """Where every layer's readout has a norm of its own, a state times W_U is the layer's logits."""
    model = randomise(build("pls", "tiny", n_layers=3, **{"readout.layer_norms": "own"}).double())
    _, cache = model.run_with_cache(TOKENS)
    expected = model.layer_logits(TOKENS).movedim(2, 0)
    stack, labels = cache.accumulated_resid(apply_ln=True, incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "2_pre", "2_mid", "final_post"]
    torch.testing.assert_close(stack[2::2] @ model.W_U, expected, **CLOSE)
    middle = model.layer_norm(1)(cache["resid_mid", 1])
    torch.testing.assert_close(stack[3], middle, **CLOSE)
    cut = cache.accumulated_resid(apply_ln=True, pos_slice=[1, 3])
    torch.testing.assert_close(cut[1:] @ model.W_U, expected[..., [1, 3], :], **CLOSE)


@torch.no_grad()
def test_updates_of_streams_are_no_shares() -> None:
    """With hyper-connections the states are normed, and what would take updates for shares refuses in one line."""
    model = make("kromcanon")
    logits, cache = model.run_with_cache(TOKENS)
    last = cache.logit_attrs(cache.accumulated_resid(), RIGHT)[-1]
    torch.testing.assert_close(last, picked(logits - model.logit_bias, RIGHT), **CLOSE)
    stacks = [partial(made, 2, **{option: True}) for made in (cache.stack_head_results, cache.stack_neuron_results)
              for option in ("apply_ln", "incl_remainder")]  # fmt: skip
    for call, line in (
        (cache.decompose_resid, "hyper-connections.*accumulated_resid"),
        (cache.get_full_resid_decomposition, "hyper-connections.*accumulated_resid"),
        (partial(cache.accumulated_resid, layer=1, apply_ln=True), "apply_ln only supports the final norm"),
        *((stack, "updates do not add up .* hyper-connections") for stack in stacks),
    ):
        with pytest.raises(InputError, match=line):
            call()
