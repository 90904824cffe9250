"""The suppression protocol on a model whose heads' work is known: what follows on paper is what the tables say.

Layer 0 holds the five heads of tests/probes/planted.py. Only "semantic" writes: δ into feature 3 and −δ into its
mirror, at every position, times its gate g. LayerNorm divides by s(g) = sqrt((38 + 2 (1 + g δ)²) / 40), which leaves
u = g δ / s. Head 0 of layer 1 scores a key a = C u / s if it is a tool and −a otherwise; the other heads of layer 1
look everywhere alike. The readout favours tools by u. So with n keys
    SPS of that head = (e^a − e^{−a}) / (e^a + (n − 1) e^{−a}),   log-odds = u,
and neither knows of the recency head.
"""

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.data import Documents
from streamscope.instruments.observations import estimate
from streamscope.instruments.open_data import given_prompts, open_data
from streamscope.instruments.prompts.alignment import Aligned, align
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table
from streamscope.interventions import Ablate, Suppress
from streamscope.interventions.controls import inert_reason
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import observe_loss, observe_prompts
from streamscope.interventions.suppress.measure import Cell, add_measure, design, rank_heads, tables
from streamscope.models import build, load
from streamscope.models.head_spec import Head
from streamscope.models.hooks import edit
from streamscope.probes.pds import Pds
from streamscope.probes.roles import head_scores
from tests.probes import planted

DELTA, C = 2.0, 1.5
RECENCY, SEMANTIC, READER = Head(0, 0), Head(0, 1), Head(1, 0)
GATES = (1.0, 0.75, 0.5, 0.25, 0.0)


def two_layers() -> Any:
    """The model of this file's docstring."""
    one = planted.model()
    net = build(replace(one.config, n_layers=2), tokenizer=one.tokenizer)
    state = one.state_dict()
    with torch.no_grad():
        for name, weight in net.state_dict().items():
            if not name.startswith("blocks.1."):
                weight.copy_(state[name])
        first, second = net.blocks[0].attn, net.blocks[1].attn
        first.positions.slopes.copy_(one.blocks[0].attn.positions.slopes)
        first.v.weight.zero_()
        first.v.weight[8, 0] = 1.0  # head 1 carries feature 0, which is 1 in every word
        first.o.weight[3, 8], first.o.weight[23, 8] = DELTA, -DELTA
        for weight in (second.q.weight, second.k.weight, second.o.weight, net.blocks[1].mlp.down.weight):
            weight.zero_()
        second.positions.slopes.zero_()
        second.q.weight[0, 3], second.q.weight[0, 4] = math.sqrt(8) * C, -math.sqrt(8) * C
        second.k.weight[0, 2] = 1.0
        net.unembed.weight.zero_()
        for word in planted.TOOLS:
            net.unembed.weight[planted.VOCABULARY.index(word), 3] = 1.0
            net.unembed.weight[planted.VOCABULARY.index(word), 4] = -1.0
    return net


def shift(g: float) -> float:
    """u of the docstring: what the norm leaves of the semantic head's output, and the scale of the other features."""
    return g * DELTA / scale(g)


def scale(g: float) -> float:
    """The norm's divisor: features are ±1, two of them ±(1 + g δ)."""
    return math.sqrt((38 + 2 * (1 + g * DELTA) ** 2) / 40)


def reader(g: float, keys: int) -> float:
    """SPS of head 0 in layer 1: the key's feature is ±1 / scale as well."""
    s = C * shift(g) / scale(g)
    return (math.exp(s) - math.exp(-s)) / (math.exp(s) + (keys - 1) * math.exp(-s))


@pytest.fixture(scope="module")
def net() -> Any:
    return two_layers()


@pytest.fixture(scope="module")
def aligned(net: Any) -> Aligned:
    return align(planted.suite(), net.tokenizer)


