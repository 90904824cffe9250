"""False-positive rates, coverage and power under simulated designs like ours.

The binomial error of a rate of 5 % in 4,000 experiments is 0.35 points (two of them: 0.7), so a test is calibrated when
it rejects 3 to 7 % of true nulls; sampled permutation tests hold their level with any number of resamples. Exact tests
on few discrete outcomes may be conservative: they are held to at most 7 %.

What computes 4,000 experiments as one array does them always. What is called once for each experiment, or bootstraps
each, does 1,000, and 4,000 in `make test-slow`: there the error is 0.69 points, a test that holds its level stays
within 3 to 7 % with probability 0.997, and one that rejects 9.5 % passes with probability 0.003; the wrong analyses
below reject 9 % and more.
"""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.instruments.observations import Contrast, Measure, estimate
from streamscope.instruments.stats.estimators import (
    cluster_bootstrap,
    cluster_totals,
    d_columns,
    d_of_totals,
    read_clusters,
)
from streamscope.instruments.stats.held_out import CHOSEN, SIGNED, best_head_held_out
from streamscope.instruments.stats.proportions import paired_proportions
from tests.instruments.estimates import block, clustered_t, proportion

S = 4000
R = 0.86  # of condition with baseline, and of the two orders of a pair (SPEC §7.3)


@pytest.fixture(params=[1000, pytest.param(S, marks=pytest.mark.slow)], ids=lambda n: f"{n} experiments")
def first(request: pytest.FixtureRequest) -> slice:
    """Of the S experiments, those that a test called once for each does."""
    return slice(request.param)


def draw(rng: np.random.Generator, tails: str, *shape: int) -> np.ndarray:
    """Unit-variance noise; t3 has no kurtosis, lognormal is skewed."""
    if tails == "t3":
        return rng.standard_t(3, shape) / np.sqrt(3)
    if tails == "skewed":
        return (rng.lognormal(0, 0.5, shape) - np.exp(0.125)) / np.sqrt((np.exp(0.25) - 1) * np.exp(0.25))
    return rng.standard_normal(shape)


def pairs(tails: str = "normal", n: int = 30, effect: float = 0.0, seed: int = 1) -> tuple[np.ndarray, ...]:
    """Condition and baseline [S, 2n] and pair labels: corr(condition, baseline) = corr(orders' changes) = R."""
    rng = np.random.default_rng(seed)
    change = np.sqrt(R) * draw(rng, tails, S, n, 1) + np.sqrt(1 - R) * draw(rng, tails, S, n, 2)
    baseline = np.sqrt(R) * draw(rng, tails, S, n, 1) + np.sqrt(1 - R) * draw(rng, tails, S, n, 2)
    condition = baseline + np.sqrt(1 / R**2 - 1) * change + effect
    return condition.reshape(S, -1), baseline.reshape(S, -1), np.repeat(np.arange(n), 2)


