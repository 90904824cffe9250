"""Rows of hand-made tables, shares of clusters, halves and dealt labels, against loops, scipy and statsmodels."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import (
    cluster_totals,
    effective_n,
    read_clusters,
    score_p,
    sign_flip,
    wilson,
)
from streamscope.instruments.stats.held_out import CHOSEN, RULES, deal, halves, held_out, paired_proportions
from streamscope.probes.linear.measure import dealt
from tests.instruments.estimates import proportion

Z = stats.norm.ppf(0.975)


def test_wilson_of_clusters_solves_its_equation() -> None:
    x = (np.random.default_rng(1).random((10, 5)) < np.linspace(0.1, 0.9, 10)[:, None]).astype(float)
    labels, p = np.repeat(np.arange(10), 5), x.mean()
    variance = x.mean(1).var(ddof=1) / 10
    z, t = Z, stats.t.ppf(0.975, 9)
    n = p * (1 - p) / variance * (z / t) ** 2
    within = read_clusters(labels, 50)
    assert effective_n(x.sum(1), np.full(10, 5.0)) == pytest.approx(n)
    assert effective_n(x.sum(1), np.full(10, 5.0), within) == pytest.approx(n)
    for inflation in (1.0, 1.6):
        bounds = wilson(x.ravel(), within, inflation)
        for bound in bounds:
            assert abs(p - bound) == pytest.approx(z * np.sqrt(bound * (1 - bound) * inflation / n))
            assert score_p(x.ravel(), bound, within, inflation) == pytest.approx(0.05)
    e = proportion(x.ravel(), labels)
    assert (e.low, e.high) == pytest.approx(wilson(x.ravel(), within))
    assert e.n == 10


def test_worth_of_clusters_has_bounds() -> None:
    """All of one cluster and none of the other are worth one case; one hit in every cluster no more than its cases."""
    assert effective_n(np.array([3.0, 0.0]), np.array([3.0, 3.0])) == 1
    assert effective_n(np.ones(20), np.full(20, 2.0)) == pytest.approx(40 * (Z / stats.t.ppf(0.975, 19)) ** 2)
    assert effective_n(np.full(3, 2.0), np.full(3, 2.0)) == 3 == effective_n(np.zeros(3), np.full(3, 2.0))


def test_worth_of_clusters_of_unequal_size() -> None:
    """SE² of the ratio, and Satterthwaite's degrees of freedom: 3.4, not D − 1 = 5."""
    hits, sizes = np.array([1.0, 0, 3, 1, 5, 1]), np.array([1.0, 2, 3, 4, 5, 9])
    p, share = 11 / 24, sizes / 24
    w = share**2 / (1 - share)
    df = 1 / ((share**2).sum() + w.sum() ** 2 - (w**2).sum())
    square = 6 / 5 * ((hits - p * sizes) ** 2).sum() / 24**2
    n = p * (1 - p) / square * (Z / stats.t.ppf(0.975, df)) ** 2
    assert 3.3 < df < 3.4 and effective_n(hits, sizes) == pytest.approx(n)


def test_worth_of_cases_that_share_words_and_templates() -> None:
    x = np.array([[1, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]], float)
    labels = [(f"word {i}", f"template {j}") for i in range(4) for j in range(6)]
    within, p = read_clusters(labels, 24), x.mean()
    variance = 4 / 3 * ((x - p).sum(1) ** 2).sum() / 24**2  # by words alone, the largest here
    n = p * (1 - p) / variance * (Z / stats.t.ppf(0.975, 3)) ** 2
    assert effective_n(*cluster_totals(x.ravel(), within.codes), clusters=within) == pytest.approx(n) and n < 4
    e = proportion(x.ravel(), labels)
    assert (e.low, e.high) == wilson(x.ravel(), within) and e.high - e.low > 0.5


def test_p_of_a_share() -> None:
    x = np.array([1.0] * 7 + [0.0] * 3)
    assert score_p(x, 0.5, None) == pytest.approx(2 * stats.norm.sf(0.2 / np.sqrt(0.25 / 10)))
    assert score_p(x, 0.9, None) == pytest.approx(2 * stats.norm.sf(0.2 / np.sqrt(0.09 / 10)))
    assert score_p(x, 0.0, None) == score_p(x, 1.0, None) == 1


