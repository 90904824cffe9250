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
from streamscope.instruments.open_data import open_data
from streamscope.instruments.prompts.alignment import Aligned, align, given_prompts
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import rank_among
from streamscope.instruments.table import Table
from streamscope.interventions import Ablate, Suppress
from streamscope.interventions.controls import random_sets
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import observe_loss, observe_prompts
from streamscope.interventions.suppress.measure import Cell, add_measure, design, heads_over, rank_heads, tables
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
    net.load_state_dict(one.state_dict(), strict=False)
    first, second = net.blocks[0].attn, net.blocks[1].attn
    tools = [planted.VOCABULARY.index(word) for word in planted.TOOLS]
    with torch.no_grad():
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
        net.unembed.weight[tools, 3], net.unembed.weight[tools, 4] = 1.0, -1.0
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
    assert rows(result.table().frame, **where)["delta"].tolist() == [0.0] * 10
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


def test_what_cannot_change_is_undefined_and_not_zero(found: tuple, net: Any, aligned: Aligned) -> None:
    _, result, _ = found
    where = {"selection": "last", "group": "selected", "measure": "sps"}
    for name, columns in (
        *((name, ("delta", "delta_p", "d", "delta_low", "delta_p_holm")) for name in ("effects", "parts")),
        ("curves", ("slope", "r2")), ("asymmetry", ("asymmetry",)),
    ):  # fmt: skip
        assert rows(result.table(name).frame, **where)[list(columns)].isna().all(axis=None)
        for column in {*columns} & {"delta", "d", "slope", "r2", "asymmetry"}:
            assert all("by construction" in why for why in reasons(result, name, column, **where))
    effects, parts = (result.table(name).frame for name in ("effects", "parts"))
    assert (rows(effects, selection="last", group="selected", measure="coherence")["delta"] == 0).all()
    assert rows(parts, selection="semantic", group="selected", part="L0")["delta"].isna().all()
    assert np.isnan(rows(result.table("controls").frame, selection="last", measure="sps")["p_rank"].item())

    def ablated(*heads: Head) -> Table:
        how = Ablate(heads=tuple(head.label for head in heads), together=True, measures=("sps",))
        return how.measure(net, given_prompts(aligned, net)).table("sps")

    single, pair = ablated(READER), ablated(SEMANTIC, READER)
    assert np.isnan(single.frame["delta"][0]) and "by construction" in single.missing[0, "delta"]
    assert np.isfinite(pair.frame["delta"][0]) and np.isnan(pair.frame["interaction"][0])
    assert "by construction" in pair.missing[0, "interaction"]
    idle, two, three = (
        ablated(*heads).frame["interaction"][0]
        for heads in ((SEMANTIC, Head(0, 2)), (RECENCY, SEMANTIC), (RECENCY, SEMANTIC, READER))
    )
    assert idle == pytest.approx(0, abs=1e-6), "L0.H2 writes nothing"
    assert three == pytest.approx(two, abs=1e-9), "the reader is in the last layer"


def test_controls_rank_the_selected_heads_among_heads_that_were_not_selected(found: tuple) -> None:
    cells, result, _ = found
    for cell in (c for c in cells if c.group == "random"):
        chosen = next(c.heads for c in cells if c.selection == cell.selection)
        assert not set(cell.heads) & set(chosen)
    controls = result.table("controls").frame
    row = rows(controls, selection="semantic", measure="coherence").iloc[0]
    assert row["draws"] == 9  # all other single heads
    assert row["random"] == pytest.approx(0, abs=1e-12)
    assert row["above"] == row["selected"] == pytest.approx(-shift(1), abs=1e-5)
    assert row["p_rank"] == row["p_rank_min"] == pytest.approx(2 / 10)
    assert rows(controls, selection="semantic", measure="sps")["draws"].item() == 4  # those of layer 0
    others = rows(controls, selection="top1", measure="coherence")  # one of nine writes, and is gated fully
    assert others["random"].item() == pytest.approx(-shift(1) / 9, abs=1e-5)


def test_curves_and_asymmetry(found: tuple) -> None:
    _, result, _ = found
    where = {"selection": "semantic", "group": "selected", "measure": "coherence"}
    curve, sides = (rows(result.table(name).frame, **where).iloc[0] for name in ("curves", "asymmetry"))
    y = np.array([shift(g) - shift(1) for g in GATES])
    (slope, intercept), bend = np.polyfit(GATES, y, 1), np.polyfit(GATES, y, 2)
    residual = y - np.polyval((slope, intercept), GATES)
    expected = {"slope": slope, "intercept": intercept, "curvature": bend[0], "departure": np.abs(residual).max()}
    assert curve[[*expected]].to_dict() == pytest.approx(expected, abs=1e-5)
    assert curve["r2"] == pytest.approx(1 - residual.var() / y.var(), abs=1e-4)
    assert sides[["first", "last", "asymmetry"]].tolist() == pytest.approx([-shift(1), -shift(1), 0], abs=1e-5)
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


