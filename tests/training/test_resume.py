"""A killed run goes on to the same weights, bit for bit, and its metrics have no row twice."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.cli.errors import InputError
from streamscope.models.train import main
from streamscope.models.training.loop import Trainer
from streamscope.models.training.run import MACHINE_METRICS, read_metrics
from tests.tiny import arguments

ROOT = Path(__file__).resolve().parents[2]


def rows(folder: Path) -> list[dict]:
    """Metrics without what depends on the clock."""
    return [{k: v for k, v in row.items() if k not in MACHINE_METRICS} for row in read_metrics(folder)]


def weights_equal(a: Path, b: Path) -> bool:
    one, two = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def interrupted(step: int, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process, which gets SIGINT in the middle of `step`."""
    update = Trainer.update

    def signalled(self: Trainer) -> dict:
        if self.step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(Trainer, "update", signalled)
        main(argv)
    return end.value.code


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
def test_killed_and_resumed_equals_uninterrupted(
    corpus,
    uninterrupted: Callable[[str], Path],
    tmp_path: Path,
    number: int | None,
    preset: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # number None: SIGINT to this process, which trains; else the signal to one of its own. pls has dropout, so the
    # random state matters, kromcanon two optimisers; a pls that is killed at its renames is in test_faults, an lfa that
    # gets SIGKILL in test_grid, and both run always
    whole, cut = uninterrupted(preset), tmp_path / "cut"
    argv = arguments(corpus, cut, *LONG, preset=preset)
    code = interrupted(17, argv, monkeypatch) if number is None else kill_after(cut, 15, argv, number)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    reached = max(r["step"] for r in read_metrics(cut, strict=False))
    assert 15 <= reached < 60, "the signal came too late to test anything"
    main(["--resume", "--out", str(cut)])
    assert weights_equal(whole, cut)
    assert rows(whole) == rows(cut)
    manifest = json.loads((cut / "manifest.json").read_text())
    assert manifest["outcome"] == "completed"
    assert manifest["step"] == 60


def test_a_torn_row_is_repaired(tiny_run: Path, tmp_path: Path) -> None:
    whole, torn = tiny_run, Path(shutil.copytree(tiny_run, tmp_path / "torn"))
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "ki')
    main(["--resume", "--out", str(torn)])
    assert rows(torn) == rows(whole)


def test_two_runs_of_one_command_are_equal(corpus, tiny_run: Path, tmp_path: Path) -> None:
    main(arguments(corpus, tmp_path / "again"))
    assert weights_equal(tiny_run, tmp_path / "again")
    main(arguments(corpus, tmp_path / "seed", "--seed", "1"))
    assert not weights_equal(tiny_run, tmp_path / "seed")


def test_resume_takes_no_other_arguments(tiny_run: Path) -> None:
    with pytest.raises(InputError, match="leave out PRESET, --lr, --steps, or begin .* with --start"):
        main(["std-t", "--resume", "--out", str(tiny_run), "--lr", "1", "--steps", "99"])
