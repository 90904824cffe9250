"""The attention picture where attention is known on paper; its marks, its figure, and input it must refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.models.make import build
from streamscope.probes.attention import choose
from streamscope.probes.picture import UNITS, Picture, main, picture, plot
from streamscope.probes.picture_plot import LONGEST, shown
from streamscope.probes.prompts.alignment import Aligned, align
from streamscope.probes.tables import read_about
from tests.probes import planted

torch.set_num_threads(1)
TEXT = "Tim took a key and a box . He used it to work with the"
KEY, BOX = 4, 7
NOUNS = {"recency": (0, 1), "semantic": (1, 0), "mixture": (1 / 4, 3 / 4), "leaning": (4 / 5, 1 / 5)}


@pytest.fixture(scope="module")
def net() -> Any:
    return planted.model()


@pytest.fixture(scope="module")
def prompt(net: Any) -> Aligned:
    """Target first: "key", then "box"; the query is "it"."""
    return choose(align(planted.suite(), net.tokenizer), [0])


def weights(table: pd.DataFrame, head: str, query: int) -> np.ndarray:
    one = table[(table["head"] == head) & (table["query"] == query)]
    assert one["key"].tolist() == list(range(query + 1))
    return one["attention"].to_numpy()


def test_every_head_from_the_last_token(net: Any) -> None:
    table = picture(net, TEXT)
    assert table.columns.tolist() == [
        "head", "layer", "index", "query", "query_token", "key", "key_token", "attention", "role",
    ]  # fmt: skip
    assert set(table["query"]) == {15} and set(table["query_token"]) == {"the"}
    assert table["key_token"][:16].tolist() == ["<|endoftext|>", *TEXT.split()]
    for h, name in enumerate(planted.HEADS):
        expected = np.full(16, 1 / 16)
        if name in NOUNS:
            expected = np.zeros(16)
            expected[[KEY, BOX]] = NOUNS[name]
        np.testing.assert_allclose(weights(table, f"L0H{h}", 15), expected, atol=2e-6)
    assert set(table["role"]) == {""}


def test_chosen_heads_from_every_token(net: Any) -> None:
    """The nouns take all attention as soon as they are there; before, a head without features spreads evenly."""
    table = picture(net, TEXT, ["L0.H2", "L0.H4"])
    assert len(table) == 2 * 16 * 17 / 2
    assert table["head"].unique().tolist() == ["L0H2", "L0H4"]
    np.testing.assert_allclose(table.groupby(["head", "query"])["attention"].sum(), 1, atol=1e-6)
    assert weights(table, "L0H2", 5)[KEY] == pytest.approx(1, abs=1e-6)
    assert weights(table, "L0H2", 9)[[KEY, BOX]] == pytest.approx([1 / 4, 3 / 4], abs=1e-6)
    np.testing.assert_allclose(weights(table, "L0H4", 9), 1 / 10, atol=1e-6)
    pd.testing.assert_frame_equal(picture(net, TEXT, [Head(0, 2), Head(0, 4)]), table)


def test_roles_of_a_prompt(net: Any, prompt: Aligned) -> None:
    table = picture(net, prompt)
    assert set(table["query"]) == {11} == set(prompt.queries)
    roles = table[table["head"] == "L0H0"].set_index("key")["role"]
    assert roles[roles != ""].to_dict() == {KEY: "target", BOX: "distractor", 11: "query"}
    probe = Picture(heads=(Head(0, 0),))
    summary = probe.summarize(table).set_index("head")
    assert summary.loc["L0H3", ["looks_at", "token"]].tolist() == [KEY, "key"]
    assert summary.loc["L0H3", ["attention", "to_target", "to_distractor"]].tolist() == pytest.approx([0.8, 0.8, 0.2])
    assert summary.loc["L0H4", ["to_bos", "to_query"]].tolist() == pytest.approx([1 / 12, 1 / 12])
    early = probe.summarize(picture(net, prompt, "all", 5)).set_index("head")
    assert early.loc["L0H4", "to_target"] == pytest.approx(1 / 6) and "to_distractor" not in early


def test_the_query(net: Any, prompt: Aligned) -> None:
    """A word, its last token, or a position; one word of two is asked for."""
    assert set(picture(net, TEXT, query="used")["query"]) == {10}
    assert set(picture(net, TEXT, query="used it")["query"]) == {11}
    assert set(picture(net, TEXT, query=".")["query"]) == {8}
    assert set(picture(net, prompt, "L0.H1", query=3)["query"]) == {3}
    assert len(picture(net, TEXT, query=0)) == 5
    with pytest.raises(InputError, match="'a' is 2 times in the text, at tokens 3, 6; .* --query 6"):
        picture(net, TEXT, query="a")
    for missing in ("h", "lathe", " "):
        with pytest.raises(InputError, match="is no word of"):
            picture(net, TEXT, query=missing)
    for outside in (-1, 16):
        with pytest.raises(InputError, match=r"0 \(BOS\) to 15"):
            picture(net, TEXT, query=outside)


def test_bad_input(net: Any, prompt: Aligned) -> None:
    with pytest.raises(InputError, match="34 tokens with BOS, the context holds 32"):
        picture(net, "key " * 33)
    with pytest.raises(InputError, match="no text"):
        picture(net, " \n")
    with pytest.raises(InputError, match="lone surrogates"):
        picture(net, "a \ud800")
    with pytest.raises(InputError, match="one prompt, not 24"):
        picture(net, align(planted.suite(), net.tokenizer))
    with pytest.raises(InputError, match="layers go from 0 to 0"):
        picture(net, TEXT, "L3.H0")
    with pytest.raises(InputError, match="at least one head"):
        picture(net, TEXT, [])
    with pytest.raises(InputError, match="the edit of blocks.0.attn.hook_pattern returned values that are not finite"):
        picture(net, TEXT, edits=planted.set_pattern(lambda n: torch.full((n,), torch.nan)))
    with pytest.raises(InputError, match="no tokenizer"):
        picture(build("std-t", "tiny"), TEXT)


def test_rows_show_heads_marks_and_tokens(net: Any, prompt: Aligned) -> None:
    figure = plot(picture(net, prompt), "title")
    assert np.asarray(figure.data[0].z).shape == (5, 12)
    assert np.asarray(figure.data[0].z)[3][[KEY, BOX]] == pytest.approx([0.8, 0.2], abs=1e-5)
    assert figure.data[0].text[3][KEY] == ".80" and figure.data[0].text[4][0] == ""
    assert figure.layout.yaxis.ticktext == tuple(f"L0H{h}" for h in range(5))
    ticks = figure.layout.xaxis.ticktext
    assert ticks[0] == "BOS" and ticks[1] == "Tim" and ">key</span>" in ticks[KEY] and ">box</span>" in ticks[BOX]
    assert ticks[KEY].split(">")[1] != ticks[BOX].split(">")[1]
    frames = {(s.x0, s.x1) for s in figure.layout.shapes}
    assert frames == {(KEY - 0.5, KEY + 0.5), (BOX - 0.5, BOX + 0.5), (10.5, 11.5)}
    assert [a.text for a in figure.layout.annotations] == ["target", "distractor", "query"]


def test_maps_leave_the_unseen_half_blank(net: Any, prompt: Aligned) -> None:
    figure = plot(picture(net, prompt, ["L0.H1", "L0.H4"]), "title")
    assert len(figure.data) == 2
    grid = np.asarray(figure.data[1].z, float)
    assert grid.shape == (16, 16)
    assert np.isnan(grid[np.triu_indices(16, 1)]).all() and np.isfinite(grid[np.tril_indices(16)]).all()
    assert grid[9, 9] == pytest.approx(1 / 10)
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]
    assert figure.layout.xaxis.ticktext == figure.layout.yaxis.ticktext
    assert len([a for a in figure.layout.annotations if a.text == "target"]) == 2


def test_tokens_are_readable() -> None:
    assert shown(" bag", 3) == "·bag"
    assert shown("\n<b>", 3) == "⏎&lt;b&gt;"
    assert shown("<|endoftext|>", 0) == "BOS"
    assert len(shown("x" * 40, 3)) == LONGEST


def test_forty_tokens_stay_apart(net: Any) -> None:
    """Each token has at least the height of its 12-pixel text across its slanted label."""
    figure = plot(picture(net, "a key " * 15), "title")
    room = figure.layout.width - figure.layout.margin.l - figure.layout.margin.r
    assert room / 31 >= 15
    table = picture(build("std-t", "tiny", n_ctx=64, d_vocab=26, tokenizer=planted.tokenizer()), "a key " * 20)
    figure = plot(table, "title")
    assert (figure.layout.width - figure.layout.margin.l - figure.layout.margin.r) / 41 >= 15


def test_command(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "picture.parquet"
    text = "the cat and the dog sat then it"
    main([str(tiny_run), "--text", text, "--query", "sat", "--out", str(out)])
    table, about = pd.read_parquet(out), read_about(out)
    assert table["head"].nunique() == 8 and table["query"].nunique() == 1
    assert about["units"] == UNITS and about["about"]["text"] == text
    assert "plotly" in out.with_suffix(".html").read_text()
    assert "looks_at" in capsys.readouterr().out
    main([str(tiny_run), "--text", text, "--heads", "L0.H1", "top2:induction", "--out", str(out)])
    table = pd.read_parquet(out)
    assert 2 <= table["head"].nunique() <= 3 and table["query"].nunique() == len(table["key"].unique())
    assert "from every token" in capsys.readouterr().out


def test_command_on_a_suite(tiny_run: Path, tmp_path: Path) -> None:
    import json

    path, out = tmp_path / "short.jsonl", tmp_path / "picture.parquet"
    lines = []
    for order, (a, b) in {"target_first": ("cat", "dog"), "target_last": ("dog", "cat")}.items():
        line = f"the {a} and the {b} sat then it"
        at = {role: [line.index(w), line.index(w) + 3] for role, w in (("target", "cat"), ("distractor", "dog"))}
        roles = {**at, "query": [len(line) - 2, len(line)]}
        lines.append({"id": order, "text": line, "roles": roles, "pair": "one", "order": order, "category": "test"})
    path.write_text("\n".join(map(json.dumps, lines)))
    found = {}
    for name in ("1", "target_last"):
        options = ["--suite", str(path), "--prompt", name, "--heads", "top2:pds", "--query", "it"]
        main([str(tiny_run), *options, "--out", str(out)])
        found[name] = pd.read_parquet(out)
    pd.testing.assert_frame_equal(found["1"], found["target_last"])
    assert set(found["1"]["role"]) == {"", "target", "distractor", "query"}
    assert found["1"]["head"].nunique() == 2
    for bad, why in ((["--prompt", "2"], "prompts 0 to 1"), (["--prompt", "target_fist"], "did you mean target_first")):
        with pytest.raises(InputError, match=why):
            main([str(tiny_run), "--suite", str(path), *bad])
    with pytest.raises(InputError, match="leave one out"):
        main([str(tiny_run), "--text", "the cat", "--prompt", "0"])
    with pytest.raises(InputError, match="unknown head score 'foo'"):
        main([str(tiny_run), "--heads", "top3:foo"])
