"""A task is done once, by whoever claims it first, and the work of the dead is taken over."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.cli.ledger import Gone, Ledger, Released

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"t{i}" for i in range(6)]


def details(ledger: Ledger) -> dict:
    """What the tasks returned, all of which must be done."""
    states = {name: ledger.state(name) for name in NAMES}
    assert {state.kind for state in states.values()} == {"done"}
    return {name: state.detail for name, state in states.items()}


def test_every_task_is_done_once_by_many_workers(tmp_path: Path) -> None:
    done: list[str] = []
    lock = threading.Barrier(4)

    def do(name: str) -> dict:
        time.sleep(0.01)
        done.append(name)
        return {"name": name}

    def worker() -> None:
        lock.wait()
        Ledger(tmp_path).work(NAMES, do, wait=True)

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert sorted(done) == NAMES
    assert details(Ledger(tmp_path)) == {name: {"name": name} for name in NAMES}
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.done" for name in NAMES], "no claim stays"


def test_a_failure_is_recorded_and_stops_nobody(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)

    def do(name: str) -> int:
        if name == "t1":
            raise InputError("t1 is impossible")
        return 1

    ledger.work(NAMES, do)
    assert ledger.state("t1").kind == "failed" and ledger.state("t5").kind == "done"
    assert ledger.state("t1").detail == "t1 is impossible"
    ledger.work(NAMES, lambda name: pytest.fail("nothing is open"))
    ledger.forget("t1")
    ledger.work(NAMES, lambda name: 2)
    assert details(ledger)["t1"] == 2 and details(ledger)["t0"] == 1


def test_a_task_that_is_released_stays_open(tmp_path: Path) -> None:
    def stop(name: str) -> None:
        raise Released

    ledger = Ledger(tmp_path)
    ledger.work(NAMES, stop)
    assert [ledger.state(name).kind for name in NAMES] == ["open"] * 6
    with pytest.raises(ZeroDivisionError):
        ledger.work(NAMES, lambda name: 1 / 0)
    assert ledger.state("t0").kind == "open", "an error that is not caught gives the task back"


def test_what_another_holds_is_left_alone_until_it_is_dead(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path, expires=60), {"host": "elsewhere", "pid": 1, "born": "1"}
    claim = tmp_path / "t0.claim-0"
    claim.write_text(json.dumps(other))
    ledger.work(["t0"], lambda name: pytest.fail("it is held"))
    assert (ledger.state("t0").kind, ledger.state("t0").detail) == ("running", "elsewhere, process 1")
    old = time.time() - 61
    os.utime(claim, (old, old))
    assert ledger.state("t0").kind == "open"
    ledger.work(["t0"], lambda name: 3)
    assert (ledger.state("t0").kind, ledger.state("t0").detail) == ("done", 3)


def test_a_heartbeat_keeps_a_claim_alive(tmp_path: Path) -> None:
    # 0.3 s expire; the task takes 1 s: without the heart a second worker would take it over
    seen = []

    def slow(name: str) -> int:
        claim = json.loads((tmp_path / "t0.claim-0").read_text())
        (tmp_path / "t0.claim-0").write_text(
            json.dumps({**claim, "host": "elsewhere"})
        )  # only the heart is left to see
        for _ in range(10):
            time.sleep(0.1)
            seen.append(Ledger(tmp_path, expires=0.3).state("t0").kind)
        return 1

    Ledger(tmp_path, expires=0.3).work(["t0"], slow)
    assert set(seen) == {"running"}


def test_only_one_heir_takes_over(tmp_path: Path) -> None:
    # both see the same dead claim; the number after it can be created once
    dead = tmp_path / "t0.claim-4"
    dead.write_text(json.dumps({"host": "elsewhere", "pid": 1, "born": "1"}))
    os.utime(dead, (1, 1))
    one, two = Ledger(tmp_path), Ledger(tmp_path)
    with one._claim("t0") as mine:
        assert mine and (tmp_path / "t0.claim-5").exists()
        with two._claim("t0") as also:
            assert not also
        assert (tmp_path / "t0.claim-5").exists(), "who did not get it takes nothing away"
    assert not list(tmp_path.glob("*.claim-*"))


KILLED = """
import sys, time
from pathlib import Path
from streamscope.cli.ledger import Ledger
def do(name):
    print(name, flush=True)
    if name == "t2": time.sleep(60)
    return name
Ledger(Path(sys.argv[1])).work([f"t{i}" for i in range(6)], do)
"""


def test_the_work_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in range(3)] == ["t0", "t1", "t2"]
    ledger = Ledger(tmp_path)
    assert ledger.state("t2").kind == "running"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    did: list[str] = []
    ledger.work(NAMES, lambda name: did.append(name) or name)
    assert did == ["t2", "t3", "t4", "t5"] and details(ledger) == {name: name for name in NAMES}


def test_a_ledger_that_was_tidied_up_is_not_begun_again(tmp_path: Path) -> None:
    import shutil

    ledger = Ledger(tmp_path / "ledger")

    def last(name: str) -> None:
        shutil.rmtree(tmp_path / "ledger")
        (tmp_path / "ledger").with_name("done").touch()

    with pytest.raises((Gone, FileNotFoundError)):
        ledger.work(["t0"], last)
    with pytest.raises(Gone):
        ledger.work(["t0"], lambda name: pytest.fail("it would be done twice"))
    assert not (tmp_path / "ledger").exists()


def test_names_are_file_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task 'a/b': letters, digits"):
        Ledger(tmp_path).work(["a/b"], lambda name: None)
    for text in ("{", "[" * 100_000):
        (tmp_path / "t0.done").write_text(text)
        with pytest.raises(InputError, match=r"t0.done is damaged: delete it"):
            Ledger(tmp_path).state("t0")
