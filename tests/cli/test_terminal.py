"""Text of others is text: no style, no escape sequence, no HTML, one line."""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command
from streamscope.cli.terminal import cell, code, counted, visible, yaml
from streamscope.features.card import card
from streamscope.instruments.result import Result
from streamscope.instruments.table import Column, Table
from streamscope.models.checkpoint import ZOO
from streamscope.models.describe import main as describe
from streamscope.models.grid import Cell, print_status
from streamscope.models.runs import main as runs

NASTY = "[/b]x\x1b[31mred\u202egnp.\nsecond line \x9b2J"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ZOO / "lfa", tmp_path / "runs" / "one"))


def clean(text: str) -> None:
    assert not set(text) & {"\x1b", "\u202e", "\x9b", "\r"}, repr(text)


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible(NASTY) == r"[/b]x\x1b[31mred\u202egnp.\nsecond line \x9b2J"
    assert visible("a\nb\tc", keep="\n") == "a\nb\\tc"
    assert visible("über 日本 → ½ 🙂") == "über 日本 → ½ 🙂"
    assert visible("bad\udcff.txt") == r"bad\udcff.txt", "a name that is no UTF-8 can be printed"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", r"x -0.5 -> alpha <= 10^-^6, Delta ... W_0 \xe9\u65e5\U0001f642"),
        ("cp1252", "x −0.5".replace("−", "-") + r" -> alpha <= 10^-^6, Delta … W_0 é\u65e5\U0001f642"),
        ("utf-8", "x −0.5 → α ≤ 10⁻⁶, Δ … W₀ é日🙂"),
    ],
)
def test_characters_that_an_encoding_lacks(encoding: str, shown: str) -> None:
    assert "x −0.5 → α ≤ 10⁻⁶, Δ … W₀ é日🙂".encode(encoding, "spelled").decode(encoding) == shown
    assert "\ud800".encode(encoding, "spelled") == rb"\ud800", "lone surrogates"


def test_markdown_without_html() -> None:
    assert cell("a<script>|\nb") == r"a\<script>\| b"
    assert cell(r"\<script>") == r"\<script>", "escaped already"
    assert cell("\\\\<script>") == "\\\\\\<script>", "two backslashes escape each other, not the tag"
    assert cell("p < 1e-4, 3<4") == "p < 1e-4, 3<4"
    assert code("a`<b>`\nc") == "`a′<b>′ c`"
    assert (yaml("lfa"), yaml("a: b\n- c")) == ("lfa", '"a: b\\n- c"')


def test_tables_of_a_terminal(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What manifests, configurations and tables of others say is shown, not styled."""
    manifest, config = (json.loads((run / f"{name}.json").read_text()) for name in ("manifest", "config"))
    for name in ("preset", "scale", "outcome"):
        (run / "manifest.json").write_text(json.dumps({**manifest, name: NASTY}))
        runs(["list", str(run.parent)])
        clean(text := capsys.readouterr().out)
        assert "[/b]x" in "".join(text.split())
        runs(["show", str(run)])
    manifest |= {"argv": ["train", NASTY], "parent": {"run": NASTY}}
    manifest["data"]["train"]["source"]["source"] = NASTY
    (run / "manifest.json").write_text(json.dumps(manifest))
    runs(["show", str(run)])
    config["model"]["name"] = NASTY
    (run / "config.json").write_text(json.dumps(config))
    manifest.pop("config_sha256")
    (run / "manifest.json").write_text(json.dumps(manifest))
    runs(["diff", str(run), str(ZOO / "lfa")])
    describe(["--run", str(run)])
    (tmp_path / ".ledger").mkdir()
    (tmp_path / ".ledger" / "a.failed").write_text(json.dumps(NASTY))
    print_status(tmp_path, [Cell("a", ())])
    Table.plain(pd.DataFrame({NASTY: [NASTY]}), NASTY).print()
    column = Column(name="a", title=NASTY, unit="name", format="", doc="a")
    Table(pd.DataFrame({"a": [NASTY]}), (column,), {}, NASTY).print()
    text = capsys.readouterr().out
    assert text.count("[/b]") > 6
    clean(text)


def test_an_error_is_one_clean_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (InputError(NASTY), FileNotFoundError(2, "No such file", NASTY)):

        def main(error: Exception = error) -> None:
            raise error

        with pytest.raises(SystemExit), monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", sys.stdout)
            patched.setattr(sys, "stderr", sys.stderr)
            command(main)
        text = capsys.readouterr().err
        assert text.count("\n") == 1 and text.startswith("error: ")
        clean(text)


def test_cards_and_pages_hold_no_html(tmp_path: Path) -> None:
    html = "<script>alert(1)</script>\n# heading"
    column = Column(name="a", title=html, unit=html, format="", doc=html, source=html)
    table = Table(pd.DataFrame({"a": ["x"]}), (column,), {}, html)
    about = {"instrument": html, "model": html, "options": {html: html}, "data": {html: {"source": {"source": html}}}}
    Result({"t": table}, {}, {}, (), {}, about).save(tmp_path / "t.parquet")
    header, text = card([tmp_path / "t.parquet"], license=html).split("\n---\n", 1)
    assert 'license: "<script>alert(1)</script>\\n# heading"' in header, "a string of YAML, on one line"
    outside = [part for line in text.splitlines() for part in line.split("`")[::2]]
    assert not any("<script>" in part.replace("\\<script>", "") for part in outside), text
    assert "\n# heading" not in text and "script" in text


def test_one_is_singular() -> None:
    assert [counted(n, "pair") for n in (0, 1, 2, 1200)] == ["0 pairs", "1 pair", "2 pairs", "1200 pairs"]
    assert [counted(n, "token", ",") for n in (1, 1200)] == ["1 token", "1,200 tokens"]
