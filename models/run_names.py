"""Names of runs (folders, bundled models, snapshots, models of other libraries) and their records, without torch.

    run_folder("stories/lfa"), run_folder("runs/lfa@512"), run_folder("hf:FOLDER")

`models.checkpoint` reads the weights.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamscope.cli.disk import Manifest, Snapshot, read_json, read_rows
from streamscope.cli.errors import InputError
from streamscope.text.cache import cache_root

ZOO = Path(__file__).parent / "zoo"
NAMES = (
    "lfa", "std-t", "d-cas", "cfm", "pls", "c2", "dst-dense", "dst-kron", "llama", "hdpl", "gpt2", "canon", "kromcanon",
    "kromcanon-b2", "kromcanon-bf16", "std-t-rope", "dst-ind", "dst-full-ind", "kromhc",
)  # fmt: skip
WITH_SNAPSHOTS = ("lfa", "std-t-rope")
"""Bundled models with snapshots, in a clone; a wheel has none."""
STORIES = "stories/"
"""Prefix of the names of bundled models, which are trained on the built-in stories."""
AMBIGUOUS_NAMES = {"gpt2": "hf:gpt2 is OpenAI's", "llama": "hf:FOLDER is the model of a Hugging Face folder"}
"""Bundled models that need the prefix, because their short name is also that of a well-known model."""
HUGGING_FACE = "hf:"
"""Prefix of the names of Hugging Face folders, models in the hub's cache and GGUF files; gguf: means the same."""


def foreign_name(run_or_path: str | Path) -> str | None:
    """NAME of hf:NAME or gguf:NAME; None for other names."""
    prefix, colon, name = str(run_or_path).partition(":")
    return name if colon and prefix in ("hf", "gguf") else None


def bundled() -> tuple[str, ...]:
    """Names of the bundled models, such as "stories/lfa"; the first is the default."""
    return tuple(f"{STORIES}{name}" for name in NAMES if (ZOO / name / "config.json").is_file())


def bundled_folder(name: str) -> Path | None:
    """The folder of the bundled model stories/NAME, or NAME for short; None for other names."""
    short = name.removeprefix(STORIES)
    if short not in NAMES:
        return None
    if meaning := AMBIGUOUS_NAMES.get(name):
        raise InputError(f"{name} is ambiguous: {STORIES}{name} is the bundled story model, {meaning}")
    if not (ZOO / short / "config.json").is_file():
        raise InputError(
            f"{name} is not part of this installation, which has {', '.join(bundled()) or 'no bundled model'}; "
            f"give the folder models/zoo/{short} of a clone of the repository, or install that with pip install -e ."
        )
    return ZOO / short


def run_folder(run_or_path: str | Path) -> Path:
    """The folder of a run or of a bundled model; an existing folder of that name has priority.

    `RUN@STEP` is a snapshot of the run, a `SnapshotPath`. `hf:FOLDER` is the model of a Hugging Face folder or GGUF
    file (`models.interop.huggingface`), converted to a run folder in the cache.
    """
    if not isinstance(run_or_path, str | os.PathLike):
        raise InputError(f"a run is named by text or a path, such as 'stories/lfa', not {run_or_path!r:.80}")
    if not str(run_or_path):
        raise InputError("the name of a run is empty; give a run folder or a bundled model")
    if (name := foreign_name(run_or_path)) is not None:
        from streamscope.models.interop.huggingface.convert import cached_run  # torch, for these names only

        return cached_run(name)
    path = Path(run_or_path)
    if path.is_dir():
        return path
    if (folder := bundled_folder(str(run_or_path))) is not None:
        return folder
    name, separator, step = str(run_or_path).rpartition("@")
    if separator and name:
        folder = run_folder(name)
        steps = _snapshot_steps(folder, name, f"so {path} does not exist")
        if not step.isdecimal() or int(step) not in steps:
            every = f"{name}@all stands for all snapshots where a command measures several runs: give one of"
            no = every if step == "all" else f"{name} has no snapshot {step!r}; it has"
            raise InputError(f"{no} {', '.join(map(str, steps))}")
        return SnapshotPath(f"{folder}@{int(step)}")
    if path.is_file() and path.suffix == ".gguf":
        raise InputError(f"{path} is a GGUF file: write {HUGGING_FACE}{path}")
    if path.is_file():
        raise InputError(f"{path} is a file, but a run is a folder; files belong to --data, --features or --suite")
    names = f" or bundled model ({', '.join(bundled())})" if bundled() else ""
    raise InputError(f"{path} is not a run folder{names}; train one with python -m models.train PRESET --data SOURCE")


