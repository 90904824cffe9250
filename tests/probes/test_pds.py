"""PDS on heads whose attention is known, against loops, and on input it must refuse."""

from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from streamscope import InputError, Result, load
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.observations import estimate_all
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.instruments.prompts.suite import units
from streamscope.instruments.table import Table
from streamscope.interventions import Ablate, Suppress
from streamscope.models.hooks import edit
from streamscope.probes import Coherence, Coreference, HeadGroups, Pds, Sps
from streamscope.probes.pds.measure import CELLS, control_tables, mean_plus_sd
from streamscope.probes.probe import measure
from streamscope.text.tokenizer import Tokenizer
from tests.probes import planted


def heads(net: Any, prompts: Any, tokenizer: Any = None, **options: Any) -> Table:
    return Pds(**options).measure(net, given_prompts(prompts, net, tokenizer)).table("heads")


@pytest.fixture(scope="module")
def result() -> Result:
    net = planted.model()
    return Pds().measure(net, given_prompts(planted.suite(), net))


def test_planted_heads(result: Result) -> None:
    summary = result.table("heads").frame
    np.testing.assert_allclose(summary[["pds", "difference"]].T, [planted.PDS] * 2, atol=2e-6)
    np.testing.assert_allclose(summary["first"], [0, 1, 1 / 4, 4 / 5, 1 / 12], atol=2e-6)
    assert summary["n"].tolist() == summary["clusters"].tolist() == [12] * 5
    assert summary["over"].tolist() == [True, False, True, False, False]
    assert summary["head"].tolist() == [f"L0.H{h}" for h in range(5)]
    by_layer = result.table("layers").frame
    assert by_layer[["layer", "over", "heads", "max"]].to_numpy().tolist() == [[0, 2, 5, pytest.approx(1)]]
    # no pair differs from another: no interval, no test, and the table says so
    table, ends = result.table("heads"), {f"difference_{what}" for what in ("low", "high", "p", "p_holm")}
    assert table.frame[sorted(ends | {"d"})].isna().all(axis=None)
    assert {column for _, column in table.missing} == ends | {"d"} and len(table.missing) == 5 * 5


def test_a_head_that_prefers_the_first_noun_is_no_recency_head() -> None:
    net = planted.model()
    with torch.no_grad():
        net.blocks[0].attn.positions.slopes[0] = -10.0  # farther is more
    found = Pds().measure(net, given_prompts(planted.suite(), net))
    rows = found.table("heads").frame.set_index("head")
    assert rows.loc["L0.H0", "pds"] == pytest.approx(1) == pytest.approx(-rows.loc["L0.H0", "difference"])
    assert rows["prefers"][["L0.H0", "L0.H2"]].tolist() == ["first", "last"] and rows["over"].sum() == 2
    assert found.table("layers").frame[["over", "over_first"]].to_numpy().tolist() == [[2, 1]]
    assert "2 heads above it, 1 for the last noun and 1 for the first" in found.table("layers").title
    assert found.table("best").frame["heads"][0] == "L0.H0 (first) / L0.H0 (first)"
    assert found.figure().data[0].z[0][0] == pytest.approx(-1)  # the figure that is shown first keeps the sign


def test_opposite_pairs_cancel_in_the_mean_and_not_per_pair(result: Result) -> None:
    block = result.blocks["heads"]
    turned = block.total.copy().reshape(len(CELLS), 5, 12)
    turned[:2, :, 1::2] = turned[1::-1, :, 1::2]  # in every other pair the two orders trade places
    blocks = {"heads": replace(block, total=turned.reshape(block.total.shape)), "best": result.blocks["best"]}
    found = estimate_all(blocks, {name: result.contrasts[name] for name in blocks})
    seen = InstrumentData(blocks, {}, {"title": "", "rule": ""}, extra={"all": ""})
    for how, expected in ((Pds(), np.zeros(5)), (Pds(per_pair=True), planted.PDS)):
        np.testing.assert_allclose(how.tables(seen, found)["heads"].frame["pds"], expected, atol=2e-6)


@pytest.mark.parametrize(
    ("instrument", "table"),
    [(Pds(), "heads"), (HeadGroups(k=1), "heads"), (Ablate(measures=("sps",), heads=("L0.H0",), draws=1), "sps"),
     (Suppress(measures=("sps",), k=(1,), gates=(1.0, 0.0), draws=1), "effects")],
)  # fmt: skip
def test_titles_say_that_twins_with_another_answer_are_left_out(instrument: Any, table: str) -> None:
    suite, net = planted.suite(), planted.model()
    twins = tuple(
        replace(p, id=f"{p.id}-twin", pair=f"{p.pair}-twin",
                order="target_last" if p.order == "target_first" else "target_first",
                roles={**p.roles, "target": p.roles["distractor"], "distractor": p.roles["target"]})
        for p in suite.prompts[:4]
    )  # fmt: skip
    found = instrument.measure(net, given_prompts(replace(suite, prompts=(*suite.prompts, *twins)), net))
    assert ", 8 left out whose text up to the query also occurs with another answer" in found.table(table).title


@pytest.mark.parametrize("bos", ["yes", "no"])
def test_without_bos_no_head_is_a_bos_sink(bos: Any) -> None:
    """Every head attends to the first token alone, which is a word without BOS."""
    net = planted.model()
    net.tokenizer = net.tokenizer.with_bos(bos)
    with edit(net, planted.set_pattern(lambda n: torch.eye(n)[0])):
        found = Pds().measure(net, given_prompts(planted.suite(), net))
    assert found.about["sinks"] == ([f"L0.H{h}" for h in range(5)] if bos == "yes" else [])
    assert ("BOS sinks" in found.table("heads").title) == (bos == "yes")


