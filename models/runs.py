"""Read run folders: list them, show one, or compare two.

python -m models.runs list runs/
python -m models.runs show runs/lfa
python -m models.runs diff runs/lfa runs/std-t
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from streamscope.cli.disk import Config, read_json
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.cli.terminal import print_grid, visible
from streamscope.models.run_names import read_manifest, read_metrics, run_folder, snapshots


@dataclass(frozen=True)
class List:
    """A line per run below a folder."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Folder to search."""

    def print(self) -> None:
        if not self.folder.is_dir():
            raise InputError(f"{self.folder} is not a folder")
        os.listdir(self.folder)  # raises for one that may not be read, where rglob finds nothing
        rows = [_row(path.parent, self.folder) for path in sorted(self.folder.rglob("manifest.json"))]
        if not rows:
            raise InputError(f"{self.folder} contains no run: train one with python -m models.train")
        print_grid(list(rows[0]), (list(row.values()) for row in rows))


@dataclass(frozen=True)
class Show:
    """One run: its origin, its losses, its last sample."""

    run: tyro.conf.Positional[Path]
    """Run folder."""

    def print(self) -> None:
        from streamscope.text.shards import document_count

        run = run_folder(self.run)
        manifest, metrics = read_manifest(run, ("preset", "parameters", "argv", "data")), read_metrics(run)
        data = manifest["data"]["train"]
        names = "preset scale parameters seed commit device started ended wall_seconds outcome"
        lines = {name: manifest.get(name, "") for name in names.split()}
        if rows := snapshots(run):
            lines["snapshots"] = ", ".join(str(row["step"]) for row in rows)
        lines["command"] = " ".join(manifest["argv"])
        if "parent" in manifest:  # fine-tuned or edited: the data below are the parent's
            lines["made from"] = manifest["parent"]["run"]
        documents = document_count(data["n_documents"], manifest["data"]["valid"])
        lines["data"] = f"{data['source']['source']}: {data['n_tokens']:,} tokens in {documents}"
        for name, value in lines.items():
            print(visible(f"{name:13s} {value}"))
        losses = [(row["step"], f"{row['loss']:.4f}", f"{row['perplexity']:.2f}") for row in evaluations(run)]
        print_grid(["step", "loss", "perplexity"] if losses else [], losses)
        if samples := [row["text"] for row in metrics if row["kind"] == "sample"]:
            print(visible(f"last sample: {samples[-1]}", keep="\n"))


@dataclass(frozen=True)
class Diff:
    """Differences between two runs: configuration, then final losses."""

    first: tyro.conf.Positional[Path]
    """Run folder."""
    second: tyro.conf.Positional[Path]
    """Run folder."""

    def print(self) -> None:
        runs = (self.first, self.second)
        first, second = (flatten(read_json(run_folder(run) / "config.json", Config)) for run in runs)
        names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        rows = [(name, str(first.get(name, "-")), str(second.get(name, "-"))) for name in names]
        losses = (_last_loss(run) or "-" for run in runs)
        print_grid(("field", *map(str, runs)), [*rows, ("validation loss", *losses)])


def main(argv: Sequence[str] | None = None) -> None:
    options: Any = parse(List | Show | Diff, argv, __doc__)
    options.print()


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix: data}
    out: dict[str, Any] = {}
    for name, value in data.items():
        out |= flatten(value, f"{prefix}.{name}" if prefix else name)
    return out


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run_folder(folder)) if row["kind"] == "eval"]


def _last_loss(run: Path) -> str:
    """The last validation loss; "" before the first evaluation."""
    return next((f"{row['loss']:.4f}" for row in reversed(evaluations(run))), "")


def _row(run: Path, below: Path) -> dict[str, Any]:
    """A run's line in the list; the outcome of an unreadable run is the error."""
    row = dict.fromkeys(("run", "preset", "scale", "parameters", "step", "validation loss", "outcome"), "")
    row["run"] = str(run.relative_to(below))
    try:
        manifest, last = read_manifest(run, ("preset", "scale", "parameters")), _last_loss(run)
    except InputError as error:
        return row | {"outcome": str(error)}
    return row | {
        "preset": manifest["preset"], "scale": manifest["scale"] or "", "parameters": f"{manifest['parameters']:,}",
        "step": f"{manifest.get('step', 0)}/{manifest.get('steps', '?')}", "validation loss": last,
        "outcome": manifest.get("outcome", "running or killed"),
    }  # fmt: skip


if __name__ == "__main__":
    command(main)
