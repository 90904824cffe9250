"""Figures and tables of the papers: drawn of the shipped tables with their numbers, refused in one line elsewhere."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.models.config import Hdpl, presets
from streamscope.models.hooks import capture
from streamscope.models.make import build
from streamscope.models.training.config import Training, with_recipe
from streamscope.papers import dst, hdpl, krom, lfa, pls
from streamscope.papers.claims import HERE
from streamscope.papers.claims.ledger import PAPERS
from streamscope.papers.claims.ledger import read as ledger
from streamscope.papers.dst.claims import TABLE5
from streamscope.papers.figures.lfa import NAMES, QUANTITIES, arms
from streamscope.papers.figures.options import RESULTS
from streamscope.papers.figures.requests import (
    arranged,
    cells,
    claims_of,
    draw,
    figures_of,
    layouts,
    measured_cell,
    others,
    table_of,
)
from streamscope.papers.figures.style import GREYS, Style

COMMANDS = {"dst": dst, "hdpl": hdpl, "krom": krom, "lfa": lfa, "pls": pls}
DRAWN = [(paper, n) for paper in PAPERS for n in figures_of(paper)]
LOOKS = ("name", "marker", "line", "showlegend", "legendgroup")
"""What tells one series from another in a legend; the rest is what it shows and where."""


def traces(paper: str, number: str, **style: object) -> dict[str, object]:
    """The traces of a figure by name."""
    return {one.name or str(i): one for i, one in enumerate(draw(figures_of(paper)[number], Style(**style)).data)}


@pytest.mark.parametrize(("paper", "number"), DRAWN, ids=str)
def test_every_figure_that_is_said_to_be_drawn_is_drawn(paper: str, number: str) -> None:
    for style in (Style(), Style("page", grey=True)):
        found = draw(figures_of(paper)[number], style)
        width = "page" if figures_of(paper)[number].wide else style.width
        assert found.layout.width == {"column": 3.3, "page": 6.9}[width] * 96
        assert found.data and all(
            any(len(part) for part in (one.x, one.y, getattr(one, "z", None)) if part is not None) for one in found.data
        )
        colours = [one.line.color for one in found.data if one.type == "scatter" and one.mode == "lines+markers"]
        assert not style.grey or set(colours) <= set(GREYS)


@pytest.mark.parametrize(("paper", "number"), DRAWN, ids=str)
def test_every_series_of_a_figure_is_named_once(paper: str, number: str) -> None:
    """The printed gated row of DST was drawn as that of dst-dense+gate and once more as gated (dense)."""
    drawn = draw(figures_of(paper)[number], Style())
    for one in (*drawn.select_xaxes(), *drawn.select_yaxes()):
        assert one.matches != one.plotly_name.replace("axis", ""), "a warning in the console"
    data = drawn.data
    named = [one.name for one in data if one.name and one.showlegend is not False]
    assert len(set(named)) == len(named)
    values = [json.dumps(json.loads(one.to_json()) | dict.fromkeys(LOOKS)) for one in data]
    assert len(set(values)) == len(values), "one series under two names"


def test_values_are_those_of_the_tables() -> None:
    table = pd.read_parquet(RESULTS / "dst_long/amplification.parquet")
    mean = table[table["preset"] == "dst-kron"].groupby("alpha")["loss"].mean()
    found = traces("dst", "2")
    assert np.allclose(found["dst-kron"].y, mean) and list(found["dst-kron"].x) == list(mean.index)
    kind = "dst-ind+frozen_token"
    assert list(found[f"{kind}, paper"].y) == list(TABLE5[kind])
    assert "dst-kron, paper" not in found, "Table 5 has no token-factor model"
    of_panel = {axis: [one.name for one in draw(figures_of("dst")["2"], Style()).data if one.xaxis == axis and one.y[0]]
                for axis in ("x", "x2")}  # fmt: skip
    both = {
        name: [f"{name}+frozen_token", f"{name}+frozen_token, paper", name]
        for name in ("dst-dense", "dst-kron", "dst-ind", "dst-dense+gate")
    }
    assert of_panel == {
        "x": [*both["dst-dense"], *both["dst-kron"], *both["dst-ind"]],
        "x2": [*both["dst-dense"], *both["dst-dense+gate"]],
    }, "no other number of heads, no snapshot"
    other = {"amplification": table[table["preset"] == "dst-full-ind"]}
    drawn = [one.name for one in figures_of("dst")["2"].draw(other, Style()).data]
    assert "dst-full-ind" in drawn and all(one.endswith("paper") for one in drawn if one != "dst-full-ind")

    heads = pd.read_parquet(RESULTS / "lfa_long/heads.parquet")
    maps = draw(figures_of("lfa")["7"], Style()).data
    one = heads[(heads["preset"] == "lfa") & (heads["head"] == "L4.H2")].set_index("seed")["pds"]
    assert [first.z[4][2] for first in maps[: len(one)]] == one.to_list(), "a map for each seed"
    printed = heads[~heads["preset"].str.contains("+", regex=False)]
    assert len(one) > 2 and len(maps) == len(printed[["preset", "seed"]].drop_duplicates())
    shown = sum(len(one.x) for one in draw(figures_of("lfa")["4"], Style()).data)
    assert shown == len(heads[~heads["preset"].str.contains("+", regex=False)])

    depth = pd.read_parquet(RESULTS / "pls_long/depth.parquet")
    pls_bars, pls_ranges, _, c2_bars, c2_ranges, _ = draw(figures_of("pls")["2"], Style()).data
    for bars, ranges, preset in ((pls_bars, pls_ranges, "pls"), (c2_bars, c2_ranges, "c2")):
        mean = depth[depth["preset"] == preset].groupby("depth")["share"].mean()
        assert np.allclose(bars.y, mean) and np.isclose(sum(bars.y), 1, atol=1e-3)
        assert np.allclose(ranges.y, [mean[:2].sum(), mean[2:5].sum(), mean[5:].sum()])

    factors = pd.read_parquet(RESULTS / "krom_eighth/factors.parquet")
    arm = (factors["preset"] == "kromcanon") & (factors["storage"] == "fp32") & (factors["decay"] > 0)
    cell = factors[arm & (factors["b_res"] == -2) & (factors["module"] == "blocks.2.mlp_hc") & (factors["factor"] == 1)]
    assert set(cell["optimizer"]) == {"adamw"} and len(cell) == 3, "three seeds"
    *_, heat = draw(figures_of("krom")["heat"], Style()).data
    place = list(heat.y).index("2.mlp_hc")
    assert np.isclose(heat.z[place][1], cell["swap"].mean())
    assert np.isnan(heat.z[list(heat.y).index("0.attn_hc")]).all(), "what cannot act is left blank"
    bars = [one for one in draw(figures_of("krom")["swap"], Style()).data if one.name == "largest, with dynamics"]
    assert np.isclose(bars[-1].y[list(bars[-1].x).index("2.mlp 1")], cell["swap_best"].mean())


@pytest.mark.parametrize("name", ["lfa_long", "lfa_eighth", "lfa_tinystories"])
def test_intervals_of_shares_and_counts_are_drawn_inside_their_range(name: str) -> None:
    """Means over two or three seeds: of heads over the threshold those of t began at −4."""
    tables = {one: pd.read_parquet(RESULTS / f"{name}/{one}.parquet") for one in ("runs", "architectures")}
    canvas = arms(tables, Style())
    titles = [one.text for one in canvas.layout.annotations if one.text in QUANTITIES.values()]
    counts = [*QUANTITIES.values()].index(QUANTITIES["pds.over"])
    bounded = {titles.index(text): text for text in [*QUANTITIES.values()][1:4] if text in titles}
    assert counts == 1 and 1 in bounded
    for panel in bounded:
        axis = "x" if panel == 0 else f"x{panel + 1}"
        means = next(one for one in canvas.data if one.xaxis == axis and one.marker.symbol == "line-ns-open")
        low, high = np.asarray(means.x) - means.error_x.arrayminus, np.asarray(means.x) + means.error_x.array
        assert np.nanmin(low) >= 0 and (panel == 1 or np.nanmax(high) <= 1)
    rows = tables["architectures"].rename(columns={"mean": "value", "ci_low": "low", "ci_high": "high"})
    assert (rows.loc[rows["quantity"] == "pds.over", "low"] < 0).any()


def test_what_stands_beside_ours_is_what_the_papers_print() -> None:
    open_points = traces("krom", "sweep")["at the start, the post"]
    assert dict(zip(open_points.x, np.round(open_points.y, 4), strict=True)) == {-8: 0.0003, -2: 0.12, -1: 0.27, 0: 0.5}
    assert list(traces("krom", "cosines")["the post"].y) == [0.974, 0.994, 0.994, 0.995]
    slope, post = (traces("krom", "gradient")[name] for name in ("here", "the post"))
    swaps = 1 / (1 + np.exp(-np.array(slope.x, float)))
    assert list(slope.x) == list(post.x) == [-8, -2, -1, 0] and np.allclose(slope.y, swaps * (1 - swaps), rtol=1e-6)
    assert list(post.y) == [0.0003, 0.105, 0.197, 0.25] and 313 < slope.y[1] / slope.y[0] < 314
    assert {name: one.y[0] for name, one in traces("krom", "curves").items() if "paper" in name} == {
        "GPT-2, paper": 6.01, "Canon, paper": 5.97, "KromHC, paper": 5.92, "KromCanon, paper": 5.83,
    }  # fmt: skip
    assert list(traces("hdpl", "2")["baseline (llama), paper"].y) == [4.44, 4.3206]
    assert list(traces("hdpl", "2")["hybrid (hdpl), paper"].y) == [4.38, 4.2838]
    papers = [one for one in draw(figures_of("pls")["2"], Style()).data if one.name == "paper"]
    assert [list(np.round(one.y, 2)) for one in papers] == [[0.26, 0.48, 0.26], [0.05, 0.53, 0.42]]
    drawn = draw(figures_of("pls")["4"], Style())
    _, of_c2, *maps = drawn.data
    assert [one.type for one in drawn.data] == ["histogram"] * 2 + ["heatmap"] * 2
    assert maps[0].text[0][0].endswith("(-11.4)") and maps[1].text[1][1].endswith("(-0.3)")
    cases = pd.read_parquet(RESULTS / "pls_long/cases.parquet")
    cases = cases.query("task == 'winograd' and group == 'entity' and measure == 'probability' and preset == 'c2'")
    assert len(cases) == 4 * 50 and np.allclose(np.sort(of_c2.x), np.sort(100 * cases["delta"]))
    assert any("0.63 %" in one.text for one in drawn.layout.annotations)
    assert "gender, winograd" in drawn.layout.title.text, "which tasks the models cannot do"
    bars = draw(figures_of("lfa")["2"], Style()).data
    found = {one.name: dict(zip(zip(*one.x, strict=True), one.y, strict=True)) for one in bars}
    assert found["suppressed, paper"]["LFA", "paper"] == 0.0008 and found["baseline, paper"]["CFM", "paper"] == 0.0201
    assert ("Std-T", "paper") not in found["baseline"], "nowhere printed"
    (errors,) = [dict(zip(zip(*one.x, strict=True), one.error_y.array, strict=True)) for one in bars
                 if one.error_y.visible]  # fmt: skip
    rows = suppressed_heads()
    assert len(rows) > 2
    for row in rows.itertuples():
        t = stats.t.isf(row.p / 2, row.clusters - 1)
        assert np.isclose(errors[NAMES[row.preset], f"seed {row.seed}"], abs(row.delta / t)), (
            "the change over Student's t"
        )
    assert sum(value is not None and value == value for value in errors.values()) == len(rows)


def suppressed_heads() -> pd.DataFrame:
    """The runs of the paper's arms that have heads over the threshold below their last layer, where they can act."""
    table = pd.read_parquet(RESULTS / "lfa_long/suppression.parquet").query(
        "selection == 'over' and group == 'selected' and measure == 'sps' and part == 'all' and gate == 0 and p == p"
    )
    return table[~table["preset"].str.contains("+", regex=False)]


