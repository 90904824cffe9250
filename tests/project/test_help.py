"""Every command answers --help at once: nothing heavy is imported for it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("models", "probes", "interventions", "features", "papers", "benchmarks")
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
HEAVY = ("torch", "pandas", "transformer_lens", "plotly", "pyarrow", "tokenizers", "sklearn", "scipy", "statsmodels")

BLOCKED = f"""
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise AssertionError(f"--help imports {{name}}")

sys.meta_path.insert(0, Blocker())
module, sys.argv = sys.argv[1], ["x", "--help"]
runpy.run_module(module, run_name="__main__")
"""


def helped(module: str, code: str = BLOCKED) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code, module], cwd=ROOT, capture_output=True, text=True)


def test_all_rooms_have_commands() -> None:
    assert {name.split(".")[0] for name in COMMANDS} == set(ROOMS)
    assert {"papers.lfa", "papers.dst", "papers.pls", "papers.modes", "papers.hdpl"} <= set(COMMANDS)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_imports_nothing_heavy(module: str) -> None:
    done = helped(module)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_the_blocker_blocks() -> None:
    done = helped("models.checkpoint")
    assert done.returncode == 1
    assert "AssertionError: --help imports" in done.stderr
