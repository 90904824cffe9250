"""Figures are declared by an instrument, a few kinds of them; `probes.drawing` draws them.

    figures: ClassVar = (HeadMap("delta"), Intervals("delta", beside="above"))

A figure names columns; titles, units and intervals come from the table. This module imports nothing heavy.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """Base: the column `y` of a table (the main one without a name)."""

    y: str
    table: str | None = None

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return self.y if self.table is None else f"{self.table}-{self.y}"

    def draw(self, result: Any, *, paper: bool = False, dark: bool = False) -> Any:
        """The plotly figure for a screen, or for a paper's column; None where the column has no value to show."""
        from streamscope.probes.drawing import draw

        return draw(self, result, paper=paper, dark=dark)


@dataclass(frozen=True)
class HeadMap(Figure):
    """Layer × head, at the smallest value of `by` where rows differ in it; rows without a layer are left out.

    Or head × head, where `rows` and `columns` name them.
    """

    by: str | None = None
    each: tuple[str, ...] = ()
    """A panel for every combination of these columns' values; the last of two or more goes across."""
    rows: str = "layer"
    columns: str = "index"
    text: str | None = None
    """The column that stands in the cells, instead of the value."""
    names: str | None = None
    """The column that names the columns of the map."""


@dataclass(frozen=True)
class Intervals(Figure):
    """A row for each `label`: the value with its 95 % interval, another quantity `beside` it, and 0.

    At the smallest value of `by` where rows differ in it. Of more than `most` rows those with the largest values.
    """

    label: str = "head"
    beside: str | None = None
    by: str | None = None
    most: int = 40

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return f"{super().name}-intervals"


@dataclass(frozen=True)
class Curve(Figure):
    """The value over `x` with its band, one line for each value of `by`; needs two places of x.

    Of more than `most` lines those that move the most.
    """

    x: str = "scale"
    by: str | None = None
    log: bool = False
    most: int = 7

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return f"{super().name}-over-{self.x}"


@dataclass(frozen=True)
class Scatter(Figure):
    """The value against another column `x`, a mark for each row, with the line where both are equal."""

    x: str = ""
    label: str = "head"

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return f"{super().name}-against-{self.x}"


@dataclass(frozen=True)
class Matrix(Figure):
    """What pairs do: a map of `label` against `label`, where each row of the table is a pair A+B."""

    label: str = "head"

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return f"{super().name}-pairs"


@dataclass(frozen=True)
class Histogram(Figure):
    """How many rows have which value, with a line where the column `at` lies."""

    at: str | None = None

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return f"{super().name}-histogram"
