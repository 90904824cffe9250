"""A family that is not made of our parts, in TransformerLens' bridge: measured by hooks, or refused in a line."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import open_data
from streamscope.instruments.registry import discover
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.ablate import main as ablate
from streamscope.models.checkpoint import load
from streamscope.models.hooks import capture, edit, edited_at, hooked_at
from streamscope.models.interop.huggingface.bridged import Bridged, bridge
from streamscope.models.interop.huggingface.convert import convert
from streamscope.probes.logit_lens.measure import head_of
from streamscope.text import END_OF_TEXT
from streamscope.text.shards import NO_TARGET, document_batches
from tests.tiny import assert_refused, randomise

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
INSTRUMENTS = discover()
REFUSED = {"abliterate", "amplify", "direct_logit_attribution", "extract", "hydra", "latents", "mixing_monitor",
           "circuits", "patch", "routing", "streams", "cluster", "profile", "predict_effects", "contraction",
           "dual_path", "mixing", "needed_context"}  # fmt: skip
"""What needs parts of ours, or a run; the others measure."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bridged, Any]:
    """(a GPT-J opened from its folder, the module that was saved there): random, its head with a bias."""
    from transformers import GPTJConfig, GPTJForCausalLM

    folder, tokenizer = tmp_path_factory.mktemp("gptj"), load("stories/lfa").tokenizer
    torch.manual_seed(0)
    sizes = {"n_layer": 6, "n_head": 6, "n_embd": 96, "rotary_dim": 8, "n_positions": 128}
    module = GPTJForCausalLM(GPTJConfig(vocab_size=tokenizer.d_vocab, **sizes)).eval()
    with torch.no_grad():
        module.lm_head.bias.normal_(std=0.5)
    module.save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return bridge(str(folder)), module


@torch.no_grad()
def test_what_a_bridge_is_made_of_is_no_hook_of_somebodys_own(theirs: tuple[Bridged, Any]) -> None:
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=50, n_positions=32)
    gpt2 = build_bridge_from_module(GPT2LMHeadModel(config).eval(), "GPT2LMHeadModel", hf_config=config)
    for model in (theirs[0], gpt2):
        model(torch.arange(3, 12)[None])
        assert hooked_at(model) == ()
        model.add_hook("blocks.1.hook_out", lambda x, hook: x * 2)
        assert hooked_at(model) == ("blocks.1.hook_out",)
        model.reset_hooks()
        assert hooked_at(model) == ()
    assert any(module._forward_pre_hooks for module in gpt2.modules()), "there is something to leave out"


@torch.no_grad()
def test_a_copy_that_is_made_inside_an_edit_is_not_edited(theirs: tuple[Bridged, Any]) -> None:
    model, tokens = theirs[0], torch.arange(3, 60).reshape(3, 19)
    plain, off = model(tokens), {"blocks.2.hook_mlp_out": lambda x, hook: 0 * x}
    with edit(model, off):
        copied, edited = deepcopy(model), model(tokens)
    assert not torch.equal(edited, plain) and torch.equal(copied(tokens), plain) and edited_at(copied) == ()
    with edit(copied, off):
        assert torch.equal(copied(tokens), edited) and torch.equal(model(tokens), plain)


