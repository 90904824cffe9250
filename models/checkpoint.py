"""Run folders on disk: read with every check, written atomically.

    config.json          {"format", "model", "training", "data"}
    model.safetensors    weights
    tokenizer.json       with the BOS policy
    generation_config.json   the tokens that end a generated text, unless it is BOS
    metrics.jsonl        one row per log, evaluation or sample
    manifest.json        how the run was made; of a completed run, the sha256 of its weights
    checkpoint.safetensors   weights, optimiser, random state, step: for --resume (`models.training.run`)

    snapshots/           weights of chosen steps, step-000512.safetensors, and snapshots.json with their hashes

Every option that takes a run also takes `runs/lfa@512`, the run with the weights of step 512 (`run_folder`).

Files are written under a temporary name, synced and renamed, so a kill or a loss of power leaves the old file or the
new one. Tensor files carry the sha256 of their content, which is checked on reading. Nothing here is unpickled.
"""

import json
import math
import operator
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.disk import Config, Manifest, read_json, sha256, write_text
from streamscope.cli.errors import InputError, reading
from streamscope.cli.provenance import pick_device, provenance
from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import from_dict
from streamscope.models.run_names import (  # noqa: F401  most callers know them by this module
    HUGGING_FACE,
    NAMES,
    STORIES,
    ZOO,
    SnapshotPath,
    bundled,
    foreign_name,
    read_manifest,
    run_folder,
    run_label,
    runs_of,
    snapshot_file,
    snapshot_step,
    snapshots,
)  # fmt: skip
from streamscope.models.tensors import (
    CONFIG,
    DIGEST,
    DTYPES,
    FORMAT,
    GENERATION,
    TOKENIZER,
    config_digest,
    digest,
    new_folder,
    read_tensors,
    release_memory,
    save,
    write_tensors,
)
from streamscope.models.transformer import StreamTransformer
from streamscope.text.cache import cache_root
from streamscope.text.tokenizer import Tokenizer

ORIGIN = ("source", "quantisation", "adapter", "bos")
"""Fields of the manifest of a model that was trained elsewhere, which results record."""


def load_weights(model: torch.nn.Module, tensors: dict[str, Tensor], where: Path, *, in_place: bool = True) -> None:
    """Load weights into the model; any difference in names or shapes raises `InputError`.

    They are copied into the existing parameters, in their dtypes, which an optimiser may hold. With `in_place` False,
    the tensors become the parameters: a file mapped by `read_tensors` stays mapped, and its pages are read when a
    weight is used. Changing such a weight does not change the file.
    """
    with reading(where, "it belongs to another configuration"):
        model.load_state_dict(tensors, assign=not in_place)


def whole_run(run_or_path: str | Path) -> Path:
    """`run_folder` for resuming; `InputError` for a snapshot, which has no optimiser state."""
    folder = run_folder(run_or_path)
    if snapshot_step(folder) is not None:
        raise InputError(f"{folder} is a snapshot, which cannot be resumed; python -m models.sft can start from it")
    return folder


def write_snapshot(folder: Path, tensors: dict[str, Tensor], step: int, dtype: str) -> None:
    """Write the weights of a step, then its row in snapshots.json, both atomically."""
    (folder / "snapshots").mkdir(exist_ok=True)
    path = folder / snapshot_file(step)
    if dtype == "bf16":
        tensors = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in tensors.items()}
    write_tensors(path, tensors, {"step": str(step)})
    row = {"step": step, "file": path.name, "sha256": sha256(path), "bytes": path.stat().st_size, "dtype": dtype}
    rows = sorted([*(r for r in snapshots(folder) if r["step"] != step), row], key=lambda r: r["step"])
    write_text(folder / "snapshots" / "snapshots.json", json.dumps(rows, indent=1))


