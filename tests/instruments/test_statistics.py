"""Estimates, intervals, effect sizes, resampling and corrections against plain loops, scipy and statsmodels."""

import gc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.stats import estimators
from streamscope.instruments.stats.estimators import (
    cluster_bootstrap,
    cluster_totals,
    cohens_d,
    d_columns,
    d_of_totals,
    degrees_of_freedom,
    holm,
    rank_among,
    ratio,
    ratio_and_error,
    read_clusters,
    sign_flip,
    statistic_interval,
)
from streamscope.instruments.stats.held_out import paired_proportions
from tests.instruments.estimates import clustered_t, mean, proportion

RNG = np.random.default_rng(0)


def test_unequal_clusters_against_the_sandwich_of_statsmodels() -> None:
    """The cluster-robust variance of an intercept, D/(D−1) · (N−1)/(N−1) corrected."""
    labels = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 9])
    x = RNG.normal(size=24) + RNG.normal(size=6)[labels]
    fit = sm.OLS(x, np.ones(24)).fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
    estimate, error = ratio_and_error(*cluster_totals(x, labels))
    assert float(estimate) == pytest.approx(fit.params[0])
    assert float(error) == pytest.approx(fit.bse[0])
    e = mean(x, labels)
    half = stats.t.ppf(0.975, satterthwaite([1, 2, 3, 4, 5, 9])) * fit.bse[0]
    assert (e.low, e.high) == pytest.approx((fit.params[0] - half, fit.params[0] + half))


def satterthwaite(sizes: list[int]) -> float:
    """2 (mean of v)² / variance of v, of CR2's v = Σ_d (a_d' ε̂_d)² under independent normal errors, by matrices."""
    n, labels = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    residual = np.eye(n) - 1 / n
    rows = [(labels == d) @ residual / np.sqrt(1 - size / n) for d, size in enumerate(sizes)]
    m = np.array(rows) @ np.array(rows).T
    return float(np.trace(m) ** 2 / np.trace(m @ m))


@pytest.mark.parametrize("sizes", [[1, 2, 3, 4, 5, 9], [3, 1], [200, 1, 1, 1], [2] * 7])
def test_degrees_of_freedom_are_those_of_satterthwaite(sizes: list[int]) -> None:
    df = float(degrees_of_freedom(np.array(sizes, float)))
    assert df == pytest.approx(satterthwaite(sizes))
    assert 1 - 1e-9 <= df <= len(sizes) - 1 + 1e-9
    both = degrees_of_freedom(np.array([sizes, sizes[::-1]], float))
    assert both == pytest.approx([df, df])


def test_totals_over_leading_axes() -> None:
    x = RNG.normal(size=(2, 3, 5))
    totals, counts = cluster_totals(x, read_clusters(["b", "a", "b", "c", "b"], 5).codes)
    assert counts.tolist() == [3, 1, 1]
    assert np.allclose(totals[..., 0], x[..., [0, 2, 4]].sum(-1))
    assert np.array_equal(totals[..., 1:], x[..., [1, 3]])


def test_wilson_by_hand() -> None:
    """7 of 10, z = 1.96: centre (0.7 + z²/20)/(1 + z²/10), half z sqrt(0.021 + z²/400)/(1 + z²/10)."""
    z = stats.norm.ppf(0.975)
    e = proportion(np.arange(10) < 7)
    centre, half = (0.7 + z**2 / 20) / (1 + z**2 / 10), z * np.sqrt(0.021 + z**2 / 400) / (1 + z**2 / 10)
    assert (e.mean, e.low, e.high, e.n) == pytest.approx((0.7, centre - half, centre + half, 10))
    none = proportion(np.zeros(50), np.repeat(np.arange(10), 5))
    assert none.mean == none.low == 0 and none.n == 10
    assert none.high == pytest.approx(stats.binomtest(0, 10).proportion_ci(method="wilson").high)


