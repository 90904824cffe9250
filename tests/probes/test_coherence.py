"""The behavioural measure on a model with hand-set logits, and against a plain log-softmax."""

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import estimate_all
from streamscope.instruments.open_data import given_prompts
from streamscope.instruments.prompts import align, load_suite
from streamscope.instruments.table import Table
from streamscope.models.make import build
from streamscope.probes.coherence import Coherence
from streamscope.probes.coherence.measure import observed, rows, tables
from streamscope.probes.coreference import Coreference
from streamscope.probes.pds import Pds
from streamscope.probes.probe import measure
from streamscope.probes.roles import groups_of
from streamscope.probes.sps import Sps
from streamscope.text.tokenizer import Tokenizer
from tests.probes import planted
from tests.tiny import randomise

torch.set_num_threads(1)


def summary(found: pd.DataFrame, *, elsewhere: bool = True) -> Table:
    """The table of `rows`."""
    seen = observed(found, groups_of(found), str, elsewhere=elsewhere)
    seen.about["title"] = ""
    return tables(Coherence(), seen, estimate_all(seen.blocks, seen.contrasts))["coherence"]


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
    assert (summary["share"] == 1).all()
    assert (summary["share_low"] < 1).all()
    assert summary["n"].tolist() == [12, 6, 6]
    assert summary["clusters"].tolist() == [6, 3, 3]
    assert summary.loc["all", "log_odds_p_holm"] == summary.loc["all", "log_odds_p"] < 0.001


def test_equals_log_softmax_on_a_random_model() -> None:
    suite = load_suite("competing")
    words = Tokenizer.train([p.text + (p.coherent or "") for p in suite.prompts], 300)
    net = randomise(build("lfa", "tiny", n_ctx=128, d_vocab=300, tokenizer=words))
    aligned, table = align(suite, words), measure(net, Coherence(), suite)
    aligned = aligned.only([i for i, after in enumerate(aligned.continuations) if after is not None])
    assert table["id"].tolist() == [p.id for p in aligned.prompts]
    for ids, after, odds in zip(aligned.tokens, aligned.continuations, table["log_odds"], strict=True):
        with torch.no_grad():
            log_p = net(torch.tensor([ids]))[0, -1].double().log_softmax(-1)
        assert odds == pytest.approx(float(log_p[after[0][0]] - log_p[after[1][0]]), abs=1e-5)


def test_only_the_last_position_is_computed() -> None:
    query = Coherence().plan(planted.suite(), planted.tokenizer())
    assert query.hooks == ()
    assert query.logits == [[len(ids) - 1] for ids in query.tokens]


def test_prompts_without_continuations_are_left_out() -> None:
    suite = planted.suite(4)
    mute = [replace(p, coherent=None, incoherent=None) if i < 2 else p for i, p in enumerate(suite.prompts)]
    query = Coherence().plan(replace(suite, prompts=tuple(mute)), planted.tokenizer())
    assert query.left_out == ("p0-target_first", "p0-target_last")
    assert len(query.tokens) == 6
    none = replace(suite, prompts=tuple(replace(p, coherent=None, incoherent=None) for p in suite.prompts))
    with pytest.raises(InputError, match="no prompt has continuations"):
        Coherence().plan(none, planted.tokenizer())


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
    assert (Pds().measure(net, data).table().frame["n"] == 12).all()
    assert (Coreference().measure(net, data).table().frame["n"] == 24).all()
    assert (Sps().measure(net, data).table().frame["n"] == 24).all()
    with pytest.raises(InputError, match="to compare: the continuations start with the same token .10 of 10"):
        Coherence().measure(net, given_prompts(replace(suite, prompts=tuple(prompts[:10])), net))


def test_one_pair_has_no_interval() -> None:
    table = rows(planted_logits(), align(planted.suite(1), planted.tokenizer()), None, planted.tokenizer())
    found = summary(table, elsewhere=False)
    assert np.isnan(found.frame["share_low"]).all()
    assert {(i, "share_low") for i in range(len(found.frame))} <= set(found.missing)
