"""What folders of the library say besides sizes: heads, rotary shares, tokens that begin and end a text, files."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.features.extract.measure import pieces_of
from streamscope.instruments.data import Text
from streamscope.models import load
from streamscope.models.checkpoint import load_for_instruments
from streamscope.models.generate import generate
from streamscope.models.interop.export.write import export
from streamscope.models.interop.huggingface.convert import read_config
from streamscope.models.interop.huggingface.generation import UNSUPPORTED, Sampling
from streamscope.probes.logit_lens import LogitLens
from streamscope.text.tokenizer import Tokenizer
from tests.models.test_huggingface import CASES, LLAMA3, cache, difference, theirs  # noqa: F401
from tests.tiny import assert_refused, refused

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def saved(kind: str, folder: Path, **changes: Any) -> Path:
    """A random model of the library as a folder, its config.json changed; a field set to `...` is taken out."""
    theirs(kind).save_pretrained(folder)
    return configured(folder, **changes)


def configured(folder: Path, **changes: Any) -> Path:
    told = json.loads((folder / "config.json").read_text()) | changes
    write(folder / "config.json", {name: x for name, x in told.items() if x is not ...})
    return folder


def write(path: Path, fields: Any) -> None:
    path.write_text(json.dumps(fields))


def put(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path, {"format": "pt"})


def off(folder: Path) -> float:
    """The largest difference of our logits from the library's, both read from a folder, in units of the largest."""
    tokens = torch.randint(0, 260, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
        return difference(load(f"hf:{folder}")(tokens), want)


KINDS = ("gpt2", "llama", "qwen2", "qwen3", "mistral", "smollm3", "phi3", "olmo2", "gemma2", "gemma3", "pythia")
HEADS = {kind: "embed_out.weight" if kind == "pythia" else "lm_head.weight" for kind in KINDS}
EMBEDDED = ("gpt2", "smollm3", "gemma2", "gemma3")
"""Families whose head is the embedding unless config.json says otherwise."""


@pytest.mark.parametrize("kind", KINDS)
def test_whether_the_head_is_tied(kind: str, tmp_path: Path) -> None:
    """A head in the file is the head, unless it is a copy of the embedding. A file without its head is refused."""
    folder = saved(kind, tmp_path / "model", tie_word_embeddings=...)
    assert read_config(folder)[0].readout.tied == (kind in EMBEDDED)
    assert off(folder) < 1e-5
    tensors = load_file(folder / "model.safetensors")
    (embed,) = (x for name, x in tensors.items() if re.search(r"(wte|embed_tokens|embed_in)\.weight$", name))
    if kind not in EMBEDDED:
        tensors.pop(HEADS[kind])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        assert_refused(f"{HEADS[kind]} is missing, which unembed.weight needs", load, f"hf:{folder}")
    configured(folder, tie_word_embeddings=True)
    head = 0.2 * torch.randn(embed.shape, generator=torch.Generator().manual_seed(2))
    for its_head in (head, embed.clone()):
        put(folder, **{HEADS[kind]: its_head})
        assert off(folder) < 1e-5
        model = load(f"hf:{folder}")
        assert model.config.readout.tied != (its_head is head) and torch.equal(model.unembed.weight, its_head)


# ---- what classes of the library read of their config.json, and what they do not ------------------

RULE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
STRETCHED = {"type": "linear", "factor": 4.0}
AS_THEY_DO: dict[str, dict[str, Any]] = {
    "a share that the class ignores": {"partial_rotary_factor": 0.5},
    "the share in the rule": {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    "names of NeoX": {"rope_parameters": ..., "rotary_emb_base": 50.0, "rotary_pct": 0.5},
    "names of Llama": {"rope_parameters": ..., "rope_theta": 50.0},
    "two rules": {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": STRETCHED, "rope_theta": 300.0},
    "the old context outside": {"rope_parameters": ..., "original_max_position_embeddings": 16,
                                "rope_scaling": {**RULE, "original_max_position_embeddings": 30}},
    "no old context": {"rope_parameters": ..., "rope_scaling": RULE},
    "no rule": {"rope_parameters": ...},
    "biases of the FFN": {"mlp_bias": False},
    "no windows beside a window": {"sliding_window": 4, "layer_types": ["full_attention"] * 3},
}  # fmt: skip
"""Fields of config.json that one class reads and another does not, or that stand in two places."""
YARN = {"rope_parameters": {"rope_type": "yarn"}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"partial_rotary_factor": 0.5, "rope_parameters": STRETCHED}, "partial_rotary_factor = 0.5 is not supp"),
    ("qwen2", {"rope_parameters": {"full_attention": {"rope_theta": 300.0}}}, "differ between layers"),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types other than"),
    ("qwen2", {"tie_word_embeddings": "false"}, "readout.tied: input should be a valid boolean, got 'false'"),
    ("pythia", {"use_parallel_residual": "no"}, "use_parallel_residual must be true or false"),
    ("mistral", {"sliding_window": "all"}, "attention.window: input should be a valid integer, got 'all'"),
    ("smollm3", {"no_rope_layers": [0, 1, 1]}, r"no_rope_layers = \[0, 1, 1\] is not supported, only every k-th layer"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window = True is not supported"),
    ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "rotary positions of kind 'longrope' are not supported"),
    *((kind, YARN, "rotary positions of kind 'yarn' are not supported")
      for kind in ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "pythia", "gemma2")),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported"),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "only every k-th layer"),
    ("gemma2", {"layer_types": ["sliding_attention"] * 2}, "has 2 entries, but the model has 3 layers"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 4}, r"layer_types \['chunked_attention'\] are not supported"),
    ("gemma3", {"rope_parameters": {"rope_theta": 300.0}}, "only those of both kinds of layers"),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
     "'linear' in layers with a window are not supported"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp = 2 is not supported"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False is not supported"),
    *(("gpt2", {name: True}, f"{name} = True is not supported")
      for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention")),
    ("qwen2", {"hidden_act": "xielu"}, "activation"),
    ("pythia", {"head_dim": 8}, "head_dim = 8 is not supported, only head_dim = 24"),
    *((kind, {"is_causal": False}, "is_causal = False is not supported") for kind in ("gpt2", "pythia", "llama")),
    ("gpt2", {"num_hidden_layers": 1}, "num_hidden_layers = 1 is not supported"),
    ("gpt2", {"num_attention_heads": 2}, "num_attention_heads = 2 is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "told"), [
    *itertools.product(("llama", "qwen2", "qwen3", "pythia", "neox-in-sequence"), list(AS_THEY_DO)[:-1]),
    ("mistral", "no windows beside a window"), ("phi3", "no windows beside a window"),
])  # fmt: skip
def test_fields_are_read_as_the_class_of_the_library_reads_them(kind: str, told: str, tmp_path: Path) -> None:
    assert off(saved(kind, tmp_path / "model", **AS_THEY_DO[told])) < 1e-5


