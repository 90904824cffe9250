"""Real against shuffled labels: planted streams, numbers by hand, readings that homogeneous streams must not pass."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.papers.comparison.seeds import spread
from streamscope.papers.krom.similarity import SHUFFLED, claims, quantities, stream_similarity
from streamscope.probes.directions.measure import find
from streamscope.probes.stream_states import States

ARM = {
    "preset": "kromcanon", "b_res": -8.0, "storage": "fp32", "optimizer": "adamw", "lr": 0.005, "decay": 0.2,
    "steps": 1000,
}  # fmt: skip


def runs(*cosines: tuple[float, float], **arm: object) -> pd.DataFrame:
    """A mixing table of one arm: (real, shuffled) of seeds 0, 1, …"""
    return pd.DataFrame(
        [{**ARM, **arm, "seed": s, "stream_cosine": r, "shuffled_cosine": x} for s, (r, x) in enumerate(cosines)]
    )


def streams(seed: int, label: float, own: float, n: int = 40, d: int = 32) -> tuple[States, States]:
    """Two sets of prompts in four streams, two layers: a shared text part, `label` along one direction in every
    stream, and `own` of noise that each stream has by itself."""
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    sets = []
    for side in (0.5, -0.5):
        shared = rng.standard_normal((n, 2, 1, d)) + side * label * direction
        x = shared + own * rng.standard_normal((n, 2, 4, d))
        sets.append(States(("s0", "s1", "s2", "s3", "resid"), np.concatenate([x, x.mean(2, keepdims=True)], axis=2)))
    return sets[0], sets[1]


def row(seed: int, label: float, own: float) -> tuple[float, float]:
    table = find(*streams(seed, label, own), draws=20).streams
    return float(table["stream_cosine"].mean()), float(table["shuffled_cosine"].mean())


def test_streams_that_carry_the_label_exceed_shuffled_labels_and_streams_that_are_one_do_not() -> None:
    carry = claims(runs(*(row(seed, label=8.0, own=4.0) for seed in range(4)))).set_index("quantity")
    assert carry.loc["excess", "direction"] == "holds" and carry.loc["excess", "difference"] > 0.5
    one = runs(*(row(seed, label=8.0, own=0.0) for seed in range(4)))
    assert one["stream_cosine"].min() > 1 - 1e-9, "the label is in all streams, which are the same"
    found = claims(one).set_index("quantity")
    assert found.loc["excess", "direction"] == "not resolved at n=4 seeds"
    assert found.loc["excess", "difference"] == pytest.approx(0, abs=1e-9)
    assert found.loc["cosine", "direction"].startswith("holds"), "the blog's control does not see the difference"
    (same,) = stream_similarity(one).itertuples()
    assert same.cosine == pytest.approx(1) and same.shuffled == pytest.approx(1) and math.isnan(same.left)
    assert "left: no seed in which both are defined" in same.undefined.replace("left, left_low, left_high", "left")


def test_without_a_label_the_excess_is_not_resolved() -> None:
    found = claims(runs(*(row(seed, label=0.0, own=0.3) for seed in range(6)))).set_index("quantity")
    assert found.loc["excess", "direction"] in ("not resolved at n=6 seeds", "negligible: within ±0.01")
    assert found.loc["cosine", "direction"] == "holds", "and still far above random directions"


def test_the_cosines_are_those_of_a_plain_implementation() -> None:
    a, b = streams(3, label=2.0, own=1.0)
    found = find(a, b, draws=7, seed=5).streams

    def cosine(x: np.ndarray, y: np.ndarray) -> list[float]:
        of_layers = []
        for layer in range(2):
            r = [x[:, layer, s].mean(0) - y[:, layer, s].mean(0) for s in range(4)]
            of_layers.append(np.mean([p @ q / math.sqrt((p @ p) * (q @ q)) for p, q in combinations(r, 2)]))
        return of_layers

    both, rng = np.concatenate([a.values, b.values]), np.random.default_rng(5)
    orders = [rng.permutation(len(both)) for _ in range(7)]
    shuffled = np.mean([cosine(both[o[:40]], both[o[40:]]) for o in orders], axis=0)
    np.testing.assert_allclose(found["stream_cosine"], cosine(a.values, b.values), rtol=1e-12)
    np.testing.assert_allclose(found["shuffled_cosine"], shuffled, rtol=1e-12)


def test_an_arm_has_the_interval_of_its_seeds() -> None:
    (found,) = stream_similarity(runs((0.96, 0.95), (0.98, 0.96))).itertuples()
    t = 12.7062047364
    assert (found.cosine, found.shuffled) == (pytest.approx(0.97), pytest.approx(0.955))
    assert found.cosine_high - found.cosine == pytest.approx(t * 0.01)
    assert (found.excess, found.excess_low) == (pytest.approx(0.015), pytest.approx(0.015 - t * 0.005))
    ratios = np.log([0.04 / 0.05, 0.02 / 0.04])
    assert found.left == pytest.approx(math.exp(ratios.mean()))
    assert found.left_high == pytest.approx(math.exp(ratios.mean() + t * ratios.std(ddof=1) / math.sqrt(2)))
    assert (found.excess_by_seed, found.left_by_seed) == ("0: +0.0100, 1: +0.0200", "0: 0.80, 1: 0.50")
    sd = math.sqrt(0.0002)
    low, high = (sd / math.sqrt(stats.chi2.ppf(q, 1)) for q in (0.975, 0.025))
    assert (found.cosine_sd, found.cosine_sd_low, found.cosine_sd_high) == pytest.approx((sd, low, high))
    (alone,) = stream_similarity(runs((0.96, 0.95))).itertuples()
    assert alone.excess == pytest.approx(0.01) and math.isnan(alone.excess_low) and "one seed" in alone.undefined


def test_the_interval_of_a_spread_covers_it() -> None:
    """95 % of samples of five: the true sd 2 lies inside."""
    draws = np.random.default_rng(0).normal(0, 2, (4000, 5))
    inside = [one["ci_low"] <= 2 <= one["ci_high"] for one in map(spread, draws)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.01)
    assert spread(np.array([1.0, 1.0]))["why"]["ci_low"] == "seeds without spread"
    assert spread(np.array([]))["why"]["sd"] == "no seed"


def test_a_jump_that_shuffled_labels_make_as_well_is_no_jump_of_the_contrast() -> None:
    """From .974 to .994 in every seed, by real and by shuffled labels alike."""
    low = [(0.974, 0.972), (0.9741, 0.9719), (0.9739, 0.9720)]
    high = [(0.994, 0.992), (0.9943, 0.9922), (0.9938, 0.9918)]
    table = pd.concat([runs(*low), runs(*high, b_res=-2.0)])
    found = claims(table)
    jumps = found[found["claim"].str.contains(">")].set_index("quantity")
    assert jumps.loc["cosine", "direction"] == "holds" and jumps.loc["cosine", "size"] == "printed value inside"
    assert jumps.loc["excess", "direction"] == "negligible: within ±0.01"
    assert jumps.loc["excess", "difference"] == pytest.approx((0.002 + 0.0021 + 0.002 - 0.002 - 0.0022 - 0.0019) / 3)
    assert len(found) == 5 and found["p"].notna().all()


def test_only_the_blogs_recipe_in_fp32_is_judged() -> None:
    others = pd.concat([runs((0.9, 0.8), storage="bf16"), runs((0.9, 0.8), decay=0.0), runs((0.9, 0.8), b_res=-1.0)])
    assert claims(others).empty and len(stream_similarity(others)) == 3
    one = claims(runs((0.9, 0.8)))
    assert set(one["direction"]) == {"undefined: one seed of kromcanon -8, fp32, adamw, 1,000 steps"}


def test_sets_that_do_not_differ_have_a_reason() -> None:
    nothing = runs((float("nan"), float("nan")), (float("nan"), float("nan")))
    (found,) = stream_similarity(nothing).itertuples()
    assert math.isnan(found.cosine) and "no layer in which the two sets differ" in found.undefined
    assert found.excess_by_seed == found.left_by_seed == "0: undefined, 1: undefined"
    rows = quantities(nothing)
    assert rows["undefined"].ne("").all() and rows["preset"].str.endswith(SHUFFLED).sum() == 4
