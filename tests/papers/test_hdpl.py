"""HDPL's comparison: losses by seed on the same data, and what the penalty did."""

from pathlib import Path

import pandas as pd
import pytest

from models.errors import InputError
from models.runs import evaluations
from models.train import main as train
from papers.hdpl import main
from tests.tiny import arguments


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


def test_bad_sets_of_runs(runs: list[Path], corpus, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both llama, seed 0"):
        main([str(runs[0]), str(runs[0])])
    train(arguments(corpus, tmp_path / "short", "--seed", "1", "--batch-size", "2", preset="hdpl"))
    with pytest.raises(InputError, match="batch_size"):
        main([str(runs[0]), str(tmp_path / "short")])
    with pytest.raises(InputError, match="llama"):
        main([str(runs[1])])
