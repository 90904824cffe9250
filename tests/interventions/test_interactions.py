"""Sets of heads: planted backups whose interaction is known, a plain computation, and what cannot be asked."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.figures import Matrix
from streamscope.instruments.figures.drawing import draw
from streamscope.instruments.observations import Observations, estimate
from streamscope.instruments.open_data import given_prompts
from streamscope.instruments.prompts.alignment import align
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, key, number
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.ablate.measure import cells_of, contrasts_of
from streamscope.interventions.controls import MOST_SETS, Sweep, head_sets, plan
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, NATS
from streamscope.models import load
from streamscope.models.head_spec import Head
from streamscope.models.training.data import evaluation_shards
from tests.instruments.estimates import ratio_of_sums
from tests.interventions.copiers import DELTA, log_odds, model, scale, suite, tokenizer
from tests.interventions.passes import losses_alone
from tests.interventions.test_ablate import opened
from tests.tiny import untrained

HEADS = [Head(layer, h) for layer in range(6) for h in range(6)]


def test_pairs_are_630_and_random_sets_are_different_and_reproducible() -> None:
    assert head_sets(HEADS, 2, None, 0) == list(combinations(HEADS, 2)) and len(head_sets(HEADS, 2, None, 0)) == 630
    assert head_sets(HEADS[:3], 1, None, 0) == [(head,) for head in HEADS[:3]]
    drawn = head_sets(HEADS, 5, 100, 3)
    assert len(set(drawn)) == 100 and all(len(set(one)) == 5 for one in drawn)
    assert drawn == head_sets(HEADS, 5, 100, 3) != head_sets(HEADS, 5, 100, 4)
    assert head_sets(HEADS[:4], 3, 100, 0) == list(combinations(HEADS[:4], 3)), "no more sets than there are"


@pytest.mark.parametrize(
    ("size", "sets", "message"),
    [(37, None, "1 to 36"), (5, None, "376,992 sets of 5"),
     (5, MOST_SETS + 1, "give --sets N")],
)  # fmt: skip
def test_sets_that_there_are_not_or_too_many_of(size: int, sets: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        head_sets(HEADS, size, sets, 0)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_a_planted_backup_interacts_by_what_it_made_up_for(kappa: float) -> None:
    """Without the copier the backup adds κδ/s(0), without both nothing is left: interaction −log-odds(κδ/s(0))."""
    net = model(kappa)
    aligned = align(suite(), tokenizer(), net.config.n_ctx)
    how = Ablate(heads=("L0.H1", "L1.H0", "L1.H3"), size=2, measures=("coherence",), draws=0)
    found = how.measure(net, given_prompts(aligned, net, tokenizer())).table("coherence").frame.set_index("head")
    made_up = np.mean([log_odds(c * kappa * DELTA / scale(0.0), c) for c in (1, -1)])
    at = {"L0.H1+L1.H0": -made_up, "L0.H1+L1.H3": 0.0}
    for head, expected in at.items():
        assert found.loc[head, "interaction"] == pytest.approx(expected, abs=1e-4)
    assert (kappa > 0) == (abs(made_up) > 1)


@pytest.fixture(scope="module")
def measured(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Weights so large that effects stand out from rounding."""
    net = load(untrained("lfa", tiny_run, tmp_path_factory.mktemp("large") / "lfa"))
    return net, evaluation_shards(tiny_run, net.tokenizer, None)


def test_interactions_are_those_of_whole_passes(measured: tuple) -> None:
    net, shards = measured
    heads = [Head(0, 1), Head(0, 2), Head(1, 3)]
    sets = head_sets(heads, 2, None, 0) + head_sets(heads, 3, None, 0)
    named = tuple(f"L{head.layer}.H{head.head}" for head in heads)
    parts = [
        Ablate(heads=named, size=size, scale=(0.0, 0.5)).measure(net, opened(net, shards)).table().frame
        for size in (2, 3)
    ]
    table = pd.concat(parts).set_index(["head", "scale"])
    base, tokens = losses_alone(net, shards, {})
    for g in (0.0, 0.5):
        singles = [(head,) for head in heads]
        change = {one: losses_alone(net, shards, scale_heads(one, g))[0] - base for one in [*singles, *sets]}
        for one in sets:
            beyond = change[one] - sum(change[head,] for head in one)
            expected, row = ratio_of_sums(beyond, tokens), table.loc["+".join(h.label for h in one), g]
            got = row[["interaction", "interaction_low", "interaction_high"]].to_numpy(float)
            assert expected.sd > 1e-4, "no more than rounding"
            assert got == pytest.approx([expected.mean, expected.low, expected.high], abs=2e-6)
            assert row["interaction_p"] <= row["interaction_p_holm"] <= 1


