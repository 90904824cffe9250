"""Two commands that write one --out: the same work is shared and both end well, other work is refused in a line."""

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from streamscope.cli import output_lock
from streamscope.cli.errors import InputError
from streamscope.cli.output_lock import share_output
from streamscope.features.extract import main as extract
from streamscope.instruments import result
from streamscope.instruments.data import Documents
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.ablate import main as ablate

ROOT = Path(__file__).resolve().parents[2]
RUN = ["stories/lfa", "--data", "stories:5:40", "--max-tokens", "2000"]


def waiting(folder: Path, work: str) -> "subprocess.Popen[bytes]":
    """A process that holds the folder for some work until it is killed."""
    code = f"""
import time
from pathlib import Path
from streamscope.cli.output_lock import share_output
with share_output(Path({str(folder)!r}), {work!r}, Path("x")):
    Path({str(folder / "ready")!r}).touch()
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not (folder / "ready").exists():
        time.sleep(0.05)
        assert process.poll() is None
    return process


def test_the_last_of_the_same_work_tidies_up(tmp_path: Path) -> None:
    folder, out = tmp_path / ".x.parts", tmp_path / "x"
    other = waiting(folder, "this")
    with share_output(folder, "this", out):
        (folder / "part").touch()
    assert (folder / "part").exists(), "the other one is still at it"
    other.kill()
    other.wait()
    with share_output(folder, "this", out):
        pass
    assert not folder.exists()


def test_unfinished_work_stays_and_locks_do_not(tmp_path: Path) -> None:
    folder, out = tmp_path / ".x.parts", tmp_path / "x"
    with pytest.raises(KeyError), share_output(folder, "this", out):
        (folder / "part").touch()
        raise KeyError
    assert [path.name for path in folder.iterdir()] == ["part"]
    with pytest.raises(KeyError), share_output(tmp_path / "empty", "this", out):
        raise KeyError
    assert not (tmp_path / "empty").exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **options: object) -> bool:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(output_lock, "lock_file", none)
    folder, out = tmp_path / ".x.parts", tmp_path / "x"
    folder.mkdir()
    (folder / "0123456789abcdef.lock").touch()  # of a command that was killed
    with share_output(folder, "this", out):
        (folder / "part").touch()
    assert not folder.exists()


@pytest.mark.parametrize("command", [extract, ablate])
def test_other_work_for_one_out_is_refused(tmp_path: Path, command) -> None:
    out = tmp_path / "x.parquet"
    other = waiting(tmp_path / ".x.parquet.parts", "another run")
    try:
        with pytest.raises(InputError, match="another command is writing .*x.parquet with other runs or options"):
            command(["stories/lfa", "--out", str(out)])
    finally:
        other.kill()
        other.wait()
    assert not out.exists()


def test_two_extractions_of_one_out_both_end_well(tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    argv = [sys.executable, "-m", "streamscope.features.extract", *RUN, "--out", str(out)]
    both = [subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in range(2)]
    said = [one.communicate()[1].decode() for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert not any("Traceback" in text for text in said)
    assert len(Result.load(out).table().frame) == 2000
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet"}
    assert not list(tmp_path.glob(".*"))


def test_files_of_one_result_are_not_mixed_with_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result is saved while another, slower save to the same path is between its files."""
    out, write = tmp_path / "x.parquet", result.write_batches

    def slowly(*args: Any, **how: Any) -> Any:
        done = write(*args, **how)
        time.sleep(0.5 if threading.current_thread() is threads[0] else 0)
        return done

    monkeypatch.setattr(result, "write_batches", slowly)
    found = Ablate(heads=("L5.H0",)).measure("stories/lfa", Documents(max_documents=2))
    threads = [threading.Thread(target=found.save, args=(out,), daemon=True) for _ in range(2)]
    threads[0].start()
    time.sleep(0.1)
    threads[1].start()
    for one in threads:
        one.join()
    assert len(Result.load(out).table().frame) == len(found.table().frame)
