"""What a user of TransformerLens tries first: losses of texts, return types, names; weights as the maps of a pass."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from streamscope.cli.errors import InputError, Undefined
from streamscope.models import build
from streamscope.models.hooks import match
from streamscope.models.transformer import StreamTransformer
from streamscope.text.stories import documents
from streamscope.text.tokenizer import Tokenizer
from tests.tiny import assert_refused, randomise

TEXTS = ["Lily ran.", "Once there was a boy who had a small dog."]


@pytest.fixture(scope="module")
def model():
    tokenizer = Tokenizer.train(documents(0, 200), 400)
    return build("lfa", "tiny", tokenizer=tokenizer, d_vocab=400)


@torch.no_grad()
@pytest.mark.parametrize("out", [[0, 1, 2], [4], [7, 8]])
def test_a_mask_excludes_what_is_read_as_well_as_what_is_predicted(model, out: list[int]) -> None:
    """Of padding on the left, a gap, and padding on the right: the mean is that of the losses by token."""
    tokens = torch.arange(27).reshape(3, 9) % 9 + 5
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[0, out] = False
    logits = model(tokens)[:, :-1].flatten(0, 1)
    each = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    real = (mask[:, :-1] & mask[:, 1:]).flatten()
    torch.testing.assert_close(model(tokens, return_type="loss", mask=mask), each[real].mean())
    torch.testing.assert_close(model.loss_fn(model(tokens), tokens, mask), each[real].mean())
    by_token = model(tokens, return_type="loss", loss_per_token=True, mask=mask)
    torch.testing.assert_close(by_token.flatten(), torch.where(real, each, 0.0))


@torch.no_grad()
def test_return_types(model) -> None:
    tokens = model.to_tokens("Lily ran.")
    logits, loss = model(tokens, return_type="both")
    assert torch.equal(logits, model(tokens))
    assert torch.equal(loss, model(tokens, return_type="loss"))
    assert model(tokens, return_type=None) is None
    assert_refused("unknown return_type 'lozz'", model, tokens, return_type="lozz")
    assert_refused("reads texts or a tensor of token ids, not list", model, [1, 2])
    assert_refused("return_type='loss'", model, tokens, "loss")


@torch.no_grad()
def test_text_in_place_of_tokens(model) -> None:
    """A text is its tokens; several are padded on the right, and the loss is that of their real targets."""
    assert torch.equal(model(TEXTS[0]), model(model.to_tokens(TEXTS[0])))
    tokens, mask = model.to_batch(TEXTS)
    logits, loss = model(TEXTS, return_type="both")
    assert torch.equal(logits, model(tokens))
    assert torch.equal(loss, model(tokens, return_type="loss", mask=mask))
    torch.testing.assert_close(logits[:1, : mask[0].sum()], model(TEXTS[0]))
    bare = model(TEXTS[1], prepend_bos=False)
    assert torch.equal(bare, model(tokens[1:, 1:])) and torch.equal(model(TEXTS[1], prepend_bos=None), model(TEXTS[1]))
    _, cache = model.run_with_cache(TEXTS[1], names_filter="*hook_z", remove_batch_dim=True)
    _, same = model.run_with_cache(tokens[1:], names_filter="*hook_z")
    assert torch.equal(cache["z", 1], same["z", 1][0])
    assert_refused("needs one text, got 2", model.run_with_cache, TEXTS, remove_batch_dim=True)
    assert_refused("no tokenizer", build("lfa", "tiny"), "Lily ran.")


def test_pieces(model) -> None:
    tokens = model.to_tokens(TEXTS[0])
    pieces = model.to_str_tokens(input=TEXTS[0], prepend_bos=None)
    assert "".join(pieces[1:]) == TEXTS[0] and pieces[0] == "<|endoftext|>"
    for ids in (TEXTS[0], tokens, tokens[0], tokens[0].tolist(), tokens[0].numpy()):
        assert model.to_str_tokens(ids) == pieces
    assert model.to_str_tokens(TEXTS) == [model.to_str_tokens(text) for text in TEXTS]
    assert model.to_single_str_token(int(tokens[0, 1])) == pieces[1]
    assert_refused("one sequence of ids, got .2, 3.", model.to_str_tokens, torch.zeros(2, 3, dtype=torch.long))


@torch.no_grad()
@pytest.mark.parametrize("preset", ["std-t", "lfa", "kromcanon"])
def test_stopping_and_starting(preset) -> None:
    model = randomise(build(preset, "tiny"), std=0.2)
    tokens = torch.arange(12).reshape(2, 6)
    last = model.run_with_cache(tokens, names_filter="*resid_post")[1]["resid_post", 1]
    torch.testing.assert_close(model(tokens, stop_at_layer=2), last, rtol=0, atol=1e-6)
    assert torch.equal(model(tokens, stop_at_layer=-1), model(tokens, stop_at_layer=1))
    assert list(model.run_with_cache(tokens, stop_at_layer=1)[1].keys())[-1] == "blocks.0.hook_resid_post"
    with pytest.raises(InputError, match="did not fire before stop_at_layer: blocks.1.attn.hook_z"):
        model.run_with_cache(tokens, names_filter=["blocks.1.attn.hook_z"], stop_at_layer=1)
    assert_refused("stop_at_layer must be from -2 to 2, got 3", model, tokens, stop_at_layer=3)
    middle = model(tokens, stop_at_layer=1)
    if preset != "std-t":
        assert_refused(r"start_at_layer needs one stream.*model.segment", model, middle, start_at_layer=1)
        return
    assert torch.equal(model(middle, start_at_layer=1), model(tokens))
    assert torch.equal(model(middle, start_at_layer=1, stop_at_layer=2), model(tokens, stop_at_layer=2))
    assert_refused("a loss needs the tokens", model, middle, start_at_layer=1, return_type="loss")
    assert_refused("the stream that enters the layer", model, tokens, start_at_layer=1)


@torch.no_grad()
def test_text_as_users_of_transformer_lens_write_it(model) -> None:
    """prepend_bos=None is the default, input= the name of the first argument, padding on the right."""
    tokens = model.to_tokens(TEXTS)
    for options in ({"prepend_bos": None}, {"padding_side": "right", "move_to_device": False}, {"truncate": True}):
        assert torch.equal(model.to_tokens(input=TEXTS, **options), tokens)
    assert torch.equal(model.to_tokens(TEXTS, prepend_bos=False), tokens[:, 1:])
    long = " ".join(TEXTS * 20)
    assert model.to_tokens(long).shape[1] > model.cfg.n_ctx == model.to_tokens(long, truncate=True).shape[1]
    one = int(tokens[1, 3])
    assert model.to_string(one) == model.to_string(torch.tensor(one)) == model.to_string([one])
    assert model.to_string(tokens.numpy()) == model.to_string(tokens) == TEXTS
    assert torch.equal(model(input=TEXTS[1], padding_side="right"), model(TEXTS[1]))
    _, mask = model.to_batch(TEXTS)
    loss = model(tokens, return_type="loss", attention_mask=mask.long())
    assert torch.equal(loss, model(TEXTS, return_type="loss")) and loss != model(tokens, return_type="loss")
    greedy = model.generate(input=TEXTS[0], max_new_tokens=3, do_sample=False, verbose=False)
    assert greedy == model.generate(TEXTS[0], max_new_tokens=3, temperature=0)
    for call in (model, model.to_tokens):
        assert_refused("padding_side='left': padding is on the right", call, TEXTS[0], padding_side="left")
    assert_refused("attention_mask hides tokens before others", model, tokens, attention_mask=mask.flip(1).long())
    assert_refused("to_string takes ids of tokens or lists of them, not 'Lily'", model.to_string, "Lily")
    assert_refused("no option 'return_type': .* model.to_string", model.generate, TEXTS[0], return_type="str")


def test_positions_of_tokens(model) -> None:
    text = "Lily ran. The dog ran. Ben sat."
    ids = model.to_tokens(text)[0].tolist()
    end = model.to_single_token(".")
    places = [i for i, token in enumerate(ids) if token == end]
    assert len(places) == 3
    assert model.get_token_position(".", text) == model.get_token_position(end, torch.tensor(ids)) == places[0]
    assert model.get_token_position(".", text, mode="last") == places[2]
    assert model.get_token_position(".", input=text, prepend_bos=False) == places[0] - 1
    assert_refused("not in this sequence of", model.get_token_position, 0, torch.tensor([[3, 4]]))
    assert_refused("unknown mode 'next'", model.get_token_position, end, text, mode="next")
    assert_refused("row by row", model.get_token_position, end, torch.zeros(2, 3))


@torch.no_grad()
def test_parts_by_the_names_of_transformer_lens() -> None:
    model = randomise(build("std-t", "tiny", embed_scale=1.5), std=0.2)
    tokens = torch.arange(12).reshape(2, 6)
    stream, same, none, mask = model.input_to_embed(tokens)
    assert torch.equal(same, tokens) and none is None and mask is None
    torch.testing.assert_close(stream, model.embed.W_E[tokens] + model.pos_embed.W_pos[:6])
    assert torch.equal(model(stream, start_at_layer=0), model(tokens))
    normed = model.ln_final(model(tokens, stop_at_layer=2))
    torch.testing.assert_close(normed @ model.unembed.W_U, model(tokens))
    norm, x = model.blocks[0].ln1, torch.randn(3, model.cfg.d_model)
    want = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt() * norm.w + norm.b
    torch.testing.assert_close(norm(x), want)
    assert model.ln_final.w is model.ln_final.weight
    assert_refused(r"token and context: use model.embed_tokens\(tokens\)", build("lfa", "tiny").input_to_embed, tokens)
    model.set_use_hook_mlp_in(True)
    model.set_use_attn_in(False)
    assert_refused("heads share one input, hook_attn_in", model.set_use_attn_in, True)


def test_transformer_lens_names_are_checked(model) -> None:
    for names, message in (
        (["blocks.0.attn.hook_patern"], "hook_patern'.*hook_pattern"),
        ("blocks.*.attn.hook_patern", r"did you mean blocks\.\*\.attn\.hook_pattern"),
        (lambda name: name.endswith("hook_patern"), "names_filter matches no hook"),
    ):
        assert_refused(message, model.run_with_cache, TEXTS[0], names_filter=names)
    with pytest.raises(InputError, match=r"unknown hook 'blocks.1.hook_rezid_pre'"):
        model.run_with_hooks(TEXTS[0], fwd_hooks=[("blocks.1.hook_rezid_pre", lambda x, hook: x)])
    assert match(model, "blocks.[0-1].attn.hook_z") == ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]


@torch.no_grad()
def test_a_cache_says_what_it_holds_and_what_it_does_not(model) -> None:
    _, cache = model.run_with_cache(TEXTS[0], names_filter=["blocks.*.attn.hook_z", "hook_embed"])
    assert repr(cache) == f"Cache of {1 + model.cfg.n_layers} activations: hook_embed, blocks.*.attn.hook_z"
    assert torch.equal(cache["z", 0], cache["blocks.0.attn.hook_z"])
    with pytest.raises(KeyError, match="unknown activation 'hook_resid_post': did you mean hook_embed"):
        cache["resid_post"]  # a layer is missing


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
    linear = f"blocks.1.mlp.hook_pre{'_linear' if model.W_gate is not None else ''}"
    torch.testing.assert_close(inputs["mlp"] @ model.W_in[1] + model.b_in[1], cache[linear], **TIGHT)
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
