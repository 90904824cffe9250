"""HDPL's comparison: losses by seed on the same data, and what the penalty did."""

from pathlib import Path

import pandas as pd
import pytest

from streamscope.models.errors import InputError
from streamscope.models.runs import evaluations
from streamscope.models.train import main as train
from streamscope.papers.hdpl import main
from streamscope.papers.hdpl.page import page
from streamscope.papers.hdpl.report import PRESETS, again
from tests.papers.pages import as_bundled, committed
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
    text = (tmp_path / "out" / "README.md").read_text()
    ends = [evaluations(run)[-1]["loss"] for run in runs]
    assert all(f"{loss:.4f}" in text for loss in ends) and f"{ends[1] - ends[0]:+.4f}" in text
    assert "-0.037" in text, "the paper's difference, 4.2838 − 4.3206"
    kl = pd.read_parquet(tmp_path / "out" / "kl.parquet").iloc[0]
    assert kl["kl_clamped_first"] > 0.99 and kl["kl_nats"] > 0.7, "the KL is above the clamp from the first step"


def test_models_that_start_as_the_authors_do_are_judged(runs: list[Path], tmp_path: Path) -> None:
    main([*map(str, runs), "--out", str(tmp_path / "out")])
    (row,) = pd.read_parquet(tmp_path / "out" / "order.parquet").to_dict("records")
    assert row["direction"] == "undefined: one pair of seeds"
    assert "withdrawn" not in (tmp_path / "out" / "README.md").read_text()


def test_no_verdict_while_the_dense_model_starts_otherwise(corpus, tmp_path: Path, capsys) -> None:
    out, runs = tmp_path / "out", [tmp_path / "llama-0", tmp_path / "hdpl-0"]
    for run in runs:
        train(arguments(corpus, run, "--seed", "0", "--set", "init_std=0.02", preset=run.name[:-2]))
    main([*map(str, runs), "--out", str(out)])
    (row,) = pd.read_parquet(out / "order.parquet").to_dict("records")
    assert row["claim"] == "hdpl < llama" and row["direction"].startswith("withdrawn: the dense model does not start")
    assert pd.isna(row["p"]) and row["alone"] == row["size"] == ""
    first = (out / "README.md").read_text().split("\n\n")[1]
    assert first.startswith("**No size on this page can be interpreted") and "0.14 nats per token" in first
    assert "withdrawn" in capsys.readouterr().out
    main(["--tables", str(out), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "losses.parquet").is_file()
    with pytest.raises(InputError, match="not both"):
        main([str(runs[0]), "--tables", str(out)])


def test_the_published_page_is_that_of_its_tables() -> None:
    found = again(RESULTS)
    committed(lambda files: page(found, files), RESULTS)
    pd.testing.assert_frame_equal(pd.read_parquet(RESULTS / "order.parquet"), found.order, check_dtype=False)
    as_bundled(RESULTS, PRESETS)
    text = (RESULTS / "README.md").read_text()
    assert "more than the 0.042 by which" in text.split("\n\n")[1] and "tokens seen each" in text.split("\n\n")[3]


def test_bad_sets_of_runs(runs: list[Path], corpus, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both llama, seed 0"):
        main([str(runs[0]), str(runs[0])])
    train(arguments(corpus, tmp_path / "short", "--seed", "1", "--batch-size", "2", preset="hdpl"))
    with pytest.raises(InputError, match="batch_size"):
        main([str(runs[0]), str(tmp_path / "short")])
    with pytest.raises(InputError, match="llama"):
        main([str(runs[1])])
