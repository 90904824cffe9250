"""Undefined cells stay undefined through marking, parquet, printing and corrections."""

import gc

import numpy as np
import pandas as pd
import pytest

from streamscope.instruments import table as undefined
from streamscope.instruments.stats.estimators import holm

NAN = float("nan")


def test_marked_cells_are_missing_with_a_reason() -> None:
    raw = pd.DataFrame({"layer": [0, 5, 5], "delta": [0.1, 0.0, 0.0], "p": [0.2, NAN, 1]})
    marked = undefined.mark(raw, ["delta", "p"], raw["layer"] == 5, "gating the last layer cannot change attention")
    assert marked["undefined"].tolist() == ["", *["delta, p: gating the last layer cannot change attention"] * 2]
    assert np.isnan(marked["delta"][1:]).all() and raw["delta"][1] == 0, "the table given is left alone"
    once = undefined.mark(raw, ["p"], [False, True, True], "a")
    assert undefined.mark(once, ["delta"], [True, True, False], "b")["undefined"].tolist() == [
        "delta: b", "p: a; delta: b", "p: a",
    ]  # fmt: skip


def test_note_and_reasons_are_inverse() -> None:
    why = {"p": "one seed, not two", "t": "one seed, not two", "d": "flat"}
    assert undefined.note(why) == "p, t: one seed, not two; d: flat"
    assert undefined.read_note(undefined.note(why)) == why
    assert undefined.note({}) == "" and undefined.read_note("") == {}


def test_undefined_cells_are_no_tests() -> None:
    given = np.array([[0.01, NAN], [0.04, NAN]])
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