def model_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    if path.is_file() and (model_type := read_json(path, dict[str, Any]).get("model_type")) is not None:
        from streamscope.models.interop.huggingface.families import FAMILIES

        if str(model_type) in FAMILIES:
            raise InputError(f"{folder} is a Hugging Face folder: write {HUGGING_FACE}{folder}")
        raise InputError(f"{folder} is of the family {model_type!r}, which only instruments can measure, in a bridge")
    data = read_json(path, Config)
    if data["format"] != FORMAT:
        raise InputError(f"{folder / 'config.json'} is not of format {FORMAT}")
    return from_dict(ModelConfig, data["model"])


def load(
    run_or_path: str | Path, *, device: str | torch.device = "cpu", dtype: str | torch.dtype = "fp32"
) -> StreamTransformer:
    """Load the model of a run in evaluation mode, with its tokenizer.

    `dtype` of weights and activations is fp32, or bf16 for half of the memory and less than three digits. Weights that
    have this dtype in the file stay mapped to it. Raises `InputError` for a missing or damaged file, and for other
    weights, another configuration or another tokenizer than the run's.
    """
    name, device, folder = dtype_name(dtype), pick_device(str(device)), run_folder(run_or_path)
    try:
        return _load(folder, name, device)
    except InputError as error:  # the cache is a copy, so it can be rebuilt
        if not folder.is_relative_to(cache_root()):
            raise
        print(f"{folder} in the cache is damaged ({error}); it is built again", file=sys.stderr)
        shutil.rmtree(folder)
        return _load(run_folder(run_or_path), name, device)


def _load(folder: Path, name: str, device: str) -> StreamTransformer:
    config = model_config(folder)
    weights, words, step = folder / "model.safetensors", folder / "tokenizer.json", snapshot_step(folder)
    tensors, metadata = read_tensors(weights)
    manifest = read_json(folder / "manifest.json", Manifest) if (folder / "manifest.json").is_file() else {}
    for row in snapshots(folder) if step is not None else ():
        if row["step"] == step and row["sha256"] != sha256(weights):
            raise InputError(f"{weights} is damaged: its hash differs from snapshots.json; train the run again")
    tokenizer = Tokenizer.load(words) if words.is_file() else None
    config_now = config_digest(read_json(folder / "config.json", Config)["model"])
    recorded = metadata.get(TOKENIZER) or manifest.get("data", {}).get("tokenizer", {}).get("sha256")
    checks = [  # each part, its sha256 in the weights or the manifest (older runs have none), and those that it has
        ("config.json", metadata.get(CONFIG) or manifest.get(CONFIG), [config_now],
         "is not the configuration of these weights", "restore it; for another architecture train a run with --set"),
        ("model.safetensors", manifest.get("weights") if step is None else None, [metadata.get(DIGEST, "unknown")],
         "does not hold the run's final weights", "restore it, or --resume the run"),
        # the same ids in a rewritten file are the same tokenizer, and so is the file that another version wrote
        ("tokenizer.json", recorded, [tokenizer.sha256, sha256(words)] if tokenizer else [recorded],
         "is not the tokenizer of this model", "restore it, or its ids mean other tokens"),
    ]  # fmt: skip
    for file, was, now, line, remedy in checks:
        if was is not None and was not in now:
            raise InputError(f"{folder / file} {line} (sha256 {now[0][:12]}… instead of {was[:12]}…): {remedy}")
    if tokenizer is not None and tokenizer.d_vocab > config.d_vocab:
        raise InputError(f"{words} has {tokenizer.d_vocab} entries, the model {config.d_vocab}")
    model = StreamTransformer(config, tokenizer, seed=None)
    if name == "bf16":
        model.to(torch.bfloat16)
    typed, state = dict(tensors), model.state_dict()
    for key in typed.keys() & state.keys():
        typed[key] = typed[key].to(state[key].dtype)  # the same tensor, if it has this dtype
    load_weights(model, typed, weights, in_place=False)
    model.run = folder
    stored_digest = metadata.get(DIGEST) or digest(tensors)
    is_stored = all(map(operator.is_, typed.values(), tensors.values()))
    model.digests = stored_digest, stored_digest if is_stored else digest(typed)
    if (folder / GENERATION).is_file():
        from streamscope.models.interop.huggingface.generation import read_eos, read_sampling

        model.eos_ids = read_eos(folder, None) or model.eos_ids
        model.sampling = read_sampling(folder)
    for key in filter(manifest.__contains__, ORIGIN):
        model.origin[key] = manifest[key]
    if "adapter" in model.origin:
        print(f"{run_label(folder)}: the LoRA adapter next to its weights is merged into them", file=sys.stderr)
    if "bos" in model.origin:
        print(f"{run_label(folder)}: every text begins with {model.origin['bos']}", file=sys.stderr)
    model = model.to(device).eval()
    release_memory()
    return model


