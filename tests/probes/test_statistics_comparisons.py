"""Comparisons, effect sizes, permutation tests and curves against hand-computed values and references."""

from itertools import combinations, product

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from streamscope.models.errors import InputError
from streamscope.probes.stats.comparisons import asymmetry, compare, compare_seeds
from streamscope.probes.stats.curves import response_curve
from streamscope.probes.stats.effect_sizes import cohens_d, d_interval, d_of_totals, d_totals
from streamscope.probes.stats.permutations import rank_among, relabel, sign_flip
from streamscope.probes.undefined import reasons

RNG = np.random.default_rng(0)
PAIRS = np.repeat(np.arange(15), 2)
BASE = RNG.normal(size=15)[PAIRS] + 0.4 * RNG.normal(size=30)
EDITED = BASE + 0.2 + 0.3 * RNG.normal(size=15)[PAIRS] + 0.1 * RNG.normal(size=30)


def test_cohens_d_by_hand() -> None:
    """(2, 4, 6) − (1, 2, 6): means 4 and 3, variances 4 and 7, differences 1, 2, 0 of variance 1."""
    x1, x0 = [2, 4, 6], [1, 2, 6]
    assert cohens_d(x1, x0) == pytest.approx(1 / np.sqrt(5.5))
    assert cohens_d(x1, x0, "pooled_n") == pytest.approx(1 / np.sqrt(5.5))
    assert cohens_d(x1, x0, "d_z") == pytest.approx(1.0)
    assert cohens_d([2, 4, 6, 4], x0) == pytest.approx(1 / np.sqrt((8 / 3 + 7) / 2))
    assert cohens_d([2, 4, 6, 4], x0, "pooled_n") == pytest.approx(1 / np.sqrt((3 * 8 / 3 + 2 * 7) / 5))


def test_the_readings_of_the_paper() -> None:
    """SPEC §7.3: Std-T d = −0.298 at n = 58 as d_z is t = −2.27; pooled with r = 0.86 it is d_z = −0.563."""
    n, r, d = 58, 0.86, -0.298
    z = RNG.normal(size=(2, n))
    z = (z - z.mean(1, keepdims=True)) @ np.eye(n)
    q = np.linalg.qr(z.T)[0].T * np.sqrt(n - 1)  # uncorrelated, variance 1, mean 0
    x0, x1 = q[0], r * q[0] + np.sqrt(1 - r * r) * q[1] + d
    assert cohens_d(x1, x0) == pytest.approx(d)
    assert cohens_d(x1, x0, "d_z") == pytest.approx(d / np.sqrt(2 * (1 - r)))
    result = compare(x1, x0)
    assert result.t == pytest.approx(d / np.sqrt(2 * (1 - r)) * np.sqrt(n))
    assert result.t == pytest.approx(stats.ttest_rel(x1, x0).statistic)


def test_compare_is_the_paired_t_on_pair_means() -> None:
    c = compare(EDITED, BASE, PAIRS)
    reference = stats.ttest_rel(EDITED.reshape(15, 2).mean(1), BASE.reshape(15, 2).mean(1))
    assert (c.n, c.clusters, c.df, c.undefined) == (30, 15, 14, "")
    assert (c.t, c.p) == pytest.approx((reference.statistic, reference.pvalue))
    assert (c.ci_low, c.ci_high) == pytest.approx(tuple(reference.confidence_interval()))
    assert (c.baseline, c.condition) == pytest.approx((BASE.mean(), EDITED.mean()))
    assert c.difference == pytest.approx(c.condition - c.baseline)
    assert c.sd == pytest.approx((EDITED - BASE).std(ddof=1))
    assert (c.d_z, c.d_pooled) == pytest.approx((c.difference / c.sd, cohens_d(EDITED, BASE)))
    assert (c.d_kind, c.d) == ("pooled", c.d_pooled)
    assert c.d_low < c.d < c.d_high


def test_compare_without_clusters_is_scipys_paired_t() -> None:
    c, reference = compare(EDITED, BASE), stats.ttest_rel(EDITED, BASE)
    assert (c.clusters, c.t, c.p) == pytest.approx((30, reference.statistic, reference.pvalue))
    assert compare(EDITED, BASE, PAIRS).p > c.p


