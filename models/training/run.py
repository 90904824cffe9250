"""A run folder while it is written: configuration, manifest, metrics, weights."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from streamscope.cli.disk import Manifest, read_json, read_rows, write_text
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import now
from streamscope.models.checkpoint import snapshot_step, write_snapshot
from streamscope.models.tensors import CONFIG, DIGEST, FORMAT, config_digest, digest, read_tensors, write_tensors
from streamscope.models.training.lock import NAME, Lock
from streamscope.text.tokenizer import Tokenizer

OF_THE_MACHINE = ("tokens_per_second", "mfu", "peak_memory")
"""Values of a row of metrics.jsonl that are other on another machine, or at another time."""


class Run:
    """Writer of a run folder. Files appear whole or not at all; metrics are appended row by row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: Lock | None = None
        self._metrics: Any = None
        self._board: Any = None

    # ---- starting ------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, config: dict[str, Any], tokenizer: Tokenizer, manifest: dict[str, Any]) -> "Run":
        """Make the folder; the manifest is its last file. Raises `InputError` when it holds something already."""
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
            manifest = {**manifest, CONFIG: config_digest(config["model"])}
            write_text(folder / "manifest.json", json.dumps(manifest, indent=1))
        return run

    def lock(self) -> None:
        """Keep other processes from writing here until `finish`. Raises `InputError` where one does already."""
        if self._lock is None:
            self._lock = Lock(self.folder)
            for part in self.folder.rglob("*.part"):  # of a process that was killed
                part.unlink(missing_ok=True)

    def unlock(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """`lock`, and `unlock` when the block fails; where it does not, training goes on and `finish` unlocks."""
        self.lock()
        try:
            yield
        except BaseException:
            self.unlock()
            raise

    def open_metrics(self, step: int) -> None:
        """Start appending after `step`; rows of later steps (of a killed process) are dropped, and an outcome that an
        earlier process wrote, until there is a new one."""
        manifest = read_json(self.folder / "manifest.json", Manifest)
        if "outcome" in manifest and step != manifest.get("steps"):
            gone = ("outcome", "ended", "weights")
            kept = {name: value for name, value in manifest.items() if name not in gone}
            write_text(self.folder / "manifest.json", json.dumps(kept, indent=1))
        path = self.folder / "metrics.jsonl"
        rows = [r for r in read_metrics(self.folder, strict=False) if r["step"] <= step] if path.exists() else []
        write_text(path, "".join(json.dumps(r) + "\n" for r in rows))
        self._metrics = path.open("a", encoding="utf-8")
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self.folder / "tb"), purge_step=step + 1)

    # ---- while running -------------------------------------------------------------------------

    def log(self, step: int, kind: str, **values: Any) -> None:
        """One row of metrics.jsonl, and the numbers in it to TensorBoard."""
        self._metrics.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self._metrics.flush()
        if self._lock is not None:
            self._lock.touch()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, step)
            elif kind == "sample":
                self._board.add_text(name, str(value), step)

    def log_rows(self, step: int, kind: str, rows: list[dict[str, Any]]) -> None:
        """Rows of {"module", "metric", "part", "value"}, each a row of metrics.jsonl and a curve of TensorBoard."""
        lines = (json.dumps({"step": step, "kind": kind, **row}) + "\n" for row in rows)
        self._metrics.write("".join(lines))
        self._metrics.flush()
        for row in rows:
            if row["value"] is not None:
                tag = "/".join(filter(None, (kind, row["metric"], row["module"], row["part"].replace(" ", "_"))))
                self._board.add_scalar(tag, row["value"], step)

    def save_model(self, weights: Mapping[str, torch.Tensor], step: int) -> str:
        """model.safetensors; the digest of the weights."""
        return write_tensors(self.folder / "model.safetensors", weights, {"step": str(step)})

    def save_snapshot(self, model: torch.nn.Module, step: int, dtype: str) -> None:
        """snapshots/step-NNNNNN.safetensors, then its line in snapshots/snapshots.json."""
        write_snapshot(self.folder, dict(model.state_dict()), step, dtype)

    def save_final(self, weights: Mapping[str, torch.Tensor], step: int) -> str:
        """`save_model` where a kill or damage left other weights in model.safetensors than these."""
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
            self._board.close()
        finally:
            self.unlock()


def check_startable(folder: Path) -> None:
    """Raise `InputError` for a folder with something in it, unless that is what a start leaves that was killed before
    there was a run: files from before the manifest."""
    if not folder.exists():
        return
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    ours = {NAME, "config.json", "tokenizer.json"}
    if {name for name in files if not name.endswith(".part")} - ours:
        raise InputError(f"{folder} is not empty: choose another --out, or --resume to go on with the run in it")


def read_metrics(folder: Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl, of a snapshot those up to its step. A torn last line is dropped unless `strict`."""
    rows = read_rows(folder / "metrics.jsonl", strict=strict)
    at = snapshot_step(folder)
    return rows if at is None else [row for row in rows if row["step"] <= at]
