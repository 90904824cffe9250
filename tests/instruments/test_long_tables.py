"""Tables of more rows than memory should hold: written batch by batch, read in part, in memory that stays flat."""

import gc
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result
from streamscope.instruments.table import LONGEST, Column, LongTable, Table, key

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = (key("token", "token", "its text", "text"), Column(name="x", title="x", unit="nats", doc="a number"))


def batches(n: int, rows: int = 10) -> Iterator[pd.DataFrame]:
    for i in range(n):
        at = np.arange(rows) + i * rows
        yield pd.DataFrame({"token": [f"t{k}" for k in at], "x": at.astype("float32")})


def result(n: int = 3, **extra: Table) -> Result:
    return Result({"tokens": LongTable.of(batches(n), COLUMNS, "tokens"), **extra}, about={"instrument": "?"})


def test_rows_come_back_in_order_and_groups(tmp_path: Path) -> None:
    path, whole = tmp_path / "t.parquet", pd.concat(batches(3), ignore_index=True)
    written = result()
    assert written.save(path) == [path] and list(tmp_path.iterdir()) == [path]
    assert pq.ParquetFile(path).num_row_groups == 3
    table = Result.load(path).table()
    assert isinstance(table, LongTable) and len(table) == 30
    for one in (written.table(), table):
        pd.testing.assert_frame_equal(one.frame, whole)
        pd.testing.assert_frame_equal(one.head(12).frame, whole.head(12))
        assert one.columns == COLUMNS
    assert [batch.column_names for batch in table.batches(["x"])] == [["x"]] * 3
    assert [batch.column_names for batch in table.batches(("x", "token"))] == [["x", "token"]] * 3
    Result.load(path).save(path)  # where it is read from
    pd.testing.assert_frame_equal(pd.read_parquet(path), whole)


def test_the_first_rows_are_shown(capsys: pytest.CaptureFixture) -> None:
    made = result()
    made.print()
    shown = capsys.readouterr().out
    assert "5 of 30" in shown and "t4" in shown and "t5" not in shown
    assert "t4" in made.table().markdown() and "t5" not in made.table()._repr_html_()
    for n, title in ((11, "tokens; the first 11 of 30 rows"), (30, "tokens"), (40, "tokens")):
        first = made.table().head(n)
        assert (len(first.frame), first.title) == (min(n, 30), title)
        assert first.frame.index.tolist() == list(range(min(n, 30)))
    assert len(made.table().head().frame) == 20
    many = LongTable.of(batches(10), COLUMNS, "tokens", most=LONGEST + 1)
    assert repr(many).startswith("tokens; the first 20 of 100 rows\n") and "t20" not in repr(many)
    assert many.markdown().startswith("**tokens; the first 61 of 100 rows**")


def test_no_more_batches_are_read_than_are_shown() -> None:
    class Counted(LongTable):
        def batches(self, columns=None):
            for batch in super().batches(columns):
                read.append(batch.num_rows)
                yield batch

    read: list[int] = []
    sizes = (2, 10, 10, 10)
    made = LongTable.of((next(batches(1, rows=n)) for n in sizes), COLUMNS, "some")
    table = Counted(made.files, COLUMNS, "some", keep=made)
    for n, asked in ((2, [2]), (3, [2, 10]), (12, [2, 10]), (15, [2, 10, 10]), (32, [2, 10, 10, 10])):
        first = table.head(n)
        assert read == asked and len(first.frame) == n
        pd.testing.assert_frame_equal(first.frame, made.frame.head(n))
        read.clear()


def test_what_other_programs_know_of_the_rows_stays(tmp_path: Path) -> None:
    """pandas keeps in its own metadata that whole numbers may be missing."""
    columns = (key("n", "n", "a count", "cases", "d"),)
    pd.DataFrame({"n": pd.array([1, 2], dtype="Int64")}).to_parquet(tmp_path / "rows.parquet")
    Result({"rows": LongTable([tmp_path / "rows.parquet"], columns)}).save(tmp_path / "r.parquet")
    assert str(pd.read_parquet(tmp_path / "r.parquet")["n"].dtype) == "Int64"


def test_the_rows_go_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    for gone in (False, True):
        table = LongTable.of(batches(1), COLUMNS)
        folder = table.files[0].parent
        assert folder.is_dir() and folder.name.startswith("streamscope-"), "one who finds it knows whose it is"
        if gone:
            shutil.rmtree(folder)
        del table
        gc.collect()
        assert not folder.exists() and not said, "a folder that somebody has deleted is no error"


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    class Broken(LongTable):
        def batches(self, columns=None):
            yield from list(super().batches(columns))[:1]
            raise InputError("stopped")

    whole = LongTable.of(batches(2), COLUMNS)
    broken = Broken(whole.files, COLUMNS)
    with pytest.raises(InputError, match="stopped"):
        Result({"tokens": broken}).save(tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


def test_columns_are_described_and_there_are_rows() -> None:
    with pytest.raises(InputError, match="^table 'many': column 'x' has no title"):
        LongTable.of(batches(1), COLUMNS[:1], "many")
    with pytest.raises(InputError, match="^rows.parquet: no rows to write$"):
        LongTable.of([], COLUMNS)


MEMORY = """
import resource, sys
from pathlib import Path
from tests.instruments.test_long_tables import COLUMNS, LongTable, Result, batches
table = LongTable.of(batches(int(sys.argv[1]), 100_000), COLUMNS)
Result({"tokens": table}).save(Path(sys.argv[2]))
Result.load(Path(sys.argv[2])).print()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path) -> None:
    peak = []
    for n in (10, 60):  # the first batches fill what is kept for the next
        path = tmp_path / f"{n}.parquet"
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(n), str(path)], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        peak.append(int(done.stdout.split()[-1]) / 1024)
    in_memory = 50 * sum(batch.memory_usage(deep=True).sum() for batch in batches(1, 100_000)) / 2**20
    assert peak[1] - peak[0] < in_memory / 4, f"{peak} MiB; the rows alone are {in_memory:.0f}"
