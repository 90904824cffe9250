"""What the contract promises of every instrument, and the house finds them by itself."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamscope.models.checkpoint import load
from streamscope.probes.contract import Instrument, discover
from streamscope.probes.result import Result
from streamscope.probes.together import compare

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


@pytest.mark.slow
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
