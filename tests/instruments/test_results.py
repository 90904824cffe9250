"""Tables and results as text, HTML, CSV and figures, and what a terminal or a notebook shows meanwhile."""

import io
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from streamscope.cli.errors import InputError
from streamscope.instruments.command import finish, progress_bar, signs_of_life
from streamscope.instruments.contract import notebook_bar, say
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Intervals, check_figure
from streamscope.instruments.result import Result
from streamscope.instruments.table import (
    LONGEST,
    Column,
    LongTable,
    Table,
    descending,
    described,
    key,
    mark,
    with_reasons,
)
from streamscope.interventions.ablate import Ablate
from tests.instruments.estimates import block
from tests.tiny import refused


def test_a_table_without_a_description_is_refused() -> None:
    frame, told = pd.DataFrame({"a": [1.0, np.nan]}), {"name": "a", "title": "a", "unit": "nats", "doc": "a"}
    for what in told:
        for blank in ("", " "):
            name = blank if what == "name" else "a"
            line = f"^column '{name}' has no {what}; say what it is, and what it is counted in$"
            with pytest.raises(InputError, match=line):
                Column(**{**told, what: blank})
    column = Column(**told, format=".1f")
    both = (column, replace(column, name="b"), replace(column, name="c"))
    for given, line in (
        ((frame.assign(b=1.0), ()), "'a' has no title, unit and doc"),
        ((frame, (column,), {(0, "a"): "why"}, "gains"),
         "^table 'gains': a of row 0 has a value and a reason for having none$"),
        ((frame, both, {}, "gains"), "^table 'gains': column 'b' is described, but not there$"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            Table(*given)


def test_what_a_cell_says() -> None:
    plain = Column(name="a", title="a", unit="nats", doc="a", format="+.1f")
    assert plain.text(1) == plain.text(np.float32(1)) == "+1.0" and plain.text(1.0, 0.5, 2.0) == "+1.0 (+0.5 … +2.0)"
    assert plain.text(1.0, np.nan, np.nan) == "+1.0", "of one unit there is a value, and no interval"
    assert plain.text("many") == "many" and plain.text(None) == plain.text(np.nan, 0.0, 1.0) == "undefined"
    bare = replace(plain, format="")
    assert (bare.text("a"), bare.text(3), bare.text(3.0), bare.text(["a"])) == ("a", "3", "3.0", "['a']")
    assert (bare.text(True), bare.text(np.bool_(False)), plain.text(True)) == ("yes", "no", "yes")
    p = replace(plain, format="p")
    assert (p.text(0.25), p.text(0.0), p.text(None)) == ("0.2500", "< 1e-4", "undefined")


def test_counts_stay_counts_where_one_is_missing() -> None:
    """pandas makes floats of a column of whole numbers as soon as one of them is missing."""
    columns = (key("n", "n", "how many", "cases", "d"), key("m", "m", "how many", "cases", ",d"))
    table = Table(pd.DataFrame({"n": [1, None, 3], "m": [1000, None, 2]}), columns)
    assert table.frame["n"].dtype == float
    assert table.cells()[1] == [["1", "1,000"], ["undefined", "undefined"], ["3", "2"]]
    with pytest.raises(ValueError, match="format code 'd'"):  # not cut to 2
        columns[0].text(2.5)


def gains(**more: Any) -> Table:
    """Five rows of every kind of column, the last two without a value."""
    columns = (
        key("name", "a|name", "its\nname"), key("kind", "kind", 'one of <x> & "y"'),
        *described("gain", "gain", "nats", "what it gains", format="+.1f", sd="texts", source="Eq. 1"),
        Column(name="p", title="p", unit="probability", doc="p of gain", format="p"),
        Column(name="kept", title="kept", unit="yes or no", doc="whether it stays"),
    )  # fmt: skip
    gain = np.array([1.0, -3.0, 2.0, np.nan, np.nan])
    frame = pd.DataFrame({
        "name": ["a|b", "c\nd", "<e>", "f", "g"], "kind": list("xyxyx"), "gain": gain, "gain_sd": gain / 2,
        "gain_low": gain - 1, "gain_high": gain + 1, "p": [0.5, 1e-9, 0.25, np.nan, np.nan],
        "kept": [True, False, True, False, True],
    })  # fmt: skip
    missing = {(i, name): why for name in ("gain", "gain_sd", "p") for i, why in ((3, "flat"), (4, "cut|off"))}
    return Table(frame, columns, {**missing, (4, "p"): "flat"}, "a title", **more)


def test_a_table_is_the_same_text_everywhere() -> None:
    table = gains()
    assert table.markdown().splitlines() == [
        "**a title**", "", "| a\\|name | kind | gain | p | kept |", "|---|---|--:|--:|---|",
        "| a\\|b | x | +1.0 (0.0 … +2.0) | 0.5000 | yes |", "| c d | y | -3.0 (-4.0 … -2.0) | < 1e-4 | no |",
        "| \\<e> | x | +2.0 (+1.0 … +3.0) | 0.2500 | yes |", "| f | y | undefined | undefined | no |",
        "| g | x | undefined | undefined | yes |", "", "undefined (1 row) gain: flat", "",
        "undefined (1 row) gain: cut\\|off", "", "undefined (2 rows) p: flat",
    ]  # fmt: skip
    assert replace(table, title="").markdown().startswith("| a")
    one_line = replace(table, missing={(3, "gain"): "flat", (3, "p"): "flat"}).legend()
    assert one_line == ["undefined (1 row) gain, p: flat"]
    shown = table._repr_html_()
    head = '<table><caption>a title</caption><thead><tr><th title="its\nname (name)">a|name</th>'
    assert shown.startswith(head + '<th title="one of &lt;x&gt; &amp; &quot;y&quot; (name)">kind</th>')
    assert (
        '</tr></thead><tbody><tr><td style="text-align:left">a|b</td><td style="text-align:left">x</td>'
        '<td style="text-align:right">+1.0 (0.0 … +2.0)</td><td style="text-align:right">0.5000</td>'
    ) in shown
    end = "</tr></tbody></table><p><small>undefined (1 row) gain: flat</small></p><p><small>undefined"
    assert end in shown and "&lt;e&gt;" in shown and shown.endswith("(2 rows) p: flat</small></p>")
    assert shown.count("yes</td></tr><tr><td") == 2
    assert "<caption>" not in replace(table, title="")._repr_html_()


def test_of_a_long_table_the_largest_rows_are_shown() -> None:
    table = gains(by="gain", most=2)
    assert table.rows()["name"].tolist() == ["c\nd", "<e>"]
    assert table.caption() == "a title; 2 of 5 rows, those with the largest gain"
    assert gains(by="gain", most=5).caption() == gains(most=1).caption() == "a title"
    assert gains(by="gain", most=5).rows()["name"].tolist() == table.frame["name"].tolist(), "in their order"
    each = gains(by="gain", most=1, per=("kind",))
    assert each.rows()["name"].tolist() == ["<e>", "c\nd"], "of x, then of y"
    assert each.caption() == "a title; 2 of 5 rows, those with the largest gain of each kind"
    both = gains(by="gain", most=1, per=("kind", "kept"))
    assert both.rows()["name"].tolist() == ["<e>", "c\nd"] and both.caption().endswith("of each kind and kept")
    frame = pd.DataFrame({"k": ["b", "a"] * 150, "v": [0.0, 1.0, 2.0] * 100})
    many = Table(frame, (key("k", "k", "k"), key("v", "v", "v")), by="v", most=3)
    assert many.rows().index.tolist() == [2, 5, 8], "equal rows stay in order"
    assert replace(many, per=("k",)).rows().index.tolist() == [5, 11, 17, 2, 8, 14]
    assert len(many.head().frame) == 20


def test_a_result_shows_itself_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """In a shell without a notebook: the tables, not the fields of a dataclass. Below them a line for each column of
    the main table that is shown, in order, with what it means and counts, and no other."""
    other = Table(pd.DataFrame({"k": ["b"]}), (key("k", "k", "of the other"),))
    result = Result({"main": gains(), "other": other}, {"v": block(np.ones((1, 2)))})
    result.table().print(Console(width=200))
    assert repr(result.table()).split() == capsys.readouterr().out.split()
    assert str(result).startswith(repr(result.table())) and "undefined (1 row)" in repr(result)
    assert repr(result.blocks["v"]) == "Observations of loss (nats/token): 1 cell × 2 units"
    finish(result, None, {})
    above, _, below = capsys.readouterr().out.partition("Columns:\n")
    shown = [one for one in result.table().columns if one.shown]
    assert "a|b" in above and len(shown) < len(result.table().columns)
    assert below == "".join(f"  {one.title}: {one.doc} ({one.unit})\n" for one in shown)


def test_a_long_table_shows_its_first_rows_and_says_so() -> None:
    frame = pd.DataFrame({"k": [f"row {i}" for i in range(LONGEST + 1)]})
    table = Table(frame, (key("k", "k", "k"),), title="many")
    assert repr(table).startswith("many; the first 20 of 61 rows\n"), "a title is as wide as the terminal"
    for shown in (repr(table), table._repr_html_()):
        assert "many; the first 20 of 61 rows" in shown and "row 19" in shown and "row 20" not in shown
    assert "row 60" in table.markdown(), "files and pages have every row"
    assert "row 59" in repr(replace(table, frame=frame.head(LONGEST)))
    ranked = Table(
        frame.assign(v=1.0), (key("k", "k", "k"), key("v", "v", "v")), title="many", by="v", most=LONGEST + 1
    )
    assert repr(ranked).startswith("many; the first 20 of 61 rows\n") and "row 20" not in repr(ranked)


def test_parts_of_a_table_keep_their_reasons() -> None:
    table = gains()
    assert (len(table.head(4).frame), set(table.head(4).missing)) == (4, {(3, "gain"), (3, "gain_sd"), (3, "p")})
    part = table.only([4, 0], "two")
    assert part.frame["name"].tolist() == ["g", "a|b"] and part.frame.index.tolist() == [0, 1]
    assert part.missing == {(0, "gain"): "cut|off", (0, "gain_sd"): "cut|off", (0, "p"): "flat"}
    assert (part.title, part.columns) == ("two", table.columns)
    frame, missing = descending(table.frame, table.missing, ["kind", "kept"])
    assert frame["name"].tolist() == ["c\nd", "f", "a|b", "<e>", "g"] and frame.index.tolist() == [0, 1, 2, 3, 4]
    assert list(frame) == list(table.frame) == list(part.frame)
    assert missing[1, "gain"] == "flat" and missing[4, "p"] == "flat" and len(missing) == 6
    again = Table.noted(with_reasons(table), table.columns, "t")
    assert again.missing == table.missing and with_reasons(table)["undefined"][0] == ""
    assert Table.noted(table.frame, table.columns, "t").missing == {}
    assert again.title == "t" and table.column("p") is table.columns[6]
    with pytest.raises(InputError, match="unknown column 'ps': did you mean p"):
        table.column("ps")


def test_marked_cells_are_missing_with_a_reason() -> None:
    raw = pd.DataFrame({"layer": [0, 5, 5], "delta": [0.1, 0.0, 0.0], "p": [0.2, np.nan, 1]})
    marked = mark(raw, ["delta", "p"], raw["layer"] == 5, "gating the last layer cannot change attention")
    assert marked["undefined"].tolist() == ["", *["delta, p: gating the last layer cannot change attention"] * 2]
    assert np.isnan(marked["delta"][1:]).all() and raw["delta"][1] == 0, "the table given is left alone"
    once = mark(raw, ["p"], [False, True, True], "a")
    assert mark(once, ["delta"], [True, True, False], "b")["undefined"].tolist() == [
        "delta: b", "p: a; delta: b", "p: a",
    ]  # fmt: skip


def test_csv_of_a_long_table_is_its_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(1000), "x": np.random.default_rng(0).random(1000), "text": ['a,"b"\n'] * 1000})
    parts = LongTable.of([frame[:600], frame[600:]], tuple(key(name, name, name) for name in frame))
    Result({"rows": parts}).save(tmp_path / "x.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "x.csv"), frame)
    lists = LongTable.of([pd.DataFrame({"n": [[1, 2]]})], (key("n", "n", "n"),))
    for table in (lists, lists.head()):
        with pytest.raises(InputError, match=f"^{tmp_path}/y.csv: n holds lists, which CSV cannot; write .parquet$"):
            Result({"rows": table}).save(tmp_path / "y.csv")
    assert not (tmp_path / "y.csv").exists()


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_static_figures_without_kaleido_are_refused_before_the_work(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with refused(r"needs kaleido and a Chrome: pip install .*html needs neither$"):
        check_figure(tmp_path / f"x.{suffix}")
    assert check_figure(tmp_path / "x.html") == tmp_path / "x.html"
    with pytest.raises(InputError, match="a figure is a file that ends in .html, .svg, .pdf, .png"):
        check_figure(tmp_path / "x.jpg")


def test_a_figure_says_how_large_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, path = Result({"main": gains()}, figures=(Intervals("gain", label="name"),)), tmp_path / "x.html"
    finish(result, None, {}, path)
    assert f"figure {path} ({path.stat().st_size / 1e6:.1f} MB, with plotly inside)" in capsys.readouterr().out
    monkeypatch.setattr("streamscope.instruments.figures.write_figure", lambda figure, path: path.touch())
    finish(result, None, {}, tmp_path / "x.svg")
    assert f"figure {tmp_path / 'x.svg'}\n" in capsys.readouterr().out  # of a few kB nobody asks the size


def test_a_notebook_shows_what_is_left_of_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script shows nothing, and so does what is quicker than the delay."""

    def shown(shell: object, delay: float, **how: Any) -> str:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setattr("streamscope.instruments.contract.DELAY", delay)
        monkeypatch.setattr("streamscope.instruments.contract.EVERY", 0.0)
        monkeypatch.setattr(sys, "stderr", seen := io.StringIO())
        Ablate(heads=("L0.H0",)).measure("stories/lfa", Documents(max_documents=2), **how)
        return seen.getvalue()

    assert re.search(r"stories/lfa: +[1-9]\d?%.*\[\d\d:\d\d<\d\d:\d\d,", bar := shown(object(), 0.0)), bar
    assert bar.rstrip(" ").endswith("\r"), "it goes when the work is done"
    assert shown(None, 0.0) == shown(object(), 60.0) == shown(object(), 0.0, progress=iter) == ""
    monkeypatch.setattr(sys, "stderr", seen := io.StringIO())
    say(notebook_bar("x"), "cost")
    assert seen.getvalue() == "cost\n"


def test_no_wait_between_two_signs_is_longer_where_a_bar_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []

    class Clock(io.StringIO):
        def write(self, text: str) -> int:
            times.append(time.monotonic())
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Clock())
    monkeypatch.setattr("streamscope.instruments.command.LOG_EVERY", 1.0)
    with signs_of_life("a"):
        times.append(time.monotonic())
        time.sleep(1.9)  # a sign at 1.0
        for _ in progress_bar("b")(range(1)):
            time.sleep(1.9)  # the next at 2.0, not at 2.9
    assert max(np.diff(times)) < 1.7


def test_work_before_the_bar_shows_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model or reading captures has no bar; while a bar is shown, only its own lines come."""
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    monkeypatch.setattr("streamscope.instruments.command.LOG_EVERY", 0.05)
    with signs_of_life("runs/a"):
        time.sleep(0.3)
        before = said.getvalue().splitlines()
        for _ in progress_bar("bar")(range(1)):
            time.sleep(0.3)
    assert len(before) > 2 and set(before) == {"runs/a: working for 0 s"}
    assert not [line for line in said.getvalue().splitlines()[len(before) + 1 :] if "working" in line]
    with signs_of_life("runs/a"):
        assert list(notebook_bar("features")(range(2))) == [0, 1], "of a measurement inside that of the command"
        inner = [list(notebook_bar("inside")(range(1))) for _ in progress_bar("bar")(range(1))]
    assert inner == [[0]] and "runs/a: features ━" in said.getvalue() and "inside" not in said.getvalue()
    time.sleep(0.2)
    assert said.getvalue().count("\n") < 30, "nothing is printed after the end"
