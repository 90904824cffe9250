"""TransformerLens' names for weights: the maps that the forward pass computes, and one line where there is none."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from streamscope.cli.errors import Undefined
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import assert_refused, randomise

TOKENS = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(4))
TIGHT = dict(rtol=0, atol=1e-10)
GROUPED = {f"attention.{name}.bias": True for name in "qkvo"} | {
    "mlp.up.bias": True, "mlp.down.bias": True, "attention.kv_heads": 2, "mlp.gate": "dense",
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfa": ("lfa", {}), "dst-kron": ("dst-kron", {}), "gpt2": ("gpt2", {}), "grouped": ("std-t", GROUPED),
    "pls": ("pls", {}), "identity": ("lfa", {"attention.v": "id", "attention.o": "id"}),
}  # fmt: skip


def make(name: str) -> StreamTransformer:
    preset, overrides = MODELS[name]
    return randomise(build(preset, "tiny", init_std=0.2, **overrides).double(), std=0.2)


def apply(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """[B, T, D] through maps of heads, [H, D, K]."""
    return torch.einsum("btd,hdk->bthk", x, w) + b


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_the_maps_of_the_forward_pass(name: str) -> None:
    model = make(name)
    inputs: dict[str, Tensor] = {}
    attn, mlp = model.blocks[1].attn, model.blocks[1].mlp
    attn.register_forward_pre_hook(lambda m, args: inputs.update(x=args[0], v=args[1]))
    mlp.register_forward_pre_hook(lambda m, args: inputs.update(mlp=args[0]))
    _, cache = model.run_with_cache(TOKENS, names_filter=lambda name: True)
    groups = model.config.n_heads // model.config.kv_heads
    torch.testing.assert_close(apply(inputs["x"], model.W_Q[1], model.b_Q[1]), cache["q", 1], **TIGHT)
    for w, b, key, x in [(model.W_K, model.b_K, "k", "x"), (model.W_V, model.b_V, "v", "v")]:
        torch.testing.assert_close(apply(inputs[x], w[1], b[1]), cache[key, 1].repeat_interleave(groups, 2), **TIGHT)
    written = torch.einsum("bthk,hkd->btd", cache["z", 1], model.W_O[1]) + model.b_O[1]
    torch.testing.assert_close(written, cache["attn_out", 1], **TIGHT)
    linear = "pre_linear" if model.W_gate is not None else "pre"
    torch.testing.assert_close(
        inputs["mlp"] @ model.W_in[1] + model.b_in[1], cache[f"blocks.1.mlp.hook_{linear}"], **TIGHT
    )
    if model.W_gate is not None:
        torch.testing.assert_close(inputs["mlp"] @ model.W_gate[1], cache["blocks.1.mlp.hook_pre"], **TIGHT)
    torch.testing.assert_close(cache["post", 1] @ model.W_out[1] + model.b_out[1], cache["mlp_out", 1], **TIGHT)
    torch.testing.assert_close(model.W_E[TOKENS], cache["hook_embed"], **TIGHT)
    norm = model.ln_final(model.readout(model.segment(model.embed_tokens(TOKENS))))
    torch.testing.assert_close(norm @ model.W_U + model.b_U, model(TOKENS), **TIGHT)


@pytest.mark.parametrize(("preset", "overrides", "name", "says"), [
    ("lfa", {}, "W_pos", "W_pos is a table of learned positions, but this model has positions of kind rope"),
    ("pls", {}, "OV", "a gate on the input acts between V and O"),
    ("canon", {}, "QK", "Canon-B mixes positions after the maps: read hook_q"),
    ("canon", {}, "OV", "Canon-B mixes positions after the maps: read hook_result"),
    ("std-t", {"attention.qk_norm": "rms"}, "QK", "queries and keys are normed before it"),
    ("hdpl", {}, "W_Q", "an HDPL projection 32 -> 32 is not linear"),
    ("hdpl", {}, "W_gate", "an HDPL projection 32 -> 128 is not linear"),
    ("pls", {}, "scores", "OV is undefined, because a gate"),
    ("hdpl", {}, "scores", "an HDPL projection 32 -> 32 is not linear"),
    ("kromhc", {}, "scores", "updates do not add up to the residual stream of hyper-connections"),
    ("canon", {}, "scores", "Canon-A mixes positions after the norm"),
    ("gpt2", {"canon": "canon", "canon.places": "B"}, "scores", "OV is undefined, because Canon-B"),
])  # fmt: skip
def test_what_an_architecture_does_not_define(preset: str, overrides: Any, name: str, says: str) -> None:
    """One line, which is bad input and a lacking attribute alike, of the map and of scores that need it."""
    model = build(preset, "tiny", **overrides)
    if name == "scores":
        assert_refused(says, model.all_composition_scores, "Q")
        return
    assert getattr(model, name, None) is None
    for attribute, error, line in ((name, Undefined, says), ("W_q", AttributeError, "no attribute 'W_q'")):
        with pytest.raises(error, match=line):
            getattr(model, attribute)


def test_accumulated_bias() -> None:
    model = make("grouped")
    assert model.cfg.n_key_value_heads == 2 and not model.cfg.parallel_attn_mlp
    expected = model.b_O[0] + model.b_out[0]
    torch.testing.assert_close(model.accumulated_bias(1), expected, **TIGHT)
    torch.testing.assert_close(model.accumulated_bias(1, mlp_input=True), expected + model.b_O[1], **TIGHT)
    torch.testing.assert_close(model.accumulated_bias(2, include_mlp_biases=False), model.b_O.sum(0), **TIGHT)
    assert_refused("from 0 to 1, got 2", model.accumulated_bias, 2, mlp_input=True)
    assert_refused("hyper-connections", build("kromhc", "tiny").accumulated_bias, 1)


@pytest.mark.parametrize("name", ["gpt2", "grouped", "dst-kron", "lfa", "identity"])
@pytest.mark.parametrize("mode", ["Q", "K", "V"])
def test_composition_scores_by_hand(name: str, mode: str) -> None:
    """‖A B‖ / (‖A‖ ‖B‖) of every pair, the norm of the later layer as the matrix that it is but for its scale."""
    model = make(name)
    if mode == "V" and name in ("lfa", "identity"):
        with pytest.raises(Undefined, match="no head writes to the frozen token stream"):
            model.all_composition_scores(mode)
        return

    def through(norm: Any) -> Tensor:
        """[D, D], x -> γ ⊙ (x − mean), the mean over each of the norm's groups."""
        d = model.config.d_model // norm.groups
        centre = torch.eye(d).double() - (1 / d if norm.centred else 0)
        return torch.block_diag(*[centre] * norm.groups) @ norm.weight.diag()

    def values(block: Any) -> Tensor:
        return through(getattr(block, "ln1_v", block.ln1)) if model.config.residual.value_path != "raw" else eye

    eye, found = torch.eye(model.config.d_model).double(), model.all_composition_scores(mode)
    blocks = [(through(block.ln1), values(block), block.attn) for block in model.blocks]
    assert found.shape == (2, 4, 2, 4) and (found.scores[1] == 0).all() and (found.scores[0, :, 0] == 0).all()
    for h1 in range(4):
        for h2 in range(4):
            (_, v, first), (read, v2, second) = blocks
            A = v @ first.W_V[h1] @ first.W_O[h1]
            QK = read @ second.W_Q[h2] @ second.W_K[h2].T @ read.T
            B = {"Q": QK, "K": QK.T, "V": v2 @ second.W_V[h2] @ second.W_O[h2]}[mode]
            expected = (A @ B).norm() / A.norm() / B.norm()
            torch.testing.assert_close(found[0, h1, 1, h2], expected, rtol=1e-9, atol=0)