def test_paired_shares_of_clusters() -> None:
    rng = np.random.default_rng(2)
    x, y, labels = rng.random(60) < 0.6, rng.random(60) < 0.5, np.repeat(np.arange(30), 2)
    d = paired_proportions(x, y, labels, resamples=99, seed=3)
    change = x.astype(float) - y
    low, high = stats.ttest_1samp(change.reshape(30, 2).mean(1), 0).confidence_interval()
    assert (d.low, d.high) == pytest.approx((low, high))
    assert d.p == sign_flip(change, labels, resamples=99, seed=3) != sign_flip(change, labels, resamples=99)
    assert (d.n, d.clusters) == (60, 30)
    two = paired_proportions([1, 1, 0, 0], [0, 1, 0, 0], list("aabb"))
    assert (two.clusters, two.p) == (2, 1) and proportion([1, 1, 0, 0], list("aabb")).n == 2
    many = paired_proportions(x, y, labels)
    assert many.p == sign_flip(change, labels) and many.low == d.low


def test_differences_of_shares_stay_within_one() -> None:
    one, none = [1, 1, 1, 1], [0, 0, 0, 0]
    assert paired_proportions(one[:2], none[:2]).high == 1 and paired_proportions(none[:2], one[:2]).low == -1
    up, down = ([1, 1, 1, 0], none, list("aabb")), (none, [1, 1, 1, 0], list("aabb"))
    assert paired_proportions(*up).high == 1 and paired_proportions(*up).low == -1
    assert paired_proportions(*down).low == -1 and paired_proportions(*down).high == 1
    assert paired_proportions(one, one).p == 1 and paired_proportions(one, none).clusters == 4
    assert paired_proportions(one, one).low < 0 < paired_proportions(one, one).high
    assert paired_proportions(one, none).p == pytest.approx(2 / 2**4) == paired_proportions(none, one).p
    p12, p21 = 11 / 22, 1 / 22
    half = Z * np.sqrt((p12 + p21 - (p12 - p21) ** 2) / 22)
    assert paired_proportions([1] * 20, [0, 1] * 10).high == pytest.approx(p12 - p21 + half)
    same = paired_proportions(one, one, [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")])
    assert same.p == 1 and np.isnan(same.low)


def cases(n: int, per_text: int) -> pd.DataFrame:
    """n cases of three heads with random hits, attention, chance and rules; per_text of them in a text."""
    rng = np.random.default_rng(9)
    heads = [(0, 1, "L0.H1"), (1, 0, "L1.H0"), (1, 1, "L1.H1")]
    rows = [(f"text {i // per_text}", "ab"[i // per_text % 2], *head) for i in range(n) for head in heads]
    table = pd.DataFrame(rows, columns=["cluster", "relation", "layer", "index", "head"])
    for name in ("hit", *RULES):
        table[name] = rng.random(len(table)) < 0.5
    return table.assign(attention=rng.random(len(table)), chance=rng.random(len(table)))


@pytest.mark.parametrize("texts", ["one case each", "two cases each", "a chain of nouns"])
def test_held_out_is_a_loop_over_halves(texts: str) -> None:
    """In the chain the noun that is meant in one text competes in the next: every label of a kind is of one case."""
    table = cases(60, 2) if texts == "two cases each" else cases(24, 1)  # of thirty texts signs are drawn
    if texts == "a chain of nouns":
        table["cluster"] = pd.Series([(f"text {i // 3}", f"noun {i // 3}", f"noun {i // 3 + 1}") for i in table.index])
    side, apart = halves(table, 1)
    parts = []
    for train in (0, 1):
        seen, other = table[side == train], table[side != train]
        scores = {h: (part["hit"].mean(), part["attention"].mean()) for h, part in seen.groupby("head")}
        head = max(scores, key=scores.__getitem__)
        parts.append((head, other[other["head"] == head]))
    assert parts[0][0] != parts[1][0], "so that it matters by which half a head was chosen"
    parts.append((f"{parts[0][0]} / {parts[1][0]}", pd.concat([one for _, one in parts])))
    expected = []
    for name, (head, one) in zip(("A→B", "B→A", "both"), parts, strict=True):
        for rule in RULES:
            labels = None if texts == "one case each" else one["cluster"].to_numpy()
            d = paired_proportions(one["hit"], one[rule], labels, seed=1)._asdict()
            row = {"halves": name, "head": head, "rule": rule, "top1": d["share"], "rule_share": d["reference"]}
            row |= {"chance": one["chance"].mean(), "difference": d["difference"]}
            wider = CHOSEN**0.5 if name == "both" else 1.0  # each half has also chosen a head
            for end in ("low", "high"):
                row[f"difference_{end}"] = np.clip(d["difference"] + wider * (d[end] - d["difference"]), -1, 1)
            row["difference_p"] = 2 * stats.norm.sf(stats.norm.isf(d["p"] / 2) / wider)
            expected.append(row | {"n": d["n"], "clusters": d["clusters"], "apart": apart})
    pd.testing.assert_frame_equal(held_out(table, seed=1), pd.DataFrame(expected))
    pd.testing.assert_frame_equal(held_out(table), held_out(table, seed=0))


def test_texts_alternate_within_their_relation() -> None:
    table = cases(20, 2).iloc[::3].reset_index(drop=True)
    side, apart = halves(table, 0)
    texts = table.assign(side=side).drop_duplicates("cluster")
    assert apart == "texts" and texts["side"].sum() == 5
    assert all(abs(2 * part["side"].sum() - len(part)) <= 1 for _, part in texts.groupby("relation"))
    assert set(deal(table[:4], 0)[0]) == {0, 1}
    with pytest.raises(InputError, match="needs at least four independent ones, got 3"):
        halves(table[:6], 0)
    assert set(halves(table[:8], 0)[0]) == {0, 1}


@pytest.mark.parametrize(("few", "words"), [(3, True), (2, False)])
def test_words_stay_together_where_a_quarter_of_the_cases_comes_out(few: int, words: bool) -> None:
    """Two first words, of 3 and 9 cases or of 2 and 10."""
    label = [(f"text {i}", "rare" if i < few else "common", f"other {i}") for i in range(12)]
    for seed in range(4):  # whichever of the two words comes first
        side, apart = halves(pd.DataFrame({"cluster": pd.Series(label), "relation": "r"}), seed)
        assert apart == ("texts, first words" if words else "texts")
        assert (len(set(side[:few])) == len(set(side[few:])) == 1) == words and {0, 1} == set(side)


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_words_are_even_within_their_relation(seed: int) -> None:
    """Twelve words of three texts each, six in either relation, balanced; their order is drawn."""
    label = [(f"text {i}", f"word {i // 3}", f"other {i}") for i in range(36)]
    table = pd.DataFrame({"cluster": pd.Series(label), "relation": ["ab"[i // 18] for i in range(36)]})
    side, apart = halves(table, seed)
    assert apart == "texts, first words" and (side.reshape(12, 3) == side[::3, None]).all()
    assert side[:18].sum() == side[18:].sum() == 9
    assert any((halves(table, other)[0] != side).any() for other in range(4, 8))
    np.testing.assert_array_equal(halves(table.set_axis(range(50, 86)), seed)[0], side)


@pytest.mark.parametrize("seed", range(4))
def test_words_of_one_text_stay_together_too(seed: int) -> None:
    """Four chains: a text of the words 0 and 1, and one of 1 and 2."""
    label = [(f"text {c} {i // 2}", f"word {c} {(i + 1) // 2}", f"other {c} {i}") for c in range(4) for i in range(4)]
    side, apart = halves(pd.DataFrame({"cluster": pd.Series(label), "relation": "r"}), seed)
    assert apart == "texts, first words" and side.sum() == 8 and (side.reshape(4, 4) == side[::4, None]).all()


@pytest.mark.parametrize("seed", range(4))
def test_two_words_of_a_relation_are_in_different_halves_whatever_their_sizes(seed: int) -> None:
    """In each of four relations a word of one case, then one of three."""
    label = [(f"text {i}", f"word {i // 4} {i % 4 > 0}", f"other {i}") for i in range(16)]
    relation = ["abcd"[i // 4] for i in range(16)]
    side = halves(pd.DataFrame({"cluster": pd.Series(label), "relation": relation}), seed)[0].reshape(4, 4)
    assert (side[:, 0] != side[:, 1]).all() and (side[:, 1:] == side[:, 1:2]).all()


def test_dealt_labels_of_single_words_are_those_of_the_task() -> None:
    labels, rng = np.array([0, 0, 0, 1, 1, 2, 2]), np.random.default_rng(7)
    draws = np.array([dealt(np.arange(7), labels, rng) for _ in range(400)])
    assert all(np.bincount(row).tolist() == [3, 2, 2] for row in draws)
    share = np.stack([(draws == k).mean(0) for k in range(3)], 1)  # of every word: no word prefers a label
    assert np.abs(share - [3 / 7, 2 / 7, 2 / 7]).max() < 0.12
    big = [dealt(np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1]), rng)[0] for _ in range(400)]
    assert abs(np.mean(big) - 0.5) < 0.1, "of labels that are equally far behind none comes first"
    words = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    for row in (dealt(words, np.array([0, 1] * 4), rng) for _ in range(20)):
        assert row.sum() == 4 or abs(row.sum() - 4) <= 2
        assert all(len(set(row[words == w])) == 1 for w in range(3))
