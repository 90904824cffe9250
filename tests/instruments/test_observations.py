"""Estimates of contrasts against plain loops, textbook tests and the functions that they replace."""

from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments import observations
from streamscope.instruments.observations import (
    Contrast,
    Measure,
    Observations,
    bootstrap,
    compare,
    each,
    estimate,
    estimate_all,
    head_cells,
    joined,
    over_seeds,
)
from streamscope.instruments.stats.estimators import (
    cluster_totals,
    cohens_d,
    d_columns,
    d_of_totals,
    inside,
    read_clusters,
    statistic_interval,
    wilson,
)
from tests.instruments.estimates import NATS, block


def naive(y: np.ndarray, n: np.ndarray, w: dict[int, float], labels: list[tuple]) -> tuple[float, float]:
    """Value and standard error by loops over units and their labels, from this module's docstring."""
    ratio = {k: sum(y[k]) / sum(n[k]) for k in w}
    e = [sum(wk * (y[k, u] - ratio[k] * n[k, u]) / sum(n[k]) for k, wk in w.items()) for u in range(y.shape[1])]
    kinds = range(len(labels[0]))

    def shared(which: tuple[int, ...]) -> float:
        total = 0.0
        for i, a in enumerate(labels):
            total += sum(e[i] * e[j] for j, b in enumerate(labels) if all(a[k] == b[k] for k in which))
        return total

    both = shared((0,)) if len(kinds) == 1 else shared((0,)) + shared((1,)) - shared((0, 1))
    largest = max([both, *(shared((k,)) for k in kinds)])
    d = min(len({label[k] for label in labels}) for k in kinds)
    return sum(wk * ratio[k] for k, wk in w.items()), (d / (d - 1) * largest) ** 0.5


