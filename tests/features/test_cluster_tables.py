"""Tables of clusters against counting: agreement, stability, depth."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from streamscope.cli.errors import InputError
from streamscope.features.cluster import Cluster, checks
from streamscope.features.cluster.measure import cluster_table, depth_spread, depths, raw_labels, same_token
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.compute import depth_ranges
from streamscope.instruments.observations import each, estimate
from tests.features.test_cluster import NAMES, planted


def test_agreement_of_independent_clusters() -> None:
    rng = np.random.default_rng(0)
    ours, raw, documents = rng.integers(-1, 9, 2000), rng.integers(-1, 30, 2000), np.arange(2000) // 50
    table = checks.agreement_table(ours, raw, documents, resamples=200)
    assert (table["value"].abs() < 0.01).all() and (table["control"].abs() < 0.01).all()
    assert ((table["value_low"] < 0) & (table["value_high"] > 0)).all()
    both = (ours >= 0) & (raw >= 0)
    assert table["n"].tolist() == [2000, 2000, both.sum(), both.sum()]


def test_agreement_without_enough_tokens_or_documents() -> None:
    none = np.full(20, -1)
    table = checks.agreement_table(none, np.zeros(20, int), np.zeros(20, int))
    assert table["n"].tolist() == [20, 20, 0, 0] and table["value"].isna().tolist() == [False, False, True, True]
    assert all("fewer than 8 documents" in text for text in table["undefined"])


def test_tokens_with_massive_activations_are_noise_among_raw_ones() -> None:
    """Three first words of norm 800 would pull two groups of other tokens together."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 60)
    raw = rng.normal(size=(123, 4)) + 3 * np.append(np.where(groups == 0, -1, 1), [0, 0, 0])[:, None]
    raw[-3:, 0] = 800.0
    how = Cluster(method="kmeans", clusters=2)
    labels, left_out = raw_labels(how, raw)
    assert left_out == 3 and (labels[-3:] == -1).all()
    assert adjusted_rand_score(groups, labels[:120]) == 1.0
    plain, none = raw_labels(how, raw[:120])
    assert none == 0 and adjusted_rand_score(plain, labels[:120]) == 1.0


def test_stability_of_hdbscan_has_no_seeds() -> None:
    x = planted()
    modes = ComputationalModes().fit(x[NAMES])
    table = checks.stability_table(modes, x[NAMES], x["document"].to_numpy(), 2)
    assert table["kind"].tolist() == ["documents", "documents", "seed"] and table["ari"].tolist()[:2] == [1, 1]
    assert "no random numbers" in table["undefined"].iloc[2] and np.isnan(table["ari"].iloc[2])


def test_depth_ranges_are_the_papers_for_six_layers() -> None:
    assert depth_ranges(np.arange(7), 6).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert depth_ranges(np.arange(3), 2).tolist() == [0, 1, 2]
    assert depth_ranges(np.arange(13), 12).tolist() == [0] * 4 + [1] * 6 + [2] * 3
    assert depth_ranges(np.arange(4), 3).tolist() == [0, 1, 1, 2], "three layers: 2 is middle where a late k* is 3"
    for layers in range(1, 13):  # the last layer is late also where k* is strict
        *others, last = depth_ranges(np.arange(layers), layers, "strict").tolist()
        assert [*others, last] == [*depth_ranges(np.arange(layers), layers).tolist()[:-1], 2]


def depth_shares(labels: pd.DataFrame) -> pd.DataFrame:
    return estimate(block := depths(labels, 6), each("share", block.cells, null=None)).frame


