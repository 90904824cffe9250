"""Files of a model: tensors with the sha256 of their content, texts, hashes; each whole or not there at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.errors import InputError

if TYPE_CHECKING:
    from streamscope.models.transformer import StreamTransformer

FORMAT = 1
"""Of config.json."""
GENERATION = "generation_config.json"
"""Of a run, and of a Hugging Face folder: the tokens that end a generated text, where that of a run is not BOS."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], keep: Path | None = None
) -> str:
    """Write a safetensors file with the `digest` of its tensors, whole or not at all; the digest."""
    plain = {k: v.detach().contiguous().cpu() for k, v in tensors.items()}
    sha256 = digest(plain)

    def write(part: Path) -> None:
        try:
            save_file(plain, part, {**metadata, DIGEST: sha256})
        except SafetensorError as error:
            raise OSError(str(error)) from None

    write_atomically(path, write, keep)
    return sha256


DIGEST = "sha256"
"""Metadata of a file of tensors: `digest` of what it holds."""
TOKENIZER = "tokenizer"
"""Metadata of weights that no training wrote: sha256 of the tokenizer whose ids they know."""
CONFIG = "config_sha256"
"""`config_digest` of the configuration that weights belong to: in manifest.json of a run, else in their metadata."""


def config_digest(model: Mapping[str, Any]) -> str:
    """sha256 of a model's part of config.json, whatever the layout of the file and the order of its fields."""
    return hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the names, dtypes, shapes and bytes of tensors, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name].detach().contiguous().cpu()
        found.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        if x.numel():
            found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file. Raises `InputError` for one that is missing, truncated or damaged:
    whose content has not the sha256 that was written with it (files from elsewhere have none)."""
    if not path.is_file():
        raise InputError(f"{path} is missing: {path.parent} is no complete run folder")
    try:
        with safe_open(path, framework="pt") as file:
            tensors, metadata = {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is truncated or damaged ({error}); restore it or train the run again") from None
    if metadata.get(DIGEST, "") not in ("", found := digest(tensors)):
        raise InputError(
            f"{path} is damaged: its content has sha256 {found[:12]}…, {metadata[DIGEST][:12]}… was written; "
            "restore it or train the run again"
        )
    return tensors, metadata


def sha256(path: Path) -> str:
    """The hash of a file, as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(model: "StreamTransformer", folder: Path) -> None:
    """Write a model as a folder that `checkpoint.load` reads: configuration, weights, tokenizer, no training.

    Raises `InputError` for the folder of a run, whose manifest and metrics would belong to other weights.
    """
    if (folder / "manifest.json").exists():
        raise InputError(f"{folder} is a run with a history of its own; save the model into another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder}: {error.strerror}") from None
    write_text(folder / "config.json", json.dumps({"format": FORMAT, "model": model.to_dict()}, indent=1))
    metadata = {CONFIG: config_digest(model.to_dict())}
    default: tuple[int, ...] = ()
    if model.tokenizer is not None:
        model.tokenizer.save(folder / "tokenizer.json")
        metadata[TOKENIZER], default = model.tokenizer.sha256, (model.tokenizer.bos_id,)
    if model.eos_ids == default:
        (folder / GENERATION).unlink(missing_ok=True)
    else:
        write_text(folder / GENERATION, json.dumps({"eos_token_id": list(model.eos_ids)}))
    write_tensors(folder / "model.safetensors", dict(model.state_dict()), metadata)
