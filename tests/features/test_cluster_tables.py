"""Tables of clusters against counting: agreement, stability, depth."""

import numpy as np
import pandas as pd
import pytest

from streamscope.features.cluster.checks import agreement_table, stability_table
from streamscope.features.cluster.description import cluster_table, depth_ranges, depth_spread
from streamscope.features.cluster.measure import depths, each
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.probes.observations import estimate
from tests.features.test_cluster import NAMES, planted


def test_agreement_of_independent_clusters() -> None:
    rng = np.random.default_rng(0)
    ours, raw, documents = rng.integers(-1, 9, 2000), rng.integers(-1, 30, 2000), np.arange(2000) // 50
    table = agreement_table(ours, raw, documents, resamples=200)
    assert (table["value"].abs() < 0.01).all() and (table["control"].abs() < 0.01).all()
    assert ((table["value_low"] < 0) & (table["value_high"] > 0)).all()
    both = (ours >= 0) & (raw >= 0)
    assert table["n"].tolist() == [2000, 2000, both.sum(), both.sum()]


def test_agreement_without_enough_tokens_or_documents() -> None:
    none = np.full(20, -1)
    table = agreement_table(none, np.zeros(20, int), np.zeros(20, int))
    assert table["n"].tolist() == [20, 20, 0, 0] and table["value"].isna().tolist() == [False, False, True, True]
    assert all("fewer than 8 documents" in text for text in table["undefined"])


def test_stability_of_hdbscan_has_no_seeds() -> None:
    x = planted()
    modes = ComputationalModes().fit(x[NAMES])
    table = stability_table(modes, x[NAMES], x["document"].to_numpy(), 2)
    assert table["kind"].tolist() == ["documents", "documents", "seed"] and table["ari"].tolist()[:2] == [1, 1]
    assert "no random numbers" in table["undefined"].iloc[2] and np.isnan(table["ari"].iloc[2])


def test_depth_ranges_are_the_papers_for_six_layers() -> None:
    assert depth_ranges(np.arange(7), 6).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert depth_ranges(np.arange(3), 2).tolist() == [0, 1, 2]
    assert depth_ranges(np.arange(13), 12).tolist() == [0] * 4 + [1] * 6 + [2] * 3


@pytest.mark.parametrize("layers", range(1, 13))
def test_the_last_layer_is_late_also_where_k_star_is_strict(layers: int) -> None:
    strict = depth_ranges(np.arange(layers), layers, "strict").tolist()
    assert strict[-1] == 2 and strict[:-1] == depth_ranges(np.arange(layers), layers).tolist()[:-1]


def test_tables_against_counting() -> None:
    rng = np.random.default_rng(0)
    labels = pd.DataFrame({"document": rng.integers(9, size=300), "k_star": rng.integers(0, 7, 300)})
    labels["cluster"], labels["probability"] = rng.integers(-1, 4, 300), rng.random(300)
    vector = rng.integers(40, size=300)
    table = cluster_table(labels, vector, 6)
    for row in table.to_dict("records"):
        of = [i for i in range(300) if labels["cluster"][i] == row["cluster"]]
        depth = [int(labels["k_star"][i]) for i in of]
        assert (row["n"], row["share"]) == (len(of), len(of) / 300)
        assert row["distinct"] == len({vector[i] for i in of})
        assert row["documents"] == len({labels["document"][i] for i in of})
        assert row["k_star_sd"] == pytest.approx((sum((k - sum(depth) / len(of)) ** 2 for k in depth) / len(of)) ** 0.5)
        assert row["early"] == pytest.approx(sum(k < 2 for k in depth) / len(of))
        assert [row[f"k{k}"] for k in range(7)] == pytest.approx([depth.count(k) / len(of) for k in range(7)])
    shares = estimate(block := depths(labels, 6), each(block, "share")).frame
    assert (shares["low"] < shares["value"]).all() and (shares["value"] < shares["high"]).all()
    for group in ("all", "clusters", "noise"):
        one = shares[shares["group"] == group]
        assert one[one["depth"].str.startswith("k*")]["value"].sum() == pytest.approx(1)
    spread = depth_spread(labels)
    held = table["n"] @ table["k_star_sd"] / table["n"].sum()
    assert spread["sd"] == pytest.approx(held) and spread["dealt"] == pytest.approx(2, abs=0.15)