def _snapshot_steps(folder: Path, name: str, consequence: str = "") -> list[int]:
    """The steps of a run's snapshots. Raises `InputError` if it has none."""
    if rows := snapshots(folder):
        return [row["step"] for row in rows]
    names = " and ".join(f"{STORIES}{name}" for name in WITH_SNAPSHOTS)
    clone = f"; among the bundled models {names} have snapshots, in a clone" if folder.parent == ZOO else ""
    line = ", ".join(filter(None, (f"{name} has no snapshots", consequence)))
    raise InputError(f"{line}: train with --snapshots log{clone}")


def runs_of(names: Sequence[str]) -> list[str]:
    """Expand the names of runs: RUN@all becomes RUN@STEP for every snapshot, in order."""
    folders: dict[str, str] = {}
    for name in names:
        run, _, step = name.rpartition("@")
        several = run and step == "all" and not Path(name).is_dir()
        for one in [f"{run}@{n}" for n in _snapshot_steps(run_folder(run), run)] if several else [name]:
            if (folder := str(run_folder(one))) in folders:
                raise InputError(f"{one} is named twice")
            folders[folder] = one
    return list(folders.values())


class SnapshotPath(type(Path())):  # type: ignore[misc]
    """`runs/lfa@512` as a folder: model.safetensors is the snapshot, every other file is the run's."""

    def __truediv__(self, name: Any) -> Path:
        step = snapshot_step(self)
        run = Path(str(self) if step is None else str(self).rpartition("@")[0])
        return run / (snapshot_file(step) if step is not None and str(name) == "model.safetensors" else name)

    def is_dir(self, **options: Any) -> bool:
        return (self / "").is_dir(**options)


def snapshot_step(folder: Path) -> int | None:
    """The step of a run named RUN@STEP; None for the final run, and for a folder above a snapshot."""
    step = folder.name.rpartition("@")[2] if isinstance(folder, SnapshotPath) and "@" in folder.name else ""
    return int(step) if step.isdecimal() else None


def snapshot_file(step: int) -> str:
    """Path of a snapshot inside its run folder."""
    return f"snapshots/step-{step:06d}.safetensors"


def snapshots(folder: Path) -> list[dict[str, Any]]:
    """{"step", "file", "sha256", "bytes", "dtype"} of each snapshot of a run, sorted by step."""
    path = folder / "snapshots" / "snapshots.json"
    rows = read_json(path, list[Snapshot]) if path.is_file() else []
    return sorted(rows, key=lambda row: row["step"])


def read_manifest(folder: Path, needs: Sequence[str] = ()) -> dict[str, Any]:
    """Read manifest.json. For a snapshot, `step` and `steps` are its own, `of_steps` the run's, `outcome`
    "snapshot"."""
    manifest: dict[str, Any] = read_json(folder / "manifest.json", Manifest, needs=needs)
    step = snapshot_step(folder)
    if step is None:
        return manifest
    return manifest | {"step": step, "steps": step, "of_steps": manifest.get("steps"), "outcome": "snapshot"}


def read_metrics(folder: Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl, for a snapshot up to its step. A damaged last line is dropped unless `strict`."""
    rows = read_rows(folder / "metrics.jsonl", strict=strict)
    step = snapshot_step(folder)
    return rows if step is None else [row for row in rows if row["step"] <= step]


def run_label(folder: Path) -> str:
    """The name by which a run can be opened: its path, stories/NAME if bundled, hf:NAME if converted from Hugging
    Face."""
    if folder.parent == ZOO:
        return f"{STORIES}{folder.name}"
    if folder.parent == cache_root() / "huggingface":
        from streamscope.models.interop.huggingface.convert import source_name

        source = read_json(folder / "manifest.json", dict[str, Any])["source"]
        return f"{HUGGING_FACE}{source_name(Path(source))}"
    return str(folder)
