"""Writes a run folder: configuration, manifest, metrics, weights."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from streamscope.cli.disk import Manifest, read_json, write_text
from streamscope.cli.errors import InputError
from streamscope.cli.locks import give_back, take
from streamscope.cli.provenance import now
from streamscope.models.run_names import read_metrics
from streamscope.models.tensors import (
    CONFIG,
    DIGEST,
    FORMAT,
    GENERATION,
    config_digest,
    digest,
    read_tensors,
    write_tensors,
)
from streamscope.text.chat import TEMPLATE
from streamscope.text.tokenizer import MAP, Tokenizer

MACHINE_METRICS = ("tokens_per_second", "mfu", "peak_memory")
"""Values in a row of metrics.jsonl that depend on the machine and its load."""
LOCK = "lock"
"""The file in a run folder that its writer locks."""


class Run:
    """Writer of a run folder. Files are written atomically; metrics are appended row by row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: FileLock | None = None
        self._metrics: Any = None
        self._board: Any = None

    @classmethod
    def create(
        cls, folder: Path, config: dict[str, Any], tokenizer: Tokenizer, manifest: dict[str, Any],
        generation: Mapping[str, Any] | None = None,
    ) -> "Run":  # fmt: skip
        """Create the folder; the manifest is written last. Raises `InputError` if it is not empty."""
        check_startable(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create {folder}: {error.strerror}") from None
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

    def lock(self) -> None:
        """Exclude other processes until `finish`. Raises `InputError` if one is already writing."""
        if self._lock is None:
            refusal = f"{self.folder} is being trained by another process: wait for it to end, or stop it"
            self._lock = take(self.folder / LOCK, refusal)
            for part in self.folder.rglob("*.part"):  # left by a killed process
                part.unlink(missing_ok=True)

    def unlock(self) -> None:
        if self._lock is not None:
            give_back(self._lock)
            self._lock = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """`lock`, and `unlock` if the block fails; otherwise training continues and `finish` unlocks."""
        self.lock()
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
        """Write one row of metrics.jsonl, and its numbers to TensorBoard where that is installed."""
        self._write(step, kind, [values])
        for name, value in values.items() if self._board is not None else ():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, step)
            elif kind == "sample":
                self._board.add_text(name, str(value), step)

    def log_rows(self, step: int, kind: str, rows: list[dict[str, Any]]) -> None:
        """Write rows of {"module", "metric", "part", "value"} to metrics.jsonl, and as curves to TensorBoard."""
        self._write(step, kind, rows)
        for row in rows if self._board is not None else ():
            if row["value"] is not None:
                tag = "/".join(filter(None, (kind, row["metric"], row["module"], row["part"].replace(" ", "_"))))
                self._board.add_scalar(tag, row["value"], step)

    def _write(self, step: int, kind: str, rows: list[dict[str, Any]]) -> None:
        self._metrics.write("".join(json.dumps({"step": step, "kind": kind, **row}) + "\n" for row in rows))
        self._metrics.flush()

    def save_model(self, weights: Mapping[str, torch.Tensor], step: int) -> str:
        """Write model.safetensors; returns the digest of the weights."""
        return write_tensors(self.folder / "model.safetensors", weights, {"step": str(step)})

    def save_final(self, weights: Mapping[str, torch.Tensor], step: int) -> str:
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


def check_startable(folder: Path) -> None:
    """Raise `InputError` if the folder is not empty, except for files of a start that was killed before the
    manifest."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: a run is a folder, name another --out")
    start_files = {LOCK, "config.json", "tokenizer.json", TEMPLATE, MAP, GENERATION}
    names = os.listdir(folder) if folder.exists() else []  # raises where glob finds nothing: it may not be read
    if any(name not in start_files and not name.endswith(".part") for name in names):
        raise InputError(f"{folder} is not empty: choose another --out, or --resume to continue the run in it")