def test_heads_that_cannot_act_have_no_part_in_an_interaction() -> None:
    """Of three heads the last cannot change the measure: Δ(S) − Δ(a) − Δ(b), by hand on random values."""
    heads = (Head(0, 1), Head(1, 0), Head(1, 3))
    sweep = plan([heads], [0.0], HEADS, lambda some, g: {}, draws=0, also=[(head,) for head in heads])
    contrasts = contrasts_of(sweep, "sps", lambda some: "" if min(some) < heads[2] else "cannot act")
    values = np.random.default_rng(0).normal(size=(5, 7))  # unedited, the set, and its heads
    units = pd.DataFrame({"unit": list("abcdefg"), "cluster": list("abcdefg")})
    block = Observations(measure=MEASURES["sps"], cells=cells_of(sweep), units=units, total=values, size=1.0)
    row = estimate(block, contrasts).wide(["head"])[0].iloc[0]
    base, whole, a, b, _ = values.mean(1)
    assert row["alone"] == pytest.approx(a + b - 2 * base)
    assert row["interaction"] == pytest.approx(whole - base - (a + b - 2 * base))


def test_scale_one_has_no_interaction(measured: tuple) -> None:
    net, shards = measured
    how = Ablate(heads=("L0.H0", "L1.H1"), size=2, scale=(1.0,))
    same = how.measure(net, opened(net, shards)).table()
    assert same.frame["interaction"][0] == 0.0
    assert same.missing[0, "interaction_p"] == "the same in every independent case"


def test_a_scale_given_twice_is_one(measured: tuple) -> None:
    net, shards = measured
    assert (
        len(Ablate(heads=("L0.H0",), scale=(0.0, -0.0), draws=0).measure(net, opened(net, shards)).table().frame) == 1
    )


def test_small_interactions_of_many_documents_are_tested() -> None:
    """Documents that differ by more than rounding: the error of their mean is below it, the spread is not."""
    rng = np.random.default_rng(0)
    pair, a, b = (Head(5, 0), Head(5, 1)), Head(5, 0), Head(5, 1)
    index = {(pair, 0.0): 0, ((a,), 0.0): 1, ((b,), 0.0): 2}
    sweep, names = Sweep([{}] * 3, [(pair, 0.0, [])], index), [str(i) for i in range(400)]
    units = pd.DataFrame({"unit": names, "cluster": names})
    for spread, tested in ((1e-5, True), (1e-8, False)):
        effect = 4e-6 + spread * rng.standard_normal(400)
        edited = np.stack([np.zeros(400), 100 * effect, np.zeros(400), np.zeros(400)])
        block = Observations(measure=NATS, cells=cells_of(sweep), units=units, total=edited, size=100)
        found, why = estimate(block, contrasts_of(sweep, "loss")).wide(["head"])
        if tested:
            expected = stats.ttest_1samp(effect, 0.0)
            assert found["interaction_p"][0] == pytest.approx(expected.pvalue) and (0, "interaction_p") not in why
        else:
            assert (
                np.isnan(found["interaction_p"][0]) and why[0, "interaction_p"] == "the same in every independent case"
            )


def test_a_picture_shows_every_pair_twice() -> None:
    heads = ["+".join(h.label for h in pair) for pair in combinations(HEADS[:8], 2)]
    frame = pd.DataFrame({"head": heads, "interaction": np.arange(28.0) % 7 - 3})
    columns = (key("head", "head", "a pair"), number("interaction", "interaction", "nats", "x", "+.4f"))
    table = Table(frame, columns, {}, "pairs", by="interaction", most=8)
    pairs = draw(Matrix("interaction"), Result({"pairs": table})).data[0]
    z = np.array(pairs.z, float)
    assert list(pairs.x) == [h.label for h in HEADS[:8]] and np.isnan(np.diag(z)).all()
    assert z[0, 3] == z[3, 0] == frame.set_index("head").loc["L0.H0+L0.H3", "interaction"]
