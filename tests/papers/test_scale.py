"""Costs of trainings at the printed size, and the dry run."""

import pytest

from streamscope.models.config.presets import preset
from streamscope.models.grid import cells_of, read_grid
from streamscope.papers.paper import NAMES
from streamscope.papers.primary import PAPERS
from streamscope.papers.scale import PRINTED, costs, dry_run, main


@pytest.mark.parametrize("paper", NAMES)
def test_grids_are_of_the_printed_size(paper: str) -> None:
    cells = cells_of(read_grid(PAPERS / paper / "grid.toml"))
    assert all(cell.argv[cell.argv.index("--scale") + 1] == "paper" for cell in cells)
    assert len({cell.name for cell in cells}) == len(cells) >= 6


def test_hours_are_counted_by_hand() -> None:
    (row,) = [row for row in costs("lfa", "H100", 0.2) if row["training"] == "std-t-rope-s0"]
    c = preset("std-t", "paper")
    per_layer = 4 * c.d_model**2 + 2 * c.d_model * c.d_mlp
    flops = 3 * (c.n_layers * (2 * per_layer + 4 * c.n_ctx * c.d_model) + 2 * c.d_model * c.d_vocab)
    assert row["tokens/s"] == pytest.approx(0.2 * 989e12 / flops)
    assert row["hours"] == pytest.approx(PRINTED["lfa"] / (0.2 * 989e12 / flops) / 3600)
    assert row["GB"] == pytest.approx((2 * 16 + 12) * row["parameters"] / 1e9)


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    main(["lfa", "--gpu", "A100"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("18 trainings: ") and "one A100 at 10% of its peak" in lines[-1]
    assert [line.split()[-1] for line in lines[1:-1]] == ["3"] * 6


@pytest.mark.slow
def test_ten_steps_of_every_training(capsys: pytest.CaptureFixture[str]) -> None:
    dry_run("lfa")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and all(": 10 steps, loss " in line for line in lines)
