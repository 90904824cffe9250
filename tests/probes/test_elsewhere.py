"""The control of coherence: other prompts' nouns, and what is then due to the text's own."""

import numpy as np
import pandas as pd
import pytest

from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.prompts.suite import Prompt
from streamscope.probes.coherence.measure import NO_CONTROL, opening, with_other_openings
from tests.probes.test_coherence import summary

TEXTS = {
    "a": "Mia saw a pen and a box. She used it to write. It was a",
    "b": "Ann saw a saw and a bag. She used it to cut. It was a",
    "c": "Leo saw a brush and a jar. He used it to paint. It was a",
    "d": "Eve has a pen and a sack. She used it to draw. It was a",
}
NOUNS = {"a": ("pen", "box"), "b": ("saw and", "bag"), "c": ("brush", "jar"), "d": ("pen", "sack")}


def prompt(name: str) -> Prompt:
    text = TEXTS[name]
    spans = [(text.index(noun), text.index(noun) + len(noun.split()[0])) for noun in NOUNS[name]]
    if name == "b":  # the noun, not the verb before it
        spans[0] = (text.index("a saw and") + 2, text.index("a saw and") + 5)
    query = text.index(" it ") + 1
    return Prompt(
        id=name, text=text, roles={"query": (query, query + 2), "target": spans[0], "distractor": spans[1]},
        category="competing-nouns", relation="tool-container", coherent=" x", incoherent=" y",
    )  # fmt: skip


def aligned(*names: str) -> Aligned:
    prompts = tuple(prompt(n) for n in names)
    return Aligned(prompts, [[0]] * len(names), [{}] * len(names), [([1], [2])] * len(names), [], ())


def test_the_opening_ends_with_the_sentence_of_the_nouns() -> None:
    assert TEXTS["a"][: opening(prompt("a"))] == "Mia saw a pen and a box. "
    inside = Prompt(
        id="i", text="The pen was in the box because it was small. It was a", category="competing-nouns",
        roles={"query": (31, 33), "target": (4, 7), "distractor": (19, 22)}, coherent=" x", incoherent=" y",
    )  # fmt: skip
    assert inside.text[31:33] == "it" and opening(inside) is None


def test_only_another_prompt_without_its_nouns_lends_its_opening() -> None:
    """c goes on with He, d has a pen as well: a can only take b's opening, c none."""
    suite = with_other_openings(aligned("a", "b", "c", "d"), seed=3)
    assert suite is not None
    made = {p.id: p for p in suite.prompts}
    assert sorted(made) == ["a", "b", "d"]
    assert made["a"].text == "Ann saw a saw and a bag. She used it to write. It was a"
    start, end = made["a"].roles["query"]
    assert made["a"].text[start:end] == "it" and (made["a"].coherent, made["a"].incoherent) == (" x", " y")
    assert made["d"].text == "Ann saw a saw and a bag. She used it to draw. It was a"
    assert with_other_openings(aligned("a", "c")) is None


def test_what_is_due_by_hand() -> None:
    own = pd.DataFrame(
        {
            "id": ["p", "q", "r"], "relation": ["u", "u", "v"], "cluster": ["1", "2", "3"], "log_p": [-1.0, -2.0, -1.0],
            "log_p_incoherent": [-3.0, -6.0, -10.0], "log_p_elsewhere": [-2.0, -3.0, np.nan],
            "log_p_incoherent_elsewhere": [-2.5, -6.0, np.nan], "due": [1.5, 1.0, np.nan], "prefers": True,
            "category": "", "order": "",
        }
    )  # fmt: skip
    table = summary(own)
    found = table.frame.set_index("category")
    one = found.loc["u"]
    assert (one["controls"], one["elsewhere"], one["due"]) == (2, 1.75, 1.25)  # (1.5 + 1)/2
    assert one["lift"] == pytest.approx(((1 - 0.5) / 2 + (1 + 0) / 2) / 2)
    assert one["due_low"] == pytest.approx(1.25 - 12.7062 * 0.25, abs=1e-3)
    assert found.loc["all", "due"] == 1.25 and found.loc["v", "controls"] == 0
    assert table.missing[found.index.get_loc("v"), "due"] == NO_CONTROL
    names = ["log_p_elsewhere", "log_p_incoherent_elsewhere", "due"]
    assert summary(own.assign(**dict.fromkeys(names, np.nan))).frame["controls"].sum() == 0
