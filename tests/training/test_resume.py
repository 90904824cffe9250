"""A killed run goes on to the same weights, bit for bit, and its metrics have no row twice."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.train import main
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.run import load_checkpoint, read_metrics, save_checkpoint
from tests.tiny import arguments
from tests.training.runs import cut, rows, same_weights

ROOT = Path(__file__).resolve().parents[2]


def kill_after(folder: Path, step: int, argv: list[str], number: int) -> int:
    """Run the command in a process of its own and signal it when its metrics have reached `step`."""
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-m", "models.train", *argv], cwd=ROOT, env=env, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "metrics.jsonl").exists() and any(r["step"] >= step for r in read_metrics(folder, strict=False)):
            process.send_signal(number)
            break
        time.sleep(0.005)
    return process.wait(60)


# so many steps that the signal hits the middle; evaluations and samples, which take most of the time, seldom
LONG = ["--steps", "60", "--checkpoint-every", "7", "--eval-every", "30", "--sample-every", "30"]


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The whole run of a preset."""

    @functools.cache
    def of(preset: str) -> Path:
        whole = tmp_path_factory.mktemp(preset) / "whole"
        main(arguments(corpus, whole, *LONG, preset=preset))
        return whole

    return of


@pytest.mark.parametrize(
    ("number", "preset"),
    [
        (None, "pls"),
        pytest.param(signal.SIGINT, "pls", marks=pytest.mark.slow),
        *(pytest.param(signal.SIGKILL, preset, marks=pytest.mark.slow) for preset in ("pls", "kromcanon")),
    ],
    ids=str,
)
def test_killed_and_resumed_equals_uninterrupted(corpus, uninterrupted, tmp_path: Path, number, preset: str) -> None:
    # number None: stopped in this process; else the signal to one of its own. pls has dropout, so the random state
    # matters, kromcanon two optimisers; a pls that is killed at its renames is in test_faults, and runs always
    whole, out = uninterrupted(preset), tmp_path / "cut"
    argv = arguments(corpus, out, *LONG, preset=preset)
    if number is None:
        cut(17, main, argv)
    else:
        assert kill_after(out, 15, argv, number) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    reached = max(r["step"] for r in read_metrics(out, strict=False))
    assert 15 <= reached < 60, "the signal came too late to test anything"
    main(["--resume", "--out", str(out)])
    assert same_weights(whole, out)
    assert rows(whole) == rows(out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["outcome"], manifest["step"]) == ("completed", 60)


def test_a_torn_row_is_repaired(tiny_run: Path, tmp_path: Path) -> None:
    whole, torn = tiny_run, Path(shutil.copytree(tiny_run, tmp_path / "torn"))
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "ki')
    main(["--resume", "--out", str(torn)])
    assert rows(torn) == rows(whole)


def test_resume_takes_no_other_arguments(tiny_run: Path) -> None:
    with pytest.raises(InputError, match="leave out PRESET, --lr, --steps, or begin .* with --start"):
        main(["std-t", "--resume", "--out", str(tiny_run), "--lr", "1", "--steps", "99"])


class OnSecondDevice(torch.nn.Module):
    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return iter([SimpleNamespace(device=torch.device("cuda:1"))])


def test_the_random_state_is_that_of_the_models_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cuda:1, while the current device is cuda:0."""
    states = {f"cuda:{i}": torch.full((16,), i, dtype=torch.uint8) for i in range(2)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda:0": states[str(device)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda x, device="cuda:0": states.update({str(device): x}))
    (tmp_path / "config.json").write_text('{"format": 1, "model": {}}')
    save_checkpoint(tmp_path, OnSecondDevice(), {}, 3, {})
    states["cuda:1"] = torch.zeros(16, dtype=torch.uint8)
    load_checkpoint(tmp_path, OnSecondDevice(), Optimizers([]))
    assert [int(x[0]) for x in states.values()] == [0, 1]
