"""What an installed package carries: every file that its code reads."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ = {".toml", ".csv", ".j2", ".css", ".js", ".json", ".jsonl"}
APART = {ROOT / "models" / "zoo", ROOT / "models" / "flagships"}
"""Bundled models, of which the package carries the default one, and flagships, which lie in the clone alone."""


def test_data_files_are_in_the_wheel() -> None:
    """Of the rooms that pyproject.toml names packages of; its patterns are of their folders."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    dirs = {name: ROOT / folder for name, folder in told["package-dir"].items() if name.startswith("streamscope.")}

    def folder(package: str) -> Path:
        room = ".".join(package.split(".")[:2])
        return dirs[room].joinpath(*package.split(".")[2:]) if room in dirs else ROOT

    carried = {path for package, patterns in told["package-data"].items() for pattern in patterns
               for path in folder(package).glob(pattern)}  # fmt: skip
    there = {path for room in dirs.values() for path in room.rglob("*") if path.suffix in READ}
    missing = {path for path in there - carried if not any(path.is_relative_to(one) for one in APART)}
    assert there and not missing, sorted(str(path.relative_to(ROOT)) for path in missing)
