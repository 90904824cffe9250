"""How the makers of a model sample it, and where its texts end, by the files of its folder."""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from streamscope.cli.disk import parse, read_json
from streamscope.cli.errors import InputError
from streamscope.models.tensors import GENERATION, OTHER_SAMPLING
from streamscope.text.tokenizer import Tokenizer

INDEX = "model.safetensors.index.json"
REMEDY = "download it again"


def gguf_file(source: Path) -> Path | None:
    """The GGUF file that is a model, or the first of its files: `source` itself, or the only model of a folder without
    safetensors; else None. Raises `InputError` for a folder with several."""
    if source.suffix == ".gguf" and source.is_file():
        return source
    is_safe = any((source / name).is_file() for name in ("model.safetensors", INDEX))  # of a snapshot's folder too
    if is_safe or not (files := sorted(source.glob("*.gguf"))):
        return None
    from streamscope.models.interop.huggingface.gguf import parts  # for such files only

    all_parts = parts(files[0])
    if not set(files) <= set(all_parts):
        raise InputError(f"{source} has several GGUF files: name one, as in hf:{files[0]}")
    return all_parts[0]


class Sampling(TypedDict, total=False):
    """The fields of a generation_config.json that `read_sampling` reads: do_sample, and options of `generate`."""

    do_sample: bool
    temperature: FiniteFloat
    top_k: int
    top_p: FiniteFloat
    min_p: FiniteFloat
    repetition_penalty: FiniteFloat
    suppress_tokens: list[int]


def read_generation(folder: Path) -> dict[str, Any]:
    """generation_config.json of a run, folder or GGUF file; else the same fields of config.json; without nulls."""
    path, known = gguf_file(folder) or folder / GENERATION, None
    if not path.is_file():
        path, known = folder / "config.json", UNSUPPORTED | Sampling.__annotations__
    if path.suffix == ".gguf":
        from streamscope.models.interop.huggingface.gguf import generation, read_header

        fields = generation(read_header(path))
    else:
        fields = read_json(path, dict[str, Any], REMEDY) if path.is_file() else {}
    fields = {name: x for name, x in fields.items() if x is not None and (known is None or name in known)}
    parse(json.dumps(fields), Sampling, path, REMEDY)
    return fields


def read_eos(folder: Path, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Tokens that end a generated text, from generation_config.json, else config.json, else the tokenizer; or ()."""
    path, eos = folder / GENERATION, read_generation(folder).get("eos_token_id")
    if eos is None and (folder / "config.json").is_file():
        path = folder / "config.json"
        eos = read_json(path, dict[str, Any], REMEDY).get("eos_token_id")
    if eos is None:
        eos = [] if tokenizer is None or tokenizer.eos_id is None else [tokenizer.eos_id]
    ids = eos if isinstance(eos, list) else [eos]
    if not all(type(i) is int for i in ids):
        raise InputError(f"{path}: eos_token_id must be a token id or a list of them, got {eos!r}")
    return tuple(ids)


DRAWN = {"temperature", "top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff"}
"""Fields that the library reads only with do_sample."""
UNSUPPORTED: dict[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "constraints": None, "force_words_ids": None, "penalty_alpha": 0,
    "dola_layers": None, "typical_p": 1, "top_h": None, "epsilon_cutoff": 0, "eta_cutoff": 0, "min_length": 0,
    "min_new_tokens": 0, "max_time": None, "stop_strings": None, "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "begin_suppress_tokens": None,
    "sequence_bias": None, "token_healing": False, "guidance_scale": 1, "watermarking_config": None,
    "assistant_ensemble_weight": None,
}  # fmt: skip
"""Fields that change a text in the library and not here, with the values that do nothing (besides null)."""
LLAMA_CPP = {
    f"{OTHER_SAMPLING}xtc_probability": 0.0, f"{OTHER_SAMPLING}mirostat": 0, f"{OTHER_SAMPLING}penalty_last_n": -1,
}  # fmt: skip
"""Fields of a GGUF file that change a text in llama.cpp and not here, with the values that do nothing."""


def read_sampling(folder: Path) -> dict[str, Any]:
    """How the transformers library samples a model by its files, as options of `generate`; {} if they do not say.

    As there, temperature, top_k, top_p and min_p count only with do_sample, else the most likely token is taken
    (temperature 0), and top_k is 50 if it is not named. A folder that only has fields which are not applied here is
    greedy too. A line on stderr names fields that change a text in the library, or in llama.cpp, and not here. Raises
    like `read_generation`.
    """
    fields = read_generation(folder)
    options = {name: fields[name] for name in Sampling.__annotations__ if name in fields}
    has_options, drawn = bool(options or fields.keys() & UNSUPPORTED), options.pop("do_sample", False)
    off = {name: value for name, value in UNSUPPORTED.items() if drawn or name not in DRAWN}
    off |= {name: LLAMA_CPP.get(name) for name in fields if name.startswith(OTHER_SAMPLING)}
    if ignored := [name for name in off if fields.get(name, off[name]) != off[name]]:
        print(f"{folder / GENERATION} has {', '.join(ignored)}, which generate does not apply", file=sys.stderr)
    if not drawn:
        greedy = {"temperature": 0} if has_options else {}
        return greedy | {name: value for name, value in options.items() if name not in DRAWN}
    return {name: value for name, value in ({"top_k": 50} | options).items() if (name, value) != ("top_k", 0)}
