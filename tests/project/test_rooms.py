"""The arrows between the rooms go one way, and `datasets/` holds no Python."""

import ast
from pathlib import Path

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
