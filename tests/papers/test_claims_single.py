"""Claims about one model: verdicts of planted tables, the gate before them, and how the models were trained."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.disk import read_toml
from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import clustered_t, ratio_of_sums
from streamscope.instruments.stats.means import estimate
from streamscope.instruments.table import write_table
from streamscope.papers.claims.judged import Tables
from streamscope.papers.claims.single import GATE, OUT, main
from streamscope.papers.claims.single_judged import CLAIMS, File, interval_df, judged, student

TOLD: Any = {
    "run": "stories/lfa", "quantity": "q", "where": "§1", "table": "t.parquet", "row": {"head": "L0.H0"},
    "value": "delta", "side": "above", "unit": "attention",
}  # fmt: skip

FLAT = {"table": "t.parquet", "row": {"head": "L0.H0"}, "value": "span"}


def folder(tmp_path: Path, **cells: Any) -> Path:
    """A table of one row, .5 (.4 to .6) over ten cases, and a gate."""
    row = {"head": "L0.H0", "delta": 0.5, "delta_low": 0.4, "delta_high": 0.6, "n": 20, "clusters": 10, "undefined": ""}
    about = {"run": ["stories/lfa"], "commit": "0" * 40}
    write_table(pd.DataFrame([row | cells]), tmp_path / "t.parquet", units={}, about=about)
    gate = {"run": "stories/lfa", "value": 0.1, "value_low": -0.1, "value_high": 0.3, "limit": 0.0}
    verdicts = {"position": "absent", "winograd": "undecided", "copying": "present"}
    pd.DataFrame([gate | {"phenomenon": k, "verdict": v} for k, v in verdicts.items()]).to_parquet(
        tmp_path / "g.parquet"
    )
    return tmp_path


def one(tmp_path: Path, told: dict[str, Any] | None = None, **cells: Any) -> Any:
    where = folder(tmp_path, **cells)
    return judged([TOLD | (told or {})], where, where / "g.parquet").iloc[0]


@pytest.mark.parametrize("side", ["above", "below", "within"])
def test_a_row_has_what_was_measured_with_its_interval(tmp_path: Path, side: str) -> None:
    """Beside how far beyond the limit it lies, from which .5 within .7 cannot be read back."""
    found = one(tmp_path, {"side": side, "limit": "0.7"})
    assert (found["value"], found["value_low"], found["value_high"]) == (0.5, 0.4, 0.6)


@pytest.mark.parametrize(
    ("told", "cells", "direction"),
    [
        ({}, {}, "holds"),
        ({"side": "below"}, {}, "opposite"),
        ({"limit": "0.7"}, {}, "opposite"),
        ({"limit": "0.7", "side": "below"}, {}, "holds"),
        ({"limit": "0.45"}, {}, "not resolved at n=10 independent cases, one training seed"),
        ({"smallest": 0.7}, {}, "negligible: within ±0.7"),
        ({"there_is": True}, {}, "holds"),
        ({"there_is": True, "limit": "0.7"}, {}, "no such head: q of stories/lfa not above 0.7"),
        ({"side": "within", "limit": "0.7"}, {}, "holds"),
        ({"side": "within", "limit": "0.5"}, {}, "not resolved at n=10 independent cases, one training seed"),
        ({"side": "within", "limit": "0.3"}, {}, "opposite"),
        ({"side": "within", "limit": "0.3"}, {"delta": -0.5, "delta_low": -0.6, "delta_high": -0.4}, "opposite"),
        ({"side": "within", "limit": "0.3"}, {"delta": 0.0, "delta_low": -0.1, "delta_high": 0.1}, "holds"),
        # the limit of a claim of no effect is often the smallest effect of interest: inside it the claim holds
        ({"side": "within", "limit": "0.7", "smallest": 0.7}, {}, "holds"),
        ({"side": "within", "limit": "0.7", "unit": "pooled sd"}, {}, "holds"),
        ({"flat": FLAT}, {"span": 0.3, "span_low": 0.2, "span_high": 0.4}, "holds"),
        (
            {"flat": FLAT, "smallest": 0.4},
            {"span": -0.1, "span_low": -0.3, "span_high": 0.1},
            "negligible: the curve spans -0.1 (-0.3 … +0.1) attention",
        ),
        (
            {"flat": FLAT, "smallest": 0.2},
            {"span": -0.1, "span_low": -0.3, "span_high": 0.1},
            "not resolved: the curve spans -0.1 (-0.3 … +0.1) attention, no shape to judge",
        ),
        ({"has": ["copying"], "does": ["copying"]}, {}, "holds"),
        ({"has": ["winograd"]}, {}, "holds"),
        ({"has": ["position"]}, {}, "no such head: position of stories/lfa +0.100 (-0.100 … +0.300), below 0"),
        (
            {"does": ["winograd"]},
            {},
            "the model cannot do the task: winograd of stories/lfa +0.100 (-0.100 … +0.300), not resolved above 0",
        ),
        ({"p": "p"}, {"p": 0.2}, "not resolved at n=10 independent cases, one training seed, corrected"),
        (
            {},
            dict.fromkeys(("delta", "delta_low", "delta_high"), float("nan"))
            | {"undefined": "delta: none to suppress"},
            "undefined: none to suppress",
        ),
    ],
)
def test_a_planted_row_is_judged(tmp_path: Path, told: dict, cells: dict, direction: str) -> None:
    found = one(tmp_path, told, **cells)
    assert found["direction"] == direction
    if told.get("side") in ("above", "below") and not cells:
        sign = -1 if told["side"] == "below" else 1
        assert found["difference"] == pytest.approx(sign * (0.5 - float(told.get("limit", 0))))
        assert found["ci_low"] < found["difference"] < found["ci_high"]


def test_p_is_that_of_the_interval() -> None:
    values = [0.1, 0.4, -0.2, 0.9, 0.5, 0.3]
    row = estimate(values, range(6))
    assert student(row["mean"], row["ci_low"], row["ci_high"], 0.0, 5) == pytest.approx(row["p"])
    limit = stats.ttest_1samp(values, 0.7).pvalue
    assert student(row["mean"], row["ci_low"], row["ci_high"], 0.7, 5) == pytest.approx(limit)
    assert student(1.0, 0.0, 9.0, 0.0, 49) == pytest.approx(0.05), "a lopsided interval: the half on the limit's side"


SIZES = np.array([10.0] * 9 + [250.0])
"""Nine short documents and a long one: 1.7 degrees of freedom, where ten of one size have 9."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", ["0", "0.3"])
def test_p_has_the_degrees_of_freedom_of_unequal_clusters(tmp_path: Path, seed: int, limit: str) -> None:
    rng = np.random.default_rng(seed)
    totals = 0.5 * SIZES + rng.normal(size=10) * np.sqrt(SIZES) * 0.3 + SIZES * rng.normal(size=10) * 0.02
    interval, test = ratio_of_sums(totals, SIZES), clustered_t(totals, SIZES)
    moved = clustered_t(totals - float(limit) * SIZES, SIZES)
    assert float(test.df) < 2
    ends = {"delta": interval.mean, "delta_low": interval.ci_low, "delta_high": interval.ci_high}
    found = one(tmp_path, {"limit": limit}, **ends, delta_p=float(test.p))
    assert found["p"] == pytest.approx(float(moved.p), rel=1e-6)


