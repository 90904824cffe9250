"""Reads GGUF files: configuration, tokenizer, chat template, and weights, dequantised one tensor at a time.

A GGUF holds fields (numbers, texts, arrays), a list of tensors, and their data. Every count and length in it is checked
against the size of the file before anything is allocated. A model may be split into files NAME-00001-of-00003.gguf: the
first has the fields, and each has tensors. Reading needs the package `gguf` (extra `[gguf]`).

The architecture names a family of `families`; fields that no part computes are refused by name.
"""

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor

from streamscope.cli.errors import InputError, reading
from streamscope.models.tensors import OTHER_SAMPLING
from streamscope.text.tokenizer import SpecialTokens, Tokenizer

HOW = "convert it yourself: transformers' from_pretrained(FOLDER, gguf_file=FILE), save_pretrained(OUT), then hf:OUT"
"""What to do with a file that is not read."""
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
PLAIN = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""Kinds of tensors that are not quantised."""
FIELDS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "context_length": "max_position_embeddings",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim", "rope.freq_base": "rope_theta",
}  # fmt: skip
"""Fields of an architecture, and their names in config.json."""
ENDS = ("eos", "eot", "eom")  # tokens that end a text or a turn
READ_TOO = ("vocab_size", "attention.value_length", "rope.dimension_count")
"""Fields that must agree with others."""
BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""Fields that may be arrays with a number for each layer."""
WITHOUT_EFFECT = {"expert_count": 0, "expert_used_count": 0}
"""Fields that change nothing if they have this value."""
ROPE = "rope.scaling."  # beginning of the fields that are the rule of rotary positions


ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3", "olmo2": "olmo2", "phi3": "phi3",
    "gemma2": "gemma2", "gemma3": "gemma3_text",
}  # fmt: skip
"""Architectures that are read, and the `model_type` of the library."""
PAIRED = ("llama", "smollm3")
"""Those that store rows of queries and keys in pairs (RoPE's other layout)."""
WINDOW = {"attention.sliding_window": "sliding_window"}
CAPS = {f"{part}_logit_softcapping": f"{part}_logit_softcapping" for part in ("attn", "final")}
MORE = {"phi3": WINDOW, "gemma2": WINDOW | CAPS, "gemma3": WINDOW | CAPS}
"""Further fields, and their names in config.json."""
LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of Gemma's largest models, whose scores are scaled by the width over the heads."""
SPLIT_DIGITS = (pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False))
LLAMA3 = (  # the words of Llama 3; those of Qwen 2 have single digits
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _by_rule(rule: str) -> tuple[Any, ...]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return (pre_tokenizers.Split(Regex(rule), behavior="isolated"), byte_level)


WORDS: dict[str, tuple[Any, ...]] = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False),), "smollm": SPLIT_DIGITS,
    "llama-bpe": _by_rule(LLAMA3), "qwen2": _by_rule(LLAMA3.replace("{1,3}", "")),
}  # fmt: skip
"""How tokenizers of the kind gpt2 split a text into words, by `tokenizer.ggml.pre`."""
NORMALISERS = {"qwen2": normalizers.NFC()}  # what they do to a text before that
SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")  # the name of one of several files of a model


