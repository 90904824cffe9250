"""Scaled heads: the same as scaled attention, curves as on paper, ranges and leverage by their formulas."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.observations import Measure, Observations
from streamscope.instruments.prompts.tasks import OpenTasks, token_task
from streamscope.instruments.result import Result, compare
from streamscope.instruments.table import Table, with_reasons
from streamscope.interventions import Ablate, SteerHeads
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.selection import Group
from streamscope.interventions.steer_heads.measure import leverage, ranges, spearman
from streamscope.models import load
from streamscope.models.head_spec import Head
from tests.instruments.estimates import block
from tests.interventions import copiers
from tests.interventions.copiers import COPIER, DELTA
from tests.interventions.passes import under
from tests.tiny import randomise

SCALES = (0.0, 0.5, 1.0, 1.5, 2.0)
GROUPS = [Group("copier", (COPIER,)), Group("idle", (Head(0, 4),))]
HEADS = {group.name: group.label for group in GROUPS}


@pytest.mark.parametrize(
    ("preset", "g"),
    [pytest.param(preset, g, marks=[] if g == (0.0, 0.5, 1.5)[i % 3] else [pytest.mark.slow])
     for i, preset in enumerate(("std-t", "lfa", "pls", "llama", "kromcanon", "dst-kron")) for g in (0.0, 0.5, 1.5)],
)  # fmt: skip
def test_scaling_attention_weights_is_scaling_outputs(preset: str, g: float) -> None:
    model = randomise(streamscope.models.build(preset, scale="tiny", seed=2).double().eval(), std=0.2)
    tokens = torch.tensor([[0, 9, 4, 77, 5, 4], [0, 1, 2, 3, 4, 5]])
    factor = torch.tensor([1, g, g, 1]).double()[:, None, None]
    by_weights = under(model, tokens, {"blocks.1.attn.hook_pattern": lambda pattern, hook: pattern * factor})
    by_outputs = under(model, tokens, scale_heads([Head(1, 1), Head(1, 2)], g))
    torch.testing.assert_close(by_weights, by_outputs, atol=1e-10, rtol=0)
    assert (by_outputs - under(model, tokens, {})).abs().max() > 1e-6


def planted(delta: float = DELTA, draws: int = 4, words: int = 10) -> Result:
    net = copiers.model(delta=delta)
    task = token_task(copiers.suite(words), net.tokenizer)
    how = SteerHeads(groups=tuple(g.spec for g in GROUPS), scales=SCALES, measures=("task",), draws=draws)
    return how.measure(net, OpenTasks([task], net.tokenizer))


@pytest.fixture(scope="module")
def found() -> Result:
    return planted()


def one(table: pd.DataFrame | Table, **where: Any) -> pd.Series:
    table = with_reasons(table) if isinstance(table, Table) else table
    for column, value in where.items():
        table = table[table[column] == value]
    (row,) = table.to_dict("records")
    return pd.Series(row)


def on_paper(g: float, delta: float = DELTA) -> float:
    return float(np.mean([copiers.log_odds(c * g * delta, c) for c in (1, -1)]))


def test_levels_and_changes_are_those_on_paper(found: Result) -> None:
    odds, probability = (found.table(name) for name in ("log_odds", "probability"))
    for g in SCALES:
        row = one(odds, group="copier", scale=g)
        assert row[["level", "change"]].tolist() == pytest.approx([on_paper(g), on_paper(g) - on_paper(1)], abs=1e-5)
        p = one(probability, group="copier", scale=g)["level"]
        assert p == pytest.approx(np.mean([copiers.probability(c * g * DELTA, c) for c in (1, -1)]), abs=1e-6)
    idle = one(odds, group="idle", scale=0.0)
    assert idle["change"] == 0 and np.isnan(idle["change_p_holm"]) and "change_low" in idle["undefined"]


def test_ranges_monotonicity_and_random_groups(found: Result) -> None:
    table = found.table("curves")
    row = one(table, measure="log_odds", group="copier")
    assert row["range"] == pytest.approx(on_paper(1.5) - on_paper(0), abs=1e-5)
    within = (0, 0.5, 1, 1.5)
    each = [stats.spearmanr(within, [copiers.log_odds(c * g * DELTA, c) for g in within]).statistic for c in (1, -1)]
    assert (row["spearman"], row["spearman_curve"]) == pytest.approx((np.mean(each), 1))
    assert (row["draws"], row["flat"], row["n"]) == (4, 0, 20)
    assert row["random_range"] == pytest.approx(0, abs=1e-6)
    assert row["p_rank"] == pytest.approx(1 / 5)
    idle = one(table, measure="probability", group="idle")
    assert idle["flat"] == 20 and np.isnan(idle["spearman"]) and "no case changes" in idle["undefined"]


def noisy(slope: float, seed: int, clusters: int = 20) -> dict[str, Observations]:
    rng = np.random.default_rng(seed)
    own = rng.normal(slope, abs(slope) / 4, 2 * clusters)
    values = np.array(SCALES)[:, None] * own + rng.normal(0, 0.02, (len(SCALES), 2 * clusters))
    measure, of = Measure(name="log_odds", unit="nats", resolution=1e-5), np.arange(2 * clusters) // 2
    return {"log_odds": block(values, 1.0, of, measure, task="t", group="copier", scale=SCALES, draw=-1)}


def test_leverage_is_the_ratio_of_ranges_and_its_interval_holds_it() -> None:
    run, control = noisy(4.0, 0), noisy(1.0, 1)
    row = leverage(run, control, (0.0, 1.5)).frame.iloc[0]
    sides = [np.ptp(c["log_odds"].total[:4].mean(1)) for c in (run, control)]
    assert row["leverage"] == pytest.approx(sides[0] / sides[1])
    assert row["leverage_low"] < 4 < row["leverage_high"]
    assert row["leverage_high"] - row["leverage_low"] < 2
    same = leverage(run, run, (0.0, 1.5))
    assert same.frame["leverage"].iloc[0] == 1
    assert (0, "leverage_low") in same.missing


def test_range_intervals_resample_whole_clusters() -> None:
    row = ranges(noisy(2.0, 3), (0.0, 2.0), HEADS).frame.iloc[0]
    assert row["range_low"] < min(4, row["range"]) <= max(4, row["range"]) < row["range_high"]
    few = ranges(noisy(2.0, 3, clusters=5), (0.0, 2.0), HEADS)
    assert "fewer than 8" in few.missing[0, "range_low"]


def test_a_control_that_does_not_move_has_no_leverage(found: Result) -> None:
    table = leverage(found.blocks, found.blocks, (0.0, 1.5))
    for row, group in enumerate(table.frame["group"]):
        assert ("does not change" in table.missing.get((row, "leverage"), "")) == (group == "idle")


def test_half_the_copying_is_less_leverage(found: Result) -> None:
    beside = compare(found, planted(delta=0.5)).table("leverage")
    row = one(beside, measure="log_odds", group=GROUPS[0].name)
    expected = (on_paper(1.5) - on_paper(0)) / (on_paper(1.5, 0.5) - on_paper(0, 0.5))
    assert row["leverage"] == pytest.approx(expected, abs=1e-4)
    assert row["leverage"] > 1
    other = {}
    for name, own in found.blocks.items():  # only the first case is the same
        renamed = [f"{unit}{'x' * (i > 0)}" for i, unit in enumerate(own.units["unit"])]
        other[name] = replace(own, units=own.units.assign(unit=renamed))
    with pytest.raises(InputError, match="fewer than two cases"):
        leverage(found.blocks, other, (0.0, 1.5))


def test_the_loss_is_per_token_as_that_of_ablate(tmp_path: Path) -> None:
    model, text = load("lfa"), tmp_path / "t.txt"
    text.write_text("\n<|endoftext|>\n".join("Leo saw the dog. " * k for k in range(1, 10)))
    documents = Documents(str(text))
    ablated = Ablate(heads=("L0.H0",), draws=0).measure(model, documents).table().frame.iloc[0]
    result = SteerHeads(groups=("L0.H0",), scales=(0.0, 1.0), measures=("loss",), draws=2).measure(model, documents)
    levels = result.table("loss").frame.set_index("scale")
    assert levels["level"][1.0] == pytest.approx(ablated["baseline"], abs=1e-6)
    assert levels["change"][0.0] == pytest.approx(ablated["delta"], abs=1e-6) and levels["n"][0.0] == 9
    curve = result.table("curves").frame.iloc[0]
    assert curve["range"] == pytest.approx(abs(ablated["delta"]), abs=1e-6) and curve["random_range"] < 1


def test_spearman_is_scipys_with_ties() -> None:
    scales, values = np.array([0.0, 1.0, 2.0, 3.0]), np.array([[1.0, 4, 2], [1, 3, 2], [3, 2, 2], [2, 1, 2]])
    found = spearman(scales, values)
    for i in (0, 1):
        assert found[i] == pytest.approx(stats.spearmanr(scales, values[:, i]).statistic)
    assert math.isnan(found[2])


@pytest.mark.parametrize(
    ("scales", "within", "message"), [((1.0,), (0.0, 1.5), "besides 1"), ((2.0, 3.0), (0.0, 0.5), "fewer than two")]
)
def test_scales_are_checked(scales: tuple[float, ...], within: tuple[float, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SteerHeads(scales=scales, within=within)
    assert SteerHeads(scales=(2.0, 0.0, 0.5), within=(0.0, 2.0)).chosen == (0.0, 0.5, 1.0, 2.0)