@pytest.mark.parametrize("kinds", [1, 2])
def test_equals_loops_over_units_and_labels(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    y, n = rng.normal(2, 1, (4, 24)), rng.integers(5, 60, (4, 24)).astype(float)
    labels = [tuple(f"{'ab'[k]}{rng.integers(0, 5)}" for k in range(kinds)) for _ in range(24)]
    w = {0: 1.0, 1: -0.5, 3: -0.5}
    found = estimate(block(y, n, [x if kinds > 1 else x[0] for x in labels]), [Contrast(quantity="q", weights=w)])
    one = found.frame.iloc[0]
    value, error = naive(y, n, w, labels)
    assert one["value"] == pytest.approx(value, abs=1e-12)
    half = (one["high"] - one["low"]) / 2
    quantile = half / error  # the degrees of freedom are those of statistics.degrees_of_freedom
    assert 1.9 < quantile < 4.5
    t = abs(value) / error
    grid = np.arange(1.0, 40, 0.001)
    df = grid[stats.t.ppf(0.975, grid) <= quantile][0]
    assert one["p"] == pytest.approx(2 * stats.t.sf(t, df), abs=1e-3)


def test_two_cells_on_the_same_units_are_the_paired_test() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(0, 1, (2, 30)) + np.array([[0.5], [0.0]])
    one = estimate(block(y), [Contrast(quantity="q", weights={0: 1.0, 1: -1.0})]).frame.iloc[0]
    assert one["p"] == pytest.approx(stats.ttest_rel(y[0], y[1]).pvalue, abs=1e-12)
    assert one["sd"] == pytest.approx((y[0] - y[1]).std(ddof=1))
    ends = stats.ttest_rel(y[0], y[1]).confidence_interval()
    assert [one["value"], one["low"], one["high"]] == pytest.approx([(y[0] - y[1]).mean(), *ends], abs=1e-12)


def test_factor_and_shift_are_a_percentage_of_a_ratio_and_inflation_its_variance() -> None:
    y = np.array([[3.0, 5.0, 8.0, 4.0]])
    percent = replace(NATS, factor=100.0, shift=-100.0)
    level = [Contrast(quantity="q", weights={0: 1.0})]
    one = estimate(replace(block(y, 4.0), measure=percent), level).frame.iloc[0]
    assert one["value"] == pytest.approx(100 * 20 / 16 - 100)
    raw = estimate(block(y, 4.0), level).frame.iloc[0]
    assert one["high"] - one["low"] == pytest.approx(100 * (raw["high"] - raw["low"]))
    wide = estimate(block(y, 4.0, measure=replace(NATS, inflation=4.0)), level).frame.iloc[0]
    assert wide["high"] - wide["low"] == pytest.approx(2 * (raw["high"] - raw["low"])), "four times the variance"
    hits = estimate(block(y > 4, measure=replace(NATS, kind="share", inflation=4.0)), level).frame.iloc[0]
    assert (hits["low"], hits["high"]) == pytest.approx(wilson(y[0] > 4, read_clusters(None, 4), 4.0))


def test_intervals_stay_inside_the_limits_of_the_measure_and_those_of_differences_inside_theirs() -> None:
    y = np.array([[1.0, 0.999, 1.0, 0.9999, 0.9], [0.0, 0.0, 0.001, 0.0, 0.3]])
    seen = replace(block(y), measure=replace(NATS, limits=(0.0, 1.0)))
    weights = ({0: 1.0}, {1: 1.0}, {0: 0.5, 1: 0.5}, {0: 1.0, 1: -1.0}, {0: 1.0, 1: 1.0})
    wanted = [Contrast(quantity="q", weights=w) for w in weights]
    plain, inside = estimate(block(y), wanted).frame, estimate(seen, wanted).frame
    assert plain["high"][0] > 1 > inside["high"][0] > inside["value"][0] and inside["low"][0] < plain["low"][0]
    assert plain["low"][1] < 0 < inside["low"][1] < inside["value"][1] and inside["high"][1] > plain["high"][1]
    pd.testing.assert_frame_equal(plain[["value", "sd", "p"]], inside[["value", "sd", "p"]])
    assert inside["high"][3] == 1 < plain["high"][3] and inside["low"][3] == plain["low"][3]
    assert inside["high"][4] == plain["high"][4] > 1, "a sum of two may exceed 1"
    turned = estimate(seen, [Contrast(quantity="q", weights={0: -1.0, 1: 1.0})]).frame
    assert turned["low"][0] == -1 and turned["high"][0] == -inside["low"][3]
    wide = replace(NATS, limits=(-0.9, 1.0))
    assert estimate(replace(block(y), measure=wide), wanted).frame["high"][3] == plain["high"][3] < 1.9


def hall(m: float, error: float, half: float, *residuals: np.ndarray) -> list[float]:
    """Hall's interval for the largest skewness of the residuals."""
    g = max(((e**3).sum() / (e**2).sum() ** 1.5 for e in residuals), key=abs)
    return [m - (np.cbrt(1 + g * (q - g / 6)) - 1) / (g / 3) * error for q in (half / error, -half / error)]


def test_the_interval_of_a_skewed_share_by_hand() -> None:
    """Hall's, of documents of unequal lengths; an end beyond a limit, or of few documents, on the log-odds scale."""
    y = np.array([[0.1, 0.4, 0.2, 3.0, 0.3, 1.0, 0.0, 0.2, 2.0, 0.1, 0.3, 0.1]])
    n = np.array([[4.0, 9.0, 3.0, 10.0, 6.0, 8.0, 4.0, 5.0, 9.0, 7.0, 3.0, 5.0]])
    seen = replace(block(y, n), measure=replace(NATS, limits=(0.0, 1.0)))
    level = [Contrast(quantity="q", weights={0: 1.0})]
    row, plain = estimate(seen, level).frame.iloc[0], estimate(block(y, n), level).frame.iloc[0]
    m, half = y.sum() / n.sum(), plain["high"] - plain["value"]
    ends = hall(m, naive(y, n, {0: 1.0}, [(i,) for i in range(12)])[1], half, (y - m * n)[0])
    assert [row["low"], row["high"]] == pytest.approx(ends) and m - ends[0] < half < ends[1] - m
    for few in (block(y[:, :4], n[:, :4]), block(y[:, 4:11], 4.0)):
        far, plain = (estimate(x, level).frame.iloc[0] for x in (replace(few, measure=seen.measure), few))
        m, half = plain["value"], plain["high"] - plain["value"]
        high = 1 / (1 + np.exp(-(np.log(m / (1 - m)) + half / m / (1 - m))))
        assert far["high"] == pytest.approx(high) and plain["low"] < 0 < far["low"]
    mirrored = estimate(replace(block(n - y, n), measure=seen.measure), level).frame.iloc[0]
    assert [1 - mirrored["high"], 1 - mirrored["low"]] == pytest.approx([row["low"], row["high"]])
    shared = [(f"a{i // 2}", f"b{i % 9}") for i in range(18)]
    y = np.ones((1, 18)) + (np.arange(18) // 2 == 2) + 0.1 * np.arange(18) % 0.7  # the third a has most
    seen = block(y, 1.0, shared, replace(NATS, limits=(0.0, np.inf)))
    row, plain = (estimate(x, level).frame.iloc[0] for x in (seen, replace(seen, measure=NATS)))
    m, error = naive(y, np.ones((1, 18)), {0: 1.0}, shared)
    e, half = y[0] - m, plain["high"] - m
    ends = hall(m, error, half, e, e.reshape(9, 2).sum(1), e.reshape(2, 9).sum(0))
    assert [row["low"], row["high"]] == pytest.approx(ends) != pytest.approx(hall(m, error, half, e))


def test_contrasts_estimated_together_are_those_estimated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cells in few units and in all, over own units or shared ones; at once and in pieces."""
    y, n = np.random.default_rng(12).integers(0, 2, (4, 24)).astype(float), 1.0 + np.arange(96).reshape(4, 24)
    y[2, 5:] = y[3, :4] = np.nan
    sets = ({2: 1.0}, {1: 1.0}, {0: -1.0}, {0: 1.0, 1: -1.0}, {0: 0.5, 3: 0.5}, {2: 1.0, 3: -1.0}, {0: 1.0, 2: 1.0})
    wanted = [Contrast(quantity="q", weights=w, own_units=o, family=f"{o} {w}") for o in (True, False) for w in sets]
    for sizes, measure in ((1.0, replace(NATS, kind="share")), (n, replace(NATS, limits=(0.0, 1.0)))):
        seen = block(y, sizes, [(f"a{i // 2}", f"b{i % 8}") for i in range(24)], measure)
        alone = [estimate(seen, [c]) for c in wanted]
        reasons = {(i, name): why for i, one in enumerate(alone) for (_, name), why in one.reasons.items()}
        for most in (10**6, 50):
            monkeypatch.setattr(observations, "MOST_NUMBERS", most)
            found = estimate(seen, wanted)
            pd.testing.assert_frame_equal(found.frame, pd.concat([one.frame for one in alone], ignore_index=True))
            assert found.reasons == reasons and found.frame["clusters"][0] == 3, "five units in three a and five b"
            assert np.diff(found.frame[["low", "value", "high"]].dropna()).min() >= 0


@pytest.mark.parametrize(("limits", "value"), [((0.0, 1.0), 0.02), ((0.0, np.inf), 0.3), ((-np.inf, 1.0), 0.9),
                                               ((-1.0, 1.0), -0.97), ((-np.inf, np.inf), 0.0)])  # fmt: skip
def test_no_end_lies_beyond_a_limit(limits: tuple[float, float], value: float) -> None:
    for half in (1e-3, 0.1, 1.0, 30.0):
        low, high = inside(np.array([value - half, value + half]), np.float64(value), half, limits)
        assert limits[0] <= low < value < high <= limits[1]
        if limits[0] < value - half and value + half < limits[1]:
            assert (low, high) == (value - half, value + half)
    assert inside(np.array([-0.1, 0.1]), np.float64(0.0), 0.1, (0.0, 1.0)).tolist() == [0.0, 0.1]


def test_a_unit_that_is_not_in_a_cell_is_left_out_and_counted() -> None:
    y = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, np.nan, 1.0, 1.0]])
    w = {0: 1.0, 1: -1.0}
    one = estimate(block(y), [Contrast(quantity="q", weights=w), Contrast(quantity="r", weights={0: 1.0})]).frame
    assert one["n"].tolist() == [3, 4]
    assert one["value"].tolist() == pytest.approx([fmean([1, 2, 3]), 2.5])
    gone = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
    seen = replace(block(y), total=np.where(gone > 0, y, [[0.0, np.nan, 0.0, 0.0]]), size=gone)  # 0 as well as NaN
    assert seen.inside.tolist() == gone.astype(bool).tolist() and np.isnan(seen.total[1, 1::2]).all()
    assert len(seen.frame()) == 6 and estimate(seen, [Contrast(quantity="q", weights=w)]).frame["n"][0] == 2


def test_no_interval_without_difference_and_says_why() -> None:
    for level, step in ((2.0, 1e-7), (1e12, 2e-4)):  # below the resolution, and what rounding does to large numbers
        y = np.stack([np.full(6, level) + step * np.arange(6), np.zeros(6)])
        found = estimate(block(y), [Contrast(quantity="q", weights={0: 1.0, 1: -1.0})])
        assert found.frame[["low", "high", "p", "p_holm"]].isna().all(axis=None)
        assert set(found.reasons.values()) == {"the same in every independent case"}
    drawn = Contrast(quantity="q", weights={1: 1 / 3, 2: 1 / 3, 3: 1 / 3, 0: -1.0})
    assert estimate(block(np.full((4, 8), 0.7)), [drawn]).frame["value"][0] == 0, "summed in the order of its weights"
    rows = [Contrast(quantity="q", weights={0: 1.0})]
    alone = estimate(block(y, clusters=["a"] * 6), rows)
    assert set(alone.reasons.values()) == {"one independent case"} and np.isfinite(alone.frame["value"][0])
    assert {column for _, column in alone.reasons} == {"sd", "low", "high"} | {"p", "p_holm"}
    two = estimate(block(np.array([[1.0, 3.0]])), rows)
    half = 12.706204736432095  # t of one degree of freedom, at .975; the standard error of 1 and 3 is 1
    assert two.frame.loc[0, ["value", "low", "high"]].tolist() == pytest.approx([2.0, 2.0 - half, 2.0 + half])


def test_missing_and_fixed_contrasts_keep_their_reasons() -> None:
    y = np.random.default_rng(0).normal(0, 1, (2, 9))
    found = estimate(block(y), [
        Contrast(quantity="a", weights={}, missing="the last layer cannot act"),
        Contrast(quantity="b", weights={0: 1.0, 1: -1.0}, fixed="a scale of 1 changes nothing"),
        Contrast(quantity="c", weights={0: 1.0}, null=None),
    ])  # fmt: skip
    assert np.isnan(found.frame["value"][0]) and np.isfinite(found.frame["value"][1])
    assert found.reasons[0, "value"] == "the last layer cannot act"
    assert found.reasons[1, "p"] == "a scale of 1 changes nothing"
    assert np.isnan(found.frame["p"][2]) and (2, "p") not in found.reasons, "described, not tested"


def test_holm_is_over_the_tested_of_a_family() -> None:
    y = np.random.default_rng(3).normal(0.4, 1, (6, 20))
    rows = [Contrast(quantity="q", weights={i: 1.0}, family=f) for i, f in enumerate("aaabba")]
    rows[5] = replace(rows[5], missing="not there")
    p, holm = estimate(block(y), rows).frame[["p", "p_holm"]].to_numpy().T
    order = np.argsort(p[:3])
    expected = np.minimum(np.maximum.accumulate(p[:3][order] * [3, 2, 1]), 1)
    assert holm[:3][order] == pytest.approx(expected)
    assert holm[3:5].min() == pytest.approx(min(2 * p[3:5].min(), 1)) and np.isnan(holm[5])


def test_a_family_in_two_blocks_is_corrected_once() -> None:
    """Holm by hand over the four p of two blocks; a family of one block, and what has no name, stay in their block."""
    rng = np.random.default_rng(3)
    blocks = {name: block(rng.normal(shift, 1, (3, 20))) for name, shift in (("a", 0.4), ("b", 0.7))}

    def wanted(family: str | None) -> list[Contrast]:
        return [Contrast(quantity=f"q{k}", weights={k: 1.0}, labels={"k": k}, family=family) for k in range(2)]

    found = estimate_all(blocks, {name: wanted("both") for name in blocks})
    p = sorted((one.frame["p"].iloc[i], name, i) for name, one in found.items() for i in range(2))
    least = 0.0
    for rank, (value, name, i) in enumerate(p):
        least = max(least, min(1.0, value * (4 - rank)))
        assert found[name].frame["p_holm"].iloc[i] == pytest.approx(least, rel=1e-12)
    for family in (None, "own"):
        each = {name: wanted(family and f"{family} {name}") for name in blocks}
        for name, one in estimate_all(blocks, each).items():
            pd.testing.assert_frame_equal(one.frame, estimate(blocks[name], each[name]).frame)


def test_a_control_is_paired_over_shared_units() -> None:
    rng = np.random.default_rng(4)
    shared = rng.normal(0, 3, 20)
    run, control = (block(np.stack([shared + rng.normal(m, 0.1, 20), shared])) for m in (0.5, 0.2))
    w = Contrast(quantity="delta", weights={0: 1.0, 1: -1.0}, labels={"head": "L0.H0"})
    found = compare(run, control, [w]).frame.set_index("quantity")
    mine, theirs = (one.total[0] - one.total[1] for one in (run, control))
    assert found.loc["delta_difference", "p"] == pytest.approx(stats.ttest_rel(mine, theirs).pvalue, abs=1e-12)
    assert found.loc["delta_run", "value"] == pytest.approx(mine.mean())
    assert found.loc["delta_control", "value"] == pytest.approx(theirs.mean())
    fewer = control.at(np.arange(20)[::-1][:15])  # other order, some missing: matched by name
    row = compare(run, fewer, [w]).frame.set_index("quantity").loc["delta_difference"]
    assert (row["n"], row["value"]) == (15, pytest.approx((mine - theirs)[5:].mean()))
    described = compare(run, control, [
        w, Contrast(quantity="base", weights={1: 1.0}, null=None), replace(w, quantity="half", null=0.5),
        replace(w, quantity="same", fixed="known before"), replace(w, quantity="share", tested=False),
    ])  # fmt: skip
    by = {c.quantity: c for c in described.contrasts}
    quantities = ("delta", "half", "same", "share")
    assert list(by) == [f"{q}_{what}" for q in quantities for what in ("run", "control", "difference")]
    for q in quantities:
        assert all(by[f"{q}_{level}"].null is None and not by[f"{q}_{level}"].fixed for level in ("run", "control"))
        assert by[f"{q}_difference"].null == 0.0 and by[f"{q}_difference"].tested
    assert by["same_difference"].fixed == "known before", "what is known of both is known of their difference"
    undefined = described.frame[described.frame["low"].isna()]
    assert undefined["quantity"].tolist() == ["same_difference"], "levels have no test, but an interval"
    itself = compare(run, run, [w])
    assert itself.frame["value"][2] == 0 and itself.reasons[2, "p"] == "the same in every independent case"
    line = "^a run and its control need the same cells of one measure, 'loss' has others$"
    strangers = control.units.assign(unit=[f"v{i}" for i in range(20)])
    for other, why in (
        (replace(control, units=strangers), "0 units"),
        (replace(control, measure=replace(NATS, unit="bits")), line),
        (replace(control, cells=pd.DataFrame({"cell": [0, 2]})), line),
        (control.at([3]), "^loss: 1 unit in both the run and its control, two are needed$"),
    ):
        with pytest.raises(InputError, match=why):
            compare(run, other, [w])
    assert (compare(run, control.at([0, 3]), [w]).frame["n"] == 2).all(), "two units suffice"


def test_seeds_are_the_units_of_a_recipe() -> None:
    rng = np.random.default_rng(5)
    w = [Contrast(quantity="q", weights={0: 1.0}, labels={"head": "L0.H0"})]
    each = [estimate(block(rng.normal(m, 0.01, (1, 50))), w) for m in (0.1, 0.3, 0.2)]
    found = over_seeds(each, ["head"], NATS).frame.iloc[0]
    values = [one.frame["value"][0] for one in each]
    test = stats.ttest_1samp(values, 0)
    ends = test.confidence_interval()
    assert [found[name] for name in ("value", "p", "low", "high")] == pytest.approx([fmean(values), test.pvalue, *ends])
    assert found["n"] == 3
    alike = [estimate(block(np.full((1, 50), 1e-9 * k)), w) for k in range(3)]
    assert np.isnan(over_seeds(alike, ["head"], NATS).frame["p"][0]), "no more than rounding"


@pytest.mark.parametrize("bounded", [{"limits": (0.0, 1.0)}, {"kind": "share"}, {"limits": (-1.0, 1.0)}])
def test_intervals_of_means_over_seeds_stay_inside_the_limits_of_the_measure(bounded: dict[str, Any]) -> None:
    """Three runs near the upper end of a share or a correlation; differences of two cells end at high − low."""
    rng = np.random.default_rng(7)
    measure = replace(NATS, **bounded)
    wanted = [Contrast(quantity=q, weights=w) for q, w in (("a", {0: 1.0}), ("b", {1: 1.0}), ("d", {0: 1.0, 1: -1.0}))]
    y = [np.stack([rng.random(50) < p, rng.random(50) < 1 - p]).astype(float) for p in (0.99, 0.8, 0.97)]
    each = [estimate(replace(block(one), measure=measure), wanted) for one in y]
    cut, plain = over_seeds(each, [], measure).frame, over_seeds(each, [], NATS).frame
    low, high = bounded.get("limits", (0.0, 1.0))
    assert plain["high"][0] > 1 > cut["high"][0] > cut["value"][0]
    assert plain["low"][1] < 0 and low < cut["low"][1] < cut["value"][1]
    same = ["value", "sd", "p", "n"]
    pd.testing.assert_frame_equal(plain[same], cut[same])
    assert cut["high"][2] == min(plain["high"][2], high - low) and plain["high"][2] > 1
    assert cut["low"][0] == plain["low"][0]


def test_what_a_run_lacks_has_no_mean_over_seeds() -> None:
    def of(**how: Any) -> Any:
        rng = np.random.default_rng(6)
        rows = [Contrast(quantity="q", weights={0: 1.0}, labels={"head": h}, **how) for h in "AB"]
        return estimate(block(rng.normal(0, 1, (1, 9))), [rows[0], replace(rows[1], missing="", fixed="")])

    whole, lost, fixed = of(), of(missing="no such head"), of(fixed="scale 1 changes nothing")
    for runs, why in (((whole, lost), "undefined in a run"), ((lost, whole), "no such head")):
        found = over_seeds(runs, ["head"], NATS)
        assert found.reasons[0, "value"] == why and np.isnan(found.frame["value"][0])
        assert np.isfinite(found.frame["value"][1]) and (1, "value") not in found.reasons
    assert np.isfinite(over_seeds([fixed, whole], ["head"], NATS).frame["sd"][0]), "a mean over runs is measured"
    other = estimate(block(np.ones((1, 9))), [Contrast(quantity="q", weights={0: 1.0}, labels={"head": "C"})])
    line = "^seeds can be summarised where all runs have the same rows; the runs differ in theirs$"
    with pytest.raises(InputError, match=line):
        over_seeds([whole, other], ["head"], NATS)


def test_bad_observations_are_refused() -> None:
    y, nan = np.ones((2, 3)), np.array([[1.0, 1.0, 1.0], [1.0, np.nan, 0.0]])
    inside = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    sizes = "sizes must be numbers from 0 up"
    for kwargs, message in (
        ({"total": np.ones((3, 3))}, "totals of shape"),
        ({"total": np.full((2, 3), np.inf)}, "^loss of cell 0 at u0 is inf, which is no finite number: 6 of 6 values$"),
        ({"total": nan, "size": inside}, "^loss of cell 1 at u1 is nan, which is no finite number: 1 of 5 values$"),
        ({"size": np.zeros(1)}, "^loss of cell 0 at u0 has a total, but the size 0"),
        *(({"size": np.full(1, size)}, sizes) for size in (-1.0, np.inf, np.nan)),
        ({"units": pd.DataFrame({"unit": ["a", "a", "b"], "cluster": [1, 2, 3]})}, "there twice"),
        ({"units": pd.DataFrame({"unit": [1, 2, 3]})}, "cluster"),
        ({"cells": pd.DataFrame({"total": [1, 2]})}, "may not be called 'total'"),
    ):
        with pytest.raises(InputError, match=message):
            replace(block(y), **kwargs)
    with pytest.raises(IndexError):
        estimate(block(y), [Contrast(quantity="q", weights={7: 1.0})])
    with pytest.raises(InputError, match="may not be called 'n'"):
        estimate(block(y), [Contrast(quantity="q", weights={0: 1.0}, labels={"n": 5})])


def test_wide_has_a_row_for_each_key() -> None:
    y = np.random.default_rng(6).normal(0, 1, (4, 12))
    given = [("A", "base", None, ""), ("A", "delta", 0.0, ""), ("B", "base", None, ""), ("B", "delta", 0.0, "no way")]
    rows = [
        Contrast(quantity=q, weights={i: 1.0}, labels={"head": h}, null=null, missing=gone)
        for i, (h, q, null, gone) in enumerate(given)
    ]
    frame, why = estimate(block(y), rows).wide(["head"])
    assert frame["head"].tolist() == ["A", "B"] and "base_p" not in frame
    suffixes = ("", "_sd", "_low", "_high", "_p", "_p_holm")
    assert {"base", *(f"delta{s}" for s in suffixes)} < set(frame)
    assert {at for at, text in why.items() if text == "no way"} == {(1, f"delta{s}") for s in suffixes}
    untested, _ = estimate(block(y), [replace(rows[1], tested=False)]).wide(["head"])
    assert untested.columns.tolist() == ["head", "delta", "delta_sd", "delta_low", "delta_high", "n", "clusters"]
    nowhere, _ = estimate(block(np.full((2, 4), np.nan)), [rows[1]]).wide(["head"])
    assert nowhere.iloc[0][["n", "clusters"]].tolist() == [0, 0]
    none, _ = estimate(block(y), []).wide(["head"])
    assert none.empty and none.columns.tolist() == ["head", "n", "clusters"]
    twice = Contrast(quantity="q", weights={0: 1.0}, labels={"head": "A", "scale": 1})
    with pytest.raises(InputError, match="^head and scale do not tell the contrasts 'q' apart: add a key$"):
        estimate(block(y), [twice, twice]).wide(["head", "scale"])


def test_estimates_are_joined_row_by_row() -> None:
    y = np.random.default_rng(8).normal(0, 1, (2, 12))
    b, q, flat = (
        estimate(some, each(name, some.cells))
        for name, some in (("b", block(y, cell=[0, 1])), ("q", block(2 * y, cell=[0, 1])), ("flat", block(0 * y)))
    )
    columns = [SimpleNamespace(name=name) for name in ("cell", "b", "q", "flat_p", "n")]
    frame, why = joined([b, q, flat], ["cell"], columns)
    assert frame.columns.tolist() == ["cell", "b", "n", "q", "flat_p"] and set(why) == {(0, "flat_p"), (1, "flat_p")}
    assert frame["q"].tolist() == pytest.approx((2 * frame["b"]).tolist())
    turned = block(y[::-1], cell=[1, 0])
    for other in (estimate(turned, each("q", turned.cells)), estimate(block(y[:1]), each("q", block(y[:1]).cells))):
        with pytest.raises(InputError, match=r"^estimates of different rows \(cell\) cannot be joined$"):
            joined([b, other], ["cell"], columns)


def test_bootstrap_of_what_is_no_contrast() -> None:
    """Cohen's d by the generic function is `cohens_d` with the interval of `statistic_interval`. Cells as rows of one
    column are what they are as columns of their own, also where cases share words."""
    x = np.random.default_rng(4).normal([[0.6], [0.0]], 1, (2, 24))
    labels = [f"c{i // 2}" for i in range(24)]
    found, why = bootstrap(block(x, clusters=labels), [0, 1], d_of_totals, d_columns, resamples=500, seed=3)
    assert not why and (found["n"], found["clusters"]) == (24, 12)
    assert found["value"] == pytest.approx(cohens_d(x[0], x[1]), abs=1e-12)
    within = read_clusters(labels, 24)
    totals = [cluster_totals(one, within.codes)[0] for one in d_columns(x)]
    want = statistic_interval(d_of_totals, *totals, clusters=within, resamples=500, seed=3)
    assert (found["low"], found["high"]) == pytest.approx([float(end) for end in want])
    crossed = block(np.random.default_rng(0).normal(2.0, 1.0, (2, 40)),
                    clusters=[(f"a{i % 10}", f"b{i // 4}") for i in range(40)])  # fmt: skip
    rows, why = bootstrap(crossed, [0, 1], lambda y, n, axis: y.sum(axis)[0] / y.sum(axis)[1])
    own, _ = bootstrap(crossed, [0, 1], lambda a, b, axis: a.sum(axis) / b.sum(axis), lambda y, n: [y[0], y[1]])
    assert rows == pytest.approx(own) and rows["low"] < rows["value"] < rows["high"] and not why


def test_cells_are_found_by_their_keys_and_units_chosen() -> None:
    one = block(np.arange(8.0).reshape(4, 2), head=["A", "A", "B", "B"], scale=[0.0, 1.0, 0.0, 0.0])
    assert [one.cell(head="A", scale=0.0), one.cell(head="A", scale=1.0)] == [0, 1] and type(one.cell(scale=1.0)) is int
    keys: tuple[tuple[dict[str, Any], str], ...] = (
        ({"head": "B"}, "2 cells have head=B"), ({"head": "B", "scale": 0.0}, "2 cells have head=B, scale=0.0"),
        ({"head": "C"}, "0 cells have head=C"),
    )  # fmt: skip
    for given, line in keys:
        with pytest.raises(InputError, match=f"^{line}$"):
            one.cell(**given)
    last = one.at([1])
    assert last.units.to_dict("list") == {"unit": ["u1"], "cluster": ["u1"]} and last.units.index.tolist() == [0]
    assert last.total.tolist() == [[1.0], [3.0], [5.0], [7.0]] and last.sizes.shape == (4, 1)
    assert one.at(np.array([True, False])).units["unit"].tolist() == ["u0"]


def test_the_long_form_by_hand() -> None:
    y = np.array([[2.0, np.nan], [6.0, 9.0]])
    one = replace(
        block(y, np.array([[1.0, 1.0], [2.0, 3.0]]), ["c", "d"], head=["A", "B"]),
        measure=Measure(name="m", unit="%", resolution=0.0, factor=100.0, shift=-1.0),
    )
    assert one.frame().to_dict("list") == {
        "head": ["A", "B", "B"], "unit": ["u0", "u0", "u1"], "cluster": ["c", "c", "d"], "total": [2.0, 6.0, 9.0],
        "size": [1.0, 2.0, 3.0], "value": [199.0, 299.0, 299.0],
    }  # fmt: skip


def test_heads_are_cells_and_each_cell_a_contrast() -> None:
    cells = head_cells(SimpleNamespace(cfg=SimpleNamespace(n_layers=2, n_heads=3)))
    assert cells["head"].tolist() == ["L0.H0", "L0.H1", "L0.H2", "L1.H0", "L1.H1", "L1.H2"]
    assert cells["layer"].tolist() == [0, 0, 0, 1, 1, 1] and cells["index"].tolist() == [0, 1, 2] * 2
    some = each("score", cells, null=None, family="f")
    assert [c.weights for c in some] == [{i: 1.0} for i in range(6)]
    assert some[4].labels == {"head": "L1.H1", "layer": 1, "index": 1}
    assert {(c.quantity, c.null, c.family) for c in some} == {("score", None, "f")}


def test_some_of_the_estimates_keep_their_reasons() -> None:
    y = np.random.default_rng(8).normal(0, 1, (3, 9))
    rows = [
        Contrast(quantity=q, weights={i: 1.0}, labels=labels, missing=gone)
        for i, (q, labels, gone) in enumerate(
            [("a", {"head": "A"}, ""), ("b", {"head": "A", "scale": 1}, "no way"), ("a", {"head": "B"}, "not here")]
        )
    ]
    found = estimate(block(y), rows)
    one = found.where(quantity="a")
    assert one.contrasts == (rows[0], rows[2]) and one.frame.index.tolist() == [0, 1]
    assert one.frame["value"].tolist()[0] == found.frame["value"][0] and one.frame["head"].tolist() == ["A", "B"]
    assert one.reasons == {(1, name): "not here" for name in ("value", "sd", "low", "high", "p", "p_holm")}
    both = found.where(head="A")
    assert both.contrasts == (rows[0], rows[1]) and set(both.reasons.values()) == {"no way"}
    assert found.where(head="A", scale=1).contrasts == (rows[1],) and found.where(quantity="b", head="B").frame.empty
    assert found.where(quantity={"a", "b"}, head={"B"}).contrasts == (rows[2],), "one of a set"


def test_what_a_bootstrap_gives_where_it_gives_nothing() -> None:
    def mean(y: np.ndarray, n: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray((y.sum(axis) / n.sum(axis))[0])

    def infinite(y: np.ndarray, n: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(y.sum(axis)[0] * np.inf)

    def ratio(y: np.ndarray, n: np.ndarray, axis: int) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(y[0].sum(axis) / y[1].sum(axis))

    ten, lost = np.arange(10), dict.fromkeys(("low", "high"), "the denominator is 0 in some resamples")
    nan, x, ends = float("nan"), np.random.default_rng(10).normal(2, 1, (1, 8)), ("low", "high")
    for one, statistic, value, n, clusters, reasons in (
        (block(np.full((1, 3), np.nan)), mean, nan, 0, 0,
         dict.fromkeys(("value", *ends), "no unit is in all cells of this contrast")),
        (block(x), infinite, nan, 8, 8, dict.fromkeys(("value", *ends), "the statistic has no value here")),
        (block(x), mean, x.mean(), 8, 8, {}),  # eight clusters are enough
        (block(np.ones((1, 12))), mean, 1.0, 12, 12, dict.fromkeys(ends, "the same in every independent case")),
        (block(np.arange(12.0)[None], clusters=list("aaaabbbbcccc")), mean, 5.5, 12, 3,
         dict.fromkeys(ends, "fewer than 8 clusters to resample")),
        *((block(np.stack([ten + 1.0, ten < moving])), ratio, 55 / moving, 10, 10, {} if moving == 10 else lost)
          for moving in (1, 3, 10)),
    ):  # fmt: skip
        row, why = bootstrap(one, list(range(len(one.cells))), statistic, resamples=500)
        assert row["value"] == pytest.approx(value, nan_ok=True) and (row["n"], row["clusters"]) == (n, clusters)
        assert why == reasons and np.isfinite([row["low"], row["high"]]).all() == (not reasons)


def test_a_bootstrap_takes_the_units_that_are_in_all_its_cells_and_its_options() -> None:
    rng = np.random.default_rng(11)
    x, n = rng.normal(2, 1, (3, 20)), rng.integers(1, 9, (3, 20)).astype(float)
    x[2, 4] = np.nan

    def quotient(y: np.ndarray, size: np.ndarray, axis: int = -1) -> np.ndarray:
        return (y.sum(axis) / size.sum(axis))[0] / (y.sum(axis) / size.sum(axis))[1]

    def of(*columns: Any, **how: Any) -> dict[str, float]:
        return bootstrap(block(x, n), [0, 2], quotient, *columns, resamples=300, **how)[0]

    kept, row = np.delete(np.arange(20), 4), of()
    plain = [x[i, kept].sum() / n[i, kept].sum() for i in (0, 2)]
    assert row["value"] == pytest.approx(plain[0] / plain[1], rel=1e-12) and row["n"] == 19
    assert of(lambda y, size: [y, size]) == row, "the columns that are taken without any"
    assert of(seed=1)["low"] != row["low"] and of(seed=0) == row
    whole = np.random.default_rng(0).integers(0, 2, (1, 16))  # hits, whose sums are floats too
    share, _ = bootstrap(block(whole), [0], lambda y, size, axis: (y.sum(axis) / size.sum(axis))[0], resamples=50)
    assert share["value"] == whole.mean()


MORE = [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, False), (5, False), (12, False), (12, True))]


@pytest.mark.parametrize(("few", "two_way"), [(3, False), (60, False), (3, True), *MORE])
def test_a_difference_of_cells_with_their_own_units_holds_its_level(few: int, two_way: bool) -> None:
    """600 true nulls: the second cell lies in few of 60 documents. With the degrees of freedom of all 60 a nominal 5 %
    test rejects 21 % of them where few is 3, and 13 % where it is 5."""
    rng, trials, d = np.random.default_rng(few), 600, 60
    document = np.concatenate([np.arange(d), np.arange(few)])
    there = np.arange(d + few) < d
    y = rng.normal(size=(trials, d + few)) + 0.3 * rng.normal(size=(trials, d + few))
    labels = [(f"document {i}", f"word {j}") for j, i in enumerate(document)] if two_way else document.tolist()
    observed = Observations(
        measure=Measure(name="kept", unit="share", resolution=1e-9),
        cells=pd.DataFrame({"trial": np.repeat(np.arange(trials), 2), "group": [0, 1] * trials}),
        units=pd.DataFrame({"unit": range(d + few), "cluster": labels}),
        total=np.where(np.stack([there, ~there] * trials), np.repeat(y, 2, 0), np.nan),
        size=np.stack([there, ~there] * trials).astype(float),
    )
    found = estimate(observed, [
        Contrast(quantity="kept", weights={2 * i: 1.0, 2 * i + 1: -1.0}, labels={"trial": i}, own_units=True)
        for i in range(trials)
    ]).frame  # fmt: skip
    assert found["value"].to_numpy() == pytest.approx(y[:, there].mean(1) - y[:, ~there].mean(1))
    assert (found["clusters"] == few).all()
    assert (found["p"] < 0.05).mean() <= 0.07
    assert few < 5 or (found["p"] < 0.05).mean() >= 0.03


def test_cells_with_their_own_units_by_hand() -> None:
    """Cells that share no cluster have Welch's error. In a single cluster: a value without an interval."""
    x, y = np.array([1.0, 4.0, 2.0, 7.0]), np.array([3.0, 9.0, 8.0])
    total = np.full((2, 7), np.nan)
    total[0, :4], total[1, 4:] = x, y
    units = pd.DataFrame({"unit": range(7), "cluster": range(7)})
    pair = Contrast(quantity="q", weights={0: 1.0, 1: -1.0}, own_units=True)

    def row(units: pd.DataFrame) -> pd.Series:
        one = Observations(measure=Measure(name="q", unit="", resolution=0.0), cells=pd.DataFrame({"of": ["x", "y"]}),
                           units=units, total=total, size=~np.isnan(total))  # fmt: skip
        return estimate(one, [pair]).frame.iloc[0]

    found, v = row(units), np.array([1 / 3, 1 / 2])
    error, df = np.sqrt(x.var(ddof=1) / 4 + y.var(ddof=1) / 3), v.sum() ** 2 / (v**3).sum()
    assert (found["value"], found["clusters"]) == (pytest.approx(x.mean() - y.mean()), 3)
    half = stats.t(df).ppf(0.975) * error
    assert [found["low"], found["high"]] == pytest.approx([found["value"] - half, found["value"] + half])
    assert found["p"] == pytest.approx(2 * stats.t(df).sf(abs(found["value"]) / error))
    alone = row(units.assign(cluster=[0, 1, 2, 3, 4, 4, 4]))
    assert alone["value"] == found["value"] and np.isnan(alone["p"]) and alone["clusters"] == 1
