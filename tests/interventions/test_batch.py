"""Many edits at once give what each gives alone."""

import numpy as np
import pytest
import torch

import models
from interventions.batch import answer_log_probs
from interventions.edits import scale_heads
from models.capture import edit
from models.errors import InputError
from models.head_spec import Head

PROMPTS = [[0, 5, 9, 2], [0, 7, 3, 3, 8, 11, 4], [0, 2]]
POSITIONS = [3, 4, 1]
ANSWERS = [[1, 2], [9, 4], [0, 3]]


@pytest.mark.parametrize("preset", ["lfa", "kromcanon", "hdpl", "dst-kron"])
def test_equals_one_forward_per_case_and_edit(preset: str) -> None:
    model = models.build(preset, scale="tiny", seed=3).double().eval()
    heads = [Head(0, 1), Head(1, 0)]
    found = answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, [scale_heads([h], 0.0) for h in heads])
    for e, edits in enumerate([{}, *(scale_heads([h], 0.0) for h in heads)]):
        for i, ids in enumerate(PROMPTS):
            with torch.no_grad(), edit(model, edits):
                log_p = model(torch.tensor([ids]))[0, POSITIONS[i]].log_softmax(-1)
            np.testing.assert_allclose(found[e, i], log_p[ANSWERS[i]], atol=1e-9)
    assert np.abs(found[1:] - found[:1]).max() > 1e-6


def test_unequal_lists_say_what_to_give() -> None:
    model = models.build("lfa", scale="tiny")
    with pytest.raises(InputError, match="one of each per case"):
        answer_log_probs(model, PROMPTS, POSITIONS[:2], ANSWERS, [])
