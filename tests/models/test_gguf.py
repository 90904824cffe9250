"""GGUF files as models: equal to the library's reading of them, bounded before anything is allocated."""

import json
import re
import struct
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

import streamscope.models
from streamscope.instruments.data import Documents
from streamscope.interventions import Ablate
from streamscope.models import load
from streamscope.models.describe import main as describe
from streamscope.models.interop.huggingface.gguf import Gguf, read_header, read_tokenizer, tensor, their_config
from streamscope.text.tokenizer import BYTE_OF, Tokenizer
from tests.models import test_huggingface as cases
from tests.models.test_huggingface import cache  # noqa: F401
from tests.tiny import assert_refused, refused

gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install 'streamscope[gguf]'")
ZOO = Path(streamscope.models.__file__).parent / "zoo" / "gpt2" / "tokenizer.json"
ROPE = "llama.rope.scaling."
TEMPLATE = "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}you:{% endif %}"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Gguf:
    written("llama", path := tmp_path_factory.mktemp("llama") / "x.gguf")
    return read_header(path)


def with_fields(file: Gguf, fields: dict[str, Any], start: str = "") -> Gguf:
    return replace(file, fields={**file.fields, **{f"{start}{name}": value for name, value in fields.items()}})


def logits_agree(name: str, tokens: torch.Tensor, want: torch.Tensor) -> None:
    assert cases.difference(load(name)(tokens), want) < 1e-5


