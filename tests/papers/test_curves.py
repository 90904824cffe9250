"""Claims about whole curves: planted ones whose verdict is known, held against a plain reading seed by seed."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.papers.claims import HERE
from streamscope.papers.claims.judged import _word
from streamscope.papers.claims.ledger import read as ledger
from streamscope.papers.comparison.curves import (
    Reading,
    gaps,
    judged,
    last_until,
    loss_gaps,
    mean_over,
    points,
    token_gaps,
)
from streamscope.papers.hdpl.convergence import readings

STEPS = (100, 200, 300, 400, 500)
NOISE = ((0.0, 0.0), (0.011, -0.006), (-0.007, 0.012))
"""What the runs of seeds 0, 1, 2 of two arms have more than their arm."""


def planted(less: Callable[[int], float], more: Callable[[int], float], seeds: int = 3) -> pd.DataFrame:
    """Curves of hdpl and llama as functions of the step; 10 tokens a step."""
    rows = [
        {"preset": arm, "seed": seed, "step": step, "tokens": 10 * step, "loss": of(step) + noise * (1 + step / 5000)}
        for seed in range(seeds) for arm, of, noise in zip(("hdpl", "llama"), (less, more), NOISE[seed], strict=True)
        for step in STEPS
    ]  # fmt: skip
    return pd.DataFrame(rows)


def falling(step: int) -> float:
    return 4 * math.exp(-step / 200) + 2


def words(found: pd.DataFrame, warmup: int = 100) -> pd.Series:
    """Verdict of every claim of HDPL about curves, by its row of the ledger."""
    run: Any = SimpleNamespace(manifest={"steps": STEPS[-1]}, warmup=warmup)
    return judged(readings(found, [run])).set_index("id")["direction"]


def one(frame: pd.DataFrame, smallest: float = 0.01) -> pd.Series:
    return judged([Reading("hdpl-f2-consistently", "a < b", "q", "nats/token", "", frame, "", smallest)]).iloc[0]


def test_curves_that_never_cross() -> None:
    found = planted(lambda step: falling(step) - 0.3, falling)
    said = words(found)
    assert said["hdpl-f2-consistently"] == said["hdpl-f2-order-10000"] == said["hdpl-s1-convergence"] == "holds"
    assert said["hdpl-f2-sample-efficiency"] == "holds" and said["hdpl-t1-min-is-final"].startswith("holds: the same")
    turned = words(planted(falling, lambda step: falling(step) - 0.3))
    same = ["hdpl-f2-consistently", "hdpl-f2-order-10000", "hdpl-s1-convergence", "hdpl-f2-sample-efficiency"]
    assert set(turned[same]) == {"opposite"}
    assert (gaps(found, [("hdpl", "llama")])["difference"] > 0).sum() == 5 and gaps(found, []).empty


def test_curves_that_cross_once() -> None:
    """hdpl is lower by .3 at first and higher by .18 at the end: so it is at half of the steps, and not always."""
    found = planted(lambda step: falling(step) - 0.3 + 0.0012 * (step - 100), falling)
    said = words(found)
    assert said["hdpl-f2-consistently"] == said["hdpl-f2-sample-efficiency"] == "opposite"
    assert said["hdpl-f2-order-10000"] == "holds" and said["hdpl-s1-convergence"].startswith("not resolved")
    row = one(loss_gaps(found, "hdpl", "llama", 100))
    plain = found.pivot(index="seed", columns=["preset", "step"], values="loss")
    test = stats.ttest_rel(plain["llama"][500], plain["hdpl"][500])
    assert row["at"] == "500" and row["evaluations"] == 4 and row["difference"] == pytest.approx(-0.18, abs=0.01)
    assert row["p"] == pytest.approx(4 * test.pvalue), "picked out of four"
    assert (row["ci_low"], row["ci_high"]) == pytest.approx(tuple(test.confidence_interval()))
    table = gaps(found, [("hdpl", "llama")])
    assert table.loc[table["difference"] > 0, "step"].tolist() == [100, 200, 300]


def test_what_lies_before_the_end_of_warm_up_does_not_count() -> None:
    found = planted(lambda step: falling(step) + (0.4 if step <= 200 else -0.3), falling)
    assert words(found, warmup=100)["hdpl-f2-consistently"] == "opposite"
    assert words(found, warmup=200)["hdpl-f2-consistently"] == "holds"


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_verdict(seeds: int) -> None:
    found = planted(lambda step: falling(step) - 0.3, falling, seeds)
    said = words(found)
    assert set(said) == {"undefined: fewer than three seeds"}
    assert {_word(text, "") for text in said} == {"inconclusive"}
    row = one(loss_gaps(found, "hdpl", "llama"))
    assert row["difference"] > 0.2 and math.isnan(row["ci_low"]) and math.isnan(row["p"])
    alone = found[(found["preset"] == "hdpl") | (found["seed"] == 5)]
    assert one(loss_gaps(alone, "hdpl", "llama"))["direction"] == "undefined: fewer than three seeds"
    assert gaps(alone, [("hdpl", "llama")]).empty


def test_one_evaluation_that_holds_zero_is_enough_against_always() -> None:
    rng = np.array([[0.3, 0.02, 0.3], [0.31, -0.04, 0.29], [0.29, 0.03, 0.32]])
    row = one(pd.DataFrame(rng, columns=STEPS[:3]))
    assert row["at"] == "200" and row["direction"].startswith("not resolved")
    flat = one(pd.DataFrame(np.full((3, 2), 0.001), columns=STEPS[:2]))
    assert flat["direction"].startswith("negligible")
    assert one(pd.DataFrame(np.full((3, 2), -0.2), columns=STEPS[:2]))["direction"].startswith("opposite: the same")
    assert one(pd.DataFrame(index=range(3)))["direction"] == "undefined: no evaluation there in all seeds"
    assert _word("undefined: no evaluation there in all seeds", "") == "not measured yet"


@pytest.mark.parametrize("large", [1.0, -1.0])
def test_a_gap_is_negligible_only_where_it_is_at_every_evaluation(large: float) -> None:
    """The evaluation with the lowest t has a gap of .006, and others one of a nat: that is not "no effect"."""
    seeds = np.array([-1.5, -0.5, 0.5, 1.5])
    small = 0.006 + 0.0012 * seeds if large > 0 else -0.006 + 1e-6 * seeds
    row = one(pd.DataFrame({100: large + 0.1 * seeds, 200: small}))
    assert row["at"] == "200" and row["ci_low"] > -0.01 and row["ci_high"] < 0.01
    assert row["direction"] == "not resolved at n=4 seeds: negligible at 200, but not at every evaluation"
    assert _word(row["direction"], "") == "inconclusive" and row["alone"] == ""
    same = one(pd.DataFrame({100: large + 0.1 * seeds, 200: np.full(4, -0.006)}))
    assert same["direction"].startswith("not resolved") and same["at"] == "200"
    every = one(pd.DataFrame({100: 0.004 + 0.001 * seeds, 200: small}))
    assert every["direction"] == "negligible: within ±0.01"


def plainly(frame: np.ndarray, smallest: float) -> str:
    """The reading of "at every evaluation", without the module: t tests of all of them."""
    tests = [stats.ttest_1samp(column, 0.0) for column in frame.T]
    small = [-smallest <= low and high <= smallest for low, high in (test.confidence_interval() for test in tests)]
    if all(small):
        return "negligible"
    if small[int(np.argmin([test.statistic for test in tests]))]:
        return "not resolved"
    if all(test.statistic > 0 and test.pvalue <= 0.05 for test in tests):
        return "holds"
    if any(test.statistic < 0 and test.pvalue * len(tests) <= 0.05 for test in tests):
        return "opposite"
    return "not resolved"


def test_verdicts_are_those_of_a_plain_reading() -> None:
    rng = np.random.default_rng(3)
    said = []
    for _ in range(150):
        mean, spread = rng.normal(0.05, 0.1, size=4) * rng.integers(0, 2), 10.0 ** rng.uniform(-3.5, -1)
        frame = mean + rng.normal(0, spread, size=(int(rng.integers(3, 6)), 4))
        said.append(plainly(frame, 0.01))
        assert one(pd.DataFrame(frame, columns=STEPS[:4]))["direction"].startswith(said[-1]), frame
    assert set(said) == {"holds", "opposite", "negligible", "not resolved"}


def test_always_is_claimed_falsely_no_more_often_than_one_in_twenty() -> None:
    """Without a difference at any of 6 evaluations, 4 seeds: both verdicts on a side together in at most 5 %."""
    rng = np.random.default_rng(0)
    said = [
        one(pd.DataFrame(rng.normal(0, 1, size=(4, 6)), columns=range(6)), math.nan)["direction"] for _ in range(300)
    ]
    wrong = sum(text in ("holds", "opposite") for text in said)
    assert stats.binomtest(wrong, len(said), 0.05, "greater").pvalue > 0.01


def test_tokens_to_a_loss_are_those_of_straight_lines() -> None:
    """hdpl falls twice as fast: to every loss it needs half of the tokens, wherever it is evaluated."""
    found = planted(lambda step: 6 - 0.008 * step, lambda step: 6 - 0.004 * step, 1)
    table = token_gaps(found, "hdpl", "llama")
    assert list(table.columns) == [200, 300, 400, 500] and np.allclose(table, math.log(2)), "100 says nothing"
    assert np.allclose(token_gaps(found, "llama", "hdpl"), -table), "one distance, seen from the other side"
    early = found[(found["preset"] == "llama") | (found["step"] > 200)]
    assert list(token_gaps(early, "hdpl", "llama").columns) == [400, 500], "from hdpl's second evaluation on"
    assert np.allclose(token_gaps(early, "hdpl", "llama"), [[math.log(400 / 300), math.log(500 / 300)]]), "at least"
    # llama is at 5.2, 4.8, 4.4 and 4, hdpl at 5.8, 5, 4.6, 4.6, 4.6 and so at 4.8 at 250; llama is at 4.6 at 350
    crossed = token_gaps(
        planted(lambda step: max(6.6 - 0.008 * step, 4.6), lambda step: 6 - 0.004 * step, 1), "hdpl", "llama"
    )
    plain = [math.log(200 / 175), math.log(300 / 250), -math.log(400 / 350), -math.log(500 / 350)]
    assert np.allclose(crossed, [plain])


def test_means_over_tokens_and_points_of_a_curve() -> None:
    frame = pd.DataFrame([[1.0, 3.0, 3.0], [0.0, 0.0, 4.0]], columns=[100, 200, 400])
    tokens = pd.Series({100: 1000, 200: 2000, 400: 4000})
    assert mean_over(frame, tokens).to_numpy().tolist() == [[(2 * 1000 + 3 * 2000) / 3000], [(2 * 2000) / 3000]]
    assert list(last_until(frame, 399).columns) == [200] and last_until(frame, 99).shape[1] == 0
    found = planted(falling, lambda step: falling(step) + (step == 500), 3)
    table = points(found, {"half": 250, "last": 500, "none": 50}).set_index(["preset", "point"])
    assert list(table.loc["llama"].index) == ["lowest", "half", "last"] and table.loc[("hdpl", "half"), "step"] == "200"
    own = found[(found["preset"] == "llama") & (found["step"] == 400)]["loss"]
    assert table.loc[("llama", "lowest"), "loss"] == pytest.approx(own.mean())
    assert table.loc[("llama", "last"), "loss"] > own.mean() + 0.5
    half = stats.t.ppf(0.975, 2) * own.std() / math.sqrt(3)
    assert table.loc[("llama", "lowest"), "loss_high"] == pytest.approx(own.mean() + half)
    assert words(found)["hdpl-t1-min-is-final"] == "opposite", "llama rises at the end"
    alone = points(found[found["seed"] == 0], {})
    assert (alone["undefined"].str.count("one seed") == 1).all()


def test_only_steps_that_all_pairs_have_are_compared() -> None:
    found = planted(lambda step: falling(step) - 0.3, falling)
    less = found[~((found["step"] == 300) & (found["seed"] == 1) & (found["preset"] == "hdpl"))]
    assert list(loss_gaps(less, "hdpl", "llama").columns) == [100, 200, 400, 500]
    fewer = less[~((less["seed"] == 2) & (less["preset"] == "llama"))]
    assert list(loss_gaps(fewer, "hdpl", "llama").index) == [0, 1]


def test_every_claim_about_curves_is_a_row_of_the_ledger() -> None:
    rows = {claim.row["id"]: claim.row for claim in ledger(HERE)}
    run: Any = SimpleNamespace(manifest={"steps": STEPS[-1]}, warmup=100)
    found = readings(planted(falling, falling), [run])
    assert len({one.id for one in found}) == len(found)
    for one in found:
        row = rows[one.id]
        assert (row["instrument"], row["arguments"], row["place"]) == ("papers.hdpl", "--scale zoo", one.where)