@dataclass(frozen=True)
class Entry:
    """A tensor: its file, its shape as in torch, its kind, and the place of its data."""

    path: Path
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class Gguf:
    """The header of a file, or of all files of a split model."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Entry]

    def field(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """A field of this type. Raises `InputError` if it is missing or of another type."""
        value = self.fields.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{self.path}: the field {name} is {value!r:.40}: not what a model of its kind needs")
        return value

    @property
    def quantisation(self) -> str:
        """The kinds of its tensors, the most frequent first, such as "Q4_1 (210 tensors), F32 (61)"."""
        kinds = Counter(_kind(entry).name for entry in self.tensors.values()).most_common()
        return ", ".join(f"{name} ({n}{'' if i else ' tensors'})" for i, (name, n) in enumerate(kinds))


class _Cursor:
    """A place in a file, from which values are read that must lie inside of it."""

    def __init__(self, path: Path) -> None:
        self.at = 0
        self.data = np.memmap(path, mode="r", dtype=np.uint8).data

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise ValueError(f"damaged: its header asks for {n:,} bytes beyond its end")
        self.at += n
        return self.data[self.at - n : self.at].tobytes()

    def number(self, kind: int) -> Any:
        (value,) = struct.unpack(f"<{SCALARS[kind]}", self.take(struct.calcsize(f"<{SCALARS[kind]}")))
        return value

    def text(self) -> str:
        return self.take(self.number(10)).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(kind)
        if kind == TEXT:
            return self.text()
        if kind != ARRAY or (item := self.number(4)) not in (*SCALARS, TEXT):
            raise ValueError(f"a field of unknown kind: damaged, or newer than this reader; {HOW}")
        n = self.number(10)
        if item == TEXT:
            return [self.text() for _ in range(n)]
        return list(struct.unpack(f"<{n}{SCALARS[item]}", self.take(n * struct.calcsize(f"<{SCALARS[item]}"))))


def parts(path: Path) -> list[Path]:
    """The files of a model by the name of one of them: NAME-00001-of-00003.gguf is one of three."""
    if (name := SPLIT.fullmatch(path.name)) is None:
        return [path]
    files = [path.with_name(f"{name[1]}-{i:05d}-of-{name[2]}.gguf") for i in range(1, int(name[2]) + 1)]
    return files if path in files else [path]


def read_header(path: Path) -> Gguf:
    """The header of a file, with the tensors of all files of a split model."""
    files = parts(path)
    for i, file in enumerate(files, 1):
        if not file.is_file():
            raise InputError(f"{file} is missing, file {i} of {len(files)} of the model: put it into the folder")
    with reading(path, "download it again"):
        return _read_header(path, tuple((s.st_mtime_ns, s.st_size) for file in files for s in [file.stat()]))


@lru_cache(maxsize=1)
def _read_header(path: Path, states: tuple[tuple[int, int], ...]) -> Gguf:
    tensors: dict[str, Entry] = {}
    files = [_read_file(file) for file in parts(path)]
    for i, file in enumerate(files, 1):
        number, n = 1, 1  # of the file, and how many files its model has
        if file.fields.get("split.count", 0) not in (0, 1):
            number, n = file.field("split.no", int) + 1, file.field("split.count", int)
        if (number, n) != (i, len(files)):
            raise InputError(f"{file.path} is file {number} of {n}, not {i} of {len(files)}: name its files "
                             f"NAME-00001-of-{n:05d}.gguf and so on")  # fmt: skip
        if twice := tensors.keys() & file.tensors.keys():
            raise InputError(f"{file.path} has {min(twice)}, which another file of the model has too")
        tensors |= file.tensors
    if (count := files[0].fields.get("split.tensors.count", len(tensors))) != len(tensors):
        raise InputError(f"{path}: its files have {len(tensors)} tensors, not {count!r:.40}: download them again")
    return Gguf(path, files[0].fields, tensors)


def _read_file(path: Path) -> Gguf:
    cursor = _Cursor(path)
    if cursor.take(4) != b"GGUF":
        raise InputError(f"{path} is not a GGUF file")
    if (version := cursor.number(4)) not in (2, 3):
        if version in (2 << 24, 3 << 24):
            raise InputError(f"{path} is big-endian and not read: gguf-convert-endian {path} little")
        raise InputError(f"{path} is of GGUF version {version}, only 2 and 3 are read; {HOW}")
    n_tensors, n_fields = cursor.number(10), cursor.number(10)
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        if (name := cursor.text()) in fields:
            raise ValueError(f"damaged: it names the field {name} twice")
        fields[name] = cursor.value(cursor.number(4))
    tensors: dict[str, Entry] = {}
    for _ in range(n_tensors):
        name, n_axes = cursor.text(), cursor.number(4)
        shape = tuple(cursor.number(10) for _ in range(n_axes))[::-1]
        if not math.prod(shape) or not shape:
            raise ValueError(f"damaged: {name} has the shape {list(shape)}")
        if name in tensors:
            raise ValueError(f"damaged: it names the tensor {name} twice")
        tensors[name] = Entry(path, shape, cursor.number(4), cursor.number(10))
    alignment = fields.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment  # data begin at a multiple
    for name, entry in tensors.items():
        tensors[name] = entry = replace(entry, start=start + entry.start)
        if entry.start + _bytes(entry) > len(cursor.data):
            raise ValueError(f"truncated or damaged: {name} lies beyond its end")
        if (entry.start - start) % alignment:
            raise ValueError(f"damaged: {name} does not begin at a multiple of {alignment}")
    for entry, next_entry in pairwise(sorted(tensors.values(), key=lambda entry: entry.start)):
        if entry.start + _bytes(entry) > next_entry.start:
            raise ValueError(f"damaged: tensors overlap at byte {next_entry.start}")
    return Gguf(path, fields, tensors)


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise InputError("reading a GGUF file needs the package gguf: pip install 'streamscope[gguf]'") from None
    return gguf


def _kind(entry: Entry) -> Any:
    package = _package()
    with reading(entry.path, HOW):
        return package.GGMLQuantizationType(entry.kind)


def _bytes(entry: Entry) -> int:
    block, width = _package().GGML_QUANT_SIZES[_kind(entry)]
    if entry.shape[-1] % block:
        raise ValueError(f"damaged: a tensor {list(entry.shape)} is not in whole blocks of {block}")
    return math.prod(entry.shape) // block * int(width)


def tensor(file: Gguf, name: str) -> Tensor:
    """A tensor, dequantised to fp32 if it is quantised. Raises `InputError` for a kind that gguf cannot read."""
    entry = file.tensors[name]
    raw = np.fromfile(entry.path, np.uint8, _bytes(entry), offset=entry.start)
    if entry.kind in PLAIN:
        return torch.from_numpy(raw).view(PLAIN[entry.kind]).reshape(entry.shape)
    with reading(entry.path, HOW):
        x = _package().quants.dequantize(raw.reshape(*entry.shape[:-1], -1), _kind(entry))
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).reshape(entry.shape)


class Weights:
    """The tensors of a file under the `names` of the transformers library; those without such a name keep theirs."""

    def __init__(self, file: Gguf, names: Iterable[str], config: Mapping[str, Any]) -> None:
        package, self.file, self.config, self.kind = _package(), file, config, _architecture(file)
        kinds = {name: kind for kind, name in package.MODEL_ARCH_NAMES.items()}
        table = package.get_tensor_name_map(kinds[self.kind], config["num_hidden_layers"])
        gguf_names = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
        self.names = {name: gguf_name for name, gguf_name in gguf_names.items() if gguf_name in file.tensors}
        extra = file.tensors.keys() - self.names.values() - {"rope_freqs.weight"}
        self.names |= {name: name for name in sorted(extra)}

    def keys(self) -> list[str]:
        return list(self.names)

    def get_tensor(self, name: str) -> Tensor:
        """A tensor as the library has it: rows of queries and keys by halves, not in pairs; γ − 1 of Gemma's norms."""
        x = tensor(self.file, self.names[name])
        if self.kind in LARGEST and "norm" in name:
            return x - 1
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name and self.kind in PAIRED:
                if (n := self.config[heads]) < 1 or len(x) % (2 * n):
                    raise InputError(f"{self.file.path}: {name} has {len(x)} rows, which {n} heads cannot share")
                x = x.unflatten(0, (n, -1, 2)).transpose(1, 2).flatten(0, 2)
        return x


