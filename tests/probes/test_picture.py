"""The attention picture where attention is known on paper; its marks, its figure, and input it must refuse."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import InputError, Text
from streamscope.instruments.prompts.alignment import Aligned, align, given_prompts
from streamscope.models.head_spec import Head
from streamscope.probes import Picture
from streamscope.probes.picture.measure import picture, summary
from tests.probes import planted

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


def test_a_prompt_of_the_suite_and_heads_by_their_scores(net: Any) -> None:
    data = given_prompts(planted.suite(), net, net.tokenizer)
    name = planted.suite().prompts[1].id
    first, same = (
        Picture(prompt=i, heads=("top1:pds",), query="it").measure(net, data).table().frame for i in (1, name)
    )
    pd.testing.assert_frame_equal(first, same)
    assert set(first["role"]) == {"", "target", "distractor", "query"} and set(first["head"]) == {"L0.H0"}
    cut = Picture(query="key").measure(net, Text((TEXT, "a key"), max_tokens=6)).table().frame
    assert cut.groupby("prompt")["query"].first().tolist() == [4, 2]
    for options, line in (
        ({"prompt": 24}, "prompts 0 to 23"), ({"prompt": "p0-target_fist"}, "did you mean p0-target_first"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            Picture(**options).measure(net, data)
