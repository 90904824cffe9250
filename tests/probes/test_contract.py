"""What the contract promises of every instrument, and the house finds them by itself."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.models.checkpoint import load
from streamscope.models.errors import InputError
from streamscope.probes.contract import Documents, Instrument, Prompts, Seen, discover, instrument
from streamscope.probes.figures import HeadMap
from streamscope.probes.observations import Contrast, Measure, Observations
from streamscope.probes.result import Column, Result, Table, counts, key, quantity
from streamscope.probes.together import compare, together

ROOT = Path(__file__).resolve().parents[2]
INSTRUMENTS = discover()
NAMES = sorted(INSTRUMENTS)
_kept: dict[str, Result] = {}


def small(name: str) -> Instrument:
    return INSTRUMENTS[name](**INSTRUMENTS[name].quick)


def measured(name: str) -> Result:
    if name not in _kept:
        how = small(name)
        _kept[name] = how.measure(how.runs[0], *(one.small() for one in how.takes))
    return _kept[name]


def equal(a: Result, b: Result) -> None:
    assert list(a.tables) == list(b.tables)
    for name, table in a.tables.items():
        pd.testing.assert_frame_equal(table.frame, b.tables[name].frame, check_dtype=False)
        assert table.missing == b.tables[name].missing
        assert table.columns == b.tables[name].columns
        assert table.title == b.tables[name].title


def test_instruments_are_found() -> None:
    assert {"ablate", "pds"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_column_and_option_says_what_it_is(name: str) -> None:
    for table in measured(name).tables.values():
        assert table.title
        for column in table.columns:
            assert column.title and column.unit and column.doc, f"{name}: {column.name}"
    source = Path(sys.modules[INSTRUMENTS[name].__module__].__file__ or "").read_text()
    for one in fields(INSTRUMENTS[name]):
        assert f"    {one.name}:" in source, f"{name} declares {one.name} elsewhere"
        after = source.split(f"    {one.name}:", 1)[1].split("\n", 1)[1].lstrip()
        assert after.startswith('"""'), f"{name}: option {one.name} has no documentation"


@pytest.mark.parametrize("name", NAMES)
def test_the_same_call_gives_the_same_tables(name: str) -> None:
    how = small(name)
    equal(measured(name), how.measure(load(how.runs[0]), *(one.small() for one in how.takes)))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_what_is_loaded(name: str, tmp_path: Path) -> None:
    result, path = measured(name), tmp_path / "new" / "x.parquet"
    written = result.save(path, figure=path.with_suffix(".html"))
    assert all(one.is_file() for one in written)
    assert not list(path.parent.glob(".*"))
    read = Result.load(path)
    equal(result, read)
    assert read.figure().to_json() == result.figure().to_json()
    for kind, block in result.blocks.items():
        np.testing.assert_array_equal(read.blocks[kind].total, block.total)
        assert list(read.contrasts[kind]) == list(result.contrasts[kind])
    assert read.about == result.about


@pytest.mark.parametrize("name", NAMES)
def test_a_model_beside_itself_differs_nowhere(name: str) -> None:
    result = measured(name)
    both = compare(result, result)
    for kind, block in result.blocks.items():
        table = both.tables[f"{kind}-control"]
        differences = [c for c in table.frame if c.endswith("_difference")]
        assert differences
        for column in differences:
            values = table.frame[column].dropna()
            assert (values.abs() <= block.measure.resolution).all()
            assert table.frame[f"{column}_p"].isna().all()


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_for_screen_and_paper(name: str) -> None:
    result = measured(name)
    drawn = [one for one in result.figures if one.draw(result) is not None]
    assert drawn, f"{name} declares no figure that its default has values for"
    for one in drawn:
        assert one.draw(result, paper=True).layout.width < 400
        assert one.draw(result, dark=True).layout.template.layout.paper_bgcolor != "white"


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_case_exists(name: str) -> None:
    path, _, test = INSTRUMENTS[name].planted.partition("::")
    assert (ROOT / path).is_file()
    assert f"def {test}(" in (ROOT / path).read_text()


