"""How a table looks on a terminal, wide or narrow: names fold, numbers never do."""

import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from streamscope.instruments.registry import discover
from streamscope.instruments.table import Column, LongTable, Table, described, key, quantity
from streamscope.models import build, load

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
