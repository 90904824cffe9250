"""A killed run goes on to the same weights, bit for bit, and its metrics have no row twice."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.train import main
from streamscope.models.training.optim import Optimizers
from streamscope.models.training.run import load_checkpoint, read_metrics, save_checkpoint
from tests.tiny import arguments, some
from tests.training.runs import cut, rows, same_weights


@pytest.mark.parametrize("preset", some(["pls", "kromcanon", "hdpl"], ["pls"]))
@pytest.mark.parametrize("killed", some([False, True], [False]))
def test_stopped_and_resumed_equals_uninterrupted(corpus, tmp_path: Path, preset: str, killed: bool) -> None:
    # pls has dropout and hdpl sampled latents, so the random state matters, kromcanon two optimisers; a pls that is
    # killed at its renames is in test_faults, and runs always
    whole, out = tmp_path / "whole", tmp_path / "cut"
    main(arguments(corpus, whole, preset=preset))
    cut(7, main, arguments(corpus, out, preset=preset), killed=killed)
    assert max(r["step"] for r in read_metrics(out, strict=False)) < 12
    torch.manual_seed(123)
    main(["--resume", "--out", str(out)])
    assert same_weights(whole, out)
    assert rows(whole) == rows(out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["outcome"], manifest["step"]) == ("completed", 12)


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
