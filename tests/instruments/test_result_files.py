"""What a result writes is what is read again, field by field, and other programs can read it too."""

import gc
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.figures import Figure, HeadMap
from streamscope.instruments.observations import Contrast, Measure, Observations
from streamscope.instruments.registry import discover
from streamscope.instruments.result import FORMAT, Result, check_out
from streamscope.instruments.table import HEAD, LONGEST, Column, LongTable, Table, described, key
from streamscope.models.tensors import read_tensors
from tests.tiny import refused

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = (key("k", "key", "a key"), *described("v", "value", "nats", "a value", sd="units", source="Eq. 1"))


def table(**more: Any) -> Table:
    """Two rows, the second without a value; its frame's index is not 0, 1."""
    v = np.array([1 / 3, np.nan])
    frame = pd.DataFrame({"k": ["a", "b"], "v": v, "v_sd": v, "v_low": v - 1, "v_high": v + 1}, index=[7, 3])
    missing = {(1, name): why for name, why in (("v", "flat"), ("v_sd", "one unit"), ("v_low", "flat"))}
    return Table(frame, COLUMNS, missing, "a title", **more)


def block(name: str, clusters: list[Any]) -> Observations:
    cells = pd.DataFrame({"head": ["L0.H0", "L0.H1"], "layer": [0, 0]})
    units = pd.DataFrame({"unit": list("xyz"), "cluster": clusters, "story": [4, 5, 6]})
    total, size = np.array([[1.0, 2.0, np.nan], [0.1, 0.2, 0.3]]), np.array([[1.0, 2.0, 0.0], [1.0, 2.0, 3.0]])
    measure = Measure(name=name, unit="nats", resolution=1e-9, factor=100.0, shift=-1.0, kind="ratio", inflation=2.0)
    return Observations(measure=measure, cells=cells, units=units, total=total, size=size)


def whole() -> Result:
    """Tables, observations, contrasts and arrays, none in the order of the alphabet, with every field set."""
    pairs: list[Any] = [("s1", "w1"), ("s1", "w2"), ("s2", "w1")]
    blocks = {"w": block("of pairs", pairs), "v": block("of letters", list("aab")), "u": block("alone", list("abc"))}
    contrasts = {
        "v": (Contrast(quantity="d", weights={1: 1.0, 0: -0.5}, labels={"head": "L0.H1"}, family="f", tested=False),),
        "w": (
            Contrast(quantity="d", weights={0: 1.0}, labels={"head": "L0.H0"}, null=None),
            Contrast(quantity="e", weights={}, labels={"head": "L0.H1", "layer": 0}, missing="not there"),
        ),
    }
    arrays = {"z": np.arange(6.0).reshape(2, 3).T, "a": np.array([1, 2])}
    about = {"instrument": "nobody", "n": np.int64(3), "x": np.array([1.0, 2.0]), "path": Path("a/b"), "none": None}
    tables = {"one": table(by="v", most=7, per=("k",)), "more": replace(table(), title="another")}
    return Result(tables, blocks, contrasts, (HeadMap("v"),), arrays, about)


