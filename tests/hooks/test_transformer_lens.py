"""TransformerLens' own tools on our models: caches, decompositions, patching, backward hooks."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformer_lens.tools.analysis import logit_lens

from streamscope.cli.errors import InputError
from streamscope.models.hooks import capture, edit
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import randomise

CLEAN = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(4))
TIGHT = dict(rtol=0, atol=1e-10)


def make(name: str, **overrides: Any) -> StreamTransformer:
    return randomise(build(name, "tiny", init_std=0.2, **overrides).double())


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
def test_hook_result(name: str, overrides: dict[str, Any]) -> None:
    """What each head adds: z through W_O, without the bias; an edit of one head's result is the edit of its z."""
    model = make(name, **overrides)
    _, cache = model.run_with_cache(CLEAN, names_filter=["*hook_result", "*hook_z", "*hook_attn_out"])
    for layer in range(2):
        attn = model.blocks[layer].attn
        assert not overrides or attn.b_O.abs().min() > 0
        each = torch.einsum("bthk,hkd->bthd", cache["z", layer], attn.W_O)
        torch.testing.assert_close(cache["result", layer], each, **TIGHT)
        torch.testing.assert_close(cache["result", layer].sum(2) + attn.b_O, cache["attn_out", layer], **TIGHT)
    off = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None].double()
    with edit(model, {"blocks.0.attn.hook_result": lambda x, hook: x * off}):  # computed head by head
        by_result = model(CLEAN)
    with edit(model, {"blocks.0.attn.hook_z": lambda z, hook: z * off}):
        torch.testing.assert_close(by_result, model(CLEAN), **TIGHT)
    model.set_use_attn_result(True)
    assert model.cfg.use_attn_result and set(model.run_with_cache(CLEAN)[1].keys()) == set(model.hook_dict)
    model.set_use_attn_result(False)
    assert not model.cfg.use_attn_result


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
