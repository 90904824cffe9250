"""Figures that a reader understands without their page: titles, scales, texts that contrast, controls, legends."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from plotly.colors import sample_colorscale, unlabel_rgb

from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import Curve, HeadMap, Histogram, Intervals, Matrix, Points, Scatter
from streamscope.instruments.figures.drawing import draw, scale
from streamscope.instruments.registry import discover
from streamscope.instruments.result import Result, compare
from streamscope.instruments.table import HEAD, Column, Table, key
from streamscope.models import load
from streamscope.probes.pds import Pds


def maps(values: Any, format: str = "+.3f", unit: str = "nats", **more: Any) -> Result:
    """A result with a row for each head of a layer × head array, and other columns."""
    rows = [
        {"head": f"L{i}.H{j}", "layer": i, "index": j, "v": values[i][j], **{k: v[i][j] for k, v in more.items()}}
        for i, j in np.ndindex(np.shape(values))
    ]
    columns = (*HEAD, Column(name="v", title="Δ v", unit=unit, doc="v", format=format), *(key(k, k, k) for k in more))
    return Result({"m": Table(pd.DataFrame(rows), columns, title="runs/one: 3 documents")}, about={"model": "runs/one"})


def result_of(table: Table) -> Result:
    return Result({"m": table}, about={"model": "lfa"})


def table_of(rows: Any, *columns: Any) -> Result:
    """A result of one table; columns without a description are keys."""
    described = tuple(key(one, one, one) if isinstance(one, str) else one for one in columns)
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows, columns=[one.name for one in described])
    return result_of(Table(frame, described, title="m"))


V = Column(name="v", title="v", unit="nats", doc="v", format="g")


def test_an_option_of_another_kind_of_figure_is_refused() -> None:
    with pytest.raises(TypeError, match="Scatter has no option reference"):
        Scatter("delta", x="loss", reference="above")


def test_the_caption_names_figure_and_model_and_ends_where_the_tools_begin() -> None:
    result = maps([[1.0, 2.0]])
    drawn = draw(HeadMap("v", title="What each head costs"), result)
    assert drawn.layout.title.text == "<b>What each head costs: runs/one</b><br>3 documents"
    assert draw(HeadMap("v"), result).layout.title.text.startswith("<b>Δ v: runs/one</b>")
    wordy = result_of(replace(result.table(), title="word " * 60))
    lines = draw(HeadMap("v"), wordy).layout.title.text.split("<br>")[1:]
    assert len(lines) > 1 and max(map(len, lines)) * 6 <= 860 - 230


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours #rrggbb or rgb(r, g, b)."""

    def luminance(color: str) -> float:
        parts = unlabel_rgb(color) if color.startswith("rgb") else [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_one_strong_head_is_the_darkest_and_does_not_wash_out_the_others() -> None:
    """Where a few cells are far above all others, colours go by the root, and the bar says so; none are cut."""
    values = np.linspace(0.01, 0.1, 36)
    plain = draw(HeadMap("v"), maps(values.reshape(6, 6))).data[0]
    assert plain.zmax == 0.1 and "root" not in plain.colorbar.title.text
    values[7] = 5.0
    drawn = draw(HeadMap("v"), maps(values.reshape(6, 6))).data[0]
    assert (drawn.zmin, drawn.zmax) == (0.0, 5.0) and "square root" in drawn.colorbar.title.text
    at = {v: sample_colorscale([list(step) for step in drawn.colorscale], [v / 5])[0] for v in (0.0, 0.1, 1.0, 5.0)}
    assert contrast(at[1.0], at[5.0]) > 1.5 and contrast(at[0.1], at[0.0]) > 1.1
    values[7] = -5.0
    drawn = draw(HeadMap("v"), maps(values.reshape(6, 6))).data[0]
    assert (drawn.zmin, drawn.zmax) == (-5.0, 0.1)


def test_attention_is_drawn_from_0_to_1_by_its_root() -> None:
    """A weight of .02 is light and one of .998 dark, whatever else the map holds; small weights still differ."""
    values = np.random.default_rng(0).uniform(0.0, 0.02, (9, 5))
    values[4, 2] = 0.998
    for shown in (values, values[:3], values[:, :1]):
        drawn = draw(HeadMap("v", root=True), maps(shown, "")).data[0]
        steps = [list(step) for step in drawn.colorscale]
        assert (drawn.zmin, drawn.zmax) == (0.0, 1.0) and "square root" in drawn.colorbar.title.text
        light, small, dark = sample_colorscale(steps, [0.02, 0.005, 0.998])
        assert contrast(light, dark) > 5 and contrast(light, small) > 1.05
    attention = [
        (name, one) for name, cls in discover().items() for one in cls.figures
        if one.kind == "HeadMap" and name in ("picture", "amplify") and one.y == "attention"
    ]  # fmt: skip
    assert len(attention) == 3 and all(one.root for _, one in attention)


def test_panels_stand_side_by_side_on_one_scale() -> None:
    """One map with both signs beside one of positive values alone: their colours mean the same."""
    values, kinds = np.array([[-0.5, 1.0], [0.2, 0.8]]), [["a", "a"], ["b", "b"]]
    result = maps(values, kind=kinds)
    drawn = draw(HeadMap("v", each=("kind",)), result)
    first, second = [one for one in drawn.data if one.type == "heatmap"]
    assert first.colorscale == second.colorscale
    assert (first.zmin, first.zmax) == (second.zmin, second.zmax) == (-0.5, 1.0)
    assert [first.showscale, second.showscale] == [True, False]
    assert drawn.layout.xaxis.domain[1] < drawn.layout.xaxis2.domain[0] and drawn.layout.yaxis2.domain == (0.0, 1.0)
    assert [np.ravel(one.text).tolist() for one in (first, second)] == [["-0.500", "+1.000"], ["+0.200", "+0.800"]]
    assert first.texttemplate == second.texttemplate == "%{text}"


def test_levels_have_a_legend_and_cells_without_a_value_keep_their_text() -> None:
    levels = ((0.0, "absent"), (0.5, "undecided"), (1.0, "present"))
    result = maps([[0.0, 0.5, 1.0, np.nan]], format="g", unit="verdict", said=[["a", "u", "p", "1.23"]])
    (heat,) = draw(HeadMap("v", text="said", levels=levels), result).data
    assert heat.colorbar.ticktext == ("absent", "undecided", "present")
    assert (heat.zmin, heat.zmax) == (-0.25, 1.25)
    assert len({color for _, color in heat.colorscale}) == 3 and len(heat.colorscale) == 6
    assert np.ravel(heat.text).tolist() == ["a", "u", "p", "1.23"] and heat.texttemplate == "%{text}"
    plain = draw(HeadMap("v"), maps([[0.1, np.nan], [0.2, 0.3]])).data[0]
    assert np.ravel(plain.text).tolist() == ["+0.100", "", "+0.200", "+0.300"]


def test_clusters_are_named_by_their_tokens_and_sizes() -> None:
    rows = [(1, "a ⟦ the⟧ b")] * 5 + [(1, "⟦ a⟧ c")] * 2 + [(2, "x ⟦.⟧")] * 3 + [(3, "⟦ z⟧")] + [(-1, "⟦ n⟧")] * 4
    frame = pd.DataFrame(rows, columns=["cluster", "text"]).assign(x=0.0, y=1.0)
    places = (Column(name=n, title=n, unit="UMAP", doc=n, format=".2f") for n in "xy")
    result = table_of(frame, key("cluster", "cluster", "c", format="d"), "text", *places)
    drawn = draw(Points("y", "m", color="cluster", text=("text",), none=-1, most=2, typical="text"), result)
    assert [one.name for one in drawn.data] == [
        "in no cluster (4)", "1 smaller ones (1)", "cluster 1 (7): the, a", "cluster 2 (3): .",
    ]  # fmt: skip
    assert drawn.data[0].marker.color != drawn.data[1].marker.color


def test_a_panel_of_one_measure_has_its_unit_and_its_random_controls() -> None:
    columns = (
        "measure", "group", Column(name="gate", title="gate", unit="factor", doc="g", format="g"),
        Column(name="delta", title="Δ", unit="units of the measure", doc="d", format="+.3f"),
    )  # fmt: skip
    rows = [(m, "selected", gate, gate - 1) for m in ("sps", "loss") for gate in (0.0, 1.0)]
    draws = [("sps", "random", 0.0, 0.1), ("sps", "random", 0.0, 0.2), ("loss", "random", 0.0, 0.3)]
    tables = {name: table_of(data, *columns).table() for name, data in (("effects", rows), ("draws", draws))}
    measures = {name: SimpleNamespace(measure=SimpleNamespace(name=name, unit=unit))
                for name, unit in (("sps", "attention"), ("loss", "nats/token"))}  # fmt: skip
    result: Any = SimpleNamespace(tables=tables, table=tables.__getitem__, blocks=measures, about={"model": "lfa"})
    drawn = draw(Curve("delta", "effects", x="gate", by="group", each=("measure",), draws="draws"), result)
    assert drawn.layout.yaxis.title.text == "Δ [attention]" and drawn.layout.yaxis2.title.text == "Δ [nats/token]"
    random = {one.xaxis: list(one.y) for one in drawn.data if one.name == "random"}
    assert random == {"x": [0.1, 0.2], "x2": [0.3]}


def test_panels_leave_no_holes_and_room_for_the_names_of_rows() -> None:
    """Five of six combinations of two columns: three and two panels, and no name of a row on its neighbour."""
    name = "a name as long as a definition"
    rows = [(a, b, name, 0.5) for a, b in ("px", "py", "qx", "qy", "rz")]
    result = table_of(rows, "a", "b", "label", V)
    drawn = draw(Intervals("v", label="label", each=("a", "b")), result)
    x, y = ([axis.domain for axis in axes] for axes in (drawn.select_xaxes(), drawn.select_yaxes()))
    assert len({tuple(one) for one in y[:5]}) == 2 and len({tuple(one) for one in x[:5]}) == 3
    assert (x[1][0] - x[0][1]) * drawn.layout.width > 6 * len(name)
    counted = draw(Histogram("v", each=("a", "b")), result)
    assert [one.type for one in counted.data] == ["histogram"] * 5
    assert [one.text for one in counted.layout.annotations][:2] == ["p, x", "p, y"]


def test_the_control_stands_beside_the_run_in_its_figures(tmp_path: Path) -> None:
    """Maps, histograms and intervals of pds, also where they are drawn from files."""
    run, control = (Pds().measure(load(name), Prompts(suite="competing")) for name in ("stories/lfa", "stories/std-t"))
    both = compare(run, control)
    both.save(tmp_path / "pds.parquet")
    for result in (both, Result.load(tmp_path / "pds.parquet")):
        drawn = result.figure()
        assert [one.text for one in drawn.layout.annotations] == ["stories/lfa", "stories/std-t"]
        for z, one in zip((d.z for d in drawn.data if d.type == "heatmap"), (run, control), strict=True):
            assert sorted(np.ravel(z)) == sorted(one.table().frame["pds"])
        drawn = result.figure("difference-intervals")
        for shown, one in zip(drawn.data, (run, control), strict=True):
            frame = one.table().frame.set_index("head").loc[list(shown.y)]
            np.testing.assert_allclose(shown.x, frame["difference"])
            np.testing.assert_allclose(shown.error_x.array, frame["difference_high"] - frame["difference"])
    assert run.figure().layout.title.text.endswith("PDS per head")


def test_numbers_that_do_not_fit_their_cells_are_left_out() -> None:
    """Three panels of 30 layers × 3 positions: +0.000 in each cell would run into its neighbour."""
    values = np.random.default_rng(0).normal(size=(30, 9))
    kinds = np.array([["a"] * 3 + ["b"] * 3 + ["c"] * 3] * 30, object)
    table = maps(values, kind=kinds).table()
    narrow = result_of(replace(table, frame=table.frame.assign(index=table.frame["index"] % 3)))
    for how in ({}, {"paper": True}):
        drawn = draw(HeadMap("v", each=("kind",)), narrow, **how)
        for heat in (one for one in drawn.data if one.texttemplate):
            domain = drawn.layout["xaxis" + (heat.xaxis or "x")[1:]].domain
            assert 6 * 0.6 * heat.textfont.size <= (domain[1] - domain[0]) * (drawn.layout.width - 60) / 3
        assert [bool(one.texttemplate) for one in drawn.data] == [not how] * 3


def test_maps_of_two_measures_have_a_scale_and_a_bar_each() -> None:
    """SPS of ±.01 beside log-odds of ±2.5 would be white on one scale."""
    values = [[0.01, -0.004, 2.5], [0.002, 0.007, -1.5]]
    rows = [(f"L{i}.H{j}", i, j, values[i][j], "nats" if j == 2 else "sps") for i in range(2) for j in range(3)]
    measured = Column(name="v", title="Δ v", unit="units of the measure", doc="v", format="+.3f")
    mixed = table_of(rows, *HEAD, measured, "unit")
    first, second = [one for one in draw(HeadMap("v", each=("unit",)), mixed).data if one.type == "heatmap"]
    assert (first.zmin, first.zmax, second.zmin, second.zmax) == (-0.004, 0.01, -1.5, 2.5)
    assert first.showscale and second.showscale
    assert [one.colorbar.title.text for one in (first, second)] == ["Δ v [sps]", "Δ v [nats]"]


def test_a_long_caption_takes_no_room_from_the_figure_and_wide_maps_fit_a_screen() -> None:
    table = maps([[1.0, 2.0]]).table()
    tall = [draw(HeadMap("v"), result_of(replace(table, title="word " * n))).layout for n in (1, 90)]
    inner = [one.height - one.margin.t for one in tall]
    assert inner[0] == inner[1] and tall[0].margin.t < tall[1].margin.t
    assert draw(HeadMap("v"), maps(np.zeros((3, 200)) + 1.0)).layout.width == 1400


def ranges(n: int) -> Result:
    """A result with n heads at three scales, each with an interval."""
    rows = [
        {"head": f"L{i // 9}.H{i % 9}", "scale": scale, "v": i * scale, "low": i * scale - 1.0, "high": i * scale + 2.0}
        for i in range(n) for scale in (0.5, 1.0, 2.0)
    ]  # fmt: skip
    columns = (
        key("head", "head", "head"), Column(name="scale", title="scale", unit="factor", doc="s", format="g"),
        Column(name="v", title="Δ v", unit="nats", doc="v", format="+.3f", interval=("low", "high")),
        *(Column(name=end, title=end, unit="nats", doc=end, format="+.3f", shown=False) for end in ("low", "high")),
    )  # fmt: skip
    return result_of(Table(pd.DataFrame(rows), columns, title="3 documents"))


def test_captions_explain_intervals_and_count_what_is_left_out() -> None:
    """Of 270 heads the 40 largest are shown, or the 7 whose curves move the most; bands and whiskers have a name."""
    few, many = (
        [draw(one, ranges(n)).layout.title.text.replace("<br>", " ")
         for one in (Intervals("v", by="scale"), Curve("v", by="head"))]
        for n in (5, 270)
    )  # fmt: skip
    assert "whiskers: 95 % intervals" in few[0] and "bands: 95 % intervals" in few[1]
    assert not any(" of " in text for text in few)
    assert "the 40 of 270 with the largest size" in many[0] and "the 7 of 270 lines that move the most" in many[1]
    table = ranges(5).table()
    bare = result_of(replace(table, frame=table.frame.assign(low=np.nan, high=np.nan)))
    assert "95 %" not in draw(Curve("v", by="head"), bare).layout.title.text
    assert "95 %" not in draw(HeadMap("v"), maps([[1.0, 2.0]])).layout.title.text


def test_colours_span_the_whole_scale_whatever_the_values_are() -> None:
    """Plotly draws its own colours, with 0 in orange, where the last place is 1 − 1e-16. A diverging scale is cut where
    the values end; 0 keeps its white, and equal sizes are equally strong."""
    rng = np.random.default_rng(0)
    for size in rng.uniform(1e-6, 1e3, 200):
        values = size * np.append(rng.normal(size=60) * 1e-3, [-rng.uniform(), rng.uniform()])
        places = [place for place, _ in scale(values, signed=True)[0]]
        assert (places[0], places[-1]) == (0.0, 1.0) and places == sorted(places)
    steps, *limits = scale(np.array([-0.25, 0.0, 1.0]), signed=True)
    colors = [color for _, color in steps]
    assert limits == [-0.25, 1.0, False] and [colors[0], colors[-1]] == sample_colorscale("RdBu_r", [0.375, 1.0])
    white = sample_colorscale(colors, [0.2])[0]  # 0 lies a fifth of the way from −.25 to 1
    assert contrast(white, sample_colorscale("RdBu_r", [0.5])[0]) < 1.02
    for ends, how, expected in (
        ((0.1, 0.4), {"signed": True}, (0.0, 0.4)), ((-0.4, -0.1), {"signed": True}, (-0.4, 0.0)),
        ((0.1, 0.4), {"signed": False}, (0.0, 0.4)), ((0.1, 0.4), {"signed": False, "unit": "probability"}, (0.0, 1.0)),
    ):  # fmt: skip
        assert scale(np.array(ends), **how)[1:3] == expected


def test_a_map_of_many_pairs_names_layers() -> None:
    def layout(n: int) -> Any:
        heads = [f"L{i // 9}.H{i % 9}" for i in range(n)]
        rows = [(f"{a}+{b}", 0.1 * i) for i, a in enumerate(heads) for b in heads[:i]]
        return draw(Matrix("v"), table_of(rows, "head", V)).layout

    few, many = layout(12), layout(90)
    assert few.yaxis.tickmode == "linear" and few.yaxis.ticktext is None
    for ticks in (many.xaxis, many.yaxis):
        assert ticks.ticktext == tuple(f"L{i}" for i in range(10))
        assert ticks.tickvals == tuple(f"L{i}.H0" for i in range(10))


def test_axes_of_maps_are_called_as_their_columns_and_parts_stand_by_depth() -> None:
    layer = Column(name="layer", title="layer", unit="layer", doc="l", format="d")
    frame = pd.DataFrame({"layer": [0, 1], "other": [1, 2], "v": [0.1, -0.2]})
    result = table_of(frame, layer, replace(layer, name="other", title="other layer"), V)
    drawn = draw(HeadMap("v", columns="other"), result)
    assert list(drawn.data[0].x) == ["L1", "L2"] and drawn.layout.xaxis.title.text == "other layer"
    table = maps([[0.1, 0.2]]).table()
    columns = tuple(replace(one, title="index") if one.name == "index" else one for one in table.columns)
    heads = draw(HeadMap("v"), result_of(replace(table, columns=columns))).layout
    assert (heads.xaxis.title.text, heads.yaxis.title.text) == ("head", "layer"), "whatever their column is called"
    for names, order in (
        (["L18 attn", "L18.H2", "L5 mlp", "L6.H1"], ["L5 mlp", "L6.H1", "L18 attn", "L18.H2"]),
        (["L20.*", "all", "L5.H1"], ["L20.*", "all", "L5.H1"]),
    ):
        result = table_of(pd.DataFrame({"group": "a", "place": names, "v": 0.1}), "group", "place", V)
        assert list(draw(HeadMap("v", rows="group", columns="place"), result).data[0].x) == order


def test_titles_of_axes_fit_their_panels() -> None:
    kinds = np.array([[f"hf-llama (runs/smollm2, edited), kind {i}" for i in range(9)]] * 30, object)
    panels = draw(HeadMap("v", each=("kind",)), maps(np.ones((30, 9)), kind=kinds)).layout
    table = ranges(4).table()
    words = {"title": "gain over baselines", "unit": "share of variance, held-out documents"}
    columns = [replace(one, **words) if one.name == "v" else one for one in table.columns]
    frame = table.frame.query("scale == 1").assign(k=list("aabb"), g=list("abab"))
    axes = draw(Intervals("v", each=("k", "g")), table_of(frame, *columns, "k", "g")).layout
    for layout, texts in ((panels, [note.text for note in panels.annotations]), (axes, [axes.xaxis.title.text])):
        room = (layout.xaxis.domain[1] - layout.xaxis.domain[0]) * (layout.width - 180) + 60
        assert 7 * max(len(line) for text in texts for line in text.split("<br>")) <= room


def test_upright_names_end_above_the_next_panels() -> None:
    """Names of 19 characters at the columns of a panel of two rows of panels, and the title of the axis below them."""
    names = ["possessor-possessed", *(f"L{i}" for i in range(29))]
    rows = [(k, g, "top2", n, 0.1) for k in "ab" for g in "ab" for n in names]
    result = table_of(rows, "k", "g", "row", "part", V)
    layout = draw(HeadMap("v", rows="row", columns="part", each=("k", "g")), result).layout
    inner = layout.height - layout.margin.t - 80
    assert (layout.yaxis.domain[0] - layout.yaxis3.domain[1]) * inner >= 6 * 19 + 60


def test_a_run_and_its_control_have_one_scale_and_the_line_says_how_many_are_over() -> None:
    values = np.concatenate([np.linspace(0, 0.1, 9), np.linspace(0, 0.2, 9)]).reshape(2, 9)
    runs, at = np.array([["one"] * 9, ["other"] * 9], object), np.full((2, 9), 0.075, object)
    result = maps(values, format=".3f", run=runs, at=at)
    drawn = draw(Histogram("v", at="at"), result)
    assert drawn.layout.xaxis.matches == "x" and drawn.layout.xaxis2.matches == "x"
    assert [one.text for one in drawn.layout.annotations][2:] == ["0.075: 3 over", "0.075: 6 over"]
    assert drawn.data[0].xbins == drawn.data[1].xbins and drawn.data[1].xbins.end > 0.2
    assert draw(Histogram("v", at="at"), maps(values[:1, :3], format=".3f", at=at[:1, :3])).layout.yaxis.dtick == 1


def test_bars_begin_at_the_smallest_value_and_the_line_is_in_sight() -> None:
    """A standard deviation of 0 in all clusters is no bar from −.5 to .5."""
    at, zeros = np.full((2, 9), 5.5, object), np.zeros((2, 9))
    bins = draw(Histogram("v", at="at"), maps(zeros, format=".3f", at=at)).data[0].xbins
    assert bins.start == 0.0 and bins.end >= 5.5 and bins.size < 0.3
    assert draw(Histogram("v"), maps(zeros, format=".3f")).data[0].xbins.size == 1.0


def test_small_numbers_at_axes_are_digits_and_measured_places_are_named() -> None:
    result = ranges(3)
    drawn = draw(Curve("v", by="head", log=True), result)
    assert drawn.layout.xaxis.ticktext == ("0.5", "1", "2") and drawn.layout.yaxis.exponentformat == "power"
    assert drawn.layout.yaxis.minexponent == 6


def test_a_value_stands_beside_its_reference_and_few_marks_have_names() -> None:
    table = ranges(3).table()
    frame = table.frame[table.frame["scale"] == 1.0].assign(r=0.5)
    result = table_of(frame, *table.columns, replace(table.column("low"), name="r", title="r"))
    drawn = draw(Intervals("v", reference="r"), result)
    assert drawn.layout.scattermode == "group"
    assert [(one.orientation, one.offsetgroup) for one in drawn.data] == [("h", "0"), ("h", "1")]
    drawn = draw(Scatter("v", x="r"), result)
    assert drawn.data[1].mode == "markers+text" and drawn.layout.xaxis.range[0] < -0.2
    assert draw(Scatter("v", x="low"), ranges(20)).data[1].mode == "markers"


def test_rows_on_paper_have_a_line_each_and_panels_their_titles() -> None:
    paper = draw(Intervals("v", by="scale"), ranges(40), paper=True).layout
    assert paper.width == 340 and paper.title.text is None
    assert (paper.height - paper.margin.t - paper.margin.b) / 40 >= 10
    kinds = np.array([["a", "b"]], object)
    assert draw(HeadMap("v", each=("kind",)), maps([[0.1, 0.2]], kind=kinds), paper=True).layout.margin.t >= 30


def test_intervals_are_drawn_by_size_or_in_the_order_of_the_table() -> None:
    result = table_of([("A", -1.0), ("B", -2.5)], "head", V)
    for ranked in (True, False):  # the lowest row comes first
        drawn = draw(Intervals("v", ranked=ranked), result)
        assert list(drawn.data[0].y) == (["A", "B"] if ranked else ["B", "A"])


def test_no_line_is_black_on_a_dark_page() -> None:
    curves = ranges(7)
    light, dark = (draw(Curve("v", by="head"), curves, dark=dark) for dark in (False, True))
    colours = [[one.line.color or one.fillcolor for one in drawn.data] for drawn in (light, dark)]
    assert "#000000" in colours[0] and "#000000" not in colours[1] and "#ffffff" in colours[1]
