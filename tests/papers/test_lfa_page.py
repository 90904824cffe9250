"""The numbers of LFA's tables and figures against plain loops over prompts and heads, and figures against the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.instruments.stats.held_out import halves
from streamscope.models.checkpoint import run_folder
from streamscope.models.hooks import capture
from streamscope.papers import paper as measuring
from streamscope.papers.lfa import figures, tables
from streamscope.papers.page import Page
from streamscope.papers.paper import Run
from streamscope.probes.pds import Pds

Place = tuple[int, int]


def small(name: str) -> Run:
    """A bundled model with forty pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "PAIRS", 40)
        found = Run(run_folder(name))
        assert len(found.pairs.prompts) < 100, "read once, while it is small"
    return found


@pytest.fixture(scope="module")
def run() -> Run:
    return small("stories/lfa")


def rows_of(run: Run, measure: Any) -> dict[tuple[str, str, float], float]:
    run.rows.clear()
    measure(run)
    return {(r["quantity"], r["part"], -1.0 if np.isnan(r["x"]) else r["x"]): r["value"] for r in run.rows}


def looks(run: Run, without: Sequence[Place] = ()) -> list[dict[Place, dict[str, float]]]:
    """Of each prompt and head: attention of the last query token to the right noun and its competitor, and whether the
    right noun has the largest of all keys. `without`: heads whose z is set to 0."""
    found = []

    def silence(z: Any, hook: Any) -> Any:
        z = z.clone()
        for layer, head in without:
            if hook.name == f"blocks.{layer}.attn.hook_z":
                z[:, :, head] = 0
        return z

    handles = [(f"blocks.{layer}.attn.hook_z", silence) for layer in {layer for layer, _ in without}]
    for ids, at in zip(run.pairs.tokens, run.pairs.positions, strict=True):
        tokens = torch.tensor([list(ids)])
        with torch.no_grad(), capture(run.model, "blocks.*.attn.hook_pattern") as patterns:
            run.model.run_with_hooks(tokens, fwd_hooks=handles) if handles else run.model(tokens)
        here = {}
        for layer, pattern in enumerate(patterns.values()):
            for head in range(pattern.shape[1]):
                row = pattern[0, head, max(at["query"])]
                others = [k for k in range(max(at["query"]) + 1) if k not in at["target"]]
                here[layer, head] = {
                    "target": float(sum(row[k] for k in at["target"])),
                    "distractor": float(sum(row[k] for k in at["distractor"])),
                    "hit": float(max(row[k] for k in at["target"]) > max(row[k] for k in others)),
                }
        found.append(here)
    return found


def by_pair(run: Run) -> dict[str, dict[str, int]]:
    """Pair -> order -> number of the prompt, pairs of competing nouns."""
    found: dict[str, dict[str, int]] = {}
    for i, prompt in enumerate(run.pairs.prompts):
        if prompt.category == "competing-nouns":
            found.setdefault(prompt.pair, {})[prompt.order] = i
    return {pair: orders for pair, orders in found.items() if len(orders) == 2}


def test_heads_are_those_of_plain_loops(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "THRESHOLD", 0.02)
    found, seen = rows_of(run, tables.heads), looks(run)
    pairs, places = by_pair(run), list(seen[0])
    assert len(pairs) > 5
    pds = {
        place: abs(np.mean([
            seen[orders["target_last"]][place]["target"] - seen[orders["target_first"]][place]["target"]
            for orders in pairs.values()
        ])) for place in places
    }  # fmt: skip
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
        moved = {
            place: abs(np.mean([
                seen[orders["target_last"]][place]["target"] - seen[orders["target_first"]][place]["target"]
                for orders in here
            ])) for place in places
        }  # fmt: skip
        best = sorted(moved, key=lambda place: -moved[place])[:3]
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
