"""Tasks are done once however the workers are launched, and what a killed worker held is done by another."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.cli.launch import _as_worker
from tests.cli.launch_worker import TASKS, main
from tests.tiny import some

ROOT = Path(__file__).resolve().parents[2]


def needs(launcher: str) -> None:
    if launcher in ("ray", "submitit") and importlib.util.find_spec(launcher) is None:
        pytest.skip(f"{launcher} is not installed: pip install -e '.[dev]'")


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def who_did(folder: Path) -> set[int]:
    """The processes that did the tasks, each of which was done once."""
    words = [(folder / f"{name}.txt").read_text().split() for name in TASKS]
    assert [name for name, _ in words] == TASKS and not list(folder.glob("*.lock"))
    return {int(pid) for _, pid in words}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # ray leaves sockets of its local cluster to the collector
@pytest.mark.parametrize("launcher", some(["serial", "local", "ray", "submitit"], ["serial", "local"]))
def test_every_task_is_done_once_however_launched(tmp_path: Path, launcher: str) -> None:
    needs(launcher)
    main([str(tmp_path), "--launch", launcher, *["--hours", "0.1"] * (launcher == "submitit")])
    assert (who_did(tmp_path) == {os.getpid()}) == (launcher == "serial"), "the work is done by those who were launched"


def test_a_killed_worker_leaves_the_others_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--launch", "local", "--killed", "t2"])
    assert os.getpid() not in who_did(tmp_path)
    assert "1 of 2 workers failed" in capsys.readouterr().err


@pytest.mark.parametrize("launcher", some(["local", "submitit"], ["local"]))
def test_workers_that_fail_are_told(tmp_path: Path, launcher: str) -> None:
    needs(launcher)
    with pytest.raises(InputError, match="every worker failed; .*worker-0.log says error: this worker is broken"):
        main([str(tmp_path), "--launch", launcher, "--broken", *["--hours", "0.1"] * (launcher == "submitit")])


def test_a_worker_is_the_same_command() -> None:
    assert _as_worker(["a", "--launch", "ray", "--n", "3"]) == ["a", "--n", "3", "--launch", "worker"]
    assert _as_worker(["--launch=ray", "b"]) == ["b", "--launch", "worker"]
    options = ["--launch", "submitit", "--workers", "2", "--partition=gpu", "--hours", "3"]
    assert _as_worker(["a", *options, "b"]) == ["a", "b", "--launch", "worker"]


def test_what_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, launcher, None)
        with pytest.raises(InputError, match=f"needs {launcher}: pip install 'streamscope\\[launch\\]'"):
            main([str(tmp_path), "--launch", launcher])
