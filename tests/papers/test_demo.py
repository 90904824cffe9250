"""The demonstration end to end on models of three steps, its choice of a prompt on a trained one, and its page."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from streamscope.cli.errors import InputError
from streamscope.instruments.figures import HeadMap, Intervals
from streamscope.instruments.result import Result
from streamscope.instruments.table import HEAD, Table, key, number
from streamscope.papers.demo import main
from streamscope.papers.demo.web_page import Section, html, write_page
from tests.instruments.estimates import proportion

SMALL = ["--pairs", "9", "--documents", "3", "--edited-pairs", "6", "--k", "1", "--draws", "4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An LFA and a Std-T of two layers, trained for three steps on stories, and one with another tokenizer."""
    from streamscope.models.train import main as train

    folder = tmp_path_factory.mktemp("demo")
    rest = "--data stories:0:80 --scale tiny --set n_ctx=128 --steps 3 --batch-size 2 --eval-every 3 --log-every 1 "
    rest += "--sample-every 0 --device cpu"
    for name, preset, vocabulary in (("a", "lfa", 400), ("b", "std-t", 400), ("c", "lfa", 300)):
        train([preset, *rest.split(), "--set", f"d_vocab={vocabulary}", "--out", str(folder / name)])
    return [folder / name for name in "abc"]


