"""The page of results: complete in itself, escaped, plotly.js once, figures that are JSON, tables a click opens."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from streamscope.cli.errors import InputError
from streamscope.instruments.figures import HeadMap, Intervals
from streamscope.instruments.result import Result
from streamscope.instruments.table import HEAD, Table, key, number
from streamscope.papers.demo.web_page import Section, html, write_page

NAN = float("nan")


def result(name: str = "L0.H0") -> Result:
    """Two tables: one with a cell without a value, and one of a single text."""
    frame = pd.DataFrame({"head": [name, "L0.H1"], "layer": 0, "index": [0, 1], "delta": [-0.5, NAN]})
    columns = (*HEAD, number("delta", "Δ <loss>", "nats", "without the head", "+.3f"))
    heads = Table(frame, columns, {(1, "delta"): "no <case>"}, "Heads & more")
    other = Table(pd.DataFrame({"what": ["<b>x</b>"]}), (key("what", "what", "of whom"),), title="Others")
    figures = (HeadMap("delta", title="Map <of> heads"), Intervals("delta", title="A line each"))
    return Result({"heads": heads, "others": other}, figures=figures, about={"model": "m"})


def page(*sections: Section) -> str:
    return html("A <page>", "What it shows.", sections or [Section("One", ["x"]), Section("Two")])


def without_plotly(text: str, plotly: str) -> str:
    assert text.count(plotly) == 1
    return text.replace(plotly, "")


def test_a_page_loads_nothing_and_inlines_plotly_once(own_plotly: str) -> None:
    assert len(own_plotly) > 1e6
    text = without_plotly(page(Section("One", results=[result(), result()])), own_plotly)
    assert not re.findall(r"@import|url\(|\ssrc=", text)
    assert not [to for to in re.findall(r"https?://[^\"<\s]+", text) if to != "https://plot.ly"]  # data of the figures
    assert text.count('class="plot"') == 2 and len(set(re.findall(r'id="(figure-[\d-]+)"', text))) == 2
    assert own_plotly not in page()


def test_figures_are_json_without_nan_and_cannot_end_their_script(own_plotly: str) -> None:
    text = without_plotly(
        page(Section("One", results=[result("</script><i>")], figures=["delta", "delta-intervals"])), own_plotly
    )
    assert text.count('class="plot"') == 2 and text.count("</script>") == 1 + 2  # plotly's, and one of each figure
    assert "NaN" not in re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL) and "<i>" not in text
    assert "<b>Map &lt;of&gt; heads: m</b> Heads &amp; more" in text and "<b>A line each: m</b>" in text


def test_texts_are_escaped_and_markup_is_kept() -> None:
    safe = Markup('<a href="{}">live</a>').format('x"y.html')
    text = page(Section("<h>", ["<p1>", safe], commands=["a <b>", "c"]))
    assert "<title>A &lt;page&gt;</title>" in text and "<h2>&lt;h&gt;</h2>" in text and "<p>&lt;p1&gt;</p>" in text
    assert '<p><a href="x&#34;y.html">live</a></p>' in text and "<pre>a &lt;b&gt;\nc</pre>" in text
    links = re.findall(r'href="#([^"]+)"', page())
    assert len(links) == 2 and all(page().count(f'id="{one}"') == 1 for one in links), "contents link to every section"


def test_the_main_table_is_open_and_a_click_opens_the_others() -> None:
    text = page(Section("One", results=[result()]))
    open_part, folded = text.split("<summary>Others</summary>")
    assert "<caption>Heads &amp; more</caption>" in open_part and "&lt;b&gt;x&lt;/b&gt;" in folded
    assert "undefined (1 row) Δ &lt;loss&gt;: no &lt;case&gt;" in open_part and "-0.500" in open_part
    assert "Δ &lt;loss&gt;: without the head (nats)" in folded, "what the columns mean"
    open_part, folded = page(Section("One", results=[result()], table="others")).split(
        "<summary>Heads &amp; more</summary>"
    )
    assert "<caption>Others</caption>" in open_part and "<caption>Heads" in folded and "what: of whom (name)" in folded
    alone = page(Section("One", tables=[Table.plain(pd.DataFrame({"n": np.arange(80)}), "All rows")]))
    assert alone.count("<tr><td") == 80 and "<details" not in alone and "plotly" not in alone


def test_a_disk_that_is_full_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "index.html"
    write_page(path, "t", "", [Section("One", ["x"])], "made <so>")
    text = path.read_text()
    assert text.rstrip().endswith("</html>") and "<footer>made &lt;so&gt;</footer>" in text

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamscope.cli.disk.os.replace", full)
    with pytest.raises(InputError, match="cannot write"):
        write_page(path, "t", "", [Section("One")])
    assert path.read_text() == text and [p.name for p in path.parent.iterdir()] == ["index.html"]