@pytest.fixture(scope="module")
def found(net: Any, aligned: Aligned) -> tuple[list[Cell], Result, dict]:
    how = Suppress(gates=GATES, draws=20, resamples=200)
    ranking = Pds().measure(net, given_prompts(aligned, net)).table()
    scores = head_scores(ranking.frame, "pds")
    selections = {"top1": rank_heads(scores, 1), "semantic": (SEMANTIC,), "last": (READER,)}
    edits, cells = design(scores, selections, GATES, draws=20)
    observed = observe_prompts(net, ("sps", "coherence"), edits, aligned, net.tokenizer)
    seen = InstrumentData({}, {}, {"title": "planted"}, extra=(cells, ranking))
    for one in observed.values():
        add_measure(seen, cells, one, 2)
    found = {name: estimate(block, seen.contrasts[name]) for name, block in seen.blocks.items()}
    return cells, Result(tables(how, seen, found), seen.blocks, seen.contrasts, how.figures), observed


def rows(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table)
    return table


def reasons(result: Result, name: str, column: str, **where: Any) -> set[str]:
    """Why the cells of these rows have no value, "" where one has."""
    table = result.table(name)
    return {table.missing.get((row, column), "") for row in rows(table.frame, **where).index}


def test_heads_that_prefer_the_first_noun_are_told_from_recency_heads(net: Any) -> None:
    net = deepcopy(net)
    with torch.no_grad():
        net.blocks[0].attn.positions.slopes[0] = -10.0
    how = Suppress(k=(1, 2), gates=(0.0,), measures=("coherence",), draws=2, resamples=10)
    found = how.measure(net, given_prompts(planted.suite(), net))
    assert "L0.H0 1.000 (first), L0.H2 0.500 (last)" in found.about["title"]
    for name in ("effects", "controls"):
        table = found.table(name).frame
        table = rows(table, group="selected") if "group" in table else table
        assert table.drop_duplicates("selection")["prefer_first"].tolist() == [1, 1]
    assert rows(found.table().frame, group="bottom")["prefer_first"].max() < 2


def test_the_recency_head_is_found_and_its_suppression_changes_nothing(found: tuple) -> None:
    cells, result, _ = found
    assert cells[0].heads == (RECENCY,)
    where = {"selection": "top1", "group": "selected"}
    one = rows(result.table().frame, **where)
    assert one["delta"].tolist() == [0.0] * 10
    assert one["delta_p"].isna().all()
    assert reasons(result, "effects", "delta_p", **where) == {"the same in every independent case"}
    assert reasons(result, "effects", "d", **where) == {"no case changed under the edit"}


def test_the_semantic_head_carries_sps_and_coherence_as_on_paper(found: tuple, aligned: Aligned) -> None:
    _, result, observed = found
    keys = [q + 1 for q in aligned.queries]
    effects = result.table().frame
    for g in GATES:
        sps = np.mean([reader(g, n) - reader(1, n) for n in keys])
        at = {"selection": "semantic", "group": "selected", "gate": g}
        assert rows(effects, measure="sps", **at)["delta"].item() == pytest.approx(sps / 10, abs=1e-6)
        odds = shift(g) - shift(1)
        assert rows(effects, measure="coherence", **at)["delta"].item() == pytest.approx(odds, abs=1e-5)
    assert observed["sps"].readouts == ("all", "L0", "L1")
    in_layer = rows(result.table("parts").frame, measure="sps", part="L1", selection="semantic", group="selected")
    assert in_layer["delta"].item() == pytest.approx(np.mean([-reader(1, n) / 5 for n in keys]), abs=1e-6)


def test_gate_one_is_exactly_the_baseline_and_is_run_as_such_by_ablate(net: Any, aligned: Aligned) -> None:
    how = Ablate(heads=("L0.*",), measures=("sps", "coherence"), scale=(1.0, 0.0))
    found = how.measure(net, given_prompts(aligned, net)).tables
    for table in (one.frame for one in found.values()):
        assert (table.loc[table["scale"] == 1, "delta"] == 0.0).all()
        assert len(table) == 10
    gone = rows(found["coherence"].frame, head="L0.H1", scale=0.0).iloc[0]
    assert gone["delta"] == pytest.approx(-shift(1), abs=1e-5)


def test_measures_share_a_forward_pass_without_changing(net: Any, aligned: Aligned) -> None:
    edits = [scale_heads([SEMANTIC], 0.5)]
    both = observe_prompts(net, ["coherence", "sps"], edits, aligned, net.tokenizer)
    for measure in ("sps", "coherence"):
        alone = observe_prompts(net, [measure], edits, aligned, net.tokenizer)[measure]
        np.testing.assert_allclose(both[measure].values, alone.values, atol=1e-5)
        assert both[measure].cases.equals(alone.cases)


