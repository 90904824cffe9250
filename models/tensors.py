"""Files of a model, written atomically: tensors with the sha256 of their content, configuration, tokenizer."""

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.errors import InputError, reading

if TYPE_CHECKING:
    from streamscope.models.transformer import StreamTransformer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Storage dtypes, by the names of options."""
FORMAT = 1
"""Format number of config.json."""
GENERATION = "generation_config.json"
"""File of a run or Hugging Face folder with the tokens that end a generated text, if it is not BOS, and the sampling of
its makers."""
OTHER_SAMPLING = "general.sampling."
"""Beginning of the names of its fields that come from a GGUF file and that the transformers library does not know."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], keep: Path | None = None
) -> str:
    """Write a safetensors file with the `digest` of its tensors, atomically; returns the digest."""
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
"""Metadata key of a tensor file: the `digest` of its content."""
TOKENIZER = "tokenizer"
"""Metadata key of weights that no training wrote: sha256 of their tokenizer."""
CONFIG = "config_sha256"
"""Key of the `config_digest` of the configuration that weights belong to: in a run's manifest.json, else in the
metadata of the weights."""


def config_digest(model: Mapping[str, Any]) -> str:
    """sha256 of the model part of config.json, independent of layout and order of fields."""
    return hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes of tensors, sorted by name."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name].detach().contiguous().cpu()
        sha.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        if x.numel():
            sha.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def weights_digest(model: Any) -> str:
    """`digest` of a model's weights."""
    return digest(dict(model.state_dict()))


def read_tensors(
    path: Path, remedy: str = "restore it or train the run again"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file. Raises `InputError` if it is missing, truncated, or differs from the
    sha256 that it records (files of other programs record none); `remedy` then says what to do."""
    if not path.is_file():
        raise InputError(f"{path} is missing: {path.parent} is not a complete run folder")
    with reading(path, remedy):
        path.open("rb").close()  # safetensors knows no reason but "No such file"
        with safe_open(path, framework="pt") as file:
            names, metadata = file.keys(), file.metadata() or {}
            tensors = dict(zip(names, map(file.get_tensor, names), strict=True))
    if metadata.get(DIGEST, "") not in ("", actual := digest(tensors)):
        raise InputError(f"{path} is damaged: sha256 {actual[:12]}… instead of {metadata[DIGEST][:12]}…; {remedy}")
    return tensors, metadata


def check_new(folder: Path) -> None:
    """Raise `InputError` if a folder to write is not empty, or is a file."""
    if folder.is_file():
        raise InputError(f"{folder} is a file: give the name of a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose another folder")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that becomes `out` at the end, or is removed after an error."""
    check_new(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name[:12]}-", dir=out.parent) as scratch:
            part = Path(scratch) / "run"
            part.mkdir()
            yield part
            os.replace(part, out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None


def release_memory() -> None:
    """Give freed memory back to the system, which glibc otherwise keeps for later."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_memory() -> None:
    """Let glibc keep freed blocks of up to 1 GiB for the next step, unless the environment has settings for it. New
    pages, one fault for 4 KiB, took a sixth of a step of kromcanon's paper shape and a twentieth of small models'."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, number, size in ("MALLOC_MMAP_THRESHOLD_", -3, 2**30), ("MALLOC_TRIM_THRESHOLD_", -1, 2**31 - 1):
            if name not in os.environ:
                mallopt(number, size)


def save(model: "StreamTransformer", folder: Path) -> None:
    """Write configuration, weights and tokenizer of a model to a folder for `checkpoint.load`.

    Raises `InputError` for the folder of a run, whose manifest and metrics belong to other weights.
    """
    if (folder / "manifest.json").exists():
        raise InputError(f"{folder} is a run with its own history: save the model into another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.json", json.dumps({"format": FORMAT, "model": model.to_dict()}, indent=1))
    metadata = {CONFIG: config_digest(model.to_dict())}
    default: tuple[int, ...] = ()
    if model.tokenizer is not None:
        model.tokenizer.save(folder / "tokenizer.json")
        metadata[TOKENIZER], default = model.tokenizer.sha256, (model.tokenizer.bos_id,)
    if model.eos_ids == default and not model.sampling:
        (folder / GENERATION).unlink(missing_ok=True)
    else:
        drawn = model.sampling.get("temperature") != 0
        defaults = {"top_k": 0, "do_sample": True} if drawn else {"do_sample": False}  # the library's top_k is 50
        sampling = defaults | model.sampling if model.sampling else {}
        write_text(folder / GENERATION, json.dumps({**sampling, "eos_token_id": list(model.eos_ids)}))
    write_tensors(folder / "model.safetensors", dict(model.state_dict()), metadata)