def test_every_architecture_and_every_seed_has_its_bars() -> None:
    """Fig. 2 of LFA is of LFA, Std-T and CFM: without a head over the threshold a run has its baseline alone."""
    found = {one.name: dict(zip(zip(*one.x, strict=True), one.y, strict=True))
             for one in draw(figures_of("lfa")["2"], Style()).data}  # fmt: skip
    runs = pd.read_parquet(RESULTS / "lfa_long/runs.parquet").query("quantity == 'sps'").set_index(["preset", "seed"])
    for preset, name in (("lfa", "LFA"), ("std-t", "Std-T"), ("d-cas", "D-Cas"), ("cfm", "CFM")):
        for seed in runs.loc[preset].index:
            assert np.isclose(found["baseline"][name, f"seed {seed}"], runs.loc[(preset, seed), "value"]), name
    shown = {place for place, value in found["suppressed"].items() if value is not None}
    assert shown == {(NAMES[row.preset], f"seed {row.seed}") for row in suppressed_heads().itertuples()}


def test_figures_of_mixing_have_the_frozen_arm() -> None:
    """The post stores everything in bf16, where nothing moves from −8; stored in fp32 it does."""
    factors = pd.read_parquet(RESULTS / "krom_eighth/factors.parquet").query("preset == 'kromcanon' and acts")
    frozen = factors[(factors["b_res"] == -8) & (factors["storage"] == "bf16")]
    assert len(frozen) and frozen["swap_best"].max() < 0.002
    arms = ["bias −8, bf16", "bias −8, fp32", "bias −2, fp32"]
    heat, swap = (draw(figures_of("krom")[name], Style()) for name in ("heat", "swap"))
    for drawn in (heat, swap):
        assert [one.text for one in drawn.layout.annotations if one.text.startswith("bias")] == arms
    first, *others = [one.matches for one in swap.select_yaxes()]
    assert first is None and set(others) == {"y"}, "on one scale, or what is frozen looks alive"
    assert np.nanmax(heat.data[0].z) < 0.001 < np.nanmax(heat.data[1].z)
    largest = [max(one.y) for one in swap.data if one.name == "largest, with dynamics"]
    assert largest[0] == frozen.groupby(["module", "factor"])["swap_best"].mean().max() < 0.002 < min(largest[1:])
    dots = traces("krom", "scatter")
    assert list(dots) == [*arms, "bias −1, fp32", "bias 0, fp32"] and max(dots[arms[0]].y) < 0.002
    assert traces("krom", "sweep")["trained, bf16"].y[0] < 0.001
    assert len(traces("krom", "cosines")["KromCanon in bf16, contrast"].y) == 3


