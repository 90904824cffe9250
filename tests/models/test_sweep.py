"""`run_sweep`: what `run` gives under each edit, from shared passes, and where a pass starts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.interventions.edits import resample_heads, scale_heads
from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Captures, Query, run
from streamscope.models.sweep import EMBED, run_sweep, start_of
from tests.hooks.test_run import LOGITS, POSITIONS, PROMPTS
from tests.tiny import randomise, some

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


def assert_same(got: Captures, expected: Captures) -> None:
    torch.testing.assert_close(dict(got.hooks), dict(expected.hooks), rtol=0, atol=1e-10)
    torch.testing.assert_close(got.logits, expected.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", list(QUERIES))
@pytest.mark.parametrize("preset", some(["std-t", "lfa", "pls", "kromcanon"], ["lfa", "kromcanon"]))
def test_equals_run(preset: str, kind: str) -> None:
    """Unequal prompts in batches of 40 tokens."""
    model, query = randomise(build(preset, "tiny", init_std=0.2).double()), QUERIES[kind]
    expected = [run(model, query, edits) for edits in SWEEP]
    for got, one in zip(run_sweep(model, query, SWEEP, batch_tokens=40), expected, strict=True):
        assert_same(got, one)


def test_resampling_stays_within_its_copy_of_each_batch() -> None:
    """The donors of an edit are those of `run` with the same batches, whatever shares the pass."""
    model = randomise(build("lfa", "tiny", init_std=0.2).double())
    query = Query(tokens=PROMPTS, hooks=("blocks.1.hook_attn_out",), logits=[[len(p) - 1] for p in PROMPTS])
    sweep = [{}, *(resample_heads([Head(layer, 1)], seed=s) for layer in (0, 1) for s in (0, 1)), SWEEP[3]]
    for got, edits in zip(run_sweep(model, query, sweep), sweep, strict=True):
        assert_same(got, run(model, query, edits))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_starts_follow_the_order_in_which_hooks_fire(name: str) -> None:
    model = build(name, "tiny")
    fired: list[str] = []
    hooks = [(n, lambda x, hook, n=n: fired.append(n)) for n in model.hook_dict]
    with torch.no_grad():
        model.run_with_hooks(torch.randint(256, (1, 5)), fwd_hooks=hooks)
    starts = [start_of(n, 2) for n in fired]
    assert starts == sorted(starts)
    assert set(starts) == {(EMBED, False), (0, False), (0, True), (1, False), (1, True), (2, False)}