def test_what_cannot_change_is_undefined_and_not_zero(found: tuple, net: Any, aligned: Aligned) -> None:
    _, result, _ = found
    where = {"selection": "last", "group": "selected", "measure": "sps"}
    for name in ("effects", "parts"):
        last = rows(result.table(name).frame, **where)
        assert last[["delta", "delta_p", "d", "delta_low", "delta_p_holm"]].isna().all(axis=None)
        for column in ("delta", "d"):
            assert all("undefined by construction" in why for why in reasons(result, name, column, **where))
    effects = result.table().frame
    assert (rows(effects, selection="last", group="selected", measure="coherence")["delta"] == 0).all()
    parts = result.table("parts").frame
    assert rows(parts, selection="semantic", group="selected", part="L0")["delta"].isna().all()
    for name, column in (("curves", "slope"), ("curves", "r2"), ("asymmetry", "asymmetry")):
        assert all("by construction" in why for why in reasons(result, name, column, **where))
    assert np.isnan(rows(result.table("controls").frame, selection="last", measure="sps")["p_rank"].item())

    def ablated(*heads: Head) -> Table:
        named = tuple(f"L{head.layer}.H{head.head}" for head in heads)
        how = Ablate(heads=named, together=True, measures=("sps",))
        return how.measure(net, given_prompts(aligned, net)).table("sps")

    single = ablated(READER)
    assert np.isnan(single.frame["delta"][0])
    assert "by construction" in single.missing[0, "delta"]
    pairs = [ablated(SEMANTIC, READER), ablated(SEMANTIC, Head(0, 2))]
    one, other = (pair.frame.iloc[0] for pair in pairs)
    assert np.isfinite(one["delta"]) and np.isnan(one["interaction"])
    assert "by construction" in pairs[0].missing[0, "interaction"]
    assert other["interaction"] == pytest.approx(0, abs=1e-6), "L0.H2 writes nothing"
    three, two = ablated(RECENCY, SEMANTIC, READER).frame.iloc[0], ablated(RECENCY, SEMANTIC).frame.iloc[0]
    assert three["interaction"] == pytest.approx(two["interaction"], abs=1e-9), "the reader is in the last layer"


@pytest.mark.parametrize(
    ("measure", "readout", "layers", "cannot"),
    [("sps", "all", [2], True), ("sps", "all", [1, 2], False), ("sps", "L1", [1], True), ("sps", "L2", [1], False),
     ("coherence", "all", [2], False), ("loss", "all", [2], False)],
)  # fmt: skip
def test_by_construction(measure: str, readout: str, layers: list[int], cannot: bool) -> None:
    assert bool(inert_reason(measure, readout, [Head(layer, 0) for layer in layers], 3)) is cannot


def test_controls_rank_the_selected_heads_among_heads_that_were_not_selected(found: tuple) -> None:
    cells, result, _ = found
    for cell in (c for c in cells if c.group == "random"):
        chosen = next(c.heads for c in cells if c.selection == cell.selection)
        assert not set(cell.heads) & set(chosen)
    controls = result.table("controls").frame
    row = rows(controls, selection="semantic", measure="coherence").iloc[0]
    assert row["draws"] == 9  # all other single heads
    assert row["random"] == 0
    assert row["above"] == row["selected"] == pytest.approx(-shift(1), abs=1e-5)
    assert row["p_rank"] == row["p_rank_min"] == pytest.approx(2 / 10)
    assert rows(controls, selection="semantic", measure="sps")["draws"].item() == 4  # those of layer 0
    others = rows(controls, selection="top1", measure="coherence")  # one of nine writes, and is gated fully
    assert others["random"].item() == pytest.approx(-shift(1) / 9, abs=1e-5)