@pytest.mark.slow
def test_two_runs_make_a_page_and_results(runs: list[Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "page"
    main([str(runs[0]), str(runs[1]), "--out", str(out), *SMALL])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"page {out / 'index.html'}"
    html = (out / "index.html").read_text()
    assert "nan" not in re.findall(r"<td[^>]*>(nan)<", html) and html.count('class="plot"') == 10
    both = f"{runs[0]} {runs[1]}"
    commands = re.findall(r"^(?:<pre>)?python -m (.*?)(?:</pre>)?$", html, re.MULTILINE)
    assert len(commands) == 9 and f"probes.coreference {both} --suite stories --n 9 --domain keys" in commands
    assert sum(both in command for command in commands) == 7  # all but the pictures
    assert not [path for path in out.iterdir() if path.name.startswith(".") or path.suffix not in (".html", ".parquet")]
    ablation = Result.load(out / "ablation.parquet")
    frame = ablation.table().frame
    assert list(frame["run"].unique()) == [f"lfa ({runs[0]})", f"std-t ({runs[1]})"] and len(frame) == 2 * 8
    for table in (ablation.table(), Result.load(out / "coreference.parquet").table("held-out")):
        for one in table.columns:
            assert not one.shown or f">{one.title}</th>" in html, one.name
    step = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()][-1]
    assert f"Its validation loss is {step['loss']:.3f} nats per token after 3 steps. It writes: “Once" in html


def test_a_run_that_was_killed_while_it_wrote_its_log_is_introduced(runs: list[Path], tmp_path: Path) -> None:
    from streamscope.models import load
    from streamscope.papers.demo.report import introduction

    run = shutil.copytree(runs[0], tmp_path / "run")
    whole = introduction(str(run), load(run))
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 4, "ki')
    assert introduction(str(run), load(run)) == whole and "nats per token after 3 steps. It writes" in whole


def test_bad_input_is_refused_in_one_line(runs: list[Path], tmp_path: Path) -> None:
    first, _, other = map(str, runs)
    (tmp_path / "file").write_text("")
    for argv, message in (
        ([], "give a run folder"), ([str(tmp_path / "none")], "not a run folder"),
        ([first, other], "different tokenizers"), ([first, first], "named twice"),
        ([first, "--out", str(tmp_path / "file")], "is a file"), ([first, "--pairs", "2"], "at least 4"),
        ([first, "--documents", "1"], "documents must be at least 2"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            main(argv)


def test_the_passage_shown_is_the_median_one() -> None:
    from streamscope.papers.demo.report import median_pair

    rows = [("a-1", "a", 0.9), ("a-2", "a", 0.5), ("b-1", "b", -0.4), ("b-2", "b", 0.0), ("c-1", "c", 0.3),
            ("c-2", "c", -0.1), ("d-1", "d", 5.0), ("e-1", "", 0.1)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["id", "pair", "sps"])
    assert median_pair(frame) == ("c-1", "c-2")  # means .7, −.2 and .1; d has one order, e none
    assert median_pair(frame[:4]) == ("b-1", "b-2")
    with pytest.raises(InputError, match="no pair of stories fits"):
        median_pair(frame[-1:])


def test_head_and_passage_are_chosen_on_different_halves_of_the_cases() -> None:
    """By the rows of the probes on a trained model; of two runs those of the first."""
    from streamscope.instruments.data import Prompts
    from streamscope.instruments.result import pool_results
    from streamscope.instruments.stats.held_out import halves
    from streamscope.models import load
    from streamscope.papers.demo.report import choose
    from streamscope.probes.coreference import Coreference
    from streamscope.probes.probe import measure
    from streamscope.probes.sps import Sps

    names, prompts = ("stories/gpt2", "stories/lfa"), Prompts(suite="stories", n=16)
    found, aligned = {}, None
    for name in names:
        model = load(name)
        data = Coreference().open(model, prompts)
        found[name] = [one.measure(model, data[Prompts]) for one in (Coreference(), Sps())]
        aligned = data[Prompts].aligned if name == names[0] else aligned
    choice = choose(*found[names[0]], 16)
    assert aligned is not None
    model = load(names[0])
    rows, leaning = (measure(model, one, aligned) for one in (Coreference(), Sps()))
    side = halves(rows, 0)[0]
    scores = rows[side == 0].groupby("head")[["hit", "attention"]].mean()
    head = scores.sort_values(["hit", "attention"], ascending=False, kind="stable").index[0]
    unseen = rows[(side == 1) & (rows["head"] == head)]
    share = proportion(unseen["hit"].to_numpy(), unseen["cluster"].to_numpy())
    assert choice.head == head and 0 < share.mean < 1
    numbers = [f"{100 * x:.1f}" for x in (share.mean, share.low, share.high)]
    assert choice.right == "{} % of {} prompts (95 % interval {} to {})".format(numbers[0], len(unseen), *numbers[1:])
    mine = leaning[(leaning["head"] == head) & leaning["id"].isin(unseen["id"])]
    means = mine.groupby("pair")["sps"].mean().sort_values()
    assert set(choice.prompts) == set(mine["id"][mine["pair"] == means.index[(len(means) - 1) // 2]])
    both = [pool_results([found[name][i] for name in names]) for i in range(2)]
    assert choose(*both, 16) == choice != choose(*found[names[1]], 16)


def test_the_page_and_the_live_page_link_each_other(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamscope.models import load
    from streamscope.papers.demo.report import write_live
    from streamscope.viewer import page, runtime

    assert not write_live({"c": load(runs[2])}, tmp_path, "Once", {})
    assert "without the live page: a page needs ONNX Runtime" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(runtime, "read", lambda name: b"let a=1;export{a as env};")
    monkeypatch.setattr(page, "graph_of", lambda model, *extras: b"graph")
    main([str(runs[2]), "--out", str(tmp_path / "with"), *SMALL])
    printed = capsys.readouterr().out
    assert f"live page {tmp_path / 'with' / 'live.html'}" in printed
    report, live = ((tmp_path / "with" / name).read_text() for name in ("index.html", "live.html"))
    assert '<a href="live.html">live page</a>' in report and "median one" in report
    assert f"Inside {runs[2]}</h1>" in report
    assert re.search(r"Without L\d\.H\d, which finds the right noun in .*, the log-odds go from [+-]", report)
    found = re.search(r'id="data">(.*?)</script>', live, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    said = re.search(r"^(L\d\.H\d) of .* finds the right noun in ([\d.]+ % of \d+ prompts)", printed, re.MULTILINE)
    assert said is not None and said[1] == data["state"]["head"] and said[2] in report
    assert data["report"] == "index.html" and data["state"]["text"] in live and data["models"][0]["id"] == "c"
    attention = Result.load(tmp_path / "with" / "picture.parquet").table().frame
    assert set(attention["query"]) == {data["state"]["token"]} and set(attention["head"].str[:2]) == {said[1][:2]}


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


def test_texts_are_escaped_and_a_disk_that_is_full_leaves_the_old_page(tmp_path: Path, monkeypatch: Any) -> None:
    safe = Markup('<a href="{}">live</a>').format('x"y.html')
    write_page(
        tmp_path / "new" / "p.html", "A <page>", "", [Section("<h>", ["<p1>", safe], commands=["a <b>", "c"])], "<so>"
    )
    text = (tmp_path / "new" / "p.html").read_text()
    assert text.rstrip().endswith("</html>") and "<footer>&lt;so&gt;</footer>" in text
    assert "<title>A &lt;page&gt;</title>" in text and "<h2>&lt;h&gt;</h2>" in text and "<p>&lt;p1&gt;</p>" in text
    assert '<p><a href="x&#34;y.html">live</a></p>' in text and "<pre>a &lt;b&gt;\nc</pre>" in text
    links = re.findall(r'href="#([^"]+)"', page())
    assert len(links) == 2 and all(page().count(f'id="{one}"') == 1 for one in links), "contents link to every section"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamscope.cli.disk.os.replace", full)
    with pytest.raises(InputError, match="cannot write"):
        write_page(tmp_path / "new" / "p.html", "t", "", [Section("One")])
    assert [(one.name, one.read_text()) for one in (tmp_path / "new").iterdir()] == [("p.html", text)]


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