def test_thresholds() -> None:
    own = heads(planted.model(), planted.suite(), threshold="own").frame
    expected = fmean(planted.PDS) + stdev(planted.PDS)
    assert own["threshold"][0] == pytest.approx(expected, abs=1e-5) == mean_plus_sd(own)
    assert own["over"].tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("preset", ["std-t", "lfa", "c2"])
def test_equals_loops_on_random_models(preset: str) -> None:
    net, suite = planted.random_model(preset, "competing"), load_suite("competing")
    suite = replace(suite, prompts=suite.prompts[:24])
    aligned = align(suite, net.tokenizer)
    rows = planted.naive_rows(net, aligned)
    assert max(len(at["target"]) for at in aligned.positions) > 1
    summary = heads(net, suite).frame
    per_pair = heads(net, aligned, per_pair=True).frame
    for i, one in summary.iterrows():
        first, last = {}, {}
        for prompt, at, row in zip(aligned.prompts, aligned.positions, rows, strict=True):
            alpha = planted.mass(row[one["layer"], one["index"]], at["target"])
            (first if prompt.order == "target_first" else last)[prompt.pair] = alpha
        both = sorted(first.keys() & last.keys())
        assert one["n"] == len(both)
        assert one["pds"] == pytest.approx(abs(fmean(last[k] for k in both) - fmean(first[k] for k in both)), abs=1e-6)
        assert per_pair["pds"][i] == pytest.approx(fmean(abs(last[k] - first[k]) for k in both), abs=1e-6)
        half = stats.t.ppf(0.975, len(both) - 1) * stdev(last[k] - first[k] for k in both) / len(both) ** 0.5
        assert (one["difference_high"] - one["difference_low"]) / 2 == pytest.approx(half, rel=1e-4)


def test_pairs_of_one_text_are_one_case() -> None:
    suite = load_suite("coreference")
    aligned = align(suite, Tokenizer.train([p.text for p in suite.prompts], 290))
    names = dict(zip([p.id for p in aligned.prompts], units(aligned.prompts), strict=True))
    assert names["coreference-key-box-0-first"] == names["coreference-key-box-1-last"]
    assert len(set(names.values())) < len({p.pair or p.id for p in aligned.prompts})
    assert len({names[p.id] for p in aligned.prompts if p.text == aligned.prompts[0].text}) == 1


def test_one_pair_has_a_score_and_no_inference_and_a_control_says_which_pds_it_has() -> None:
    net = planted.model()
    for per_pair, words in ((False, "of "), (True, "mean over pairs of |last − first|, of ")):
        result = Pds(per_pair=per_pair).measure(net, given_prompts(planted.suite(1), net))
        table = result.table("heads")
        np.testing.assert_allclose(table.frame["pds"], planted.PDS, atol=2e-6)
        missing = {why for (_, column), why in table.missing.items() if column == "difference_sd"}
        assert missing == {"one independent case"}
        assert control_tables(result, result)["models"].title.startswith(f"PDS per head, {words}")


def test_a_bridge() -> None:
    words = planted.tokenizer()
    inner, bridge = planted.gpt2_and_bridge(words.d_vocab, 0.3)
    aligned = align(planted.suite(), words)
    table, rows = measure(bridge, Pds(), aligned, tokenizer=words), planted.naive_rows(bridge, aligned)
    (i, j), (layer, head) = aligned.pairs()[3], (1, 0)
    expected = [planted.mass(rows[k][layer, head], aligned.positions[k]["target"]) for k in (i, j)]
    one = table[(table["pair"] == "p3") & (table["layer"] == layer) & (table["index"] == head)].iloc[0]
    assert [one["first"], one["last"]] == pytest.approx(expected, abs=1e-6)
    for how, n in ((Sps(), 1), (Coherence(), 3), (Coreference(), 4)):
        assert len(how.measure(bridge, given_prompts(aligned, bridge, words)).table().frame) == n
    with pytest.raises(InputError, match="hook_gate"):
        measure(bridge, Sps(attention="gated"), aligned, tokenizer=words)
    with torch.no_grad():  # no probe looks for NaN itself
        inner.transformer.h[0].attn.c_proj.weight[0, 0] = torch.inf
    for how in (Pds(), Sps(), Coreference(), Coherence()):
        with pytest.raises(InputError, match="the unedited model are not finite; first at blocks.0.*hook"):
            measure(bridge, how, aligned, tokenizer=words)


def test_the_reference_reads_prompts_in_its_own_tokens() -> None:
    """Of a suite that was opened for this model the reference has words of its own; of tokens it needs the same."""
    net, suite = planted.model(), planted.suite(3)
    other = load("stories/gpt2")
    assert other.tokenizer.sha256 != net.tokenizer.sha256
    how = Pds(reference="stories/gpt2")
    found = how.measure(net, given_prompts(suite, net))
    threshold = mean_plus_sd(heads(other, suite).frame)
    np.testing.assert_allclose(found.table("heads").frame["threshold"], threshold, rtol=1e-6)
    assert found.about["threshold"] != pytest.approx(mean_plus_sd(found.table("heads").frame))

    aligned = align(suite, other.tokenizer)
    same = how.measure(load("stories/pls"), given_prompts(aligned, load("stories/pls")))
    assert same.about["threshold"] == pytest.approx(threshold)
    with pytest.raises(InputError, match="is not the model's tokenizer .*: its ids mean other words"):
        how.measure(net, given_prompts(align(suite, net.tokenizer), net))
