"""TransformerLens' own tools on our models: caches, decompositions, attribution, backward hooks."""

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.tools.analysis import logit_lens

from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.models.config.presets import PRESETS
from streamscope.models.hooks import capture, edit
from streamscope.models.interop.activation_cache import Cache
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import randomise, some

CLEAN = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(4))
TIGHT = dict(rtol=0, atol=1e-10)
CLOSE = dict(rtol=1e-5, atol=1e-9)
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


def make(name: str, **overrides: Any) -> StreamTransformer:
    preset, changes = OTHERS.get(name, (name, {}))
    return randomise(build(preset, "tiny", init_std=0.2, **changes, **overrides).double())


@pytest.fixture(scope="module", params=["std-t", "lfa", "dst-kron", "pls", "canon", "kromcanon"])
def model(request: pytest.FixtureRequest) -> StreamTransformer:
    return make(request.param)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "model" in request.fixturenames:
        points = request.getfixturevalue("model").hook_dict.values()
        assert not any(p._forward_hooks or p._backward_hooks for p in points)


def test_run_with_cache(model: StreamTransformer) -> None:
    """Every hook but the results of heads is cached; what it does is in the table of conformance."""
    _, plain = model.run_with_cache(CLEAN, return_cache_object=False)
    assert type(plain) is dict
    assert set(plain) == {name for name in model.hook_dict if not name.endswith("hook_result")}


GROUPED = {"attention.o": "dense", "attention.o.bias": True, "attention.kv_heads": 2}


@pytest.mark.parametrize(
    ("name", "overrides"), [("lfa", {}), ("dst-kron", {}), ("pls", {}), ("kromcanon", {}), ("std-t", GROUPED)]
)
@torch.no_grad()
def test_hook_result(name: str, overrides: dict[str, Any]) -> None:
    """What each head adds: z through W_O, without the bias; an edit of one head's result is the edit of its z."""
    model = make(name, **overrides)
    _, cache = model.run_with_cache(CLEAN, names_filter=["*hook_result", "*hook_z", "*hook_attn_out"])
    for layer, block in enumerate(model.blocks):
        assert not overrides or block.attn.b_O.abs().min() > 0
        each = torch.einsum("bthk,hkd->bthd", cache["z", layer], block.attn.W_O)
        torch.testing.assert_close(cache["result", layer], each, **TIGHT)
        torch.testing.assert_close(each.sum(2) + block.attn.b_O, cache["attn_out", layer], **TIGHT)
    off = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None].double()
    edited = []
    for hook in ("hook_result", "hook_z"):  # the first is computed head by head
        with edit(model, {f"blocks.0.attn.{hook}": lambda x, hook: x * off}):
            edited.append(model(CLEAN))
    torch.testing.assert_close(*edited, **TIGHT)
    for on in (True, False):
        model.set_use_attn_result(on)
        assert model.cfg.use_attn_result == on
        assert ({*model.run_with_cache(CLEAN)[1].keys()} == {*model.hook_dict}) == on


def test_a_result_sees_the_mixing_matrix_in_use() -> None:
    model = make("dst-kron")
    _, cache = model.run_with_cache(CLEAN, names_filter="*hook_result")
    with edit(model, {"*attn.hook_o_mix": lambda w, hook: w * 2}), capture(model, "blocks.0.attn.hook_result") as found:
        model(CLEAN)
    torch.testing.assert_close(found["blocks.0.attn.hook_result"], 2 * cache["result", 0], **TIGHT)


def test_a_result_that_is_no_sum() -> None:
    """A head of a nonlinear output projection has no result of its own: no hook, and one line."""
    model = build("hdpl", "tiny", **{"attention.o": "hdpl"})
    assert not model.result_points()
    with pytest.raises(InputError, match="no hook_result"):
        model.set_use_attn_result(True)
    with pytest.raises(InputError, match="heads share one input"):
        model.set_use_split_qkv_input(True)


@pytest.mark.parametrize("position", [-1, 2])
def test_pos_slice(model: StreamTransformer, position: int) -> None:
    """pos_slice cuts the position axis (the query axis of patterns) of every activation that has one."""
    _, cache = model.run_with_cache(CLEAN)
    _, cut = model.run_with_cache(CLEAN, pos_slice=[position])
    for name, x in cut.items():
        if name.endswith("_mix"):
            expected = cache[name]
        elif name.endswith(("pattern", "scores")):
            expected = cache[name][:, :, [position]]
        else:
            expected = cache[name][:, [position]]
        assert x.shape == expected.shape, name
        torch.testing.assert_close(x, expected, **TIGHT, msg=name)


