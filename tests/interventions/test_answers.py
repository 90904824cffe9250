"""Many edits at once give what each gives alone."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.interventions.edits import add_direction, replace_heads, resample_heads, scale_heads
from streamscope.interventions.observe import answer_log_probs
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Edits, Query, run
from tests.interventions.passes import under
from tests.tiny import FOUR, randomise, some

torch.set_num_threads(1)

PROMPTS = [[0, 5, 9, 2], [0, 7, 3, 3, 8, 11, 4], [0, 2]]
POSITIONS = [3, 4, 1]
ANSWERS = [[1, 2], [9, 4], [0, 3]]


@pytest.mark.parametrize("preset", ["lfa", "kromcanon", "hdpl", "dst-kron"])
def test_equals_one_forward_per_case_and_edit(preset: str) -> None:
    model = randomise(streamscope.models.build(preset, scale="tiny", seed=3).double().eval(), std=0.2)
    heads = [Head(0, 1), Head(1, 0)]
    found = answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, [scale_heads([h], 0.0) for h in heads])
    for e, edits in enumerate([{}, *(scale_heads([h], 0.0) for h in heads)]):
        for i, ids in enumerate(PROMPTS):
            log_p = under(model, torch.tensor([ids]), edits)[0, POSITIONS[i]].log_softmax(-1)
            np.testing.assert_allclose(found[e, i], log_p[ANSWERS[i]], atol=1e-9)
    assert np.abs(found[1:] - found[:1]).max() > 1e-6


HEADS = [Head(layer, h) for layer in (0, 1) for h in range(4)]
PRESETS = ("std-t", "lfa", "dst-kron", "pls", "llama", "hdpl", "canon", "kromhc", "kromcanon")


def bend(x: torch.Tensor, hook: Any) -> torch.Tensor:
    """Half of what is above 0: a norm that follows would undo half of everything."""
    return torch.where(x > 0, 0.5 * x, x)


def sweep_of(model: Any) -> list[Edits]:
    """Every kind of edit that a model has a place for."""
    draw = np.random.default_rng(1)
    streams = {"": "resid", "streams": "s1", "token": "token"}[(*model.config.residual.streams, "")[0]]
    means = {head: torch.from_numpy(draw.normal(size=8)).float() for head in HEADS}
    hooks = ["hook_embed", "blocks.1.hook_attn_in", "blocks.0.hook_mlp_out", "blocks.*.attn.hook_pattern"]
    hooks += [name for name in ("blocks.0.attn.hook_gate", "blocks.1.attn.q.hook_latent") if name in model.hook_dict]
    return [
        *(scale_heads([head], 0.0) for head in HEADS),
        *(scale_heads(pair, 0.0) for pair in itertools.combinations(HEADS, 2)),
        *(scale_heads([HEADS[i] for i in draw.choice(8, 4, replace=False)], 0.3) for _ in range(4)),
        *(replace_heads([head], means) for head in HEADS),
        *(resample_heads([head], 0.2, seed=i) for i, head in enumerate(HEADS)),
        add_direction(torch.linspace(-1, 1, 32), {0: 2.0}, [streams]),
        add_direction(torch.linspace(-1, 1, 32), {0: 1.0, 1: -1.0}, [streams]),
        *({name: bend} for name in hooks),
    ]


@pytest.mark.parametrize("preset", some(PRESETS, FOUR))
def test_every_kind_of_edit_is_that_of_its_own_run(preset: str) -> None:
    """To 1e-5 in float32, in the batches of `run` (resampling depends on them)."""
    model = randomise(streamscope.models.build(preset, scale="tiny", seed=3, init_std=0.1), std=0.2)
    sweep, query = sweep_of(model), Query(tokens=PROMPTS, logits=[[p] for p in POSITIONS])
    expected = []
    for edits in [{}, *sweep]:
        logits = run(model, query, edits).logits
        assert logits is not None
        expected.append(torch.cat(logits).double().log_softmax(-1).gather(1, torch.tensor(ANSWERS)).numpy())
    steps: list[int] = []
    progress = lambda s: (steps.append(i) or i for i in s)  # noqa: E731
    found = answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, sweep, progress=progress)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert len(steps) == len(expected)  # the bar moves to its end
    assert (np.abs(found[1:] - found[:1]).max((1, 2)) > 1e-6).all()


def test_what_changes_nothing_gives_the_same_number() -> None:
    """{} is the unedited model, bit for bit; so is an edit of a head that nobody reads."""
    model = streamscope.models.build("lfa", scale="tiny", init_std=0.2)
    with torch.no_grad():
        model.blocks[0].attn.o.weight[2] = 0.0
    found = answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, [{}, scale_heads([Head(0, 2)], 0.0)])
    assert (found[1] == found[0]).all()
    np.testing.assert_allclose(found[2], found[0], atol=1e-6)


def test_bad_input_is_told() -> None:
    model = streamscope.models.build("lfa", scale="tiny")
    with pytest.raises(InputError, match="lie outside its 4 tokens"):
        answer_log_probs(model, PROMPTS, [4, 4, 1], ANSWERS, [])
    with pytest.raises(InputError, match="did you mean"):
        answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, [{"blocks.0.attn.hook_zz": bend}])
    with pytest.raises(InputError, match="not finite"):
        answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, [{"blocks.0.attn.hook_z": lambda z, hook: z / 0}])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_bridge_and_our_model_of_the_same_weights_agree() -> None:
    """The bridge runs once per edit, our model shares passes; the numbers are the same."""
    from streamscope.benchmarks.ablation_sweep.measure import as_bridge

    model = streamscope.models.build("std-t", scale="tiny", init_std=0.2)
    sweep = [scale_heads([head], 0.0) for head in HEADS]
    ours, theirs = (
        answer_log_probs(m, PROMPTS, POSITIONS, ANSWERS, sweep) for m in (model, as_bridge(model))
    )  # fmt: skip
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
