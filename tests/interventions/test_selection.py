"""Which heads are suppressed, and which are their controls."""

import numpy as np
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import rank_among
from streamscope.interventions.controls import random_sets
from streamscope.interventions.suppress import Suppress
from streamscope.interventions.suppress.measure import heads_over, rank_heads
from streamscope.models.head_spec import Head


def test_random_sets_are_distinct_seeded_and_others() -> None:
    every = [Head(layer, h) for layer in range(6) for h in range(6)]
    own = every[:5]
    sets = random_sets(every, own, 5, 39, 3)
    assert len(set(sets)) == 39
    assert all(len(set(s)) == 5 and set(s) <= set(every) and set(s) != set(own) for s in sets)
    assert 0.05 < np.mean([head in s for s in sets for head in own]) < 0.25  # 5 of 36, as any heads
    assert sets == random_sets(every, own[::-1], 5, 39, 3) != random_sets(every, own, 5, 39, 4)
    assert random_sets(every[:4], every[:1], 1, 39, 0) == [(head,) for head in every[1:4]]
    assert len(random_sets(every[:4], every[:2], 2, 39, 0)) == 5
    for k in (4, 5):
        with pytest.raises(InputError, match="cannot draw"):
            random_sets(every[:4], every[:k], k, 39, 0)


@pytest.mark.slow
def test_the_rank_of_heads_chosen_at_random_is_uniform() -> None:
    """Effects of heads add up, the selection knows nothing of them: p_rank rejects 5 % of the time, for every k."""
    every = [Head(layer, h) for layer in range(6) for h in range(6)]
    rng = np.random.default_rng(0)
    for k in (2, 3, 5, 10):
        rejected = 0
        for seed in range(1000):
            effects = dict(zip(every, rng.standard_t(3, 36), strict=True))
            own = [every[i] for i in rng.choice(36, k, replace=False)]
            draws = [sum(effects[head] for head in s) for s in random_sets(every, own, k, 39, seed)]
            rejected += rank_among(sum(effects[head] for head in own), draws).p <= 0.05
        assert 0.03 <= rejected / 1000 <= 0.07


def test_selection_by_pds() -> None:
    scores = {Head(0, i): x for i, x in enumerate([0.1, 0.3, 0.3, 0.0, 0.05, 0.0])}
    assert rank_heads(scores, 2) == (Head(0, 1), Head(0, 2))
    assert rank_heads(scores, 2, "bottom") == (Head(0, 3), Head(0, 5))
    assert heads_over(scores, 0.075) == (Head(0, 0), Head(0, 1), Head(0, 2))
    values = np.array(list(scores.values()))
    assert [scores[h] for h in heads_over(scores, "own")] == [
        x for x in values if x > values.mean() + values.std(ddof=1)
    ]
    with pytest.raises(InputError, match="no head has PDS over 0.5.*L0.H1"):
        heads_over(scores, 0.5)
    with pytest.raises(InputError, match="leave too few"):
        heads_over(scores, -1.0)
    with pytest.raises(InputError, match="k=4 of 6 heads"):
        rank_heads(scores, 4)


@pytest.mark.parametrize("gates", [(1.0,), (0.0, 0.0), (float("nan"),), (1.0, float("inf"))])
def test_gates_that_make_no_protocol(gates: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="gates"):
        Suppress(gates=gates)