def _architecture(file: Gguf) -> str:
    name = file.field("general.architecture", str)
    if name not in ARCHITECTURES:
        raise InputError(f"{file.path}: only {', '.join(ARCHITECTURES)} are read, not {name!r}; {HOW}")
    return name


def their_config(file: Gguf) -> dict[str, Any]:
    """The config.json that describes a file."""
    kind = _architecture(file)
    start = f"{kind}."
    kind_fields = {name: _of_all_layers(file, name) for name in file.fields if name.startswith(start)}
    file = replace(file, fields={**file.fields, **kind_fields})
    values = {name.removeprefix(start): x for name, x in kind_fields.items()}
    values = {name: x for name, x in values.items() if WITHOUT_EFFECT.get(name) != x}
    scaling = {name.removeprefix(ROPE): values.pop(name) for name in list(values) if name.startswith(ROPE)}
    fields = FIELDS | MORE.get(kind, {})
    if unknown := sorted(values.keys() - fields.keys() - set(READ_TOO)):
        raise InputError(f"{file.path}: {kind}.{unknown[0]} is not supported; {HOW}")
    if "token_embd.weight" not in file.tensors:
        raise InputError(f"{file.path} has no token_embd.weight, so it is not a language model")
    config = {fields[name]: x for name, x in values.items() if name in fields}
    config.setdefault("num_key_value_heads", values.get("attention.head_count"))
    sizes = ("block_count", "embedding_length", "attention.head_count")
    for name in {*sizes, *values} & {*fields, *READ_TOO}:
        file.field(start + name, int if name in sizes else (int, float))
    width = config.get("head_dim") or config["hidden_size"] // max(1, config["num_attention_heads"])
    rotated = () if kind == "phi3" else ("rope.dimension_count",)
    for name in ("attention.value_length", *rotated):
        if values.get(name, width) != width:
            raise InputError(f"{file.path}: {kind}.{name} = {values[name]} is not supported, only {width}; {HOW}")
    if not rotated:
        config["partial_rotary_factor"] = values.get("rope.dimension_count", width) / max(1, width)
    if kind in ("phi3", "gemma3"):
        config["sliding_window"] = config.get("sliding_window") or None  # Phi-4 has 0, and Gemma 2 the class's default
    if kind in LARGEST:
        wide = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = wide if config["num_hidden_layers"] == LARGEST[kind] else width
    config |= {
        "model_type": ARCHITECTURES[kind], "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_act": "silu", "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors, "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }  # fmt: skip
    for role in ("bos", *ENDS):
        name = f"tokenizer.ggml.{role}_token_id"
        if name in file.fields and not 0 <= (token := file.field(name, int)) < config["vocab_size"]:
            raise InputError(f"{file.path}: {name} is {token}, but the model has {config['vocab_size']} tokens; {HOW}")
    rule = _rope_rule(file, scaling, config, width)
    return config | ({"rope_scaling": rule} if rule else {})


