"""Zero, mean and resample ablation against loops that replace one number at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.edits import (
    document_rows,
    donors,
    mean_outputs,
    replace_heads,
    resample_heads,
    scale_heads,
)
from streamscope.models import build, load
from streamscope.models.head_spec import Head
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import document_batches
from tests.interventions.passes import captured, under

HEADS = [Head(0, 1), Head(0, 3), Head(1, 2)]


def z_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 5, 4, 8, generator=torch.Generator().manual_seed(seed))


def test_mean_ablation_replaces_each_dimension_by_its_mean() -> None:
    z, means = z_of(), {head: torch.randn(8) for head in HEADS}
    kept = z.clone()
    for name, fn in replace_heads(HEADS, means, 0.25).items():
        expected, layer = z.clone(), int(name.split(".")[1])
        for head in HEADS:
            for row in range(4 if head.layer == layer else 0):
                for t in range(5):
                    for d in range(8):
                        expected[row, t, head.head, d] = 0.25 * z[row, t, head.head, d] + 0.75 * means[head][d]
        torch.testing.assert_close(fn(z, None), expected)
    assert torch.equal(z, kept)


def test_resample_ablation_takes_another_row_at_the_same_position() -> None:
    z = z_of()
    kept, other = z.clone(), donors(4, 7)
    for name, fn in resample_heads(HEADS, seed=7).items():
        expected, layer = z.clone(), int(name.split(".")[1])
        for head in HEADS:
            for row in range(4 if head.layer == layer else 0):
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
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    rows = [row[: 3 + 4 * i] for i, row in enumerate(document_rows(document_batches(shards, model.config.n_ctx, 4, 7)))]
    means = mean_outputs(model, rows, chunk=3)
    naive = []
    for row in rows:
        found = captured(model, torch.tensor([row]), "blocks.1.attn.hook_z")
        naive += [z[2] for z in found["blocks.1.attn.hook_z"][0]]
    torch.testing.assert_close(means[Head(1, 2)], torch.stack(naive).mean(0), rtol=1e-4, atol=1e-6)
    assert len(means) == model.config.n_layers * model.config.n_heads


def test_a_document_without_a_target_adds_nothing_to_a_mean() -> None:
    model, rows = build("std-t", "tiny", init_std=0.3), [[1, 2, 3], [4, 5]]
    means, expected = mean_outputs(model, [rows[0], [], rows[1]]), mean_outputs(model, rows)
    assert all(torch.equal(means[head], z) for head, z in expected.items())


def test_edits_act_in_the_model(tiny_run: Path) -> None:
    """As a pass whose z was put together by hand."""
    model, name = load(tiny_run), "blocks.1.attn.hook_z"
    tokens = torch.randint(0, 300, (3, 9), generator=torch.Generator().manual_seed(0))
    means, z = mean_outputs(model, tokens.tolist()), captured(model, tokens, name)[name]
    for edits, output in (
        (resample_heads([Head(1, 0)]), z[donors(3, 0)][:, :, 0]),
        (replace_heads([Head(1, 0)], means), means[Head(1, 0)]),
    ):
        by_hand = z.clone()
        by_hand[:, :, 0] = output
        expected = under(model, tokens, {name: lambda x, hook, new=by_hand: new})
        torch.testing.assert_close(under(model, tokens, edits), expected)


def test_a_batch_of_one_row_cannot_be_resampled() -> None:
    (fn,) = resample_heads([Head(0, 0)]).values()
    with pytest.raises(InputError, match="at least two rows"):
        fn(z_of()[:1], None)


@pytest.mark.parametrize("method", ["mean", "resample"])
def test_ablate_moves_heads_towards_their_mean_or_another_row(tiny_run: Path, method: Any) -> None:
    how = Ablate(heads=("L0.H0",), method=method, scale=(0.0, 1.0), draws=0)
    removed, same = how.measure(load(tiny_run), Documents(max_documents=6)).table().frame["delta"]
    assert removed != 0 == same
