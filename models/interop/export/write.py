"""Writes a run as a folder of the transformers library."""

import json
from pathlib import Path
from typing import Any

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.models import checkpoint
from streamscope.models.checkpoint import ZOO, load, run_folder
from streamscope.models.config.serialization import to_dict
from streamscope.models.hooks import check_weights
from streamscope.models.interop.export.card import model_card
from streamscope.models.interop.huggingface.convert import new_folder
from streamscope.models.interop.huggingface.families import FAMILIES, native
from streamscope.models.interop.huggingface.generation import read_generation
from streamscope.models.interop.tables import give, shapes_of
from streamscope.models.tensors import GENERATION, OTHER_SAMPLING, read_tensors, write_tensors
from streamscope.text.tokenizer import Tokenizer

AUTO = {
    "AutoConfig": "configuration_streamscope.StreamscopeConfig",
    "AutoModelForCausalLM": "modeling_streamscope.StreamscopeForCausalLM",
}
CODE = """# pip install streamscope
from streamscope.models.interop.export.{module} import {name}  # noqa: F401
"""
"""A file of the folder, by which the library finds a class of ours."""


def export(
    run: str, out: Path, *, native: bool = False, snapshots: bool = False, license: str = ""
) -> list[tuple[Path, str]]:
    """Write everything or nothing; returns (folder, its content) of each model.

    Raises `InputError` for an existing `out`, for `snapshots` of a run without any, for NaN weights, and with `native`
    if no class of the library computes the model.
    """
    with new_folder(out) as part:
        rows = checkpoint.snapshots(run_folder(run)) if snapshots else []
        if snapshots and not rows:
            raise InputError(f"{run} has no snapshots: train with --snapshots log, or export without --snapshots")
        license = license or ("mit" if run_folder(run).parent == ZOO else "")
        contents = [(out, _write(run, part, native, license))]
        for row in rows:
            name = f"step-{row['step']:06d}"
            contents.append((out / name, _write(f"{run}@{row['step']}", part / name, native, license)))
    return contents


def _write(run: str, folder: Path, as_native: bool, license: str) -> str:
    """Write one model to a new folder; returns a short description."""
    model = load(run)
    check_weights(model)
    config = model.config
    tensors = read_tensors(run_folder(run) / "model.safetensors")[0]
    exported = {"parts": to_dict(config), "auto_map": AUTO, "use_cache": False}
    kind, output, target_config = native(config) if as_native else ("streamscope", exported, config)
    family = FAMILIES[kind]
    described = {"architectures": [family.architecture], "model_type": kind, "dtype": "float32", **output}
    folder.mkdir(exist_ok=True)
    tokenizer, ids = model.tokenizer, dict[str, Any]()
    if tokenizer is not None:
        ids = dict.fromkeys(("bos_token_id", "pad_token_id"), tokenizer.bos_id)
        _write_tokenizer(tokenizer, model.eos_ids, folder, config.n_ctx)
    if model.eos_ids:
        ids["eos_token_id"] = model.eos_ids[0] if len(model.eos_ids) == 1 else list(model.eos_ids)
    _write_json(folder / "config.json", described | ids)
    sampling = read_generation(run_folder(run))  # as its makers do; llama.cpp's own fields mean nothing to the library
    generation = {name: x for name, x in sampling.items() if not name.startswith(OTHER_SAMPLING)} | ids
    _write_json(folder / GENERATION, generation | ({} if as_native else {"use_cache": False}))
    output = give(family.names(target_config, family.prefix), tensors, shapes_of(target_config))
    write_tensors(folder / "model.safetensors", output, {"format": "pt"})
    for module, name in (place.split(".") for place in AUTO.values()) if not as_native else ():
        write_text(folder / f"{module}.py", CODE.format(module=module, name=name))
    write_text(folder / "README.md", model_card(model, run, family.architecture, license))
    return f"{family.architecture}, {model.n_params():,} parameters{', no tokenizer' if tokenizer is None else ''}"


def _write_tokenizer(tokenizer: Tokenizer, eos: tuple[int, ...], folder: Path, n_ctx: int) -> None:
    """Write our tokenizer.json, and the options with which the library's fast tokenizer gives our ids."""
    tokenizer.save(folder / "tokenizer.json")
    end_id = eos[0] if eos and eos[0] < tokenizer.d_vocab else tokenizer.bos_id
    bos, end = tokenizer.pieces([tokenizer.bos_id, end_id])
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": n_ctx,
        "split_special_tokens": tokenizer.chat_template is None,  # a chat names its special tokens in the text
        "clean_up_tokenization_spaces": False, "bos_token": bos, "eos_token": end, "pad_token": bos,
        "model_input_names": ["input_ids", "attention_mask"], "padding_side": "left",
    }  # fmt: skip
    _write_json(folder / "tokenizer_config.json", options)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")