def test_compare_with_a_lost_order_is_the_cluster_robust_regression() -> None:
    y, labels = (EDITED - BASE)[:-1], PAIRS[:-1]
    fit = sm.OLS(y, np.ones(29)).fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
    c = compare(EDITED[:-1], BASE[:-1], labels)
    assert (c.difference, c.t) == pytest.approx((fit.params[0], fit.tvalues[0]))
    assert 13.7 < c.df < 14 and c.p == pytest.approx(2 * stats.t.sf(abs(c.t), c.df))


@pytest.mark.parametrize("kind", ["pooled", "pooled_n", "d_z"])
def test_d_of_totals_is_d(kind: str) -> None:
    totals = d_totals(EDITED + 1000, BASE + 1000, PAIRS)
    assert float(d_of_totals(kind, *totals)) == pytest.approx(cohens_d(EDITED, BASE, kind))  # type: ignore[arg-type]
    low, high = d_interval(EDITED, BASE, PAIRS, kind)  # type: ignore[arg-type]
    c = compare(EDITED, BASE, PAIRS, d_kind=kind)  # type: ignore[arg-type]
    assert (c.d_kind, c.d_low, c.d_high) == (kind, low, high)


def test_nothing_changed_is_undefined_and_not_zero() -> None:
    c = compare(BASE + 1e-7, BASE, PAIRS, resolution=1e-6)
    why = reasons(c.undefined)
    gone = ["ci_low", "ci_high", "t", "p", "d_pooled", "d_pooled_n", "d_z", "d", "d_low", "d_high"]
    assert sorted(why) == sorted(gone) and set(why.values()) == {"no case changed under the condition"}
    assert all(np.isnan(getattr(c, name)) for name in gone)
    assert np.isfinite(compare(BASE, BASE - 1e-7 * RNG.random(30), PAIRS).p)


def test_a_constant_shift_has_d_but_no_t() -> None:
    c = compare(BASE + 0.3, BASE, PAIRS)
    assert c.d_pooled == pytest.approx(0.3 / BASE.std(ddof=1))
    assert np.isfinite([c.d_low, c.d_high]).all()
    assert set(reasons(c.undefined)) == {"ci_low", "ci_high", "t", "p", "d_z"}


def test_few_pairs_have_no_interval_of_d() -> None:
    c = compare(EDITED[:6], BASE[:6], PAIRS[:6])
    assert np.isfinite(c.p) and np.isnan(c.d_low)
    assert c.undefined == "d_low, d_high: fewer than 8 clusters to resample"


def test_asymmetry_by_hand_and_with_lost_orders() -> None:
    """Pairs a: 3 − 1, b: 5 − 4, c: 2 − 2; d has one order only."""
    effects, first = [3, 1, 5, 4, 2, 2, 9], np.array([True, False] * 3 + [True])
    a = asymmetry(effects, first, list("aabbccd"))
    reference = stats.ttest_1samp([2, 1, 0], 0)
    assert (a.pairs, a.dropped, a.first, a.second, a.difference) == pytest.approx((3, 1, 10 / 3, 7 / 3, 1))
    assert (a.t, a.p, a.df) == pytest.approx((reference.statistic, reference.pvalue, 2))
    assert (a.ci_low, a.ci_high) == pytest.approx(tuple(reference.confidence_interval()))
    flat = asymmetry([0.0] * 6, first[:6], list("aabbcc"))
    assert np.isnan(flat.p) and "no case changed" in flat.undefined


def test_seeds_against_scipy() -> None:
    a, b = [1.61, 1.65, 1.60], [1.71, 1.75, 1.79]
    s, reference = compare_seeds(a, b), stats.ttest_ind(a, b, equal_var=False)
    assert (s.t, s.p, s.df) == pytest.approx((reference.statistic, reference.pvalue, reference.df))
    assert (s.ci_low, s.ci_high) == pytest.approx(tuple(reference.confidence_interval()))
    assert (s.n_a, s.n_b, s.difference, s.undefined) == (3, 3, pytest.approx(-0.13), "")
    assert (s.p_permutation, s.p_permutation_min) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(("a", "b"), [([1.0], [2.0]), ([1.0], [2.0, 3.0])])
