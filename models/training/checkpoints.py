"""Checkpoints: everything that the next step depends on, in one file, the last two kept.

    checkpoint.safetensors            the last one
    checkpoint-before.safetensors     the one before it

A new one is written aside, synced, and takes its name when it is whole; a kill leaves the one before. Each carries the
sha256 of its content: a torn or damaged one is told, and the run goes on from the other.
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
from streamscope.models.tensors import read_tensors, write_tensors
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.run import read_metrics

LAST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


class Kept(NamedTuple):
    """Weights worth keeping, and after which step they were reached."""

    step: int
    weights: dict[str, Tensor]


class Checkpoint(NamedTuple):
    """What a run goes on from; model, optimiser and random state are restored already."""

    step: int
    state: dict[str, Any]
    """Running means of the log, and the best validation loss."""
    kept: "Kept | None"
    """What model.safetensors is to hold at the end, where that is not the last weights (--keep best)."""


def save_checkpoint(
    folder: Path,
    model: torch.nn.Module,
    optimizer: Optimizers,
    step: int,
    state: Mapping[str, Any],
    kept: Kept | None = None,
) -> None:
    """Write a checkpoint; the last one becomes the one before. Raises `InputError` when it cannot be written."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    for i, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in moments.items()}
    tensors |= {f"kept.{k}": v for k, v in kept.weights.items()} if kept is not None else {}
    tensors["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    config = read_json(folder / "config.json", Config)
    meta = {"step": str(step), "config": json.dumps(config, sort_keys=True), "state": json.dumps(state)}
    meta["machine"] = json.dumps(machine(model))
    meta |= {"kept_step": str(kept.step)} if kept is not None else {}
    write_tensors(folder / LAST, tensors, meta, keep=folder / BEFORE)


def none_yet(folder: Path, every: int) -> bool:
    """Whether a run was killed before its first checkpoint, after `every` steps: it can only start again from step 0.

    There is none, and neither manifest nor log speak of a time at which there was one.
    """
    if any((folder / name).exists() for name in (LAST, BEFORE)):
        return False
    manifest = read_json(folder / "manifest.json", Manifest)
    if str(manifest.get("outcome", "")).startswith(("completed", "stopped")):
        return False
    log = folder / "metrics.jsonl"
    return not log.exists() or all(row["step"] <= every for row in read_metrics(folder, strict=False))


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: Optimizers) -> Checkpoint:
    """Restore weights, optimiser and random state, bit for bit, from the last checkpoint that is sound.

    Warns on standard error where the machine computes otherwise than when the checkpoint was written. Raises
    `InputError` without one, and for a checkpoint of another configuration.
    """
    path, tensors, meta = _newest(folder)
    if meta.get("config") != json.dumps(read_json(folder / "config.json", Config), sort_keys=True):
        raise InputError(f"{path} is a checkpoint of another configuration than {folder / 'config.json'}")
    load_weights(model, _below(tensors, "model."), path)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _below(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        if not index.isdecimal():
            raise InputError(f"{path} is no checkpoint: it holds optimizer.{name}")
        moments.setdefault(int(index), {})[key] = value
    optimizer.load_state(moments)
    if "rng.cpu" not in tensors:
        raise InputError(f"{path} is no checkpoint: it holds no random state")
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    _compare(parse(meta.get("machine", "{}"), dict[str, Any], f"machine of {path}"), machine(model))
    kept = Kept(_meta(path, meta, "kept_step", int), _below(tensors, "kept.")) if "kept_step" in meta else None
    return Checkpoint(_meta(path, meta, "step", int), _meta(path, meta, "state", dict[str, Any]), kept)


def _meta(path: Path, meta: Mapping[str, str], name: str, kind: Any) -> Any:
    """A piece of a checkpoint's metadata, which is JSON."""
    return parse(meta.get(name, ""), kind, f"{name} of {path}", f"delete it, and {BEFORE} is gone on from")


def machine(model: torch.nn.Module) -> dict[str, Any]:
    """What the last digits of a step depend on besides the seed."""
    device = next(model.parameters()).device.type
    return {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _compare(then: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Warn where the machine is another one than that of the checkpoint, and say how to have it the same."""
    for name, value in then.items():
        if value != here[name] and not (name == "threads" and here["device"] != "cpu"):
            remedy = f"; set OMP_NUM_THREADS={value} for the same run, bit for bit" if name == "threads" else ""
            print(
                visible(f"warning: the run was computed with {name} {value}, now {here[name]}{remedy}"), file=sys.stderr
            )


def _newest(folder: Path) -> tuple[Path, dict[str, Tensor], dict[str, str]]:
    """The last checkpoint, else the one before with a warning on standard error."""
    wrong: list[str] = []
    for path in (folder / LAST, folder / BEFORE):
        try:
            tensors, meta = read_tensors(path)
        except InputError as error:
            wrong.append(str(error))
            continue
        if wrong and not wrong[0].startswith(f"{folder / LAST} is missing"):  # missing: killed between two renames
            print(
                visible(f"warning: {wrong[0]}; going on from step {meta.get('step')} of {path.name}"), file=sys.stderr
            )
        return path, tensors, meta
    raise InputError(wrong[0])


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
