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

from streamscope.cli.disk import ListedManifest, TrainedManifest
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.cli.terminal import print_grid, visible


@dataclass(frozen=True)
class List:
    """A line per run below a folder."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Folder to search."""


@dataclass(frozen=True)
class Show:
    """One run: its origin, its losses, its last sample."""

    run: tyro.conf.Positional[Path]
    """Run folder."""


@dataclass(frozen=True)
class Diff:
    """Differences between two runs: configuration, then final losses."""

    first: tyro.conf.Positional[Path]
    """Run folder."""
    second: tyro.conf.Positional[Path]
    """Run folder."""


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested JSON to dotted names."""
    if not isinstance(data, dict):
        return {prefix: data}
    out: dict[str, Any] = {}
    for name, value in data.items():
        out |= flatten(value, f"{prefix}.{name}" if prefix else name)
    return out


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluation rows of a run's metrics."""
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.training.run import read_metrics

    return [row for row in read_metrics(run_folder(folder)) if row["kind"] == "eval"]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and print."""
    options: Any = parse(List | Show | Diff, argv, __doc__)
    if isinstance(options, List):
        _list(options.folder)
    elif isinstance(options, Show):
        _show(options.run)
    else:
        _diff(options.first, options.second)


def _list(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    os.listdir(folder)  # raises for one that may not be read, where rglob finds nothing
    runs = sorted(path.parent for path in folder.rglob("manifest.json"))
    if not runs:
        raise InputError(f"{folder} contains no run: train one with python -m models.train")
    _print([_row(run, folder) for run in runs])


def _row(run: Path, below: Path) -> dict[str, Any]:
    """A run's line in the list; the outcome of an unreadable run is the error."""
    row = dict.fromkeys(("run", "preset", "scale", "parameters", "step", "validation loss", "outcome"), "")
    row["run"] = str(run.relative_to(below))
    try:
        manifest, last = _manifest(run, ListedManifest), (evaluations(run) or [{}])[-1]
    except InputError as error:
        return row | {"outcome": str(error)}
    return row | {
        "preset": manifest["preset"], "scale": manifest["scale"] or "", "parameters": f"{manifest['parameters']:,}",
        "step": f"{manifest.get('step', 0)}/{manifest.get('steps', '?')}",
        "validation loss": f"{last['loss']:.4f}" if last else "",
        "outcome": manifest.get("outcome", "running or killed"),
    }  # fmt: skip


def _show(run: Path) -> None:
    from streamscope.models.checkpoint import run_folder, snapshots
    from streamscope.models.training.run import read_metrics
    from streamscope.text.shards import document_count

    manifest, metrics = _manifest(run, TrainedManifest), read_metrics(run_folder(run))
    data = manifest["data"]["train"]
    names = "preset scale parameters seed commit device started ended wall_seconds outcome"
    for name in names.split():
        print(visible(f"{name:13s} {manifest.get(name, '')}"))
    if steps := [str(row["step"]) for row in snapshots(run_folder(run))]:
        print(f"{'snapshots':13s} {', '.join(steps)}")
    print(visible(f"{'command':13s} {' '.join(manifest['argv'])}"))
    if "parent" in manifest:  # fine-tuned or edited: the data below are the parent's
        print(visible(f"{'made from':13s} {manifest['parent']['run']}"))
    documents = document_count(data["n_documents"], manifest["data"]["valid"])
    print(visible(f"{'data':13s} {data['source']['source']}: {data['n_tokens']:,} tokens in {documents}"))
    losses = [(row["step"], f"{row['loss']:.4f}", f"{row['perplexity']:.2f}") for row in evaluations(run)]
    print_grid(["step", "loss", "perplexity"] if losses else [], losses)
    samples = [row["text"] for row in metrics if row["kind"] == "sample"]
    if samples:
        print(visible(f"last sample: {samples[-1]}", keep="\n"))


def _diff(first: Path, second: Path) -> None:
    from streamscope.cli.disk import Config, read_json
    from streamscope.models.checkpoint import run_folder

    first_config, second_config = (
        flatten(read_json(run_folder(run) / "config.json", Config)) for run in (first, second)
    )
    names = [name for name in {**first_config, **second_config} if first_config.get(name) != second_config.get(name)]
    rows = [
        {"field": n, str(first): str(first_config.get(n, "-")), str(second): str(second_config.get(n, "-"))}
        for n in names
    ]
    ends = [(evaluations(run) or [{}])[-1].get("loss") for run in (first, second)]
    rows.append({"field": "validation loss", str(first): _number(ends[0]), str(second): _number(ends[1])})
    _print(rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _manifest(run: Path, kind: Any) -> dict[str, Any]:
    from streamscope.models.checkpoint import read_manifest, run_folder

    return read_manifest(run_folder(run), kind)


def _print(rows: list[dict[str, Any]]) -> None:
    print_grid(list(rows[0]) if rows else [], (list(row.values()) for row in rows))


if __name__ == "__main__":
    command(main)
