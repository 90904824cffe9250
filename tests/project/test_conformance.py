"""The table of what other tools do on our models is what they do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamscope.models.config.presets import PRESETS
from tests.project.conformance import CHECKS, FILE, SILENT, Case, cell, tokenizer

TABLE = json.loads(FILE.read_text(encoding="utf-8"))
HERE = [row for row in CHECKS if row.startswith(("TransformerLens", "SAELens"))]
"""Those that leave this process as it is: importing nnsight does not."""


def test_the_table_has_every_cell_and_no_failure() -> None:
    assert list(TABLE["cells"]) == list(PRESETS)
    for preset, cells in TABLE["cells"].items():
        assert list(cells) == list(CHECKS), preset
        assert not [one for one in cells.values() if not one.startswith(("yes", "no: ", "not run: "))]
    assert [(one.title, one.peer, one.ours) for one in SILENT] == [
        (row["what"], row["peer"], row["ours"]) for row in TABLE["silent"]
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("preset", ["std-t", "lfa", "dst-kron", "kromcanon"])
def test_a_column(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One stream, two, a Kronecker map, and of what most is refused: hyper-connections and Canon layers."""
    case = Case(preset, tokenizer())
    for row in HERE:
        assert cell(row, case) == TABLE["cells"][preset][row], row


@pytest.mark.slow
def test_every_cell(tmp_path: Path) -> None:
    """All of it anew, in a process of its own; `python -m tests.project.conformance --write` writes what changed."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.project.conformance"]
    own = {**os.environ, "PYTHONPATH": str(root), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=root, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
