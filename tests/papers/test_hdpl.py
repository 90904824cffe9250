"""HDPL's comparison: losses by seed on the same data, and what the penalty did."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.models.runs import evaluations
from streamscope.models.train import main as train
from streamscope.papers.comparison.report import rejudge
from streamscope.papers.comparison.runs import opened
from streamscope.papers.figures.requests import draw, figures_of
from streamscope.papers.figures.style import Style
from streamscope.papers.hdpl import main, overfit
from streamscope.papers.hdpl.report import COMPARISON as HDPL
from streamscope.papers.hdpl.report import PRESETS, in_arms
from tests.papers.pages import planted, short_page
from tests.tiny import arguments

RESULTS = Path(__file__).parents[2] / "results" / "hdpl_textbooks"


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("hdpl")
    plan = {"llama-0": ("llama", "0"), "hdpl-0": ("hdpl", "0")}
    for name, (preset, seed) in plan.items():
        train(arguments(corpus, folder / name, "--seed", seed, preset=preset))
    return [folder / name for name in plan]


def test_the_page_holds_the_runs_losses(runs: list[Path], tmp_path: Path) -> None:
    main([*map(str, runs), "--out", str(tmp_path / "out")])
    assert "python -m models.train {arm}" in short_page(tmp_path / "out")
    ends = [evaluations(run)[-1]["loss"] for run in runs]
    assert pd.read_parquet(tmp_path / "out" / "losses.parquet")["loss"].tolist() == ends
    hybrid = pd.read_parquet(tmp_path / "out" / "comparison.parquet").set_index("preset").loc["hdpl"]
    assert hybrid["difference"] == pytest.approx(ends[1] - ends[0])
    assert hybrid["printed_difference"] == pytest.approx(4.2838 - 4.3206)
    kl = pd.read_parquet(tmp_path / "out" / "kl.parquet").iloc[0]
    assert kl["kl_clamped_first"] > 0.99 and kl["kl_nats"] > 0.7, "the KL is above the clamp from the first step"
    steps = pd.read_parquet(tmp_path / "out" / "kl-steps.parquet")
    logged = map(json.loads, (runs[1] / "metrics.jsonl").read_text().splitlines())
    assert steps["kl_nats"].tolist() == [row["kl_nats"] for row in logged if row["kind"] == "train"]
    assert steps.iloc[0]["kl_clamped"] == kl["kl_clamped_first"] and steps.iloc[-1]["kl_nats"] == kl["kl_nats"]


def test_the_curves_are_those_of_the_runs_logs(runs: list[Path], tmp_path: Path) -> None:
    main([*map(str, runs), "--out", str(tmp_path / "out")])
    curves = pd.read_parquet(tmp_path / "out" / "curves.parquet")
    (length,) = {json.loads((run / "config.json").read_text())["model"]["n_ctx"] for run in runs}
    plain = [
        (run.name[:-2], 0, row["step"], row["step"] * 4 * length, row["loss"])
        for run in runs
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if row["kind"] == "eval"
    ]
    assert list(curves.itertuples(index=False, name=None)) == plain and len(plain) == 4
    claims = pd.read_parquet(tmp_path / "out" / "curve-claims.parquet").set_index("id")["direction"]
    assert opened(str(runs[0]), PRESETS).warmup == 1, "of twelve steps; the recipe's 100 are of a long training"
    assert len(claims) == 5 and set(claims) == {"undefined: fewer than three seeds"}, "one seed is no verdict"
    main(["--tables", str(tmp_path / "out"), "--out", str(tmp_path / "again")])
    for name in ("curves", "gaps", "curve-claims", "curve-points"):
        first, second = (pd.read_parquet(tmp_path / one / f"{name}.parquet") for one in ("out", "again"))
        pd.testing.assert_frame_equal(first, second)


def test_figure_2_is_drawn_of_the_runs_that_are_given(runs: list[Path], tmp_path: Path) -> None:
    """It was drawn of the bundled models, whichever runs were given."""
    with pytest.raises(InputError, match="say with --out FOLDER"):
        main([*map(str, runs), "--figure", "2", "--format", "html"])
    main([*map(str, runs), "--figure", "2", "--format", "html", "--out", str(tmp_path)])
    page = (tmp_path / "hdpl-figure-2.html").read_text()
    assert (
        "here: one seed each" in page and "bundled" not in page.split("plotly.js")[-1].rpartition("Plotly.newPlot")[2]
    )
    drawn = {one.name: one for one in draw(figures_of("hdpl")["2"], Style(), tmp_path).data}
    rows = evaluations(runs[1])
    assert list(drawn["hybrid (hdpl)"].y) == [row["loss"] for row in rows]
    assert list(drawn["hybrid (hdpl)"].x) == [row["step"] / 1000 for row in rows]


def test_hybrid_o_and_down_are_arms_of_their_own(runs: list[Path], corpus, tmp_path: Path) -> None:
    both = ("--set", "attention.o=hdpl", "--set", "mlp.down=hdpl")
    for name, sets in (("o", both[:2]), ("down", both[2:]), ("both", both)):
        train(arguments(corpus, tmp_path / name, "--seed", "0", *sets, preset="hdpl"))
    more = [str(tmp_path / name) for name in ("both", "o", "down")]
    main([*map(str, runs), *more, "--out", str(tmp_path / "out")])
    out = tmp_path / "out"
    arms = ["llama", "hdpl", "hdpl+down=hdpl", "hdpl+o=hdpl", "hdpl+o=hdpl+down=hdpl"]
    for name in ("losses", "comparison", "curves"):
        assert list(dict.fromkeys(pd.read_parquet(out / f"{name}.parquet")["preset"])) == arms
    assert set(pd.read_parquet(out / "kl.parquet")["preset"]) == set(arms[1:]), "the penalty of each"
    order = pd.read_parquet(out / "order.parquet").set_index("claim")
    assert list(order.index) == ["hdpl < llama", *(f"hdpl < {arm}" for arm in (arms[3], arms[2], arms[4]))]
    ends = {name: evaluations(path)[-1]["loss"] for name, path in (("hdpl", runs[1]), ("o", tmp_path / "o"))}
    assert order.loc["hdpl < hdpl+o=hdpl", "difference"] == pytest.approx(ends["o"] - ends["hdpl"])
    assert list(order["printed"]) == ["4.284 < 4.321", "", "", ""]
    (run,) = in_arms([opened(str(tmp_path / "both"), PRESETS)])
    assert run.arm == arms[4], "not hdpl+hdpl+hdpl"
    with pytest.raises(InputError, match="both hdpl\\+o=hdpl, seed 0"):
        main([*more, more[1]])
    main(["--tables", str(out), "--out", str(tmp_path / "again")])
    pd.testing.assert_frame_equal(*(pd.read_parquet(tmp_path / p / "order.parquet") for p in ("out", "again")))


def test_models_that_start_as_the_authors_do_are_judged(runs: list[Path], tmp_path: Path) -> None:
    main([*map(str, runs), "--out", str(tmp_path / "out")])
    (row,) = pd.read_parquet(tmp_path / "out" / "order.parquet").to_dict("records")
    assert row["direction"] == "undefined: one pair of seeds"


def test_no_verdict_while_the_dense_model_starts_otherwise(corpus, tmp_path: Path, capsys) -> None:
    out, runs = tmp_path / "out", [tmp_path / "llama-0", tmp_path / "hdpl-0"]
    for run in runs:
        train(arguments(corpus, run, "--seed", "0", "--set", "init_std=0.02", preset=run.name[:-2]))
    main([*map(str, runs), "--out", str(out)])
    (row,) = pd.read_parquet(out / "order.parquet").to_dict("records")
    assert row["claim"] == "hdpl < llama" and row["direction"].startswith("withdrawn: the dense model does not start")
    assert pd.isna(row["p"]) and row["alone"] == row["size"] == ""
    assert "not measured yet" in capsys.readouterr().out
    main(["--tables", str(out), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "losses.parquet").is_file()
    with pytest.raises(InputError, match="not both"):
        main([str(runs[0]), "--tables", str(out)])


def test_the_published_verdicts_are_those_of_the_published_tables() -> None:
    _, found, _ = rejudge(HDPL, RESULTS)
    pd.testing.assert_frame_equal(pd.read_parquet(RESULTS / "order.parquet"), found["order"], check_dtype=False)


def test_bad_sets_of_runs(runs: list[Path], corpus, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both llama, seed 0"):
        main([str(runs[0]), str(runs[0])])
    train(arguments(corpus, tmp_path / "short", "--seed", "1", "--batch-size", "2", preset="hdpl"))
    with pytest.raises(InputError, match="batch_size"):
        main([str(runs[0]), str(tmp_path / "short")])
    with pytest.raises(InputError, match="llama"):
        main([str(runs[1])])


def test_planted_losses_are_overfitted_by_what_was_planted() -> None:
    rows = [{"kind": "eval", "step": s, "loss": x} for s, x in ((10, 3.0), (20, 2.5), (100, 2.9))]
    rows += [{"kind": "train", "step": s, "loss": 9.0, "ce": x} for s, x in ((80, 2.0), (95, 1.0), (100, 1.2))]
    found = overfit.numbers(rows)
    plain = {"overfit": 0.4, "gap": 2.9 - 1.1, "train": 1.1, "lowest": 2.5}
    assert found == {name: pytest.approx(x) for name, x in plain.items()}, "the KL is no part of it"
    assert overfit.numbers([*rows[:3], {"kind": "train", "step": 100, "loss": 1.5}])["train"] == 1.5


def test_matched_is_where_the_training_loss_is_as_low() -> None:
    rows = [{"kind": "eval", "step": s, "loss": x} for s, x in ((10, 3.0), (20, 2.5), (30, 2.7), (40, 3.1))]
    rows += [{"kind": "train", "step": s, "loss": x} for s, x in ((5, 3.0), (15, 2.0), (18, 2.2), (25, 1.0), (35, 0.5))]
    assert overfit.matched(rows, 2.1) == pytest.approx(0) and overfit.matched(rows, 2.0) == pytest.approx(0.2)
    assert overfit.matched(rows, 0.7) == pytest.approx(0.6) and np.isnan(overfit.matched(rows, 0.1))


def test_who_overfits_more_is_judged_over_seeds() -> None:
    dense, hybrid = [0.40, 0.42, 0.41], [0.20, 0.21, 0.22]
    for llama, hdpl, said in ((dense, hybrid, "holds"), (hybrid, dense, "opposite")):
        found = overfit.claims(planted({("llama", "overfit"): llama, ("hdpl", "overfit"): hdpl}))
        assert list(found["direction"]) == [said]
    assert overfit.claims(planted({("llama", "overfit"): dense})).empty


def test_the_page_of_overfitting_is_written_and_judged_again(runs: list[Path], tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    overfit.main([*map(str, runs), "--out", str(first)])
    overfit.main(["--tables", str(first), "--out", str(again)])
    pd.testing.assert_frame_equal(*(pd.read_parquet(folder / "runs.parquet") for folder in (first, again)))
    assert short_page(again) and (again / "trained.json").is_file()


def test_the_published_verdicts_on_overfitting_are_those_of_the_published_runs() -> None:
    folder = RESULTS.parent / "hdpl_overfit"
    kept, found = (pd.read_parquet(folder / f"{name}.parquet") for name in ("claims", "runs"))
    again = overfit.claims(found)
    pd.testing.assert_frame_equal(again, kept[list(again)], check_dtype=False)
    assert len(kept) == 2
