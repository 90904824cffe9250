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
from streamscope.models.sweep import EMBED, first_start, run_sweep, start_of
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


def test_starts_of_well_known_hooks_and_of_unknown_ones() -> None:
    places = {
        "blocks.2.hook_resid_pre": False,
        "blocks.2.attn.hook_pattern": False,
        "blocks.2.attn.hook_gate": False,
        "blocks.2.attn.hook_z": True,
        "blocks.2.attn.o.hook_latent": True,
        "blocks.2.hook_streams_mid": True,
        "blocks.2.mlp_hc.hook_pre": True,
        "blocks.2.hook_context_post": True,
        "blocks.2.mlp.hook_invented": False,
    }
    for name, from_z in places.items():
        assert start_of(name, 4) == (2, from_z), name
    assert start_of("ln_final.hook_scale", 4) == (4, False) and start_of("blocks.12.attn.hook_z", 20) == (12, True)
    assert start_of("hook_invented", 4) == start_of("hook_embed", 4) == (EMBED, False)
    model = build("lfa", "tiny")
    assert first_start(model, {"blocks.*.attn.hook_z": torch.relu, "blocks.1.hook_mlp_out": torch.relu}) == (0, True)
    assert first_start(model, {}) > first_start(model, {"ln_final.hook_scale": torch.relu})
