"""Ablation effects on a head that copies capitals are those on paper; ratios and diagonality follow their formulas."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from streamscope.interventions.groups import Group, HeadFinder
from streamscope.interventions.model_ratios import compare_models, mean_ratio, ratio_of_changes, sd_ratio
from streamscope.interventions.task_effects import Effects, ablate_tasks
from streamscope.interventions.task_matrix import diagonality, own_groups
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.probes.prompts.tasks import token_task
from streamscope.probes.undefined import reasons
from tests.interventions import copiers
from tests.interventions.copiers import BACKUP, COPIER, DELTA

GROUPS = [Group("copier", (COPIER,)), Group("idle", (Head(0, 3),)), Group("both", (COPIER, BACKUP))]


@pytest.fixture(scope="module")
def effects() -> Effects:
    net = copiers.model()
    return ablate_tasks(net, [token_task(copiers.suite(), net.tokenizer)], GROUPS, draws=8, resamples=50)


def row(effects: Effects, measure: str, group: str) -> pd.Series:
    table = effects.table
    return table[(table["measure"] == measure) & (table["group"] == group)].iloc[0]


def test_the_copier_takes_with_it_what_stands_on_paper(effects: Effects) -> None:
    capital = np.array([relation == "capital" for relation in effects.cases["copies"]["relation"]])
    for measure, formula in (("probability", copiers.probability), ("log_odds", copiers.log_odds)):
        found = effects.changes[measure, "copies", "copier"]
        for c, at in ((1, capital), (-1, ~capital)):
            np.testing.assert_allclose(found[at], formula(0.0, c) - formula(c * DELTA, c), atol=1e-5)
        one = row(effects, measure, "copier")
        np.testing.assert_allclose(one["difference"], found.mean())
        np.testing.assert_allclose(one["sd"], found.std(ddof=1))
        assert (one["n"], one["clusters"]) == (20, 10)
        assert one["baseline"] == pytest.approx(np.mean([formula(DELTA, 1), formula(-DELTA, -1)]), abs=1e-5)


def test_an_idle_head_changes_nothing_and_says_so(effects: Effects) -> None:
    one = row(effects, "probability", "idle")
    assert one["difference"] == 0
    assert np.isnan(one["p"])
    assert "no case changed" in one["undefined"]


def test_random_heads_are_the_control_and_the_copier_ranks_above_them(effects: Effects) -> None:
    one = row(effects, "log_odds", "copier")
    assert one["draws"] == 8
    assert one["control"] == pytest.approx(0, abs=1e-6)  # no other single head does anything
    assert one["p_rank"] == pytest.approx(2 / 9)
    assert one["above"] == pytest.approx(one["difference"])


def test_rows_hold_every_case_with_its_cluster(effects: Effects) -> None:
    cases = effects.rows()
    assert len(cases) == 2 * 3 * 20
    assert set(cases["cluster"]) == set(copiers.WORDS)


def test_with_a_working_backup_the_same_ablation_costs_nothing() -> None:
    net = copiers.model(backup=1.0)
    found = ablate_tasks(net, [token_task(copiers.suite(), net.tokenizer)], GROUPS, draws=0, resamples=50)
    assert np.abs(found.changes["log_odds", "copies", "copier"]).max() < 1e-5
    both = found.changes["log_odds", "copies", "both"]
    np.testing.assert_allclose(
        sorted(set(both.round(4))), sorted(-copiers.log_odds(c * DELTA, c) for c in (1, -1)), atol=1e-4
    )
    assert "no random sets" in row(found, "log_odds", "copier")["undefined"]


def test_a_task_of_one_independent_case_is_refused() -> None:
    net = copiers.model()
    with pytest.raises(InputError, match="one independent case"):
        ablate_tasks(net, [token_task(copiers.suite(1), net.tokenizer)], GROUPS)


# ---- ratios ------------------------------------------------------------------------------------


def test_ratios_are_those_of_the_formula_and_their_intervals_hold_them() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, 120)
    x = 3 * y + rng.normal(0, 0.5, 120)
    found = ratio_of_changes(x, y, np.arange(120) // 2, resolution=1e-6, resamples=500)
    assert found["sd_ratio"] == pytest.approx(np.std(x, ddof=1) / np.std(y, ddof=1))
    assert found["mean_ratio"] == pytest.approx(x.mean() / y.mean())
    assert found["sd_ratio_low"] < found["sd_ratio"] < found["sd_ratio_high"] < 3.5
    assert found["mean_ratio_low"] < 3 < found["mean_ratio_high"]
    assert found["undefined"] == ""


def test_statistics_from_totals_agree_with_numpy() -> None:
    x, y = np.random.default_rng(1).normal(size=(2, 30))
    totals = [v.reshape(10, 3).sum(1) for v in (np.ones(30), x, x * x, y, y * y)]
    assert float(sd_ratio(*totals)) == pytest.approx(x.std() / y.std())
    assert float(mean_ratio(*totals)) == pytest.approx(x.mean() / y.mean())


@pytest.mark.parametrize(
    ("y", "clusters", "cell", "reason"),
    [
        (np.zeros(20), None, "sd_ratio", "no case of the control changes"),
        (np.zeros(20), None, "mean_ratio_low", "no case of the control changes"),
        (np.full(20, 0.5), None, "sd_ratio", "the same in every case"),
        (np.tile([1.0, -1.1], 10), None, "mean_ratio_low", "cannot be told from 0"),
        (np.linspace(1, 2, 20), np.arange(20) // 4, "sd_ratio_low", "fewer than 8"),
    ],
)
def test_undefined_ratios_say_why(y: np.ndarray, clusters: np.ndarray | None, cell: str, reason: str) -> None:
    found = ratio_of_changes(np.linspace(-1, 2, 20), y, clusters, resolution=1e-6, resamples=200)
    assert np.isnan(found[cell])
    assert reason in reasons(found["undefined"])[cell]


def test_models_are_compared_on_the_cases_both_can_score(effects: Effects) -> None:
    cases = {"copies": effects.cases["copies"].iloc[4:].reset_index(drop=True)}
    half = {key: x[4:] / 2 for key, x in effects.changes.items()}
    table = compare_models(effects, Effects(effects.table, half, cases), resamples=100)
    one = table[(table["measure"] == "log_odds") & (table["group"] == "copier")].iloc[0]
    assert one["n"] == 16
    assert (one["sd_ratio"], one["mean_ratio"]) == (pytest.approx(2), pytest.approx(2))
    none = {"copies": cases["copies"].assign(id="other")}
    with pytest.raises(InputError, match="fewer than two cases"):
        compare_models(effects, Effects(effects.table, half, none))


# ---- diagonality -------------------------------------------------------------------------------

OWN = {"capitalization": "entity", "gender": "anchor"}


def matrix(own: float, other: float, n: int = 12, noise: float = 0.1) -> dict[tuple[str, str], np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        (task, group): (own if OWN[task] == group else other) + rng.normal(0, noise, n)
        for task in OWN
        for group in ("entity", "anchor")
    }


def test_diagonality_is_own_minus_other_and_small_p_only_where_tasks_differ() -> None:
    clusters = {task: np.arange(12) for task in OWN}
    sparse, smeared = matrix(-1.0, -0.1), matrix(-0.5, -0.5)
    found = diagonality(sparse, clusters, OWN, permutations=499)
    e = {key: abs(x.mean()) for key, x in sparse.items()}
    own = (e["capitalization", "entity"] + e["gender", "anchor"]) / 2
    other = (e["capitalization", "anchor"] + e["gender", "entity"]) / 2
    assert found["diagonality"] == pytest.approx(own - other)
    assert found["p"] == pytest.approx(1 / 500) == found["p_min"]
    assert diagonality(smeared, clusters, OWN, permutations=499)["p"] > 0.05


def test_one_strong_group_is_no_diagonal() -> None:
    strong = {key: x * (10 if key[1] == "entity" else 1) for key, x in matrix(-0.5, -0.5, noise=0.0).items()}
    found = diagonality(strong, {task: np.arange(12) for task in OWN}, OWN, permutations=499)
    assert found["diagonality"] == pytest.approx(0)
    assert found["p"] > 0.3


def test_p_is_that_of_all_exchanges_of_groups_within_clusters() -> None:
    changes, clusters = matrix(-0.3, -0.1, n=8, noise=0.4), {task: np.repeat(np.arange(4), 2) for task in OWN}
    observed, null = None, []
    for swaps in product([False, True], repeat=8):  # a swap per task and cluster
        e = {}
        for t, task in enumerate(OWN):
            swap = np.repeat(np.array(swaps[4 * t : 4 * t + 4]), 2)
            a, b = changes[task, "entity"], changes[task, "anchor"]
            e[task] = (abs(np.where(swap, b, a).mean()), abs(np.where(swap, a, b).mean()))
        gap = (e["capitalization"][0] + e["gender"][1] - e["capitalization"][1] - e["gender"][0]) / 2
        observed = gap if observed is None else observed
        null.append(gap)
    exact = np.mean(np.array(null) >= observed - 1e-12)
    found = diagonality(changes, clusters, OWN, permutations=20_000)
    assert found["diagonality"] == pytest.approx(observed)
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
    assert "fewer than two groups" in one["undefined"]


# ---- groups ------------------------------------------------------------------------------------


def test_groups_by_name_by_grammar_and_their_errors() -> None:
    net = copiers.model()
    finder = HeadFinder(net, net.tokenizer)
    found = finder.groups(["L0.H1+L1.H0", "mine=L0.*", "L1.H2"])
    assert [(g.name, g.label) for g in found] == [
        ("L0H1+L1H0", "L0H1+L1H0"),
        ("mine", "L0H0+L0H1+L0H2+L0H3+L0H4"),
        ("L1H2", "L1H2"),
    ]
    for specs, message in (
        (["entity"], "entity is L5.H4\\+L5.H5 .* 2 layers of 5 heads; use found"),
        ([], "at least one group"),
        (["a=L0.H1", "a=L0.H2"], "two groups of heads are called 'a'"),
        (["L9.H0"], "layers go from 0 to 1"),
        (["top2:beauty"], "unknown head score"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            finder.groups(specs)
        assert "\n" not in str(caught.value)
