"""Columns of the papers' tables are described once, and a table on the screen says what its file says."""

import csv
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.table import read_about
from streamscope.papers.comparison import tables
from streamscope.papers.comparison.options import RunsOptions, not_with_tables, settings_of
from streamscope.papers.comparison.report import Comparison, compare
from streamscope.papers.comparison.tables import NOT_DESCRIBED, column, table_of
from streamscope.papers.dst.report import COMPARISON as DST
from streamscope.papers.hdpl.report import COMPARISON as HDPL
from streamscope.papers.krom.report import COMPARISON as KROM
from streamscope.papers.lfa import Options, Settings
from streamscope.papers.lfa.report import COMPARISON as LFA
from streamscope.papers.modes.report import COMPARISON as MODES
from streamscope.papers.pls.report import COMPARISON as PLS
from streamscope.papers.scorecard.report import COMPARISON as SCORECARD
from tests.conftest import ROOT


def test_a_column_of_a_table_is_described_once() -> None:
    with (Path(tables.__file__).with_name("columns.csv")).open(encoding="utf-8", newline="") as file:
        rows = [(row["table"], row["name"]) for row in csv.DictReader(file)]
    assert len(rows) == len(set(rows)) == len(tables.described())


@pytest.mark.parametrize("paper", [LFA, PLS, DST, HDPL, KROM, MODES, SCORECARD], ids=lambda paper: paper.module)
def test_published_columns_with_a_unit_are_described(paper: Comparison) -> None:
    """Those of the paper's newest folder; older folders have columns that today's tables lack."""
    folder = {"papers.scorecard": "scorecard_eighth", "papers.modes": "pls_modes"}.get(
        paper.module, f"{paper.module.removeprefix('papers.')}_eighth"
    )
    seen = 0
    for path in sorted((ROOT / "results" / folder).glob("*.parquet")):
        own = paper.columns.get(path.stem, ())
        for name in read_about(path)["units"]:
            seen += 1
            found = column(name, f"{paper.module.removeprefix('papers.')}/{path.stem}", own)
            assert found.unit != NOT_DESCRIBED, f"{path.stem}: {name}"
    assert seen > 10


def test_a_number_stands_with_its_interval_and_a_missing_one_with_its_reason() -> None:
    frame = pd.DataFrame({
        "quantity": ["loss", "pds"], "mean": [2.0, float("nan")], "ci_low": [1.5, float("nan")],
        "ci_high": [2.5, float("nan")], "n": [3, 0], "loss": [1.0, 2.0], "loss_low": 0.5, "loss_high": 2.25,
        "undefined": ["", "mean, ci_low, ci_high: no run of lfa"],
    })  # fmt: skip
    table = table_of(frame, "lfa/architectures", "means", ("mean", "quantity", "loss"))
    columns, rows = table.cells()
    assert [one.name for one in columns] == ["mean", "quantity", "loss"], "in the order that was asked for"
    assert rows[0] == ["2.000 (1.500 … 2.500)", "loss", "1.0000 (0.5000 … 2.2500)"] and rows[1][0] == "undefined"
    assert table.legend() == ["undefined (1 row) mean: no run of lfa"]
    every, _ = table_of(frame, "lfa/architectures").cells()
    assert [one.name for one in every] == ["quantity", "mean", "n", "loss"], "ends of intervals stand with their number"


def test_settings_are_refused_beside_tables_but_not_where_a_scale_knows_its_tables(tmp_path: Path) -> None:
    given = Options(tables=tmp_path, k=(1,))
    assert settings_of(Settings, given) == Settings(k=(1,))
    with pytest.raises(InputError, match="--k is for measuring, and --tables measures nothing"):
        not_with_tables(Settings, given)
    with pytest.raises(InputError, match="--k is for measuring"):
        compare(LFA, given)
    with pytest.raises(InputError, match="is no folder of a comparison"):  # its tables were measured with --k 1
        compare(LFA, Options(tables=tmp_path, scale="tiny", k=(1,)))
    not_with_tables(Settings, RunsOptions(tables=tmp_path))
