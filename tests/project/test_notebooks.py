"""Every notebook runs from top to bottom, in the folder a reader opens it in."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SMALLER = {
    "00_tour": {
        "n=300": "n=40",
        "max_documents=50": "max_documents=4",
        "max_new_tokens=60": "max_new_tokens=8",
        "max_new_tokens=40": "max_new_tokens=8",
        'Ablate(heads="all")': 'Ablate(heads="L5.*", draws=1)',
    }
}
"""What the quick test writes in the place of the notebook's own sizes, which `make test-slow` keeps. A notebook that is
not here runs there alone."""
RUNS = [(path, True) for path in NOTEBOOKS if path.stem in SMALLER]
RUNS += [pytest.param(path, False, marks=pytest.mark.slow) for path in NOTEBOOKS]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize(("path", "small"), RUNS, ids=lambda one: {True: "small", False: "full"}.get(one) or one.stem)
def test_notebook_runs(path: Path, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    for size, smaller in SMALLER.get(path.stem, {}).items() if small else ():
        assert any(size in cell.source for cell in notebook.cells), f"no {size} in {path.name}"
        for cell in notebook.cells:
            cell.source = cell.source.replace(size, smaller)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("application/vnd.plotly.v1+json" in out.get("data", {}) for out in shown), "no figure was drawn"
    assert any("text/html" in out.get("data", {}) for out in shown), "no table was shown"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [i for i, cell in enumerate(cells) if cell.get("outputs")], "clear the outputs: they are made by running"
