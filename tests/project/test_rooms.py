"""The arrows between the rooms go one way, and `datasets/` holds no Python."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = ["models", "probes", "interventions", "features", "papers", "benchmarks", "notebooks"]
MAY = {
    "models": set(),
    "probes": {"models"},
    "interventions": {"models", "probes"},
    "features": {"models", "probes"},
    "papers": {"models", "probes", "interventions", "features"},
    "benchmarks": {"models", "probes", "interventions", "features", "papers"},
    "notebooks": {"models", "probes", "interventions", "features", "papers"},
}
FILES = [path for room in ORDER for path in sorted((ROOT / room).rglob("*.py"))]


def imported_rooms(source: str) -> set[str]:
    """Rooms that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            found.add((node.module or "").split(".")[0])
    return found & set(ORDER)


def test_there_are_files() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    forbidden = imported_rooms(path.read_text()) - MAY[room] - {room}
    assert not forbidden, f"{room} may not import {forbidden}"


def test_the_check_sees_a_wrong_arrow() -> None:
    assert imported_rooms("def f():\n    from interventions.edits import scale_heads") == {"interventions"}


def test_datasets_folder_does_not_shadow_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    import datasets

    assert callable(datasets.load_dataset)
    assert not list((ROOT / "datasets").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