def test_tables_against_counting() -> None:
    rng = np.random.default_rng(0)
    labels = pd.DataFrame({"document": rng.integers(9, size=300), "k_star": rng.integers(0, 7, 300)})
    labels["cluster"], labels["probability"] = rng.integers(-1, 4, 300), rng.random(300)
    labels["token_id"] = labels["position"] = np.arange(300)
    vector = rng.integers(40, size=300)
    table = cluster_table(labels, vector, 6)
    for row in table.to_dict("records"):
        inside = labels["cluster"] == row["cluster"]
        depth = labels["k_star"][inside]
        assert (row["n"], row["share"]) == (inside.sum(), inside.mean())
        assert (row["distinct"], row["documents"]) == (len({*vector[inside]}), labels["document"][inside].nunique())
        assert row["k_star_sd"] == pytest.approx(depth.std(ddof=0)) and row["early"] == pytest.approx(
            (depth < 2).mean()
        )
        assert [row[f"k{k}"] for k in range(7)] == pytest.approx([(depth == k).mean() for k in range(7)])
    shares = depth_shares(labels)
    assert (shares["low"] < shares["value"]).all() and (shares["value"] < shares["high"]).all()
    for group in ("all", "clusters", "noise"):
        one = shares[shares["group"] == group]
        assert one[one["depth"].str.startswith("k*")]["value"].sum() == pytest.approx(1)


def test_copies_of_a_document_are_one_independent_document() -> None:
    """Each of nine texts twice, the second time in another order of rows: the same interval as of each once."""
    rng = np.random.default_rng(0)
    once = pd.DataFrame({"document": np.repeat(np.arange(9), 20), "position": np.tile(np.arange(20), 9)})
    once = once.assign(token_id=rng.integers(99, size=180), k_star=rng.integers(0, 7, 180), cluster=0)
    twice = pd.concat([once, once.assign(document=once["document"] + 9).sample(frac=1, random_state=0)])
    columns = ["value", "low", "high", "clusters"]
    pd.testing.assert_frame_equal(depth_shares(once)[columns], depth_shares(twice)[columns])


def test_spread_of_depth_against_dealing_by_hand() -> None:
    """σ(k*) within clusters, weighted by tokens; of tokens dealt at random; noise is in neither."""
    rng = np.random.default_rng(2)
    cluster = np.repeat([-1, 0, 1, 2, 3], [30, 5, 40, 12, 3])
    k_star = np.where(cluster == 2, 4, rng.integers(0, 7, len(cluster)))
    k_star[cluster == -1] = 60  # would show
    order = rng.permutation(len(cluster))
    cluster, k_star = cluster[order], k_star[order]
    one, labels = cluster >= 0, pd.DataFrame({"cluster": cluster, "k_star": k_star})

    def within(values: np.ndarray) -> float:
        return sum((cluster[one] == c).sum() * values[cluster[one] == c].std() for c in range(4)) / one.sum()

    for seed, draws in ((0, 20), (5, 3)):
        again = np.random.default_rng(seed)
        dealt = [within(again.permutation(k_star[one].astype(float))) for _ in range(draws)]
        found = depth_spread(labels, draws=draws, seed=seed)
        assert found["sd"] == pytest.approx(within(k_star[one])) and found["flat"] == 1 / 4
        assert found["dealt"] == pytest.approx(np.mean(dealt), rel=1e-9)
    assert depth_spread(labels) == depth_spread(labels, draws=20, seed=0)