def outside(code: str) -> str:
    """What a process prints in which no types are checked for it."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_of_every_instrument_imports_nothing_heavy() -> None:
    said = outside(
        "import sys, importlib\n"
        f"for name in {[cls.__module__ for cls in INSTRUMENTS.values()]!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    try:\n        module.main(['--help'])\n    except SystemExit as end:\n        assert not end.code\n"
        "heavy = {'torch', 'transformer_lens', 'numpy', 'pandas', 'scipy', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for name in NAMES:
        for one in fields(INSTRUMENTS[name]):
            option = one.name.replace("_", "-")
            assert f"--{option}" in said or f"--no-{option}" in said


def test_bad_values_of_every_option_are_one_line() -> None:
    said = outside(
        "from dataclasses import fields\n"
        "from streamscope.models.errors import InputError\n"
        "from streamscope.probes.contract import discover\n"
        "for cls in discover().values():\n"
        "    for one in fields(cls):\n"
        "        for bad in [object(), float('nan'), {'a': 1}, *([True] if one.type not in (bool, 'bool') else [1])]:\n"
        "            try:\n                cls(**{one.name: bad})\n"
        "            except InputError as error:\n"
        "                assert '\\n' not in str(error) and str(error).startswith(one.name), error\n"
        "            else:\n                raise SystemExit(f'{cls.name}: {one.name} takes {bad!r}')\n"
        "        print(cls.name, one.name)\n"
    )
    assert len(said.splitlines()) == sum(len(fields(cls)) for cls in INSTRUMENTS.values())


# ---- the contract itself, on an instrument made here ---------------------------------------------


@instrument("steps", Prompts())
class Steps(Instrument):
    """How long each head's planted value is; for the tests of the contract."""

    up: bool = False
    """Values grow."""
    figures = (HeadMap("value"),)

    def observe(self, model: Any, data: Any, progress: Any) -> Seen:
        cells = pd.DataFrame({"head": ["L0H0", "L0H1"], "layer": 0, "index": [0, 1]})
        units = pd.DataFrame({"unit": list("abcd"), "cluster": list("abcd")})
        total = model.level * np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
        block = Observations(measure=Measure(name="v", unit="steps", resolution=1e-9), cells=cells, units=units,
                             total=total * (2 if self.up else 1), size=np.ones(1))  # fmt: skip
        rows = [Contrast(quantity="value", weights={i: 1.0}, labels=dict(cells.iloc[i])) for i in range(2)]
        return Seen({"v": block}, {"v": rows})

    def tables(self, seen: Seen, estimates: Any) -> dict[str, Table]:
        frame, missing = estimates["v"].wide(["head", "layer", "index"])
        columns = (
            key("head", "head", "its name"), key("layer", "layer", "its layer", "layer", "d"),
            key("index", "index", "its place", "head", "d"), *quantity("value", "value", "steps", "the planted value"),
            *counts("letters", "letters"),
        )  # fmt: skip
        return {"main": Table(frame, columns, missing, "planted [/b] title")}


from streamscope.probes.contract import REGISTERED  # noqa: E402

REGISTERED.pop("steps")


class Nobody:
    """A model that is not asked anything."""

    level = 1.0


class Twice(Nobody):
    """Another recipe."""

    level = 2.0


def test_what_was_planted_comes_out() -> None:
    table = Steps().measure(Nobody()).table()
    assert table.frame["value"].tolist() == [2.5, 1.0]
    assert table.missing[1, "value_p"] == "the same in every independent case"
    shown = table.markdown()
    assert "| L0H0 | 0 | 0 | +2.5000 (+0." in shown
    assert "undefined (1 row) p, Holm: the same in every independent case" in shown
    assert "&lt;" not in table._repr_html_()
    table.print()  # markup in a title breaks nothing


def test_several_runs_are_one_table_with_seeds_as_units() -> None:
    other = Nobody()
    other.level = 2.0
    both = together([Steps().measure(Nobody()), Steps().measure(other)])
    assert both.table().frame["run"].tolist() == ["Nobody", "Nobody", "Nobody #2", "Nobody #2"]
    assert {row for row, _ in both.table().missing} == {1, 3}
    assert both.table().title == "main of 2 runs: Nobody, Nobody #2"
    assert both.tables["v-runs"].frame["value"].tolist() == [3.75, 1.5]
    assert both.tables["v-runs"].frame["n"].tolist() == [2, 2]
    panels = both.figure("value").data
    assert [np.asarray(panel.z).tolist() for panel in panels] == [[[2.5, 1.0]], [[5.0, 2.0]]]