def test_the_bundled_tables_are_of_the_models_that_the_papers_compare() -> None:
    """Not of others in their place: DST's Independent-Dense and its dense twin, LFA's standard transformer."""
    assert [one.text for one in draw(figures_of("dst")["5"], Style()).layout.annotations] == ["dst-ind", "dst-dense"]
    drawn = {number: draw(figures_of("lfa")[number], Style()) for number in "56"}
    assert {one.name for one in drawn["6"].data} == {"LFA", "Std-T", "D-Cas", "CFM"}
    said = drawn["5"].layout.title.text.partition("<br>")[0].rpartition(": ")[2].split(", ")
    assert {one.name for one in drawn["5"].data} == {"LFA", "Std-T", "D-Cas", "CFM"} - set(said)


def test_what_features_predict_is_drawn_beside_what_they_add_to(tmp_path: Path) -> None:
    rows = [
        {"of": of, "measure": measure, "edit": head, "r2": r2, "r2_low": r2 - 0.1, "r2_high": r2 + 0.2,
         "baselines": r2 / 2, "shuffled": 0.0}
        for of, measure, head, r2 in (
            ("absolute", "delta_loss", "L0.H0", 0.3), ("absolute", "delta_loss", "L0.H1", 0.4),
            ("signed", "delta_loss", "L0.H0", 0.8), ("absolute", "delta_log_p", "L0.H0", 0.9),
        )
    ]  # fmt: skip
    for preset in ("pls", "c2"):
        pd.DataFrame(rows).to_parquet(tmp_path / f"predicted-{preset}.parquet")
    features, baselines, _, *others = draw(figures_of("pls")["5.4"], Style(), tmp_path).data
    assert list(features.x) == ["L0.H0", "L0.H1"] and list(features.y) == [0.3, 0.4] and len(others) == 3
    assert np.allclose(features.error_y.array, 0.2) and np.allclose(features.error_y.arrayminus, 0.1)
    assert list(baselines.y) == [0.15, 0.2]


