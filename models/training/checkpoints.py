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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from streamscope.cli.disk import Config, Manifest, parse, read_json
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import visible
from streamscope.models.checkpoint import load_weights
from streamscope.models.tensors import read_tensors, release_memory, write_tensors
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.parallel import split_like
from streamscope.models.training.run import read_metrics

LAST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


class Checkpoint(NamedTuple):
    """The state from which a run continues; model, optimiser and random state are already restored."""

    step: int
    state: dict[str, Any]
    """Running means of the log, and the best validation loss."""


def save_checkpoint(
    folder: Path, model: torch.nn.Module, moments: Mapping[int, Mapping[str, Any]], step: int, state: Mapping[str, Any]
) -> None:
    """Write a checkpoint and keep the previous one. Raises `InputError` when it cannot be written.

    `moments` are those of the optimiser by the index of their parameter.
    """
    release_memory()  # of the activations, because writing copies all tensors
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    for i, values in moments.items():
        tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in values.items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    config = read_json(folder / "config.json", Config)
    meta = {"step": str(step), "config": json.dumps(config, sort_keys=True), "state": json.dumps(state)}
    meta["machine"] = json.dumps(machine(model))
    write_tensors(folder / LAST, tensors, meta, keep=folder / BEFORE)


def none_yet(folder: Path, every: int) -> bool:
    """Whether a run was killed before its first checkpoint, due after `every` steps: it can only restart from step 0.

    No checkpoint exists, and neither manifest nor log show that there was one.
    """
    if any((folder / name).exists() for name in (LAST, BEFORE)):
        return False
    manifest = read_json(folder / "manifest.json", Manifest)
    if str(manifest.get("outcome", "")).startswith(("completed", "stopped")):
        return False
    log = folder / "metrics.jsonl"
    return not log.exists() or all(row["step"] <= every for row in read_metrics(folder, strict=False))


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: Optimizers) -> Checkpoint:
    """Restore weights, optimiser and random state, bit for bit, from the last undamaged checkpoint.

    A sharded model and its moments get their shards.

    Warns on standard error if the machine differs from the one that wrote the checkpoint. Raises `InputError` if there
    is no checkpoint, or only one of another configuration.
    """
    path, tensors, meta = _newest(folder)
    if meta.get("config") != json.dumps(read_json(folder / "config.json", Config), sort_keys=True):
        raise InputError(f"{path} has another configuration than {folder / 'config.json'}")
    model_state = model.state_dict()
    weights = {
        name: split_like(x, model_state[name]) if name in model_state else x
        for name, x in _below(tensors, "model.").items()
    }
    load_weights(model, weights, path)
    moments: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in _below(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise InputError(f"{path} is not a checkpoint: it holds optimizer.{name}")
        moment = value if key == "step" else split_like(value, parameters[int(index)])
        moments.setdefault(int(index), {})[key] = moment
    optimizer.load_state(moments)
    if "rng.cpu" not in tensors:
        raise InputError(f"{path} is not a checkpoint: it holds no random state")
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    _warn_differences(parse(meta.get("machine", "{}"), dict[str, Any], f"machine of {path}"), machine(model))
    return Checkpoint(_meta(path, meta, "step", int), _meta(path, meta, "state", dict[str, Any]))


def _meta(path: Path, meta: Mapping[str, str], name: str, kind: Any) -> Any:
    """Parse one JSON value of a checkpoint's metadata."""
    return parse(meta.get(name, ""), kind, f"{name} of {path}", f"delete it to continue from {BEFORE}")


def machine(model: torch.nn.Module) -> dict[str, Any]:
    """The properties of this machine that the last digits of a step depend on."""
    device = next(model.parameters()).device.type
    return {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _warn_differences(saved_machine: Mapping[str, Any], this_machine: Mapping[str, Any]) -> None:
    """Warn if the machine differs from that of the checkpoint, with the remedy if there is one."""
    for name, value in saved_machine.items():
        if value != this_machine[name] and not (name == "threads" and this_machine["device"] != "cpu"):
            remedy = f"; set OMP_NUM_THREADS={value} for the same bits" if name == "threads" else ""
            line = f"warning: the run was computed with {name} {value}, now {this_machine[name]}{remedy}"
            print(visible(line), file=sys.stderr)


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
