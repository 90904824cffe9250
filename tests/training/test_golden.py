"""Every preset trains as it did when its golden trajectory was written (`tests.training.golden`)."""

import json

import pytest

from streamscope.models.config.presets import PRESETS
from tests.tiny import some
from tests.training.golden import FOLDER, STEPS, fingerprint, losses

ELSEWHERE = 1e-4
"""Relative; kernels of other processors and releases round otherwise."""


def test_there_is_a_trajectory_for_every_preset_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PRESETS)


@pytest.mark.parametrize("preset", some(PRESETS))
def test_golden_trajectory(preset: str) -> None:
    kept = json.loads((FOLDER / f"{preset}.json").read_text())
    found, here = losses(preset), fingerprint()
    assert len(found) == STEPS
    same = here == kept["fingerprint"]
    tolerance = 0.0 if same else ELSEWHERE
    for step, (a, b) in enumerate(zip(found, kept["losses"], strict=True), 1):
        assert abs(a - b) <= tolerance * abs(b), (
            f"{preset}, step {step}: loss {a!r}, golden {b!r}; compared {'exactly' if same else f'to {ELSEWHERE}'}, "
            f"written on {kept['fingerprint']}, here {here}. "
            "If the change is meant: python -m tests.training.golden --write"
        )
