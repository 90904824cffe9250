"""Rows by category and the best head of each, on planted heads: what a pooled row hides."""

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope import Result
from streamscope.instruments.observations import Measure
from streamscope.instruments.prompts.alignment import given_prompts
from streamscope.instruments.stats.held_out import CHOSEN, SIGNED, held_out
from streamscope.probes import Coherence, Coreference, Pds, Sps
from streamscope.probes.probe import measure
from streamscope.probes.roles import RoleTable, best_heads, groups_of
from tests.probes import planted

HEADED = (Pds(), Coreference(), Sps())
CATEGORIES = ["all", "gender", "things", "agent-patient", "tool-container"]


def suite() -> Any:
    """Of 22 pairs 14 mean the tool and 8 the container, in two categories; the semantic head attends to tools alone."""
    tools = planted.suite(22)
    prompts = []
    for p in tools.prompts:
        if int(p.pair[1:]) % 11 < 7:  # type: ignore[index]
            prompts.append(replace(p, category="things"))
            continue
        roles = {**p.roles, "target": p.roles["distractor"], "distractor": p.roles["target"]}
        order = "target_last" if p.order == "target_first" else "target_first"
        continuations = {"coherent": p.incoherent, "incoherent": p.coherent}
        prompts.append(replace(p, category="gender", relation=None, roles=roles, order=order, **continuations))
    return replace(tools, prompts=tuple(prompts))


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    net = planted.model()
    data = given_prompts(suite(), net)
    return {type(how).__name__: how.measure(net, data) for how in (*HEADED, Coherence())}


def test_groups_are_categories_and_relations_that_say_something_new() -> None:
    cases = pd.DataFrame({"category": ["a", "a", "b", "b", "b"], "relation": ["x", "x", "y", "", "a"]})
    assert groups_of(cases) == {
        "all": ("", ""), "a": ("category", "a"), "b": ("category", "b"), "a (relation)": ("relation", "a"),
        "y": ("relation", "y"),
    }  # fmt: skip
    assert list(groups_of(cases.assign(category="c", relation=""))) == ["all"]


def test_heads_of_a_category_are_those_of_its_prompts_alone(results: dict[str, Result]) -> None:
    """Estimates, intervals and clusters equal a measurement of the category's prompts; `all` equals the pooled rows."""
    net, whole = planted.model(), suite()
    for how in HEADED:
        table = results[type(how).__name__].table("categories")
        assert table.frame["category"].unique().tolist() == CATEGORIES
        for name in ("all", "gender", "things"):
            prompts = tuple(p for p in whole.prompts if name in ("all", p.category))
            alone = how.measure(net, given_prompts(replace(whole, prompts=prompts), net)).table("heads").frame
            rows = table.frame[table.frame["category"] == name]
            rows, alone = (t.sort_values(["layer", "index"], ignore_index=True) for t in (rows, alone))
            shared = [c for c in rows if c in alone and not c.endswith("p_holm")]
            pd.testing.assert_frame_equal(rows[shared], alone[shared], check_exact=False, atol=1e-12)


def test_the_head_of_one_category_is_found_where_the_pooled_one_is_not(results: dict[str, Result]) -> None:
    rows = results["Coreference"].table("categories").frame.set_index(["category", "head"])
    assert rows.loc[("things", "L0.H1"), ["top1", "stable"]].tolist() == [1.0, 1.0]
    assert rows.loc[("gender", "L0.H1"), ["top1", "stable"]].tolist() == [0.0, 0.0]
    assert rows.loc[("all", "L0.H1"), "top1"] == pytest.approx(14 / 22)
    assert rows.loc[("gender", "L0.H0"), ["chance", "recency"]].tolist() == [0.5, 0.5]
    best = results["Coreference"].table("best").frame.set_index("category")
    inflation = {name: results[name].blocks["best"].measure.inflation for name in ("Pds", "Sps", "Coreference")}
    assert inflation == {"Pds": SIGNED, "Sps": CHOSEN, "Coreference": CHOSEN}
    assert best.loc["things", ["heads", "best", "lead"]].tolist() == ["L0.H1 / L0.H1", 1.0, 0.5]
    assert best.loc["gender", "best"] == 0.5 and best.loc["gender", "n"] == 16
    net = planted.model()
    pooled = held_out(measure(net, Coreference(), suite())).query("halves == 'both' and rule == 'recency'").iloc[0]
    of_all = best.loc["all", ["heads", "best", "recency", "n"]].tolist()
    assert of_all == pooled[["head", "top1", "rule_share", "n"]].tolist()
    sps = results["Sps"].table("best").frame.set_index("category")
    assert sps.loc["things", ["heads", "best"]].tolist() == ["L0.H1 / L0.H1", pytest.approx(1.0)]
    whole = results["Sps"].table("all-categories").frame.set_index("category")["sps"]
    assert whole["things"] == pytest.approx(fmean(planted.SPS)) == pytest.approx(-whole["gender"])
    log_odds = results["Coherence"].table().frame
    assert log_odds["category"].tolist() == CATEGORIES
    assert log_odds["n"].tolist() == [44, 16, 28, 14, 14]
    p, corrected = log_odds["log_odds_p"].to_numpy(), log_odds["log_odds_p_holm"].to_numpy()
    assert corrected[0] == p[0] and corrected[1:].min() == 4 * p[1:].min() < 1, "four categories are a family"


def test_a_head_is_scored_on_cases_that_did_not_choose_it() -> None:
    """Heads of noise in every category: held out their best has 0, though each best of all cases has far more."""
    rng, held, lucky = np.random.default_rng(3), [], []
    names = [str(i) for i in range(40)]
    cases = pd.DataFrame({"id": names, "cluster": names, "category": ["a"] * 26 + ["b"] * 14, "relation": ""})
    heads = pd.DataFrame({"head": [f"h{i}" for i in range(100)]})
    for _ in range(20):
        values = rng.normal(size=(40, 100))
        table = RoleTable(heads, cases, {"value": values.T})
        block = table.block(Measure(name="x", unit="u", resolution=1e-6), ["value"], names)
        found, _, _ = best_heads(table, block, groups_of(cases), "value")
        held.append(found.values)
        lucky.append([values[some].mean(0).max() for some in (slice(None), slice(26), slice(26, 40))])
    few = table.cases.assign(category=["c"] * 4 + ["d"] * 3 + ["e"] * 33)
    _, _, best = best_heads(replace(table, cases=few), block, groups_of(few), "value")
    assert best["c"] and not best["d"], "four cases are enough, three are not"
    assert (np.min(lucky, 0) > 0.2).all()
    assert (np.abs(np.mean(held, 0)) < 3 / np.sqrt(20 * np.array([40, 26, 14]))).all()
