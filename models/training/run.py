"""Writes a run folder: configuration, manifest, metrics, weights, and checkpoints of all that the next step depends on.

    checkpoint.safetensors            the last one
    checkpoint-before.safetensors     the one before it

A new checkpoint gets its name only when it is completely on disk, so a kill leaves the previous one. Each carries the
sha256 of its content: a damaged file is detected, and the run continues from the other one.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.disk import Config, Manifest, parse, read_json, write_text
from streamscope.cli.errors import InputError, reading
from streamscope.cli.locks import locked
from streamscope.cli.provenance import now
from streamscope.cli.terminal import visible
from streamscope.models.checkpoint import load_weights
from streamscope.models.run_names import read_metrics
from streamscope.models.tensors import (
    CONFIG,
    DIGEST,
    FORMAT,
    GENERATION,
    config_digest,
    digest,
    read_tensors,
    release_memory,
    write_tensors,
)
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.parallel import split_like
from streamscope.text.tokenizer import MAP, TEMPLATE, Tokenizer

MACHINE_METRICS = ("tokens_per_second", "mfu", "peak_memory")
"""Values in a row of metrics.jsonl that depend on the machine and its load."""
LOCK = "lock"
"""The file in a run folder that its writer locks."""


class Run:
    """Writer of a run folder. Files are written atomically; metrics are appended row by row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: ExitStack | None = None
        self._metrics: Any = None
        self._board: Any = None

    @classmethod
    def create(
        cls, folder: Path, config: dict[str, Any], tokenizer: Tokenizer, manifest: dict[str, Any],
        generation: Mapping[str, Any] | None = None,
    ) -> "Run":  # fmt: skip
        """Create the folder; the manifest is written last. Raises `InputError` if it is not empty."""
        check_startable(folder)
        run = cls(folder)
        with run.locked():
            check_startable(folder)
            write_text(folder / "config.json", json.dumps({"format": FORMAT, **config}, indent=1))
            tokenizer.save(folder / "tokenizer.json")
            if generation:
                write_text(folder / GENERATION, json.dumps(dict(generation)))
            manifest = {**manifest, CONFIG: config_digest(config["model"])}
            write_text(folder / "manifest.json", json.dumps(manifest, indent=1))
        return run

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes until `finish`, or until the block fails."""
        if self._lock is None:
            refusal = f"{self.folder} is being trained by another process: wait for it to end, or stop it"
            (lock := ExitStack()).enter_context(locked(self.folder / LOCK, refusal))
            self._lock = lock
            for part in self.folder.rglob("*.part"):  # left by a killed process
                part.unlink(missing_ok=True)
        try:
            yield
        except BaseException:
            self.unlock()
            raise

    def open_metrics(self, step: int) -> None:
        """Start to append after `step`; drop later rows of a killed process, and the outcome of an earlier process."""
        manifest = read_json(self.folder / "manifest.json", Manifest)
        if "outcome" in manifest and step != manifest.get("steps"):
            fields = {k: v for k, v in manifest.items() if k not in ("outcome", "ended", "weights")}
            write_text(self.folder / "manifest.json", json.dumps(fields, indent=1))
        path = self.folder / "metrics.jsonl"
        rows = [r for r in read_metrics(self.folder, strict=False) if r["step"] <= step] if path.exists() else []
        write_text(path, "".join(json.dumps(r) + "\n" for r in rows))
        self._metrics = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # an extra
            return
        self._board = SummaryWriter(str(self.folder / "tb"), purge_step=step + 1)

    def log(self, step: int, kind: str, **values: Any) -> None:
        self.log_rows(step, kind, [values])

    def log_rows(self, step: int, kind: str, rows: list[dict[str, Any]]) -> None:
        """Write rows to metrics.jsonl, and their numbers as curves to TensorBoard where that is installed: those of
        {"module", "metric", "part", "value"} as metric/module/part."""
        self._metrics.write("".join(json.dumps({"step": step, "kind": kind, **row}) + "\n" for row in rows))
        self._metrics.flush()
        for row in rows if self._board is not None else ():
            if "metric" in row:
                row = {"/".join(filter(None, (row["metric"], row["module"], row["part"]))): row["value"]}
            for name, value in row.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name.replace(' ', '_')}", value, step)
                elif kind == "sample":
                    self._board.add_text(name, str(value), step)

    def save_model(self, weights: Mapping[str, Tensor], step: int) -> str:
        """Write model.safetensors; returns the digest of the weights."""
        return write_tensors(self.folder / "model.safetensors", weights, {"step": str(step)})

    def save_final(self, weights: Mapping[str, Tensor], step: int) -> str:
        """`save_model`, unless model.safetensors already holds these weights undamaged."""
        sha256 = digest(weights)
        with suppress(InputError):
            if read_tensors(self.folder / "model.safetensors")[1].get(DIGEST) == sha256:
                return sha256
        return self.save_model(weights, step)

    def finish(self, outcome: str, seconds: float, **values: Any) -> None:
        """Add the outcome and the wall time (over all resumptions) to the manifest; close the logs."""
        try:
            manifest = read_json(self.folder / "manifest.json", Manifest)
            total = manifest.get("wall_seconds", 0.0) + seconds
            manifest |= {"outcome": outcome, "wall_seconds": round(total, 1), "ended": now(), **values}
            write_text(self.folder / "manifest.json", json.dumps(manifest, indent=1))
            self._metrics.close()
            if self._board is not None:
                self._board.close()
        finally:
            self.unlock()


class Reader(Run):
    """The run folder of a process that must not write."""

    def _skip(self, *_: Any, **__: Any) -> Any: ...

    open_metrics = log = log_rows = save_model = save_final = finish = _skip
    locked: Any = nullcontext


def check_startable(folder: Path) -> None:
    """Raise `InputError` if the folder is not empty, except for files of a start that was killed before the
    manifest."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: a run is a folder, name another --out")
    start_files = {LOCK, "config.json", "tokenizer.json", TEMPLATE, MAP, GENERATION}
    names = os.listdir(folder) if folder.exists() else []  # raises where glob finds nothing: it may not be read
    if any(name not in start_files and not name.endswith(".part") for name in names):
        raise InputError(f"{folder} is not empty: choose another --out, or --resume to continue the run in it")


# ---- checkpoints -----------------------------------------------------------------------------------


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
