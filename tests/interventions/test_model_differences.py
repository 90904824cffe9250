"""A model minus its control: the formula against scipy and simulation, what is undefined, rows that one model lacks."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.interventions.model_differences import TESTED, Sums, compare_cases, difference, shared_cases, without
from streamscope.models.errors import InputError
from streamscope.probes.stats.estimators import ratio_of_sums
from streamscope.probes.undefined import reasons

ONES = np.ones(30)


def data(seed: int, n: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sizes, totals of the run, totals of the control) of documents."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(10, 200, n).astype(float)
    shared = rng.normal(3, 0.5, n)
    return sizes, *(sizes * (shared + rng.normal(level, 0.1, n)) for level in (0.3, 0.1))


def test_of_units_of_one_size_it_is_the_paired_t_test() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    row, why = difference(Sums(x, ONES), Sums(y, ONES), resolution=0)
    paired = stats.ttest_rel(x, y)
    interval = paired.confidence_interval()
    assert not why
    assert (row["run"], row["control"]) == (pytest.approx(x.mean()), pytest.approx(y.mean()))
    assert row["difference"] == pytest.approx((x - y).mean())
    assert row["sd"] == pytest.approx((x - y).std(ddof=1))
    assert (row["ci_low"], row["ci_high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert row["p"] == pytest.approx(paired.pvalue)


def test_of_equal_sizes_it_is_the_ratio_of_the_differences() -> None:
    sizes, x, y = data(1)
    row, _ = difference(Sums(x, sizes), Sums(y, sizes), resolution=0)
    expected = ratio_of_sums(x - y, sizes)
    assert [row[k] for k in ("difference", "sd", "ci_low", "ci_high")] == pytest.approx(list(expected[:4]))


def test_intervals_of_differences_of_percentages_hold_the_truth() -> None:
    """Both changes are percentages of losses that the two models share per document."""
    hits = 0
    for seed in range(300):
        _, x, y = data(seed)
        rng = np.random.default_rng([seed, 1])
        changed = [v * (1 + rng.normal(r, 0.03, 30)) for v, r in ((x, 0.2), (y, 0.05))]
        row, _ = difference(Sums(changed[0], x), Sums(changed[1], y), resolution=0, factor=100, shift=-100)
        hits += row["ci_low"] <= 15 <= row["ci_high"]
    assert row["run"] == pytest.approx(100 * (changed[0].sum() / x.sum() - 1))
    assert 0.92 <= hits / 300 <= 0.98


def test_what_is_undefined_says_why() -> None:
    sizes, x, _ = data(2)
    row, why = difference(Sums(x, sizes), Sums(x, sizes), resolution=0)
    assert row["difference"] == 0 and row["sd"] == 0
    assert why == dict.fromkeys(TESTED, "the same in every document")
    rounding = x + 1e-7 * sizes * np.random.default_rng(0).uniform(size=30)
    assert np.isnan(difference(Sums(rounding, sizes), Sums(x, sizes), resolution=1e-6)[0]["p"])
    row, why = difference(Sums(x + sizes, sizes), Sums(x, sizes), resolution=1e-6)
    assert row["difference"] == pytest.approx(1) and set(why) == set(TESTED)
    row, why = difference(Sums(x[:1], sizes[:1]), Sums(x[:1], sizes[:1]), resolution=0, units="independent case")
    assert why["sd"] == "one independent case" and row["run"] == pytest.approx(x[0] / sizes[0])
    row, why = difference(Sums(x, sizes), Sums(x, sizes), resolution=0)
    without(row, why, control="no such stream")
    assert np.isfinite(row["run"]) and np.isnan(row["control"]) and why["difference"] == why["p"] == "no such stream"
    for bad in ((Sums(x[1:], sizes[1:]), "same documents"), (Sums(x * np.nan, sizes), "finite"), (Sums(x, 0 * x), "0")):
        with pytest.raises(InputError, match=bad[1]):
            difference(Sums(x, sizes), bad[0], resolution=0)


def test_cases_count_where_both_models_have_them() -> None:
    x, y = np.random.default_rng(3).normal(size=(2, 6))
    x[0], y[1] = np.nan, np.nan
    clusters, nothing = ["a", "a", "b", "b", "c", "c"], np.full(6, np.nan)
    labels = [{"row": i} for i in range(4)]
    table = compare_cases(labels, "m", [x, x, None, nothing], [y, None, y, y], clusters, resolution=0)
    both, mine, theirs, none = (row for _, row in table.iterrows())
    assert (both["n"], both["clusters"]) == (4, 2)
    assert both["run"] == pytest.approx(x[2:].mean())
    means = [(x - y)[2:4].mean(), (x - y)[4:].mean()]
    assert both["p"] == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    assert mine["run"] == pytest.approx(np.nanmean(x)) and np.isnan(mine["control"])
    assert theirs["control"] == pytest.approx(np.nanmean(y)) and np.isnan(theirs["run"])
    assert "one of the models" in reasons(mine["undefined"])["difference"]
    assert "no case" in reasons(none["undefined"])["run"] and none["n"] == 0
    frames = [pd.DataFrame({"id": ids}) for ids in (list("abc"), list("cxb"))]
    mask, at = shared_cases(*frames, "t")
    assert mask.tolist() == [False, True, True] and at.tolist() == [2, 0]
