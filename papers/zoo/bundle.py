"""The bundle of trained runs: weights rounded to bf16, the files copied with them, and what their cards say."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from streamscope.cli.disk import Manifest, TrainedConfig, check_folder, read_json, read_rows, write_text
from streamscope.cli.errors import InputError
from streamscope.instruments.progress import progress_bar
from streamscope.instruments.table import Table
from streamscope.models.checkpoint import (
    NAMES,
    load,
    read_manifest,
    run_folder,
    snapshot_file,
    snapshots,
    write_snapshot,
)
from streamscope.models.tensors import read_tensors, write_tensors
from streamscope.models.training.config import tokens_seen
from streamscope.papers.zoo.card import card, index, lines_of, printed
from streamscope.probes.phenomena import Phenomena

LIMIT = 4_000_000
"""Bytes of a bundled model, its history and card included."""
LARGE = dict.fromkeys(("llama", "hdpl", "kromcanon"), 6_000_000)
LARGE |= dict.fromkeys(("lfa-192", "std-t-rope-192"), 6_500_000)
"""Presets with a table of their own for the head, or with many streams to log, take more; so do the flagships."""
SNAPSHOTS = 12_500_000
"""Bytes of the snapshots of a bundled model; two models have some."""
WEIGHTS = "model.safetensors"
FILES = ("config.json", "manifest.json", "tokenizer.json")
"""The files that are copied with the weights."""
METRICS, LINES = "metrics.jsonl", 400
"""The history, and about how many of its lines of training are kept: every so-many-th, and all others."""
SCORES = "scores.json"
"""What was measured for a card, and for the page of all."""
NAME = re.compile(r"[A-Za-z0-9-]+")
"""Of a bundled model."""


def bundle_runs(runs: Sequence[str], out: Path, steps: Sequence[int] = ()) -> None:
    """Bundle every run with its card, and write the page that compares all models of `out`.

    A run is NAME=RUN, or a folder named as the model is to be. Models of `out` that are not named stay unchanged: the
    page says of them what was measured when they were bundled. Raises `InputError` for a run that has not ended, a name
    that is not its preset or PRESET-WHAT, two of one name, and a run without a snapshot of one of `steps`.
    """
    folders: dict[str, Path] = {}
    for run in runs:
        name, folder = named(run)
        manifest = read_manifest(folder)
        if manifest.get("outcome") != "completed":
            raise InputError(f"{folder} is not a completed run ({manifest.get('outcome')}); let it end first")
        preset = manifest["preset"]
        if name != preset and not name.startswith(f"{preset}-"):
            raise InputError(f"{folder} is a run of {preset}: give {preset}={folder}, or {preset}-WHAT={folder}")
        if name in folders:
            raise InputError(f"{folder} and {folders[name]} are both {name}; give one")
        folders[name] = folder
    check_folder(out)
    for name, folder in progress_bar("models")(list(folders.items())):

        def measured(part: Path, name: str = name) -> str:
            row = {"model": name, **scores(part)}
            (part / SCORES).write_text(json.dumps(row, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            return card(name, part, row)

        bundle(folder, out / name, measured, steps)
    rows = [read_json(path, dict[str, Any]) for path in out.glob(f"*/{SCORES}")]
    rows.sort(key=lambda row: (row["model"] not in NAMES, [*NAMES, row["model"]].index(row["model"]), row["model"]))
    write_text(out / "README.md", index(rows))
    Table.plain(printed(rows).set_index("model").T.reset_index(names="phenomenon"), "bundled models").print()
    print(f"cards {out}/*/README.md")


def named(run: str) -> tuple[str, Path]:
    """The name of a bundled model, and the folder of its run, of NAME=RUN or of a folder that has the name."""
    name, equals, run_spec = run.partition("=")
    if equals and NAME.fullmatch(name) and not Path(run).exists():
        return name, run_folder(run_spec)
    folder = run_folder(run)
    return folder.resolve().name, folder


def scores(folder: Path) -> dict[str, Any]:
    """What the card says of a model: its size, the tokens that it saw, and the gate (`probes.phenomena`)."""
    model, manifest = load(folder), read_manifest(folder)
    training = read_json(folder / "config.json", TrainedConfig)["training"]
    return {
        "parameters": model.n_params(),
        "tokens": tokens_seen(training, model.config.n_ctx, manifest["steps"]),
        "phenomena": lines_of(Phenomena().measure(model).table()),
    }


def limit_of(name: str) -> int:
    """Most bytes of a bundled model of this name."""
    return next((size for preset, size in LARGE.items() if name == preset or name.startswith(f"{preset}-")), LIMIT)


def bundle(folder: Path, out: Path, text: Callable[[Path], str], steps: Sequence[int] = ()) -> None:
    """Copy a run with its weights rounded to bf16, and write the card that `text` makes of the copy; all or nothing.

    From then on the rounded weights are the model: `text` measures them; the snapshots of `steps` are rounded as well.
    A model that is bundled already keeps its own weights and snapshots. Raises `InputError` beyond `limit_of` bytes,
    for the snapshots together beyond `SNAPSHOTS`, before anything is measured.
    """
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for name in FILES:
            shutil.copyfile(folder / name, part / name)
        (part / METRICS).write_text(thinned(folder / METRICS), encoding="utf-8")
        if folder.resolve() == out.resolve():
            shutil.copyfile(folder / WEIGHTS, part / WEIGHTS)
            if (folder / "snapshots").is_dir():
                shutil.copytree(folder / "snapshots", part / "snapshots")
        else:
            _round(folder, part)
            _round_snapshots(folder, part, steps)
        for subject, paths, limit in (
            ("a bundled model", part.iterdir(), limit_of(out.name)),
            ("the snapshots of one", part.glob("snapshots/*"), SNAPSHOTS),
        ):
            size = sum(path.stat().st_size for path in paths if path.is_file())
            if size > limit:
                raise InputError(f"{folder} has {size:,} bytes, more than the {limit:,} of {subject}")
        (part / "README.md").write_text(text(part), encoding="utf-8")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)


def thinned(path: Path) -> str:
    """The rows of a history, of those of training every k-th alone, so that about `LINES` remain."""
    rows = read_rows(path)
    training = [row["step"] for row in rows if row["kind"] == "train"]
    kept_steps = set(training[:: max(1, round(len(training) / LINES))])
    return "".join(json.dumps(row) + "\n" for row in rows if row["kind"] != "train" or row["step"] in kept_steps)


def _round(folder: Path, part: Path) -> None:
    """The weights of `folder` to the nearest bf16, ties to even, and their new hash in the manifest of `part`."""

    tensors, metadata = read_tensors(folder / WEIGHTS)
    narrow = {k: x.to(torch.bfloat16) if x.is_floating_point() else x for k, x in tensors.items()}
    sha256 = write_tensors(part / WEIGHTS, narrow, metadata)
    manifest = {**read_json(part / "manifest.json", Manifest), "weights": sha256, "rounded": "to bf16, after training"}
    (part / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _round_snapshots(folder: Path, part: Path, steps: Sequence[int]) -> None:
    snapshot_rows = {row["step"]: row for row in snapshots(folder)}
    for step in steps:
        if step not in snapshot_rows:
            raise InputError(f"{folder} has no snapshot {step}; it has {', '.join(map(str, snapshot_rows)) or 'none'}")
        write_snapshot(part, read_tensors(folder / snapshot_file(step))[0], step, "bf16")