@torch.no_grad()
def test_logits_are_those_of_the_library(theirs: tuple[Bridged, Any]) -> None:
    model, module = theirs
    tokens = torch.arange(3, 60).reshape(3, 19)
    expected = module(tokens).logits
    with capture(model, [model.final]) as found:
        logits = model(tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.streams(found[model.final]) @ model.head.T, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_ablation_is_a_loop_over_the_librarys_module(theirs: tuple[Bridged, Any]) -> None:
    model, module = theirs
    opened = open_data(Documents("stories:1:3"), model)
    found = Ablate(heads=("L1.H2", "L4.H0"), draws=0).measure(model, opened).table("loss").frame.set_index("head")

    def loss() -> float:
        pairs = [(module(x).logits.double()[y != NO_TARGET], y[y != NO_TARGET])
                 for _, x, y in document_batches(opened.shards, 128, 8, None)]  # fmt: skip
        return float(F.cross_entropy(*map(torch.cat, zip(*pairs, strict=True))))

    plain = loss()
    for head, layer, at in (("L1.H2", 1, 2), ("L4.H0", 4, 0)):
        kept = torch.arange(96) // 16 != at
        out = module.transformer.h[layer].attn.out_proj
        handle = out.register_forward_pre_hook(lambda _, args, kept=kept: (args[0] * kept, *args[1:]))
        assert found.loc[head, "delta"] == pytest.approx(loss() - plain, abs=2e-6)
        handle.remove()


@pytest.mark.parametrize(
    "name", [n if n in ("pds", "hydra") else pytest.param(n, marks=pytest.mark.slow) for n in sorted(INSTRUMENTS)]
)
def test_every_instrument_measures_or_says_in_a_line_why_not(name: str, theirs: tuple[Bridged, Any]) -> None:
    how = INSTRUMENTS[name](**INSTRUMENTS[name].quick)
    data = [one.small() for one in how.takes]
    data = [replace(one, data="stories:1:4") if type(one).__name__ in ("Documents", "Tokens") else one for one in data]
    if name in REFUSED:
        assert_refused("^(?!.*check_tokens)", how.measure, theirs[0], *data)
    else:
        assert all(len(table.frame) for table in how.measure(theirs[0], *data).tables.values())


def test_commands_take_its_folder(theirs: tuple[Bridged, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hf:FOLDER is opened in a bridge; as one file or as several, it is measured as in Python."""
    model, module = theirs
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    module.save_pretrained("sharded", max_shard_size="200KB")
    model.tokenizer.save(tmp_path / "sharded" / "tokenizer.json")
    assert (tmp_path / "sharded" / "model.safetensors.index.json").is_file()
    argv = ["--heads", "L1.H2", "L4.H0", "--draws", "0", "--data", "stories:1:3"]
    how = Ablate(heads=("L1.H2", "L4.H0"), draws=0)
    expected = how.measure(model, Documents("stories:1:3")).table().frame
    with pytest.raises(InputError, match=r"^gptj \(hf:sharded\) is of no run .* with --data SOURCE, in Python Docum"):
        how.measure("hf:sharded")
    pd.testing.assert_frame_equal(how.measure("hf:sharded", Documents("stories:1:3")).table().frame, expected)
    module.save_pretrained("whole")
    model.tokenizer.save(tmp_path / "whole" / "tokenizer.json")
    ablate(["hf:sharded", "hf:whole", *argv, "--out", "b.parquet"])
    both = Result.load("b.parquet").table().frame
    assert both["run"].tolist() == ["gptj (hf:sharded)"] * 2 + ["gptj (hf:whole)"] * 2
    assert both["delta"].tolist() == [*expected["delta"], *expected["delta"]]
    ablate(["hf:sharded", *argv, "--dtype", "bf16", "--out", "c.parquet"])
    single = Result.load("c.parquet").table()
    rounded, exact = single.frame["edited"], expected["edited"]
    assert single.title.startswith("gptj (hf:sharded): loss")
    assert rounded.tolist() == pytest.approx(exact.tolist(), rel=0.02) and (rounded != exact).all()
    with pytest.raises(InputError, match="has no segment|reads our modules"):
        INSTRUMENTS["hydra"](heads=("L4.*",)).measure("hf:sharded")
    with pytest.raises(InputError, match="only instruments read the family 'gptj'; converted are gpt2, "):
        convert(tmp_path / "sharded", tmp_path / "run")


def test_a_bridge_that_somebody_booted_is_measured_as_it_is(theirs: tuple[Bridged, Any]) -> None:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import PreTrainedTokenizerFast

    ours, module = theirs
    booted = build_bridge_from_module(deepcopy(module), type(module).__name__, hf_config=module.config)
    backend = Backend.from_str(ours.tokenizer.to_json())
    booted.tokenizer = fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END_OF_TEXT)
    data, how = Documents("stories:1:3"), Ablate(heads=("L1.H2", "L4.H0"), draws=0)
    found, expected = (how.measure(one, data).table("loss").frame for one in (booted, ours))
    pd.testing.assert_frame_equal(found, expected)
    assert type(booted) is TransformerBridge and booted.tokenizer is fast
    with pytest.raises(InputError, match=r"^a GPTJForCausalLM of transformers has none of the hooks .* 'hf:FOLDER'"):
        how.measure(module, data)


SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 32}  # fmt: skip
GATED = {**SIZES, "intermediate_size": 64, "num_key_value_heads": 2}
BERT = {**SIZES, "intermediate_size": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Granite": ("GraniteForCausalLM", {**GATED, "logits_scaling": 4.0, "embedding_multiplier": 3.0,
                                       "residual_multiplier": 0.5}),
    "Cohere": ("CohereForCausalLM", {**GATED, "logit_scale": 0.25}),
    "OPT": ("OPTForCausalLM", {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "Gemma": ("GemmaForCausalLM", {**GATED, "head_dim": 8}),
    "caps": ("Gemma2ForCausalLM", {**GATED, "head_dim": 8, "final_logit_softcapping": 3.0}),
    "norms of updates": ("Olmo2ForCausalLM", GATED),
    "two norms": ("FalconForCausalLM", {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2,
                                        "multi_query": False}),
    "all tokens": ("MistralForCausalLM", {**GATED, "is_causal": False}),
    "all tokens of Gemma 3": ("Gemma3ForCausalLM", {**GATED, "head_dim": 8, "use_bidirectional_attention": True}),
    "no decoder": ("BertLMHeadModel", BERT),
    "a map before the head": ("BertLMHeadModel", {**BERT, "is_decoder": True}),
    "sinusoids": ("XGLMForCausalLM", {"vocab_size": 100, "d_model": 32, "num_layers": 2, "attention_heads": 4,
                                      "ffn_dim": 64}),
    "no norm": ("OpenAIGPTLMHeadModel", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4,
                                         "n_positions": 32}),
    "experts": ("MixtralForCausalLM", {**GATED, "num_local_experts": 3}),
}  # fmt: skip
WRONG = {
    "a map before the head": {"logits", "parts", "heads", "neurons"}, "sinusoids": {"parts"},
    "no norm": {"logits", "parts", "heads", "neurons"}, "experts": {"neurons"},
    "norms of updates": {"heads", "neurons"},
}  # fmt: skip
"""What does not add up. OLMo 2 norms what attention and FFN write, so that layers' updates do and their heads not."""


def saved_one(name: str, folder: Path) -> Any:
    """The library's module, every weight random, saved in a folder."""
    import transformers

    cls, fields = getattr(transformers, MODELS[name][0]), MODELS[name][1]
    module = randomise(cls(cls.config_class(**fields)).eval(), std=0.2)
    module.save_pretrained(folder)
    return module


@torch.no_grad()
@pytest.mark.parametrize("name", ["Granite", "Cohere", "OPT", "Gemma"])
def test_parts_and_heads_give_the_librarys_logits(name: str, tmp_path: Path) -> None:
    """With the norm's weight, however the family stores it, and with what it multiplies its logits by."""
    module = saved_one(name, tmp_path)
    model, tokens = bridge(str(tmp_path)), torch.arange(12).reshape(2, 6)
    expected = module(tokens).logits
    close = dict(rtol=1e-4, atol=1e-4)
    with capture(model, [model.final]) as found:
        model(tokens)
    torch.testing.assert_close(model.streams(found[model.final]) @ model.head.T, expected, **close)
    _, cache = model.run_with_cache(tokens)
    wanted, bias = expected[..., 7] - model.logit_bias[7], model.logit_bias[7] - model.logit_bias[9]
    second, u = cache.apply_slice_to_batch_dim([1]), model.W_U[:, 7] * model.logit_scale
    difference = cache.logit_attrs(cache.decompose_resid(), 7, 9).sum(0) + bias
    torch.testing.assert_close(difference, expected[..., 7] - expected[..., 9], **close)
    torch.testing.assert_close(second.logit_attrs(second.decompose_resid(), 7).sum(0), wanted[[1]], **close)
    for stack in (cache.logit_attrs(cache.decompose_resid(), 7),
                  cache.logit_attrs(cache.stack_head_results(incl_remainder=True), 7),
                  cache.stack_neuron_results(2, apply_ln=True, incl_remainder=True, project_output_onto=u),
                  cache.stack_neuron_results(2, apply_ln=True, incl_remainder=True) @ u):  # fmt: skip
        torch.testing.assert_close(stack.sum(0), wanted, **close)
    lens = head_of(model, 1)(cache["resid_post", 1][0])
    torch.testing.assert_close(lens, expected[0], **close)
    states = cache.accumulated_resid(apply_ln=True)[-1] @ model.W_U * model.logit_scale
    torch.testing.assert_close(states, expected - model.b_U * model.logit_scale, **close)


@pytest.mark.parametrize("name", ["two norms", "all tokens", "all tokens of Gemma 3", "no decoder"])
def test_a_bridge_that_computes_something_else_is_refused(name: str, tmp_path: Path) -> None:
    """Falcon of 40B, of which TransformerLens gives other logits; and tokens that look ahead, at padding too."""
    saved_one(name, tmp_path)
    line = "gives other logits than the library" if name == "two norms" else "attend to later ones"
    assert_refused(line, bridge, str(tmp_path))


@torch.no_grad()
@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_add_up_in_a_bridge_is_refused(name: str, tmp_path: Path) -> None:
    """The model is measured; attribution says in a line what is not a sum, and gives the right logits elsewhere."""
    module = saved_one(name, tmp_path)
    model, tokens = bridge(str(tmp_path)), torch.arange(12).reshape(2, 6)
    logits, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, module(tokens).logits, rtol=1e-4, atol=1e-4)
    calls = {
        "logits": lambda: cache.logit_attrs(cache["resid_pre", 1][None], 7), "parts": cache.decompose_resid,
        "heads": cache.stack_head_results, "neurons": lambda: cache.stack_neuron_results(2),
    }  # fmt: skip
    for parts, call in calls.items():
        if parts in WRONG[name]:
            assert_refused(f"^{model.family}: .* (add up to|does not give its logits)", call)
        else:
            call()
    assert_refused("add up", cache.get_full_resid_decomposition)
    if "logits" not in WRONG[name]:
        whole = cache["resid_post", 1][None] if "parts" in WRONG[name] else cache.decompose_resid()
        attributed = cache.logit_attrs(whole, 7).sum(0) + model.logit_bias[7]
        torch.testing.assert_close(attributed, logits[..., 7], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_capped_logits_are_refused_where_they_would_be_wrong(tmp_path: Path) -> None:
    """Gemma 2: the logit lens has the cap; what reads logits as a linear map says that they are none."""
    module = saved_one("caps", tmp_path)
    model, tokens = bridge(str(tmp_path)), torch.arange(12).reshape(2, 6)
    _, cache = model.run_with_cache(tokens)
    lens = head_of(model, 1)(cache["resid_post", 1][0])
    torch.testing.assert_close(lens, module(tokens).logits[0], rtol=1e-4, atol=1e-4)
    for call in (lambda: model.head, lambda: cache.logit_attrs(cache.accumulated_resid(), 7), lambda: model.logit_bias):
        assert_refused(r"^gemma2 caps its logits: .* without final_logit_softcapp", call)


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    assert_refused("cannot be read", bridge, str(tmp_path))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert_refused("cannot be read", Ablate(heads=("L1.*",)).measure, f"hf:{tmp_path}")
    assert_refused("is of the family 'nonsense', which only instruments", load, f"hf:{tmp_path}")