def documents(tails: str = "normal", n: int = 60, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Totals and token counts [S, n]: lengths 10 to 250, a tenth of the variance of a token between documents."""
    rng = np.random.default_rng(seed)
    counts = np.clip(rng.lognormal(np.log(80), 0.7, (S, n)), 10, 250).round()
    totals = np.sqrt(0.1) * counts * draw(rng, tails, S, n) + np.sqrt(0.9 * counts) * rng.standard_normal((S, n))
    return totals, counts


def rejected(p: np.ndarray | list[float]) -> float:
    return float((np.asarray(p) <= 0.05).mean())


def calibrated(p: np.ndarray | list[float]) -> None:
    assert len(p) in (1000, S)
    assert 0.03 <= rejected(p) <= 0.07, f"rejects {rejected(p):.2%} of true nulls"


def conservative(p: np.ndarray | list[float]) -> None:
    assert len(p) >= 1000
    assert rejected(p) <= 0.07, f"rejects {rejected(p):.2%} of true nulls"


@pytest.mark.parametrize(("tails", "n"), [("normal", 60), ("t3", 60), ("normal", 3), ("normal", 5), ("normal", 12)])
def test_ratio_over_documents_of_unequal_length(tails: str, n: int) -> None:
    test = clustered_t(*documents(tails, n))
    calibrated(test.p)
    naive = 2 * stats.t.sf(np.abs(test.t), n - 1)
    assert n != 5 or rejected(naive) > 0.07, "D−1 degrees of freedom are too many for 5 documents"


def words_and_templates(n_words: int, n_templates: int, cases: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [S, n] with effects of words and templates and noise, every word in every template or `cases` drawn ones."""
    rng = np.random.default_rng(6)
    a, b = np.divmod(np.arange(n_words * n_templates), n_templates)
    if cases is not None:
        some = rng.choice(len(a), cases, replace=False)
        a, b = a[some], b[some]
    effects = rng.standard_normal((S, n_words))[:, a] + rng.standard_normal((S, n_templates))[:, b]
    return effects + 2 * rng.standard_normal((S, len(a))), a, b


@pytest.mark.parametrize("design", [(20, 20, None), (12, 10, None), (40, 30, 300), (96, 102, 1000)])
def test_words_crossed_with_templates(design: tuple[int, int, int | None]) -> None:
    x, a, b = words_and_templates(*design)
    within = read_clusters(np.stack([a, b], 1), len(a))
    calibrated(clustered_t(*within.totals(x), within.shared).p)
    for one in (a, b):  # either alone rejects 10 to 14 % of true nulls
        assert rejected(clustered_t(*cluster_totals(x, one)).p) > 0.09


@pytest.mark.parametrize("sign", [1, -1])
def test_words_that_are_meant_here_and_compete_there(sign: int) -> None:
    """60 words, 400 cases of two of them; a word's effect is the same in both places, or the opposite."""
    rng = np.random.default_rng(7)
    pairs = np.array([rng.choice(60, 2, replace=False) for _ in range(400)])
    words = rng.standard_normal((S, 60))
    x = words[:, pairs[:, 0]] + sign * words[:, pairs[:, 1]] + rng.standard_normal((S, 400))
    alike = read_clusters([(f"w{a}", f"w{b}") for a, b in pairs], 400)
    found = clustered_t(*alike.totals(x), alike.shared)
    apart = read_clusters(pairs, 400)
    if sign > 0:
        calibrated(found.p)
        assert rejected(clustered_t(*apart.totals(x), apart.shared).p) > 0.12
    else:
        conservative(found.p)


def clustered_hits(rng: np.random.Generator, share: float, n: int, m: int) -> np.ndarray:
    """Hits [S, n, m], n stories of m cases; the rate varies between stories, Beta with 5 pseudo-cases."""
    rate = rng.beta(5 * share, 5 * (1 - share), (S, n, 1))
    return rng.random((S, n, m)) < rate


def test_coverage_of_clustered_wilson(first: slice, share: float = 0.7) -> None:
    hits = clustered_hits(np.random.default_rng(13), share, 40, 5).reshape(S, -1)[first]
    labels = np.repeat(np.arange(40), 5)
    found = [proportion(row, labels) for row in hits]
    assert 0.93 <= np.mean([e.low <= share <= e.high for e in found]) <= 0.97
    naive = [proportion(row) for row in hits[:1000]]
    assert np.mean([e.low <= share <= e.high for e in naive]) < 0.9


@pytest.mark.parametrize("n", [29, 145])
def test_mcnemar_and_its_interval(n: int, first: slice) -> None:
    rng = np.random.default_rng(14)
    both = rng.random((S, n, 1))
    hits = 0.5 * both + 0.5 * rng.random((S, n, 2)) > 0.55
    found = [paired_proportions(row[:, 0], row[:, 1]) for row in hits[first]]
    conservative([f.p for f in found])
    assert 0.93 <= np.mean([f.low <= 0 <= f.high for f in found]) <= 0.98


@pytest.mark.parametrize("n", [8, 30])
def test_coverage_of_the_interval_of_d(n: int, first: slice) -> None:
    """Planted −0.3 sd, as Std-T's in paper LFA."""
    condition, baseline, labels = pairs(n=n, effect=-0.3, seed=18)
    both = d_columns(np.stack([condition[first], baseline[first]]))
    totals = (cluster_totals(one, labels)[0] for one in both)
    low, high = cluster_bootstrap(d_of_totals, *totals, resamples=2000 if n < 30 else 1000)
    truth = -0.3 / np.sqrt((1 + 1 / R**2) / 2)
    assert 0.93 <= np.mean((low <= truth) & (truth <= high)) <= 0.975


def estimates_of(measure: Measure, total: np.ndarray, size: np.ndarray | float) -> pd.DataFrame:
    """The estimate of every experiment [experiments, units], each a cell."""
    contrasts = [Contrast(quantity=str(i), weights={i: 1.0}) for i in range(len(total))]
    return estimate(block(total, size, measure=measure), contrasts).frame


@pytest.mark.parametrize("documents", [20, 100])
def test_intervals_of_shares_hold_where_one_document_has_most_of_the_tokens(documents: int) -> None:
    """Documents have shares of their own, uniform around .5; one has two thirds of all tokens. Hall's correction takes
    it for skewness: with it, 48 % and less are covered."""
    size = np.ones((400, documents))
    size[:, 0] = 2.0 * documents
    total = size * np.random.default_rng(0).uniform(0.2, 0.8, size.shape)
    measure = Measure(name="share", unit="share of tokens", resolution=0.0, limits=(0.0, 1.0))
    frame = estimates_of(measure, total, size)
    assert ((frame["low"] <= 0.5) & (frame["high"] >= 0.5)).mean() > 0.85


@pytest.mark.parametrize(("heads", "signed"), [(1, True), (2, False)])
def test_the_best_head_of_noise_is_no_more_often_significant_than_by_chance(heads: int, signed: bool) -> None:
    """The cases of each half also choose the head (or its sign) that judges the other; without the factor more than 8 %
    of true nulls are rejected at .05."""
    rng, n, scores = np.random.default_rng(1), 40, []
    table = pd.DataFrame({"head": [f"L0.H{h}" for h in range(heads)] * n, "case": np.repeat(np.arange(n), heads)})
    side, signs = table["case"].to_numpy() % 2, ("below", "above") if signed else None
    for _ in range(300):
        rows, _ = best_head_held_out(table.assign(value=rng.standard_normal(len(table))), ["value"], side, signs=signs)
        scores.append(rows.sort_values("case")["value"].to_numpy())

    def rejects(inflation: float) -> float:
        measure = Measure(name="best", unit="nats", resolution=0.0, inflation=inflation)
        return rejected(estimates_of(measure, np.array(scores), 1.0)["p"].to_numpy())

    assert rejects(SIGNED if signed else CHOSEN) < 0.08 < rejects(1.0)
