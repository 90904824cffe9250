"""Checkpoints: one file with everything that the next step depends on; the last two are kept.

    checkpoint.safetensors            the last one
    checkpoint-before.safetensors     the one before it

A new checkpoint gets its name only when it is completely on disk, so a kill leaves the previous one. Each carries the
sha256 of its content: a damaged file is detected, and the run continues from the other one.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.disk import Config, Manifest, parse, read_json
from streamscope.cli.errors import InputError, reading
from streamscope.cli.terminal import visible
from streamscope.models.checkpoint import load_weights
from streamscope.models.tensors import read_tensors, release_memory, write_tensors
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.parallel import split_like
from streamscope.models.training.run import read_metrics

LAST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


def save_checkpoint(
    folder: Path, model: torch.nn.Module, moments: Mapping[int, Mapping[str, Any]], step: int, state: Mapping[str, Any]
) -> None:
    """Write a checkpoint and keep the previous one; `moments` are the optimiser's by the index of their parameter."""
    release_memory()  # of the activations, because writing copies all tensors
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    for i, values in moments.items():
        tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in values.items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if (device := next(model.parameters()).device).type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(device)
    meta = {"step": str(step), "config": _config(folder), "state": json.dumps(state)}
    meta["machine"] = json.dumps(machine(model))
    write_tensors(folder / LAST, tensors, meta, keep=folder / BEFORE)


def _config(folder: Path) -> str:
    return json.dumps(read_json(folder / "config.json", Config), sort_keys=True)


def none_yet(folder: Path, every: int) -> bool:
    """Whether a run was killed before its first checkpoint, due after `every` steps: no checkpoint exists, and neither
    manifest nor log show that there was one."""
    if any((folder / name).exists() for name in (LAST, BEFORE)):
        return False
    manifest = read_json(folder / "manifest.json", Manifest)
    if str(manifest.get("outcome", "")).startswith(("completed", "stopped")):
        return False
    log = folder / "metrics.jsonl"
    return not log.exists() or all(row["step"] <= every for row in read_metrics(folder, strict=False))


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: Optimizers) -> tuple[int, dict[str, Any]]:
    """Restore weights, optimiser and random state, bit for bit, from the last undamaged checkpoint; (step, state).
    Warns on standard error if the machine differs. Raises `InputError` if no checkpoint is of this configuration."""
    path, tensors, meta = _newest(folder)
    if meta.get("config") != _config(folder):
        raise InputError(f"{path} has another configuration than {folder / 'config.json'}")
    like = model.state_dict()
    load_weights(model, {name: split_like(x, like.get(name)) for name, x in _below(tensors, "model.").items()}, path)
    moments: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    remedy = f"delete it to continue from {BEFORE}"
    with reading(path, remedy):  # moments of another optimiser, no random state
        for name, value in _below(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            moment = value if key == "step" else split_like(value, parameters[int(index)])
            moments.setdefault(int(index), {})[key] = moment
        optimizer.load_state(moments)
        torch.set_rng_state(tensors["rng.cpu"])
    if (device := next(model.parameters()).device).type == "cuda" and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"], device)
    this_machine = machine(model)
    for name, value in parse(meta.get("machine", "{}"), dict[str, Any], f"machine of {path}").items():
        if value != this_machine[name] and not (name == "threads" and this_machine["device"] != "cpu"):
            hint = f"; set OMP_NUM_THREADS={value} for the same bits" if name == "threads" else ""
            line = f"warning: the run was computed with {name} {value}, now {this_machine[name]}{hint}"
            print(visible(line), file=sys.stderr)
    step = parse(meta.get("step", ""), int, f"step of {path}", remedy)
    return step, parse(meta.get("state", ""), dict[str, Any], f"state of {path}", remedy)


def machine(model: torch.nn.Module) -> dict[str, Any]:
    """The properties of this machine that the last digits of a step depend on."""
    device = next(model.parameters()).device.type
    return {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _newest(folder: Path) -> tuple[Path, dict[str, Tensor], dict[str, str]]:
    """Read the last checkpoint, or the one before it with a warning on standard error."""
    wrong: list[str] = []
    for path in (folder / LAST, folder / BEFORE):
        try:
            tensors, meta = read_tensors(path)
        except InputError as error:
            wrong.append(str(error))
            continue
        if wrong and not wrong[0].startswith(f"{folder / LAST} is missing"):  # missing: killed between two renames
            line = f"warning: {wrong[0]}; continuing from step {meta.get('step')} of {path.name}"
            print(visible(line), file=sys.stderr)
        return path, tensors, meta
    raise InputError(wrong[0])


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
