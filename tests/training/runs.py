"""What tests of trainings share: rows of a log without times, weights, trainings that end before their last step."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamscope.models.training.loop import Trainer
from streamscope.models.training.run import MACHINE_METRICS, read_metrics


def rows(folder: Path, kind: str = "") -> list[dict]:
    """Metrics without what depends on the clock."""
    found = (row for row in read_metrics(folder) if row["kind"] == kind or not kind)
    return [{k: v for k, v in row.items() if k not in MACHINE_METRICS} for row in found]


def flip(path: Path, place: int) -> None:
    """One bit of a file; a negative place counts from the end."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(a: Path, b: Path) -> bool:
    one, two = weights(a), weights(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def cut(step: int, main: Callable[[list[str]], None], argv: list[str], *, killed: bool = False) -> None:
    """Run a command that gets a signal in `step` and saves after it, or that dies where this step would begin."""
    update = Trainer.update

    def changed(self: Trainer) -> dict:
        if killed and self.step == step:
            raise KeyboardInterrupt
        if not killed and self.step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt if killed else SystemExit) as end:
        patch.setattr(Trainer, "update", changed)
        main(argv)
    assert killed or end.value.code == 130