def test_where_the_main_table_is_all_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written when the command is killed: arrays too."""

    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamscope.instruments.result.write_tensors", killed)
    with pytest.raises(KeyboardInterrupt):
        whole().save(tmp_path / "r.parquet")
    assert not (tmp_path / "r.parquet").exists()


def test_everything_comes_back(tmp_path: Path) -> None:
    result = whole()
    written = result.save(tmp_path / "r.parquet")
    assert [one.name for one in written] == ["r.parquet", "r-more.parquet", "r-observations.parquet", "r.safetensors"]
    assert {one.name for one in tmp_path.iterdir()} == {one.name for one in written}
    read = Result.load(tmp_path / "r.parquet")
    assert list(read.tables) == ["one", "more"]
    for name, one in result.tables.items():
        again = read.tables[name]
        pd.testing.assert_frame_equal(again.frame, one.frame.reset_index(drop=True), check_exact=True)
        assert (again.columns, again.missing, again.title) == (one.columns, one.missing, one.title)
        assert (again.by, again.most, again.per) == (one.by, one.most, one.per)
    assert list(read.blocks) == ["w", "v", "u"]
    for name, kept in result.blocks.items():
        back = read.blocks[name]
        assert back.measure == kept.measure
        pd.testing.assert_frame_equal(back.cells, kept.cells)
        assert list(back.units) == ["unit", "cluster", "story"]
        assert back.units.to_dict("list") == kept.units.to_dict("list"), "labels of several kinds stay tuples"
        np.testing.assert_array_equal(back.total, kept.total)
        np.testing.assert_array_equal(back.sizes, kept.sizes)
    assert dict(read.contrasts) == {**result.contrasts, "u": ()}
    assert set(read.arrays) == {"z", "a"} and read.arrays["a"].dtype == np.int64
    np.testing.assert_array_equal(read.arrays["z"], result.arrays["z"])
    assert read.about == {"instrument": "nobody", "n": 3, "x": [1.0, 2.0], "path": "a/b", "none": None}
    assert read.figures == (), "they are those of the instrument, which nobody knows here"
    replace(result, about={"instrument": "ablate"}).save(tmp_path / "a.parquet")
    assert Result.load(tmp_path / "a.parquet").figures == discover()["ablate"].figures != ()
    replace(result, about={}).save(tmp_path / "a.parquet")
    assert Result.load(tmp_path / "a.parquet").figures == ()
    again = tmp_path / "again.parquet"
    read.save(again)
    assert Result.load(again).about == read.about


def test_the_files_say_themselves_what_they_are(tmp_path: Path) -> None:
    """For programs that know parquet and not us: units, columns and provenance in the schema, rows without an index."""
    whole().save(tmp_path / "r.parquet")
    found = pq.read_schema(tmp_path / "r.parquet")
    assert found.names == ["k", "v", "v_sd", "v_low", "v_high", "undefined"]
    told = {name.decode(): json.loads(text) for name, text in (found.metadata or {}).items() if name != b"pandas"}
    assert set(told) == {"table", "about", "units"} and b"pandas" in found.metadata
    assert told["units"] == {"k": "name", "v": "nats", "v_sd": "nats, between units", "v_low": "nats", "v_high": "nats"}
    assert told["table"]["title"] == "a title" and told["table"]["columns"][1]["source"] == "Eq. 1"
    about = told["about"]
    assert (about["format"], about["tables"], about["blocks"], about["arrays"]) == (
        FORMAT, ["one", "more"], ["w", "v", "u"], ["z", "a"])  # fmt: skip
    assert pd.read_parquet(tmp_path / "r.parquet")["undefined"].tolist() == ["", "v, v_low: flat; v_sd: one unit"]
    rows = pd.read_parquet(tmp_path / "r-observations.parquet")
    assert list(rows) == ["block", "cell", "total", "size"] and rows.index.tolist() == list(range(6))
    assert rows["block"].tolist() == ["w", "w", "v", "v", "u", "u"] and rows["cell"].tolist() == [0, 1] * 3
    assert rows["size"][1].tolist() == [1.0, 2.0, 3.0] and rows["total"][1].tolist() == [0.1, 0.2, 0.3]
    arrays, beside = read_tensors(tmp_path / "r.safetensors")
    assert set(arrays) == {"z", "a"} and json.loads(beside["about"])["result"] == about["result"]


def test_text_for_other_programs(tmp_path: Path) -> None:
    result, path = whole(), tmp_path / "r.csv"
    written = result.save(str(path))
    assert [one.name for one in written] == ["r.csv", "r-more.csv", "r.safetensors", "r-about.json"]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == '"k","v","v_sd","v_low","v_high","undefined"', "and no column of the index"
    assert lines[1].split(",")[1] == repr(1 / 3)
    assert lines[2].startswith('"b",,,,,"v, v_low: flat')
    told = json.loads((tmp_path / "r-about.json").read_text())
    assert told["files"] == ["r.csv", "r-more.csv"] and told["about"] == {
        "instrument": "nobody", "n": 3, "x": [1.0, 2.0], "path": "a/b", "none": None}  # fmt: skip
    assert told["tables"]["more"]["title"] == "another"
    assert [c["name"] for c in told["tables"]["one"]["columns"]] == ["k", "v", "v_sd", "v_low", "v_high"]
    text = (tmp_path / "r-about.json").read_text()
    assert text.startswith('{\n "about": {\n') and text.endswith("}\n"), "people read it too"
    arrays, beside = read_tensors(tmp_path / "r.safetensors")
    assert set(arrays) == {"z", "a"} and json.loads(beside["about"])["instrument"] == "nobody"


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (None, "is no result of an instrument: it does not say what it is about$"),
        ({"a": "no JSON"}, "is no result of an instrument: it does not say what it is about$"),
        ({"about": "no JSON"}, "is damaged .invalid JSON: expected ident at line 1 column 2"),
        ({"about": "[" * 100_000}, "is damaged .invalid JSON: recursion limit exceeded"),
        ({"about": "[]"}, "is damaged .input should be an object"),
        ({"about": '{"format": 1}'}, rf"is no result of an instrument \(format {FORMAT}\): measure it again$"),
        ({"about": '{"result": "x", "tables": ["one", "a/b"]}'}, "is no result of an instrument"),
    ],
)
def test_a_file_of_somebody_else_is_no_result_and_may_be_written_over(
    meta: dict[str, str] | None, said: str, tmp_path: Path
) -> None:
    path, beside = tmp_path / "r.parquet", tmp_path / "r-a.parquet"
    for one, text in ((path, meta), (beside, meta and {"about": "{}"})):
        pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(text), one)
    with pytest.raises(InputError, match=f"^(about of )?{path} {said}"):
        Result.load(path)
    whole().save(path)
    assert list(Result.load(path).tables) == ["one", "more"] and beside.is_file()


@pytest.mark.parametrize("error", [OSError("no such disk\nat all"), pa.ArrowNotImplementedError("a new version")])
def test_a_disk_that_fails_is_one_line(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.parquet"
    whole().save(path)

    def broken(path: Path) -> Any:
        raise error

    monkeypatch.setattr(pq, "read_schema", broken)
    first = str(error).splitlines()[0]
    with pytest.raises(InputError, match=rf"^{path} cannot be read \({first}.*\); check the path"):
        Result.load(path)
    whole().save(path)
    monkeypatch.undo()
    assert list(Result.load(path).tables) == ["one", "more"]


def test_where_a_table_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    named = f"a table is parquet or CSV, name it {tmp_path / 'x.parquet'} or .csv$"
    for out, line in (
        *((out, f"^--out {out} is a folder; name a file in it, as {out / 'table.parquet'}$")
          for out in (tmp_path, tmp_path / "no" / "..", Path("."), Path(".."))),
        *((tmp_path / name, f"^--out {tmp_path / name}: {named}") for name in ("x.txt", "x")),
        (tmp_path / "file" / "x.csv", f"^cannot write {tmp_path}/file/x.csv: "),
    ):  # fmt: skip
        with refused(line):
            check_out(out)
    for name in ("x.csv", "x.parquet"):
        assert check_out(tmp_path / "new" / name) == tmp_path / "new" / name
    assert not (tmp_path / "new").exists(), "it is made when there is something to write"
    with pytest.raises(InputError, match=f"^{tmp_path}/x.csv is text for other programs; a result is read again from"):
        Result.load(tmp_path / "x.csv")


def test_tables_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    result = whole()
    assert result.table() is result.table("one") is result.tables["one"] and result.table("more").title == "another"
    asked: list[Any] = []

    def draw(figure: Figure, result: Any, **how: Any) -> Any:
        asked.append((result, how))
        return None if figure.y == "none" else figure.y

    monkeypatch.setattr("streamscope.instruments.figures.drawing.draw", draw)
    drawn = replace(result, figures=(HeadMap("none"), HeadMap("v")))
    assert drawn.figure(dark=True) == "v" == drawn.figure("v", paper=True)
    assert asked == [(drawn, {"dark": True})] * 2 + [(drawn, {"paper": True})]
    for call, line in (
        (lambda: result.table("mor"), "^unknown table 'mor': did you mean more"),
        (lambda: result.figure("w"), "^unknown figure 'w': known: v"),
        (replace(result, figures=()).figure,
         "^instrument 'nobody' declares no figure here; import its module, then load$"),
        (lambda: drawn.figure("none"), "^figure 'none' has no values to show in this result$"),
        (replace(result, figures=(HeadMap("none"),)).figure, "^no figure has values to show in this result$"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            call()


def test_names_of_tables_that_cannot_be_files(tmp_path: Path) -> None:
    for name in ("a/b", "", ".", "..", "observations"):
        with pytest.raises(InputError, match=f"^a table called {name!r} cannot be a file; name it otherwise$"):
            replace(whole(), tables={"one": table(), name: table(), "b/c": table()}).save(tmp_path / "r.parquet")
    assert not list(tmp_path.iterdir())


def test_a_long_table_keeps_its_title_and_length_and_its_numbers_plain(tmp_path: Path) -> None:
    columns = (key("t", "text", "a text"), key("x", "x", "a number", "nats", ".2f"))
    frame = pd.DataFrame({"t": ["a", "b"] * 50, "x": np.arange(100.0)})
    Result({"rows": LongTable.of([frame], columns, "many", most=3)}).save(tmp_path / "r.parquet")
    texts = pa.table({"t": pa.array(frame["t"], pa.string()), "x": frame["x"]})
    Result({"rows": LongTable.of([texts], columns)}).save(tmp_path / "s.parquet")
    read = Result.load(tmp_path / "r.parquet").table()
    assert isinstance(read, LongTable) and (read.title, read.most, read.columns) == ("many", 3, columns)
    for name in ("r", "s"):
        group = pq.read_metadata(tmp_path / f"{name}.parquet").row_group(0)
        coded = [any("DICTIONARY" in e for e in group.column(i).encodings) for i in (0, 1)]
        assert coded == [True, False], "a dictionary of numbers that are all different is memory for nothing"


def test_what_cannot_be_read_again_says_why(tmp_path: Path) -> None:
    path, result = tmp_path / "r.parquet", whole()
    with pytest.raises(InputError, match=rf"^{path} is missing: check the path"):
        Result.load(path)
    result.save(path)
    kept = pq.read_table(path)
    about = json.loads(kept.schema.metadata[b"about"])
    nothing = "is no result of an instrument: it does not say what it is about$"
    for more, line in (
        ({"format": FORMAT - 1}, rf"is no result of an instrument \(format {FORMAT}\): measure it again$"),
        ({"tables": "one"}, nothing),
        ({"blocks": "one"}, nothing),
        ({"tables": ["one", "less"]}, f"{tmp_path / 'r-less.parquet'} is missing: "),
    ):
        meta = {**kept.schema.metadata, b"about": json.dumps({**about, **more}).encode()}
        pq.write_table(kept.replace_schema_metadata(meta), path)
        with pytest.raises(InputError, match=line):
            Result.load(path)
    for name in ("more", "observations"):
        result.save(path)
        whole().save(tmp_path / "other" / "r.parquet")
        (tmp_path / "other" / f"r-{name}.parquet").replace(tmp_path / f"r-{name}.parquet")
        with pytest.raises(InputError, match=f"r-{name}.parquet belongs to another result than the main table"):
            Result.load(path)


def test_a_result_shows_all_that_it_has() -> None:
    result = whole()
    assert repr(result).splitlines()[-1] == "tables: one, more; figures: v; arrays: z, a"
    elsewhere = replace(result, figures=(HeadMap("w", table="other"), HeadMap("v", table="more")))
    assert "; figures: more-v;" in repr(elsewhere), "a figure of a table that is not here is none"
    nine = ", ".join(f"t{i}" for i in range(9))
    for n, rest in ((9, ""), (10, ", …")):
        assert repr(Result({f"t{i}": table() for i in range(n)})).splitlines()[-1] == f"tables: {nine}{rest}"


@pytest.mark.parametrize(
    ("renderer", "kinds"), [("plotly_mimetype", ["application/vnd.plotly.v1+json"]), ("browser", [])]
)
def test_a_notebook_holds_plotly_in_no_result(renderer: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter and VS Code draw figures by their own Plotly; a terminal shows the tables and opens nothing."""
    import plotly.io as pio

    got: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: got.append(data))
    frame = pd.DataFrame({"head": ["L0.H0"], "layer": 0, "index": [0], "v": [1.0]})
    columns = (*HEAD, Column(name="v", title="v", unit="nats", doc="v", format=".2f"))
    result = Result({"m": Table(frame, columns)}, figures=(HeadMap("v"),))
    before = pio.renderers.default
    pio.renderers.default = renderer
    try:
        result._ipython_display_()
    finally:
        pio.renderers.default = before
    tables, *drawn = got
    assert tables == {"text/plain": repr(result), "text/html": result.table()._repr_html_()}
    assert [kind for one in drawn for kind in one] == kinds and len(json.dumps(drawn)) < 50_000