def test_ablate_ranks_by_pds_and_gate_one_is_exactly_the_baseline(net: Any, aligned: Aligned) -> None:
    how = Ablate(heads=("top1:pds", "L0.H1", "L1.H0"), measures=("sps", "coherence"), scale=(1.0, 0.0))
    found = how.measure(net, given_prompts(aligned, net))
    assert list(found.tables) == ["sps", "coherence"]  # the loss was not asked for
    for table in (one.frame for one in found.tables.values()):
        assert (table.loc[table["scale"] == 1, "delta"].dropna() == 0.0).all() and len(table) == 6
    deltas = rows(found.table("coherence").frame, scale=0.0).set_index("head")["delta"]
    assert deltas.to_dict() == pytest.approx({"L0.H0": 0, "L0.H1": -shift(1), "L1.H0": 0}, abs=1e-5)


def test_bos_sinks_are_no_bottom_heads(net: Any, aligned: Aligned) -> None:
    """A head that attends to BOS alone has the smallest PDS; it is named, and another one is the control."""
    sink = Head(0, 0)

    def to_bos(pattern: Any, hook: Any) -> Any:
        pattern = pattern.clone()
        pattern[:, sink.head] = torch.eye(pattern.shape[-1])[0]
        return pattern

    with edit(net, {f"blocks.{sink.layer}.attn.hook_pattern": to_bos}):
        found = Pds().measure(net, given_prompts(aligned, net))
    assert found.about["sinks"] == [sink.label] and "1 of" in found.table().title
    scores = head_scores(found.table().frame, "pds")

    def bottom(k: int, sinks: tuple[Head, ...]) -> set[tuple[Head, ...]]:
        cells = design(scores, {f"top{k}": rank_heads(scores, k)}, GATES, draws=2, sinks=sinks)[1]
        return {cell.heads for cell in cells if cell.group == "bottom"}

    assert bottom(1, ()) == {(sink,)} and (sink,) not in bottom(1, (sink,))
    with pytest.raises(InputError, match="8 of 10 heads are BOS sinks, and the other 2 are too few to suppress 2 "):
        bottom(2, tuple(sorted(scores)[:8]))


def test_random_sets_are_distinct_seeded_and_others() -> None:
    every = [Head(layer, h) for layer in range(6) for h in range(6)]
    own = every[:5]
    sets = random_sets(every, own, 5, 39, 3)
    assert len(set(sets)) == 39
    assert all(len(set(s)) == 5 and set(s) <= set(every) and set(s) != set(own) for s in sets)
    assert 0.05 < np.mean([head in s for s in sets for head in own]) < 0.25  # 5 of 36, as any heads
    assert sets == random_sets(every, own[::-1], 5, 39, 3) != random_sets(every, own, 5, 39, 4)
    assert random_sets(every[:4], every[:1], 1, 39, 0) == [(head,) for head in every[1:4]]
    assert len(random_sets(every[:4], every[:2], 2, 39, 0)) == 5
    for k in (4, 5):
        with pytest.raises(InputError, match="cannot draw"):
            random_sets(every[:4], every[:k], k, 39, 0)


@pytest.mark.slow
def test_the_rank_of_heads_chosen_at_random_is_uniform() -> None:
    """Effects of heads add up, the selection knows nothing of them: p_rank rejects 5 % of the time, for every k."""
    every = [Head(layer, h) for layer in range(6) for h in range(6)]
    rng = np.random.default_rng(0)
    for k in (2, 3, 5, 10):
        rejected = 0
        for seed in range(1000):
            effects = dict(zip(every, rng.standard_t(3, 36), strict=True))
            own = [every[i] for i in rng.choice(36, k, replace=False)]
            draws = [sum(effects[head] for head in s) for s in random_sets(every, own, k, 39, seed)]
            rejected += rank_among(sum(effects[head] for head in own), draws).p <= 0.05
        assert 0.03 <= rejected / 1000 <= 0.07


def test_selection_by_pds() -> None:
    scores = {Head(0, i): x for i, x in enumerate([0.1, 0.3, 0.3, 0.0, 0.05, 0.0])}
    assert rank_heads(scores, 2) == (Head(0, 1), Head(0, 2))
    assert rank_heads(scores, 2, "bottom") == (Head(0, 3), Head(0, 5))
    assert heads_over(scores, 0.075) == (Head(0, 0), Head(0, 1), Head(0, 2))
    values = np.array(list(scores.values()))
    own = values.mean() + values.std(ddof=1)
    assert [scores[h] for h in heads_over(scores, "own")] == [x for x in values if x > own]
    for select, line in (
        (lambda: heads_over(scores, 0.5), "no head has PDS over 0.5.*L0.H1"),
        (lambda: heads_over(scores, -1.0), "leave too few"),
        (lambda: rank_heads(scores, 4), "k=4 of 6 heads"),
    ):
        with pytest.raises(InputError, match=line):
            select()


@pytest.mark.parametrize(
    ("gates", "line"),
    [*((gates, "gates") for gates in ((1.0,), (0.0, 0.0), (float("nan"),), (1.0, float("inf")))),
     ((1.0, 2.0), r"gates \[1.0, 2.0\]: random sets .* give one below 1")],
)  # fmt: skip
def test_gates_that_make_no_protocol(gates: tuple[float, ...], line: str) -> None:
    with pytest.raises(InputError, match=line):
        Suppress(gates=gates)
