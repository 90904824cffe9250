"""However the workers are launched, the outputs are the same, and the caller does none of the work itself."""

import importlib.util
import os
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.cli.launch import _as_worker
from streamscope.cli.ledger import Ledger
from tests.cli.ledger_worker import TASKS, main
from tests.tiny import some

ROOT = Path(__file__).resolve().parents[2]


def needs(launcher: str) -> None:
    if launcher in ("ray", "submitit") and importlib.util.find_spec(launcher) is None:
        pytest.skip(f"{launcher} is not installed: pip install -e '.[dev]'")


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # ray leaves sockets of its local cluster to the collector
@pytest.mark.parametrize("launcher", some(["serial", "local", "ray", "submitit"], ["serial", "local"]))
def test_outputs_are_the_same_however_launched(tmp_path: Path, launcher: str) -> None:
    needs(launcher)
    own = ["--workers", "2"] * (launcher != "serial") + ["--hours", "0.1"] * (launcher == "submitit")
    main([str(tmp_path), "--launch", launcher, *own])
    for name in TASKS:
        assert (tmp_path / f"{name}.txt").read_bytes() == f"output of {name}\n".encode()
    who = {Ledger(tmp_path / "ledger").state(name).detail for name in TASKS}
    assert (who == {os.getpid()}) == (launcher == "serial"), "the work is done by those who were launched"


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
    import sys

    for launcher in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, launcher, None)
        with pytest.raises(InputError, match="needs .*pip install 'streamscope\\[launch\\]'"):
            main([str(tmp_path), "--launch", launcher])
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        main([str(tmp_path), "--launch", "local", "--workers", "0"])
