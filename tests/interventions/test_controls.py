"""The controls of a sweep: other heads under the same edit, counted by hand."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from streamscope.interventions.ablate import Ablate
from streamscope.interventions.controls import IDENTITY, NO_DRAWS, plan
from streamscope.interventions.edits import scale_heads
from streamscope.models.head_spec import parse_heads
from streamscope.models.training.data import evaluation_shards
from tests.instruments.estimates import clustered_t
from tests.interventions.passes import losses_alone
from tests.interventions.test_ablate import opened, planted

__all__ = ["planted"]

HEADS = parse_heads("all", 2, 4)


@pytest.fixture(scope="module")
def measured(planted, tiny_run: Path):
    return planted, evaluation_shards(tiny_run, planted.tokenizer, None)


def test_a_sweep_over_all_heads_is_its_own_control() -> None:
    sweep = plan([[head] for head in HEADS], [0.0], HEADS, scale_heads)
    assert len(sweep.edits) == 8
    for heads, g, controls in sweep.cells:
        assert controls == [(h,) for h in HEADS if h not in heads]
        assert all((drawn, g) in sweep.index for drawn in controls)


def test_random_sets_are_as_large_and_others() -> None:
    plans = [plan([HEADS[:3]], [0.0, 0.5], HEADS, scale_heads, draws=6, seed=seed) for seed in (3, 3, 4)]
    sweep = plans[0]
    for _, g, controls in sweep.cells:
        assert len({*controls}) == 6 and all(len(drawn) == 3 and drawn != tuple(HEADS[:3]) for drawn in controls)
        for edits in (sweep.edits[sweep.index[drawn, g]] for drawn in controls):  # they are edited as the cell is
            assert all(fn(torch.ones(1, 1, 4, 1), None).min() == g for fn in edits.values())
    assert plans[0].cells == plans[1].cells != plans[2].cells


def test_controls_of_several_sets_are_all_other_sets_of_all_heads(measured) -> None:
    model, shards = measured
    how = Ablate(heads=("L0.H0-2",), size=2, draws=99)
    seen = how.observe(model, how.open(model, opened(model, shards, 2)), iter)
    given, every = (
        ["+".join(h.label for h in pair) for pair in combinations(heads, 2)] for heads in (HEADS[:3], HEADS)
    )
    controls = [c for c in seen.contrasts["loss"] if c.quantity == "control"]
    assert [c.labels["head"] for c in controls] == given
    for c in controls:
        assert {*seen.blocks["loss"].cells["head"].iloc[list(c.weights)]} == {"unedited", *every} - {c.labels["head"]}


def test_control_is_the_mean_of_the_others(measured) -> None:
    model, shards = measured
    table = Ablate().measure(model, opened(model, shards)).table().frame.set_index("head")
    base, tokens = losses_alone(model, shards, {})
    change = np.stack([losses_alone(model, shards, scale_heads([head], 0.0))[0] for head in HEADS]) - base
    deltas = change.sum(1) / tokens.sum()
    for i, head in enumerate(HEADS):
        row, others = table.loc[head.label], np.delete(change, i, 0)
        test = clustered_t(change[i] - others.mean(0), tokens)
        assert row["delta"] == pytest.approx(deltas[i], abs=1e-6)
        assert row["control"] == pytest.approx(np.delete(deltas, i).mean(), abs=1e-6)
        assert row["control_sd"] == pytest.approx(np.delete(deltas, i).std(ddof=1), abs=1e-6)
        assert row["above"] == pytest.approx(row["delta"] - row["control"], abs=1e-9)
        assert row["above_p"] == pytest.approx(float(test.p), rel=1e-3)
        assert row["draws"] == 7
    assert table["above"].abs().idxmax() == "L1.H1"
    assert table.loc["L1.H1", "p_rank"] == pytest.approx(2 / 8)  # the largest of eight, on two sides
    assert (table["above_p_holm"] >= table["above_p"]).all()
    assert table.loc["L1.H0", "delta"] == 0.0
    assert table.loc["L1.H0", "above_low"] <= -table.loc["L1.H0", "control"] <= table.loc["L1.H0", "above_high"]


def test_cells_without_controls_say_why(measured) -> None:
    model, shards = measured
    few = opened(model, shards, 10)
    unchanged = Ablate(heads=("L0.H0",), scale=(1.0,)).measure(model, few).table()
    assert unchanged.missing[0, "control"] == IDENTITY
    without = Ablate(heads=("L0.H0",), draws=0).measure(model, few).table()
    assert without.missing[0, "above_p_holm"] == NO_DRAWS
    assert np.isnan(without.frame["control"][0]) and without.frame["draws"][0] == 0
    most = Ablate(together=True).measure(model, few).table()  # there is no other set of all heads
    assert most.missing[0, "above"] == NO_DRAWS
