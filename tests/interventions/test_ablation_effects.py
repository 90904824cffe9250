"""Ablation effects on a head that copies capitals are those on paper; ratios and diagonality follow their formulas."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Tasks
from streamscope.instruments.prompts.tasks import OpenTasks, token_task
from streamscope.instruments.result import Result
from streamscope.interventions.ablation_effects import AblationEffects
from streamscope.interventions.ablation_effects.measure import (
    cases,
    changes,
    diagonality,
    own_groups,
    ratio_of_changes,
    ratio_table,
)
from streamscope.interventions.selection import HeadFinder
from streamscope.models import load
from tests.interventions import copiers
from tests.interventions.copiers import DELTA
from tests.tiny import refused

GROUPS = ("copier=L0.H1", "idle=L0.H3", "both=L0.H1+L1.H0")


def measured(n: int | None = None, draws: int = 0, **planted: float) -> Result:
    net = copiers.model(**planted)
    suite = copiers.suite() if n is None else copiers.suite(n)
    data = OpenTasks([token_task(suite, net.tokenizer)], net.tokenizer)
    return AblationEffects(groups=GROUPS, draws=draws, resamples=50).measure(net, data)


@pytest.fixture(scope="module")
def effects() -> Result:
    return measured(draws=8)


def row(effects: Result, measure: str, group: str) -> pd.Series:
    return effects.table(measure).frame.set_index("group").loc[group]


def test_the_copier_takes_with_it_what_stands_on_paper(effects: Result) -> None:
    for measure, formula in (("probability", copiers.probability), ("log_odds", copiers.log_odds)):
        block = effects.blocks[measure]
        capital = (cases(block, "copies")["relation"] == "capital").to_numpy()
        found, one = changes(block)["copies", "copier"], row(effects, measure, "copier")
        for c, at in ((1, capital), (-1, ~capital)):
            np.testing.assert_allclose(found[at], formula(0.0, c) - formula(c * DELTA, c), atol=1e-5)
        baseline = np.mean([formula(DELTA, 1), formula(-DELTA, -1)])
        expected = [found.mean(), found.std(ddof=1), baseline, 20, 10]
        assert one[["delta", "spread", "baseline", "n", "clusters"]].tolist() == pytest.approx(expected, abs=1e-5)


def test_an_idle_head_changes_nothing_and_says_so(effects: Result) -> None:
    table = effects.table()
    at = table.frame["group"].tolist().index("idle")
    assert table.frame["delta"][at] == 0
    assert table.missing[at, "delta_p"] == "the same in every independent case"
    assert "no case changed" in table.missing[at, "d"]


def test_random_heads_are_the_control_and_the_copier_ranks_above_them(effects: Result) -> None:
    one = row(effects, "log_odds", "copier")  # no other single head does anything
    expected = [8, 0, 2 / 9, one["delta"]]
    assert one[["draws", "control", "p_rank", "above"]].tolist() == pytest.approx(expected, abs=1e-6)


def test_controls_are_means_over_the_cases_of_a_task_on_a_trained_model() -> None:
    """Two tasks of unequally many cases, heads that all do something, and skewed changes."""
    how = AblationEffects(groups=("one=L5.H0", "two=L4.H1+L5.H2"), draws=6, resamples=20)
    result = how.measure(load("stories/lfa"), Tasks(("capitalization-8", "gender-16")))
    for measure, block in result.blocks.items():
        counts = set()
        for _, one in result.table(measure).frame.iterrows():
            own = block.cells[(block.cells["task"] == one["task"]) & (block.cells["group"] == one["group"])]
            x = block.total[own.index] - block.total[block.cell(task=one["task"], group="")]
            delta, *drawn = (row[np.isfinite(row)].mean() for row in x)
            counts.add(int(np.isfinite(x[0]).sum()))
            assert len(drawn) == 6 and np.std(drawn) > 1e-4
            assert (one["delta"], one["control"]) == pytest.approx((delta, np.mean(drawn)))
            assert one["control_sd"] == pytest.approx(np.std(drawn, ddof=1))
            beyond = min(np.sum(drawn >= delta), np.sum(drawn <= delta))
            assert one["p_rank"] == pytest.approx(min(1, 2 * (1 + beyond) / 7))
        assert len(counts) == 2


def test_with_a_working_backup_the_same_ablation_costs_nothing() -> None:
    found = changes(measured(backup=1.0).blocks["log_odds"])
    assert np.abs(found["copies", "copier"]).max() < 1e-5
    expected = sorted(-copiers.log_odds(c * DELTA, c) for c in (1, -1))
    np.testing.assert_allclose(sorted(set(found["copies", "both"].round(4))), expected, atol=1e-4)


def test_one_independent_case_is_refused() -> None:
    with pytest.raises(InputError, match="one independent case"):
        measured(1)


def test_ratios_are_those_of_the_formula_and_their_intervals_hold_them() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, 120)
    x = 3 * y + rng.normal(0, 0.5, 120)
    found, why = ratio_of_changes(x, y, np.arange(120) // 2, resolution=1e-6, resamples=500)
    assert found["sd_ratio"] == pytest.approx(np.std(x, ddof=1) / np.std(y, ddof=1))
    assert found["mean_ratio"] == pytest.approx(x.mean() / y.mean())
    assert found["sd_ratio_low"] < found["sd_ratio"] < found["sd_ratio_high"] < 3.5
    assert found["mean_ratio_low"] < 3 < found["mean_ratio_high"]
    assert not why


@pytest.mark.parametrize(
    ("y", "clusters", "cell", "reason"),
    [
        (np.zeros(20), None, "sd_ratio", "no case of the control changes"),
        (np.zeros(20), None, "mean_ratio_low", "no case of the control changes"),
        (np.full(20, 0.5), None, "sd_ratio", "the same in every case"),
        (np.tile([1.0, -1.1], 10), None, "mean_ratio_low", "not significantly different from 0"),
        (np.linspace(1, 2, 20), np.arange(20) // 4, "sd_ratio_low", "fewer than 8"),
    ],
)
def test_undefined_ratios_say_why(y: np.ndarray, clusters: np.ndarray | None, cell: str, reason: str) -> None:
    found, why = ratio_of_changes(np.linspace(-1, 2, 20), y, clusters, resolution=1e-6, resamples=200)
    assert np.isnan(found[cell])
    assert reason in why[cell]


def test_models_are_compared_on_the_cases_both_can_score(effects: Result) -> None:
    others = {name: block.at(np.arange(4, 20)) for name, block in effects.blocks.items()}
    half = {name: replace(block, total=block.total / 2) for name, block in others.items()}
    table = ratio_table(effects.blocks, half, resamples=100).frame.set_index(["measure", "group"])
    assert table.loc[("log_odds", "copier"), ["n", "sd_ratio", "mean_ratio"]].tolist() == pytest.approx([16, 2, 2])
    units = effects.blocks["log_odds"].units
    units = units.assign(unit=units["unit"].where(units.index == 0, "other " + units["unit"]))
    none = {name: replace(block, units=units) for name, block in effects.blocks.items()}
    with pytest.raises(InputError, match="fewer than two cases"):
        ratio_table(effects.blocks, none)


OWN = {"capitalization": "entity", "gender": "anchor"}


def matrix(own: float, other: float, n: int = 12, noise: float = 0.1) -> dict[tuple[str, str], np.ndarray]:
    rng, groups = np.random.default_rng(5), ("entity", "anchor")
    return {(t, g): (own if OWN[t] == g else other) + rng.normal(0, noise, n) for t in OWN for g in groups}


def test_diagonality_is_own_minus_other_and_small_p_only_where_tasks_differ() -> None:
    clusters = {task: np.arange(12) for task in OWN}
    sparse, smeared = matrix(-1.0, -0.1), matrix(-0.5, -0.5)
    strong = {key: x * (10 if key[1] == "entity" else 1) for key, x in matrix(-0.5, -0.5, noise=0.0).items()}
    found, blurred, one_group = (diagonality(x, clusters, OWN, permutations=499) for x in (sparse, smeared, strong))
    e = {key: abs(x.mean()) for key, x in sparse.items()}
    own = (e["capitalization", "entity"] + e["gender", "anchor"]) / 2
    other = (e["capitalization", "anchor"] + e["gender", "entity"]) / 2
    assert found["diagonality"] == pytest.approx(own - other)
    assert found["p"] == pytest.approx(1 / 500) == found["p_min"]
    assert blurred["p"] > 0.05
    assert one_group["diagonality"] == pytest.approx(0) and one_group["p"] > 0.3, "one strong group is no diagonal"


@pytest.mark.parametrize("n", [4, 2])
def test_p_is_that_of_all_exchanges_of_groups_within_clusters(n: int) -> None:
    """Of n clusters per task; with two, one of the sixteen exchanges is the observed one."""
    changes, clusters = matrix(-0.3, -0.1, n=8, noise=0.4), {task: np.repeat(np.arange(n), 8 // n) for task in OWN}
    null = []
    for swaps in product([False, True], repeat=2 * n):  # a swap per task and cluster; the first is none
        gap = 0.0
        for sign, task, swap in zip((1, -1), OWN, np.repeat(swaps, 8 // n).reshape(2, 8), strict=True):
            a, b = changes[task, "entity"], changes[task, "anchor"]
            gap += sign * (abs(np.where(swap, b, a).mean()) - abs(np.where(swap, a, b).mean())) / 2
        null.append(gap)
    exact = np.mean(np.array(null) >= null[0] - 1e-12)
    found = diagonality(changes, clusters, OWN, permutations=20_000)
    assert found["diagonality"] == pytest.approx(null[0])
    assert found["p"] == pytest.approx(exact, abs=0.015)
    assert 0.02 < exact < 0.98


def test_own_groups_are_those_of_the_paper_or_of_the_user() -> None:
    tasks, groups = ["capitalization-8", "gender", "winograd"], ["found-entity", "anchor", "x"]
    assert own_groups([], tasks, groups) == {"capitalization-8": "found-entity", "gender": "anchor"}
    assert own_groups(["winograd=x"], tasks, groups) == {"winograd": "x"}
    for pair, message in (("winograd", "TASK=GROUP"), ("winogrand=x", "did you mean winograd"), ("gender=y", "group")):
        with pytest.raises(InputError, match=message):
            own_groups([pair], tasks, groups)
    one = diagonality(matrix(1, 0), {t: np.arange(12) for t in OWN}, {"gender": "anchor"})
    assert np.isnan(one["diagonality"])


def test_groups_by_name_by_grammar_and_their_errors() -> None:
    net = copiers.model()
    finder = HeadFinder(net, net.tokenizer)
    assert {g.name: g.label for g in finder.groups(["L0.H1+L1.H0", "mine=L0.*", "L1.H2"])} == {
        "L0.H1+L1.H0": "L0.H1+L1.H0", "mine": "L0.H0+L0.H1+L0.H2+L0.H3+L0.H4", "L1.H2": "L1.H2",
    }  # fmt: skip
    for specs, message in (
        (["entity"], "entity is L5.H4\\+L5.H5 .* 2 layers of 5 heads; use found"),
        ([], "at least one group"),
        (["a=L0.H1", "a=L0.H2"], "two groups of heads are called 'a'"),
        (["L9.H0"], "this model has layers 0 to 1"),
        (["top2:beauty"], "unknown head score"),
    ):
        with refused(message):
            finder.groups(specs)