# ---- tables of more rows than memory should hold: batch by batch, read in part, in flat memory ------

TOKENS = (key("token", "token", "its text", "text"), Column(name="x", title="x", unit="nats", doc="a number"))


def batches(n: int, rows: int = 10) -> Iterator[pd.DataFrame]:
    for i in range(n):
        at = np.arange(rows) + i * rows
        yield pd.DataFrame({"token": [f"t{k}" for k in at], "x": at.astype("float32")})


def tokens() -> Result:
    return Result({"tokens": LongTable.of(batches(3), TOKENS, "tokens")}, about={"instrument": "?"})


def test_rows_come_back_in_order_and_groups(tmp_path: Path) -> None:
    path, whole = tmp_path / "t.parquet", pd.concat(batches(3), ignore_index=True)
    written = tokens()
    assert written.save(path) == [path] and list(tmp_path.iterdir()) == [path]
    assert pq.ParquetFile(path).num_row_groups == 3
    table = Result.load(path).table()
    assert isinstance(table, LongTable) and len(table) == 30
    for one in (written.table(), table):
        pd.testing.assert_frame_equal(one.frame, whole)
        pd.testing.assert_frame_equal(one.head(12).frame, whole.head(12))
        assert one.columns == TOKENS
    assert [batch.column_names for batch in table.batches(["x"])] == [["x"]] * 3
    assert [batch.column_names for batch in table.batches(("x", "token"))] == [["x", "token"]] * 3
    Result.load(path).save(path)  # where it is read from
    pd.testing.assert_frame_equal(pd.read_parquet(path), whole)