def test_one_seed_has_a_difference_and_no_p(a: list[float], b: list[float]) -> None:
    s = compare_seeds(a, b)
    assert s.difference == np.mean(a) - np.mean(b)
    why = reasons(s.undefined)
    assert np.isnan([s.p, s.p_permutation, s.ci_low, s.ci_high, s.sd_a]).all()
    assert f"{len(a)} and {len(b)} training seeds" in why["p"] and "sd_a" in why


def test_identical_seeds_have_no_spread() -> None:
    s = compare_seeds([1.0, 1.0], [2.0, 2.0])
    assert np.isnan([s.p, s.t, s.df, s.ci_low]).all() and "without spread" in s.undefined


@pytest.mark.parametrize("side", ["two-sided", "greater", "less"])
def test_sign_flips_by_enumeration(side: str) -> None:
    x = RNG.normal(0.4, 1, size=8)
    sums = np.array([np.dot(s, x) for s in product((1, -1), repeat=8)])
    above, below = (sums >= x.sum() - 1e-9).mean(), (sums <= x.sum() + 1e-9).mean()
    expected = {"greater": above, "less": below, "two-sided": min(1, 2 * min(above, below))}[side]
    c = sign_flip(x, alternative=side)  # type: ignore[arg-type]
    assert c.exact and c.n == 8 and c.statistic == pytest.approx(x.mean())
    assert c.p == pytest.approx(expected)
    assert c.p_min == (2 if side == "two-sided" else 1) / 256


def test_sign_flips_of_clusters() -> None:
    """A cluster flips as one: its sum is all that counts; clusters that sum to 0 change nothing."""
    c = sign_flip([1, 2, 3, 1, 4, -4, 2, -2], list("aabbccdd"))
    assert (c.n, c.p, c.p_min) == (4, 0.5, 0.5)
    assert sign_flip([0.0, 0.0, 0.0]).p == 1
    assert sign_flip([0.0, 0.0, 2.0]).p == 1 and sign_flip([0.0, 2.0], alternative="greater").p == 0.5


def test_sign_flips_of_many_clusters_are_sampled_with_a_seed() -> None:
    x = RNG.normal(0.3, 1, size=40)
    one, other = sign_flip(x, seed=1), sign_flip(x, seed=2)
    assert one == sign_flip(x, seed=1) and not one.exact and one.p_min == 2 / 10000
    assert one.p == pytest.approx(other.p, abs=0.02)
    assert one.p == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.02)


def test_relabelling_by_enumeration() -> None:
    a, b = RNG.normal(1, 1, size=4), RNG.normal(size=3)
    everyone = np.concatenate([a, b])
    found = []
    for chosen in combinations(range(7), 4):
        rest = [i for i in range(7) if i not in chosen]
        found.append(everyone[list(chosen)].mean() - everyone[rest].mean())
    observed = a.mean() - b.mean()
    tails = [(np.array(found) >= observed - 1e-9).mean(), (np.array(found) <= observed + 1e-9).mean()]
    c = relabel(a, b)
    assert c.exact and c.p == pytest.approx(min(1, 2 * min(tails))) and c.p_min == 2 / 35
    assert not relabel(RNG.normal(size=10), RNG.normal(size=10)).exact


def test_rank_by_hand() -> None:
    draws = np.arange(20.0)
    assert rank_among(19.5, draws, alternative="greater").p == pytest.approx(1 / 21)
    assert rank_among(19.0, draws, alternative="greater").p == pytest.approx(2 / 21)
    assert rank_among(19.5, draws).p == pytest.approx(2 / 21)
    assert rank_among(0.0, draws, alternative="less").p == pytest.approx(2 / 21)
    c = rank_among(9.5, draws)
    assert (c.p, c.p_min, c.n, c.statistic) == (1, pytest.approx(2 / 21), 20, 0)