NUMBERS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"n_inner": 10**7}, r"c_fc.bias \[192\] cannot become blocks.0.mlp.up.bias \[10000000\]"),
    ("phi3", {"num_hidden_layers": 1.5}, r"n_layers.* 1.5"),
    ("pythia", {"model_type": ["gpt_neox"]}, r"is of the family \['gpt_neox'\]"),
    ("phi3", {"num_key_value_heads": 1}, r"qkv_proj.weight for blocks.0.attn.q.weight cannot be read"),
    ("llama", {"num_key_value_heads": 4, "head_dim": 10**18}, "d_head must be at most 16,777,216"),
    ("llama", {"num_key_value_heads": 4, "head_dim": 10**7}, "cannot become|needs more than"),
    ("llama", {"rms_norm_eps": -1e-5}, "rms.eps must be at least 0"),
    ("pythia", {"rope_parameters": {"rope_type": "default", "rope_theta": -5}}, "rope.base must be above 0"),
]
"""What no model has, or not with its weights."""


@pytest.mark.parametrize(("kind", "changes", "line"), REFUSED + NUMBERS)
def test_what_no_class_computes_is_refused(kind: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    assert_refused(line, load, f"hf:{saved(kind, tmp_path / 'model', **changes)}")
    assert not list((tmp_path / "cache").rglob("config.json")), "nothing of it is built, or stays in the cache"


def test_the_guide_lists_what_is_refused() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "coming_from.md").read_text()
    rows = [row for row in guide.split("| refused |")[1].split("\n\n")[0].splitlines() if row.startswith("| `")]
    fields = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row.split("|")[1])}
    sizes = {"num_hidden_layers", "num_attention_heads", "tie_word_embeddings", "use_parallel_residual"}
    assert fields == {name for _, changes, _ in REFUSED for name in changes} - sizes