def test_mcnemar_by_hand() -> None:
    """8 cases only the head, 2 only the rule: p = 2 (1 + 10 + 45)/1024."""
    hits = np.array([1] * 8 + [0] * 2 + [1] * 5 + [0] * 5)
    rule = np.array([0] * 8 + [1] * 2 + [1] * 5 + [0] * 5)
    d = paired_proportions(hits, rule)
    assert d.n == 20 and d.p == pytest.approx(112 / 1024)
    assert (d.share, d.reference, d.difference) == pytest.approx((0.65, 0.35, 0.3))
    p12, p21 = 9 / 22, 3 / 22
    half = stats.norm.ppf(0.975) * np.sqrt((p12 + p21 - (p12 - p21) ** 2) / 22)
    assert (d.low, d.high) == pytest.approx((p12 - p21 - half, p12 - p21 + half))
    assert paired_proportions(hits, rule, np.arange(20)).p == pytest.approx(d.p)


def test_bootstrap_repeats_and_takes_many_cells_at_once() -> None:
    x = RNG.normal(size=(3, 4, 20))
    once, again = (cluster_bootstrap(ratio, x, np.ones(20), seed=5) for _ in range(2))
    assert np.array_equal(once, again) and once[0].shape == (3, 4)
    one = cluster_bootstrap(ratio, x[1, 2], np.ones(20), seed=5)
    assert [float(v[1, 2]) for v in once] == pytest.approx([float(v) for v in one])
    assert not np.array_equal(once[0], cluster_bootstrap(ratio, x, np.ones(20), seed=6)[0])


def of_sums(*totals: np.ndarray, axis: int) -> np.ndarray:
    """The first total, beside any others; the axis must be given."""
    return np.asarray(totals[0].sum(axis))


@pytest.mark.parametrize("statistic", [ratio, of_sums])
def test_bootstrap_is_scipys_at_the_expanded_level(statistic: Callable[..., np.ndarray]) -> None:
    columns = np.random.default_rng(9).uniform(1, 3, (2 if statistic is ratio else 1, 10))
    level = 1 - 2 * stats.norm.sf(np.sqrt(10 / 9) * stats.t.ppf(0.975, 9))
    options = {"paired": True, "vectorized": True, "confidence_level": level, "n_resamples": 300}
    want = stats.bootstrap(tuple(columns), statistic, **options, rng=np.random.default_rng(3)).confidence_interval
    ours: dict[str, Any] = {"resamples": 300, "seed": 3}
    assert cluster_bootstrap(statistic, *columns, **ours) == tuple(want)
    assert statistic_interval(statistic, *columns, clusters=read_clusters(None, 10), **ours) == tuple(want)


def test_bootstrap_of_what_some_resamples_lack_is_quiet() -> None:
    first = np.eye(9)[0]
    for totals in (first, np.ones(9)):  # 0/0 and 1/0 where the first cluster is not drawn
        high = cluster_bootstrap(ratio, totals, first, resamples=100)[1]
        assert not np.isfinite(high)