def test_figures_of_instruments_tables(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    cells = [(p, layer, to, i, 100 * layer + 10 * to + i) for p in ("attn.v", "attn.o") for layer in range(2)
             for to in range(2) for i in range(2)]  # fmt: skip
    names = ["projection", "layer", "to", "from", "value"]
    pd.DataFrame(cells, columns=names).to_parquet(tmp_path / "routing-cells.parquet")
    drawn = draw(figures_of("dst")["3"], Style(), tmp_path)
    assert [one.text for one in drawn.layout.annotations[:4]] == ["v L0", "v L1", "o L0", "o L1"]
    assert np.array_equal(drawn.data[1].z, [[100, 101], [110, 111]]), "to head downwards, from head across"
    heads = [{"run": run, "layer": layer, "index": 0, "top1": layer / 4} for run in ("a", "b") for layer in range(3)]
    pd.DataFrame(heads).to_parquet(tmp_path / "coreference.parquet")
    assert np.array_equal(draw(figures_of("dst")["5"], Style(), tmp_path).data[0].z, [[0], [25], [50]])
    arm = {"preset": "kromcanon", "optimizer": "adamw", "decay": 0.2}
    cells = [(-2.0, "fp32", True, 0.5, 0.3), (-8.0, "fp32", False, 0.1, 0.2), (-8.0, "fp32", True, 0.9, 0.01),
             (-8.0, "bf16", True, 0.7, 0.02)]  # fmt: skip
    names = ["b_res", "storage", "acts", "alpha_res", "swap_best"]
    rows = [{**arm, **dict(zip(names, one, strict=True))} for one in cells]
    pd.DataFrame(rows).to_parquet(tmp_path / "factors.parquet")
    points = draw(figures_of("krom")["scatter"], Style(), tmp_path).data
    assert [(one.name, *one.x, *one.y) for one in points] == [
        ("bias −8, bf16", 0.7, 0.02), ("bias −8, fp32", 0.9, 0.01), ("bias −2, fp32", 0.5, 0.3),
    ]  # fmt: skip
    dst.main(["--figure", "all", "--tables", str(tmp_path), "--format", "html", "--out", str(tmp_path / "out")])
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["dst-figure-3.html", "dst-figure-5.html"]
    assert "not drawn, for want of tables: 2, 4, streams" in capsys.readouterr().out
    with pytest.raises(InputError, match="the tables of none of the figures"):
        lfa.main(["--figure", "all", "--tables", str(tmp_path)])


def test_curves_are_those_of_the_runs(tmp_path: Path) -> None:
    """Three seeds of two arms, one seed of a third; steps that a seed lacks are left out of its arm's mean."""
    losses = {
        "llama": [[5.0, 4.0], [5.2, 4.3], [5.4, 4.4]],
        "hdpl+o=hdpl": [[5.0, 4.0], [4.0, 3.0]],
        "hdpl": [[4.5, 4.1]],
    }
    rows = [
        {"preset": arm, "seed": seed, "step": 500 * (i + 1), "tokens": i, "loss": loss}
        for arm, seeds in losses.items() for seed, own in enumerate(seeds) for i, loss in enumerate(own)
    ]  # fmt: skip
    rows.append({"preset": "llama", "seed": 1, "step": 750, "tokens": 1, "loss": 9.0})
    pd.DataFrame(rows).to_parquet(tmp_path / "curves.parquet")
    found = draw(figures_of("hdpl")["2"], Style(), tmp_path)
    drawn = {one.name: one for one in found.data}
    assert list(drawn["baseline (llama)"].x) == [0.5, 1] and np.allclose(drawn["baseline (llama)"].y, [5.2, 12.7 / 3])
    sd = float(np.std([4.0, 4.3, 4.4], ddof=1))
    assert np.allclose(drawn["baseline (llama) ± sd"].y, [5.0, 12.7 / 3 - sd, 12.7 / 3 + sd, 5.4])
    assert list(drawn["baseline (llama) ± sd"].x) == [0.5, 1, 1, 0.5]
    assert {"hybrid (hdpl)", "hybrid (hdpl)+o=hdpl", "hybrid (hdpl)+o=hdpl ± sd"} <= set(drawn)
    assert "hybrid (hdpl) ± sd" not in drawn, "one seed has no band"
    assert found.layout.title.text == "here: mean ± standard deviation over 1 to 3 seeds"
    (tmp_path / "curves.parquet").unlink()
    with pytest.raises(InputError, match="drawn of curves.parquet, and there is no"):
        draw(figures_of("hdpl")["2"], Style(), tmp_path)


def test_lines_of_more_arms_than_colours_can_be_told_apart() -> None:
    for grey in (False, True):
        looks = [Style(grey=grey).line(i) for i in range(21)]
        assert len({(one["line"]["color"], one["line"]["dash"], one["marker"]["symbol"]) for one in looks}) == 21


def test_a_map_has_every_token_that_has_a_place(tmp_path: Path) -> None:
    tokens = {"cluster": [-1, 0, 0, 7, 1, -1], "k_star": [0, 1, 1, 3, 6, 2], "y": [0.0] * 6,
              "x": [0.0, 1.0, 2.0, 3.0, 4.0, np.nan]}  # fmt: skip
    pd.DataFrame(tokens).to_parquet(tmp_path / "modes-labels.parquet")
    none, first, second = draw(figures_of("pls")["5"], Style(), tmp_path).data
    assert list(none.x) == [0.0] and list(first.x) == [1.0, 2.0, 3.0] and list(second.x) == [4.0], "7 bears 0's colour"
    depth = draw(figures_of("pls")["6"], Style(), tmp_path)
    assert list(depth.data[0].marker.color) == [0, 1, 1, 3, 6] and depth.data[0].marker.cmax == 6
    pd.DataFrame(tokens).drop(columns="x").to_parquet(tmp_path / "modes-labels.parquet")
    with pytest.raises(InputError, match="no place on a map"):
        draw(figures_of("pls")["6"], Style(), tmp_path)
    pd.DataFrame(tokens).drop(columns="k_star").to_parquet(tmp_path / "modes-labels.parquet")
    with pytest.raises(InputError, match="figure 6 is drawn of 'k_star', which is not in .*: modes-labels.parquet"):
        draw(figures_of("pls")["6"], Style(), tmp_path)


def test_gate_curves_are_drawn_of_tables_that_have_gates(tmp_path: Path) -> None:
    rows = [
        {"preset": preset, "seed": seed, "selection": "top1", "group": "selected", "measure": "sps", "gate": gate,
         "edited": np.nan if preset == "cfm" else 0.5 * gate + seed, "delta": np.nan if preset == "cfm" else 0.1}
        for preset in ("cfm", "lfa") for seed in (0, 1) for gate in (0.0, 0.25, 1.0)
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "suppress.parquet")
    found = draw(figures_of("lfa")["5"], Style(), tmp_path)
    (line,) = found.data
    assert line.name == "LFA" and list(line.x) == [0, 0.25, 1] and np.allclose(line.y, [0.5, 0.625, 1]), "mean of seeds"
    assert found.layout.title.text.endswith("in the last layer: CFM"), "where a head changes no attention"
    with pytest.raises(InputError, match="these tables have one gate alone"):  # no selection of three
        draw(figures_of("lfa")["6"], Style(), tmp_path)
    pd.DataFrame(rows[:3]).to_parquet(tmp_path / "suppress.parquet")
    with pytest.raises(InputError, match="no run of these tables has top1 heads below the last layer"):
        draw(figures_of("lfa")["5"], Style(), tmp_path)
    with pytest.raises(InputError, match="drawn of heads.parquet, and there is no"):
        draw(figures_of("lfa")["7"], Style(), tmp_path)


def test_tables_are_those_of_the_ledger(capsys: pytest.CaptureFixture) -> None:
    claims = claims_of("lfa")
    table = table_of(claims[claims["table"] == "2"])
    row = table[table["claim"] == "lfa-t2-parameters-lfa"].iloc[0]
    assert (row["printed"], row["unit"], row["verdict"]) == ("18.5M", "parameters", "paper inconsistent")
    assert len(table) == (claims["place"].str.contains("Table 2")).sum() > 5
    lfa.main(["--table", "2"])
    assert "18.5M" in capsys.readouterr().out
    assert [*dict.fromkeys(claims_of("krom")["table"])] == ["sweep", "architectures", "replicates"]
    both = claims_of("krom").query("id == 'krom-order-all-seeds'")
    assert list(both["table"]) == ["architectures", "replicates"], "in both tables"
    seeds = table_of(both).iloc[0]
    assert (seeds["printed"], seeds["unit"]) == ("3 of 3 seeds", "nats/token"), "seeds printed, losses measured"


LAYOUTS = [(paper, number) for paper, tables in layouts().items() for number in tables]


@pytest.mark.parametrize(("paper", "number"), LAYOUTS, ids=str)
def test_every_cell_of_a_table_is_a_claim_that_prints_one_value(paper: str, number: str) -> None:
    claims, layout = claims_of(paper), layouts()[paper][number]
    places = cells(layout)
    assert len(set(places.values())) == len(places)
    rows = claims.set_index("id").loc[list(places.values())]
    assert (rows["printed"] != "").all() and not rows["printed"].str.contains(" against | to ").any()
    named = {f"{row}, {column}" for row in layout["rows"] for column in layout["columns"]}
    assert {*layout.get("blank", ()), *layout.get("other", {})} <= named
    assert len(arranged(claims, layout)) == 2 * len(layout["rows"])
    rest = others(claims[claims["table"] == number], layout)
    assert not set(rest["id"]) & set(places.values())


def test_a_table_is_arranged_as_it_is_printed() -> None:
    layout = {"rows": {"Dense": "dense", "Kronecker": "kron"}, "blank": ["Dense, cost"],
              "columns": {"loss": "loss-ROW", "cost": "cost-ROW"}, "other": {"Kronecker, cost": "tax"}}  # fmt: skip
    line = {"measured": "", "value": np.nan, "ci_low": np.nan, "ci_high": np.nan}
    line |= {"n": 0, "kind": "number", "finding": "", "unit": "nats/token"}
    claims = pd.DataFrame([
        {**line, "id": "loss-dense", "printed": "2.42", "verdict": "not measured yet"},
        {**line, "id": "loss-kron", "printed": "2.48", "verdict": "different value", "measured": "3.1", "value": 3.1,
         "n": 3, "ci_low": 3.0, "ci_high": 3.2},
        {**line, "id": "tax", "printed": "2.5%", "verdict": "model too weak to test", "measured": "0.012",
         "unit": "share", "value": 0.012},
        {**line, "id": "order", "printed": "2.48 against 2.42", "verdict": "reproduced"},
    ])  # fmt: skip
    assert arranged(claims, layout).to_numpy().tolist() == [
        ["Dense", "printed", "2.42", ""],
        ["", "here", "not measured yet", ""],
        ["Kronecker", "printed", "2.48", "2.5%"],
        ["", "here", "3.1 (3 … 3.2), n 3 ≠", "1.2%, model too weak to test"],
    ]
    assert list(others(claims, layout)["id"]) == ["order"]
    written = {**line, "verdict": "paper inconsistent", "finding": "§3.1 has 516", "cell": ""}
    assert measured_cell(pd.Series(written)) == "paper inconsistent"
    assert measured_cell(pd.Series({**written, "kind": "property"})) == "paper inconsistent: §3.1 has 516"
    assert (
        measured_cell(pd.Series({**written, "kind": "property", "verdict": "not measured yet"})) == "not measured yet"
    )


def test_settings_that_the_ledger_says_the_presets_have_are_theirs() -> None:
    """DST's Table 6 and HDPL's Table 2, with what "a setting" and "the presets have" mean."""
    claims = {claim.row["id"]: claim.row for claim in ledger(HERE)}
    dst, hybrid = presets.preset("dst-kron"), presets.preset("hdpl")
    paths = {"q": hybrid.attention.q, "k": hybrid.attention.k, "v": hybrid.attention.v, "gate": hybrid.mlp.gate,
             "up": hybrid.mlp.up}  # fmt: skip
    assert claims["hdpl-t2-parts"]["printed"] == ", ".join(paths) and {type(one) for one in paths.values()} == {Hdpl}
    assert not isinstance(hybrid.attention.o, Hdpl) and not isinstance(hybrid.mlp.down, Hdpl)
    have: dict[str, float] = {
        "dst-t6-layers": dst.n_layers, "dst-t6-context": dst.n_ctx,
        "hdpl-t2-rank": Hdpl().latent_width(hybrid.d_model, hybrid.d_model),
        "hdpl-t2-groups": Hdpl().blocks(hybrid.n_heads), "hdpl-t2-beta": Hdpl().kl_weight,
    }  # fmt: skip
    for one in (presets.preset("llama"), hybrid):
        recipe = with_recipe(Training(), one.name, "paper")
        have |= {
            "hdpl-t2-width": one.d_model, "hdpl-t2-ffn": one.d_mlp, "hdpl-t2-layers": one.n_layers,
            "hdpl-t2-heads": one.n_heads, "hdpl-t2-head-width": one.d_head, "hdpl-t2-vocabulary": one.d_vocab,
            "hdpl-t2-context": one.n_ctx, "hdpl-t2-lr": recipe.lr, "hdpl-t2-decay": recipe.weight_decay,
            "hdpl-t2-warmup": recipe.warmup, "hdpl-t2-steps": recipe.steps,
        }  # fmt: skip
        assert recipe.optimizer == "adamw"
        for claim, value in have.items():
            assert float(claims[claim]["printed"].replace(",", "")) == value, claim
    assert claims["hdpl-t2-optimizer"]["printed"] == "AdamW"
    for name, value in (("width", dst.d_model), ("heads", dst.n_heads), ("vocabulary", dst.d_vocab)):
        claim = claims[f"dst-t6-{name}"]
        assert f"{value:,}" in claim["why"] and claim["printed"] != f"{value:,}", name


def test_table_1_of_lfa_by_construction() -> None:
    """X_T of an LFA is its tokens' embedding in every layer, and the embedding's weights have a gradient; a standard
    transformer has no such stream, and positions at the start."""
    net, tokens = build("lfa", "tiny"), torch.arange(8)[None]
    names = [f"blocks.{layer}.hook_token_pre" for layer in range(net.config.n_layers)]
    with capture(net, names) as seen:
        net(tokens).square().sum().backward()
    for name in names:
        assert torch.equal(seen[name], net.W_E[tokens])
    assert net.W_E.grad is not None and net.W_E.grad.abs().sum() > 0
    standard = build("std-t", "tiny")
    assert not any("hook_token" in name for name in standard.hook_dict)
    assert "hook_pos_embed" in standard.hook_dict and "hook_pos_embed" not in net.hook_dict


def test_tables_are_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for kind in ("csv", "md"):
        hdpl.main(["--table", "1", "--out", str(tmp_path), "--table-format", kind])
    csv = pd.read_csv(tmp_path / "hdpl-table-1.csv", keep_default_na=False)
    loss = csv[csv["claim"] == "hdpl-t1-loss-llama"].iloc[0]
    points = pd.read_parquet(RESULTS / "hdpl_zoo/curve-points.parquet")
    here = points.query("preset == 'llama' and point == 'last'")["loss"].item()
    assert (loss["printed"], loss["unit"]) == ("4.3206", "nats/token") and loss["measured"].startswith(f"{here:.4g}")
    text = (tmp_path / "hdpl-table-1.md").read_text()
    assert all(claim in text for claim in set(csv["claim"]) - set(cells(layouts()["hdpl"]["1"]).values()))
    assert f"{here:.4g}" in text and all(value.split()[0] in text for value in csv["printed"] if value)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lfa.main(["--figure", "1", "--figure", "7", "--format", "html", "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lfa-figure-1.html", "lfa-figure-7.html"]
    pls.main(["--figure", "list"])
    assert "Capitalization by the scale" in capsys.readouterr().out
    for argv, line in ((["--figure", "9"], "unknown figure of pls"), (["--table", "7"], "unknown table of pls")):
        with pytest.raises(InputError, match=line):
            pls.main(argv)


@pytest.fixture(scope="module")
def chromium() -> None:
    """Skips where no kaleido or no Chromium is there: an empty figure cannot be drawn either."""
    pytest.importorskip("kaleido")
    try:
        go.Figure().to_image(format="svg")
    except Exception as error:  # kaleido raises errors of Chromium, of its own and of asyncio
        pytest.skip(f"no Chromium: {str(error).strip().splitlines()[0]}")


STATIC = {"dst": "2", "lfa": "2", "hdpl": "2", "pls": "5.4", "krom": "sweep"}


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("paper", PAPERS)
def test_a_figure_of_each_paper_is_as_wide_as_a_column_in_svg_and_pdf(paper: str, tmp_path: Path) -> None:
    name = f"{paper}-figure-{STATIC[paper]}"
    for kind in ("svg", "pdf"):
        COMMANDS[paper].main(["--figure", STATIC[paper], "--format", kind, "--out", str(tmp_path)])
    svg = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    assert float(svg.attrib["width"]) == pytest.approx(3.3 * 96), "CSS pixels"
    words = {"".join(one.itertext()) for one in svg.iter("{http://www.w3.org/2000/svg}text")}
    drawn = draw(figures_of(paper)[STATIC[paper]], Style())
    assert {one.name for one in drawn.data if one.name and one.showlegend is not False} <= words
    pdf = (tmp_path / f"{name}.pdf").read_bytes()
    box = re.search(rb"/MediaBox ?\[([^\]]+)\]", pdf)
    assert pdf.startswith(b"%PDF") and box is not None
    left, _, right, _ = map(float, box[1].split())
    assert right - left == pytest.approx(3.3 * 72, abs=1), "points"


def test_a_format_that_cannot_be_written_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--figure", "all", "--format", "pdf", "--out", str(tmp_path)]

    def no_browser(self: object, **how: object) -> bytes:
        raise RuntimeError("Kaleido requires Google Chrome to be installed.\n\nRun kaleido_get_chrome")

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "kaleido", None)
        with pytest.raises(InputError, match=r"lfa-figure-1.pdf needs kaleido and a Chrome: .*html needs neither$"):
            lfa.main(argv)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "kaleido", ModuleType("kaleido"))
        patch.setattr(go.Figure, "to_image", no_browser)
        refused = r"could not be drawn \(Kaleido requires Google Chrome to be installed.\); .html needs no Chromium$"
        with pytest.raises(InputError, match=refused) as caught:
            lfa.main(argv)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_figure_says_its_seeds_and_how_much_text_they_saw() -> None:
    """Of the runs behind its tables, below what it says itself; of bundled models theirs; of arithmetic nothing."""
    for paper, number, ends in (
        ("lfa", "7", "16 million tokens each"), ("lfa", "2", "16 million tokens each"),
        ("pls", "4", "12.1 million tokens each"), ("dst", "5", "one training seed; 12 million tokens"),
        ("krom", "gradient", None),
    ):  # fmt: skip
        text = draw(figures_of(paper)[number], Style()).layout.title.text
        assert text is None if ends is None else text.endswith(ends), (paper, number, text)
    assert draw(figures_of("pls")["4"], Style()).layout.title.text.splitlines()[0].startswith("at chance")


