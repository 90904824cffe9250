"""Head groups: classes of words, scores against a plain loop, planted heads that look at one class each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.suite import Prompt
from streamscope.instruments.prompts.word_classes import CLASSES, token_classes
from streamscope.instruments.stats.held_out import halves
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Captures, run
from streamscope.probes.head_groups import HeadGroups
from streamscope.probes.head_groups import measure as groups
from streamscope.probes.roles import RoleTable, head_scores, role_query
from streamscope.text.tokenizer import Tokenizer
from tests.probes import planted

ROOT = Path(__file__).resolve().parents[2]
TEXT = "One day Mia's friend saw a big key, and Tom ran. The key fell. She took it"
PROMPT = Prompt(id="p", text=TEXT, roles={"query": (72, 74), "target": (31, 34)}, category="c")


def test_words_have_classes_and_tokens_those_of_their_words() -> None:
    tokenizer = Tokenizer.load(ROOT / "models" / "zoo" / "lfa")
    ids, spans = tokenizer.spans(TEXT)
    found = token_classes(PROMPT, spans)
    assert found[0] == "" and len(found) == len(ids)  # BOS
    by_word = {TEXT[start:end].strip(): kind for (start, end), kind in reversed([*zip(spans, found, strict=True)])}
    for kind, expected in (("entity", "key Tom"), ("anchor", "a , . and The"), ("semantic", "One day saw big ran"),
                           ("", "She it")):  # fmt: skip
        assert {by_word[word] for word in expected.split()} == {kind}


def random_patterns(query: Any, seed: int) -> list[torch.Tensor]:
    """Of three heads, at the query of every prompt."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.rand(3, 1, q + 1, generator=generator) for q in query.aligned.queries]
    return [row / row.sum(-1, keepdim=True) for row in rows]


def captures(patterns: Sequence[torch.Tensor], gates: Sequence[torch.Tensor] | None = None) -> Captures:
    hooks = {"blocks.0.attn.hook_pattern": list(patterns)}
    hooks |= {"blocks.0.attn.hook_gate": list(gates)} if gates is not None else {}
    return Captures(hooks, None)


@pytest.mark.parametrize("gated", [False, True])
def test_scores_are_those_of_a_plain_loop(gated: bool) -> None:
    tokenizer, suite = planted.tokenizer(), planted.suite(4)
    query = role_query(suite, tokenizer, gated=gated)
    patterns, generator = random_patterns(query, 0), torch.Generator().manual_seed(2)
    gates = [torch.rand(1, 3, 2, generator=generator) for _ in patterns] if gated else None
    frame = groups.read(captures(patterns, gates), query, tokenizer).frame()
    assert len(frame) == 8 * 3
    for i, p in enumerate(query.aligned.prompts):
        q = query.aligned.queries[i]
        kinds = token_classes(p, tokenizer.spans(p.text)[1])
        for head in range(3):
            g = float(gates[i][0, head].mean()) if gates is not None else 1.0
            found = frame[(frame["id"] == p.id) & (frame["index"] == head)].iloc[0]
            for name in CLASSES:
                mass = sum(g * float(patterns[i][head, 0, k]) for k in range(q) if kinds[k] == name)
                share = sum(kinds[k] == name for k in range(q)) / (q + 1)
                assert found[name] == pytest.approx(mass - g * share, abs=1e-6)


def planted_patterns(query: Any, rows: Callable[[list[int], list[str]], list[list[float]]]) -> list[torch.Tensor]:
    """What every head looks at, by the ids and the classes of the tokens before the query; the query comes last."""
    tokenizer, patterns = planted.tokenizer(), []
    for p, q in zip(query.aligned.prompts, query.aligned.queries, strict=True):
        ids, spans = tokenizer.spans(p.text)
        looks = torch.tensor(rows(ids[:q], token_classes(p, spans)[:q]))
        patterns.append((looks / looks.sum(-1, keepdim=True))[:, None])
    return patterns


def test_planted_heads_are_found_and_scored_on_the_other_half() -> None:
    tokenizer = planted.tokenizer()
    query = role_query(planted.suite(12), tokenizer)
    at = ["semantic", "everywhere", "entity", "anchor", "everywhere"]
    patterns = planted_patterns(query, lambda ids, kinds: [
        [float(name in (kind, "everywhere")) for kind in (*kinds, "query")] for name in at
    ])  # fmt: skip
    scaled = [rows * (0.9 + 0.01 * (i % 10)) for i, rows in enumerate(patterns)]
    table = groups.read(captures(scaled), query, tokenizer)
    found = groups.summary(HeadGroups(k=1), table)
    assert groups.groups_of(found) == {"entity": (Head(0, 2),), "anchor": (Head(0, 3),), "semantic": (Head(0, 0),)}
    chosen = found[found["group"] != ""]
    assert (chosen["held_out_low"] > 0).all() and chosen["n"].between(10, 23).all()  # one half
    assert found.loc[found["index"] == 1, list(CLASSES)].abs().max(axis=None) < 1e-6
    assert head_scores(found, "entity")[Head(0, 2)] == pytest.approx(found["entity"][2])


