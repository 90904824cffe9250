"""Tables of the papers: every column is described once, in columns.csv, for the screen and for the files."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd

from streamscope.instruments.table import Column, Table, format_of
from streamscope.instruments.undefined_cells import COLUMN as UNDEFINED

NOT_DESCRIBED = "not described"
OWNERS = ("difference", "mean", "value", "delta", "change", "sps", "log_odds")
"""Columns that ci_low and ci_high may be the interval of: the first that a table has."""


@cache
def described() -> dict[tuple[str, str], Column]:
    """(table, column) -> its description; of the table "" those that mean the same wherever they stand."""
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row.pop("table"), row) for row in csv.DictReader(file)]
    return {(table, row["name"]): Column(interval=None, shown=True, **row) for table, row in rows}


def column(name: str, table: str, own: Sequence[Column] = ()) -> Column:
    """The description of a column of a table, PAPER/NAME or NAME; an end of an interval has that of its number.

    Older tables may have more columns, which nothing describes.
    """
    known = {(table, one.name): one for one in own} | described()
    places = (table, table.rpartition("/")[2], "")
    for end, words in (("", ""), ("_low", ", lower end"), ("_high", ", upper end")):
        number = name.removesuffix(end) if name.endswith(end) else ""
        if description := next((known[place, number] for place in places if (place, number) in known), None):
            return replace(description, name=name, title=f"{description.title}{words}")
    return Column(name=name, title=name.replace("_", " "), unit=NOT_DESCRIBED, doc="of the row")


def units(frame: pd.DataFrame, table: str, own: Sequence[Column] = ()) -> dict[str, str]:
    """The unit of every column that is described."""
    unit_of = {str(name): column(str(name), table, own).unit for name in frame if name != UNDEFINED}
    return {name: unit for name, unit in unit_of.items() if unit != NOT_DESCRIBED}


def table_of(
    frame: pd.DataFrame, table: str, title: str = "", names: Sequence[str] = (), own: Sequence[Column] = ()
) -> Table:
    """A table of the framework: `names` are the columns that are shown, in this order, by default all.

    A number stands with its interval. The text column `undefined` gives the reasons of missing values.
    """
    owner = next((name for name in OWNERS if name in frame), "")
    columns, ends = [], set()
    for name in frame.columns.drop(UNDEFINED, errors="ignore"):
        one, low = column(name, table, own), "ci_low" if name == owner else f"{name}_low"
        interval = (low, f"{low.removesuffix('low')}high") if low in frame else None
        ends |= set(interval or ())
        columns.append(replace(one, format=one.format or format_of(frame[name]), interval=interval))
    shown = names or [one.name for one in columns if one.name not in ends]
    columns = [replace(one, shown=one.name in shown) for one in columns]
    columns.sort(key=lambda one: shown.index(one.name) if one.shown else len(shown))
    return Table.noted(frame.reset_index(drop=True), tuple(columns), title)