OLDER = [
    ("pls", "3", "curves", {"mean": "level"}), ("pls", "4", "effects", {"difference": "delta"}),
    ("lfa", "2", "suppression", {"condition": "edited", "difference": "delta"}),
]  # fmt: skip


@pytest.mark.parametrize(("paper", "number", "table", "names"), OLDER)
def test_tables_of_either_version_are_drawn(paper: str, number: str, table: str, names: dict[str, str]) -> None:
    """What a run of today writes has other names than the shipped tables, which are older."""
    one = figures_of(paper)[number]
    older = [re.sub("_eighth|_long", "_tinystories", name) for name in one.tables]
    tables = {Path(name).name: pd.read_parquet(RESULTS / f"{name}.parquet") for name in older}
    assert set(names) <= set(tables[table])
    renamed = {**tables, table: tables[table].rename(columns=names)}
    assert one.draw(renamed, Style()).to_json() == one.draw(tables, Style()).to_json()


def test_a_figure_without_a_case_is_named_among_all_and_refused_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in {Path(table).name for one in figures_of("lfa").values() for table in one.tables}:
        if (path := RESULTS / "lfa_long" / f"{name}.parquet").is_file():
            table = pd.read_parquet(path)
            (table[table["selection"] != "over"] if name == "suppression" else table).to_parquet(folder / path.name)
    numbers = [number for number, one in figures_of("lfa").items() if "lfa_long/suppression" in one.tables]
    shutil.copy(RESULTS / "lfa_long" / "trained.json", folder)
    argv = ["--tables", str(folder), "--format", "html", "--out", str(tmp_path)]
    lfa.main([*argv, "--figure", "all"])
    said = capsys.readouterr().out
    assert "is not drawn: no run of these tables has heads over the threshold" in said and "written" in said
    with pytest.raises(InputError, match="heads over the threshold"):
        lfa.main([*argv, *(word for number in numbers for word in ("--figure", number))])


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--tables .*nowhere has no tables"):
        lfa.main(["--figure", "1", "--tables", str(tmp_path / "nowhere"), "--format", "html", "--out", str(tmp_path)])