def test_only_what_a_query_can_see_is_read() -> None:
    """Scores are those of the whole prompts, from fewer tokens."""
    model, suite = planted.model(), planted.suite(12)
    captured, query = groups.capture(model, suite, model.tokenizer)
    assert [len(ids) - 1 for ids in query.tokens] == query.aligned.queries
    whole = replace(query, tokens=query.aligned.tokens)
    found = groups.read(captured, query, model.tokenizer)
    of_all = groups.read(run(model, whole), whole, model.tokenizer)
    pd.testing.assert_frame_equal(found.frame(), of_all.frame(), rtol=0, atol=1e-6)


def test_a_role_is_a_head_that_looks_at_a_class_and_not_at_one_word() -> None:
    """Planted, of eight heads: one looks at all candidates; one at the word "took" alone, which is in one class, so
    that it scores there like a head of the class; the others look everywhere. Only the first has its role."""
    tokenizer, probe = planted.tokenizer(), HeadGroups(k=1)
    query = role_query(planted.suite(12), tokenizer)
    took = tokenizer.encode("took")[-1]
    patterns = planted_patterns(query, lambda ids, kinds: [
        [*(float(kind == "entity") for kind in kinds), 0.0], [*(float(i == took) for i in ids), 0.0],
        *[[1.0] * (len(ids) + 1)] * 6,
    ])  # fmt: skip
    found = captures(patterns)
    dealt = groups.shuffled_scores(probe, found, query, tokenizer)
    assert dealt.shape == (199, 8) and (dealt == groups.shuffled_scores(probe, found, query, tokenizer)).all()
    held = groups.role_tests(groups.summary(probe, groups.read(found, query, tokenizer)), dealt).set_index("group")
    word = held[held["index"] == 1].iloc[0]
    assert word["held_out"] > 0.5 and not word["above_shuffled"] and word["p_shuffled"] > 0.05
    one = held.loc["entity"]
    assert one["index"] == 0 and one["above_shuffled"]
    assert one["p_shuffled"] == (1 + (dealt[:, 0] >= one["held_out"]).sum()) / 200
    assert one["p_shuffled_holm"] == pytest.approx(3 * one["p_shuffled"])
    assert held["above_shuffled"].sum() == 1, "heads that look everywhere alike have no role"


def test_shuffles_of_one_form_are_those_of_a_plain_loop() -> None:
    """Forms keep one class in a shuffle: beside scores counted token by token."""
    tokenizer, probe = planted.tokenizer(), HeadGroups(k=1)
    query = role_query(planted.suite(4), tokenizer)
    rows = random_patterns(query, 1)
    found = groups.shuffled_scores(probe, captures(rows), query, tokenizer, draws=3, seed=5)
    texts = [(tokenizer.spans(p.text)[0], token_classes(p, tokenizer.spans(p.text)[1])) for p in query.aligned.prompts]
    seen = [
        form
        for (ids, kinds), q in zip(texts, query.aligned.queries, strict=True)
        for form in zip(ids[:q], kinds[:q], strict=True)
    ]
    forms = [form for form in dict.fromkeys(seen) if form[1]]
    rng = np.random.default_rng(5)
    cases = groups.read(captures(rows), query, tokenizer).cases.assign(relation="")
    half = dict(zip(cases["pair"], halves(cases, 0)[0], strict=True))
    chooses = [half[p.pair] == 0 for p in query.aligned.prompts]
    for draw in range(3):
        given = rng.permutation([CLASSES.index(c) for _, c in forms])
        dealt = dict(zip(forms, [CLASSES[c] for c in given], strict=True))
        for head in range(3):
            scores = []
            for (ids, kinds), q, row in zip(texts, query.aligned.queries, rows, strict=True):
                new = [dealt.get((ids[k], kinds[k]), "") for k in range(q)]
                at = [[k for k in range(q) if new[k] == name] for name in CLASSES]
                scores.append([float(row[head, 0, ks].sum()) - len(ks) / (q + 1) for ks in at])
            chosen, held = (
                np.mean([s for s, c in zip(scores, chooses, strict=True) if c == side], 0) for side in (True, False)
            )
            assert found[draw, head] == pytest.approx(held[chosen.argmax()], abs=1e-5)


def test_groups_are_disjoint_and_their_scores_sum_to_the_most() -> None:
    rng = np.random.default_rng(2)
    names = [f"c{i}" for i in range(8)]
    cases = pd.DataFrame({"id": names, "cluster": names, "relation": ""})
    heads = [{"head": f"L{layer}.H{h}", "layer": layer, "index": h} for layer in range(2) for h in range(4)]
    table = RoleTable(pd.DataFrame(heads), cases, {name: rng.normal(0, 1, (8, 8)) for name in CLASSES})
    chosen = groups.summary(HeadGroups(k=1, layers="all"), table)
    choose = halves(cases, 0)[0] == 0
    scores = np.stack([table.values[name][:, choose].mean(1) for name in CLASSES], -1)
    best = max(permutations(range(8), 3), key=lambda heads: sum(scores[h, c] for c, h in enumerate(heads)))
    found = groups.groups_of(chosen)
    assert [found[name] for name in CLASSES] == [(Head(h // 4, h % 4),) for h in best]
    with pytest.raises(InputError, match="3 groups of 2 need 6 heads, here are 4; lower --k"):
        groups.summary(HeadGroups(k=2), table)
    last = groups.summary(HeadGroups(k=1), table)
    assert set(last.loc[last["group"] != "", "layer"]) == {1}
