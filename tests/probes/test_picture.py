"""The attention picture where attention is known on paper; its marks, its figure, and input it must refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Text
from streamscope.instruments.open_data import given_prompts
from streamscope.instruments.prompts.alignment import Aligned, align
from streamscope.models.checkpoint import load
from streamscope.models.head_spec import Head
from streamscope.probes.logit_lens import LogitLens
from streamscope.probes.picture import Picture, main
from streamscope.probes.picture.measure import LONGEST, axis_label, picture, summary
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
    return align(planted.suite(), net.tokenizer).only([0])


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
        np.testing.assert_allclose(weights(table, f"L0.H{h}", 15), expected, atol=2e-6)
    assert set(table["role"]) == {""}


def test_chosen_heads_from_every_token(net: Any) -> None:
    """The nouns take all attention as soon as they are there; before, a head without features spreads evenly."""
    table = picture(net, TEXT, ["L0.H2", "L0.H4"])
    assert len(table) == 2 * 16 * 17 / 2
    assert table["head"].unique().tolist() == ["L0.H2", "L0.H4"]
    np.testing.assert_allclose(table.groupby(["head", "query"])["attention"].sum(), 1, atol=1e-6)
    assert weights(table, "L0.H2", 5)[KEY] == pytest.approx(1, abs=1e-6)
    assert weights(table, "L0.H2", 9)[[KEY, BOX]] == pytest.approx([1 / 4, 3 / 4], abs=1e-6)
    np.testing.assert_allclose(weights(table, "L0.H4", 9), 1 / 10, atol=1e-6)
    pd.testing.assert_frame_equal(picture(net, TEXT, [Head(0, 2), Head(0, 4)]), table)


def test_roles_of_a_prompt(net: Any, prompt: Aligned) -> None:
    table = picture(net, prompt)
    assert set(table["query"]) == {11} == set(prompt.queries)
    roles = table[table["head"] == "L0.H0"].set_index("key")["role"]
    assert roles[roles != ""].to_dict() == {KEY: "target", BOX: "distractor", 11: "query"}
    looks = summary(table).set_index("head")
    assert looks.loc["L0.H3", ["looks_at", "token"]].tolist() == [KEY, "key"]
    assert looks.loc["L0.H3", ["attention", "to_target", "to_distractor"]].tolist() == pytest.approx([0.8, 0.8, 0.2])
    assert looks.loc["L0.H4", ["to_bos", "to_query"]].tolist() == pytest.approx([1 / 12, 1 / 12])
    early = summary(picture(net, prompt, "all", 5)).set_index("head")
    assert early.loc["L0.H4", "to_target"] == pytest.approx(1 / 6) and "to_distractor" not in early


def test_the_query_and_bad_input(net: Any, prompt: Aligned) -> None:
    """A word, its last token, or a position; one word of two is asked for."""
    for query, position in (("used", 10), ("used it", 11), (".", 8), (3, 3), (0, 0)):
        assert set(picture(net, TEXT, "L0.H1", query=query)["query"]) == {position}
    nan = planted.set_pattern(lambda n: torch.full((n,), torch.nan))
    for text, options, line in (
        (TEXT, {"query": "a"}, "'a' occurs at tokens 3, 6; .* --query 6"),
        *((TEXT, {"query": missing}, "is not a word of") for missing in ("h", "lathe", " ")),
        *((TEXT, {"query": outside}, "the text has the tokens 0 to 15") for outside in (-1, 16)),
        ("key " * 33, {}, "34 tokens, the context holds 32"), (" \n", {}, "the text is empty; give one with words"),
        (align(planted.suite(), net.tokenizer), {}, "one prompt, not 24"),
        (TEXT, {"heads": "L3.H0"}, "this model has layers 0 to 0"), (TEXT, {"heads": []}, "at least one head"),
        (TEXT, {"edits": nan}, "the edit of blocks.0.attn.hook_pattern returned values that are not finite"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            picture(net, text, **options)


def test_rows_show_heads_roles_and_tokens(net: Any) -> None:
    figure = Picture(prompt=0).measure(net, given_prompts(planted.suite(), net, net.tokenizer)).figure()
    assert np.asarray(figure.data[0].z).shape == (5, 12)
    assert np.asarray(figure.data[0].z)[3][[KEY, BOX]] == pytest.approx([0.8, 0.2], abs=1e-5)
    ticks = figure.layout.xaxis.ticktext
    assert [ticks[i] for i in (0, 1, KEY)] == ["BOS", "Tim", "<b>key</b> (target)"]
    assert list(figure.data[0].y) == [f"L0.H{h}" for h in range(5)]


def test_maps_leave_the_unseen_half_blank(net: Any) -> None:
    result = Picture(heads=("L0.H1", "L0.H4")).measure(net, Text((TEXT,)))
    figure = result.figure()
    assert len(figure.data) == 2
    grid = np.asarray(figure.data[1].z, float)
    assert grid.shape == (16, 16)
    assert np.isnan(grid[np.triu_indices(16, 1)]).all() and np.isfinite(grid[np.tril_indices(16)]).all()
    assert grid[9, 9] == pytest.approx(1 / 10)
    assert figure.layout.yaxis.autorange == "reversed"
    assert figure.layout.xaxis.ticktext == figure.layout.yaxis.ticktext
    assert len(result.table("looks").frame) == 2 * 16
    cut = Picture(query="key").measure(net, Text((TEXT, "a key"), max_tokens=6)).table().frame
    assert cut.groupby("prompt")["query"].first().tolist() == [4, 2]


def test_tokens_are_readable() -> None:
    assert axis_label(" bag", 3) == "·bag"
    assert axis_label("\n<b>", 3, "target") == "<b>⏎&lt;b&gt;</b> (target)"
    assert axis_label("<|endoftext|>", 0) == "BOS"
    assert len(axis_label("x" * 40, 3)) == LONGEST


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
    main([str(tiny_run), "--text", "the cat sat", "--heads", "L0.H1", "top2:induction", "--out", str(out)])
    table, looks = pd.read_parquet(out), pd.read_parquet(out.with_stem("picture-looks"))
    assert 2 <= table["head"].nunique() <= 3 and len(looks) == table["head"].nunique() * table["query"].nunique()
    for bad, line in (
        (["--suite", str(path), "--prompt", "2"], "prompts 0 to 1"),
        (["--suite", str(path), "--prompt", "target_fist"], "did you mean target_first"),
        (["--text", "the cat", "--prompt", "0"], "leave one out"),
        (["--heads", "top3:foo"], "unknown head score 'foo'"),
        (["--text", "the cat", "--control", str(tiny_run)], "name both"),
    ):
        with pytest.raises(InputError, match=line):
            main([str(tiny_run), *bad])


def test_a_text_that_is_cut_says_so() -> None:
    net = load("stories/gpt2")
    text = "Once there was a dog . " * 12
    n = len(net.tokenizer.encode(text))
    for how in (Picture(), LogitLens()):
        for most, line in ((20, f"text 2 cut at 20 of {n} tokens (--max-tokens)"), (n, "")):
            title = how.measure(net, Text(text=("Once upon a time", text), max_tokens=most)).about["title"]
            assert line in title and (" cut at " in title) == bool(line)
    long = text * 9
    whole = len(net.tokenizer.encode(long))
    found = LogitLens().measure(net, Text(text=(long,), max_tokens=500))
    assert f"text 1 cut at 128 of {whole} tokens (the context)" in str(found.about["title"])
