"""The contract of every instrument as checks; each yields one line per fault."""

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamscope.aliases import folder_of
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Instrument, options_of
from streamscope.instruments.figures.drawing import axis, draw, headline
from streamscope.instruments.result import Result, compare
from streamscope.models.checkpoint import load

Check = Callable[[type[Instrument], Result], Iterator[str]]


def measure_small(instrument: type[Instrument]) -> Result:
    """The result of the instrument with its `quick` options on its small data and its default run."""
    instance = instrument(**instrument.quick)
    return instance.measure(load(instance.runs[0]), *(data.small() for data in instance.takes))


def problems(check: Check, instrument: type[Instrument], result: Result) -> list[str]:
    """The faults that a check finds; an exception is one, too."""
    try:
        return list(check(instrument, result))
    except Exception as error:
        return [f"{type(error).__name__}: {error}".splitlines()[0]]


def notes(result: Result) -> Iterator[str]:
    """Things that may be intended or overlooked: figures that are not drawn, columns without a value."""
    if silent := [figure.name for figure in result.figures if draw(figure, result) is None]:
        yield f"figures without values in this small measurement: {', '.join(silent)}"
    for name, table in result.tables.items():
        if empty := [column.name for column in table.columns if table.frame[column.name].isna().all()]:
            yield f"columns of table {name} without any value in it: {', '.join(empty)}"


def _differences(a: Result, b: Result) -> Iterator[str]:
    """Differences between two results: tables, columns, values, reasons, titles."""
    if list(a.tables) != list(b.tables):
        yield f"tables {list(a.tables)} and {list(b.tables)}"
        return
    for name, table in a.tables.items():
        counterpart = b.tables[name]
        try:
            pd.testing.assert_frame_equal(table.frame, counterpart.frame, check_dtype=False)
        except AssertionError as error:
            yield f"table {name}: {' '.join(str(error).split())}"
        for part in ("missing", "columns", "title"):
            if (one := getattr(table, part)) != (other := getattr(counterpart, part)):
                yield f"table {name}: different {part}: {one!r:.200} and {other!r:.200}"


def options(instrument: type[Instrument], result: Any) -> Iterator[str]:
    """Every option has a docstring below it, which is its help."""
    undocumented = (name for name, _, meaning in options_of(instrument) if not meaning)
    yield from (f'option {name} has no """docstring""" under it' for name in undocumented)


def values(instrument: type[Instrument], result: Any) -> Iterator[str]:
    """A value of another type, or NaN, is refused in one line that begins with the option."""
    for option in fields(instrument):
        for bad in (object(), float("nan"), {"a": 1}, 1 if option.type in (bool, "bool") else True):
            try:
                instrument(**{option.name: bad})
            except InputError as error:
                if "\n" in str(error) or not str(error).startswith(option.name):
                    yield f"option {option.name}: the error is {str(error)!r}"
            else:
                yield f"option {option.name} takes {bad!r}"


def tests_elsewhere(instrument: type[Instrument]) -> bool:
    """Whether the instrument is one of streamscope, whose tests are in a clone, and this is an installation without."""
    return instrument.__module__.startswith("streamscope.") and not folder_of("tests").is_dir()


def planted_test(instrument: type[Instrument], result: Any) -> Iterator[str]:
    """`planted` names a test, FILE::NAME, of a case with a known answer, in the instrument's folder or above."""
    name, _, test = instrument.planted.partition("::")
    source = Path(sys.modules[instrument.__module__].__file__ or "").resolve()
    files = [folder / name for folder in source.parents if name and (folder / name).is_file()]
    if not files:
        yield f"there is no file {name!r} in the folder of {source.name} or above" if name else "planted names no test"
    elif f"def {test}(" not in files[0].read_text(encoding="utf-8"):
        yield f"{name} has no test {test!r}"


