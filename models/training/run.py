"""A run folder while it is written: configuration, manifest, metrics, checkpoints."""

import json
from pathlib import Path
from typing import Any

import torch

from models.checkpoint import FORMAT, read_json, read_tensors, write_tensors, write_text
from models.errors import InputError
from models.provenance import now
from models.text.tokenizer import Tokenizer
from models.training.optim import Optimizers


class Run:
    """Writer of a run folder. Files appear whole or not at all; metrics are appended row by row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics: Any = None
        self._board: Any = None

    # ---- starting ------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, config: dict[str, Any], tokenizer: Tokenizer, manifest: dict[str, Any]) -> "Run":
        """Make the folder. Raises `InputError` when it holds something already."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is not empty: choose another --out, or --resume to go on with the run in it")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create {folder}: {error.strerror}") from None
        run = cls(folder)
        write_text(folder / "config.json", json.dumps({"format": FORMAT, **config}, indent=1))
        tokenizer.save(folder / "tokenizer.json")
        write_text(folder / "manifest.json", json.dumps(manifest, indent=1))
        return run

    def open_metrics(self, step: int) -> None:
        """Start appending after `step`; rows of later steps (of a killed process) are dropped."""
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

    def save_model(self, model: torch.nn.Module, step: int) -> None:
        """model.safetensors."""
        write_tensors(self.folder / "model.safetensors", dict(model.state_dict()), {"step": str(step)})

    def save_checkpoint(self, model: torch.nn.Module, optimizer: Optimizers, step: int, state: dict[str, Any]) -> None:
        """Everything that the next step depends on, in one file: weights, optimiser, random state."""
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in moments.items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["rng.cuda"] = torch.cuda.get_rng_state()
        config = read_json(self.folder / "config.json")
        meta = {"step": str(step), "config": json.dumps(config, sort_keys=True), "state": json.dumps(state)}
        write_tensors(self.folder / "checkpoint.safetensors", tensors, meta)

    def load_checkpoint(self, model: torch.nn.Module, optimizer: Optimizers) -> tuple[int, dict[str, Any]]:
        """(step, state) after restoring weights, optimiser and random state, bit for bit."""
        from models.checkpoint import load_weights

        path = self.folder / "checkpoint.safetensors"
        if not path.is_file():
            raise InputError(f"{path} is missing: the run saved no checkpoint yet; train it again into a new folder")
        tensors, meta = read_tensors(path)
        if meta.get("config") != json.dumps(read_json(self.folder / "config.json"), sort_keys=True):
            raise InputError(f"{path} is a checkpoint of another configuration than {self.folder / 'config.json'}")
        load_weights(model, _below(tensors, "model."), path)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in _below(tensors, "optimizer.").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = value
        optimizer.load_state(moments)
        torch.set_rng_state(tensors["rng.cpu"])
        if torch.cuda.is_available() and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"])
        return int(meta["step"]), json.loads(meta["state"])

    def finish(self, outcome: str, seconds: float, **values: Any) -> None:
        """Add the outcome and the wall time (over all resumptions) to the manifest; close the logs."""
        manifest = read_json(self.folder / "manifest.json")
        total = manifest.get("wall_seconds", 0.0) + seconds
        manifest |= {"outcome": outcome, "wall_seconds": round(total, 1), "ended": now(), **values}
        write_text(self.folder / "manifest.json", json.dumps(manifest, indent=1))
        self._metrics.close()
        self._board.close()


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def read_metrics(folder: Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl. A torn last line (a killed process) is dropped unless `strict`."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise InputError(f"{path} is missing: {folder} is no complete run folder")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if strict:
                raise InputError(f"{path}:{number} is no JSON row; --resume repairs a torn last line") from None
    return rows
