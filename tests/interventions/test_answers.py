"""Log-probabilities of answers under many edits at once: one pass per case and edit, a bridge, bad input."""

from typing import Any

import numpy as np
import pytest
import torch

from streamscope.benchmarks.ablation_sweep.measure import as_bridge
from streamscope.cli.errors import InputError
from streamscope.interventions.edits import add_direction, replace_heads, scale_heads
from streamscope.interventions.observe import answer_log_probs
from streamscope.models import build
from streamscope.models.head_spec import Head
from tests.interventions.passes import under
from tests.tiny import FOUR, randomise, some

PROMPTS = [[0, 5, 9, 2], [0, 7, 3, 3, 8, 11, 4], [0, 2]]
POSITIONS = [3, 4, 1]
ANSWERS = [[1, 2], [9, 4], [0, 3]]
HEADS = [Head(layer, h) for layer in (0, 1) for h in range(4)]
PRESETS = ("std-t", "lfa", "dst-kron", "pls", "llama", "hdpl", "canon", "kromhc", "kromcanon")


def bend(x: torch.Tensor, hook: Any) -> torch.Tensor:
    """Half of what is above 0: a norm that follows would undo half of everything."""
    return torch.where(x > 0, 0.5 * x, x)


@pytest.mark.parametrize("preset", some(PRESETS, FOUR))
def test_equals_one_forward_per_case_and_edit(preset: str) -> None:
    """With every kind of edit that acts on each row alone, at every kind of hook that the model has."""
    model = randomise(build(preset, scale="tiny", seed=3, init_std=0.1).double().eval(), std=0.2)
    streams = {"": "resid", "streams": "s1", "token": "token"}[(*model.config.residual.streams, "")[0]]
    hooks = ["hook_embed", "blocks.1.hook_attn_in", "blocks.0.hook_mlp_out", "blocks.*.attn.hook_pattern"]
    hooks += [name for name in ("blocks.0.attn.hook_gate", "blocks.1.attn.q.hook_latent") if name in model.hook_dict]
    sweep = [
        *(scale_heads([head], 0.0) for head in HEADS),
        scale_heads([HEADS[1], HEADS[2], HEADS[6]], 0.3),
        replace_heads([HEADS[5]], {HEADS[5]: torch.linspace(-1, 2, 8).double()}),
        add_direction(torch.linspace(-1, 1, 32), {0: 1.0, 1: -1.0}, [streams]),
        *({name: bend} for name in hooks),
    ]
    found = answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, sweep)
    for e, edits in enumerate([{}, *sweep]):
        for i, ids in enumerate(PROMPTS):
            log_p = under(model, torch.tensor([ids]), edits)[0, POSITIONS[i]].log_softmax(-1)
            np.testing.assert_allclose(found[e, i], log_p[ANSWERS[i]], atol=1e-9)
    assert (np.abs(found[1:] - found[:1]).max((1, 2)) > 1e-6).all()


@pytest.mark.parametrize(
    ("positions", "sweep", "line"),
    [
        ([4, 4, 1], [], "lie outside its 4 tokens"),
        (POSITIONS, [{"blocks.0.attn.hook_zz": bend}], "did you mean"),
        (POSITIONS, [{"blocks.0.attn.hook_z": lambda z, hook: z / 0}], "not finite"),
    ],
)
def test_bad_input_is_told(positions: list[int], sweep: list[Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        answer_log_probs(build("lfa", scale="tiny"), PROMPTS, positions, ANSWERS, sweep)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_bridge_and_our_model_of_the_same_weights_agree() -> None:
    """The bridge runs once per edit, our model shares passes; the numbers are the same."""
    model = build("std-t", scale="tiny", init_std=0.2)
    sweep = [scale_heads([head], 0.0) for head in HEADS]
    ours, theirs = (answer_log_probs(m, PROMPTS, POSITIONS, ANSWERS, sweep) for m in (model, as_bridge(model)))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
