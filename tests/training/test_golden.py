"""Golden trajectories: every preset trains as it did, its first twenty losses at scale tiny in `golden/<preset>.json`.

    python -m tests.training.test_golden     after a change that is meant to change numbers

A change of the loop, the optimiser, a recipe, the order of the data, an initialisation or a model shows in them. On the
machine that wrote them they are equal to the last bit; elsewhere to 1e-4, for kernels differ.
"""

import json
import os
import platform
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.loop import Trainer
from streamscope.models.training.prepare import prepare
from streamscope.models.training.run import Run
from streamscope.text.windows import Windows
from tests.tiny import corpus_text, some

FOLDER = Path(__file__).parent / "golden"
STEPS = 20
ELSEWHERE = 1e-4
"""Relative; kernels of other processors and releases round otherwise."""


def fingerprint() -> dict[str, Any]:
    """What decides about the last bits of a loss on a CPU."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    fields = dict(re.findall(r"^(vendor_id|cpu family|model|model name)\s*: (.*)$", info, re.M))
    cpu = " ".join(fields.values()) or platform.processor() or platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "capability": capability, "cpu": cpu, "threads": 1}


def losses(preset: str) -> list[float]:
    """Twenty steps of eight sequences in two micro-batches, over more than one epoch, on one thread."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train, valid = Path(folder) / "train.txt", Path(folder) / "valid.txt"
        train.write_text(corpus_text(40, 0))
        valid.write_text(corpus_text(8, 1))
        data = prepare(str(train), str(valid), None, 300)
        common: dict[str, Any] = {"steps": STEPS, "batch_size": 8, "accumulate": 2, "warmup": 2, "seed": 3}
        given = Training(**common, device="cpu", dtype="fp32", muon_dtype="fp32")
        training = with_recipe(given, preset, "tiny")
        torch.manual_seed(training.seed)
        model = build(preset, "tiny", tokenizer=data.tokenizer, d_vocab=300, seed=training.seed)
        windows = Windows(data.train, 32), Windows(data.valid, 32)
        trainer = Trainer(model, training, *windows, Run(Path(folder) / "run"), "cpu")
        assert trainer.per_epoch < STEPS, "an epoch must end within the trajectory"
        return [float(trainer.update()["loss"]) for _ in range(STEPS)]


def test_there_is_a_trajectory_for_every_preset_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PRESETS)


@pytest.mark.parametrize("preset", some(PRESETS))
def test_golden_trajectory(preset: str) -> None:
    golden, here = json.loads((FOLDER / f"{preset}.json").read_text()), fingerprint()
    tolerance = 0.0 if here == golden["fingerprint"] else ELSEWHERE
    assert losses(preset) == pytest.approx(golden["losses"], rel=tolerance, abs=0), (
        f"{preset}: compared to {tolerance:g}, written on {golden['fingerprint']}, here {here}. "
        "If the change is meant: python -m tests.training.test_golden"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STREAMSCOPE_CACHE"] = cache
        for preset in PRESETS:
            path, found = FOLDER / f"{preset}.json", losses(preset)
            before = json.loads(path.read_text())["losses"] if path.is_file() else found
            worst = max(abs(a / b - 1) for a, b in zip(found, before, strict=True))
            print(f"{preset:14s} first {found[0]:.4f} last {found[-1]:.4f} largest relative change {worst:.1e}")
            path.write_text(json.dumps({"fingerprint": fingerprint(), "losses": found}, indent=1) + "\n")
