"""A circuit in the live page: edges over the heads, the slider with f, colours, names on hover, and what is refused."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from starlette.testclient import TestClient

from streamscope.interventions.circuits.worth import SHARES, size_of
from streamscope.models import build, load
from streamscope.viewer import View, page
from streamscope.viewer.server import application
from streamscope.viewer.session import Shown, open_models
from streamscope.viewer.shown import EDGES, circuit_for_page
from streamscope.viewer.view import main
from tests.tiny import refused
from tests.viewer.pages import TEXT, Page, answered, opened, write_circuit_of

Given = tuple[pd.DataFrame, list[Shown]]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """The edges of a circuit of stories/lfa, and a page with it next to a model that has none."""
    path = tmp_path_factory.mktemp("circuit") / "circuit.json"
    edges = write_circuit_of(path, load("stories/lfa"))
    return edges, open_models(["stories/lfa", "stories/std-t"], circuits=[path])


@pytest.fixture
def shown(chromium: Any, given: Given) -> Iterator[Page]:
    with opened(chromium, answered(*given[1]), viewport={"width": 1280, "height": 1000}) as found:
        yield found


def test_the_slider_chooses_the_best_edges_and_says_f(shown: Page, given: Given) -> None:
    edges, n = given[0], len(given[0])
    shown.open(text=TEXT)
    drawn = shown.page.locator(".edge")
    assert shown.page.locator(".edges").is_hidden() and drawn.count() == 0
    shown.press("Circuit")
    assert drawn.count() == size_of(0.02, n), "the share of the file's own circuit"
    assert (
        shown.text(".kept")
        == f"2 %: {size_of(0.02, n)} of {n:,} edges, keep f = .14 (.04 to .24) of the effect; random ones .02."
    )
    strongest = shown.page.locator(".edge").last  # drawn last, on top
    assert float(strongest.get_attribute("stroke-width")) == pytest.approx(4.5)
    assert ("negative" in (strongest.get_attribute("class") or "")) == (edges["score"][0] < 0)
    slider = shown.page.get_by_label("Share of the edges")
    slider.fill("3")
    assert drawn.count() == size_of(0.01, n) and shown.state()["share"] == 0.01
    assert slider.get_attribute("aria-valuetext") == "1 %" and shown.text(".kept").endswith(
        "f = .10 (.00 to .20) of the effect; random ones .00."  # of −.002: no −.00
    )
    slider.fill("0")
    assert drawn.count() == size_of(0.001, n)
    assert shown.text(".kept").endswith("The file does not say how much of the effect they keep.")
    shown.do("() => { streamscope.columns[0].model.circuit.curve[1].edges = 0; }")  # of a model with few edges
    slider.fill("1")
    assert drawn.count() == 0 and shown.text(".legend") == ""
    slider.fill("9")
    assert drawn.count() == 1000 < n and "the first 1,000 drawn" in shown.text(".kept")
    address = shown.page.url
    shown.open(text=TEXT, grid="circuit", share=0.01)
    assert drawn.count() == size_of(0.01, n) and "share=1" in address and "grid=circuit" in address
    shown.press("Pattern")
    assert shown.page.locator(".edges").is_hidden() and shown.page.locator(".kept").is_hidden()


def test_edges_run_from_sender_to_reader_and_have_their_names(shown: Page, given: Given) -> None:
    shown.open(text=TEXT, grid="circuit", share=0.01)
    squares = shown.do(
        "Object.fromEntries([...document.querySelectorAll('.grid > [data-head], .grid > [data-part]')].map((node) => {"
        "const box = node.getBoundingClientRect();"
        "return [node.dataset.part ?? node.dataset.head.replace(/L(\\d+)\\.H(\\d+)/, 'a$1.h$2'),"
        "[box.left, box.right, box.top, box.bottom]]; }))"
    )
    ends = shown.do(
        "Object.fromEntries([...document.querySelectorAll('.hit')].map((path) => {"
        "const at = (share) => { const p = path.getPointAtLength(share * path.getTotalLength());"
        "const q = new DOMPoint(p.x, p.y).matrixTransform(path.getScreenCTM()); return [q.x, q.y]; };"
        "return [path.dataset.edge, [at(0), at(1)]]; }))"
    )
    rows = given[1][0].circuit["rows"]
    assert len(ends) == size_of(0.01, len(given[0])) == 15
    for at, (start, end) in ends.items():
        sender, reader = rows[int(at)][:2]
        assert f"{sender}->{reader}" == given[0]["edge"][int(at)]
        for name, (x, y) in ((sender, start), (reader.partition("<")[0], end)):
            left, right, up, down = squares[name]
            assert left - 1 <= x <= right + 1 and up - 1 <= y <= down + 1, (sender, reader)
        assert rows[int(at)][4] == pytest.approx(given[0]["score"][int(at)])
    for at in (0, 1):
        middle = shown.do(
            f"(() => {{ const path = document.querySelector('.hit[data-edge=\"{at}\"]'); path.parentNode.append(path);"
            "const p = path.getPointAtLength(path.getTotalLength() / 2);"
            "const q = new DOMPoint(p.x, p.y).matrixTransform(path.getScreenCTM()); return [q.x, q.y]; })()"
        )
        shown.page.mouse.move(*middle)
        assert shown.text(".tip .lead") == f"{rows[at][0]} → {rows[at][1]}"
        assert f"{abs(rows[at][4]):.3f}".removeprefix("0") in shown.text(".tip")
    shown.page.mouse.move(5, 5)
    assert shown.page.locator(".tip").is_hidden()


def test_colours_are_of_the_part_or_of_the_stream_and_a_head_lights_its_edges(shown: Page, given: Given) -> None:
    rows = given[1][0].circuit["rows"]
    shown.open(text=TEXT, grid="circuit", share=0.02)
    strokes = "[...document.querySelectorAll('.edge')].map((path) => getComputedStyle(path).stroke)"
    n = size_of(0.02, len(given[0]))
    for by, column in (("Read as", 2), ("Stream", 3)):
        shown.page.get_by_role("button", name=by).click()
        found = dict(zip([row[column] for row in rows[:n]][::-1], shown.do(strokes), strict=True))
        assert len(set(found.values())) == len(found) > 1
        keys = shown.page.locator(".legend .key").all_inner_texts()
        assert len(keys) == len(found)
        if by == "Stream":
            assert set(keys) == set(found) == {"token", "context"}
    shown.thumb("L0.H4").hover(position={"x": 4, "y": 22})  # where no edge crosses it
    faded = shown.do("[...document.querySelectorAll('.edge')].map((path) => path.classList.contains('faded'))")[::-1]
    assert faded == ["a0.h4" not in (row[0], row[1].partition("<")[0]) for row in rows[:n]]
    assert 0 < sum(faded) < n
    shown.thumb("L1.H2").click(force=True)  # an edge may lie over it
    assert shown.state()["head"] == "L1.H2"


def test_a_saved_circuit_has_its_edges_at_its_squares(shown: Page, given: Given) -> None:
    shown.open(text=TEXT, grid="circuit", share=0.02)
    curves = "[...document.querySelectorAll('.edge')].map((path) => path.getAttribute('d'))"
    before, rows = shown.do(curves), given[1][0].circuit["rows"][: size_of(0.02, len(given[0]))][::-1]
    name = "{http://www.w3.org/2000/svg}"
    picture = ElementTree.parse(shown.saved("heads")).getroot()
    boxes = [[float(one.get(at)) for at in ("x", "y", "width", "height")] for one in picture.iter(f"{name}image")]
    (lines,) = picture.findall(f"{name}svg")
    left, up = float(lines.get("x")), float(lines.get("y"))
    seen = 0
    for (sender, reader, *_), path in zip(rows, lines.findall(f"{name}path"), strict=False):
        numbers = [float(x) for x in re.findall(r"-?[0-9.]+", path.get("d"))]
        (x, y), (end, _) = numbers[:2], numbers[-2:]
        if head := re.fullmatch(r"a(\d).h(\d)", sender):
            x0, y0, width, height = boxes[6 * int(head[1]) + int(head[2])]
            assert (left + x, up + y) == pytest.approx((x0 + width / 2, y0 + height), abs=2), sender
            seen += 1
        if re.fullmatch(r"m\d", reader):
            assert left + end > boxes[-1][0] + boxes[-1][2], "FFNs stand right of all heads"
            seen += 1
    assert len(boxes) == 36 and seen > 10 and shown.do(curves) == before
    texts = {text.text for text in picture.findall(f"{name}text")}
    assert "Edges" not in texts and {"input", "FFN", "m0", "logits"} <= texts


def test_a_model_without_a_circuit_says_so(chromium: Any, shown: Page) -> None:
    shown.open(text=TEXT, grid="circuit", second="std-t")
    hints = shown.page.locator(".heads .hint").all_inner_texts()
    assert hints[0].startswith("circuit.json: what reads what")
    assert hints[1] == "No circuit was given for stories/std-t."
    shown.open(text=TEXT, model="std-t")
    assert shown.page.get_by_role("button", name="Circuit").count() == 0
    shown.open(text=TEXT, share="2", edges="sender")
    assert "Not understood in the address: share, edges." in shown.text(".notice")
    with opened(chromium, answered(*open_models(["stories/lfa"]))) as plain:  # a page without circuits
        plain.open(text=TEXT, grid="circuit")
        assert "In the address, but not in what is shown: grid circuit." in plain.text(".notice")
        assert plain.state()["grid"] == "pattern" and plain.page.locator(".part").count() == 0
        assert plain.page.get_by_role("button", name="Circuit").count() == 0


def test_all_hosts_have_the_circuit(given: Given, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "circuit.pt"
    write_circuit_of(path, load("stories/lfa"))
    view = View("stories/lfa", circuit=path)
    notebook = view.data["models"][0]["circuit"]
    assert notebook["file"] == "circuit.pt" and len(notebook["rows"]) == EDGES
    assert [one["f"] for one in notebook["curve"]] == [None, *(math.sqrt(k) for k in SHARES[1:])]
    row = json.dumps(given[1][0].circuit["rows"][0], separators=(",", ":")).replace("<", "\\u003c")
    client = TestClient(application(given[1], "", "x", 1), base_url="http://127.0.0.1:1")
    assert row in client.get("/?token=x").text
    monkeypatch.setattr(page, "graph_of", lambda model, *extras: b"graph")
    monkeypatch.setattr(page.runtime, "read", lambda key: b"let a=1;export{a as env};")
    assert row in page.html(given[1])


def test_key_value_heads_and_mixing_modules_are_nodes_too(tmp_path: Path) -> None:
    model = build("llama", "tiny", n_heads=4, **{"attention.kv_heads": 2}).eval()
    write_circuit_of(tmp_path / "a.json", model, curve=False)
    found = circuit_for_page(model, "llama", tmp_path / "a.json")
    assert found["kv_heads"] == 2 and {row[1] for row in found["rows"]} >= {"a1.kv0<k>", "a1.kv1<v>"}
    assert found["share"] == 0.02 and all(one["f"] is None for one in found["curve"])
    assert [one["edges"] for one in found["curve"]] == [size_of(k, found["edges"]) for k in SHARES]


def test_circuits_of_other_models_and_bad_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path, lfa = tmp_path / "circuit.json", load("stories/lfa")
    write_circuit_of(path, lfa)
    data, one = json.loads(path.read_text()), {"score": 1.0, "in_graph": True}
    foreign = "'a9.h0->logits' is no edge of stories/lfa: it is of another model, or has latents"
    for line, changes in (
        (foreign, {"edges": {"a9.h0->logits": one}}),
        ("has n_layers 4, and stories/lfa 6", {"cfg": data["cfg"] | {"n_layers": 4}}),
        ("the score of m0->m1 is no number", {"edges": {"m0->m1": one | {"score": float("nan")}}}),
        ("has no edges", {"edges": {}}),
        ("is no circuit of MIB's form", {"edges": 3}),
        ("is no circuit of MIB's form", {"faithfulness": [{"share": "a"}]}),
    ):
        path.write_text(json.dumps({**data, **changes}))
        with refused(line):
            circuit_for_page(lfa, "stories/lfa", path)
    write_circuit_of(path, load("stories/gpt2"))
    for paths, line in (([path] * 2, "there are 2 circuits for 1 models"), ([path], "is no edge of stories/lfa")):
        with refused(line):
            main(["stories/lfa", "--circuit", *map(str, paths)])
