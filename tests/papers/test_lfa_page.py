"""The numbers of LFA's tables and figures against plain loops over prompts and heads, and figures against the table."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.instruments.stats.held_out import halves
from streamscope.papers.lfa import figures, tables
from streamscope.papers.page import Page
from streamscope.papers.paper import Run
from streamscope.probes.pds import Pds
from tests.papers.plain import by_pair, looks, moved, small


@pytest.fixture(scope="module")
def run() -> Run:
    return small("stories/lfa")


def rows_of(run: Run, measure: Any) -> dict[tuple[str, str, float], float]:
    run.rows.clear()
    measure(run)
    return {(r["quantity"], r["part"], -1.0 if np.isnan(r["x"]) else r["x"]): r["value"] for r in run.rows}


def test_heads_are_those_of_plain_loops(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "THRESHOLD", 0.02)
    found, seen = rows_of(run, tables.heads), looks(run)
    pairs, places = by_pair(run), list(seen[0])
    assert len(pairs) > 5
    pds = {place: abs(value) for place, value in moved(seen, [*pairs.values()]).items()}
    attention = {place: np.mean([one[place]["target"] for one in seen]) for place in places}
    for layer, head in places:
        name = f"L{layer}.H{head}"
        assert found["pds.head", name, -1] == pytest.approx(pds[layer, head], abs=1e-6)
        assert found["top1.head", name, -1] == pytest.approx(np.mean([one[layer, head]["hit"] for one in seen]))
        assert found["attention.head", name, -1] == pytest.approx(attention[layer, head], abs=1e-6)
    assert found["pds.mean", "", -1] == pytest.approx(np.mean(list(pds.values())), abs=1e-6)
    over = [place for place, value in pds.items() if value > 0.02]
    assert {4, 5} <= {layer for layer, _ in over} and min(over)[0] < 4, "heads on both sides of the limit"
    assert found["pds.over.late", "", -1] == sum(layer >= 4 for layer, _ in over)
    assert found["pds.over.early", "", -1] == sum(layer < 4 for layer, _ in over)
    for layer in range(6):
        assert found["pds.over", f"L{layer}", -1] == sum(at == layer for at, _ in over)
    largest = sorted(attention.values(), reverse=True)
    assert found["attention.best", "", -1] == pytest.approx(largest[0], abs=1e-6)
    assert found["attention.tenth", "", -1] == pytest.approx(largest[9], abs=1e-6)
    shares, numbers = [], {}
    for i, prompt in enumerate(run.pairs.prompts):
        numbers.setdefault(prompt.pair, []).append(i)
    for pair in numbers.values():
        hits = [{place for place in places if seen[i][place]["hit"]} for i in pair]
        if some := set.union(*hits):
            shares.append(len(set.intersection(*hits)) / len(some))
    assert found["stability", "", -1] == pytest.approx(np.mean(shares))


def test_gates_turn_down_the_heads_that_the_other_half_ranks() -> None:
    run = small("stories/cfm")
    found, seen, pairs = rows_of(run, tables.gates), looks(run), by_pair(run)
    table = run.probe(Pds())
    table = table[table["category"] == "competing-nouns"]
    half_of = dict(zip(table["pair"], halves(table, 0)[0], strict=True))
    places = list(seen[0])
    whole, gone, chosen = [], [], []
    for half in (0, 1):
        here = [orders for pair, orders in pairs.items() if half_of[pair] == half]
        there = [i for pair, orders in pairs.items() if half_of[pair] != half for i in orders.values()]
        changes = moved(seen, here)
        best = sorted(changes, key=lambda place: -abs(changes[place]))[:3]
        chosen.append({*best})
        after = looks(run, best)
        for values, shown in ((whole, seen), (gone, after)):
            values.append(np.mean([shown[i][p]["target"] - shown[i][p]["distractor"] for i in there for p in places]))
    assert found["gate.sps", "top1", 1.0] == pytest.approx(np.mean(whole), abs=1e-6)
    assert chosen[0] != chosen[1], "else it does not matter which half ranks"
    assert found["gate.sps", "top3", 0.0] == pytest.approx(np.mean(gone), abs=1e-5)
    assert found["gate.sps", "top3", 1.0] == found["gate.sps", "top1", 1.0]
    assert found["gate.preference", "top3", 0.0] != found["gate.preference", "top1", 0.0]


def test_bars_and_curves_are_those_of_the_table() -> None:
    page = Page("lfa")
    bars = [bar.get_height() for bar in figures.layers(page).axes[0].patches]
    arms = page.present(figures.ARMS, "pds.over")
    expected = [page.estimate(arm, "pds.over", f"L{layer}").mean for arm in arms for layer in figures.LAYERS]
    assert bars == pytest.approx(expected)
    axis = figures.three_heads(page).axes[1]
    curve = next(line for line in axis.get_lines() if line.get_label() == "LFA")
    means = [page.estimate("lfa", "gate.preference", "top3", gate).mean for gate in tables.GATES]
    assert list(curve.get_ydata()) == pytest.approx(means) and list(curve.get_xdata()) == list(tables.GATES)


def test_heads_of_a_map_are_ranked_in_their_layer() -> None:
    rows = pd.DataFrame({
        "seed": [0, 0, 1, 1] * 2, "part": ["L0.H0", "L0.H1"] * 2 + ["L1.H0", "L1.H1"] * 2,
        "value": [0.1, 0.4, 0.5, 0.2, 0.0, 0.3, 0.7, 0.1],
    })  # fmt: skip
    ranked = figures.drawing.by_rank(rows)
    assert ranked[0] == pytest.approx([0.45, 0.15]) and ranked[1] == pytest.approx([0.5, 0.05])


@pytest.mark.parametrize("place", figures.FIGURES)
def test_every_figure_is_drawn_from_the_committed_rows(place: str, tmp_path: Path) -> None:
    Page("lfa").draw(place, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size > 10_000