def test_a_mean_is_over_seeds_of_one_recipe_only() -> None:
    found = together([Steps().measure(Nobody()), Steps().measure(Twice())])
    assert list(found.tables) == ["main"]
    assert found.about["no_mean"] == "no mean over runs: they differ in preset, configuration or tokenizer"
    with pytest.raises(InputError, match="with the same options"):
        together([Steps().measure(Nobody()), Steps(up=True).measure(Nobody())])


def test_files_of_two_results_are_not_read_as_one(tmp_path: Path) -> None:
    from shutil import copy

    name = "t-observations.parquet"
    for folder, model in (("a", Nobody()), ("b", Twice())):
        Steps().measure(model).save(tmp_path / folder / "t.parquet")
    copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(InputError, match="belongs to another result"):
        Result.load(tmp_path / "a" / "t.parquet")
    with pytest.raises(InputError, match="damaged, or of another version"):
        Result.load(tmp_path / "b" / name)


def test_data_given_twice_and_folders_for_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="given twice"):
        Steps().measure(Nobody(), Prompts(), Prompts("stories"))
    for out in (Path("."), Path("/"), tmp_path):
        with pytest.raises(InputError, match="is a folder"):
            Steps().measure(Nobody()).save(out)


def test_other_options_and_data_are_refused() -> None:
    with pytest.raises(InputError, match="same options"):
        compare(Steps().measure(Nobody()), Steps(up=True).measure(Nobody()))
    with pytest.raises(InputError, match="takes Prompts, not Documents"):
        Steps().measure(Nobody(), Documents())
    with pytest.raises(InputError, match="up: input should be a valid boolean"):
        Steps(up=1)  # type: ignore[arg-type]


def test_names_that_would_hide_something_are_refused() -> None:
    for name in ("measure", "out", "suite", "figures"):
        with pytest.raises(TypeError, match=name):
            instrument("bad", Prompts())(
                type("Bad", (Instrument,), {"__annotations__": {name: int}, name: 1, "__doc__": "x"})
            )
    empty = instrument("empty")(type("Empty", (Instrument,), {"__annotations__": {}, "__doc__": "x"}))
    REGISTERED.pop("empty")
    with pytest.raises(TypeError, match="needs the methods observe and tables"):
        empty().measure(Nobody())
    with pytest.raises(TypeError, match="runs and figures are tuples"):
        instrument("bad")(type("Bad", (Instrument,), {"__annotations__": {}, "__doc__": "x", "runs": "lfa"}))
    twice = {"__annotations__": {}, "__doc__": "x", "figures": (HeadMap("a"), HeadMap("a"))}
    with pytest.raises(TypeError, match="two figures are called 'a'"):
        instrument("bad")(type("Bad", (Instrument,), twice))
    with pytest.raises(TypeError, match="docstring"):
        instrument("bad")(type("Bad", (Instrument,), {"__annotations__": {}}))


def test_a_table_without_a_description_is_refused() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan]})
    with pytest.raises(InputError, match="'a' has no title, unit and doc"):
        Table(frame, ())
    with pytest.raises(InputError, match="no unit"):
        Column(name="a", title="a", unit=" ", doc="a")
    column = Column(name="a", title="a", unit="nats", doc="a", format=".1f")
    with pytest.raises(InputError, match="a value and a reason"):
        Table(frame, (column,), {(0, "a"): "why"})
    with pytest.raises(InputError, match="described, but not there"):
        Table(frame, (column, Column(name="b", title="b", unit="nats", doc="b")))


def test_values_are_taken_as_they_mean() -> None:
    class Some(Instrument):
        """Options of every kind."""

        heads: tuple[str, ...] = ("all",)
        scale: tuple[float, ...] = (0.0,)
        n: int = 1

    some = instrument("some")(Some)
    REGISTERED.pop("some")
    made = some(heads="L4.*", scale=np.array([0, 0.5]), n=np.int64(3))
    assert (made.heads, made.scale, made.n) == (("L4.*",), (0.0, 0.5), 3)
    for bad in ({"n": "3"}, {"n": 2.5}, {"n": True}, {"heads": (1,)}, {"scale": (float("inf"),)}):
        with pytest.raises(InputError):
            some(**bad)


def test_damaged_results_are_one_line(tmp_path: Path) -> None:
    for content in (b"", b"PAR1 nothing", b"\x00" * 100):
        path = tmp_path / "x.parquet"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            Result.load(path)
        assert "\n" not in str(caught.value)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(InputError, match="no result of an instrument"):
        Result.load(tmp_path / "y.parquet")
