"""The registered claims: their files, the contrast against scipy, and a verdict of each kind on planted runs."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.papers.primary import contrast, detectable, endpoints, judge, registered

KEYS = {"id", "place", "quote", "quantity", "unit", "arms", "printed", "margin", "contradicted"}


@pytest.mark.parametrize("paper", ["dst", "lfa", "hdpl", "pls", "krom"])
def test_every_claim_is_complete(paper: str) -> None:
    claims, seeds, _ = registered(paper)
    assert 3 <= len(claims) <= 8 and seeds.start == 20
    assert len({claim["id"] for claim in claims}) == len(claims)
    for claim in claims:
        assert set(claim) - {"relative", "test", "needs"} == KEYS, claim["id"]
        assert claim["margin"] > 0 and len(claim["arms"]) in (1, 2, 4)
        assert len(claim["printed"]) == len(claim["arms"])


def rows_of(**arms: Any) -> pd.DataFrame:
    """Rows of quantity x: arm = its values, of the seeds from 20 on."""
    frames = [
        pd.DataFrame({"arm": k, "seed": 20 + np.arange(len(v)), "quantity": "x", "value": v}) for k, v in arms.items()
    ]
    return pd.concat(frames, ignore_index=True)


def runs(**arms: tuple[float, float, int]) -> pd.DataFrame:
    """The same, with arm = (mean, sd, number of seeds)."""
    rng = np.random.default_rng(7)
    return rows_of(**{arm: mean + sd * stats.zscore(rng.normal(size=n)) for arm, (mean, sd, n) in arms.items()})


def claim(**changes: Any) -> dict[str, Any]:
    return {"id": "c", "quantity": "x", "arms": ["a", "b"], "printed": [2.0, 1.0], "margin": 0.5, **changes}


def test_the_contrast_of_two_arms_is_welchs_test() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(1.0, 2.0, 9), rng.normal(0.0, 0.5, 14)
    difference, error, df = contrast({"a": a, "b": b}, {"a": 1.0, "b": -1.0})
    known = stats.ttest_ind(a, b, equal_var=False)
    assert difference / error == pytest.approx(known.statistic) and df == pytest.approx(known.df)
    (row,) = judge([claim()], rows_of(a=a, b=b), range(20, 36)).to_dict("records")
    assert row["p"] == pytest.approx(known.pvalue)
    assert (row["low"], row["high"]) == pytest.approx(tuple(known.confidence_interval()))


def test_detectable_holds_in_simulation() -> None:
    rng = np.random.default_rng(0)
    d = detectable(np.sqrt(1 / 6 + 1 / 11), 15)
    found = stats.ttest_ind(rng.normal(d, 1, (4000, 6)), rng.normal(0, 1, (4000, 11)), axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize(
    ("a", "b", "changes", "verdict"),
    [
        ((3.0, 0.2, 9), (1.0, 0.4, 12), {}, "reproduced"),
        ((1.0, 0.2, 9), (3.0, 0.4, 12), {}, "contradicted"),
        ((1.0, 0.2, 9), (3.0, 0.4, 12), {"printed": [1.0, 2.0]}, "reproduced"),
        ((1.05, 0.2, 9), (1.0, 0.3, 12), {}, "no effect"),
        ((1.3, 2.0, 9), (1.0, 2.0, 12), {}, "inconclusive"),
        ((1.05, 0.2, 9), (1.0, 0.3, 12), {"test": "equivalence"}, "reproduced"),
        ((3.0, 0.2, 9), (1.0, 0.3, 12), {"test": "equivalence"}, "contradicted"),
        ((1.3, 2.0, 9), (1.0, 2.0, 12), {"test": "equivalence"}, "inconclusive"),
        ((0.1, 0.1, 9), (1.0, 0.3, 12), {"test": "below", "arms": ["a"], "printed": [0.0]}, "reproduced"),
        ((0.9, 0.1, 9), (1.0, 0.3, 12), {"test": "below", "arms": ["a"], "printed": [0.0]}, "contradicted"),
        ((3.0, 0.2, 9), (1.0, 0.4, 12), {"needs": {"quantity": "x", "above": 1.5}}, "too weak: b"),
        ((104.0, 0.2, 9), (100.0, 0.4, 12), {"relative": True, "margin": 6}, "reproduced"),
        ((300.4, 0.2, 9), (300.0, 0.2, 12), {"relative": True}, "reproduced"),
    ],
)  # fmt: skip
def test_verdicts(a: Any, b: Any, changes: dict[str, Any], verdict: str) -> None:
    assert list(judge([claim(**changes)], runs(a=a, b=b), range(20, 36))["verdict"]) == [verdict]


def test_no_effect_is_judged_at_the_corrected_level() -> None:
    """The 95 % interval lies within the margin of .1, that of 1 − .05/3 does not."""
    claims = [claim(id=name, printed=[1.2, 1.0], margin=0.1) for name in ("one", "two", "three")]
    rows = runs(a=(1.02, 0.0558, 8), b=(1.0, 0.0558, 8))
    assert list(judge(claims[:1], rows, range(20, 28))["verdict"]) == ["no effect"]
    table = judge(claims, rows, range(20, 28))
    assert table["high"].max() < 0.1 and list(table["verdict"]) == ["inconclusive"] * 3


def test_runs_that_are_all_equal_and_values_that_are_not_finite() -> None:
    for a, changes, verdict in (
        (2.0, {"test": "equivalence", "margin": 0.1}, "contradicted"), (1.0, {"test": "equivalence"}, "reproduced"),
        (2.0, {}, "reproduced"), (1.0, {}, "no effect"),
    ):  # fmt: skip
        assert list(judge([claim(**changes)], runs(a=(a, 0, 4), b=(1.0, 0, 4)), range(20, 28))["verdict"]) == [verdict]
    with pytest.raises(InputError, match="x of a is not finite in a run"):
        judge([claim()], runs(a=(-np.inf, 0, 4), b=(1.0, 0.1, 4)), range(20, 28))


def test_a_difference_of_differences_uses_the_shared_arm_twice() -> None:
    rows = runs(full=(2.62, 0.01, 8), ind=(2.5, 0.02, 8), dense=(2.42, 0.01, 8))
    (row,) = judge(
        [claim(arms=["full", "ind", "ind", "dense"], printed=[2.62, 2.5, 2.5, 2.42])], rows, range(20, 28)
    ).to_dict("records")
    assert row["difference"] == pytest.approx(0.04)
    terms = np.array([0.01**2, 4 * 0.02**2, 0.01**2]) / 7  # w² s² / n; the planted sd divides by n, s by n − 1
    half = stats.t.isf(0.025, terms.sum() ** 2 / (terms**2 / 7).sum()) * np.sqrt(terms.sum())
    assert (row["high"] - row["low"]) / 2 == pytest.approx(half)


def test_other_seeds_do_not_count_and_few_raise() -> None:
    rows = runs(a=(3.0, 0.1, 9), b=(1.0, 0.1, 9))
    (row,) = judge([claim()], rows, range(20, 24)).to_dict("records")
    assert row["n"] == "4 / 4"
    with pytest.raises(InputError, match="x of a: 1 of the registered seeds"):
        judge([claim()], rows, range(28, 36))


def test_holm_is_over_the_papers_claims() -> None:
    claims = [claim(id="one"), claim(id="two", arms=["a", "c"]), claim(id="three", arms=["b", "c"])]
    table = judge(claims, runs(a=(2, 1, 8), b=(0.8, 1, 8), c=(0, 1, 8)), range(20, 28))
    assert (table["p_holm"] >= table["p"]).all() and table["p_holm"].min() == pytest.approx(3 * table["p"].min())
    assert table["p"][0] < 0.05 < table["p_holm"][0] == pytest.approx(2 * table["p"][0])
    assert table["verdict"].tolist() == ["inconclusive", "reproduced", "inconclusive"]


def test_endpoints_are_the_same_contrast_with_every_arms_mean() -> None:
    rows = runs(a=(3.0, 0.4, 9), b=(1.0, 0.2, 12), c=(7.0, 0.1, 8))
    table = endpoints({"arms": ["a", "b"], "beside": ["c", "absent"], "quantities": ["x"]}, rows, range(20, 36))
    (row,) = table.to_dict("records")
    (known,) = judge([claim()], rows, range(20, 36)).to_dict("records")
    assert [row[name] for name in ("difference", "low", "high", "p")] == [
        known[name] for name in ("difference", "low", "high", "p")
    ]  # fmt: skip
    assert (row["a"], row["b"], row["c"]) == pytest.approx((3.0, 1.0, 7.0)) and "absent" not in row
