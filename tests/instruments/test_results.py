"""Tables and results as text, HTML, CSV and figures, on a terminal and in a notebook, and what is shown meanwhile."""

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
import pyarrow as pa
import pytest
from rich.console import Console

from streamscope.cli.errors import InputError
from streamscope.instruments.command import finish
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Intervals, check_figure
from streamscope.instruments.progress import notebook_bar, progress_bar, say, signs_of_life
from streamscope.instruments.registry import discover
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
    quantity,
    with_reasons,
)
from streamscope.interventions.ablate import Ablate
from streamscope.models import build, load
from tests.instruments.estimates import block
from tests.tiny import refused


def test_a_table_without_a_description_is_refused() -> None:
    frame, told = pd.DataFrame({"a": [1.0, np.nan]}), {"name": "a", "title": "a", "unit": "nats", "doc": "a"}
    for what in told:
        for blank in ("", " "):
            name = blank if what == "name" else "a"
            line = f"^table 'gains': column '{name}' needs a title, a unit and a doc: say what it is$"
            with pytest.raises(InputError, match=line):
                Table(frame.rename(columns={"a": name}), (Column(**{**told, what: blank}),), {}, "gains")
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


# ---- on a terminal, wide or narrow: names fold, numbers never do -----------------------------------

NAME = "a_name_of_22_letters.."
VALUE = "+1.2346 (+0.2346 … +2.2346)"


def table(title: str = "a title", **names: str) -> Table:
    """A name, a number with its interval, a short number under a long title, a short name under a short title."""
    v = np.array([1.23456789, np.nan])
    frame = pd.DataFrame({"k": [NAME, "[b]"], "v": v, "v_low": v - 1, "v_high": v + 1, "n": [1, 2], "s": ["x", "y"]})
    columns = (
        key("k", names.get("k", "key"), "a key"), *described("v", "value", "nats", "a value", format="+.4f"),
        key("n", "a long title", "a count", "cases", "d"), key("s", "s", "short"),
    )  # fmt: skip
    return Table(frame, columns, {(1, "v"): "it is [/b] flat"}, title)