class Storages(TorchDispatchMode):
    """The largest storage of a tensor that an operation returns, in bytes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.largest = max([self.largest, *sizes])
        return out


def test_composition_scores_of_many_heads_expand_no_product() -> None:
    """One product of all heads with all needs the weights once per head: 10.7 GB for SmolLM2's 270 heads."""
    model = build("std-t", "tiny", n_layers=9, n_heads=4)
    with Storages() as storages, torch.no_grad():
        model.all_composition_scores("K")
    assert storages.largest <= 2 * model.W_Q.nbytes
    assert_refused("mode", model.all_composition_scores, "O")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("preset", "overrides"), [
    ("gpt2", {}), ("llama", {}), ("dst-kron", {}), ("kromcanon", {}),
    ("std-t", {"readout.softcap": 3.0, "embed_scale": 2.0}),
])  # fmt: skip
def test_the_unembedding_gives_the_logits_of_the_readout(preset: str, overrides: Any, tied: bool) -> None:
    model = build(preset, "tiny", init_std=0.2, **overrides, **{"readout.tied": tied})
    logits, cache = model.run_with_cache(TOKENS)
    resid = cache[f"blocks.{model.config.n_layers - 1}.hook_resid_post"]
    torch.testing.assert_close(model.unembed(model.ln_final(resid)), logits, rtol=0, atol=1e-5)
    assert ("unembed.weight" in model.state_dict()) is not tied
    assert len(list(model.unembed.parameters())) == (not tied)
    other = deepcopy(model)
    with torch.no_grad():
        (other.embed if tied else other.unembed).weight.zero_()
    assert not other.unembed(resid).any() and model.unembed(resid).any()
