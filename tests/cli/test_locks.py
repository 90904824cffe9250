"""One process at a time writes an output; a lock ends with its process, and other work is refused in a line."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from streamscope.cli.errors import InputError
from streamscope.cli.locks import Held, locked
from streamscope.features.extract import main as extract
from streamscope.instruments import result
from streamscope.instruments.data import Documents
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.ablate import main as ablate

ROOT = Path(__file__).resolve().parents[2]


def holder(lock: Path) -> "subprocess.Popen[bytes]":
    """A process that holds a lock until it is killed."""
    code = f"""
import time
from pathlib import Path
from streamscope.cli.locks import locked
with locked(Path({str(lock)!r})):
    print("held", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    process.stdout.close()
    return process


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    process = holder(path)
    with pytest.raises(Held, match="^somebody has it$"), locked(path, "somebody has it"):
        pass
    process.kill()
    process.wait()
    assert path.exists()
    with locked(path, "somebody has it"):
        assert path.exists()
    assert not path.exists()


@pytest.mark.parametrize("command", [extract, ablate])
def test_another_command_with_the_same_out_is_refused(tmp_path: Path, command: Any) -> None:
    out = tmp_path / "x.parquet"
    process = holder(tmp_path / ".x.parquet.parts" / "lock")
    try:
        with pytest.raises(InputError, match="another command is writing .*x.parquet: wait for it to end, or give"):
            command(["stories/lfa", "--out", str(out)])
    finally:
        process.kill()
        process.wait()
    assert not out.exists()
    assert [path.name for path in (tmp_path / ".x.parquet.parts").iterdir()] == ["lock"]


def test_files_of_one_result_are_not_mixed_with_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result is saved while another, slower save to the same path is between its files."""
    out, write = tmp_path / "x.parquet", result.write_batches

    def slowly(*args: Any, **options: Any) -> Any:
        done = write(*args, **options)
        time.sleep(0.5 if threading.current_thread() is threads[0] else 0)
        return done

    monkeypatch.setattr(result, "write_batches", slowly)
    measured = Ablate(heads=("L5.H0",)).measure("stories/lfa", Documents(max_documents=2))
    threads = [threading.Thread(target=measured.save, args=(out,), daemon=True) for _ in range(2)]
    threads[0].start()
    time.sleep(0.1)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert len(Result.load(out).table().frame) == len(measured.table().frame)
