"""PLS' page: planted rows whose cells are known, figures that draw the values of the table, a run that is measured."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.papers.page import Page
from streamscope.papers.paper import OWN, Run, complete, load
from streamscope.papers.pls import figures, tables
from tests.papers.plain import committed_mean

estimates = partial(committed_mean, "pls")
EARLY = {"pls": [0.41, 0.33, 0.38], "c2": [0.12, 0.2, 0.07]}


def rows(values: dict[str, list[float]], quantity: str, part: str = "", unit: str = "share of tokens") -> pd.DataFrame:
    return complete(
        pd.DataFrame(
            {"grid": OWN, "arm": arm, "seed": seed, "quantity": quantity, "part": part, "value": value, "unit": unit,
             "parameters": 5e5, "tokens": 3e6, "text": "stories"}
            for arm, one in values.items() for seed, value in enumerate(one)
        )
    )  # fmt: skip


def line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {start} "))


def test_a_column_without_printed_cells_is_one_column_written_as_those_beside_it() -> None:
    page = Page("pls", rows({"pls": [0.5, 0.4], "c2": [0.3, 0.4]}, "clusters.coverage", "HDBSCAN"))
    text = page.table("C.5")
    assert text.splitlines()[0] == "|  | PLS, printed | measured (95 %) | C2, measured (95 %) |"
    assert line(text, "Coverage").endswith("| 46.0% | 45.0 % (0.0 % to 100.0 %) | 35.0 % (0.0 % to 98.5 %) |")


def diamonds(axis: object) -> list[float]:
    """What the filled or empty diamonds of an axis stand at."""
    found = [line for line in axis.lines if line.get_marker() == "D" and len(line.get_ydata())]  # type: ignore[attr-defined]
    return [float(line.get_ydata()[0]) for line in found]


def test_figure_1_draws_the_agreement_and_the_printed_index() -> None:
    axis = figures.agreement(Page("pls")).axes[0]
    parts = [("ari", "k-means"), ("ari", "HDBSCAN"), ("ari.clustered", "HDBSCAN")]
    expected = [estimates(arm, *part) for arm in ("pls", "c2") for part in parts]
    assert [bar.get_height() for bar in axis.patches] == pytest.approx(expected)
    assert diamonds(axis) == [0.008, 0.008]
    page = Page("pls")  # the map has the tokens that the table counts
    drawn, coloured = figures.clusters(page).axes[0], figures.strata(page).axes[0].collections[0]
    tokens = sum(len(points.get_offsets()) for points in drawn.collections)
    table = page.rows[page.rows["quantity"].str.startswith("map.")].set_index(["quantity", "x"])["value"]
    assert tokens == table["map.tokens"].item()
    assert len(drawn.collections[0].get_offsets()) / tokens == pytest.approx(table["map.noise"].item())
    assert (coloured.get_array() == 0).mean() == pytest.approx(table["map.depth", 0])
    with pytest.raises(InputError, match=r"python -m features\.cluster"):
        figures.clusters(Page("pls", rows(EARLY, "depth")))


def test_figure_2_draws_the_shares_each_seed_and_table_1() -> None:
    axes = figures.depth(Page("pls")).axes
    for axis, arm in zip(axes, ("pls", "c2"), strict=False):
        assert [bar.get_height() for bar in axis.patches] == pytest.approx(
            [estimates(arm, "depth", "", k) for k in range(7)]
        )
        assert sum(bar.get_height() for bar in axis.patches) == pytest.approx(1)
        points = [line for line in axis.lines if line.get_marker() == "o"]
        assert len(points) == 7 and all(len(line.get_ydata()) == 4 for line in points), "four seeds are four points"
    assert diamonds(axes[2]) == pytest.approx([0.26, 0.48, 0.26, 0.05, 0.53, 0.42])
    keys = axes[2].get_legend_handles_labels()[1]
    assert "printed in the paper" in keys and "one training seed" in keys


def test_figure_3_draws_the_curves_and_the_printed_ratio() -> None:
    axes = figures.steering(Page("pls")).axes
    means = [line for line in axes[0].lines if line.get_linewidth() == 1.8]
    for line, arm in zip(means, ("pls", "c2"), strict=True):
        expected = [100 * estimates(arm, "curve", "capitalization, entity heads", scale) for scale in tables.SCALES]
        assert list(line.get_ydata()) == pytest.approx(expected)
    assert set(diamonds(axes[-1])) == {4.0}


def test_figure_4_draws_the_matrix_table_2_and_the_spread() -> None:
    axes = figures.modularity(Page("pls")).axes
    for axis, arm in zip(axes, ("pls", "c2"), strict=False):
        expected = [[100 * estimates(arm, "effect", f"{task}, {group} heads") for group in figures.COLUMNS]
                    for task in tables.TASKS]  # fmt: skip
        assert np.asarray(axis.images[0].get_array()) == pytest.approx(np.array(expected))
    assert diamonds(axes[2]) == pytest.approx([-11.4, -2.0, 1.15, -2.1, -0.3, 0.05])
    texts = [text.get_text() for text in axes[3].texts]
    assert texts[0].endswith(f"σ {100 * estimates('pls', 'spread', 'winograd, entity heads'):.2f} % (printed 6.32 %)")
    steps = [patch.get_data().values.sum() for patch in axes[3].patches]
    assert steps == pytest.approx([50, 50]), "all prompts of a model are in its histogram"


class Rows(dict[tuple[str, str, float], float]):
    """Stands for a run: keeps what is added."""

    def add(self, quantity: str, unit: str, value: float, part: str = "", x: float = -1.0) -> None:
        self[quantity, part, float(x)] = float(value)


def test_routing_compares_one_group_on_its_task_with_the_same_group_on_others() -> None:
    size = {("capitalization", "entity"): 0.10, ("capitalization", "anchor"): 0.02, ("gender", "entity"): 0.03,
            ("gender", "anchor"): 0.07, ("winograd", "entity"): 0.11}  # fmt: skip
    found = Rows()
    tables._add_routing(found, size)  # type: ignore[arg-type]
    assert found["effect.own", "capitalization, entity heads", -1] == pytest.approx(0.10 - 0.03)
    assert found["effect.own", "gender, anchor heads", -1] == pytest.approx(0.07 - 0.02)
    own, other = (0.10 + 0.07) / 2, (0.03 + 0.02) / 2
    assert found["diagonality", "heads by attention", -1] == pytest.approx(own - other)
    assert found["smear", "entity heads", -1] == pytest.approx(0.03 - 0.10)
    assert found["effect.largest", "capitalization", -1] == pytest.approx(0.10 - 0.11)


def test_a_curve_has_its_range_and_no_rank_correlation_where_nothing_moves() -> None:
    found, flat = Rows(), Rows()
    tables._add_curve(found, "p", pd.Series({0.0: 0.5, 0.5: 0.3, 1.0: 0.2, 1.5: 0.25}))  # type: ignore[arg-type]
    assert found["curve.range", "p", -1] == pytest.approx(0.3)
    assert found["curve.monotonicity", "p", -1] == pytest.approx(0.8)  # Σ d² of the ranks is 18: 1 − 6 · 18 / 60
    assert found["curve.change", "p", 1.5] == pytest.approx(0.05)
    tables._add_curve(flat, "p", pd.Series({0.0: 0.2, 1.0: 0.2}))  # type: ignore[arg-type]
    assert flat["curve.range", "p", -1] == 0 and ("curve.monotonicity", "p", -1) not in flat


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.30, 0.10, 0.05, 0.05, 0.10, 0.0, 0.40], 0.30 - 0.05),  # two peaks, the early one lower
        ([0.26, 0.05, 0.20, 0.12, 0.11, 0.0, 0.26], 0.26 - 0.11),  # as the paper draws PLS
        ([0.50, 0.20, 0.12, 0.08, 0.06, 0.0, 0.04], 0.04 - 0.06),  # falls all the way
        ([0.02, 0.03, 0.20, 0.30, 0.20, 0.0, 0.25], 0.03 - 0.20),  # one peak in the middle, no early one
        ([0.10, 0.00, 0.00, 0.10, 0.20, 0.0, 0.60], 0.10 - 0.00),
    ],
)
def test_a_second_peak_stands_above_the_valley(shares: list[float], expected: float) -> None:
    """k* = L−1 never occurs, by the rule, and is no valley."""
    assert tables.second_peak(np.array(shares)) == pytest.approx(expected)


def test_clusters_are_counted_by_size_and_depth() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 4 + [-1] * 8)
    k_star = np.array([0] * 5 + [0] * 3 + [6] * 4 + [2] * 8)
    found = Rows()
    tables._add_clusters(found, labels, k_star, 0.7)  # type: ignore[arg-type]
    assert found["clusters", "HDBSCAN", -1] == 3 and found["clusters.largest", "HDBSCAN", -1] == 5
    assert found["clusters.coverage", "HDBSCAN", -1] == pytest.approx(0.6)
    assert found["clusters.flat", "HDBSCAN", -1] == 1
    assert found["clusters.size", "HDBSCAN, largest 2", 0] == 3 and found["clusters.at", "HDBSCAN", 6] == 1


def test_depths_are_those_of_a_naive_loop(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from streamscope.instruments.data import Tokens
    from streamscope.instruments.open_data import open_data

    monkeypatch.setattr(tables, "TOKENS", 60)
    run = Run(tiny_run)
    tables.depths(run)
    found, n = [], run.model.config.n_layers
    shards = open_data(Tokens(data=tables.HELD_OUT, max_tokens=60), run.model).shards
    for document in range(shards.n_documents):
        ids = shards.document(document)[: run.model.config.n_ctx + 1].tolist()
        with torch.no_grad():
            logits = run.model.layer_logits(torch.tensor([ids[:-1]]))
        best = [logits[0, :, layer].argmax(-1).tolist() for layer in range(n)]
        for t in range(len(ids) - 1):
            k = next(k for k in range(n) if all(best[j][t] == best[-1][t] for j in range(k, n)))
            found.append(n if k == n - 1 else k)
        if len(found) >= 60:
            break
    shares = {row["x"]: row["value"] for row in run.rows if row["quantity"] == "depth" and row["part"] == ""}
    assert [shares[k] for k in range(n + 1)] == pytest.approx([found[:60].count(k) / 60 for k in range(n + 1)])
    parts = [row["value"] for row in run.rows if row["quantity"] == "depth" and row["part"]]
    assert len(parts) == 3 and sum(parts) == pytest.approx(1)


@pytest.mark.slow
def test_the_bundled_model_measured_again_gives_the_rows_of_the_table() -> None:
    """Table 2, Figures 3 and 4 of stories/pls were measured by other code, from the same instruments."""
    run = Run(Path("stories/pls"))
    tables.groups(run)
    table = load("pls")
    table = table[(table["grid"] == "zoo") & (table["arm"] == "pls")].fillna({"x": -1.0})
    known = table.set_index(["quantity", "part", "x"])["value"].to_dict()
    again = {(row["quantity"], row["part"], -1.0 if np.isnan(row["x"]) else row["x"]): row["value"] for row in run.rows}
    both = [key for key in again if key in known]
    assert {key[0] for key in both} >= {"effect", "spread", "kept", "curve", "cases", "diagonality", "task.gender"}
    assert [again[key] for key in both] == pytest.approx([known[key] for key in both], abs=5e-6)


def test_pairs_are_ablated_by_the_heads_of_their_other_half(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PROMPTS", 40)
    monkeypatch.setattr(tables, "CATEGORIES", {"gender": "gender"})
    run = Run(tiny_run)
    monkeypatch.setattr(run, "pairs", run.suite("stories", 120))
    tables.planted(run)
    found = {(row["quantity"], row["part"], row["x"]): row["value"] for row in run.rows if row["x"] == row["x"]}
    single = {(row["quantity"], row["part"]): row["value"] for row in run.rows if row["x"] != row["x"]}
    part = "gender pairs, antecedent heads"
    levels = [found["curve", part, scale] for scale in tables.SCALES]
    assert found["curve", part, 1.0] - found["curve.change", part, 1.5] != found["curve", part, 1.5]
    assert single["effect", part] == pytest.approx(found["curve", part, 0.0] - found["curve", part, 1.0])
    assert single["curve.range", part] == pytest.approx(max(levels) - min(levels)) and single["spread", part] > 0
    assert 0 <= single["entity.above", "pairs"] <= 2


def test_a_measured_cell_is_not_written_as_a_printed_ratio_of_the_same_quantity() -> None:
    spread = rows(
        {"pls": [0.21, 0.25], "c2": [0.08, 0.1]}, "spread", "gender pairs, antecedent heads", "sd of a probability"
    )
    text = line(Page("pls", spread).table("Planted pairs"), "Gender: σ over prompts")
    assert text.startswith("| Gender: σ over prompts | 0.230 (") and "| 0.090 (" in text and "| 10 | 3 (" in text
