"""Coreference heads, stability and held-out scoring on heads whose attention is known, and against loops."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from streamscope import InputError
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.observations import ONE_UNIT
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.stats.held_out import CHOSEN, held_out
from streamscope.instruments.table import Table
from streamscope.models.hooks import run
from streamscope.probes import Coreference
from streamscope.probes.coreference.measure import attention, observed
from streamscope.probes.probe import measure
from streamscope.probes.roles import RoleTable, exceeds, groups_of, left_out, undecided
from tests.probes import planted


@pytest.fixture(scope="module")
def attended() -> tuple[RoleTable, list[tuple[int, int]]]:
    """The table of planted heads, and its pairs."""
    net = planted.model()
    query = Coreference().plan(planted.suite(), net.tokenizer)
    return attention(Coreference(), run(net, query), query), query.aligned.pairs()


def tables(table: RoleTable, pairs: Sequence[tuple[int, int]] = ()) -> tuple[InstrumentData, dict[str, Table]]:
    seen = observed(Coreference(), table, pairs, groups_of(table.cases), lambda *ids: ids[0])
    return seen, planted.tables_of(Coreference(), seen)


def heads_of(table: RoleTable, heads: Sequence[int]) -> RoleTable:
    """Some of the heads, by their places."""
    values = {name: x[list(heads)] for name, x in table.values.items()}
    return replace(table, heads=table.heads.iloc[list(heads)].reset_index(drop=True), values=values)


@pytest.mark.parametrize("domain", ["candidates", "keys"])
def test_planted_heads(domain: str) -> None:
    net = planted.model()
    result = Coreference(domain=domain).measure(net, given_prompts(planted.suite(), net))
    summary = result.table().frame.sort_values(["layer", "index"], ignore_index=True)
    assert summary["top1"].tolist() == planted.TOP1 and summary["ties"].tolist() == planted.TIES
    np.testing.assert_allclose(summary["attention"], [0.5, 1, 0.5, 0.8, 1 / 12], atol=2e-6)
    assert summary["stable"].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert (summary["chance"] == (0.5 if domain == "candidates" else 1 / 12)).all()
    rules = summary[["recency", "first_mention", "longest"]]  # nouns of one token: the longest is the last of equals
    assert (rules == 0.5).all(axis=None)
    assert (summary["n"] == 24).all() and (summary["clusters"] == 12).all()
    assert result.table().frame["head"].tolist()[:2] == ["L0.H1", "L0.H3"], "the best head comes first"
    pairs = result.table("pairs").frame
    assert pairs["pair"].is_unique and pairs[["stable", "either", "jaccard"]].to_numpy().tolist() == [[2, 4, 0.5]] * 12


def test_stability_in_both_readings(attended: Any) -> None:
    table, pairs = attended
    seen, made = tables(table, pairs)
    total = seen.blocks["stability"].total
    assert total[:2].tolist() == [[0.5] * 12, [0.4] * 12]  # 2 of 4, and of 5 heads
    assert total[2:].sum(0).tolist() == [2] * 12
    assert made["stability"].frame["mean"].tolist() == pytest.approx([0.5, 0.4])
    assert made["stability"].frame["pairs"].tolist() == [12, 12]
    seen, made = tables(heads_of(table, [4]), pairs)  # a head that hits nothing
    jaccard, over_total = seen.blocks["stability"].total[:2]
    assert np.isnan(jaccard).all() and (over_total == 0).all()
    means = made["stability"]
    assert np.isnan(means.frame["mean"][0]) and (0, "mean") in means.missing and means.frame["left_out"][0] == 12
    assert made["pairs"].frame["jaccard"].isna().all()
    assert set(made["pairs"].missing.values()) == {"no head hits the target in either order"}
    recency = tables(heads_of(table, [0]), pairs)[0]
    assert set(recency.blocks["stability"].total[0]) == {0.0}
    assert recency.extra["pairs"][["stable", "either"]].to_numpy().tolist() == [[0, 1]] * 12


def test_prompts_that_share_nouns_are_not_independent() -> None:
    """A head that is right on five tools of six: by pairs its lead is resolved, by tools it is not."""
    suite, net = planted.suite(36), planted.model()
    nouns = [{"target": str(p.coherent), "competitor": str(p.incoherent)} for p in suite.prompts]
    prompts = tuple(replace(p, words=words) for p, words in zip(suite.prompts, nouns, strict=True))
    query = Coreference().plan(replace(suite, prompts=prompts), net.tokenizer)
    table = attention(Coreference(), run(net, query), query)
    tool = table.cases["cluster"].map(lambda label: label[1].strip())
    right = tool.isin({"key", "hammer", "spoon", "saw", "brush"}).to_numpy()
    one = heads_of(replace(table, values={**table.values, "hit": np.stack([right & False, right] * 2)}), [0, 1])
    by_pair = replace(one, cases=one.cases.assign(cluster=one.cases["pair"]))
    narrow, wide = (held_out(t.frame()).query("halves == 'both' and rule == 'recency'").iloc[0] for t in (by_pair, one))
    assert narrow["difference"] > 0 < narrow["difference_low"] and narrow["clusters"] == 36
    assert wide["difference_low"] < 0 < wide["difference_high"] and wide["clusters"] == 6
    one_noun = replace(one, cases=one.cases.assign(cluster=[(c[0], "key", c[2]) for c in one.cases["cluster"]]))
    rules, ends = tables(one_noun)[1]["held-out"], ["difference_low", "difference_high", "difference_p"]
    assert (rules.frame["clusters"] == 1).all() and rules.frame["difference"].notna().all()
    assert rules.frame[ends].isna().all(axis=None)
    assert {rules.missing[i, end] for i in range(9) for end in ends} == {ONE_UNIT}
    head, alone = (tables(t)[1]["heads"].frame.set_index("head").loc["L0.H1"] for t in (one, by_pair))
    assert head["top1"] == pytest.approx(5 / 6) and head["clusters"] == 6
    assert head["top1_low"] < 0.5 < alone["top1_low"]


def test_twins_that_differ_after_the_query_only_are_left_out() -> None:
    """The same text to the pronoun with either answer: half right by construction, so such prompts say nothing."""
    suite = planted.suite(12)
    twins = [
        replace(p, id=f"{p.id}-twin", pair=None, order=None,
                roles={**p.roles, "target": p.roles["distractor"], "distractor": p.roles["target"]})
        for p in suite.prompts[:6]
    ]  # fmt: skip
    both = Suite("twins", (*suite.prompts, *twins), "planted")
    asked = {p.id for p in (*suite.prompts[:6], *twins)}
    assert undecided(both.prompts) == asked
    others = [replace(p, text=p.text.replace(" it to ", " up to ")) for p in twins]
    assert not undecided([*suite.prompts, *others]), "the query itself may decide"
    query = Coreference().plan(both, planted.tokenizer())
    assert set(query.undecided) == asked and not query.left_out
    table = measure(planted.model(), Coreference(), both)
    assert set(table["id"]) == {p.id for p in suite.prompts[6:]}
    assert "12 left out whose text up to the query also occurs with another answer" in left_out(query, "target")
    only = tuple(replace(p, pair=None, order=None) for p in both.prompts if p.id in asked)
    with pytest.raises(InputError, match=r"every prompt has a twin .* \(12\)"):
        measure(planted.model(), Coreference(), Suite("only", only, "planted"))


def test_single_prompts_get_mcnemar() -> None:
    net, singles = planted.model(), [p for p in planted.suite(12).prompts if p.order == "target_last"]
    suite = Suite("singles", tuple(replace(p, pair=None, order=None) for p in singles), "planted")
    result = Coreference().measure(net, given_prompts(suite, net))
    found = result.table()
    assert all(found.missing[i, "stable"] == "no minimal pairs" for i in range(len(found.frame)))
    assert "stability" not in result.tables
    rows = held_out(measure(net, Coreference(), suite)).query("rule == 'first_mention'").set_index("halves")
    assert (rows["difference"] == 1.0).all()  # target last in all: the first-mention rule never hits
    assert rows["difference_p"]["A→B"] == pytest.approx(stats.binomtest(6, 6).pvalue)
    # each half has also chosen a head: of noise (two heads, 100 stories) 9 % of plain p were below .05 in 250 draws
    z = stats.norm.isf(stats.binomtest(12, 12).pvalue / 2) / CHOSEN**0.5
    assert rows["difference_p"]["both"] == pytest.approx(2 * stats.norm.sf(z))


@pytest.mark.parametrize("domain", ["candidates", "keys"])
@pytest.mark.parametrize("preset", ["std-t", "dst-kron"])
def test_equals_loops_on_random_models(preset: str, domain: str) -> None:
    net, suite = planted.random_model(preset, "coreference"), load_suite("coreference")
    aligned = align(suite, net.tokenizer)
    rows, table = planted.naive_rows(net, aligned), measure(net, Coreference(domain=domain), suite)
    table = table.set_index(["id", "layer", "index"])
    heads, stable = sorted(rows[0]), {}
    for prompt, at, row, q in zip(aligned.prompts, aligned.positions, rows, aligned.queries, strict=True):
        others = {role: where for role, where in at.items() if role.startswith("distractor")}
        for head in heads:
            one, alpha = table.loc[(prompt.id, *head)], row[head]
            assert one["attention"] == pytest.approx(planted.mass(alpha, at["target"]), abs=1e-6)
            if domain == "keys":
                hit = max(range(q + 1), key=lambda k: alpha[k]) in at["target"]
            else:
                hit = all(planted.mass(alpha, at["target"]) > planted.mass(alpha, o) for o in others.values())
            assert one["hit"] == hit
            stable.setdefault(prompt.pair, {}).setdefault(prompt.order, set()).update([head] if hit else [])
        one = table.loc[(prompt.id, *heads[0])]
        assert one["recency"] == (max([at["target"], *others.values()]) == at["target"])
        assert one["first_mention"] == (min([at["target"], *others.values()]) == at["target"])
        assert one["chance"] == pytest.approx(
            1 / (1 + len(others)) if domain == "candidates" else len(at["target"]) / (q + 1)
        )
    result = Coreference(domain=domain).measure(net, given_prompts(suite, net))
    pairs = dict(zip(result.table("pairs").frame["pair"], result.blocks["stability"].total[:2].T, strict=True))
    for pair, found in stable.items():
        if pair is not None and len(found) == 2:
            first, last = found.values()
            jaccard = len(first & last) / len(first | last) if first | last else np.nan
            assert pairs[pair] == pytest.approx([jaccard, len(first & last) / len(heads)], nan_ok=True)


def test_patched_patterns_even_attention_prefers_long_words() -> None:
    net, suite = planted.random_model("lfa", "coreference"), load_suite("coreference")
    edits = planted.set_pattern(planted.even)
    table, keys = (measure(net, Coreference(domain=d), suite, edits=edits) for d in ("candidates", "keys"))
    assert (table["hit"] == (table["longest"] & ~table["tie"])).all()
    assert table["hit"].any() and not table["longest"].all()
    assert not keys["hit"].any() and keys["tie"].all()


def test_ties_are_relative_and_prompts_without_a_distractor() -> None:
    wins, ties = exceeds(np.array([0.5, 1e-9, 0.0, 0.3]), np.array([0.5 + 1e-9, 1e-10, 0.0, 0.2]))
    assert wins.tolist() == [False, True, False, True] and ties.tolist() == [True, False, True, False]
    net, suite = planted.model(), planted.suite()
    alone = replace(suite, prompts=tuple(
        replace(p, roles={r: s for r, s in p.roles.items() if r != "distractor"}, pair=None, order=None)
        for p in suite.prompts
    ))  # fmt: skip
    with pytest.raises(InputError, match="target and distractor"):
        measure(net, Coreference(), alone)
    assert Coreference(domain="keys").measure(net, given_prompts(alone, net)).table().frame["n"][0] == 24
