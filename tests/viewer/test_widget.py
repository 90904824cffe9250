"""The live page in a notebook: the kernel answers, Python and the page share the edits, and a file for documents."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.command import Job
from streamscope.models.checkpoint import load
from streamscope.models.hooks import edit
from streamscope.probes import Pds
from streamscope.viewer import View, page
from streamscope.viewer.session import Session

EDITS = {"heads": {"L2.H3": {"scale": 0}}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[View, list[Any]]:
    view, sent = View("stories/lfa", "Lily had a red ball. She"), []
    monkeypatch.setattr(view, "send", lambda content, buffers=None: sent.append((content, buffers)))
    return view, sent


def test_the_kernel_answers_as_the_server(asked: tuple[View, list[Any]]) -> None:
    view, sent = asked
    ids = view.model.tokenizer.encode(view.text)
    question = {"id": 7, "kind": "run", "model": "lfa", "step": None, "tokens": ids, "edits": EDITS}
    view._asked(view, question, [])
    assert sent.pop() == ({"id": 7}, [Session(view._shown).answer("run", question)])
    view._asked(view, {"id": 8, "kind": "tokenize", "model": "lfa", "text": view.text}, [])
    assert sent.pop() == ({"id": 8, "ids": ids[1:]}, None)
    view._asked(view, {**question, "tokens": [1]}, [])
    assert sent.pop() == ({"id": 7, "error": "give 2 to 128 token ids below 2048"}, None)
    view._asked(view, {"kind": "other"}, [])
    assert not sent


def test_edits_are_validated_and_measured(tmp_path: Path) -> None:
    view = View("stories/lfa")
    for wrong, line in (({"heads": {"L9.H0": {"scale": 0}}}, "'L9.H0': this model"), ({"head": {}}, "unknown key")):
        with pytest.raises(InputError, match=line):
            view.edits = wrong
    assert view.edits == {}
    view.edits = {"heads": {"L4.*": {"scale": 3}, "L4.H1": {"alpha": 0.5}}, "mixing": ["L0-1.v"]}
    heads = {f"L4.H{head}": {"scale": 3} for head in range(6)}
    assert view.edits == {"heads": heads | {"L4.H1": {"scale": 3, "alpha": 0.5}}, "mixing": ["L0.v", "L1.v"]}
    with pytest.raises(InputError, match="the text has"):
        view.text = "word " * 200
    view.edits = EDITS
    view.save_edits(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == EDITS
    small = [one.small() for one in Pds.takes]
    found = Job("stories/lfa", None, Pds(), small, "cpu", (str(tmp_path / "found.json"),)).do()
    with edit(model := load("stories/lfa"), view.hooks()):
        same = Pds().measure(model, *small)
    for name in found.blocks:
        np.testing.assert_array_equal(found.blocks[name].total, same.blocks[name].total)


def test_where_no_kernel_answers_the_page_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "html", lambda shown, text: f"<p>{text}</p>")
    for text in ("", " \n"):
        with pytest.raises(InputError, match="the text is empty; give one with words, or leave it out"):
            View("stories/lfa", text)
    assert "text/html" not in View("stories/lfa")._repr_mimebundle_()[0]
    kinds = View("stories/lfa", "A dog", page=tmp_path / "a tour.html")._repr_mimebundle_()[0]
    assert "application/vnd.jupyter.widget-view+json" in kinds and "a%20tour.html" in kinds["text/html"]
    assert (tmp_path / "a tour.html").read_text() == "<p>A dog</p>"
    monkeypatch.setattr(View, "frame", "../_static/live.html")
    view = View(("stories/lfa", "stories/std-t"), "A <b> dog")
    assert [one["id"] for one in view.data["models"]] == ["lfa", "std-t"]
    assert view.data["state"] == {"text": "A <b> dog", "second": "std-t"}
    view.edits = EDITS
    html = view._repr_mimebundle_()[0]["text/html"]
    assert 'src="../_static/live.html#text=A%20%3Cb%3E%20dog&edits=%7B%22heads%22' in html
    html = View("stories/lfa")._repr_mimebundle_()[0]["text/html"]
    assert 'src="../_static/live.html#"' in html, "the page's own first sentence"
