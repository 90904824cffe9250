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
MARKED = [pytest.param(path, marks=pytest.mark.real if path == REAL else pytest.mark.slow) for path in EVERY]


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("application/vnd.plotly.v1+json" in out.get("data", {}) for out in shown), "no figure was drawn"
    assert any("text/html" in out.get("data", {}) for out in shown), "no table was shown"


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [i for i, cell in enumerate(cells) if cell.get("outputs")], "clear the outputs: they are made by running"
