"""What the contract asks of every instrument; each check yields a line for what is broken."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from streamscope.instruments.contract import Instrument
from streamscope.instruments.figures.drawing import draw
from streamscope.instruments.pool_results import compare
from streamscope.instruments.result import Result
from streamscope.models.checkpoint import load
from streamscope.probes.check.declared import options, planted, values

Check = Callable[[type[Instrument], Result], Iterator[str]]


def measured(made: type[Instrument]) -> Result:
    """The instrument with its `quick` options on its small data and its default run."""
    how = made(**made.quick)
    return how.measure(load(how.runs[0]), *(data.small() for data in how.takes))


def problems(check: Check, made: type[Instrument], result: Result) -> list[str]:
    """What a check found; an exception is a problem too."""
    try:
        return list(check(made, result))
    except Exception as error:
        return [f"{type(error).__name__}: {error}".splitlines()[0]]


def overlooked(result: Result) -> Iterator[str]:
    """What an instrument may mean or may have missed: figures that are not drawn, columns without a value."""
    if silent := [one.name for one in result.figures if draw(one, result) is None]:
        yield f"figures without values in this small measurement: {', '.join(silent)}"
    for name, table in result.tables.items():
        empty = [one.name for one in table.columns if one.name in table.frame and table.frame[one.name].isna().all()]
        if empty:
            yield f"columns of table {name} without any value in it: {', '.join(empty)}"


def _differences(a: Result, b: Result) -> Iterator[str]:
    """Where two results differ: tables, columns, values, reasons, titles."""
    if list(a.tables) != list(b.tables):
        yield f"tables {list(a.tables)} and {list(b.tables)}"
        return
    for name, table in a.tables.items():
        other = b.tables[name]
        try:
            pd.testing.assert_frame_equal(table.frame, other.frame, check_dtype=False)
        except AssertionError as error:
            yield f"table {name}: {' '.join(str(error).split())}"
        if table.missing != other.missing:
            yield f"table {name}: other reasons of missing values"
        if table.columns != other.columns:
            yield f"table {name}: other columns"
        if table.title != other.title:
            yield f"table {name}: other titles: {table.title!r} and {other.title!r}"


def columns(made: type[Instrument], result: Result) -> Iterator[str]:
    """Every table has a title, every column a title, a unit and a sentence on what it is."""
    for name, table in result.tables.items():
        if not table.title:
            yield f"table {name} has no title"
        for column in table.columns:
            lacking = [what for what in ("title", "unit", "doc") if not getattr(column, what)]
            if lacking:
                yield f"column {column.name} of table {name} has no {' and no '.join(lacking)}"


def repeated(made: type[Instrument], result: Result) -> Iterator[str]:
    """The same call gives the same tables."""
    yield from _differences(result, measured(made))


def saved(made: type[Instrument], result: Result) -> Iterator[str]:
    """What is saved is what is loaded, tables, observations and figure, and no other file is left."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "x.parquet"
        written = result.save(path, figure=path.with_suffix(".html"))
        if lost := [one for one in written if not one.is_file()]:
            yield f"{lost[0].name} is said to be written and is not there"
        if left := sorted(path.parent.glob(".*")):
            yield f"{left[0].name} was left"
        read = Result.load(path)
        yield from _differences(result, read)
        if read.figure().to_json() != result.figure().to_json():
            yield "the figure of what was loaded is another"
        if read.about != result.about:
            yield "what is known about the result is not what was saved"
        for kind, block in result.blocks.items():
            if not np.array_equal(read.blocks[kind].total, block.total, equal_nan=True):
                yield f"observations {kind} are not what was saved"
            if list(read.contrasts[kind]) != list(result.contrasts[kind]):
                yield f"contrasts of {kind} are not what was saved"


def control(made: type[Instrument], result: Result) -> Iterator[str]:
    """A model beside itself differs nowhere, and nothing is tested there."""
    both = compare(result, result)
    for kind, block in result.blocks.items():
        frame = both.tables[f"{kind}-control"].frame
        names = [name for name in frame if name.endswith("_difference")]
        if not names:
            yield f"table {kind}-control has no difference"
        for name in names:
            if not (frame[name].dropna().abs() <= block.measure.resolution).all():
                yield f"{name} of {kind} is not 0"
            if frame[f"{name}_p"].notna().any():
                yield f"{name} of {kind} has a p"


def figures(made: type[Instrument], result: Result) -> Iterator[str]:
    """A declared figure has values, and is drawn for the screen, for dark pages and for a column of a paper."""
    drawn = 0
    for one in result.figures:
        paper, dark = draw(one, result, paper=True), draw(one, result, dark=True)
        if paper is None or dark is None:
            continue
        drawn += 1
        if paper.layout.width >= 400:
            yield f"{one}: on paper it is wider than a column"
        if dark.layout.template.layout.paper_bgcolor == "white":
            yield f"{one}: on a dark page it is white"
    if not drawn:
        yield "no figure is declared that its default has values for"


CHECKS: dict[str, Check] = {
    "columns": columns, "options": options, "values": values, "repeated": repeated, "saved": saved,
    "control": control, "figures": figures, "planted": planted,
}  # fmt: skip
