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


def room_of(module: str) -> str:
    """The room of streamscope.ROOM.x; the short names of a clone are for its user, not for its own files."""
    first, _, rest = module.partition(".")
    assert first not in ORDER, f"import streamscope.{module}"
    return rest.partition(".")[0] if first == "streamscope" else ""


def imported_rooms(source: str) -> set[str]:
    """Rooms that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            found.add(room_of(node.module or ""))
    return found & set(ORDER)


def test_there_are_files() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("room", [room for room in ORDER if room != "notebooks"])
def test_the_arrows_go_one_way(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        strange = imported_rooms(path.read_text(encoding="utf-8")) - MAY[room] - {room}
        assert not strange, f"{path.relative_to(ROOT)} imports {', '.join(sorted(strange))}"


def test_a_wrong_arrow_is_seen() -> None:
    assert imported_rooms("def f():\n    from streamscope.papers import lfa") == {"papers"}
    with pytest.raises(AssertionError, match="import streamscope"):
        imported_rooms("from models import load")


def test_datasets_holds_no_python() -> None:
    assert not list((ROOT / "datasets").rglob("*.py"))
    import datasets

    assert callable(datasets.load_dataset)
