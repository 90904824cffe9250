"""Paper PLS over pairs of seeds: effects known on paper, verdicts that follow from planted numbers, the command."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import streamscope.papers.pls.measure
from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.tasks import token_task
from streamscope.instruments.table import read_about
from streamscope.interventions.hydra.measure import decompose, kept_share
from streamscope.interventions.selection import Group
from streamscope.models.make import build
from streamscope.models.train import main as train
from streamscope.papers.comparison.printed import Bound, Order, Ratio
from streamscope.papers.comparison.seeds import Rows, paired
from streamscope.papers.figures.pls import cases_of
from streamscope.papers.pls import Settings, main
from streamscope.papers.pls.claims import CLAIMS, factor, of_found_heads, printed
from streamscope.papers.pls.competence import competence, roleless, unable, unfit
from streamscope.papers.pls.depth import measure_depth, ranges, second_peak, with_second_peak
from streamscope.papers.pls.measure import Measured, _routing, measure_run
from streamscope.papers.pls.runs import open_runs
from streamscope.papers.pls.verdicts import claims, comparisons, pairs, presets, with_derived
from streamscope.probes.head_groups import HeadGroups
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import pack
from tests.conftest import ROOT
from tests.interventions import copiers
from tests.interventions.copiers import COPIER
from tests.papers.pages import changed, fewer_prompts, once_more, planted, refused, short_page, unexplained
from tests.tiny import arguments

SHORT = ["--steps", "2"]
PAPER = ROOT.parent / "shared" / "papers" / "003_3d7689fc2037bc32.txt"
NAN = float("nan")


# ---- what the paper prints ---------------------------------------------------------------------


def test_printed_numbers_come_from_the_ledger() -> None:
    assert factor("effect.capitalization.entity") == factor("effect.capitalization.found-entity") == 5.4
    one = printed("c2", "effect.capitalization.found-entity")
    assert one is not None and one.value == pytest.approx(-0.021)
    assert of_found_heads("diagonality.named") == "diagonality.found"
    assert of_found_heads("smear.entity") == "smear.found-entity"
    assert not {"named", "entity", "anchor"} & {part for c in CLAIMS for part in c.quantity.split(".")}


# ---- pairs of seeds ----------------------------------------------------------------------------


def test_pairs_are_compared_by_differences_and_by_factors() -> None:
    x, y = np.array([0.4, 0.9, 0.5]), np.array([-0.1, 0.2, 0.3])
    table = planted({("pls", "q"): list(x), ("c2", "q"): list(y)})
    one = paired(table, "q", "pls", "c2")
    test = stats.ttest_rel(x, y)
    low, high = test.confidence_interval(0.95)
    assert (one["mean"], one["ci_low"], one["ci_high"]) == pytest.approx(((x - y).mean(), low, high))
    assert one["p"] == pytest.approx(test.pvalue) and one["n"] == 3
    ratio = paired(table, "q", "pls", "c2", ratio=True)
    logs = np.log(np.abs(x / y))
    test = stats.ttest_1samp(logs, 0)
    assert ratio["mean"] == pytest.approx(np.exp(logs.mean()))
    assert ratio["ci_high"] == pytest.approx(np.exp(test.confidence_interval(0.95)[1]))
    assert ratio["p"] == pytest.approx(test.pvalue)


def test_a_seed_without_a_partner_a_value_or_a_size_is_left_out_and_said() -> None:
    table = planted({("pls", "q"): [0.4, 0.9, 0.5, 0.6], ("c2", "q"): [0.1, NAN, 0.0]})
    one = paired(table, "q", "pls", "c2", ratio=True)
    assert (one["n"], one["mean"], one["left_out"]) == (1, pytest.approx(4.0), "seed 1, seed 2, seed 3")
    assert one["why"]["ci_low"] == "one seed" and one["ci_low"] != one["ci_low"]
    both = paired(table, "q", "pls", "c2")
    assert (both["n"], both["mean"]) == (2, pytest.approx(0.4))
    lost = paired(planted({("pls", "q"): [NAN], ("c2", "q"): [1.0]}), "q", "pls", "c2")
    assert lost["why"]["mean"] == "no head" and lost["n"] == 0
    zero = paired(planted({("pls", "q"): [1.0], ("c2", "q"): [0.0]}), "q", "pls", "c2", ratio=True)
    assert "not 0" in zero["why"]["mean"]


def test_sizes_that_rounding_makes_have_no_factor() -> None:
    tiny = planted({("pls", "effect.winograd.found-entity"): [-2e-8, 3e-8, -4e-8, 0.2, 0.3, -0.2],
                    ("c2", "effect.winograd.found-entity"): [1e-9, -1e-9, 2e-9, 0.1, 0.1, 0.1]})  # fmt: skip
    row = comparisons(tiny).set_index("quantity").loc["effect.winograd.found-entity"]
    assert (row["n"], row["left_out"], row["alike"]) == (3, "seed 0, seed 1, seed 2", "2 of 3")
    noise = claims(tiny[tiny["seed"] < 3]).set_index(["quantity", "claim"])
    verdict = noise.loc[("effect.winograd.found-entity", "|pls| > |c2|"), "direction"]
    assert verdict == "undefined: no seed in which both are defined and larger than 1e-06"


def test_own_compares_one_group_on_its_task_with_the_same_group_on_others() -> None:
    """Entity heads that hit gender ten times harder than capitalization do not drive capitalization alone (§5.3)."""
    mean = {("capitalization", "entity"): -0.02, ("capitalization", "anchor"): -0.002, ("gender", "entity"): -0.2,
            ("gender", "anchor"): -0.25}  # fmt: skip
    changes = {(m, t, g): np.full(12, x) for (t, g), x in mean.items() for m in ("probability", "log_odds")}
    clusters = pd.Series([f"c{i}" for i in range(12)])
    rows = Rows()
    _routing(rows, changes, dict.fromkeys(("capitalization", "gender"), clusters), ["entity", "anchor"], 0)
    found = {r["quantity"]: r["value"] for r in rows.rows}
    assert found["own.capitalization.entity"] == pytest.approx(0.02 - 0.2)
    assert found["own.gender.anchor"] == pytest.approx(0.25 - 0.002)
    assert found["smear.entity"] == pytest.approx(0.18)


def test_verdicts_follow_from_planted_seeds() -> None:
    wide, narrow = [0.10, 0.12, 0.11], [0.02, 0.021, 0.022]
    table = planted({
        ("pls", "spread.winograd.found-entity"): wide, ("c2", "spread.winograd.found-entity"): narrow,
        ("pls", "effect.gender.found-anchor"): narrow, ("c2", "effect.gender.found-anchor"): wide,
        ("pls", "depth.early"): [0.26, 0.25, 0.28], ("c2", "depth.early"): [0.05, 0.06, 0.05],
        ("pls", "diagonality.found"): [0.1, -0.2, 0.3], ("c2", "diagonality.found"): [0.1, 0.1, 0.1],
    })  # fmt: skip
    judged = claims(table).set_index(["claim", "quantity"])
    spread = judged.loc["|pls| > |c2|", "spread.winograd.found-entity"]
    expected = float(np.exp(np.log(np.array(wide) / narrow).mean()))
    assert (spread["direction"], spread["difference"]) == ("holds", pytest.approx(expected))
    assert (spread["size"], spread["paper"]) == ("smaller than printed", pytest.approx(10))
    assert judged.loc["|pls| > |c2|", "effect.gender.found-anchor"]["direction"] == "opposite"
    assert judged.loc["pls below 0", "effect.gender.found-anchor"]["direction"] == "opposite"
    early = judged.loc["pls > c2", "depth.early"]
    assert (early["direction"], early["size"]) == ("holds", "printed value inside")
    assert judged.loc["pls above 0", "diagonality.found"]["direction"] == "not resolved at n=3 seeds"
    assert judged.loc["c2 > pls", "depth.late"]["direction"].startswith("undefined: not measured")
    assert len(judged) == len(CLAIMS) and {type(c) for c in CLAIMS} == {Ratio, Order, Bound}
    tested = judged["p"].dropna().sort_values()
    assert judged["p_holm"].min() == pytest.approx(len(tested) * tested.iloc[0])


def test_one_pair_has_no_interval_and_says_so() -> None:
    table = planted(
        {("pls", "range.capitalization.found-entity"): [0.4], ("c2", "range.capitalization.found-entity"): [0.1]}
    )
    row = claims(table).set_index("quantity").loc["range.capitalization.found-entity"]
    assert row["direction"] == "undefined: one pair of seeds" and row["difference"] == pytest.approx(4)


def test_intervals_of_shares_and_spreads_end_where_these_do() -> None:
    table = planted(
        {("pls", "spread.t.g"): [0.1, 0.9], ("pls", "depth.early"): [0.1, 0.9], ("c2", "spread.t.g"): [1.0]}
    )
    table.loc[table["quantity"] == "depth.early", "unit"] = "share of tokens"
    rows = presets(table).set_index(["quantity", "preset"])
    assert tuple(rows.loc[("depth.early", "pls"), ["ci_low", "ci_high"]]) == (0, 1)
    assert rows.loc[("spread.t.g", "pls"), "ci_low"] == 0 and rows.loc[("spread.t.g", "pls"), "ci_high"] > 1
    assert np.isnan(rows.loc[("spread.t.g", "c2"), "ci_low"])


# ---- what can be judged ------------------------------------------------------------------------


def of_models(probability: dict[str, list[float]], log_odds: dict[str, list[float]]) -> pd.DataFrame:
    """`baselines` of both models alike: task -> a value per seed."""
    return pd.DataFrame(
        {"preset": preset, "seed": seed, "task": task, "probability": p, "log_odds": odds, "right": NAN}
        for preset in ("pls", "c2")
        for task in probability
        for seed, (p, odds) in enumerate(zip(probability[task], log_odds[task], strict=True))
    )


FLOOR = of_models(
    {"capitalization": [0.0036, 0.0020, 0.0024], "gender": [0.19, 0.23, 0.24], "winograd": [0.016, 0.011, 0.020]},
    {"capitalization": [3.0, 2.4, 2.6], "gender": [0.45, 0.61, 0.77], "winograd": [0.0035, 0.0197, 0.0106]},
)
"""Numbers like those of the published runs: a rare answer, a task that is done, chance."""
ROLES = pd.DataFrame(
    {"preset": preset, "seed": seed, "group": group, "above_shuffled": True}
    for preset in ("pls", "c2") for seed in range(3) for group in ("entity", "anchor") for _ in range(2)
)  # fmt: skip
"""Every model has the heads that attention finds."""


def test_claims_about_tasks_that_no_model_can_do_are_no_evidence() -> None:
    """Effects that would be sure, of models at a floor: only those of gender, and log-odds of capitalization, count."""
    sure = {"pls": [-0.30, -0.31, -0.32], "c2": [-0.010, -0.011, -0.012]}
    names = {c.quantity for c in CLAIMS if not c.quantity.startswith("depth")}
    table = planted({(preset, name): sure[preset] for preset in sure for name in names})
    judged = claims(table, unfit=unfit(table, competence(FLOOR), ROLES)).set_index(["quantity", "claim"])["direction"]
    why = judged.groupby("quantity").first()
    rare = "the model cannot do the task: capitalization: P(answer) 0.27 % of pls, under 1 %"
    assert judged["effect.capitalization.found-entity", "pls below 0"] == rare
    chance = "the model cannot do the task: winograd: log-odds +0.011 (-0.009 … +0.031) of pls, not above 0"
    assert judged["effect.winograd.found-entity", "pls above 0"] == chance
    assert judged["effect.winograd.found-entity", "|pls| > |c2|"].count("not above 0") == 2, "both models are at chance"
    assert (
        judged["effect.gender.found-anchor", "pls below 0"]
        == judged["effect.gender.found-anchor", "|pls| > |c2|"]
        == "holds"
    )
    assert (
        why["kept.winograd.found-entity"].startswith("the model cannot")
        and why["kept.gender.found-anchor"] == "opposite"
    )
    assert why["kept.capitalization.found-entity"] == "opposite", "log-odds are above chance, P(answer) is small"
    for name in (
        "own.gender.found-anchor",
        "own.capitalization.found-entity",
        "smear.found-entity",
        "diagonality.found",
    ):
        assert why[name].startswith("the model cannot do the task: capitalization"), name
    able = FLOOR.assign(
        probability=0.2, log_odds=FLOOR["log_odds"].where(FLOOR["task"] != "winograd", [1.0, 1.1, 1.2] * 6)
    )
    again = claims(table, unfit=unfit(table, competence(able), ROLES)).set_index(["quantity", "claim"])["direction"]
    assert not again.str.startswith("the model cannot").any()


def test_one_seed_has_no_interval_and_its_own_side_says_whether_it_is_chance() -> None:
    one = competence(of_models({"a": [0.5], "b": [0.5], "c": [0.0]}, {"a": [0.1], "b": [-0.1], "c": [1.0]}))
    found = one.set_index(["preset", "task"])["cannot"]["pls"]
    assert found["a"] == "" and found["b"] == "log-odds -0.100 of pls, not above 0"
    assert found["c"] == "P(answer) 0 % of pls, under 1 %"


def test_what_was_not_measured_is_no_evidence_that_a_model_does_a_task() -> None:
    one = competence(of_models({"a": [0.5, 0.5], "b": [NAN, NAN]}, {"a": [NAN, NAN], "b": [1.0, 1.1]}))
    found = one.set_index(["preset", "task"])[["cannot_log_odds", "cannot"]].loc["pls"]
    assert tuple(found.loc["a"]) == ("log-odds of pls not measured",) * 2
    assert tuple(found.loc["b"]) == ("", "P(answer) of pls not measured")


def test_a_curve_that_spans_nothing_is_not_monotonic_evidence() -> None:
    able = competence(FLOOR.assign(probability=0.2))
    for span, verdict in (
        (0.00016, "negligible: the curve spans only 0.016 points of P(answer)"),
        (0.16, "holds: the same"),
    ):
        table = planted({
            ("pls", "monotonicity.capitalization.found-entity"): [1.0, 1.0, 1.0],
            ("pls", "range.capitalization.found-entity"): [span, span, span],
        })  # fmt: skip
        found = claims(table, unfit=unfit(table, able, ROLES)).set_index("quantity")["direction"]
        assert found["monotonicity.capitalization.found-entity"].startswith(verdict)


def test_found_heads_are_judged_where_every_run_has_them_above_shuffled_roles() -> None:
    table = planted(
        {("pls", "effect.gender.found-anchor"): [-0.1, -0.11, -0.12], ("c2", "effect.gender.found-anchor"): [0.1] * 3}
    )

    def verdict(roles: pd.DataFrame | None) -> str:
        found = claims(table, unfit=unfit(table, competence(FLOOR), roles))
        return str(found.set_index(["quantity", "claim"])["direction"]["effect.gender.found-anchor", "pls below 0"])

    assert verdict(None) == "withdrawn: these found heads were not held against shuffled roles"
    assert verdict(ROLES) == "holds"
    entity = (ROLES["group"] == "entity") & (ROLES["seed"] == 0)
    assert verdict(ROLES.assign(above_shuffled=~entity)) == "holds", "the claim is about anchor heads"
    one = (ROLES["preset"] == "pls") & (ROLES["group"] == "anchor") & (ROLES["seed"] == 2) & (ROLES.index % 2 == 0)
    lost = verdict(ROLES.assign(above_shuffled=~one))
    assert lost == "no such head: anchor heads of pls are not above shuffled roles in 1 of 3 runs"
    mine = ROLES["preset"] == "pls"
    for gone in (mine & (ROLES["seed"] == 2), mine, ROLES["group"] == "anchor"):  # a run, all of them, a group
        assert verdict(ROLES[~gone]) == verdict(None), "what was not held against shuffled roles has none"


def test_a_number_of_found_heads_needs_the_heads_and_one_of_all_tasks_needs_them_all() -> None:
    quantities = planted(
        {("pls", "effect.gender.found-anchor"): [-0.1] * 3, ("pls", "largest.capitalization"): [0.1] * 3}
    )
    for group, lacking in (("anchor", ["effect.gender.found-anchor", "largest.capitalization"]),
                           ("entity", ["largest.capitalization"])):  # fmt: skip
        roles = ROLES.assign(above_shuffled=ROLES["group"] != group)
        found = [q for q in quantities["quantity"].unique() if roleless(q, ("pls",), quantities, roles)]
        assert found == lacking
    assert roleless("effect.gender.anchor", ("pls",), quantities, None) == ""


def test_claims_that_cannot_be_judged_are_no_tests_of_the_family() -> None:
    table = planted({
        ("pls", "effect.gender.found-anchor"): [-0.1, -0.11, -0.12],
        ("c2", "effect.gender.found-anchor"): [-0.01, -0.02, -0.015],
        ("pls", "effect.winograd.found-entity"): [0.1, 0.11, 0.12],
        ("c2", "effect.winograd.found-entity"): [0.01, 0.02, 0.015],
    })  # fmt: skip
    judged = claims(table, unfit=unfit(table, competence(FLOOR), ROLES))
    tests = judged["p"].dropna()
    assert len(tests) == 2 and judged["p_holm"].min() == pytest.approx(2 * tests.min())


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.30, 0.10, 0.05, 0.05, 0.10, 0.0, 0.40], 0.30 - 0.05),  # two peaks, the early one lower
        ([0.26, 0.05, 0.20, 0.12, 0.11, 0.0, 0.26], 0.26 - 0.11),  # as the paper draws PLS
        ([0.50, 0.20, 0.12, 0.08, 0.06, 0.0, 0.04], 0.04 - 0.06),  # falls all the way
        ([0.02, 0.03, 0.20, 0.30, 0.20, 0.0, 0.25], 0.03 - 0.20),  # one peak in the middle, no early one
        ([0.10, 0.00, 0.00, 0.10, 0.20, 0.0, 0.60], 0.10 - 0.00),
    ],
)
def test_a_second_peak_stands_above_the_valley(shares: list[float], expected: float) -> None:
    """k* = L−1 never occurs, by the rule, and is no valley."""
    found, why = second_peak(dict(enumerate(shares)), 6)
    assert found == pytest.approx(expected) and why == ""
    table = pd.DataFrame({"preset": "pls", "seed": 0, "depth": range(7), "share": shares, "n": 100})
    both = with_second_peak(planted({("pls", "q"): [1.0]}), table)
    row = both.set_index("quantity").loc["depth.second_peak"]
    assert row["value"] == pytest.approx(expected) and row["unit"] == "share of tokens"
    assert with_second_peak(both, table) is both


def test_the_cases_of_a_task_that_both_can_do_are_drawn() -> None:
    """With the columns that measuring gives, and with those of earlier tables."""
    cases = pd.DataFrame({
        "preset": ["pls", "c2"], "seed": 0, "unit": ["one", "two"], "task": "capitalization", "group": "entity",
        "measure": "probability", "delta": [-0.1, 0.2],
    })  # fmt: skip
    for table in (cases, cases.rename(columns={"unit": "id"})):
        rows = cases_of(table, "capitalization", ["entity"])
        assert rows["value"].tolist() == [-10.0, 20.0] and rows["group"].tolist() == ["PLS", "C2"]
        assert rows["text"].tolist() == ["one, seed 0", "two, seed 0"]


def test_the_largest_effect_and_the_loss_follow_from_what_was_measured() -> None:
    own = "effect.capitalization.found-entity"
    effects = {
        ("pls", own): [-0.10, -0.02], ("pls", "effect.gender.found-anchor"): [-0.03, 0.05],
        ("pls", "effect.winograd.found-entity"): [0.04, 0.01], ("c2", own): [-0.1],
    }  # fmt: skip
    losses = pd.DataFrame({"preset": ["pls", "pls", "c2"], "seed": [0, 1, 0], "loss": [2.0, 2.1, 2.2]})
    found = with_derived(planted(effects), losses)
    value = found.set_index(["preset", "seed", "quantity"])["value"].sort_index()
    assert value["pls", 0, "largest.capitalization"] == pytest.approx(0.06)
    assert value["pls", 1, "largest.capitalization"] == pytest.approx(-0.03)
    assert np.isnan(value["c2", 0, "largest.capitalization"]) and value["c2", 0, "loss"] == 2.2
    again = with_derived(found, losses)
    assert len(again) == len(found)
    able = pd.DataFrame(
        {"preset": ["pls"] * 3, "task": ["capitalization", "gender", "winograd"], "cannot": ["", "x", ""]}
    )
    assert unable("largest.capitalization", ("pls",), able.assign(cannot_log_odds="")) == "gender: x"


def test_bimodality_is_judged_in_both_directions() -> None:
    two, one = [0.10, 0.11, 0.12], [-0.03, -0.02, -0.025]
    printed_so = claims(planted({("pls", "depth.second_peak"): two, ("c2", "depth.second_peak"): one}))
    other = claims(planted({("pls", "depth.second_peak"): one, ("c2", "depth.second_peak"): two}))
    for table, verdict in ((printed_so, "holds"), (other, "opposite")):
        found = table.set_index(["quantity", "claim"])["direction"]
        assert found["depth.second_peak", "pls above 0"] == found["depth.second_peak", "pls > c2"] == verdict
    assert second_peak({0: 0.5, 1: 0.0, 2: 0.5}, 2)[1].startswith("no layer between")


# ---- effects known on paper --------------------------------------------------------------------


def test_kept_is_the_slope_of_total_on_direct() -> None:
    """A copier without a backup, and one whose backup restores all: on paper nothing of the effect is left."""
    values = []
    for backup in (0.0, 1.0):
        net = copiers.model(backup)
        task = token_task(copiers.suite(), net.tokenizer)
        (one,) = decompose(net, task, [Group("copier", (COPIER,))])
        slope = np.linalg.lstsq(one.direct[:, None], one.total, rcond=None)[0][0]
        assert kept_share(one.direct, one.total) == pytest.approx(slope)
        values.append(slope)
    assert values[0] > 0.9 and values[1] == pytest.approx(0, abs=1e-4)


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Measured]:
    """`measure_run` of a strong copier in place of PLS and of a weak one in place of C2; one seed."""
    folder = tmp_path_factory.mktemp("copiers")
    suite, text = folder / "copies.jsonl", folder / "text.txt"
    suite.write_text("\n".join(json.dumps(asdict(p)) for p in copiers.suite().prompts))
    text.write_text("\n<|endoftext|>\n".join(p.text for p in copiers.suite().prompts))
    found = {}
    for preset, delta in (("pls", 2.0), ("c2", 0.5)):
        net = copiers.model(delta=delta)
        shards = pack(open_corpus(str(text)), net.tokenizer)
        settings = Settings(tasks=(str(suite),), groups=("copier=L0.H1", "idle=L0.H3"), tokens=50, draws=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streamscope.papers.pls.measure, "STEERED", ("copies",))
            found[preset, 0] = measure_run(net, shards, settings, lambda label: iter)
    return found


@pytest.mark.slow
def test_the_numbers_of_a_run_are_those_on_paper(hand_made: dict[tuple[str, int], Measured]) -> None:
    for preset, delta in (("pls", 2.0), ("c2", 0.5)):
        table = hand_made[preset, 0].tables["runs"].set_index("quantity")["value"]
        for end, formula in (("", copiers.probability), ("_odds", copiers.log_odds)):
            at = {
                g: np.repeat([formula(c * g * delta, c) for c in (1, -1)], 10)
                for g in streamscope.papers.pls.measure.SCALES
            }
            changes = at[0.0] - at[1.0]
            assert table[f"effect{end}.copies.copier"] == pytest.approx(changes.mean(), abs=1e-5)
            assert table[f"spread{end}.copies.copier"] == pytest.approx(changes.std(ddof=1), abs=1e-5)
            means = [x.mean() for x in at.values()]
            assert table[f"range{end}.copies.copier"] == pytest.approx(max(means) - min(means), abs=1e-5)
            assert table[f"monotonicity{end}.copies.copier"] == pytest.approx(1)
            assert table[f"rising{end}.copies.copier"] == pytest.approx(1)
        assert table["effect.copies.idle"] == 0 and table["range.copies.idle"] == 0
        assert np.isnan(table["monotonicity.copies.idle"]) and np.isnan(table["kept.copies.idle"])


def test_a_pair_is_compared_on_its_cases(hand_made: dict[tuple[str, int], Measured]) -> None:
    of = {preset: one.tables["runs"].set_index("quantity")["value"] for (preset, _), one in hand_made.items()}
    tables = pairs(hand_made)
    row = tables["ratios"].set_index(["measure", "group"]).loc[("probability", "copier")]
    for name, kind in (("sd_ratio", "spread"), ("mean_ratio", "effect")):
        quantity = f"{kind}.copies.copier"
        assert row[name] == pytest.approx(of["pls"][quantity] / of["c2"][quantity])
    lever = tables["leverage"].set_index(["measure", "group"]).loc[("probability", "copier")]
    quantity = "range.copies.copier"
    assert lever["leverage"] == pytest.approx(of["pls"][quantity] / of["c2"][quantity]) and lever["leverage"] > 1.5
    both = pd.concat([m.tables["runs"].assign(preset=p, seed=s) for (p, s), m in hand_made.items()])
    compared = comparisons(both).set_index("quantity")
    assert compared.loc[quantity, "value"] == pytest.approx(lever["leverage"])
    assert compared.loc["kept.copies.copier", "kind"] == "difference"


def test_two_tasks_of_one_kind_are_refused(tiny_run: Path) -> None:
    from streamscope.models.checkpoint import load

    with pytest.raises(InputError, match="two of them are gender"):
        measure_run(load(tiny_run), None, Settings(tasks=("gender", "gender-16")), lambda label: iter)


# ---- depth -------------------------------------------------------------------------------------


def test_depth_is_that_of_a_naive_loop(tiny_run: Path) -> None:
    import torch

    from streamscope.models.checkpoint import load
    from streamscope.models.training.data import evaluation_shards

    net = load(tiny_run)
    shards = evaluation_shards(tiny_run, net._text(), None)
    rows = Rows()
    table = measure_depth(rows, net, shards, 60, lambda label: iter).set_index("depth")["share"]
    found, n = [], net.config.n_layers
    for document in range(shards.n_documents):
        ids = shards.document(document)[: net.config.n_ctx + 1].tolist()
        inputs = torch.tensor([ids[:-1]])
        with torch.no_grad():
            logits = net.layer_logits(inputs)
        best = [logits[0, :, layer].argmax(-1).tolist() for layer in range(n)]
        for t in range(len(ids) - 1):
            k = next(k for k in range(n) if all(best[j][t] == best[-1][t] for j in range(k, n)))
            found.append(n if k == n - 1 else k)
    found = found[:60]
    for k in range(n + 1):
        assert table[k] == pytest.approx(found.count(k) / 60)
    shares = {r["quantity"]: r["value"] for r in rows.rows}
    assert shares["depth.early"] + shares["depth.middle"] + shares["depth.late"] == pytest.approx(1)
    assert ranges(6) == {"early": [0, 1], "middle": [2, 3, 4], "late": [5, 6]}
    assert ranges(2) == {"early": [0], "middle": [1], "late": [2]}


# ---- the command on tiny runs ------------------------------------------------------------------


def test_the_two_of_a_seed_begin_alike() -> None:
    a, b = (build(preset, "tiny", seed=3).state_dict() for preset in ("pls", "c2"))
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny runs of six layers and six heads: a pair of seed 0, and a pls that calls itself seed 1."""
    folder = tmp_path_factory.mktemp("pls")
    shape = [word for pair in ("n_layers=6", "n_heads=6", "d_model=24", "n_ctx=160") for word in ("--set", pair)]
    for preset in ("pls", "c2"):
        train(arguments(corpus, folder / f"{preset}-0", *shape, "--seed", "0", *SHORT, preset=preset))
    shutil.copytree(folder / "pls-0", folder / "pls-1")
    changed("manifest.json", lambda m: m.update(seed=1))(folder / "pls-1")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def out(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "pls"
    options = ["--tasks", "capitalization-8", "gender-16", "--tokens", "300", "--draws", "2", "--static", "none"]
    pair = [str(runs[name]) for name in ("pls-0", "c2-0")]
    with pytest.MonkeyPatch.context() as patch:
        fewer_prompts(patch, 60)
        main([*pair, "--out", str(folder), *options, "--no-html", "--device", "cpu"])
    return folder


@pytest.mark.slow
def test_the_tables_are_those_of_the_runs(out: Path) -> None:
    assert "python -m models.train {arm}" in short_page(out)
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert set(tables) == {
        "runs", "presets", "comparisons", "claims", "effects", "cases", "curves", "hydra", "diagonality", "depth",
        "heads", "ratios", "leverage", "losses", "loss", "baselines", "competence", "roles",
    }  # fmt: skip
    base = tables["baselines"].set_index(["preset", "task"])
    assert base.loc[("pls", "gender"), "probability"] == pytest.approx(
        tables["effects"].query("preset == 'pls' and task == 'gender' and measure == 'probability'")["baseline"].iloc[0]
    )
    assert base["right"].between(0, 1).all() and len(tables["roles"]) == 2 * 6
    quantities = tables["runs"].set_index(["quantity", "preset", "seed"])["value"]
    effects = tables["effects"].set_index(["measure", "task", "group", "preset", "seed"])
    here = quantities["effect.gender.anchor", "pls", 0]
    assert here == effects.loc[("probability", "gender", "anchor", "pls", 0), "delta"]
    assert "undefined: one pair of seeds" in set(tables["claims"]["direction"])
    shares = tables["depth"].groupby(["preset", "seed"])["share"].sum()
    assert shares.to_numpy() == pytest.approx(np.ones(2))
    assert tables["claims"]["direction"].str.contains("not measured on pls").any()  # no winograd


@pytest.mark.slow
def test_found_heads_are_looked_for_in_all_layers(
    out: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads and roles are those of `probes.head_groups --layers all`, which for these models are not all in the last
    layer."""
    from streamscope.models.checkpoint import load

    fewer_prompts(monkeypatch, 60)  # as `out`
    groups, roles = (pd.read_parquet(out / f"{name}.parquet") for name in ("heads", "roles"))
    for preset in ("pls", "c2"):
        model = load(runs[f"{preset}-0"])
        found = HeadGroups(layers="all").measure(model).table("groups").frame.groupby("group", sort=False)["head"]
        mine = groups[(groups["preset"] == preset) & groups["group"].str.startswith("found-")]
        labels = dict(zip(mine["group"], mine["heads"], strict=True))
        assert {name: set(label.split("+")) for name, label in labels.items()} == {
            f"found-{name}": set(heads) for name, heads in found
        }
        heads = [head for label in labels.values() for head in label.split("+")]
        assert any(not head.startswith("L5") for head in heads) and len(heads) == 6
        assert set(roles.loc[roles["preset"] == preset, "head"]) == set(heads)
    assert read_about(out / "heads.parquet")["about"]["settings"]["layers"] == "all"


@pytest.mark.slow
def test_tables_judged_again_give_the_same_page_without_a_model(out: Path, tmp_path: Path) -> None:
    once_more(main, out, tmp_path)


def test_the_published_tables_judged_again_are_the_same(tmp_path: Path) -> None:
    folder = ROOT / "results" / "pls_tinystories"
    once_more(main, folder, tmp_path)
    claims = pd.read_parquet(folder / "claims.parquet")
    winograd = claims[claims["quantity"].str.contains(".winograd.", regex=False)]
    assert winograd["direction"].str.startswith(("the model cannot do the task", "withdrawn")).all() and len(winograd)
    assert claims.loc[claims["quantity"].str.contains(".found"), "direction"].str.startswith("withdrawn").sum() == 17
    able = pd.read_parquet(folder / "competence.parquet").set_index(["task", "preset"])["cannot"]
    assert (able["gender"] == "").all() and (able["winograd"] != "").all()


@pytest.mark.slow
def test_no_value_is_missing_without_a_reason(out: Path) -> None:
    assert unexplained(out) == {}


MIXED = {
    "data": (changed("manifest.json", lambda m: m["data"]["train"].update(corpus="f" * 64)), "training data is"),
    "steps": (changed("manifest.json", lambda m: m.update(step=24, steps=24)), "steps is 2 there, 24 here"),
    "seed": (changed("manifest.json", lambda m: m.update(seed=7)), "seed 7 of c2 has no partner"),
    "preset": (changed("manifest.json", lambda m: m.update(preset="lfa")), "is a run of lfa"),
    "unfinished": (changed("manifest.json", lambda m: m.pop("outcome")), "is not finished"),
    "shape": (changed("config.json", lambda c: c["model"].update(n_heads=4)), "n_heads is 6 there"),
    "gate": (
        changed("config.json", lambda c: c["model"]["attention"]["gate"].update(bias=False)),
        "attention.gate.bias is True there",
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_pairs_that_differ_in_more_than_the_supervision_are_refused(
    case: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    change, message = MIXED[case]
    other = tmp_path / "c2-0"
    shutil.copytree(runs["c2-0"], other)
    assert len(open_runs([str(runs["pls-0"]), str(other)])) == 2
    change(other)
    with pytest.raises(InputError, match=re.escape(message)):
        open_runs([str(runs["pls-0"]), str(other)])


def test_bad_arguments_are_told_in_one_line_and_exit_2(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pls, control = str(runs["pls-0"]), str(runs["c2-0"])
    (tmp_path / "file").write_text("")
    for argv, message in (
        ([], "give run folders"),
        ([pls], "no run of c2"),
        ([control], "no run of pls"),
        ([pls, str(runs["pls-1"]), control], "seed 1 of pls has no partner"),
        ([pls, pls, control], "are both pls, seed 0"),
        ([pls, control, "--tokens", "0"], "--tokens must be at least 1"),
        ([pls, "--tables", str(tmp_path)], "not both"),
        (["--tables", str(tmp_path)], "is no folder of a comparison"),
        ([pls, control, "--tasks", "spelling"], "spelling"),
        ([pls, control, "--out", str(tmp_path / "file")], "is a file"),
    ):
        assert message in refused(main, argv, monkeypatch, capsys)