def test_a_straight_and_a_bent_curve() -> None:
    gates = np.array([0, 0.25, 0.5, 0.75, 1])
    offsets, slopes = RNG.normal(size=(2, 12, 1))
    straight = response_curve(gates, offsets + (2 + slopes) * gates)
    assert straight.slope == pytest.approx(2 + slopes.mean())
    e = stats.ttest_1samp(2 + slopes[:, 0], 0)
    assert (straight.slope_low, straight.slope_high) == pytest.approx(tuple(e.confidence_interval()))
    assert straight.p_slope == pytest.approx(e.pvalue)
    assert straight.r2 == pytest.approx(1) and straight.departure == pytest.approx(0, abs=1e-12)
    assert straight.intercept == pytest.approx(offsets.mean())
    assert set(reasons(straight.undefined)) == {"curvature_low", "curvature_high", "p_curvature"}
    bent = response_curve(gates, offsets + slopes * gates**2 + 3 * gates**2)
    assert bent.curvature == pytest.approx(3 + slopes.mean())
    assert bent.p_curvature < 0.001


def test_curve_against_regression_of_the_mean_curve() -> None:
    gates = np.array([0, 0.25, 0.5, 0.75, 1])
    y = RNG.normal(size=(30, 5)) + gates
    c, reference = response_curve(gates, y, PAIRS), stats.linregress(gates, y.mean(0))
    assert (c.slope, c.intercept, c.r2) == pytest.approx((reference.slope, reference.intercept, reference.rvalue**2))
    line = reference.intercept + reference.slope * gates
    assert c.departure == pytest.approx(np.abs(y.mean(0) - line).max())
    assert c.curvature == pytest.approx(np.polyfit(gates, y.mean(0), 2)[0])
    per_pair = [stats.linregress(gates, row).slope for row in y.reshape(15, 2, 5).mean(1)]
    assert c.p_slope == pytest.approx(stats.ttest_1samp(per_pair, 0).pvalue)


def test_a_gate_that_nothing_answers_is_undefined() -> None:
    flat = response_curve([0, 0.5, 1], np.repeat(RNG.normal(size=(10, 1)), 3, axis=1))
    assert np.isnan([flat.slope, flat.r2, flat.p_curvature]).all() and np.isfinite(flat.intercept)
    assert set(reasons(flat.undefined).values()) == {"no case responds to the gate"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare([1, 2, 3], [1, 2]), "equal lengths, got 3 and 2"),
        (lambda: compare([1, np.nan], [1, 2]), "condition: 1 of 2 values are not finite"),
        (lambda: compare([1, 2], [1, np.inf]), "baseline: 1 of 2"),
        (lambda: compare([1, 2], [2, 2], ["a", "a"]), "two clusters, got 1"),
        (lambda: compare([1, 2], [2, 2], resolution=-1.0), "negative"),
        (lambda: cohens_d([1, 2, 3], [1, 2], "d_z"), "needs pairs"),
        (lambda: d_interval([1, 2, 3], [1, 2]), "equal lengths"),
        (lambda: compare_seeds([], [1.0]), "first group: needs at least 1"),
        (lambda: compare_seeds([1.0], [np.nan]), "second group"),
        (lambda: asymmetry([1, 2], np.array([1, 0]), [1, 1]), "2 booleans"),
        (lambda: asymmetry([1, 2, 3], np.array([True, False, True]), [1, 1, 2]), "two pairs with both .* got 1 of 2"),
        (lambda: sign_flip([1, 2], ["a", "a"]), "two clusters"),
        (lambda: relabel([1.0], [2.0]), "more seeds"),
        (lambda: rank_among(float("nan"), [1.0]), "observed effect"),
        (lambda: rank_among(1.0, []), "draws: needs at least 1"),
        (lambda: response_curve([0, 1], np.ones((4, 2))), "three different gates, got 2"),
        (lambda: response_curve([0, 0.5, 1], np.ones((4, 2))), "3 gates"),
        (lambda: response_curve([0, 0.5, 1], np.full((4, 3), np.nan)), "finite"),
        (lambda: response_curve([0, 0.5, 1], np.ones((4, 3)), ["a"] * 4), "two clusters"),
    ],
)
def test_bad_input_is_one_line(call, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
