"""Run folders on disk: read with every check, written so that nothing is ever half there.

    config.json          {"format", "model", "training", "data"}
    model.safetensors    weights
    tokenizer.json       with the BOS policy
    metrics.jsonl        one row per log, evaluation or sample
    manifest.json        how the run was made
    checkpoint.safetensors   weights, optimiser, random state, step: for --resume

Nothing is unpickled.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.config import ModelConfig
from models.config_io import from_dict
from models.errors import InputError
from models.provenance import pick_device
from models.text.tokenizer import Tokenizer
from models.transformer import StreamTransformer

FORMAT = 1
ZOO = Path(__file__).parent / "zoo"
NAMES = (
    "lfa", "std-t", "d-cas", "cfm", "pls", "c2", "dst-kron", "llama", "hdpl", "gpt2", "kromcanon", "kromcanon-b2",
)  # fmt: skip


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}; the previous file is untouched") from None


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file under a temporary name, then rename."""
    part = path.with_name(path.name + ".part")
    try:
        save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, part, metadata)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot write {path}: {reason}; the previous file is untouched") from None


def read_json(path: Path) -> Any:
    """A JSON file of a run folder; missing or damaged files raise `InputError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {path.parent} is no complete run folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it or train the run again") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file; missing or truncated files raise `InputError`."""
    if not path.is_file():
        raise InputError(f"{path} is missing: {path.parent} is no complete run folder")
    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path} is truncated or damaged ({error}); restore it or train the run again") from None


def load_weights(model: torch.nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Copy weights into the model; any difference in names or shapes raises `InputError`."""
    own = dict(model.state_dict())
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        detail = f"lacks {missing[0]}" if missing else f"has {extra[0]}"
        raise InputError(f"{where} belongs to another configuration: it {detail}")
    for name, value in own.items():
        if value.shape != tensors[name].shape:
            raise InputError(
                f"{where} belongs to another configuration: {name} is {list(tensors[name].shape)} there, "
                f"{list(value.shape)} by config.json"
            )
    model.load_state_dict(tensors)


def bundled() -> tuple[str, ...]:
    """Names of the bundled models, in the order of the default: `load("lfa")` works without training anything."""
    return tuple(name for name in NAMES if (ZOO / name / "config.json").is_file())


def run_folder(run_or_path: str | Path) -> Path:
    """The folder of a run, checked to be one, or of a bundled model; a folder of that name here comes first."""
    path = Path(run_or_path)
    if path.is_dir():
        return path
    if str(run_or_path) in bundled():
        return ZOO / str(run_or_path)
    raise InputError(
        f"{path} is no run folder{f' and no bundled model ({names})' if (names := ', '.join(bundled())) else ''}; "
        f"train one with python -m models.train PRESET --data SOURCE --out {path}"
    )


def run_label(folder: Path) -> str:
    """What titles call a run: its path, or "bundled"."""
    return "bundled" if folder.parent == ZOO else str(folder)


def model_config(folder: Path) -> ModelConfig:
    """The model configuration of a run."""
    data = read_json(folder / "config.json")
    if not isinstance(data, dict) or data.get("format") != FORMAT or "model" not in data:
        raise InputError(f"{folder / 'config.json'} is not of format {FORMAT}")
    return from_dict(ModelConfig, data["model"])


def save(model: StreamTransformer, folder: Path) -> None:
    """Write a model as a folder that `load` reads: configuration, weights, tokenizer; not how it was trained."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder}: {error.strerror}") from None
    write_text(folder / "config.json", json.dumps({"format": FORMAT, "model": model.to_dict()}, indent=1))
    if model.tokenizer is not None:
        model.tokenizer.save(folder / "tokenizer.json")
    write_tensors(folder / "model.safetensors", dict(model.state_dict()), {})


def load(run_or_path: str | Path, *, device: str | torch.device = "cpu") -> StreamTransformer:
    """The model of a run folder, in evaluation mode, with its tokenizer.

    Raises `InputError` for a missing or damaged file and for weights of another configuration.
    """
    folder = run_folder(run_or_path)
    config = model_config(folder)
    tensors, _ = read_tensors(folder / "model.safetensors")
    tokenizer = Tokenizer.load(folder / "tokenizer.json") if (folder / "tokenizer.json").is_file() else None
    if tokenizer is not None and tokenizer.d_vocab > config.d_vocab:
        raise InputError(
            f"{folder / 'tokenizer.json'} has {tokenizer.d_vocab} entries, the model {config.d_vocab}: not of one run"
        )
    model = StreamTransformer(config, tokenizer)
    load_weights(model, tensors, folder / "model.safetensors")
    return model.to(pick_device(str(device))).eval()
