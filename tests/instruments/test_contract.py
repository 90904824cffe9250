"""What the contract promises of every instrument, and the house finds them by itself."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import options_of
from streamscope.instruments.data import Documents, Prompts, Tasks, Tokens
from streamscope.instruments.prompts import FILES
from streamscope.instruments.registry import discover
from streamscope.instruments.result import Result
from streamscope.instruments.user_instrument import instrument_in
from streamscope.models import load
from streamscope.probes.check import main as check
from streamscope.probes.check.measure import CHECKS, measure_small, problems

ROOT = Path(__file__).resolve().parents[2]
INSTRUMENTS = discover()
NAMES = sorted(INSTRUMENTS)
INSIDE = [check for check in CHECKS if check != "values"]
SLOW = ("repeated", "figures")
"""What is saved is drawn too."""
_kept: dict[str, Result] = {}
_steps: dict[str, int] = {}
"""How many steps of the progress bar each took."""
QUICK = {"mixing_monitor", "routing"}
"""Instruments that read weights, or what a training wrote."""


def result_of(name: str) -> Result:
    def bar(label: str) -> Callable[[Iterable], Iterable]:
        def count(steps: Iterable) -> Iterator:
            for step in steps:
                yield step
                _steps[name] = _steps.get(name, 0) + 1

        return count

    if name not in _kept:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamscope.instruments.contract.notebook_bar", bar)
            _kept[name] = measure_small(INSTRUMENTS[name])
    return _kept[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_instrument_says_how_far_it_is(name: str) -> None:
    """Without steps a command would only print "working for 202 s"."""
    result_of(name)
    assert _steps.get(name, 0) > 0 or name in QUICK


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in INSIDE])
def test_the_contract_is_kept(check: str, name: str) -> None:
    assert problems(CHECKS[check], INSTRUMENTS[name], result_of(name)) == []


@pytest.mark.parametrize(
    ("name", "measure"),
    [(name, one) for name, made in INSTRUMENTS.items() for field in fields(made) if field.name == "measures"
     for one in re.findall(r"'([^']+)'", str(field.type))],
)  # fmt: skip
def test_titles_of_figures_follow_the_measure(name: str, measure: str) -> None:
    made = INSTRUMENTS[name]
    how = made(**{**made.quick, "measures": (measure,)})
    result = how.measure(load(how.runs[0]), *(one.small() for one in how.takes if type(one) not in how.unread({})))
    assert problems(CHECKS["titles"], made, result) == []


@pytest.mark.parametrize("name", NAMES)
def test_bad_values_of_every_option_are_one_line(name: str) -> None:
    assert problems(CHECKS["values"], INSTRUMENTS[name], None) == []


def test_an_unknown_option_in_python_gets_the_near_ones() -> None:
    for cls in INSTRUMENTS.values():
        for one in fields(cls):
            line = rf"^unknown option of {cls.__name__} '{one.name}x': .*\b{one.name}\b"
            with pytest.raises(InputError, match=line) as no:
                cls(**{f"{one.name}x": 1})
            assert isinstance(no.value, TypeError), "as Python's own"
    with pytest.raises(InputError, match=r"^unknown option of Ablate 'head': did you mean heads or"):
        replace(INSTRUMENTS["ablate"](), head="L0.H0")
    with pytest.raises(InputError, match=r"^unknown option of Documents 'max_document': did you mean max_documents"):
        Documents("a.txt", max_document=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["ablate", "specialization", "contraction", "needed_context", "sps", "hydra"])
def test_one_document_prompt_or_case_is_singular_in_titles(name: str, tmp_path: Path) -> None:
    prompt = json.loads(FILES["competing"].read_text().splitlines()[0])
    (path := tmp_path / "one.jsonl").write_text(json.dumps({**prompt, "pair": None, "order": None}))
    given = {Documents: Documents("stories:1:1"), Tokens: Tokens("stories:1:1", max_tokens=40),
             Prompts: Prompts(suite=str(path)), Tasks: Tasks(tasks=(str(path),))}  # fmt: skip
    cls = INSTRUMENTS[name]
    data = [given[type(one)] for one in cls.takes if name != "ablate" or type(one) is Documents]
    result = cls(**cls.quick).measure(load(cls.runs[0]), *data)
    titles = [table.title for table in result.tables.values()]
    assert any(re.search(r"\b1 (document|prompt|case)\b", title) for title in titles), titles
    assert not [title for title in titles if re.search(r"(?<![\d.,])1 [a-z]+[^s ]s\b", title)]


MINE = (
    "import numpy as np\n"
    "from streamscope.instruments.contract import Instrument, InstrumentData, instrument\n"
    "from streamscope import Documents\n"
    "from streamscope.instruments.observations import Measure, Observations, each, head_cells\n"
    "from streamscope.instruments.table import HEAD, Table, counts, described\n"
    "@instrument('mine', Documents())\n"
    "class Mine(Instrument):\n"
    "    'What is drawn.'\n"
    "    k: int = 1\n"
    "    def observe(self, model, data, progress):\n"
    "        opened, cells = data[Documents], head_cells(model)\n"
    "        units = opened.units()\n"
    "        total = np.random.default_rng().normal(size=(len(cells), len(units)))\n"
    "        block = Observations(measure=Measure(name='x', unit='u', resolution=1e-6), cells=cells, units=units,\n"
    "                             total=total, size=1.0)\n"
    "        return InstrumentData({'x': block}, {'x': each('x', cells, tested=False)})\n"
    "    def tables(self, seen, estimates):\n"
    "        frame, missing = estimates['x'].wide(['head', 'layer', 'index'])\n"
    "        columns = (*HEAD, *described('x', 'x', 'u', 'what is drawn', sd='units'), *counts('units', 'units'))\n"
    "        return {'x': Table(frame, columns, missing, 'drawn')}\n"
)


def broken(text: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the check prints of an instrument that does not keep the contract."""
    path.write_text(text)
    with pytest.raises(SystemExit) as end:
        check([str(path)])
    assert end.value.code == 1
    return capsys.readouterr().out