def _of_all_layers(file: Gguf, name: str) -> Any:
    """A field; of an array by layer its number."""
    value = file.fields[name]
    if not isinstance(value, list) or name.partition(".")[2] not in BY_LAYER or not value:
        return value
    if any(x != value[0] for x in value):
        raise InputError(f"{file.path}: {name} differs between layers, which no part computes")
    return value[0]


def _rope_rule(file: Gguf, scaling: Mapping[str, Any], config: Mapping[str, Any], width: int) -> dict[str, Any]:
    """`rope_scaling` of config.json; Llama 3's is only stored as its factors (tensor rope_freqs)."""
    base = {"rope_theta": config.get("rope_theta", 10_000.0)}
    kind = scaling.get("type", "linear" if scaling.get("factor") else "none")  # as in llama.cpp
    if scaling.get("attn_factor", 1.0) != 1.0:
        raise InputError(f"{file.path}: {ROPE}attn_factor = {scaling['attn_factor']} is not supported, only 1; {HOW}")
    if "rope_freqs.weight" not in file.tensors:
        return {} if kind == "none" else {"rope_type": kind, "factor": scaling.get("factor"), **base}
    if kind != "none":
        raise InputError(f"{file.path}: {ROPE}type = {kind!r} with a tensor rope_freqs is not supported; {HOW}")
    factors = tensor(file, "rope_freqs.weight").double()
    theta = base["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    constants = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    largest = float(factors.max())
    s = ((8192 * theta / (2 * math.pi) - 1) / 3).clamp(0, 1)
    if factors.shape != theta.shape or not torch.allclose(1 / ((1 - s) / largest + s), factors, rtol=1e-4):
        raise InputError(f"{file.path}: the factors of its rotary positions are not those of Llama 3; {HOW}")
    return {"rope_type": "llama3", "factor": largest, **constants, **base}


SAMPLING = {f"{OTHER_SAMPLING}{name}": name for name in ("top_k", "top_p", "min_p")}
SAMPLING |= {f"{OTHER_SAMPLING}temp": "temperature", f"{OTHER_SAMPLING}penalty_repeat": "repetition_penalty"}
"""Fields of sampling, and the library's names."""


def generation(file: Gguf) -> dict[str, Any]:
    """The generation_config.json of a file: the tokens that end a text or a turn, and how its makers sample.

    Fields of sampling that the library does not know keep their names.
    """
    sampling = {name: x for name, x in file.fields.items() if name.startswith(OTHER_SAMPLING)}
    fields = {name: sampling.pop(key) for key, name in SAMPLING.items() if key in sampling}
    fields |= ({"do_sample": True} if fields else {}) | sampling
    ends = [f"tokenizer.ggml.{role}_token_id" for role in ENDS]
    if ids := [file.field(name, int) for name in ends if name in file.fields]:
        fields["eos_token_id"] = list(dict.fromkeys(ids))
    return fields


def read_tokenizer(file: Gguf) -> Tokenizer | None:
    """The tokenizer of a file, or None."""
    if "tokenizer.ggml.model" not in file.fields:
        return None
    remedy = "put the model's tokenizer.json into the folder of the file"
    kind, words = file.field("tokenizer.ggml.model", str), file.fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or not isinstance(words, str) or words not in WORDS:
        name = f"{kind!r}" if kind != "gpt2" else f"{kind!r} with words by {words!r}"
        raise InputError(f"{file.path} has a tokenizer of the kind {name}, which is not read: {remedy}")
    tokens, merges = (file.field(f"tokenizer.ggml.{name}", list) for name in ("tokens", "merges"))
    with reading(f"the tokenizer of {file.path}", remedy):
        pairs = [tuple(merge.split(" ")) for merge in merges]
        vocab = {token: i for i, token in enumerate(tokens)}
        # the tokenizer of Llama 3 does not merge a word that is a token
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=words == "llama-bpe"))
    if words in NORMALISERS:
        backend.normalizer = NORMALISERS[words]
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(WORDS[words]))
    backend.decoder = decoders.ByteLevel()
    marks = file.field("tokenizer.ggml.token_type", list) if "tokenizer.ggml.token_type" in file.fields else []
    for token, mark in zip(tokens, marks, strict=False):  # 3: control, 4: of the user
        if mark in (3, 4):
            backend.add_tokens([AddedToken(token, normalized=False, special=mark == 3)])
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
    ids = {f"{role}_token": file.fields.get(f"tokenizer.ggml.{name}_token_id") for role, name in names.items()}
    roles = {role: tokens[i] for role, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}
    adds = file.fields.get("tokenizer.ggml.add_bos_token")
    adds_bos = words == "llama-bpe" if adds is None else adds  # if not said, llama.cpp decides by the kind
    if adds_bos and (bos := roles.get("bos_token")):
        first = [(bos, backend.token_to_id(bos))]
        backend.post_processor = processors.TemplateProcessing(single=[bos, "$A"], special_tokens=first)
    tokenizer = Tokenizer(backend, SpecialTokens(roles=roles, source=file.path.name))
    if adds is False:
        tokenizer.note = "; ".join(filter(None, (tokenizer.note, f"{file.path.name} adds no BOS")))
    if isinstance(template := file.fields.get("tokenizer.chat_template"), str):
        tokenizer.chat_template = template
    return tokenizer
