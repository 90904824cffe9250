"""Ablation by zero, mean and resampling against loops over single numbers; answers under many edits, one pass each."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.benchmarks.ablation_sweep.measure import as_bridge
from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.edits import (
    add_direction,
    document_rows,
    donors,
    mean_outputs,
    replace_heads,
    resample_heads,
    scale_heads,
)
from streamscope.interventions.observe import answer_log_probs
from streamscope.models import build, load
from streamscope.models.head_spec import Head
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import document_batches
from tests.interventions.passes import captured, under
from tests.tiny import FOUR, randomise, some

HEADS = [Head(0, 1), Head(0, 3), Head(1, 2)]


def z_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 5, 4, 8, generator=torch.Generator().manual_seed(seed))


def test_mean_ablation_replaces_each_dimension_by_its_mean() -> None:
    z, means = z_of(), {head: torch.randn(8) for head in HEADS}
    kept = z.clone()
    for name, fn in replace_heads(HEADS, means, 0.25).items():
        expected, layer = z.clone(), int(name.split(".")[1])
        for head, row, t, d in product([head for head in HEADS if head.layer == layer], range(4), range(5), range(8)):
            expected[row, t, head.head, d] = 0.25 * z[row, t, head.head, d] + 0.75 * means[head][d]
        torch.testing.assert_close(fn(z, None), expected)
    assert torch.equal(z, kept)


def test_resample_ablation_takes_another_row_at_the_same_position() -> None:
    z, other = z_of(), donors(4, 7)
    kept = z.clone()
    for name, fn in resample_heads(HEADS, seed=7).items():
        expected, layer = z.clone(), int(name.split(".")[1])
        for head, row in product([head for head in HEADS if head.layer == layer], range(4)):
            expected[row, :, head.head] = z[other[row], :, head.head]
        assert torch.equal(fn(z, None), expected)
    assert torch.equal(z, kept)


def test_donors_are_a_seeded_cycle_without_fixed_points() -> None:
    for n in (2, 3, 10):
        for seed in range(20):
            other = donors(n, seed)
            assert sorted(other.tolist()) == list(range(n))
            assert not (other == torch.arange(n)).any()
            assert torch.equal(other, donors(n, seed))
    assert any(not torch.equal(donors(10, 0), donors(10, seed)) for seed in range(1, 4))


def test_scale_one_changes_nothing_bit_for_bit() -> None:
    z, means = z_of(), {head: torch.randn(8) for head in HEADS}
    for edits in (scale_heads(HEADS, 1.0), replace_heads(HEADS, means, 1.0), resample_heads(HEADS, 1.0)):
        assert all(torch.equal(fn(z, None), z) for fn in edits.values())


def test_means_are_those_of_all_real_positions(tiny_run: Path) -> None:
    model, name = load(tiny_run), "blocks.1.attn.hook_z"
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    rows = [row[: 3 + 4 * i] for i, row in enumerate(document_rows(document_batches(shards, model.config.n_ctx, 4, 7)))]
    means = mean_outputs(model, rows, chunk=3)
    z = torch.cat([captured(model, torch.tensor([row]), name)[name][0, :, 2] for row in rows])
    torch.testing.assert_close(means[Head(1, 2)], z.mean(0), rtol=1e-4, atol=1e-6)
    assert len(means) == model.config.n_layers * model.config.n_heads


def test_a_document_without_a_target_adds_nothing_to_a_mean() -> None:
    model, rows = build("std-t", "tiny", init_std=0.3), [[1, 2, 3], [4, 5]]
    means, expected = mean_outputs(model, [rows[0], [], rows[1]]), mean_outputs(model, rows)
    assert all(torch.equal(means[head], z) for head, z in expected.items())


def test_a_batch_of_one_row_cannot_be_resampled() -> None:
    (fn,) = resample_heads([Head(0, 0)]).values()
    with pytest.raises(InputError, match="at least two rows"):
        fn(z_of()[:1], None)


@pytest.mark.parametrize("method", ["mean", "resample"])
def test_ablate_moves_heads_towards_their_mean_or_another_row(tiny_run: Path, method: Any) -> None:
    how = Ablate(heads=("L0.H0",), method=method, scale=(0.0, 1.0), draws=0)
    removed, same = how.measure(load(tiny_run), Documents(max_documents=6)).table().frame["delta"]
    assert removed != 0 == same


PROMPTS = [[0, 5, 9, 2], [0, 7, 3, 3, 8, 11, 4], [0, 2]]
POSITIONS = [3, 4, 1]
ANSWERS = [[1, 2], [9, 4], [0, 3]]
EVERY = [Head(layer, h) for layer in (0, 1) for h in range(4)]
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
        *(scale_heads([head], 0.0) for head in EVERY),
        scale_heads([EVERY[1], EVERY[2], EVERY[6]], 0.3),
        replace_heads([EVERY[5]], {EVERY[5]: torch.linspace(-1, 2, 8).double()}),
        add_direction(torch.linspace(-1, 1, 32), {0: 1.0, 1: -1.0}, [streams]),
        *({name: bend} for name in hooks),
    ]
    steps: list[int] = []
    bar = lambda batches: (steps.append(i) or i for i in batches)  # noqa: E731
    found = answer_log_probs(model, PROMPTS, POSITIONS, ANSWERS, sweep, progress=bar)
    assert len(steps) == len(found), "the bar moves to its end"
    for e, edits in enumerate([{}, *sweep]):
        for i, ids in enumerate(PROMPTS):
            log_p = under(model, torch.tensor([ids]), edits)[0, POSITIONS[i]].log_softmax(-1)
            np.testing.assert_allclose(found[e, i], log_p[ANSWERS[i]], atol=1e-9)
    assert (np.abs(found[1:] - found[:1]).max((1, 2)) > 1e-6).all()


def test_bad_input_is_told() -> None:
    model = build("lfa", scale="tiny")
    for positions, sweep, line in (
        ([4, 4, 1], [], "lie outside its 4 tokens"),
        (POSITIONS, [{"blocks.0.attn.hook_zz": bend}], "did you mean"),
        (POSITIONS, [{"blocks.0.attn.hook_z": lambda z, hook: z / 0}], "not finite"),
    ):
        with pytest.raises(InputError, match=line):
            answer_log_probs(model, PROMPTS, positions, ANSWERS, sweep)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_bridge_and_our_model_of_the_same_weights_agree() -> None:
    """The bridge runs once per edit, our model shares passes; the numbers are the same."""
    model = build("std-t", scale="tiny", init_std=0.2)
    sweep = [scale_heads([head], 0.0) for head in EVERY]
    ours, theirs = (answer_log_probs(m, PROMPTS, POSITIONS, ANSWERS, sweep) for m in (model, as_bridge(model)))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
