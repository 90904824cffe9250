"""HDPL's page: planted rows give the known cells, the figure draws the table's values, the log gives the numbers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.models.checkpoint import ZOO
from streamscope.models.config.presets import preset
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.hdpl import figures, tables
from streamscope.papers.page import Page
from streamscope.papers.paper import OWN, Run, complete, load
from streamscope.papers.printed import form, with_interval

LOSSES = {"llama": [1.61, 1.42, 1.55], "hdpl": [1.31, 1.38, 1.29]}
STEPS = (100.0, 500.0, 1000.0)


def planted() -> pd.DataFrame:
    rows = []
    for arm, values in LOSSES.items():
        for seed, value in enumerate(values):
            about = {"grid": OWN, "arm": arm, "seed": seed, "unit": "nats per token", "tokens": 2e6, "text": "stories"}
            rows.append({**about, "quantity": "loss.last", "value": value})
            rows += [{**about, "quantity": "loss.curve", "x": x, "value": value * (3 - x / 500)} for x in STEPS]
    return complete(pd.DataFrame(rows))


def test_the_figure_draws_the_curves_and_the_printed_points() -> None:
    drawn = figures.curves(Page("hdpl", planted()))
    left, right = drawn.axes
    lines = {line.get_label(): line for line in left.get_lines()}
    want = [np.mean(LOSSES["llama"]) * (3 - x / 500) for x in STEPS]
    assert lines["Baseline"].get_ydata() == pytest.approx(want)
    assert lines["Baseline"].get_xdata() == pytest.approx([0.1, 0.5, 1.0])
    seeds = [line.get_ydata() for line in left.get_lines() if line.get_linewidth() < 1 and len(line.get_xdata()) == 3]
    assert sorted(y[-1] for y in seeds) == pytest.approx(sorted(LOSSES["llama"] + LOSSES["hdpl"]))
    points = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in left.get_lines()
              if line.get_marker() == "D"}  # fmt: skip
    assert points == {(0.5, 4.38), (0.5, 4.44), (0.85, 4.32), (1.0, 4.284), (1.0, 4.3206)}
    percent = 100 * (np.mean(LOSSES["hdpl"]) / np.mean(LOSSES["llama"]) - 1)
    (curve,) = [line for line in right.get_lines() if line.get_label().startswith("hybrid against")]
    assert curve.get_ydata() == pytest.approx([percent] * 3)
    points = [line for line in right.get_lines() if line.get_marker() == "D"]
    assert [point.get_ydata()[0] for point in points] == pytest.approx([-1.35, -0.85])


def test_printed_sizes_are_counted_again() -> None:
    for arm, size in (("llama", "256.02"), ("hdpl", "238.54")):
        with torch.device("meta"):
            n = StreamTransformer(preset(arm, "paper")).n_params()
        rows = load("hdpl")
        mine = rows[(rows["arm"] == arm) & (rows["grid"] == "printed size")].set_index("quantity")["value"]
        assert mine["parameters"] == n and mine["parameters.millions"] == n / 1e6
        assert f"{mine['size']:.2f}" == size


def test_equal_values_have_no_interval_and_stay_what_they_are() -> None:
    rows = planted()
    rows.loc[rows["quantity"] == "loss.last", "value"] = 0.1
    found = Page("hdpl", rows).estimate("hdpl", "loss.last")
    assert found.mean == found.low == found.high == 0.1
    assert with_interval(found, form("0.1")) == "0.1"


def test_the_log_gives_last_lowest_half_rise_and_the_share_that_is_clamped(tmp_path: Path) -> None:
    rows = [
        *({"kind": "train", "step": step, "loss": loss, "ce": loss - 0.5, "kl_nats": 10.0 + step, "kl_clamped": share}
          for step, loss, share in ((10, 9.0, 0.9), (50, 6.0, 0.7), (95, 4.0, 0.8), (100, 3.0, 1.0))),
        *({"kind": "eval", "step": step, "loss": loss, "perplexity": 1.0, "tokens": 64}
          for step, loss in ((20, 5.0), (45, 4.0), (80, 2.0), (100, 3.0))),
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    run = SimpleNamespace(folder=tmp_path, rows=[])
    run.add = lambda *row, **more: Run.add(run, *row, **more)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_warmup", lambda _: 30)
        tables.curve(run)  # type: ignore[arg-type]
    tables.penalty(run)  # type: ignore[arg-type]
    found = {row["quantity"]: row["value"] for row in run.rows if row["quantity"] != "loss.curve"}
    assert found == pytest.approx({
        "loss.last": 3.0, "loss.lowest": 2.0, "loss.rise": 1.0, "loss.half": 4.0, "loss.train": 3.0,
        "loss.mean": (35 * 3.0 + 20 * 2.5) / 55, "kl.first": 20.0, "kl.last": 110.0, "clamped.first": 0.9,
        "clamped.last": 1.0, "clamped.least": 0.7,
    })  # fmt: skip
    assert {(row["x"], row["value"]) for row in run.rows if row["quantity"] == "loss.curve"} == {
        (20.0, 5.0), (45.0, 4.0), (80.0, 2.0), (100.0, 3.0)
    }  # fmt: skip


def test_warm_up_is_at_most_a_tenth_of_the_training(tmp_path: Path) -> None:
    shutil.copytree(ZOO / "hdpl", tmp_path / "hdpl-s0")
    for steps, warmup, expected in ((2000, 1000, 200), (20_000, 1000, 1000)):
        for name, change in (("manifest.json", {"steps": steps}), ("config.json", {"training": {"warmup": warmup}})):
            path = tmp_path / "hdpl-s0" / name
            old = json.loads(path.read_text())
            new = {k: {**old[k], **v} if isinstance(v, dict) else v for k, v in change.items()}
            path.write_text(json.dumps({**old, **new}))
        run = SimpleNamespace(folder=tmp_path / "hdpl-s0")
        assert tables._warmup(run) == expected  # type: ignore[arg-type]
