"""`| head` ends the printing of a command, and neither its work nor its files."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.tiny import some

ROOT = Path(__file__).resolve().parents[2]
LOUD = """
import sys
from streamscope.cli.parse import command
from pathlib import Path

def main():
    for i in range(50_000):
        print("line", i)
    print("progress", file=sys.stderr)
    Path(sys.argv[1]).write_text("done")
    print("written")

command(main)
"""


def closed_pipe(argv: list[str], lines: int, *, stderr_too: bool = False) -> tuple[int, list[str], str]:
    """Run a process into a pipe whose reader takes `lines` lines and closes: (exit code, lines, standard error)."""
    read, write = os.pipe()
    errors = write if stderr_too else subprocess.PIPE
    process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdout=write, stderr=errors, text=True)
    os.close(write)
    with os.fdopen(read) as reader:
        taken = [reader.readline() for _ in range(lines)]
    _, said = process.communicate(timeout=120)
    return process.returncode, taken, said or ""


@pytest.mark.parametrize("stderr_too", [False, True])
def test_the_file_is_written_although_nobody_reads(tmp_path: Path, stderr_too: bool) -> None:
    code, taken, said = closed_pipe(["-c", LOUD, str(tmp_path / "f")], 1, stderr_too=stderr_too)
    assert (code, taken) == (0, ["line 0\n"])
    assert (tmp_path / "f").read_text() == "done"
    assert said == ("" if stderr_too else "progress\n")


@pytest.mark.parametrize("encoding", some(["ascii", "cp437", "cp1252"], ["ascii"]))
@pytest.mark.parametrize(
    "words",
    ["streamscope --help", "streamscope.interventions.ablate --help", "streamscope.models.describe lfa",
     "streamscope.probes.logit_lens --max-tokens 3"],
)  # fmt: skip
def test_output_in_an_encoding_without_our_characters(words: str, encoding: str) -> None:
    environment, argv = {**os.environ, "PYTHONIOENCODING": encoding}, [sys.executable, "-m", *words.split()]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, encoding=encoding)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr[-500:]
    assert len(done.stdout) > 200 and "?" * 2 not in done.stdout


def test_a_closed_standard_output_prints_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LOUD, str(tmp_path / "f")]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *argv], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "progress\n")
    assert (tmp_path / "f").exists()


@pytest.mark.slow
def test_ablate_into_head_keeps_table_and_figure(tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads.parquet"
    argv = ["-m", "interventions.ablate", str(tiny_run), "--heads", "--max-documents", "4", "--draws", "2"]
    code, _, said = closed_pipe([*argv, "--out", str(out), "--figure", str(out.with_suffix(".html"))], 0)
    assert code == 0, said
    assert len(pd.read_parquet(out)) == 8
    assert [p for p in tmp_path.glob("*.html") if p.stat().st_size > 1000]
