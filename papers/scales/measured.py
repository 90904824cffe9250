"""What was measured already: the same runs, options and code have the tables that lie in the page's folder."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from streamscope.cli.disk import read_json, write_text
from streamscope.instruments.command import contents
from streamscope.papers.comparison import TRAINED
from streamscope.papers.scales.options import ScaleOptions

Options = TypeVar("Options", bound=ScaleOptions)
NAME = "measured.json"
ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("streamscope", "models", "probes", "interventions", "features", "papers", "datasets")
KINDS = (".py", ".toml", ".csv", ".jsonl")
NO_MATTER = {
    "out", "tables", "scale", "seeds", "train", "folder", "retry", "runs", "html", "static", "figure", "table",
    "format", "width", "grey", "table_format",
}  # fmt: skip
"""Options that do not change what is measured; the runs' weights stand for the runs."""


def key(options: ScaleOptions) -> str:
    """sha256 of all that the tables depend on: the runs' files, options of measuring, data, code, prompts."""
    digest = hashlib.sha256()
    counting = {name: value for name, value in asdict(options).items() if name not in NO_MATTER}
    digest.update(json.dumps(counting, sort_keys=True, default=str).encode())
    digest.update(" ".join(contents(counting)).encode())
    for run in map(Path, options.runs):
        for name in ("config.json", "manifest.json", "tokenizer.json", "model.safetensors", "metrics.jsonl"):
            digest.update(hashlib.sha256((run / name).read_bytes()).digest())
    digest.update(sources().encode())
    return digest.hexdigest()


def sources() -> str:
    """sha256 of the code, the claims and the prompts of all rooms: a change of any measures again."""
    digest = hashlib.sha256()
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in KINDS and path.is_file()]
    for path in sorted(paths):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def known(options: Options) -> Options:
    """The options; tables stand in place of the runs if these were measured with the same key."""
    assert options.out is not None
    path = options.out / NAME
    if not path.is_file() or not (options.out / TRAINED).is_file():
        return options
    if read_json(path, dict[str, str], "delete it, and all is measured again").get("key") != key(options):
        return options
    return replace(options, runs=(), tables=options.out)


def remember(options: ScaleOptions) -> None:
    """Say in the page's folder what its tables were measured of; written last, when they are there."""
    assert options.out is not None
    write_text(options.out / NAME, json.dumps({"key": key(options)}) + "\n")