def crossed(seed: int, n: int = 60, pool: int = 7) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Cases of two orders each, with a word of either kind from pools of their own."""
    rng = np.random.default_rng(seed)
    pairs = [(f"target {a}", f"other {b}") for a, b in rng.integers(0, pool, (n // 2, 2))]
    labels = [(f"pair {i // 2}", *pairs[i // 2]) for i in range(n)]
    effects = {label: rng.standard_normal() for one in labels for label in one}
    return np.array([sum(effects[w] for w in one) for one in labels]) + rng.standard_normal(n), labels


def plain_squares(x: np.ndarray, linked: Callable[[int, int], bool]) -> float:
    """Σ e_i e_j over all ordered pairs of observations that are linked."""
    e = x - sum(x) / len(x)
    return float(sum(e[i] * e[j] for i in range(len(x)) for j in range(len(x)) if linked(i, j)))


def plain_error(x: np.ndarray, labels: list[tuple[str, ...]]) -> float:
    """Standard error of the mean as `instruments.stats.estimators` says it, by loops over pairs of observations."""
    kinds = range(len(labels[0]))
    sums = [plain_squares(x, lambda i, j, k=k: labels[i][k] == labels[j][k]) for k in kinds]
    sums.append(plain_squares(x, lambda i, j: any(labels[i][k] == labels[j][k] for k in kinds)))
    sums.append(plain_squares(x, lambda i, j: bool({*labels[i]} & {*labels[j]})))
    d = min(len({one[k] for one in labels}) for k in kinds)
    return float(np.sqrt(d / (d - 1) * max(sums)) / len(x))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alike", [False, True])
def test_error_over_several_kinds_is_the_sum_over_pairs_that_share_a_label(seed: int, alike: bool) -> None:
    x, labels = crossed(seed)
    if alike:  # the same words are meant in some cases and compete in others, in one case even both
        apart = labels
        labels = [tuple(word.replace("target ", "").replace("other ", "") for word in one) for one in labels]
        x = x + np.array([2.0 * int(one[1]) + 2.0 * int(one[2]) for one in labels])
        assert plain_error(x, labels) > plain_error(x, apart)
    estimators._crossed.cache_clear()  # what is remembered would hide a change from `make mutants`
    within = read_clusters(labels, len(x))
    ratio_, error = ratio_and_error(*cluster_totals(x, within.codes), within.shared)
    assert float(ratio_) == pytest.approx(x.mean(), rel=1e-12)
    assert float(error) == pytest.approx(plain_error(x, labels), rel=1e-9)
    found = mean(x, labels)
    sizes = [np.unique([one[k] for one in labels], return_counts=True)[1].astype(float) for k in range(3)]
    df = min(float(degrees_of_freedom(n)) for n in sizes)
    assert found.n == min(map(len, sizes))
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, df) * plain_error(x, labels), rel=1e-9)
    assert (found.low, found.high) != tuple(mean(x, [one[0] for one in labels])[2:4])


def test_one_kind_of_labels_is_what_one_label_is() -> None:
    x, labels = crossed(0)
    one = mean(x, [label[1] for label in labels])
    assert mean(x, [(label[1],) for label in labels]) == one
    np.testing.assert_array_equal(mean(x, np.array([label[1] for label in labels])[:, None]), one)
    nested = mean(x, [(*label[:1], label[1]) for label in labels])  # a pair has one target noun: the noun decides
    np.testing.assert_allclose([nested.mean, *nested[2:]], [one.mean, *one[2:]], rtol=1e-12)
    pairs = [("a", "x"), ("b", "x"), ("a", "y"), ("b", "x")]
    tuples, lists = (read_clusters([kind(pair) for pair in pairs], 4) for kind in (tuple, list))
    assert read_clusters([], 0).count == read_clusters(None, 0).count == 0
    assert tuples.codes.tolist() == lists.codes.tolist() == [0, 1, 2, 1] and tuples.count == lists.count == 2


def test_numbers_are_labels_of_their_column_and_texts_of_all() -> None:
    x = np.random.default_rng(1).standard_normal(48)
    a, b = np.divmod(np.arange(48), 6)
    codes, texts = np.stack([a, b], 1), [(f"row {i}", f"column {j}") for i, j in zip(a, b, strict=True)]
    np.testing.assert_allclose(mean(x, codes), mean(x, texts), rtol=1e-12)
    same = [(str(i), str(j)) for i, j in codes]
    shared = [("row 1" if i == j == 0 else f"column {j}", f"row {i}") for i, j in codes]  # one text of both kinds
    assert [len(read_clusters(one, 48).shared.sums) for one in (same, texts, shared)] == [2, 1, 2]  # type: ignore[union-attr]


def test_a_variance_of_several_kinds_is_never_below_that_of_one() -> None:
    """Rows and columns of opposite effects: inclusion and exclusion alone gives a negative variance."""
    a, b = np.divmod(np.arange(16), 4)
    x = np.where((a + b) % 2 == 0, 1.0, -1.0)  # every row and column sums to 0, every cell does not
    within = read_clusters(np.stack([a, b], 1), 16)
    assert within.shared is not None
    (terms,) = within.shared.sums
    signed = sum(sign * np.square(cluster_totals(x[at], codes)[0]).sum() for sign, at, codes in terms)
    assert signed < 0
    assert float(within.shared.squares(x)) == 0
    y = x + np.array([3.0, -1.0, -1.0, -1.0])[a]
    test = clustered_t(*cluster_totals(y, within.codes), within.shared)
    assert float(test.error) >= float(clustered_t(*cluster_totals(y, a)).error) > 0


def test_hits_use_all_kinds() -> None:
    x, labels = crossed(2)
    base = np.random.default_rng(3).standard_normal(len(x))
    hit, rule = x > 0, base > 0
    paired = paired_proportions(hit, rule, labels)
    t = paired.difference / plain_error(hit.astype(float) - rule, labels)
    df = float(degrees_of_freedom(read_clusters(labels, len(x)).shared.sizes, read_clusters(labels, len(x)).shared))  # type: ignore[union-attr]
    assert paired.p == pytest.approx(2 * stats.t.sf(abs(t), df), rel=1e-9)
    wide, narrow = proportion(hit, labels), proportion(hit, [one[0] for one in labels])
    assert wide.high - wide.low > narrow.high - narrow.low


def test_an_interval_of_a_statistic_over_several_kinds_is_linearised() -> None:
    """Of a mean it is the interval of `mean`; of a ratio that of the residuals y − R x."""
    x, labels = crossed(4, pool=10)
    y = 2 + np.random.default_rng(5).random(len(x))
    within = read_clusters(labels, len(x))
    totals, counts = cluster_totals(x, within.codes)
    low, high = statistic_interval(ratio, totals, counts, clusters=within)
    np.testing.assert_allclose([low, high], mean(x, labels)[2:4], rtol=1e-7)
    low, high = statistic_interval(ratio, totals, cluster_totals(y, within.codes)[0], clusters=within)
    r = x.sum() / y.sum()
    half = stats.t.ppf(0.975, float(degrees_of_freedom(counts, within.shared))) * plain_error(x - r * y, labels)
    np.testing.assert_allclose([low, high], [r - half * len(x) / y.sum(), r + half * len(x) / y.sum()], rtol=1e-6)


def test_a_linearised_interval_of_several_rows_is_that_of_each() -> None:
    """In any unit; of a sum it is that of the mean, times the cases; of what does not vary it is undefined."""
    grid = np.stack(np.divmod(np.arange(64), 8), 1)
    x = np.random.default_rng(7).normal(0.5, 1, (3, 64)) * np.array([1e-9, 1, 1e9])[:, None]
    within = read_clusters(grid, 64)
    totals, counts = cluster_totals(x, within.codes)
    found = np.array([statistic_interval(ratio, row, counts, clusters=within) for row in totals]).T
    sums = np.array([statistic_interval(of_sums, row, clusters=within) for row in totals]).T
    for i, row in enumerate(x):
        want = mean(row, grid)
        np.testing.assert_allclose(found[:, i], want[2:4], rtol=1e-6)
        np.testing.assert_allclose(sums[:, i], 64 * np.array(want[2:4]), rtol=1e-6)
        one = ratio_and_error(totals[i], counts, within.shared)
        np.testing.assert_allclose([a[i] for a in ratio_and_error(totals, counts, within.shared)], one, rtol=1e-12)
    assert np.isnan(statistic_interval(ratio, np.zeros(64), counts, clusters=within)).all()


def test_statistics_of_one_label_refuse_several() -> None:
    x, labels = crossed(0)
    for call, line in (
        (lambda: sign_flip(x, labels), "takes one cluster label per value, here are several"),
        (lambda: mean(x, [labels[0][:2], *labels[1:]]), "of equally many kinds"),
        (lambda: mean(x, [(None, "a", "b"), *labels[1:]]), "1 cluster labels are missing"),
    ):
        with pytest.raises(InputError, match=line):
            call()
    assert np.isnan(mean(x, [(*one[:2], "same") for one in labels]).low)


def test_d_of_several_rows_far_from_zero_is_that_of_each() -> None:
    rng = np.random.default_rng(4)
    x1, x0 = rng.normal(size=(2, 3, 40)) + np.array([0.0, 1e5, -3e6])[:, None]
    codes = np.repeat(np.arange(10), 4)
    found = d_of_totals(*(cluster_totals(one, codes)[0] for one in d_columns(np.stack([x1, x0]))))
    np.testing.assert_allclose(found, [cohens_d(a, b) for a, b in zip(x1, x0, strict=True)], rtol=1e-6)


def test_d_needs_two_values_in_each_condition() -> None:
    """A spread of 12/√2 = 8.5 roundings of the largest value is one, 10/√2 = 7.1 is none."""
    assert np.isnan(cohens_d([1.0], [0.0, 1.0])) and np.isnan(cohens_d([1.0, 2.0], [0.0]))
    assert cohens_d([1.0, 3.0], [0.0, 1.0]) == pytest.approx(1.5 / np.sqrt(1.25))
    eps = np.finfo(float).eps
    for scale in (1.0, 2.0**20):
        some, none = scale * np.array([1, 1 + 12 * eps]), scale * np.array([1, 1 + 10 * eps])
        assert np.isfinite(cohens_d(some, [0.0, 0.0], "d_z")) and np.isnan(cohens_d(none, [0.0, 0.0], "d_z"))
    flat = d_columns(np.array([[[1.0, 1.0], [2.0, 2.0]], np.ones((2, 2))]))
    np.testing.assert_array_equal(d_of_totals(*flat), [np.nan, np.inf])  # no warning: 0/0 and 1/0


def test_cohens_d_by_hand() -> None:
    """(2, 4, 6) − (1, 2, 6): means 4 and 3, variances 4 and 7, differences 1, 2, 0 of variance 1."""
    x1, x0 = [2, 4, 6], [1, 2, 6]
    assert cohens_d(x1, x0) == pytest.approx(1 / np.sqrt(5.5))
    assert cohens_d(x1, x0, "d_z") == pytest.approx(1.0)
    assert cohens_d([2, 4, 6, 4], x0) == pytest.approx(1 / np.sqrt((8 / 3 + 7) / 2))


def test_sign_flips_by_enumeration() -> None:
    x = RNG.normal(0.4, 1, size=8)
    sums = np.array([np.dot(s, x) for s in product((1, -1), repeat=8)])
    above, below = (sums >= x.sum() - 1e-9).mean(), (sums <= x.sum() + 1e-9).mean()
    assert sign_flip(x) == pytest.approx(min(1, 2 * min(above, below)))


def test_sign_flips_of_clusters() -> None:
    """A cluster flips as one: its sum is all that counts; clusters that sum to 0 change nothing."""
    assert sign_flip([1, 2, 3, 1, 4, -4, 2, -2], list("aabbccdd")) == 0.5
    assert sign_flip([0.0, 0.0, 0.0]) == sign_flip([0.0, 0.0, 2.0]) == 1


def test_sign_flips_of_many_clusters_are_sampled_with_a_seed() -> None:
    x = RNG.normal(0.3, 1, size=40)
    one, other = sign_flip(x, seed=1), sign_flip(x, seed=2)
    assert one == sign_flip(x, seed=1) != other == pytest.approx(one, abs=0.02)
    assert one == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.02)
    few = sign_flip(x, resamples=99) * 100 / 2  # patterns as extreme, of 99 and the one that was seen
    assert few == pytest.approx(round(few))
    assert sign_flip(np.ones(13)) == 2 / 2**13, "as many as resamples are counted"
    assert sign_flip(x) == sign_flip(x, seed=0)


def test_rank_by_hand() -> None:
    draws = np.arange(20.0)
    assert rank_among(19.5, draws, alternative="greater").p == pytest.approx(1 / 21)
    assert rank_among(19.0, draws, alternative="greater").p == pytest.approx(2 / 21)
    tenth, same = np.array([0.1 + 0.2] * 19), 0.3  # equal but for rounding: .30000000000000004
    assert rank_among(same, tenth, alternative="greater").p == rank_among(same, tenth).p == 1
    assert rank_among(0.3 + 1e-9, tenth, alternative="greater").p == pytest.approx(1 / 20)
    assert rank_among(19.5, draws).p == pytest.approx(2 / 21) == pytest.approx(rank_among(-0.5, draws).p)
    assert rank_among(9.5, draws) == (1, pytest.approx(2 / 21))
    assert rank_among(1.0, [0.0], alternative="greater").p_min == 1 / 2 and rank_among(1.0, [0.0]).p_min == 1


def test_undefined_cells_are_no_tests() -> None:
    given = np.array([[0.01, np.nan], [0.04, np.nan]])
    found = holm(given)
    assert np.isnan(found[:, 1]).all() and found[:, 0].tolist() == pytest.approx([0.02, 0.04])
    assert given[0, 0] == 0.01, "what was given is left alone"
    one = holm([0.01, None, None])  # type: ignore[list-item]
    assert one[0] == 0.01 and np.isnan(one[1:]).all()
    assert holm([0.7, 0.9]).max() <= 1


def test_corrections_are_those_of_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # statsmodels collects garbage at every call
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 36):
        for _ in range(20):
            p = rng.random(size).round(2)  # with ties
            assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