def blobs(documents: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Thirty tokens a document about twelve places in two columns; a third column says which half of the six a place is
    in: without it places come in six pairs."""
    rng = np.random.default_rng(seed)
    place = rng.integers(12, size=30 * documents)
    x = pd.DataFrame({"a": 50.0 * (place % 6), "b": 90.0 * (place % 2), "c": 200.0 * (place // 6)})
    return x + rng.normal(size=x.shape), np.repeat(np.arange(documents), 30)


def test_parts_find_what_was_planted() -> None:
    """Twelve places, of which the other features tell six apart; each comes back without a fifth of the documents."""
    x, documents = blobs(48)
    ways = [(ComputationalModes(components=None), some) for some in (x, x[["a", "b"]])]
    table = checks.parts_table(ways, documents, 4, 0, iter)
    frame = table.frame.set_index("of")
    assert frame.loc["clusters", ["own", "against", "difference"]].tolist() == [12, 6, 6]
    assert frame.loc["ari_clustered", ["own", "against"]].tolist() == [1, 1] and (frame["n"] == 4).all()
    assert frame.loc["coverage", "own"] > 0.9
    assert table.missing[0, "difference_low"].startswith("the same in every")
    assert "difference" not in checks.parts_table(ways[:1], documents, 4, 0, iter).frame
    with pytest.raises(InputError, match="a part needs five"):
        checks.parts_table(ways, documents, 10, 0, iter)


def test_parts_are_those_of_plain_fits() -> None:
    """The same parts, cut by hand; scikit-learn's index, Student's interval over the parts."""
    rng = np.random.default_rng(1)
    x, documents = blobs(30, seed=2)
    x += 30 * rng.normal(size=x.shape)
    ways = [(ComputationalModes(components=None, min_samples=n), x) for n in (1, 8)]
    frame = checks.parts_table(ways, documents, 3, 5, iter).frame.set_index("of")
    again = np.random.default_rng(5)
    dealt, left = again.permutation(np.arange(30) % 3), again.random(30)
    rows = []
    for part in range(3):
        own = [d for d in range(30) if dealt[d] == part]
        out = sorted(own, key=lambda d: left[d])[:2]
        inside, kept = np.isin(documents, own), np.isin(documents, [d for d in own if d not in out])
        for modes, _ in ways:
            a, b = (ComputationalModes(**modes.get_params()).fit(x[some]).labels_ for some in (inside, kept))
            rows.append((a.max() + 1, (a >= 0).mean(), adjusted_rand_score(a[kept[inside]], b)))
    values = np.array(rows).reshape(3, 2, 3)
    own, moved = values[:, 0], values[:, 0] - values[:, 1]
    assert len(np.unique(own, axis=0)) > 1
    half = stats.t.ppf(0.975, 2) * moved.std(0, ddof=1) / np.sqrt(3)
    expected = np.stack([own.mean(0), moved.mean(0), moved.mean(0) + half], 1)
    found = frame.loc[["clusters", "coverage", "ari"], ["own", "difference", "difference_high"]]
    np.testing.assert_allclose(found.astype(float), expected, atol=1e-12)


def test_parts_without_clusters_have_no_agreement_in_clusters() -> None:
    """Fifteen tokens a part are no cluster of twenty."""
    x, documents = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3))), np.repeat(np.arange(20), 3)
    table = checks.parts_table([(ComputationalModes(min_cluster_size=20), x)], documents, 4, 0, iter)
    frame = table.frame.set_index("of")
    assert frame.loc[["clusters", "coverage", "ari"], "own"].tolist() == [0, 0, 1]
    assert frame.loc["ari_clustered", "n"] == 0 and table.missing[3, "own"]


def test_one_token_in_different_clusters_against_pairs() -> None:
    """Raw clusters are the token ids, so that no token of one id is elsewhere; those of features by every pair."""
    rng = np.random.default_rng(0)
    ids, documents, ours = rng.integers(6, size=120), rng.integers(5, size=120), rng.integers(-1, 3, 120)
    ids[:3], ours[:3] = [90, 91, 92], 0  # in one document only
    block = checks.same_token_split(ours, ids, ids, documents)
    assert checks.same_token_split(ours, ids, np.arange(120), documents) is None
    found = []
    for i in range(120):
        others = [j for j in range(120) if ids[j] == ids[i] and documents[j] != documents[i] and ours[j] >= 0]
        if ours[i] >= 0 and others:
            found.append(np.mean([ours[j] != ours[i] for j in others]))
    assert block is not None and len(found) < (ours >= 0).sum() and block.sizes[0].sum() == len(found)
    value = block.total.sum(1) / block.sizes.sum(1)
    assert value[:2].tolist() == pytest.approx([np.mean(found), 0])
    frame = same_token(block).frame.iloc[0]
    assert frame[["features", "more", "tokens"]].tolist() == pytest.approx([np.mean(found)] * 2 + [len(found)])
    assert abs(frame["dealt"] - np.mean(found)) < 0.1


def two_clusterings(n: int, clusters: int, same: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two clusterings, equal at a share `same` of the tokens, with noise (−1)."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-1, clusters, (2, n))
    return a, np.where(rng.random(n) < same, a, b)


@pytest.mark.parametrize(("n", "clusters", "same"), [(40, 3, 0.5), (2000, 300, 0.3), (300, 299, 0.1)])
def test_the_interval_is_of_scikit_learns_index(n: int, clusters: int, same: float, monkeypatch) -> None:
    """A draw that takes every document once gives the index of the tokens themselves."""
    a, b = two_clusterings(n, clusters, same)
    a[: n // 3] = -1  # a large cluster beside small ones
    draw = type("Draw", (), {"multinomial": lambda self, count, p: np.ones(count)})
    monkeypatch.setattr(np.random, "default_rng", lambda seed: draw())
    interval = checks.adjusted_rand_interval(a, b, np.arange(n) % 10, resamples=1)
    assert interval == pytest.approx([adjusted_rand_score(a, b)] * 2, abs=1e-12)


def test_equal_clusterings() -> None:
    a, _ = two_clusterings(600, 20, 0)
    documents = np.repeat(np.arange(20), 30)
    assert checks.adjusted_rand_interval(a, 7 - a, documents, resamples=100) == (1, 1)
    assert checks.adjusted_mutual_information_interval(a, 7 - a, documents) == pytest.approx((1, 1))
    one = np.zeros(600, int)
    assert checks.adjusted_rand_interval(one, one, documents, resamples=10) == (1, 1), "a single cluster"


def test_the_level_is_that_of_few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends are the quantiles of the level expanded for 8 documents, where those of 95 % cover 83 %."""
    a, b = two_clusterings(240, 6, 0.5)
    asked: list[float] = []
    monkeypatch.setattr(np, "quantile", lambda draws, ends: asked.extend(ends) or ends)
    checks.adjusted_rand_interval(a, b, np.repeat(np.arange(8), 30), resamples=2)
    outside = stats.norm.sf(np.sqrt(8 / 7) * stats.t(7).ppf(0.975))
    assert asked == pytest.approx([outside, 1 - outside]) and outside < 0.006


def test_the_interval_of_mutual_information_is_that_of_leaving_documents_out() -> None:
    """Of nine documents each is a group: Student's t, and the standard error of a jackknife over them."""
    a, b = two_clusterings(180, 6, 0.5)
    documents = np.random.default_rng(1).integers(9, size=180)
    scores = [adjusted_mutual_info_score(a[documents != d], b[documents != d]) for d in range(9)]
    half = stats.t.ppf(0.975, 8) * (8 / 9 * sum((x - np.mean(scores)) ** 2 for x in scores)) ** 0.5
    value = adjusted_mutual_info_score(a, b)
    assert checks.adjusted_mutual_information_interval(a, b, documents) == pytest.approx((value - half, value + half))


@pytest.mark.slow
def test_intervals_cover_independence_and_repetition_does_not_count() -> None:
    """Small clusters, where a bootstrap that paired tokens with their copies would lie far above 0."""
    covered, documents = np.zeros(2), np.repeat(np.arange(30), 20)
    for seed in range(30):
        a, b = two_clusterings(600, 60, 0, seed)
        rand = checks.adjusted_rand_interval(a, b, documents, resamples=200, seed=seed)
        information = checks.adjusted_mutual_information_interval(a, b, documents, seed=seed)
        covered += [low <= 0 <= high for low, high in (rand, information)]
    assert covered.min() >= 25


def test_resamples_are_weighted_documents() -> None:
    """Against tokens repeated in so many words, with copies apart: counted pair by pair."""
    a, _ = two_clusterings(60, 4, 0)
    documents = np.repeat(np.arange(10), 6)
    weight = np.random.default_rng(0).integers(0, 3, 10).astype(float)
    tokens = [(i, copy) for i in range(60) for copy in range(int(weight[documents[i]]))]
    pairs = 0
    for n, (i, copy) in enumerate(tokens):
        for j, other in tokens[:n]:
            apart = documents[i] != documents[j] or copy == other
            pairs += a[i] == a[j] and apart
    assert checks._pairs(checks._tokens(a, documents), weight) == pairs