def in_pairs(x: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of queries and keys."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def written(kind: str, path: Path, quantised: str = "F32", split: int = 0, **more: Any) -> Any:
    """A random model of the library as a GGUF file, or as several of `split` tensors, with fields besides; the
    library's model with the weights that stand in it."""
    peer = cases.theirs(kind)
    c, arch = peer.config, {"llama-3": "llama"}.get(kind, kind.split("-")[0])
    rules = c.rope_parameters if "rope_theta" in c.rope_parameters else c.rope_parameters["full_attention"]
    told = json.loads(ZOO.read_text())["model"]
    words = sorted(told["vocab"], key=told["vocab"].get)[: c.vocab_size]
    merges = [m if isinstance(m, str) else " ".join(m) for m in told["merges"]]
    fields: dict[str, Any] = {
        "block_count": c.num_hidden_layers, "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "head_count": c.num_attention_heads, "head_count_kv": c.num_key_value_heads,
        "layer_norm_rms_eps": c.rms_norm_eps, "rope_freq_base": rules["rope_theta"],
        "tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": words,
        "token_types": [3] + [1] * (len(words) - 1),
        "token_merges": [m for m in merges if m.replace(" ", "") in set(words)],
        "bos_token_id": 0, "eos_token_id": 5, "add_bos_token": False, "chat_template": TEMPLATE,
    }  # fmt: skip
    if rules["rope_type"] == "linear":
        fields |= {"rope_scaling_type": gguf.RopeScalingType.LINEAR, "rope_scaling_factor": rules["factor"]}
    if arch in ("phi3", "gemma2", "gemma3"):
        fields["sliding_window"] = c.sliding_window or 0
    if arch == "phi3":
        rotated = int(c.hidden_size // c.num_attention_heads * rules["partial_rotary_factor"])
        fields |= {"rope_dimension_count": rotated, "rope_scaling_orig_ctx_len": c.max_position_embeddings}
    if arch.startswith("gemma") and c.final_logit_softcapping is not None:
        fields["final_logit_softcapping"] = c.final_logit_softcapping
        if arch == "gemma2":
            fields["attn_logit_softcapping"] = c.attn_logit_softcapping
    if getattr(c, "head_dim", None):
        fields |= {"key_length": c.head_dim, "value_length": c.head_dim}
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    kinds = {int: writer.add_int32, float: writer.add_float32, str: writer.add_string}
    for name, value in (fields | more).items():
        kinds[type(value)](name, value) if "." in name else getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map({n: k for k, n in gguf.MODEL_ARCH_NAMES.items()}[arch], c.num_hidden_layers)
    kept, dtype = {}, gguf.GGMLQuantizationType[quantised]
    for name, x in peer.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        data = x.numpy() + np.float32("norm" in name and arch.startswith("gemma"))  # llama.cpp stores γ
        is_quantised = quantised != "F32" and x.ndim == 2 and x.shape[1] % 32 == 0
        if is_quantised:
            data = gguf.quants.dequantize(gguf.quants.quantize(data, dtype), dtype)
        kept[name] = torch.tensor(data if data.ndim == 2 else x.numpy())
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
        for part, n in heads.items() if arch in ("llama", "smollm3") else ():
            data = in_pairs(data, n) if part in name else data
        theirs_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if is_quantised:
            writer.add_tensor(theirs_name, gguf.quants.quantize(data, dtype), raw_dtype=dtype)
        else:
            writer.add_tensor(theirs_name, np.ascontiguousarray(data))
    if rules["rope_type"] == "llama3":
        head = c.hidden_size // c.num_attention_heads
        plain = rules["rope_theta"] ** (-np.arange(0, head, 2) / head)
        writer.add_tensor("rope_freqs.weight", (plain / peer.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    peer.load_state_dict(kept, strict=not c.tie_word_embeddings)
    return peer


MORE: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5}, "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "layer_types": None, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "smollm3-untied": {"no_rope_layers": [1, 1, 1]},
    "phi3-partly-rotated": {"num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip
"""What llama.cpp fixes for an architecture, so that its files do not name it."""


@pytest.mark.parametrize(("kind", "quantised"), [
    ("llama", "F32"), ("llama", "Q8_0"), ("qwen2", "Q4_1"), ("qwen3", "F32"), ("smollm3", "F32"),
    ("smollm3-untied", "Q8_0"), ("olmo2", "Q8_0"), ("phi3", "F32"), ("phi3-partly-rotated", "Q4_1"), ("gemma2", "F32"),
    ("gemma2", "Q8_0"), ("gemma3", "F32"),
])  # fmt: skip
@torch.no_grad()
def test_logits_are_those_of_the_weights_in_the_file(kind: str, quantised: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model" / "model.gguf"
    path.parent.mkdir()
    name, sizes = cases.CASES[kind]
    sizes = sizes | {"hidden_size": 64, "intermediate_size": 96} | MORE.get(kind, {})
    monkeypatch.setitem(cases.CASES, kind, (name, sizes))
    by_layer = {"head_count_kv": [2, 2, 2], "expert_count": 0, "expert_used_count": 0}  # equal, and without effect
    peer = written(kind, path, quantised, **(by_layer if kind == "llama" else {}))
    tokens = torch.randint(0, 260, (3, 40), generator=torch.Generator().manual_seed(1))
    want = peer(tokens).logits
    for name in (f"gguf:{path}", f"hf:{path}", f"hf:{path.parent}"):
        logits_agree(name, tokens, want)
    model = load(name)
    matrices = sum(p.ndim == 2 for p in peer.parameters())
    assert model.origin["quantisation"].startswith("F32" if quantised == "F32" else f"{quantised} ({matrices} tensors")
    assert model.eos_ids == (5,) and model.run is not None and (model.run / "chat_template.jinja").is_file()


@torch.no_grad()
def test_all_files_of_a_split_model_are_read(tmp_path: Path) -> None:
    """Without the second file, which holds the head alone, the embedding would be taken as head."""
    peer = written("llama", tmp_path / "model.gguf", split=29)
    files, tokens = sorted(tmp_path.glob("*.gguf")), torch.randint(0, 260, (3, 40))
    assert [x.name for x in files] == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    for name in (f"gguf:{files[0]}", f"gguf:{files[1]}", f"hf:{tmp_path}"):
        logits_agree(name, tokens, peer(tokens).logits)
    assert load(name).origin["quantisation"] == "F32 (30 tensors)"
    whole = files[1].read_bytes()
    files[1].write_bytes(files[0].read_bytes())  # the state of every file is in the name of the cached run
    assert_refused(rf"{files[1]} is file 1 of 2, not 2 of 2", load, f"gguf:{files[0]}")
    written("llama", tmp_path / "smaller" / "model.gguf", split=28)
    files[1].write_bytes((tmp_path / "smaller" / files[1].name).read_bytes())
    assert_refused("has output_norm.weight, which another file of the model has too", load, f"gguf:{files[0]}")
    files[1].unlink()
    for name in (f"gguf:{files[0]}", f"hf:{tmp_path}"):
        assert_refused(rf"{files[1]} is missing", load, name)
    files[1].write_bytes(whole)
    files[0].rename(other := tmp_path / "smaller" / "other.gguf")
    for name in (f"hf:{tmp_path}", f"hf:{files[1]}"):
        assert_refused(rf"{files[0].name} is missing, file 1 of 2 of the model", load, name)
    assert_refused(r"other.gguf is file 1 of 2, not 1 of 1: name its files NAME-00001-of-", load, f"gguf:{other}")


def test_sampling_that_is_not_applied_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field general.sampling.* of a file, unless its value does nothing."""
    path = tmp_path / "model.gguf"
    neutral = {"xtc_probability": 0.0, "mirostat": 0, "penalty_last_n": -1}
    changing = {"xtc_probability": 0.25, "mirostat": 2, "penalty_last_n": 32, "sequence": "temp,top_k", "later": 3}
    for fields in (neutral, changing):
        path.unlink(missing_ok=True)
        written("llama", path, sampling_temp=0.5, **{f"general.sampling.{k}": v for k, v in fields.items()})
        model = load(f"gguf:{path}")
        assert model.sampling == {"temperature": 0.5, "top_k": 50}
        said = [line for line in capsys.readouterr().err.splitlines() if "which generate does not apply" in line]
        assert len(said) == (fields is changing)
        assert all(f"general.sampling.{name}" in said[0] for name in changing if fields is changing)


@torch.no_grad()
def test_the_factors_of_llama_3_are_known_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = cases.LLAMA3 | {"rope_theta": 500000.0, "original_max_position_embeddings": 8192}
    monkeypatch.setitem(cases.CASES, "llama-3", ("Llama", dict(cases.LLAMA, rope_parameters=rule)))
    peer, tokens = written("llama-3", tmp_path / "a.gguf"), torch.arange(40)[None]
    logits_agree(f"gguf:{tmp_path / 'a.gguf'}", tokens, peer(tokens).logits)
    with refused("'linear' with a tensor rope_freqs is not supported"):
        their_config(with_fields(read_header(tmp_path / "a.gguf"), {"type": "linear", "factor": 4.0}, ROPE))
    monkeypatch.setitem(rule, "low_freq_factor", 2.0)
    written("llama-3", tmp_path / "b.gguf")
    assert_refused("its rotary positions are not those of Llama 3", load, f"gguf:{tmp_path / 'b.gguf'}")


def test_tokens_chats_and_results_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    written("llama", path, sampling_temp=0.5, sampling_top_k=7, pad_token_id=9)
    model = load(f"gguf:{path}")
    assert model.sampling == {"temperature": 0.5, "top_k": 7}
    roles = zip(("bos_token", "eos_token", "pad_token"), model.to_str_tokens([0, 5, 9]), strict=True)
    assert model.tokenizer.roles == dict(roles)
    assert "every text begins with '<|endoftext|>', which its own files do not add" in capsys.readouterr().err
    assert model.to_tokens("a<|endoftext|>b", special=True).tolist()[0].count(0) == 2
    assert model.to_tokens("<|endoftext|>b", special=True).tolist()[0].count(0) == 1, "no second BOS"
    assert model.to_tokens("a<|endoftext|>b").tolist()[0].count(0) == 1
    chat = model.to_chat([{"role": "user", "content": "hi 42"}])
    backend = Backend.from_str(model.tokenizer.to_json())
    assert chat.tolist()[0] == backend.encode("<|endoftext|>user: hi 42\nyou:", add_special_tokens=False).ids
    result = Ablate(heads=("L0.*",), draws=0).measure(model, Documents(max_documents=3))
    assert "was trained elsewhere; measured on stories:1:200" in capsys.readouterr().err
    assert result.about["quantisation"].startswith("F32") and "<|endoftext|>" in result.about["bos"]
    describe([f"hf:{path}", "--hooks", "none"])
    assert "3 layers, 4 heads, width 48" in capsys.readouterr().out
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    assert_refused("has several GGUF files: name one", load, f"hf:{tmp_path}")
    assert_refused(r"is a GGUF file: write hf:", load, path)


def test_templates_of_folders_run_in_the_sandbox(tmp_path: Path) -> None:
    """From chat_template.jinja, else tokenizer_config.json; a template neither changes nor reaches anything."""
    (tmp_path / "tokenizer.json").write_text(ZOO.read_text())

    def written_by(template: Any) -> str:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return Tokenizer.load(tmp_path).chat_text([{"role": "user", "content": "Lily"}])

    assert written_by([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]) == "y"
    for bad in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}", "{% if %}"):
        assert_refused("chat template cannot write these messages", written_by, bad)
    assert_refused("has no chat template", written_by, None)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert written_by("other") == "Lily", "the file goes first"


@pytest.mark.parametrize(("adds", "words", "policy"), [
    (True, "smollm", "'<|endoftext|>', which its own files add"),
    (False, "llama-bpe", "'<|endoftext|>', which its own files do not add"),
    (None, "smollm", "'<|endoftext|>', which its own files do not add"),
    (None, "llama-bpe", "'<|endoftext|>', which its own files add"),  # as in llama.cpp
])  # fmt: skip
def test_whether_a_file_adds_bos(adds: bool | None, words: str, policy: str, llama: Gguf) -> None:
    tokenizer = read_tokenizer(with_fields(llama, {"add_bos_token": adds, "pre": words}, "tokenizer.ggml."))
    assert tokenizer is not None and tokenizer.bos_policy == policy
    assert ("adds no BOS" in tokenizer.note) == (adds is False)


def test_what_a_file_leaves_to_llama_cpp(llama: Gguf, tmp_path: Path) -> None:
    """The scale of scores of the largest Gemma, the width over the heads; rotary positions without a kind."""
    for kind, largest in (("gemma2", 46), ("gemma3", 62)):
        written(kind, tmp_path / kind)  # 4 heads of 16, 2 of keys; the width is 48
        for layers, wide in ((largest - 1, 16), (largest, 12)):
            file = with_fields(read_header(tmp_path / kind), {f"{kind}.block_count": layers})
            assert their_config(file)["query_pre_attn_scalar"] == wide
    linear = their_config(with_fields(llama, {"factor": 4.0}, ROPE))["rope_scaling"]
    assert linear["rope_type"] == "linear" and linear["factor"] == 4.0
    assert "rope_scaling" not in their_config(with_fields(llama, {"type": "none", "attn_factor": 1.0}, ROPE))


def words_of(file: Gguf, words: str, tokens: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    types = [3] + [1] * len(tokens[1:])
    fields = {"pre": words, "tokens": tokens, "merges": [*map(" ".join, merges)], "token_type": types}
    tokenizer = read_tokenizer(with_fields(file, fields, "tokenizer.ggml."))
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(("words", "ids"), [("llama-bpe", [4]), ("qwen2", [3, 2])])
def test_a_word_of_llama_3_that_is_a_token_is_not_merged(words: str, ids: list[int], llama: Gguf) -> None:
    """As `ignore_merges` in its tokenizer.json: no merge makes the last token of this vocabulary."""
    tokenizer = words_of(llama, words, ["<|endoftext|>", "a", "b", "ab", "abb"], [("a", "b")])
    assert tokenizer.encode("abb", bos=False) == ids


@pytest.mark.parametrize("words", ["gpt-2", "llama-bpe", "qwen2"])
def test_texts_are_normalised_and_split_as_by_the_library(words: str, llama: Gguf) -> None:
    transformers = pytest.importorskip("transformers")
    tokens, merges = ["<|endoftext|>", *BYTE_OF, "Ġt", "Ã©", "33"], [("Ġ", "t"), ("Ã", "©"), ("3", "3")]
    ours = words_of(llama, words, tokens, merges)
    name = "Qwen2Tokenizer" if words == "qwen2" else "GPT2Tokenizer"
    peer = getattr(transformers, name)({token: i for i, token in enumerate(tokens)}, merges)
    if words == "llama-bpe":
        converter = import_module("transformers.convert_slow_tokenizer").TikTokenConverter
        rule = signature(converter).parameters["pattern"].default
        split = pre_tokenizers.Split(Regex(rule), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        peer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    parts = ["re\u0301sume\u0301", "\u1112\u1161\u11ab", "résumé", "\u212b\u2126", "don't", "WE'LL", "3333", "٣٤", " ",
             "\t", "\r\n", "to", "🙂", "...", "/", "한", "\u00a0"]  # fmt: skip
    picks = np.random.default_rng(1)
    for _ in range(300):
        text = "".join(picks.choice(parts, 9))
        assert ours.encode(text, bos=False) == peer.encode(text, add_special_tokens=False), text


def text(x: str) -> bytes:
    return struct.pack("<Q", len(x)) + x.encode()


def header(tensors: int = 0, fields: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + rest


def two(*offsets: int) -> bytes:
    """Two tensors of 16 numbers at offsets, and data."""
    rows = [text(name) + struct.pack("<IQIQ", 1, 16, 0, at) for name, at in zip("ab", offsets, strict=True)]
    return b"".join(rows) + bytes(512)


NAMED = text("general.architecture") + struct.pack("<I", 8) + text("llama")
EMBEDDING = NAMED + text("token_embd.weight")
BROKEN = {
    "header asks for 8 bytes": header(10**11, 0),
    "asks for 1,000,000,000,000 bytes": header(0, 1, struct.pack("<Q", 10**12) + bytes(8)),
    "asks for 8 bytes beyond": header(0, 1, text("a") + struct.pack("<IIQ", 9, 8, 10**11)),
    "for 8 bytes beyond": header(1, 0, text("a") + struct.pack("<I", 2**31) + bytes(16)),
    "lies beyond its end": header(1, 1, NAMED + text("a") + struct.pack("<IQQIQ", 2, 10**6, 10**6, 0, 0)),
    "field of unknown kind": header(0, 1, text("a") + struct.pack("<I", 99)),
    "is not a GGUF file": b"GGML" + bytes(40), "version 7": b"GGUF" + struct.pack("<IQQ", 7, 0, 0),
    "has no token_embd.weight": header(0, 1, NAMED),
    "general.architecture is None": header(0, 0), "asks for 4 bytes": b"",
    "embd.weight has the shape \\[\\]": header(1, 1, EMBEDDING + struct.pack("<IIQ", 0, 0, 0) + bytes(64)),
    "embd.weight has the shape \\[3, 0\\]": header(1, 1, EMBEDDING + struct.pack("<IQQIQ", 2, 0, 3, 0, 0) + bytes(64)),
    "names the field general.architecture twice": header(0, 2, NAMED + NAMED),
    "names the tensor a twice": header(2, 0, two(0, 64).replace(text("b"), text("a"))),
    "tensors overlap at byte": header(2, 0, two(0, 32)),
    "a does not begin at a multiple of 32": header(2, 0, two(3, 96)),
    "is big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("line", BROKEN)
def test_a_damaged_header_is_one_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(BROKEN[line])
    assert_refused(line if line != "asks for 4 bytes" else "cannot be read", load, f"gguf:{path}")


def test_data_begin_at_the_next_multiple_of_the_alignment(tmp_path: Path) -> None:
    """Also where the header itself ends on one."""
    path, x = tmp_path / "x.gguf", torch.randn(3)
    for length in range(1, 33):
        data = header(1, 0, text("x" * length) + struct.pack("<IQIQ", 1, 3, 0, 0))
        path.write_bytes(data + bytes(-len(data) % 32) + x.numpy().tobytes())
        torch.testing.assert_close(tensor(read_header(path), "x" * length), x)


@pytest.mark.parametrize(("name", "value", "line"), [
    ("llama.attention.layer_norm_rms_epsilon", -1e-5, "rms.eps must be at least 0, got -1e-05"),
    ("llama.rope.freq_base", -10.0, "rope.base must be above 0, got -10.0"),
    ("tokenizer.ggml.eos_token_id", 2**31, "tokenizer.ggml.eos_token_id is 2147483648, but the model has 260"),
    ("tokenizer.ggml.bos_token_id", 260, "tokenizer.ggml.bos_token_id is 260, but the model has 260 tokens"),
    ("tokenizer.ggml.tokens", "abc", "the field tokenizer.ggml.tokens is"),
    ("tokenizer.ggml.merges", ["a"], "the tokenizer of"),
    ("tokenizer.ggml.pre", [1], "words by"),
    ("general.architecture", 7, "the field general.architecture is"),
    ("llama.block_count", "3", "the field llama.block_count is"),
    ("llama.attention.head_count", 10, "10 heads cannot"),
    ("llama.attention.sliding_window", 16, "llama.attention.sliding_window is not supported; convert it yourself"),
    ("llama.rope.dimension_count", 4, "rope.dimension_count = 4 is not supported"),
    ("llama.rope.scaling.attn_factor", 1.2, "rope.scaling.attn_factor = 1.2 is not supported"),
    ("llama.feed_forward_length", [80, 80, 96], "llama.feed_forward_length differs between layers"),
    ("llama.expert_count", 4, "llama.expert_count is not supported"),
])  # fmt: skip
def test_values_that_no_part_computes_are_refused(name: str, value: Any, line: str, llama: Gguf, monkeypatch) -> None:
    changed = with_fields(llama, {name: value})
    monkeypatch.setattr("streamscope.models.interop.huggingface.gguf.read_header", lambda path: changed)
    assert_refused(re.escape(line), load, f"gguf:{llama.path}")


def test_a_truncated_file_is_one_line(llama: Gguf, tmp_path: Path) -> None:
    path, whole = tmp_path / "x.gguf", llama.path.read_bytes()
    for size in (20, 5000, len(whole) - 10):
        path.write_bytes(whole[:size])
        assert_refused("damaged", load, f"gguf:{path}")