def test_backward_hooks(model: StreamTransformer) -> None:
    """run_with_cache(incl_bwd=True) has the gradients that autograd gives, at every editable hook."""
    inside = ("attn.hook_z", "attn.hook_q", "attn.hook_pattern", "hook_attn_out", "hook_mlp_in", "hook_attn_in")
    names = ["hook_embed", *(f"blocks.1.{name}" for name in inside), "ln_final.hook_scale"]
    loss, cache = model.run_with_cache(CLEAN, return_type="loss", incl_bwd=True)
    model.zero_grad()
    with capture(model, names, grad=True) as found:
        again = model(CLEAN, return_type="loss")
    assert torch.allclose(loss, again)
    for name, g in zip(names, torch.autograd.grad(again, [found[n] for n in names]), strict=True):
        torch.testing.assert_close(cache[f"{name}_grad"], g, **TIGHT, msg=name)
    resid = [n for n in model.hook_dict if "hook_resid" in n] if model.config.residual.streams else []
    missing = [n for n in model.hook_dict if f"{n}_grad" not in cache and n not in resid and "hook_result" not in n]
    assert missing == []


def test_backward_hooks_that_stay(model: StreamTransformer) -> None:
    """run_with_hooks(reset_hooks_end=False), then backward; a backward hook can also change the gradient."""
    bwd, weight = [("blocks.1.hook_attn_out", lambda g, hook: g * 2)], model.blocks[1].attn.q.weight
    model(CLEAN, return_type="loss").backward()
    plain = weight.grad.clone()
    model.zero_grad()
    model.run_with_hooks(CLEAN, return_type="loss", bwd_hooks=bwd, reset_hooks_end=False).backward()
    model.reset_hooks()
    torch.testing.assert_close(weight.grad, 2 * plain, **TIGHT)
    model.zero_grad()


def test_the_kind_of_norm_breaks_no_tool_but_the_cache_that_would_omit_its_weight() -> None:
    """Reading it raises, also with a default. Tools that list fields do not meet it, and logit_lens refuses before."""
    model = build("gpt2", "tiny")
    fields = dict(inspect.getmembers(model.cfg))
    assert fields["n_layers"] == model.config.n_layers and "normalization_type" not in fields
    with pytest.raises(InputError, match="omits the norm's weight: use Cache"):
        getattr(model.cfg, "normalization_type", None)
    for tied in (True, False):
        with pytest.raises((NotImplementedError, ValueError)) as refused:
            logit_lens(build("gpt2", "tiny", **{"readout.tied": tied}), torch.arange(6)[None])
        assert "normalization_type" not in str(refused.value) and "weight" not in str(refused.value)


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
    logits, cache = model.run_with_cache(CLEAN)
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
    _, cache = model.run_with_cache(CLEAN)
    onto = model.W_U[:, :3]
    for options in ({"layer": 2}, {"layer": 1}, {"layer": 2, "pos_slice": 3, "neuron_slice": [1, 5]}, {"layer": 0}):
        whole = cache.stack_neuron_results(**options, apply_ln=True) @ onto
        projected = cache.stack_neuron_results(**options, apply_ln=True, project_output_onto=onto)
        torch.testing.assert_close(projected, whole, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["std-t", "lfa", "channel-final"])
def test_slices_of_positions_and_batches(name: str) -> None:
    model = make(name)
    _, cache = model.run_with_cache(CLEAN)
    whole = cache.logit_attrs(cache.decompose_resid(), 7)
    for at in (3, -1, [1, 2]):
        part = cache.logit_attrs(cache.decompose_resid(pos_slice=at), 7, pos_slice=at)
        torch.testing.assert_close(part, whole[..., at], **CLOSE)
    torch.testing.assert_close(cache.logit_attrs(cache.decompose_resid(), 7, batch_slice=[1]), whole[:, [1]], **CLOSE)
    second = cache.apply_slice_to_batch_dim([1])
    torch.testing.assert_close(second.logit_attrs(second.decompose_resid(), 7), whole[:, [1]], **CLOSE)
    _, alone = model.run_with_cache(CLEAN[:1], remove_batch_dim=True)
    torch.testing.assert_close(alone.logit_attrs(alone.decompose_resid(), 7), whole[:, 0], **CLOSE)
    _, cut = model.run_with_cache(CLEAN, pos_slice=[2])
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
    _, cache = model.run_with_cache(CLEAN)
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
    _, cache = model.run_with_cache(CLEAN)
    expected = model.layer_logits(CLEAN).movedim(2, 0)
    stack, labels = cache.accumulated_resid(apply_ln=True, incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "2_pre", "2_mid", "final_post"]
    torch.testing.assert_close(stack[2::2] @ model.W_U, expected, **CLOSE)
    torch.testing.assert_close(stack[3], model.layer_norm(1)(cache["resid_mid", 1]), **CLOSE)
    cut = cache.accumulated_resid(apply_ln=True, pos_slice=[1, 3])
    torch.testing.assert_close(cut[1:] @ model.W_U, expected[..., [1, 3], :], **CLOSE)


@torch.no_grad()
def test_updates_of_streams_are_no_shares() -> None:
    """With hyper-connections the states are normed, and what would take updates for shares refuses in one line."""
    model = make("kromcanon")
    logits, cache = model.run_with_cache(CLEAN)
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