def printed(one: Table, width: int, **how: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, **how)  # type: ignore[arg-type]
    one.print(console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_wide_terminal_has_room_for_all() -> None:
    assert printed(table(), 120) == [
        "a title",
        "┏━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━┓",
        "┃ key                    ┃                       value ┃ a long title ┃ s ┃",
        "┡━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━┩",
        "│ a_name_of_22_letters.. │ +1.2346 (+0.2346 … +2.2346) │            1 │ x │",
        "│ [b]                    │                   undefined │            2 │ y │",
        "└────────────────────────┴─────────────────────────────┴──────────────┴───┘",
        "undefined (1 row) value: it is [/b] flat",
    ]


@pytest.mark.parametrize("width", [1, 20, 72])
def test_on_a_narrow_one_names_and_titles_fold_and_numbers_do_not(width: int) -> None:
    one = table(title="")
    lines = printed(replace(one, frame=one.frame.assign(k=["a name of words " * 3, "[b]"])), width)
    assert len({len(line) for line in lines[:-1]}) == 1
    assert any(f"│ {VALUE} │" in line for line in lines) and not any(
        "words a name of words a" in line for line in lines
    )
    assert [line.split("┃")[3].strip() for line in lines[1:4]] == ["a", "long", "title"], "a title folds at its words"


def test_a_bare_frame_is_laid_out_alike(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that no instrument describes: a terminal of no width cuts no number either."""
    frame = pd.DataFrame({"head": ["blocks.0.attn.hook_z"], "delta": [1.5], "ci": ["+1.0000 (+0.5000 … +1.5000)"]})
    monkeypatch.setattr(Console, "is_terminal", property(lambda console: True))
    monkeypatch.setenv("COLUMNS", "20")
    Table.plain(frame).print()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[-2].startswith("│ ok_z ")
    assert lines[-3] == "│ blocks.0.attn.ho │ 1.5000 │ +1.0000 (+0.5000 … +1.5000) │"


def test_titles_are_no_markup_and_stand_out() -> None:
    assert "┃ [red]key" in "\n".join(printed(table(k="[red]key"), 120))
    assert printed(table("a [/b] title"), 120, force_terminal=True)[0] == "\x1b[3ma [/b] title\x1b[0m"


def test_a_table_without_rows_is_its_head() -> None:
    lines = printed(table().head(0), 120)
    assert len(lines) == 5 and lines[2].split() == ["┃", "key", "┃", "value", "┃", "a", "long", "title", "┃", "s", "┃"]


def test_a_file_has_160_columns_or_what_the_numbers_need(capsys: pytest.CaptureFixture[str]) -> None:
    long = Table(pd.DataFrame({"k": ["x" * 500]}), (key("k", "key", "a key"),))
    long.print()
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {160}
    columns = tuple(Column(name=f"v{i}", title="v", unit="nats", doc="v", format=".20f") for i in range(9))
    numbers = Table(pd.DataFrame({c.name: [0.5] for c in columns}), columns)
    numbers.print()
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {1 + 9 * 25}


def test_batches_of_a_long_table_may_have_an_index_or_none() -> None:
    columns = (key("k", "key", "a key"),)
    frame = pd.DataFrame({"k": list("abc")})
    batches = [frame.set_index(pd.Index(list("xyz")))[1:], pa.Table.from_pandas(frame)]
    made = LongTable.of(batches, columns, most=2)
    assert made.frame["k"].tolist() == ["b", "c", "a", "b", "c"] and len(made.rows()) == 2
    assert list(made.frame) == ["k"]


def test_a_notebook_shows_a_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There rich displays what is printed, whatever the file; the text of a table is no printing."""
    shown: list[str] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: shown.append(text))
    one = table()
    assert "a long title" in repr(one) and not shown
    one.print()
    assert any("a long title" in text for text in shown)


def test_a_narrow_interval_has_two_digits_of_its_width() -> None:
    """Else an effect of a large model, whose single heads change little, reads -0.0000 (-0.0001 … -0.0000)."""
    value, *_ = described("v", "v", "nats", "value", format="+.4f")
    for numbers, text in (
        ((-0.00003, -0.00006, -0.00001), "-0.000030 (-0.000060 … -0.000010)"),
        ((-0.0123, -0.01236, -0.01224), "-0.01230 (-0.01236 … -0.01224)"),
        ((0.1, 0.05, 0.2), "+0.1000 (+0.0500 … +0.2000)"),
        ((-3e-7, -5e-7, -1e-7), "-0.00000030 (-0.00000050 … -0.00000010)"),  # eight decimals, the most
        ((3e-8, 1e-8, 5e-8), "0.0000 (0.0000 … 0.0000)"),  # nine would be needed
        ((1e-9, -1e-9, 1e-9), "0.0000 (0.0000 … 0.0000)"),  # rounding
        ((-3e-5, -3e-5, -3e-5), "0.0000 (0.0000 … 0.0000)"), ((-3e-5,), "0.0000"),
        ((-3.9e-5, -2.56e-4, 1.79e-4), "0.0000 (-0.0003 … +0.0002)"),  # of no sign
    ):  # fmt: skip
        assert value.text(*numbers) == text
    assert replace(value, format=",.2f").text(-0.001) == "0.00" and replace(value, format="d").text(-3) == "-3"
    assert value.text(np.float32(-0.00003), np.float32(-0.00006), np.float32(-0.00001)).startswith("-0.000030")


@pytest.mark.parametrize(("name", "by"), [("pds", "pds"), ("sps", "sps"), ("specialization", "entropy")])
def test_of_many_heads_the_strongest_are_shown(name: str, by: str) -> None:
    """A large model has hundreds of heads: the screen shows 40 of them, the file all."""
    model = build("std-t", "tiny", n_layers=7, n_heads=8, d_model=64, d_vocab=2048, n_ctx=64, init_std=0.5)
    model.tokenizer = load("stories/lfa").tokenizer
    how = discover()[name]
    data = [replace(one, data="stories:1:9") if hasattr(one, "data") else one.small() for one in how.takes]
    found = how(**how.quick).measure(model, *data)
    table = found.tables["heads" if name != "specialization" else "entropy"]
    assert len(table.frame) >= 56 and len(table.rows()) == 40
    assert table.rows()[by].abs().min() >= table.frame[by].abs().sort_values().iloc[-40]


def test_several_corrected_p_name_their_quantities_and_zero_has_no_sign() -> None:
    """As `steer` and `linear` show them; one alone needs no name."""
    columns = (
        key("c", "c", "a factor", format="+g"),
        *quantity("a", "KL", "nats", "x"),
        *quantity("b", "Δ loss", "nats", "x"),
    )
    row = {column.name: 0.25 for column in columns} | {"c": 0.0}
    table = Table(pd.DataFrame([row | {"b_p_holm": np.nan}]), columns, {(0, "b_p_holm"): "few"})
    shown, cells = table.cells()
    assert [c.title for c in shown] == ["c", "KL", "p, Holm, of KL", "Δ loss", "p, Holm, of Δ loss"]
    assert cells[0][0] == "0" and columns[0].text(-0.5) == "-0.5" and columns[0].text(2.0) == "+2"
    assert table.legend() == ["undefined (1 row) p, Holm, of Δ loss: few"]
    alone = replace(
        table, frame=table.frame.drop(columns=[c.name for c in columns[7:]]), columns=columns[:7], missing={}
    )
    assert [c.title for c in alone.shown()] == ["c", "KL", "p, Holm"]


# ---- figures, and what is shown meanwhile ---------------------------------------------------------


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
        monkeypatch.setattr("streamscope.instruments.progress.DELAY", delay)
        monkeypatch.setattr("streamscope.instruments.progress.EVERY", 0.0)
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
    monkeypatch.setattr("streamscope.instruments.progress.LOG_EVERY", 1.0)
    with signs_of_life("a"):
        times.append(time.monotonic())
        time.sleep(1.9)  # a sign at 1.0
        for _ in progress_bar("b")(range(1)):
            time.sleep(1.9)  # the next at 2.0, not at 2.9
    assert max(np.diff(times)) < 1.7


def test_work_before_the_bar_shows_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model or reading captures has no bar; while a bar is shown, only its own lines come."""
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    monkeypatch.setattr("streamscope.instruments.progress.LOG_EVERY", 0.05)
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
