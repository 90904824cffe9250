"""Numbers of sentences and figures, each read from one cell of a result table."""

import math
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.papers.claims.judged import Tables, interval
from streamscope.papers.claims.ledger import keys
from streamscope.papers.comparison.printed import number as printed_number
from streamscope.papers.pages.markdown import minus

OVER = re.compile(r"(min|max|mean|count)\((\w+)\)")


class Number(float):
    """A number that is written with a minus sign, and a space before the percent sign."""

    def __format__(self, spec: str) -> str:
        return minus(format(float(self), spec).replace("%", "\u00a0%"))


@dataclass(frozen=True)
class Value:
    """A number with its 95 % interval, NaN where it has none.

    As text, `f"{x:.2f}"` is "0.46 (0.42 to 0.49)"; `f"{x.value:.2f}"` is the number alone.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, Number(getattr(self, name)))

    def __format__(self, spec: str) -> str:
        own, *ends = (format(x, spec) for x in (self.value, self.low, self.high))
        return f"{own} ({ends[0]} to {ends[1]})" if self.low == self.low else own

    def __mul__(self, factor: float) -> "Value":
        """In another unit."""
        ends = sorted((factor * self.low, factor * self.high)) if self.low == self.low else (math.nan, math.nan)
        return Value(factor * self.value, *ends)


@dataclass(frozen=True)
class Source:
    """Where numbers come from: the result tables, and the claims that they judge."""

    tables: Tables
    claims: pd.DataFrame

    def claim(self, name: str, where: str) -> Value:
        """What was measured for a claim of the ledger."""
        mine = self.claims[self.claims["id"] == name]
        if mine.empty:
            raise InputError(f"{where}: the ledger has no claim {name}")
        one = mine.iloc[0]
        return Value(one["value"], one["ci_low"], one["ci_high"])

    def printed(self, name: str, where: str) -> Value:
        """What the paper prints for a claim of the ledger, "9.5%" as .095."""
        mine = self.claims[self.claims["id"] == name]
        if mine.empty:
            raise InputError(f"{where}: the ledger has no claim {name}")
        try:
            return Value(printed_number(mine.iloc[0]["printed"]))
        except ValueError as error:
            raise InputError(f"{where}: {name} prints no number: {error}") from None


def read(text: str, source: Source, where: str) -> Value:
    """The cell that a text names, with its interval: "FILE.parquet; column=value; …; column", or "claim ID".

    "printed ID" is what the paper prints for that claim.

    In place of the last column, min(column), max(column), mean(column) or count(column) take it over all rows that the
    rest selects. "times 100" at the end changes the unit. Raises `InputError` for a file, column or row that is not
    there.
    """
    text, _, factor = text.partition(" times ")
    if text.startswith("claim "):
        number = source.claim(text.removeprefix("claim "), where)
    elif text.startswith("printed "):
        number = source.printed(text.removeprefix("printed "), where)
    else:
        number = _cell(text, source.tables, where)
    return number * float(factor) if factor else number


def _cell(text: str, tables: Tables, where: str) -> Value:
    """What "FILE.parquet; column=value; …; column" names."""
    (key,) = keys(text, where)
    if (over := OVER.fullmatch(key.value)) is None:
        row = tables.row(key, where)
        return Value(float(row[key.value]), *interval(key.value, row))
    rows = tables.rows(key._replace(value=over[2]), where)[over[2]].dropna()
    if rows.empty:
        raise InputError(f"{where}: no row of {key.file} is selected by {text}")
    return Value(float(getattr(rows, over[1])()))


def fill_in(text: str, values: dict[str, Any], where: str) -> str:
    """A sentence with its numbers. Raises `InputError` for a name that has no value."""
    try:
        return text.format_map(values)
    except (KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{where}: {error} in {text!r}") from None
