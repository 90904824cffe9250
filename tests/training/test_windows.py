"""Training starts without what Windows lacks: `fcntl`, `os.pread`, a signal that asks whether a process lives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamscope.cli import disk
from tests.tiny import arguments

WITHOUT = """
import os, sys
sys.modules["fcntl"] = None
del os.pread, os.pwrite
from streamscope.models.train import main
main(sys.argv[1:])
"""


def test_training_starts_without_what_windows_lacks(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    out = tmp_path / "run"
    argv = [sys.executable, "-c", WITHOUT, *arguments(corpus, out)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr
    assert (out / "model.safetensors").is_file() and not (out / "lock").exists()


def test_no_signal_is_sent_to_a_process_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There os.kill(pid, 0) is Ctrl-C for it."""
    assert disk.is_alive(os.getpid())

    def kill(pid: int, number: int) -> None:
        raise AssertionError("a signal was sent")

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(disk, "WINDOWS", True)
    assert disk.is_alive(os.getpid())


def test_a_lock_that_another_holds(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as one, (tmp_path / "x").open("w") as other:
        assert disk.lock(one.fileno(), shared=True) and disk.lock(other.fileno(), shared=True)
        assert not disk.lock(one.fileno())