OLD: dict[str, dict[str, Any]] = {
    "gemma2": {"layer_types": ..., "rope_parameters": ..., "rope_theta": 50.0, "hidden_act": "silu"},
    "gemma3": {"layer_types": ..., "rope_parameters": ..., "rope_theta": 500.0, "rope_local_base_freq": 50.0,
               "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
}  # fmt: skip


@pytest.mark.parametrize("kind", OLD)
def test_names_of_gemma_as_first_published(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path / "model", **OLD[kind])
    assert off(folder) < 1e-5
    config = read_config(folder)[0]
    assert (config.attention.full_every, config.positions.base) == ((2, 50.0) if kind == "gemma2" else (3, 500.0))


STRETCH = {"rope_parameters": LLAMA3}
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {}, "pythia": {"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.25}},
    "llama": {**STRETCH, "head_dim": 20, "attention_bias": True, "mlp_bias": True},
    "mistral": {**STRETCH, "head_dim": 20}, "qwen2": {**STRETCH, "head_dim": 20},
    "qwen3": {**STRETCH, "head_dim": 20, "attention_bias": True},
    "smollm3": {**STRETCH, "head_dim": 20, "attention_bias": True, "mlp_bias": True},
    "olmo2": {**STRETCH, "head_dim": 20, "attention_bias": True}, "phi3": {"head_dim": 20},
    "gemma2": {**STRETCH, "head_dim": 20, "attention_bias": True}, "gemma3": {"head_dim": 20, "attention_bias": True},
}  # fmt: skip
"""Heads wider than D / H, biases and stretched positions, where a class has them."""


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_folder_as_published(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16, several files, a head of its own under a tied configuration, ids beyond the tokenizer, BOS elsewhere."""
    name, options = CASES[kind]
    monkeypatch.setitem(CASES, kind, (name, {**options, **PUBLISHED[kind], "vocab_size": 320,
                                             "tie_word_embeddings": True}))  # fmt: skip
    folder, peer = tmp_path / "model", theirs(kind).to(torch.bfloat16)
    peer.save_pretrained(folder, max_shard_size="60KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    head = 0.2 * torch.randn(320, 48, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    save_file({HEADS[kind]: head}, folder / "model-head.safetensors", {"format": "pt"})
    index["weight_map"][HEADS[kind]] = "model-head.safetensors"
    write(folder / "model.safetensors.index.json", index)
    words = Tokenizer.train([TEXT, "Tom had a red ball."] * 9, 280).to_json()
    as_file(words, ["<begin>"], folder)
    write(folder / "tokenizer_config.json", {"bos_token": "<begin>", "tokenizer_class": "PreTrainedTokenizerFast"})
    assert off(folder) < 1e-5
    model = load(f"hf:{folder}")
    ours, library = model.to_tokens(TEXT)[0].tolist(), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours == [library.bos_token_id, *library(TEXT, add_special_tokens=False).input_ids]
    assert model.to_str_tokens([300]) == ["<unused 300>"] and torch.equal(model.unembed.weight, head.float())
    assert model.config.d_head == (PUBLISHED[kind].get("head_dim") or 48 // model.config.n_heads)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_biases_that_the_class_has_not_are_not_looked_for(kind: str, tmp_path: Path) -> None:
    """Qwen2 and Qwen3 read no mlp_bias, and Qwen2 no attention_bias; a file that has them is refused."""
    told = {"mlp_bias": True, **({"attention_bias": True} if kind == "qwen2" else {})}
    folder = saved(kind, tmp_path / "model", **told)
    assert off(folder) < 1e-5
    put(folder, **{"model.layers.0.mlp.up_proj.bias": torch.ones(80)})
    assert_refused(r"model.layers.0.mlp.up_proj.bias \[80\] is not used by any part", load, f"hf:{folder}")


# ---- tokens that begin and end a text ------------------------------------------------------------

ZOO = Path(streamscope.models.__file__).parent / "zoo" / "gpt2" / "tokenizer.json"
TEXT = "Lily had   a red ball. </s> She gave it"


def as_file(words: str, extra: list[str], folder: Path) -> None:
    """A tokenizer.json as others write it: with further special tokens, and no rule for BOS."""
    backend = tokenizers.Tokenizer.from_str(words)
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens(extra)
    backend.save(str(folder / "tokenizer.json"))


def worded(kind: str, folder: Path, form: str, extra: dict[str, int], **config: Any) -> Path:
    """A model with the bundled tokenizer, as a file or as a pair, with tokens besides and a tokenizer_config.json."""
    saved(kind, folder, vocab_size=2060)
    names = ["transformer.wte"] if kind == "gpt2" else ["model.embed_tokens", "lm_head"]
    put(folder, **{f"{name}.weight": torch.randn(2060, 48) for name in names})
    if form == "pair":
        told = json.loads(ZOO.read_text())["model"]
        merges = [one if isinstance(one, str) else " ".join(one) for one in told["merges"]]
        write(folder / "vocab.json", told["vocab"])
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
        write(folder / "added_tokens.json", extra)
        config |= {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "unk_token": "<|endoftext|>"}
    else:
        as_file(ZOO.read_text(), list(extra), folder)
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}
    write(folder / "tokenizer_config.json", config)
    return folder


@pytest.mark.parametrize("form", ["file", "pair"])
@pytest.mark.parametrize("name", ["</s>", "<|im_start|>", "<s>"])
def test_bos_is_the_token_that_the_folder_names(name: str, form: str, tmp_path: Path) -> None:
    """OPT, SmolLM2-instruct and Phi-3: <|endoftext|> is in the vocabulary too, and is not theirs."""
    roles = {"bos_token": name, "eos_token": "<|endoftext|>", "pad_token": "<pad>"}
    folder = worded("gpt2", tmp_path / "model", form, {name: 2048, "<pad>": 2049}, **roles)
    want = transformers.AutoTokenizer.from_pretrained(folder)
    assert want.bos_token_id == 2048
    ours, text = Tokenizer.load(folder), "Lily had a red ball."
    assert ours.encode(text) == [2048, *want(text, add_special_tokens=False).input_ids]
    assert (ours.bos_id, ours.eos_id, ours.d_vocab, ours.note) == (2048, 0, 2050, "")
    ours.save(tmp_path / "kept.json")
    assert Tokenizer.load(tmp_path / "kept.json").sha256 == ours.sha256, "the policy is in the file"
    no_limit = {"model_max_length": 1000000000000000019884624838656}  # as transformers writes it
    write(folder / "tokenizer_config.json", {"bos_token": {"content": name, "lstrip": False}} | no_limit)
    assert Tokenizer.load(folder).bos_id == 2048
    (folder / "tokenizer_config.json").unlink()
    write(folder / "special_tokens_map.json", {"bos_token": name})
    assert Tokenizer.load(folder).bos_id == 2048
    for more in ({}, {"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": True}}}):
        write(folder / "tokenizer_config.json", {"bos_token": "<|endoftext|>", **more})
        want = transformers.AutoTokenizer.from_pretrained(folder)
        assert Tokenizer.load(folder).bos_id == want.bos_token_id == (0 if more else 2048), "two files that differ"


def test_tokens_beside_a_pair_are_read(tmp_path: Path) -> None:
    """added_tokens.json, and added_tokens_decoder of tokenizer_config.json: special ones are not read from text."""
    extra = {"</s>": 2048, "   ": 2049, "<pad>": 2050}
    folder = worded("gpt2", tmp_path / "model", "pair", extra, bos_token="</s>", eos_token="</s>", pad_token="<pad>")
    want = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    ours = Tokenizer.load(folder)
    assert ours.encode(TEXT) == want(TEXT).input_ids
    assert 2049 in ours.encode(TEXT) and ours.encode(TEXT).count(2048) == 1
    config = json.loads((folder / "tokenizer_config.json").read_text())
    rows = {str(i): {"content": name, "special": name != "   "} for name, i in extra.items()}
    write(folder / "tokenizer_config.json", config | {"added_tokens_decoder": rows})
    (folder / "added_tokens.json").unlink()
    assert Tokenizer.load(folder).encode(TEXT) == ours.encode(TEXT)
    write(folder / "tokenizer_config.json", config | {"add_prefix_space": True, "bos_token": "<|endoftext|>"})
    want = transformers.AutoTokenizer.from_pretrained(folder)
    assert Tokenizer.load(folder).encode("Lily had a red ball.") == want("Lily had a red ball.").input_ids
    for rows, line in (({"2050": {"content": "</s>"}}, "should have id 2050, but has 2048 in the vocabulary"),
                       ({"x": {"content": "</s>"}}, "added tokens are damaged"), ([1], "added tokens are damaged"),
                       ({"2048": "</s>"}, "added tokens are damaged")):  # fmt: skip
        write(folder / "tokenizer_config.json", {"added_tokens_decoder": rows})
        assert_refused(line, Tokenizer.load, folder)


def test_what_is_taken_where_the_folder_names_no_bos_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = worded("gpt2", tmp_path / "model", "file", {}, bos_token=None, eos_token="<|endoftext|>")
    load(f"hf:{folder}")
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith(str(folder))]
    assert line.endswith("tokenizer_config.json names no BOS: texts begin with '<|endoftext|>'")
    write(folder / "tokenizer_config.json", {"bos_token": "<s>"})
    assert "names '<s>' as BOS, which the vocabulary lacks: texts begin with" in Tokenizer.load(folder).note
    for prefix in (True, False):
        write(folder / "tokenizer_config.json", {"bos_token": "<|endoftext|>", "add_prefix_space": prefix})
        line = "tokenizer_config.json puts a space before a text, but tokenizer.json does not: none is put"
        assert Tokenizer.load(folder).note == (line if prefix else "")


def test_the_roles_of_special_tokens_outlive_the_conversion(tmp_path: Path) -> None:
    """Also in a folder without a chat template, to which a user may give one."""
    roles = {"bos_token": "<|endoftext|>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
             "sep_token": "<sep>", "cls_token": "<cls>"}  # fmt: skip
    extra = {name: 2048 + i for i, name in enumerate(list(roles.values())[1:])}
    model = load(f"hf:{worded('llama', tmp_path / 'model', 'file', extra, **roles)}")
    model.save(tmp_path / "kept")
    template = "".join(f"{{{{ {role} }}}}" for role in roles)
    for one in (model, load(tmp_path / "kept")):
        assert one.tokenizer.roles == roles
        one.tokenizer.chat_template = template
        assert one.tokenizer.chat_text([{"role": "user", "content": "Hi"}]) == "".join(roles.values())


ENDS: list[tuple[str, str, str]] = [
    ("llama", "", '{"eos_token_id": END}'), ("llama", "", '{"eos_token_id": [NEVER, END]}'),
    ("llama", '{"eos_token_id": END}', '{"eos_token_id": EARLY}'), ("qwen2", '{"eos_token_id": [NEVER, END]}', "{}"),
    ("gpt2", '{"eos_token_id": END, "bos_token_id": EARLY}', '{"bos_token_id": EARLY}'),
    ("pythia", '{"eos_token_id": NEVER}', '{"eos_token_id": END}'),
    ("qwen3", '{"eos_token_id": END}', '{"eos_token_id": null}'),
]  # fmt: skip
"""(kind, generation_config.json, changes of config.json)."""


@pytest.mark.parametrize(("kind", "generation", "config"), ENDS)
def test_generated_texts_end_where_the_librarys_do(kind: str, generation: str, config: str, tmp_path: Path) -> None:
    """At every EOS of generation_config.json, else of config.json; the library keeps it, we do not."""
    free = load(f"hf:{saved(kind, tmp_path / 'free')}")
    for start in range(260):
        told = free.generate([[start, 3]], max_new_tokens=16, temperature=0, stop_at_eos=False)[0][2:]
        if len(new := list(dict.fromkeys(told))) > 3:
            break
    ids = {"END": new[3], "EARLY": new[1], "NEVER": next(i for i in range(260) if i not in told)}
    generation, config = (re.sub("END|EARLY|NEVER", lambda m: str(ids[m[0]]), text) for text in (generation, config))
    folder = saved(kind, tmp_path / "model", **json.loads(config))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if generation:
        (folder / "generation_config.json").write_text(generation)
    ours, peer = load(f"hf:{folder}"), transformers.AutoModelForCausalLM.from_pretrained(folder)
    want = peer.generate(torch.tensor([[start, 3]]), max_new_tokens=16, do_sample=False)[0].tolist()[2:]
    ended = kind != "pythia"
    assert want == (told[: told.index(new[3]) + 1] if ended else told), "the library"
    got = ours.generate([[start, 3]], max_new_tokens=16, temperature=0)[0][2:]
    assert got == (want[:-1] if ended else want)
    ours.save(tmp_path / "kept")
    assert load(tmp_path / "kept").eos_ids == ours.eos_ids


def test_what_ends_a_text_goes_into_exports(tmp_path: Path) -> None:
    folder = worded("llama", tmp_path / "model", "file", {"</s>": 2048}, bos_token="<|endoftext|>", eos_token="</s>")
    write(folder / "generation_config.json", {"eos_token_id": [2048, 2055]})
    for native in (True, False):
        out = tmp_path / f"out-{native}"
        export(f"hf:{folder}", out, native=native)
        for name in ("config.json", "generation_config.json"):
            assert json.loads((out / name).read_text())["eos_token_id"] == [2048, 2055]
        assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == "</s>"
        assert "`</s>` ends a generated text" in (out / "README.md").read_text()
        assert load(f"hf:{out}").eos_ids == (2048, 2055)


def test_a_vocabulary_that_is_padded_beyond_the_tokenizer(tmp_path: Path) -> None:
    peer = theirs("gpt2-untied")
    with torch.no_grad():
        peer.lm_head.weight[259] = 50
        peer.transformer.ln_f.bias.fill_(1.0)  # the unused id 259 has the largest logit everywhere
    peer.save_pretrained(tmp_path / "model")
    Tokenizer.train([TEXT], 257).save(tmp_path / "model" / "tokenizer.json")
    model = load(f"hf:{tmp_path / 'model'}")
    ids = model.generate(["Lily"], max_new_tokens=3, temperature=0)
    assert ids[0][-3:] == [259] * 3
    assert model.to_string(ids) == ["Lily"] and model.to_string([259]) == ""
    assert model.to_str_tokens([259]) == ["<unused 259>"] and model.to_single_str_token(258) == "<unused 258>"
    assert_refused("token id 260 is outside", model.to_string, [260])
    found = LogitLens(k=3).measure(model, Text(text=("Lily had a ball.",)))
    assert any((table.frame == "<unused 259>").any(axis=None) for table in found.tables.values())
    assert len(pieces_of(model)) == 260


# ---- families in a bridge ------------------------------------------------------------------------


def gptj(folder: Path, **changes: Any) -> Path:
    """A model of a family that only a bridge reads, its config.json changed; a field set to `...` is taken out."""
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 48, "rotary_dim": 8, "vocab_size": 260, "n_positions": 40}
    transformers.GPTJForCausalLM(transformers.GPTJConfig(**sizes)).save_pretrained(folder)
    return configured(folder, **changes)


def test_texts_of_a_bridge_end_where_the_librarys_do(tmp_path: Path) -> None:
    folder = gptj(tmp_path / "model", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    noisy = {name: x + 0.3 * torch.randn(x.shape, generator=generator) for name, x in tensors.items()}
    save_file(noisy, folder / "model.safetensors", {"format": "pt"})
    model = load_for_instruments(f"hf:{folder}")
    free = (generate(model, [[start, 3]], max_new_tokens=12, temperature=0)[0] for start in range(40))
    row = next(row for row in free if len(set(row[2:])) > 2)
    end = list(dict.fromkeys(row[2:]))[2]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [259, end], "temperature": 0.5}))
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder)
    want = peer.generate(torch.tensor([row[:2]]), max_new_tokens=12, do_sample=False)[0].tolist()
    model = load_for_instruments(f"hf:{folder}")
    assert model.eos_ids == (259, end) and model.sampling == {"temperature": 0} and want == row[: row.index(end, 2) + 1]
    assert generate(model, [row[:2]], max_new_tokens=12, temperature=0)[0] == want[:-1]


@pytest.mark.parametrize(("changes", "line"), [
    ({"n_layer": ...}, "asks for 28 layers, but there are 25 tensors"),
    ({"n_embd": ..., "n_head": ..., "rotary_dim": ...}, "its weights: a size in it is missing"),
    ({"vocab_size": 10**9}, "bytes of its weights"),
    ({"n_layer": 3}, r"lacks transformer.h.2.\S+ and \d+ more"),
    ({"vocab_size": "wide"}, "cannot be read .*vocab_size"),
])  # fmt: skip
def test_sizes_of_a_bridge_are_held_against_its_weights(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    """What the weights lack is not drawn at random, and what a config.json lacks is not built at the largest size."""
    assert_refused(line, load_for_instruments, f"hf:{gptj(tmp_path / 'model', **changes)}")


def test_a_family_without_sizes_is_refused_at_once(tmp_path: Path) -> None:
    """A Gemma of the default sizes has 8.5 billion parameters."""
    write(tmp_path / "config.json", {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})
    save_file({f"model.layers.{i}.x": torch.zeros(4) for i in range(40)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="asks for 8,537,680,896 parameters, too many for the .* bytes of its weights"):
        load_for_instruments(f"hf:{tmp_path}")


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/outside.safetensors", "shards/../../outside.safetensors", ""]
)
@pytest.mark.parametrize("kind", ["llama", "gptj"])
def test_an_index_names_no_file_outside_its_folder(kind: str, name: str, tmp_path: Path) -> None:
    """Also where the library would follow it, in a bridge."""
    folder = tmp_path / "model"
    saved(kind, folder) if kind == "llama" else gptj(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    name = str(tmp_path / "outside.safetensors") if name.startswith("/") else name
    write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)})
    assert_refused(r"index.json names '.*', which is not in its folder", load_for_instruments, f"hf:{folder}")


def test_one_file_of_weights_comes_before_an_index(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    other = {name: x + 1 for name, x in load_file(folder / "model.safetensors").items()}
    save_file(other, folder / "other.safetensors", {"format": "pt"})
    write(folder / "model.safetensors.index.json", {"weight_map": dict.fromkeys(other, "other.safetensors")})
    assert off(folder) < 1e-5


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    folder = worded("gpt2", tmp_path / "model", "file", {}, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        want = load(f"hf:{folder}")(tokens)
        for path in folder.glob("*.json"):
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        model = load(f"hf:{folder}")
        assert torch.equal(model(tokens), want) and model.tokenizer is not None
        model.save(tmp_path / "run")
        for path in (tmp_path / "run").glob("*.json"):
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert torch.equal(load(tmp_path / "run")(tokens), want)
    (folder / "config.json").write_text("{")
    assert_refused("config.json is damaged .* download it again", load, f"hf:{folder}")


# ---- adapters of PEFT ----------------------------------------------------------------------------

MAPS = {"gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc"),
        "pythia": ("attention.query_key_value", "mlp.dense_4h_to_h"),
        "llama": ("self_attn.q_proj", "mlp.down_proj"), "phi3": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
        "gemma2": ("self_attn.v_proj",)}  # fmt: skip
"""Maps with an adapter in the tests; `attn.c_proj` of GPT-2 is square and transposed."""
BASE = "base_model.model."
LORA: dict[str, Any] = {"peft_type": "LORA", "r": 3, "lora_alpha": 7, "bias": "none", "init_lora_weights": True,
                        "lora_dropout": 0.1, "loftq_config": {}, "megatron_core": "megatron.core", "use_dora": False,
                        "corda_config": None}  # fmt: skip
PATTERNS = {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {r"layers\.[12]\.mlp\.down_proj": 5}}


def adapted(folder: Path, kind: str, **config: Any) -> Any:
    """Put an adapter of random A [r, in] and B [out, r] beside a model; returns the library's model with W + s B A."""
    peer, g = theirs(kind), torch.Generator().manual_seed(3)
    modules, tensors = dict(peer.named_modules()), {}
    for name, module in modules.items():
        if name.endswith(MAPS[kind]):
            layer, last = int(re.search(r"\.(\d+)\.", name)[1]), name.rpartition(".")[2]
            r, alpha = 3, 7
            if "rank_pattern" in config:
                r = 2 if (layer, last) == (1, "q_proj") else 3
                alpha = 5 if layer in (1, 2) and last == "down_proj" else 7
            turned = type(module).__name__ == "Conv1D"
            d_out, d_in = module.weight.shape[::-1] if turned else module.weight.shape
            a, b = 0.2 * torch.randn(r, d_in, generator=g), torch.randn(d_out, r, generator=g)
            tensors |= {f"{BASE}{name}.lora_{x}.weight": y for x, y in (("A", a), ("B", b))}
            delta = alpha / (r**0.5 if config.get("use_rslora") else r) * b @ a
            module.weight.data += delta.T if turned else delta
    save_file(tensors, folder / "adapter_model.safetensors")
    write(folder / "adapter_config.json", LORA | config)
    return peer


RSLORA = {"use_rslora": True}


@pytest.mark.parametrize(
    ("kind", "config"), [*((kind, {}) for kind in MAPS), ("llama", RSLORA), ("llama", PATTERNS), ("gpt2", RSLORA)]
)
@torch.no_grad()
def test_a_lora_adapter_beside_a_model_is_merged(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    """W' = W + (α / r) B A, or α / √r, by map; the cache tells the folder with an adapter from the one without."""
    folder, tokens = saved(kind, tmp_path / "model"), torch.arange(2, 40)[None]
    bare = load(f"hf:{folder}")(tokens)
    want = adapted(folder, kind, **config)(tokens).logits
    model = load(f"hf:{folder}")
    assert difference(model(tokens), want) < 1e-5 and difference(bare, want) > 0.01
    assert model.origin["adapter"].startswith("LoRA of adapter_model.safetensors, sha256 ")


NOT_LORA: list[tuple[dict[str, Any], dict[str, tuple[int, ...]], str]] = [
    ({"peft_type": "IA3"}, {}, "peft_type = 'IA3' is not supported"),
    ({"bias": "lora_only"}, {}, "bias = 'lora_only' is not supported"),
    ({"modules_to_save": ["lm_head"]}, {}, r"modules_to_save = \['lm_head'\] is not supported"),
    ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights = 'pissa_niter_4' is not supported"),
    ({"tomorrows_option": 3}, {}, "tomorrows_option = 3 is not supported"),
    ({"r": 4}, {}, r"down_proj.lora_A.weight \[3, 80\] does not fit its rank 4"),
    ({"alpha_pattern": {"(": 3}}, {}, "subpattern"), ({"r": "3"}, {}, "r: Input should be"),
    ({}, {"embed_tokens.lora_embedding_A": (3, 260)}, "embed_tokens.lora_embedding_A is not supported"),
    ({}, {"head.weight": (260, 48)}, "head.weight is not supported"),
    ({}, {"layers.0.self_attn.q_proj.lora_B.weight": (47, 3)}, r"q_proj.weight: the update \[47, 48\] does not fit"),
    ({}, {"layers.0.self_attn.x_proj.lora_A.weight": (3, 48)}, "x_proj.lora_B.weight is missing"),
    ({}, {f"layers.9.mlp.up_proj.lora_{x}.weight": (3, 3) for x in "AB"}, "layers.9.mlp.up_proj, which"),
]  # fmt: skip
"""(adapter_config.json, tensors by their shapes, message)."""


@pytest.mark.parametrize(("config", "tensors", "line"), NOT_LORA)
def test_what_is_not_plain_lora_is_refused_by_name(config: dict, tensors: dict, line: str, tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    adapted(folder, "llama", **config)
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | {f"{BASE}model.{name}": torch.ones(shape) for name, shape in tensors.items()}, path)
    assert_refused(rf"adapter_\S+ .*{line}", load, f"hf:{folder}")


@pytest.mark.parametrize(("file", "name", "value", "line"), [
    ("adapter_model", "model.layers.1.mlp.down_proj.lora_B.weight", torch.inf, "is not finite: 1 of 144"),
    ("model", "model.layers.1.mlp.up_proj.weight", torch.nan, "is NaN: 1 of 3840 values"),
])  # fmt: skip
def test_numbers_that_are_not_finite_are_named(file: str, name: str, value: float, line: str, tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    adapted(folder, "llama")
    tensors = load_file(path := folder / f"{file}.safetensors")
    tensors[(BASE if file == "adapter_model" else "") + name][7, 1] = value
    save_file(tensors, path, {"format": "pt"})
    assert_refused(rf"model\S*: {name} {line}", load, f"hf:{folder}")
    assert not list((tmp_path / "cache").rglob("config.json")), "nothing of it stays in the cache"


def test_an_adapter_without_its_model_weights_or_configuration_is_named(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    for name, line in (
        ("config.json", "holds an adapter without its model: put its files next to those of someone/base"),
        ("adapter_model.safetensors", "has no adapter_model.safetensors, although it has adapter_config.json"),
        ("adapter_config.json", "has no adapter_config.json, although it has adapter_model.safetensors"),
    ):
        adapted(folder, "llama", base_model_name_or_path="someone/base")
        (folder / name).rename(tmp_path / name)
        assert_refused(line, load, f"hf:{folder}")
        (tmp_path / name).rename(folder / name)


@pytest.mark.parametrize("family", ["llama", "gptj"])
def test_quantised_weights_are_refused(family: str, tmp_path: Path) -> None:
    """By config.json, and where it says nothing, by the dtype of a tensor."""
    folder = saved("llama", tmp_path / "model") if family == "llama" else gptj(tmp_path / "model")
    for name, scheme, line in (("quantization_config", {"quant_method": "bitsandbytes"}, "bitsandbytes"),
                               ("compression_config", {"format": "pack-quantized"}, "compression_config")):  # fmt: skip
        configured(folder, **{name: scheme})
        assert_refused(f"config.json: .* {line}", load_for_instruments, f"hf:{folder}")
        configured(folder, **{name: ...})
    if family == "gptj":
        write(folder / "adapter_config.json", LORA)
        assert_refused("adapter_config.json: an adapter is merged only into", load_for_instruments, f"hf:{folder}")
        (folder / "adapter_config.json").unlink()
    whole = load_file(folder / "model.safetensors")
    name = next(name for name in whole if "q_proj" in name)
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn):
        put(folder, **{name: (whole[name] * 90).clamp(0, 99).to(dtype)})
        with refused(rf"{name} is {str(dtype).removeprefix('torch.')}: .*dequantise"):
            load_for_instruments(f"hf:{folder}")


# ---- how the makers of a model sample it ---------------------------------------------------------

SAMPLED = {"do_sample": True, "temperature": 0.7}
GENERATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0}),
    ({"top_k": 5, "do_sample": False, "repetition_penalty": 1.4}, {"temperature": 0, "repetition_penalty": 1.4}),
    ({"do_sample": False}, {"temperature": 0}), ({}, {}), ({"eos_token_id": None}, {}),
    ({"suppress_tokens": [7, 30]}, {"temperature": 0, "suppress_tokens": [7, 30]}),
    ({"do_sample": True}, {"top_k": 50}), (SAMPLED, {"temperature": 0.7, "top_k": 50}),
    ({**SAMPLED, "top_k": 0}, {"temperature": 0.7}), ({**SAMPLED, "top_k": 9, "top_p": 0.8}, ...),
    ({**SAMPLED, "min_p": 0.3, "top_k": None}, {"temperature": 0.7, "top_k": 50, "min_p": 0.3}),
    ({**SAMPLED, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "suppress_tokens": [8], "repetition_penalty": 1.2}, ...),
]  # fmt: skip
"""(generation_config.json, `model.sampling`; ... is all but do_sample)."""


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(("fields", "sampling"), GENERATIONS)
def test_sampling_is_the_librarys(fields: dict[str, Any], sampling, place: str, tmp_path: Path, monkeypatch) -> None:
    """The same tokens, drawn from the same probabilities; an old config.json has the fields itself."""
    folder = saved("llama", tmp_path / "model", **{"eos_token_id": None, **(fields if place == "config.json" else {})})
    (folder / "generation_config.json").unlink()
    if place == "generation_config.json":
        write(folder / place, fields)
    ours, peer = load(f"hf:{folder}"), transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert ours.sampling == ({k: v for k, v in fields.items() if k != "do_sample"} if sampling is ... else sampling)
    drawn: list[torch.Tensor] = []

    def draw(p: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        drawn.append(p.flatten())
        return p.argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", draw)
    prompt = [5, 30, 7, 5]
    want = peer.generate(torch.tensor([prompt]), max_new_tokens=6)[0].tolist()
    split = len(drawn)
    got = ours.generate([prompt], max_new_tokens=6, **(ours.sampling or {"temperature": 0}))[0]
    assert got == want and len(drawn) == 2 * split and (split == 6) == (fields.get("do_sample") is True)
    for p, q in zip(drawn[:split], drawn[split:], strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)
    ours.save(tmp_path / "kept")
    assert load(tmp_path / "kept").sampling == ours.sampling


def test_what_changes_a_text_and_is_not_honoured_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = saved("llama", tmp_path / "model")
    fields = {"num_beams": 4, "stop_strings": ["\n"], "typical_p": 0.3, "no_repeat_ngram_size": 0, "use_cache": False,
              "forced_eos_token_id": 0, "penalty_alpha": None, "max_new_tokens": 9}  # fmt: skip
    for more, names in (({}, "num_beams, forced_eos_token_id, stop_strings"),
                        ({"do_sample": True}, "num_beams, typical_p, forced_eos_token_id, stop_strings")):  # fmt: skip
        write(folder / "generation_config.json", fields | more)
        assert load(f"hf:{folder}").sampling == ({"top_k": 50} if more else {"temperature": 0}), "greedy as there"
        (line,) = [one for one in capsys.readouterr().err.splitlines() if "generation_config.json" in one]
        line = line.partition(" has ")[2].partition(", which generate does not apply")[0]
        assert sorted(line.split(", ")) == sorted(names.split(", "))


def test_fields_of_generation_that_are_no_such_values_are_refused(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    for fields, line in (({"eos_token_id": [7, "x"]}, "eos_token_id must be a token id or a list of them"),
                         ({"suppress_tokens": ["x"]}, r"suppress_tokens\S*: Input should be"),
                         ({"do_sample": True, "temperature": math.nan}, "should be a finite number")):  # fmt: skip
        write(folder / "generation_config.json", fields)
        assert_refused(f"generation_config.json.*{line}", load, f"hf:{folder}")


QUIET = {
    "bos_token_id", "pad_token_id", "decoder_start_token_id", "max_length", "max_new_tokens",
    "num_return_sequences", "early_stopping", "length_penalty", "diversity_penalty", "renormalize_logits",
    "remove_invalid_values", "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "speculation_type", "compile_config", "disable_compile", "low_memory",
    "prefill_chunk_size", "continuous_batching_config", "transformers_version", "return_dict_in_generate",
}  # fmt: skip
"""Fields that leave the most likely text as it is: names of other tokens, lengths, caches, what is returned, details of
beams and of drafts."""


def test_every_field_of_the_library_is_judged() -> None:
    names = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    names = {name for name in names if "cache" not in name and not name.startswith("output_")}
    assert names == QUIET | {"eos_token_id"} | set(Sampling.__annotations__) | UNSUPPORTED.keys()