def test_curves_and_asymmetry(found: tuple) -> None:
    _, result, _ = found
    curve = rows(result.table("curves").frame, selection="semantic", group="selected", measure="coherence").iloc[0]
    y = [shift(g) - shift(1) for g in GATES]
    line, bend = np.polyfit(GATES, y, 1), np.polyfit(GATES, y, 2)
    assert (curve["slope"], curve["intercept"]) == (pytest.approx(line[0], abs=1e-5), pytest.approx(line[1], abs=1e-5))
    assert curve["curvature"] == pytest.approx(bend[0], abs=1e-5)
    residual = np.array(y) - np.polyval(line, GATES)
    assert curve["departure"] == pytest.approx(np.abs(residual).max(), abs=1e-5)
    assert curve["r2"] == pytest.approx(1 - residual.var() / np.var(y), abs=1e-4)
    sides = rows(result.table("asymmetry").frame, selection="semantic", group="selected", measure="coherence").iloc[0]
    assert (sides["first"], sides["last"]) == (pytest.approx(-shift(1), abs=1e-5),) * 2
    assert sides["asymmetry"] == pytest.approx(0, abs=1e-5)
    assert sides["n"] == 12
    figure = result.figure("effects-delta-over-gate")
    assert {trace.name for trace in figure.data if trace.name} == {"selected", "bottom", "random"}


def test_relations_have_rows_and_holm_counts_them(found: tuple) -> None:
    _, result, _ = found
    hard = rows(result.table("parts").frame, measure="sps", selection="semantic", group="selected")
    assert hard["part"].tolist() == ["agent-patient", "tool-container", "L0", "L1"]
    assert hard["n"].tolist() == [12, 12, 24, 24]


def test_loss_of_documents_is_a_measure_like_the_others(tmp_path: Path) -> None:
    how, model, text = Suppress(k=(1,), gates=(0.0,), measures=("loss",), draws=2), load("lfa"), tmp_path / "t.txt"
    text.write_text("\n<|endoftext|>\n".join("Leo saw the dog. " * k for k in range(1, 10)))
    data = Documents(str(text))
    row = rows(how.measure(model, data).table().frame, group="selected").iloc[0]
    chosen = Head(*map(int, row["heads"].removeprefix("L").split(".H")))
    observed = observe_loss(model, [scale_heads([chosen], 0.0)], open_data(data, model))
    assert row["n"] == row["clusters"] == 9
    change = (observed.values[1] - observed.values[0])[0]
    assert row["delta"] == pytest.approx((change * observed.size).sum() / np.sum(observed.size)) != change.mean()
    assert row["d_z"] == pytest.approx(change.mean() / change.std(ddof=1)), "over documents"
    assert row["measure"] == "loss"


def test_ablate_ranks_by_pds(net: Any, aligned: Aligned) -> None:
    how = Ablate(heads=("top1:pds", "L0.H1", "L1.H0"), measures=("sps", "coherence"))
    found = how.measure(net, given_prompts(aligned, net))
    assert list(found.tables) == ["sps", "coherence"]  # the loss was not asked for
    table = found.table("coherence").frame.set_index("head")
    assert table["delta"].to_dict() == pytest.approx({"L0.H0": 0, "L0.H1": -shift(1), "L1.H0": 0}, abs=1e-5)


def test_bos_sinks_are_no_bottom_heads(net: Any, aligned: Aligned) -> None:
    """A head that attends to BOS alone has the smallest PDS; it is named, and another one is the control."""
    sink = Head(0, 0)

    def to_bos(pattern: Any, hook: Any) -> Any:
        pattern = pattern.clone()
        pattern[:, sink.head] = 0.0
        pattern[:, sink.head, :, 0] = 1.0
        return pattern

    with edit(net, {f"blocks.{sink.layer}.attn.hook_pattern": to_bos}):
        found = Pds().measure(net, given_prompts(aligned, net))
    assert found.about["sinks"] == [sink.label] and "1 of" in found.table().title
    scores = head_scores(found.table().frame, "pds")
    bottom = {
        with_sinks: {cell.heads for cell in design(scores, {"top1": rank_heads(scores, 1)}, GATES, draws=2,
                                                   sinks=with_sinks)[1] if cell.group == "bottom"}
        for with_sinks in ((), (sink,))
    }  # fmt: skip
    assert bottom[()] == {(sink,)} and (sink,) not in bottom[(sink,)]
    with pytest.raises(InputError, match="8 of 10 heads are BOS sinks, and the other 2 are too few to suppress 2 "):
        design(scores, {"top2": rank_heads(scores, 2)}, GATES, draws=2, sinks=sorted(scores)[:8])


def test_the_smallest_gate_changes_something() -> None:
    with pytest.raises(InputError, match=r"gates \[1.0, 2.0\]: random sets .* give one below 1"):
        Suppress(gates=(1.0, 2.0))