def load_for_instruments(
    run_or_path: str | Path, *, device: str | torch.device = "cpu", dtype: str | torch.dtype = "fp32"
) -> Any:
    """Load a model for an instrument: by `load`, or TransformerLens' bridge for hf:FOLDER of a family that we do not
    read. Raises `InputError` like `load` and `models.interop.huggingface.bridged.bridge`."""
    if (name := foreign_name(run_or_path)) is not None:
        from streamscope.models.interop.huggingface.convert import foreign

        if foreign(name) is not None:
            from streamscope.models.interop.huggingface.bridged import bridge

            return bridge(name, device=pick_device(str(device)), dtype=DTYPES[dtype_name(dtype)])
    return load(run_or_path, device=device, dtype=dtype)


def dtype_name(dtype: str | torch.dtype) -> str:
    """Normalise to "fp32" or "bf16"; `InputError` for others."""
    name = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}.get(str(dtype), str(dtype))
    if name not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown: {' or '.join(DTYPES)}")
    return name


# ---- runs that derive from other runs ------------------------------------------------------------


def parent_of(folder: Path) -> dict[str, Any]:
    """A derived run's record of its parent: name, sha256 of the weights, preset and step if known."""
    entries = _recorded(folder, "preset", "step", "parent")
    return {"run": run_label(folder), "sha256": sha256(folder / "model.safetensors"), **entries}


def unchanged_parent(manifest: dict[str, Any]) -> Path:
    """The folder of the parent, for a run that starts again from its weights. Raises `InputError` if they changed."""
    parent = manifest["parent"]
    folder = run_folder(parent["run"])
    if sha256(folder / "model.safetensors") != parent.get("sha256"):
        raise InputError(f"the weights of {folder} changed since the run began from them: start it again")
    return folder


def _recorded(folder: Path, *names: str) -> dict[str, Any]:
    """What the manifest of a run, if it has one, says of these names."""
    manifest = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    return {name: manifest[name] for name in names if name in manifest}


def inherited(parent: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a derived run copies from its parent, which `evaluation_shards` needs to find its validation data: (from
    config.json: data; from manifest.json: preset, scale, seed, data, step, steps, bos), as far as the parent has
    them."""
    config = read_json(parent / "config.json", Config)
    entries = _recorded(parent, "preset", "scale", "seed", "data", "step", "steps", "bos")
    return {"data": config["data"]} if "data" in config else {}, entries


def write_derived(folder: Path, model: Any, parent: Path, *, loss: float, tokens: int, **about: Any) -> None:
    """Write a run folder like the parent's with these weights, atomically. metrics.jsonl gets one evaluation row:
    `loss` in nats per token over `tokens` tokens. `about` and the parent go into the manifest."""
    config, manifest = inherited(parent)
    with new_folder(folder) as part:
        save(model, part)
        write_text(part / "config.json", json.dumps({"format": FORMAT, "model": model.to_dict(), **config}, indent=1))
        row = {"step": manifest.get("step", 0), "kind": "eval", "loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        write_text(part / "metrics.jsonl", json.dumps({**row, "tokens": tokens}) + "\n")
        manifest = {"preset": model.config.name, "scale": "", **manifest, "parameters": model.n_params()}
        manifest |= {**provenance(str(model.cfg.device)), "parent": parent_of(parent), **about}
        write_text(part / "manifest.json", json.dumps(manifest, indent=1))