def columns(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """Every table has a title; every column has a title of its own, where it is shown, a unit and a description."""
    for name, table in result.tables.items():
        if not table.title:
            yield f"table {name} has no title"
        for column in table.columns:
            lacking = [field for field in ("title", "unit", "doc") if not getattr(column, field)]
            if lacking:
                yield f"column {column.name} of table {name} has no {' and no '.join(lacking)}"
        titles = Counter(shown_column.title for shown_column in table.shown())
        yield from (f"{n} columns of table {name} are shown as {title!r}" for title, n in titles.items() if n > 1)


def repeatable(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """The same call gives the same tables."""
    yield from _differences(result, measure_small(instrument))


def round_trip(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """Saving and loading preserve tables, observations and figure, and leave no other file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "x.parquet"
        paths = result.save(path, figure=path.with_suffix(".html"))
        if absent := [file for file in paths if not file.is_file()]:
            yield f"{absent[0].name} was reported as written but does not exist"
        if leftovers := sorted(path.parent.glob(".*")):
            yield f"{leftovers[0].name} was left behind"
        copied_result = Result.load(path)
        yield from _differences(result, copied_result)
        if copied_result.figure().to_json() != result.figure().to_json():
            yield "the figure of the loaded result differs"
        if copied_result.about != result.about:
            yield "the description of the loaded result differs"
        for kind, block in result.blocks.items():
            if not np.array_equal(copied_result.blocks[kind].total, block.total, equal_nan=True):
                yield f"observations {kind} differ after loading"
            if list(copied_result.contrasts[kind]) != list(result.contrasts[kind]):
                yield f"contrasts of {kind} differ after loading"


def control(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """A model compared with itself differs nowhere, and nothing is tested there."""
    comparison = compare(result, result)
    for kind, block in result.blocks.items():
        frame = comparison.tables[f"{kind}-control"].frame
        names = [name for name in frame if name.endswith("_difference")]
        if not names:
            yield f"table {kind}-control has no difference"
        for name in names:
            if not (frame[name].dropna().abs() <= block.measure.resolution).all():
                yield f"{name} of {kind} is not 0"
            if frame[f"{name}_p"].notna().any():
                yield f"{name} of {kind} has a p"


def figures(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """A declared figure has values and is drawn for the screen, for dark pages and for a paper's column."""
    n_drawn = 0
    for figure in result.figures:
        paper, dark = draw(figure, result, paper=True), draw(figure, result, dark=True)
        if paper is None or dark is None:
            continue
        n_drawn += 1
        if paper.layout.width >= 400:
            yield f"{figure}: it is wider than a column on paper"
        if dark.layout.template.layout.paper_bgcolor == "white":
            yield f"{figure}: it is white on a dark page"
    if not n_drawn:
        yield "no declared figure has values by default"


MEASURED = (
    "accuracy", "auc", "coherence", "cosine", "entropy", "kl", "log-odds", "loss", "pds", "probability", "recovery",
    "share", "sps",
)  # fmt: skip
"""Words for a quantity, which a figure's title may use only of a column that has them."""


RANGES = {"share": (0.0, 1.0), "probability": (0.0, 1.0), "attention": (0.0, 1.0), "heads": (0.0, np.inf)}
"""First word of a unit -> the least and the largest value of a column whose numbers have no sign."""


def intervals(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """Intervals hold their value; those of shares, probabilities and counts end inside their range."""
    for name, table in result.tables.items():
        for column in (column for column in table.columns if column.interval is not None):
            low_name, high_name = column.interval or ("", "")
            value, *ends = (table.frame[end].to_numpy(float) for end in (column.name, low_name, high_name))
            rounding = 1e-9 + 1e-6 * np.abs(value)
            if n_outside := int(((value < ends[0] - rounding) | (value > ends[1] + rounding)).sum()):
                yield f"column {column.name} of table {name} has {n_outside} values outside their intervals"
            unit = re.match(r"\w*", column.unit)
            signed = column.format.startswith("+")
            low, high = (-np.inf, np.inf) if signed or unit is None else RANGES.get(unit[0], (-np.inf, np.inf))
            if (ends[0] < low - 1e-9).any() or (ends[1] > high + 1e-9).any():
                worst = f"{np.nanmin(ends):.3g} to {np.nanmax(ends):.3g}"
                yield f"column {column.name} of table {name}, {column.unit}, has intervals from {worst}"


def titles(instrument: type[Instrument], result: Result) -> Iterator[str]:
    """A figure's title names no other quantity than the column drawn: no loss over an axis of coherence."""
    for figure in result.figures:
        table = result.tables.get(figure.table) if figure.table is not None else result.table()
        if table is None or figure.y not in table.frame:
            continue
        column, title = table.column(figure.y), headline(figure, table)
        terms = " ".join((column.name, column.title, column.unit, column.doc)).lower().replace("_", "-")
        if strange := [word for word in MEASURED if re.search(rf"\b{word}\b", title.lower()) and word not in terms]:
            yield f"figure {figure.name}: the title {title!r} names {strange[0]}, but {axis(column)} is drawn"


CHECKS: dict[str, Check] = {
    "columns": columns, "options": options, "values": values, "repeated": repeatable, "saved": round_trip,
    "control": control, "figures": figures, "titles": titles, "intervals": intervals,
    "planted": planted_test,
}  # fmt: skip
