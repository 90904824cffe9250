"""The behavioural measure on hand-set logits, against a plain log-softmax, and after other prompts' nouns."""

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import InputError
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import Aligned, align, given_prompts
from streamscope.instruments.prompts.suite import Prompt
from streamscope.instruments.table import Table
from streamscope.probes import Coherence, Coreference, Pds, Sps
from streamscope.probes.coherence.measure import NO_CONTROL, observed, opening, rows, with_other_openings
from streamscope.probes.probe import measure
from streamscope.probes.roles import groups_of
from tests.probes import planted


def summary(found: pd.DataFrame, *, elsewhere: bool = True) -> Table:
    """The table of `rows`."""
    seen = observed(found, groups_of(found), str, elsewhere=elsewhere)
    return planted.tables_of(Coherence(), seen)["coherence"]


def planted_logits() -> Any:
    """After "the" every tool i has logit 1 + i/10 and every container 0."""
    net = planted.model()
    the = net.embed.weight[planted.VOCABULARY.index("the")]
    with torch.no_grad():
        net.unembed.weight.zero_()
        for i, tool in enumerate(planted.TOOLS):
            net.unembed.weight[planted.VOCABULARY.index(tool)] = (1 + i / 10) * the / the.square().sum()
    return net


def test_planted_logits() -> None:
    net = planted_logits()
    table = measure(net, Coherence(), planted.suite(6))
    expected = {f"p{i}": 1 + i / 10 for i in range(6)}
    assert table["log_odds"].tolist() == pytest.approx([expected[pair] for pair in table["pair"]], abs=1e-5)
    summary = Coherence().measure(net, given_prompts(planted.suite(6), net)).table().frame
    summary = summary.set_index("category")
    assert summary.loc["all", "log_odds"] == pytest.approx(1.25, abs=1e-5)
    assert summary.loc["tool-container", "log_odds"] == pytest.approx(fmean([1, 1.2, 1.4]), abs=1e-5)
    assert (summary["share"] == 1).all() and (summary["share_low"] < 1).all()
    assert summary["n"].tolist() == [12, 6, 6] and summary["clusters"].tolist() == [6, 3, 3]
    assert summary.loc["all", "log_odds_p_holm"] == summary.loc["all", "log_odds_p"] < 0.001


def test_equals_log_softmax_on_a_random_model() -> None:
    suite, net = load_suite("competing"), planted.random_model("lfa", "competing")
    one_pair = rows(planted_logits(), align(planted.suite(1), planted.tokenizer()), None, planted.tokenizer())
    alone = summary(one_pair, elsewhere=False)
    assert alone.frame["share_low"].isna().all() and (0, "share_low") in alone.missing
    aligned, table = align(suite, net.tokenizer), measure(net, Coherence(), suite)
    aligned = aligned.only([i for i, after in enumerate(aligned.continuations) if after is not None])
    assert table["id"].tolist() == [p.id for p in aligned.prompts]
    for ids, after, odds in zip(aligned.tokens, aligned.continuations, table["log_odds"], strict=True):
        with torch.no_grad():
            log_p = net(torch.tensor([ids]))[0, -1].double().log_softmax(-1)
        assert odds == pytest.approx(float(log_p[after[0][0]] - log_p[after[1][0]]), abs=1e-5)


def test_prompts_without_continuations_are_left_out() -> None:
    suite = planted.suite(4)
    mute = [replace(p, coherent=None, incoherent=None) if i < 2 else p for i, p in enumerate(suite.prompts)]
    query = Coherence().plan(replace(suite, prompts=tuple(mute)), planted.tokenizer())
    assert query.left_out == ("p0-target_first", "p0-target_last") and query.hooks == ()
    assert len(query.tokens) == 6 and query.logits == [[len(ids) - 1] for ids in query.tokens]
    with pytest.raises(InputError, match="no prompt has continuations"):
        Coherence().plan(replace(suite, prompts=tuple(mute[:2])), planted.tokenizer())


def test_continuations_that_cannot_be_compared_are_left_out_here_alone() -> None:
    """PDS, coreference and SPS read no continuation: they keep every pair."""
    net, suite = planted_logits(), planted.suite(12)
    same = {"coherent": " key", "incoherent": " key box"}
    several = {"coherent": " key box", "incoherent": " jar"}
    prompts = [
        replace(p, **same) if i < 10 else replace(p, **several) if i < 13 else p for i, p in enumerate(suite.prompts)
    ]
    data = given_prompts(replace(suite, prompts=tuple(prompts)), net)
    found = Coherence().measure(net, data)
    assert found.table().frame["n"][0] == 14
    assert "10 left out: the continuations start with the same token" in found.table().title
    assert "3 of 14 by the first token of a longer continuation" in found.table().title
    for how, n in ((Pds(), 12), (Coreference(), 24), (Sps(), 24)):
        assert (how.measure(net, data).table().frame["n"] == n).all()
    with pytest.raises(InputError, match="to compare: the continuations start with the same token .10 of 10"):
        Coherence().measure(net, given_prompts(replace(suite, prompts=tuple(prompts[:10])), net))


TEXTS = {
    "a": "Mia saw a pen and a box. She used it to write. It was a",
    "b": "Ann saw a saw and a bag. She used it to cut. It was a",
    "c": "Leo saw a brush and a jar. He used it to paint. It was a",
    "d": "Eve has a pen and a sack. She used it to draw. It was a",
}
NOUNS = {"a": ("pen", "box"), "b": ("saw and", "bag"), "c": ("brush", "jar"), "d": ("pen", "sack")}


def noun_prompt(name: str) -> Prompt:
    text = TEXTS[name]
    spans = [(text.index(noun), text.index(noun) + len(noun.split()[0])) for noun in NOUNS[name]]
    if name == "b":  # the noun, not the verb before it
        spans[0] = (text.index("a saw and") + 2, text.index("a saw and") + 5)
    query = text.index(" it ") + 1
    return Prompt(
        id=name, text=text, roles={"query": (query, query + 2), "target": spans[0], "distractor": spans[1]},
        category="competing-nouns", relation="tool-container", coherent=" x", incoherent=" y",
    )  # fmt: skip


def aligned_nouns(*names: str) -> Aligned:
    prompts = tuple(noun_prompt(n) for n in names)
    return Aligned(prompts, [[0]] * len(names), [{}] * len(names), [([1], [2])] * len(names), [], ())


def test_the_opening_ends_with_the_sentence_of_the_nouns() -> None:
    assert TEXTS["a"][: opening(noun_prompt("a"))] == "Mia saw a pen and a box. "
    inside = Prompt(
        id="i", text="The pen was in the box because it was small. It was a", category="competing-nouns",
        roles={"query": (31, 33), "target": (4, 7), "distractor": (19, 22)}, coherent=" x", incoherent=" y",
    )  # fmt: skip
    assert inside.text[31:33] == "it" and opening(inside) is None


def test_only_another_prompt_without_its_nouns_lends_its_opening() -> None:
    """c goes on with He, d has a pen as well: a can only take b's opening, c none."""
    suite = with_other_openings(aligned_nouns("a", "b", "c", "d"), seed=3)
    assert suite is not None
    texts = {p.id: p for p in suite.prompts}
    assert sorted(texts) == ["a", "b", "d"]
    one = texts["a"]
    assert one.text == "Ann saw a saw and a bag. She used it to write. It was a"
    assert one.text[slice(*one.roles["query"])] == "it" and (one.coherent, one.incoherent) == (" x", " y")
    assert texts["d"].text == "Ann saw a saw and a bag. She used it to draw. It was a"
    assert with_other_openings(aligned_nouns("a", "c")) is None


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
