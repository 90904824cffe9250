"""Every notebook runs from top to bottom, in the folder a reader opens it in."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
REAL = FOLDER / "08_a_real_model.ipynb"
"""Needs the model of `make smollm2`; `make test-real` runs it."""
EVERY = sorted(FOLDER.glob("*.ipynb"))
NOTEBOOKS = [path for path in EVERY if path != REAL]


MINUTES = 5
"""Of all notebooks together, on one core."""
spent: dict[str, float] = {}
"""Notebook -> seconds that its kernel computed: other work on the machine counts for nothing."""


REALLY = pytest.param(REAL, marks=pytest.mark.real)


@pytest.mark.parametrize(
    "path", [*(pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS), REALLY], ids=lambda path: path.stem
)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    before = os.times()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    after = os.times()
    spent[path.stem] = after.children_user + after.children_system - before.children_user - before.children_system
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("application/vnd.plotly.v1+json" in out.get("data", {}) for out in shown), "no figure was drawn"
    assert any("text/html" in out.get("data", {}) for out in shown), "no table was shown"


@pytest.mark.slow
def test_all_notebooks_together_take_less_than_five_minutes() -> None:
    if left := [path.stem for path in NOTEBOOKS if path.stem not in spent]:
        pytest.skip(f"not run, or in another process: {', '.join(left)}")
    assert min(spent.values()) > 1, "a kernel that computes for less than a second was not counted"
    assert sum(spent.values()) < 60 * MINUTES, spent


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [i for i, cell in enumerate(cells) if cell.get("outputs")], "clear the outputs: they are made by running"