DRAWN = "    from streamscope.instruments.figures import HeadMap\n    figures = (HeadMap('x'), HeadMap('y'))\n"


def test_what_is_broken_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An instrument that draws anew at every call, says nothing of its option, has no figure and no planted case."""
    out = broken(MINE, tmp_path / "mine.py", capsys)
    checks = {line.split()[1].rstrip(":") for line in out.splitlines() if line.startswith("broken")}
    assert checks >= {"options", "repeated", "figures", "planted"}
    assert 'option k has no """docstring"""' in out and "planted names no test" in out


def test_tests_of_streamscope_itself_are_not_asked_of_an_installation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has no tests; those of a user's own instrument lie next to it."""
    monkeypatch.setattr("streamscope.probes.check.measure.folder_of", lambda room: tmp_path / room)
    monkeypatch.delitem(CHECKS, "values")  # tests check the types first
    check(["picture"])
    *kept, last = (line for line in capsys.readouterr().out.splitlines() if not line.startswith("note"))
    assert len(kept) == len(CHECKS) - 1 and all(line.startswith("kept") and line.endswith(".") for line in kept)
    where = "is in a clone of the repository, not in this installation"
    assert last == f"left out planted: {INSTRUMENTS['picture'].planted} {where}"
    assert "planted names no test" in broken(MINE, tmp_path / "mine.py", capsys)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{'x': each", "{'z': each", "TypeError: mine: blocks ['x'], but contrasts of ['z']"),
        (".wide(['head', 'layer'", ".wide(['head', 'lair'", "KeyError: 'lair', line 18"),
        ("'mine', Documents()", "'mine'",
         "KeyError: 'Documents are not among the data of this instrument; name them in @instrument', line 11"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_one_line(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in MINE
    assert broken(MINE.replace(old, new), tmp_path / "mine.py", capsys) == f"broken  measured: {said}\n"


def test_what_is_easily_overlooked_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure of a column that is not there, and a column whose values are all missing."""
    figures = "note    figures without values in this small measurement: "
    columns = "note    columns of table x without any value in it: x, x_sd, x_low, x_high"
    for size, notes in (("0.0", [f"{figures}x, y", columns]), ("1.0", [f"{figures}y"])):
        text = MINE.replace("total=total, size=1.0", f"total={size} * total, size={size}")
        out = broken(text.replace("    k: int", f"{DRAWN}    k: int"), tmp_path / f"mine{size[0]}.py", capsys)
        assert [line for line in out.splitlines() if line.startswith("note")] == notes


def test_data_come_with_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("Documents())", "Documents)"))
    with pytest.raises(InputError, match=r"takes data with their defaults: Documents\(\), not Documents, line 6$"):
        instrument_in(str(tmp_path / "mine.py"))


def test_a_notebook_shows_options_with_plain_types_and_what_they_mean() -> None:
    """`Ablate?` and the tooltip of `Ablate(`: no bounds, no fields of dataclasses."""
    made = INSTRUMENTS["ablate"]
    signature = inspect.signature(made)
    assert list(signature.parameters) == [one.name for one in fields(made)]
    assert signature.parameters["heads"].annotation == tuple[str, ...] and signature.parameters["draws"].default == 39
    assert all("Bounds" not in str(inspect.signature(one)) for one in INSTRUMENTS.values())
    assert "Bounds" not in str(inspect.signature(Documents))
    said = made.getdoc()
    assert (
        said.startswith("Ablate heads, alone or in sets")
        and "\nscale = (0.0,)\n    Factors on the heads' outputs: 0 removes a head, 1 leaves it." in said
    )
    for one in INSTRUMENTS.values():
        assert all(f"\n{name} = " in one.getdoc() and meaning for name, _, meaning in options_of(one))
