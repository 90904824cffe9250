"""Several results as one: what the tables say of themselves, three runs, long tables, what an instrument adds."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments import result as module
from streamscope.instruments.figures import HeadMap
from streamscope.instruments.observations import Contrast, Measure, Observations, estimate
from streamscope.instruments.result import Result, compare, pool_results
from streamscope.instruments.table import Column, LongTable, Table, counts, described, key, quantity

UNITS = pd.DataFrame({"unit": list("abcd"), "cluster": list("abcd")})


def result(level: float, model: str = "m", *, lost: tuple[int, ...] = (), **about: Any) -> Result:
    """Two heads with values level · (1, 2, 3, 4) and 3 level · that; a share of them; reasons where `lost`."""
    cells = pd.DataFrame({"head": ["A", "B"], "layer": [0, 1]})
    total = level * np.array([[1.0], [3.0]]) * np.arange(1.0, 5.0)
    tables, blocks, contrasts = {}, {}, {}
    for name in ("size", "speed"):
        block = Observations(measure=Measure(name=f"{name} of heads", unit="m", resolution=1e-9), cells=cells,
                             units=UNITS, total=total, size=np.ones(4))  # fmt: skip
        made = [Contrast(quantity="value", weights={i: 1.0}, labels={"head": "AB"[i], "place": i},
                         missing="lost" if i in lost else "") for i in range(2)]  # fmt: skip
        made += [replace(c, quantity="percent", missing="", tested=False) for c in made]
        frame, missing = estimate(block, made).wide(["head", "place"])
        columns = (
            key("head", "head of it", "its name"), key("place", "place", "where", "row", "d"),
            *quantity("value", f"how {name}", "metres", f"the {name}", format="+.2f", shown=name == "size"),
            *described("percent", "share", "%", "its share", sd="letters", format="", shown=False),
            *counts("letters", "letters"),
        )  # fmt: skip
        tables[name] = Table(frame, columns, missing, f"the {name}", by="value", most=3, per=("head",))
        blocks[name], contrasts[name] = block, made
    return Result(
        tables, blocks, contrasts, (), {"x": np.ones(2)}, {"instrument": "none", "model": model, "step": None, **about}
    )


def test_a_comparison_is_described_as_the_table_of_its_block() -> None:
    both = compare(result(2.0), result(1.0, "c"))
    assert list(both.tables) == ["size", "speed", "size-control", "speed-control"]
    for name, shown in (("size", True), ("speed", False)):
        table = both.tables[f"{name}-control"]
        assert [c.title for c in table.columns[:2]] == ["head of it", "place"] and table.columns[1].format == "d"
        one = table.column("value_difference")
        assert (one.title, one.unit, one.format) == (f"how {name}, run − control", "metres", "+.2f")
        assert one.doc == f"the {name}; run − control" and one.shown is shown
        assert one.interval == ("value_difference_low", "value_difference_high")
        assert (table.by, table.most, table.per) == ("value_difference", 3, ("head",))
        assert table.column("percent_difference").shown, "a percentage is what is read first"
    assert table.frame["value_difference"].tolist() == [2.5, 7.5]


def test_a_control_stands_beside_its_run() -> None:
    one, other = result(2.0), result(1.0, "c")
    both = compare(one, other)
    assert both.tables["size-control"].title == "m minus c: size of heads; 95 % over what both were measured on"
    assert compare(one, one).tables["size-control"].title.startswith("m minus m, control: size of heads;")
    assert both.about["control"] == other.about and both.about["instrument"] == "none"
    assert list(both.blocks) == list(both.contrasts) == ["size", "speed", "control-size", "control-speed"]
    with pytest.raises(InputError, match="^the control has no observations 'size': measure it with the same options$"):
        compare(one, replace(other, blocks={}, contrasts={}))
    line = "^a run and its control must be measured by one instrument with the same options$"
    for about in ({"instrument": "stairs"}, {"options": {"up": True}}):
        with pytest.raises(InputError, match=line):
            compare(one, replace(other, about={**other.about, **about}))


def test_what_is_missing_in_the_run_or_its_control_is_missing_beside_it_and_in_the_mean() -> None:
    whole = result(1.0, "c")
    for run, control in ((result(2.0, lost=(1,)), whole), (result(2.0), result(1.0, "c", lost=(1,)))):
        table = compare(run, control).tables["size-control"]
        assert table.missing[1, "value_difference"] == "lost" and np.isfinite(table.frame["value_difference"][0])
        several = pool_results([compare(run, control), compare(result(3.0, "n"), whole)])
        assert list(several.tables) == ["size", "speed", "size-control", "speed-control", "size-runs", "speed-runs"]
        means = several.tables["size-runs"]
        assert np.isfinite(means.frame["value_difference"][0]) and np.isnan(means.frame["value_difference"][1])


def test_a_table_that_only_some_runs_have_is_kept_in_any_order() -> None:
    """As that of gates, which only a gated model has."""
    plain, gated = result(1.0, "a"), result(2.0, "b")
    gated = replace(gated, tables={**gated.tables, "gates": gated.tables["size"]})
    for runs in ([plain, gated], [gated, plain]):
        gates = pool_results(runs).tables["gates"]
        assert gates.frame["run"].tolist() == ["b", "b"] and gates.title == "gates of 1 of 2 runs: b"


def snapshot(level: float, run: str, step: int, **about: Any) -> Result:
    return result(level, f"{run} (runs/{run}@{step})", step=step, **about)


def other_heads(one: Result) -> Result:
    """As if heads had been ranked anew in the first table: they are named after the run."""
    heads = [replace(c, labels={**c.labels, "head": one.about["model"]}) for c in one.contrasts["size"]]
    return replace(one, contrasts={**one.contrasts, "size": heads})


def test_snapshots_are_one_table_and_a_curve_with_means_at_every_step(tmp_path: Path) -> None:
    each = [
        replace(snapshot(1.0 + step * slope, run, step), figures=(HeadMap("value", "size"),))
        for run, slope in (("a", 1), ("b", 3)) for step in (0, 4, 300)
    ]  # fmt: skip
    whole = pool_results(each)
    frame = whole.table().frame
    assert frame.columns[:3].tolist() == ["run", "step", "head"] and "tokens" not in frame
    assert frame["run"].unique().tolist() == ["a (runs/a)", "b (runs/b)"]
    assert frame["step"].tolist() == [0, 0, 4, 4, 300, 300] * 2
    assert whole.table().title == "size of 2 runs: a (runs/a), b (runs/b), 3 snapshots"
    means = whole.tables["size-runs"]
    assert means.title == "mean over 2 runs of size of heads; runs are the units"
    assert means.frame["step"].tolist() == [0, 0, 4, 4, 300, 300] and set(means.frame["n"]) == {2}
    assert means.frame["value"].tolist() == [2.5 * level for level in (1, 3, 9, 27, 601, 1803)]
    assert "tokens" not in means.frame
    assert (whole.figures[0].kind, whole.figures[0].x, whole.figures[0].by) == ("Curve", "step", "head")
    drawn = whole.figure()
    lines = [trace for trace in drawn.data if trace.mode == "lines+markers"]
    assert len(lines) == 4, "two heads in a panel for each run"
    assert lines[0].x.tolist() == [0.5, 4, 300] and drawn.layout.xaxis.type == "log", "0 has a place on the axis"
    whole.save(tmp_path / "w.parquet")
    assert Result.load(tmp_path / "w.parquet").about["over_steps"]

    with pytest.raises(InputError, match="is there twice"):
        pool_results([each[0], each[0]])
    some = pool_results(each[:4])
    assert some.about["no_mean"] == "no mean over runs: they were not all measured at the same steps"
    assert "size-runs" not in some.tables
    alone = pool_results(each[:3])
    assert alone.about["no_mean"] == "" and alone.table().title == "size of a (runs/a), 3 snapshots"
    ranked = [other_heads(one) if one.about["step"] == 4 else one for one in each]
    for runs in (ranked, [result(1.0, "a"), other_heads(result(2.0, "b"))]):
        assert {"size-runs", "speed-runs"} & set(pool_results(runs).tables) == {"speed-runs"}


def test_seeds_beside_controls_are_means_of_the_differences() -> None:
    each = [compare(result(level, f"m{level}"), result(1.0, "c")) for level in (3.0, 4.0, 8.0)]
    row = pool_results(each).tables["size-runs"].frame.set_index("head").loc["A"]
    differences = 2.5 * np.array([2.0, 3.0, 7.0])
    half = 4.302652729749462 * differences.std(ddof=1) / np.sqrt(3)  # t of 2 degrees of freedom
    assert (row["value_run"], row["value_control"]) == pytest.approx((2.5 * 5, 2.5))
    assert row["value_difference"] == pytest.approx(differences.mean())
    assert row["value_difference_high"] == pytest.approx(differences.mean() + half)


def test_snapshots_of_trainings_on_text_say_how_many_tokens_were_seen() -> None:
    def at(name: str, step: int) -> Result:
        return snapshot(1.0, name, step, tokens=512 * step)

    whole = pool_results([at(name, step) for name in "ab" for step in (0, 8)])
    frame = whole.tables["size"].frame
    assert list(frame)[:3] == ["run", "step", "tokens"] and (frame["tokens"] == 512 * frame["step"]).all()
    assert whole.tables["size"].column("tokens").unit == "training tokens"
    assert whole.tables["size-runs"].frame["tokens"].tolist() == [0, 0, 4096, 4096]
    assert whole.tables["size"].frame["n"].eq(4).all() and "measured_tokens" not in frame

    def measured(one: Result) -> Result:
        """Its table has a column of the name that training has, too, of which a cell is missing."""
        table = one.tables["size"]
        column = Column(name="tokens", title="tokens", unit="tokens", doc="that were measured", format="d")
        frame = table.frame.assign(tokens=[7.0, np.nan])
        both = replace(table, frame=frame, columns=(*table.columns, column), missing={(1, "tokens"): "none"},
                       by="tokens", per=("tokens",))  # fmt: skip
        return replace(one, tables={**one.tables, "size": both})

    both = pool_results([measured(at("a", step)) for step in (0, 8)]).tables["size"]
    assert both.frame["tokens"].tolist() == [0, 0, 4096, 4096]
    assert both.frame["measured_tokens"].iloc[[0, 2]].tolist() == [7, 7]
    assert {(1, "measured_tokens"), (3, "measured_tokens")} <= both.missing.keys()
    assert (both.by, both.per) == ("measured_tokens", ("measured_tokens",))
    assert both.column("measured_tokens").title == "tokens, measured"
    assert both.column("measured_tokens").doc == "that were measured"
    seeds = pool_results([measured(result(1.0, name)) for name in "ab"]).tables["size"]
    assert seeds.column("tokens").doc == "that were measured", "no training's, without snapshots"
    mixed = pool_results([at("a", 0), result(1.0, "b (runs/b@0)", step=0)])
    assert "tokens" not in mixed.tables["size"].frame, "where one does not say it there is no column"


@pytest.mark.parametrize("form", ["lfa (runs/lfa@8{})", "stories/lfa@1000{}"])
@pytest.mark.parametrize("marks", ["", ", edited", ", hooked", ", edited, hooked"])
def test_snapshots_are_of_their_training(form: str, marks: str) -> None:
    first, second = form.format(marks), form.format(marks).replace("@8", "@9").replace("@1", "@2")
    whole = pool_results([result(1.0, first, step=8), result(1.0, second, step=9)])
    assert set(whole.tables["size"].frame["run"]) == {first.replace("@8", "").replace("@1000", "")}


def test_where_nothing_is_tested_all_is_compared_and_percentages_are_shown() -> None:
    def untested(one: Result) -> Result:
        made = {name: [replace(c, null=None) for c in some] for name, some in one.contrasts.items()}
        return replace(one, contrasts=made)

    table = compare(untested(result(2.0)), untested(result(1.0, "c"))).tables["speed-control"]
    share = table.column("percent_difference")
    assert share.shown, "a percentage is what is read first"
    assert (share.format, share.unit, share.title) == ("+.4f", "%", "share, run − control")
    assert not table.column("value_difference").shown


def test_a_quantity_that_no_table_describes_has_the_units_of_the_measure() -> None:
    table = compare(*(replace(one, tables={}) for one in (result(2.0), result(1.0, "c")))).tables["size-control"]
    one, named = table.column("value_difference"), table.column("head")
    assert (one.unit, one.format, one.shown) == ("units of the measure", "+.4f", True)
    assert (one.title, one.doc) == ("value, run − control", "value; run − control")
    assert (named.title, named.unit, named.doc, table.by) == ("head", "name", "head of the row", "")


def test_reasons_stay_with_their_rows_in_three_runs() -> None:
    whole = pool_results([result(1.0, "a"), result(2.0, "b", lost=(1,)), result(3.0, "c", lost=(0,))])
    table = whole.tables["size"]
    assert table.frame.index.tolist() == list(range(6)) and table.frame["run"].tolist() == list("aabbcc")
    assert {row for row, name in table.missing if name == "value"} == {3, 4}
    assert table.frame["value"].isna().tolist() == [False, False, False, True, True, False]
    assert table.title == "size of 3 runs: a, b, c" and (table.by, table.most) == ("value", 9)
    assert table.per == ("head",) and "step" not in table.frame
    assert [c.name for c in table.columns][:3] == ["run", "head", "place"]
    assert list(whole.blocks) == [f"run{i}-{name}" for i in range(3) for name in ("size", "speed")]
    assert list(whole.arrays) == ["run0-x", "run1-x", "run2-x"] and whole.about["model"] == ["a", "b", "c"]
    assert [one["model"] for one in whole.about["runs"]] == ["a", "b", "c"] and not whole.about["over_steps"]
    means = whole.tables["size-runs"]
    assert means.missing[0, "value"] == means.missing[1, "value"] == "undefined in a run"
    share = means.column("percent")
    assert (share.unit, share.title, share.doc) == ("%", "share, mean over runs", "its share; mean over runs")
    assert share.format == "+.4f" and share.interval == ("percent_low", "percent_high")
    assert "percent_p" not in means.frame and means.column("n").unit == "runs"
    assert means.frame["percent"].tolist() == [5.0, 15.0]


def test_long_tables_stay_one_for_each_run_and_hide_nothing_else() -> None:
    tokens = (Column(name="token", title="token", unit="id", doc="its id", format="d"),)

    def long(one: Result) -> Result:
        table = LongTable.of([pd.DataFrame({"token": [1, 2]})], tokens, "tokens")
        return replace(one, tables={"size": one.tables["size"], "tokens": table, "speed": one.tables["speed"]})

    whole = pool_results([long(result(1.0, "a")), long(result(2.0, "b"))])
    assert list(whole.tables)[:4] == ["size", "tokens-run0", "tokens-run1", "speed"]


def test_why_there_is_no_mean() -> None:
    def said(*runs: Result) -> str:
        whole = pool_results(list(runs))
        assert bool(whole.about["no_mean"]) == ("size-runs" not in whole.tables)
        return whole.about["no_mean"]

    first, other = result(1.0, "a"), result(2.0, "b")
    same = [result(1.0, name, checkpoint=weights) for name, weights in (("a", "A"), ("b", "B"), ("a", "A"))]
    usual = {"dtype": "float32", "autocast": None, "hooked_at": [], "edited_at": []}
    alike = result(1.0, "a", **usual)
    fewer = replace(other, blocks={"size": other.blocks["size"]}, contrasts={"size": other.contrasts["size"]})
    assert said(first, other) == said(*same[:2]) == said(alike, result(2.0, "b", **usual)) == ""
    for about, why in (
        ({"dtype": "bfloat16"}, "weights of float32 and bfloat16"), ({"hooked_at": ["blocks.0"]}, "hooks of yours at"),
        ({"edited_at": ["blocks.0"]}, "edits at"), ({"autocast": "bfloat16"}, "autocast to None and bfloat16"),
    ):  # fmt: skip
        changed = result(2.0, "b", **{**usual, **about})
        assert why in said(alike, changed)
        if "dtype" in about or "autocast" in about:
            with pytest.raises(InputError, match="measure both alike"):
                compare(alike, changed)
    for runs, why in (
        ((first, result(2.0, "b", recipe="other")), "in preset, configuration, tokenizer, training or data"),
        (same, "no mean over runs: two of them have the same weights; give each run once"),
        ((first, result(2.0, "b", data="other")),
         "no mean over runs: they were measured on other data; name it, as --data SOURCE"),
        ((first, fewer), "no mean over runs: they were not measured in the same way"),
        *(([result(1.0, f"m (runs/{run})", step=8 if "@" in run else None) for run in runs],
           "no mean over runs: only some are snapshots; give each with the same steps, as RUN@STEP")
          for runs in (("a@8", "a"), ("a@8", "b"), ("a@8", "b", "c"))),
    ):  # fmt: skip
        assert said(*runs).endswith(why)
    begun = [result(1.0, f"m (runs/{run}@{step})", step=step, checkpoint=f"{step and run}")
             for run in "ab" for step in (0, 8)]  # fmt: skip
    assert pool_results(begun).about["no_mean"] == "", "runs that begin with the same weights are two runs"
    assert pool_results([result(float(i)) for i in range(1, 4)]).about["model"] == ["m", "m #2", "m #3"]
    for wrong in (result(2.0, "b", options={"k": 2}), replace(other, about={**other.about, "instrument": "some"})):
        with pytest.raises(InputError, match="^several runs make one table where one instrument measured them with"):
            pool_results([first, wrong])


def test_an_instrument_adds_its_own_to_comparisons_and_to_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def table(name: str, *results: Result) -> dict[str, Table]:
        """A row for each result: its first value, and how many it has."""
        rows = [(one.table().frame["value"][0], len(one.table().frame)) for one in results]
        columns = (key("first", "first", "its first value"), key("rows", "rows", "how many rows"))
        return {name: Table(pd.DataFrame(rows, columns=["first", "rows"]), columns, title=name)}

    own = SimpleNamespace(control_tables=partial(table, "both"), relate=partial(table, "whole"))
    monkeypatch.setattr(module, "discover", lambda: {"none": own})
    a, b = result(6.0, "a"), result(2.0, "b")
    both = compare(a, b)
    assert both.tables["both"].frame["first"].tolist() == [15.0, 5.0] and "size-control" in both.tables
    whole = pool_results([a, b])
    assert whole.tables["whole"].frame["rows"].tolist() == [4] and list(whole.tables)[:2] == ["size", "speed"]
    assert pool_results([a]) is a