def test_degrees_of_freedom_are_those_of_the_interval_and_its_p() -> None:
    for df in (1.0, 1.7, 4.2, 9.0):
        half = float(stats.t.ppf(0.975, df))
        for t in (0.3, 3.0, 40.0):
            p = float(2 * stats.t.sf(t, df))
            assert interval_df(t, t - half, t + half, p, 10) == pytest.approx(df, rel=1e-6)
    assert interval_df(1.0, 0.5, 1.5, float("nan"), 10) == 9, "the table has no p"
    assert interval_df(1.0, 0.5, 2.5, 0.004, 10) == 9, "a lopsided interval has another test"
    assert interval_df(1.0, 0.5, 1.5, 0.9, 10) == 9, "p is of another test"
    assert math.isnan(interval_df(1.0, 0.5, 1.5, 0.004, 1))


def test_claims_of_a_folder_share_one_correction(tmp_path: Path) -> None:
    where = folder(tmp_path)
    half = {"limit": "0.4"}  # p .05 each
    alone = judged([TOLD | half], where, where / "g.parquet").iloc[0]
    both = judged([TOLD | half, TOLD | half | {"quantity": "r"}], where, where / "g.parquet")
    assert both["p_holm"].iloc[0] == pytest.approx(2 * alone["p_holm"])


def test_the_command_writes_claims_and_how_the_model_was_trained(tmp_path: Path, capsys: Any) -> None:
    where = folder(tmp_path)
    (where / CLAIMS).write_text(
        '[[claim]]\nrun = "stories/lfa"\nquantity = "q"\nwhere = "§1"\ntable = "t.parquet"\nrow = {head = "L0.H0"}\n'
        'value = "delta"\nside = "above"\nunit = "attention"\n',
        encoding="utf-8",
    )
    main([str(where), "--gate", str(where / "g.parquet")])
    assert "holds" in capsys.readouterr().out
    assert pd.read_parquet(where / OUT)["direction"].tolist() == ["holds"]
    made = Tables(where.parent).made(f"{where.name}/t.parquet")
    assert made == {"scale": "zoo", "tokens": "11,980,800", "commit": "000000000000"}


def test_a_row_has_the_dose_of_its_own_model(tmp_path: Path) -> None:
    """The run of the row, else those of the table, else all of the folder."""
    where = folder(tmp_path)
    config = {"training": {"batch_size": 2}, "model": {"n_ctx": 8}}
    runs = [
        {
            "folder": name,
            "preset": name.split("/")[1],
            "seed": 0,
            "manifest": {"scale": "zoo", "steps": steps},
            "config": config,
        }
        for name, steps in (("stories/lfa", 10), ("stories/pls", 20))
    ]
    (where / "trained.json").write_text(json.dumps({"runs": runs}))
    made = Tables(where.parent).made
    assert made(f"{where.name}/t.parquet", "stories/pls")["tokens"] == "320"
    assert made(f"{where.name}/t.parquet", "pls")["tokens"] == "320"
    assert made(f"{where.name}/t.parquet")["tokens"] == "160"
    assert made(f"{where.name}/g.parquet")["tokens"] == "160 to 320"


def test_bad_claims_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="claims.toml"):
        main([str(tmp_path)])
    with pytest.raises(InputError, match="q: result: 0 rows of t.parquet have head=L9.H9"):
        one(tmp_path, {"row": {"head": "L9.H9"}})
    with pytest.raises(InputError, match="the gate"):
        one(tmp_path, {"has": ["flying"]})


def test_what_is_shipped_is_what_its_tables_and_the_gate_give_now() -> None:
    """A gate that was measured anew, as of other weights, changes what is said of a model that cannot do a task."""
    where = GATE.parents[1] / "bundled_claims"
    now = judged(read_toml(where / CLAIMS, File, "")["claim"], where, GATE).reset_index(drop=True)
    shipped = pd.read_parquet(where / OUT)
    pd.testing.assert_frame_equal(shipped, now[list(shipped.columns)], check_dtype=False, rtol=1e-9)
