"""Which heads are suppressed, and which are their controls."""

import numpy as np
import pytest

from interventions.head_spec import Head
from interventions.protocol import design
from interventions.selection import over, random_sets, ranked
from models.errors import InputError


def test_random_sets_are_distinct_seeded_and_exclude() -> None:
    every = [Head(layer, h) for layer in range(6) for h in range(6)]
    out = every[:5]
    sets = random_sets(every, out, 5, 39, 3)
    assert len(set(sets)) == 39
    assert all(len(set(s)) == 5 and not set(s) & set(out) for s in sets)
    assert sets == random_sets(every, out, 5, 39, 3) != random_sets(every, out, 5, 39, 4)
    assert len(random_sets(every[:4], every[:1], 2, 39, 0)) == 3


def test_selection_by_pds() -> None:
    scores = {Head(0, i): x for i, x in enumerate([0.1, 0.3, 0.3, 0.0, 0.05, 0.0])}
    assert ranked(scores, 2) == (Head(0, 1), Head(0, 2))
    assert ranked(scores, 2, "bottom") == (Head(0, 3), Head(0, 5))
    assert over(scores, 0.075) == (Head(0, 0), Head(0, 1), Head(0, 2))
    values = np.array(list(scores.values()))
    assert [scores[h] for h in over(scores, "own")] == [x for x in values if x > values.mean() + values.std(ddof=1)]
    with pytest.raises(InputError, match="no head has PDS over 0.5.*L0H1"):
        over(scores, 0.5)
    with pytest.raises(InputError, match="leave too few"):
        over(scores, -1.0)
    with pytest.raises(InputError, match="k=4 of 6 heads"):
        ranked(scores, 4)


@pytest.mark.parametrize("gates", [(1.0,), (0.0, 0.0), (float("nan"),), (1.0, float("inf"))])
def test_gates_that_make_no_protocol(gates: tuple[float, ...]) -> None:
    scores = {Head(0, h): float(h) for h in range(4)}
    with pytest.raises(InputError, match="different finite numbers"):
        design(scores, {"top1": ranked(scores, 1)}, gates)
