"""The page builder: complete in itself, escaped, plotly.js once, figures that are JSON, undefined cells that say so."""

import json
import re
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.table import Column, Table
from streamscope.papers.comparison.tables import table_of
from streamscope.papers.demo.html import (
    Command,
    Figure,
    Page,
    Panels,
    Samples,
    Section,
    TableBlock,
    Text,
    Token,
    TokenRow,
    Verdict,
    marked,
    render,
    write_page,
)

NAN = float("nan")


def page(*blocks, title: str = "A page") -> Page:
    return Page(title=title, lead="What it shows.", sections=[Section("One", blocks), Section("Two: what?", [])])


def without_plotly(html: str, plotly: str) -> str:
    assert html.count(plotly) == 1
    return html.replace(plotly, "")


def figure() -> go.Figure:
    return go.Figure(go.Heatmap(z=[[1.0, NAN]], colorscale=[[0, "var(--surface)"], [1, "var(--m0)"]]))


def test_a_page_loads_nothing_and_inlines_plotly_once(own_plotly: str) -> None:
    assert len(own_plotly) > 1e6
    html = without_plotly(render(page(Panels([Figure("a", figure()), Figure("b", figure())]))), own_plotly)
    assert not re.findall(r"https?://|@import|url\(|\ssrc=", html)
    assert html.count('class="plot"') == 2
    assert own_plotly not in render(page(Text("no figures")))


def test_contents_link_to_every_section() -> None:
    html = render(page(Text("x")))
    for anchor in re.findall(r'href="#([^"]+)"', html):
        assert html.count(f'id="{anchor}"') == 1
    assert 'href="#two-what"' in html


def test_figures_are_json_without_nan_and_cannot_end_their_script(own_plotly: str) -> None:
    bad = go.Figure(go.Scatter(x=[1], y=[2], name="</script><b>"))
    html = without_plotly(render(page(Panels([Figure("a", figure()), Figure("b", bad, height=200)]))), own_plotly)
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    first, second = json.loads(found[1])
    assert first["data"][0]["z"][0][1] is None
    assert second["data"][0]["name"] == "</script><b>"
    assert first["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)" and "template" not in first["layout"]
    assert "height:200px" in html


def test_every_colour_a_figure_may_name_is_defined_in_light_and_dark() -> None:
    html = render(page(Text("x")))
    light, dark = html.split("prefers-color-scheme: dark", 1)
    for name in set(re.findall(r"var\((--[a-z0-9]+)\)", html)) - {"--c", "--w"}:
        assert f"{name}: #" in light and f"{name}: #" in dark


def test_texts_are_escaped_and_marked() -> None:
    assert marked("a < b, `x < **y**` and **bold** 5 %") == (
        "a &lt; b, <code>x &lt; **y**</code> and <b>bold</b> 5\u00a0%"
    )
    html = render(
        page(Text("one\n\ntwo"), Verdict(["<i>"]), Command(["a <b>"]), Samples([("<m>", 0, "<s>")]), title="<t>")
    )
    assert "<p>one</p><p>two</p>" in html
    for tag in ("<i>", "<m>", "<s>", "<t>"):
        assert tag not in html
    assert "<title>&lt;t&gt;</title>" in html


def test_a_table_joins_intervals_and_says_what_is_undefined() -> None:
    frame = pd.DataFrame(
        {
            "head": ["L0H1", "L1H0"],
            "delta": [-0.5, 0.00001],
            "ci_low": [-0.6, NAN],
            "ci_high": [-0.4, NAN],
            "p": [0.00003, NAN],
            "n": [12345, 12345],
            "undefined": ["", "ci_low, ci_high, p: one <case>"],
        }
    )
    delta = Column(name="delta", title="Δ loss", unit="nats", doc="without the head", format=".3f")
    html = TableBlock(table_of(frame, "lfa/heads", "Heads", own=(delta,))).html([])
    assert 'title="without the head (nats)">Δ loss</th>' in html and "ci" not in re.findall(r"<th[^>]*>([^<]*)", html)
    assert "−0.500 (−0.600 … −0.400)" in html and ">&lt; 1e−4<" in html and ">12345<" in html
    assert html.count(">undefined</span>") == 1 and "Heads</p>" in html
    assert "p: one &lt;case&gt;" in html


def test_words_of_a_table_are_marked_up_and_escaped() -> None:
    frame = pd.DataFrame({"what": ["**bold** `code` <b>"], "n": [-1234]})
    html = TableBlock(Table.plain(frame), wrap=True).html([])
    assert "<b>bold</b> <code>code</code> &lt;b&gt;" in html and '<td class="n">−1,234</td>' in html
    assert "title=" not in html and 'class="wrap"' in html and "caption" not in html


def test_token_rows_join_a_word_and_sum_its_shares() -> None:
    tokens = [
        Token("BOS", 0.04),
        Token(" ba", 0.2, "target"),
        Token("sket", 0.1, "target"),
        Token("\n", 0.5),
        Token(" it", 0.16),
    ]
    html = TokenRow("a head", 1, tokens).html([])
    assert html.count("<small>") == 4
    assert "<small>target 0.30</small>" in html and "⏎" in html and "var(--m1)" in html


def test_a_page_is_written_whole_and_bad_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "new" / "index.html"
    write_page(page(Text("x")), path)
    assert path.read_text().rstrip().endswith("</html>")
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]
    with pytest.raises(InputError, match="different headings"):
        Page(title="t", lead="", sections=[Section("One", []), Section("One!", [])])


def test_a_disk_that_is_full_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.html"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamscope.cli.disk.os.replace", full)
    with pytest.raises(InputError, match="cannot write"):
        write_page(page(Text("x")), path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
