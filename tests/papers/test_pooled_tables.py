"""Rows of single runs, each measured when its training ended, are pooled as if they had been measured together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.table import read_about, read_parquet, write_table
from streamscope.papers.comparison.report import reopen
from streamscope.papers.comparison.runs import trained_runs
from streamscope.papers.dst.report import in_arms as dst_arms
from streamscope.papers.lfa import main
from streamscope.papers.lfa.runs import Arms
from streamscope.papers.pls import main as pls
from tests.papers.pages import assert_same_tables

LONG = Path(__file__).resolve().parents[2] / "results" / "lfa_long" / "each"


def copied(folder: Path, run: str, **changes: Any) -> None:
    """The tables of one run, under another seed or settings."""
    folder.mkdir(parents=True)
    trained = json.loads((LONG / run / "trained.json").read_text())
    trained["runs"][0]["seed"] = changes.get("seed", 0)
    (folder / "trained.json").write_text(json.dumps(trained))
    for path in (LONG / run).glob("*.parquet"):
        about = read_about(path)
        table = read_parquet(path).to_pandas()
        if "seed" in changes and "seed" in table:
            table["seed"] = changes["seed"]
        told = about["about"] | {name: value for name, value in changes.items() if name != "seed"}
        write_table(table, folder / path.name, units=about["units"], about=told)


def test_folders_of_single_runs_are_one_comparison(tmp_path: Path) -> None:
    run = "lfa-std-t-rope-s0"
    copied(tmp_path / "both" / "a", run)
    copied(tmp_path / "both" / "b", run, seed=1)
    runs, tables, about = reopen(tmp_path / "both", "papers.lfa")
    alone, once, _ = reopen(LONG / run, "papers.lfa")
    assert [one.seed for one in runs] == [0, 1] and len(alone) == 1 and about["settings"]
    for name, table in tables.items():
        assert len(table) == 2 * len(once[name]), name
        first = table.iloc[: len(once[name])]
        pd.testing.assert_frame_equal(first, once[name], check_dtype=False)
    assert set(tables["runs"]["seed"]) == {0, 1}


@pytest.mark.parametrize("paper", ["lfa", "pls"])
def test_the_committed_tables_are_those_of_the_single_runs(paper: str, tmp_path: Path) -> None:
    """results/PAPER_long is what its command makes of each/, and judging it again changes nothing."""
    folder = LONG.parents[1] / f"{paper}_long"
    for given in (folder / "each", folder):
        out = tmp_path / given.name
        {"lfa": main, "pls": pls}[paper](["--tables", str(given), "--out", str(out), "--static", "none", "--no-html"])
        assert_same_tables(folder, out)


def test_a_run_measured_alone_gets_the_name_that_it_has_among_others(tmp_path: Path) -> None:
    """Alone, the second beginning of a model is its only one; among others it is an arm of its own."""
    whole, table = LONG.parents[1] / "dst_long", "amplification.parquet"
    runs, about = json.loads((whole / "trained.json").read_text())["runs"], read_about(whole / table)
    kept = read_parquet(whole / table).to_pandas()
    for i, run in enumerate(dst_arms(trained_runs(whole))):
        alone = dst_arms([replace(run, variant="", cell="")])[0].arm
        own = kept[(kept["preset"] == run.arm) & (kept["seed"] == run.seed)].assign(preset=alone)
        (folder := tmp_path / f"{i:02}").mkdir()
        mine = [one for one in runs if one["folder"] == str(run.folder)]
        (folder / "trained.json").write_text(json.dumps({"runs": mine}))
        write_table(own, folder / table, units=about["units"], about=about["about"])
    _, tables, _ = reopen(tmp_path, "papers.dst", dst_arms)
    counted = tables["amplification"].groupby(["preset", "seed"]).size()
    assert counted.to_dict() == kept.groupby(["preset", "seed"]).size().to_dict()
    assert ("dst-kron+normal", 0) in counted.index and ("dst-kron", 0) in counted.index


def test_runs_that_were_measured_otherwise_are_refused(tmp_path: Path) -> None:
    run = "lfa-std-t-rope-s0"
    copied(tmp_path / "both" / "a", run)
    copied(tmp_path / "both" / "b", run, seed=1, settings={"k": [1]})
    with pytest.raises(InputError, match=r"both/[ab]: settings .* measure it again"):
        reopen(tmp_path / "both", "papers.lfa")
    with pytest.raises(InputError, match="is no folder of a comparison"):
        reopen(tmp_path, "papers.lfa")


def test_a_field_that_came_between_two_trainings_is_no_difference_of_them() -> None:
    """d-cas and lfa of seed 0 were written by two versions: the later one has `norm_place` and `positions.skip`."""
    told = [json.loads((LONG / run / "trained.json").read_text())["runs"][0] for run in ("lfa-d-cas-s0", "lfa-s0")]
    assert ["norm_place" in one["config"]["model"] for one in told] == [False, True], "one of them lacks a field"
    runs = [one for name in ("lfa-d-cas-s0", "lfa-s0") for one in trained_runs(LONG / name)]
    assert Arms(runs).confounded("d-cas", "lfa") == ""
    other = replace(runs[1], config={**runs[1].config, "model": {**runs[1].config["model"], "norm_place": "after"}})
    assert Arms([runs[0], other]).confounded("d-cas", "lfa") == "d-cas has norm_place before, lfa norm_place after"
