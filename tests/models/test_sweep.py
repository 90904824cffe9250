"""`run_sweep`: what `run` gives under each edit, from shared passes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.interventions.edits import resample_heads, scale_heads
from streamscope.models import build
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Captures, Query, run
from streamscope.models.sweep import run_sweep
from tests.hooks.test_run import LOGITS, POSITIONS, PROMPTS
from tests.tiny import randomise, some

torch.set_num_threads(1)
QUERIES = {
    "patterns": Query(tokens=PROMPTS, hooks=("blocks.*.attn.hook_pattern",), positions=POSITIONS),
    "logits": Query(tokens=PROMPTS, logits=LOGITS),
    "both": Query(tokens=PROMPTS, hooks=("blocks.*.attn.hook_z", "blocks.0.hook_resid_*"), logits=LOGITS),
}


def halve(x: Tensor, hook: Any) -> Tensor:
    return x * 0.5


SWEEP = [
    {},
    *(scale_heads([Head(layer, h)], 0.0) for layer in (0, 1) for h in range(4)),
    scale_heads([Head(0, 1), Head(1, 2)], 0.5),
    {"blocks.*.hook_mlp_out": halve},
    {"hook_embed": halve, "blocks.1.attn.hook_pattern": halve},
]


def assert_same(got: Captures, expected: Captures, tolerance: float) -> None:
    close = dict(rtol=0, atol=tolerance)
    assert set(got.hooks) == set(expected.hooks)
    for name, rows in expected.hooks.items():
        for x, y in zip(got.hooks[name], rows, strict=True):
            torch.testing.assert_close(x, y, **close)
    assert (got.logits is None) == (expected.logits is None)
    for x, y in zip(got.logits or [], expected.logits or [], strict=True):
        torch.testing.assert_close(x, y, **close)


@pytest.mark.parametrize("kind", list(QUERIES))
@pytest.mark.parametrize("preset", some(["std-t", "lfa", "pls", "kromcanon"], ["lfa", "kromcanon"]))
def test_equals_run(preset: str, kind: str) -> None:
    """Unequal prompts in batches of 40 tokens."""
    model, query = randomise(build(preset, "tiny", init_std=0.2).double()), QUERIES[kind]
    expected = [run(model, query, edits) for edits in SWEEP]
    for got, one in zip(run_sweep(model, query, SWEEP, batch_tokens=40), expected, strict=True):
        assert_same(got, one, 1e-10)


def test_resampling_stays_within_its_copy_of_each_batch() -> None:
    """The donors of an edit are those of `run` with the same batches, whatever shares the pass."""
    model = randomise(build("lfa", "tiny", init_std=0.2).double())
    query = Query(tokens=PROMPTS, hooks=("blocks.1.hook_attn_out",), logits=[[len(p) - 1] for p in PROMPTS])
    sweep = [{}, *(resample_heads([Head(layer, 1)], seed=s) for layer in (0, 1) for s in (0, 1)), SWEEP[3]]
    for got, edits in zip(run_sweep(model, query, sweep), sweep, strict=True):
        assert_same(got, run(model, query, edits), 1e-10)