def test_the_first_rows_are_shown(capsys: pytest.CaptureFixture) -> None:
    made = tokens()
    made.print()
    shown = capsys.readouterr().out
    assert "5 of 30" in shown and "t4" in shown and "t5" not in shown
    assert "t4" in made.table().markdown() and "t5" not in made.table()._repr_html_()
    for n, title in ((11, "tokens; the first 11 of 30 rows"), (30, "tokens"), (40, "tokens")):
        first = made.table().head(n)
        assert (len(first.frame), first.title) == (min(n, 30), title)
        assert first.frame.index.tolist() == list(range(min(n, 30)))
    assert len(made.table().head().frame) == 20
    many = LongTable.of(batches(10), TOKENS, "tokens", most=LONGEST + 1)
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
    made = LongTable.of((next(batches(1, rows=n)) for n in sizes), TOKENS, "some")
    table = Counted(made.files, TOKENS, "some", keep=made)
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
        table = LongTable.of(batches(1), TOKENS)
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

    whole = LongTable.of(batches(2), TOKENS)
    broken = Broken(whole.files, TOKENS)
    with pytest.raises(InputError, match="stopped"):
        Result({"tokens": broken}).save(tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


def test_columns_are_described_and_there_are_rows() -> None:
    with pytest.raises(InputError, match="^table 'many': column 'x' has no title"):
        LongTable.of(batches(1), TOKENS[:1], "many")
    with pytest.raises(InputError, match="^rows.parquet: no rows to write$"):
        LongTable.of([], TOKENS)


MEMORY = """
import resource, sys
from pathlib import Path
from tests.instruments.test_result_files import TOKENS, LongTable, Result, batches
table = LongTable.of(batches(int(sys.argv[1]), 100_000), TOKENS)
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
