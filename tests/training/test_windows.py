"""Training starts without what Windows lacks: `os.pread`; there `filelock` locks without `fcntl`."""

import subprocess
import sys
from pathlib import Path

from tests.tiny import arguments

WITHOUT = """
import os, sys
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
