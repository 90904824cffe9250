"""Figures are declared by an instrument, a few kinds of them; `instruments.figures.drawing` draws them.

    figures: ClassVar = (HeadMap("delta"), Intervals("delta", reference="above"))

A figure names columns; titles, units and intervals come from the table. This module imports nothing heavy.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from streamscope.cli.disk import check_writable, write_atomically, write_text
from streamscope.cli.errors import InputError


@dataclass(frozen=True)
class Figure:
    """Base of all figures: draws column `y` of the table named `table`; None is the result's main table."""

    name_end: ClassVar[str] = ""
    """The end of a figure's name, with fields in braces."""
    y: str
    table: str | None = None
    title: str = field(default="", kw_only=True)
    """What is shown, for the reader of a picture without its page; the model is added. Default: the column's title.

    A column in braces is replaced by its title, where the table is of whatever was measured: "{delta} from ablating
    each head"."""
    each: tuple[str, ...] = field(default=(), kw_only=True)
    """A panel for every combination of these columns' values; the last of two or more varies from left to right."""
    over_runs: bool = field(default=False, kw_only=True)
    """Several runs are in one panel (rows of a map, places of x), and have no panels of their own."""

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        return "-".join(filter(None, (self.table, self.y, self.name_end.format(**vars(self)))))


@dataclass(frozen=True)
class HeadMap(Figure):
    """Layer × head, at the smallest value of `by` where rows differ in it; rows without a layer are left out.

    Or what else `rows` and `columns` name: head × head, layer × position.
    """

    by: str | None = None
    rows: str = "layer"
    columns: str = "index"
    text: str | None = None
    """The column that stands in the cells, instead of the value."""
    names: str | None = None
    """The column that names the columns of the map."""
    row_names: str | None = None
    """The column that names its rows."""
    levels: tuple[tuple[float, str], ...] = ()
    """What the values stand for where they are levels, from the lowest: the bar of colours is a legend of them."""
    root: bool = False
    """Colours by the square root, from 0 to 1: of attention, whose small weights matter next to BOS' large ones."""

    @property
    def name(self) -> str:
        places = (("layer", "position"), ("place", "dims"))
        return f"{super().name}-by-{self.columns}" if (self.rows, self.columns) in places else super().name


@dataclass(frozen=True)
class Intervals(Figure):
    """A row for each `label`: the value with its 95 % interval, another quantity (`reference`), and 0.

    At the smallest value of `by` where rows differ in it. Of more than `most` rows those with the largest values.
    """

    name_end: ClassVar[str] = "intervals"
    label: str = "head"
    reference: str | None = None
    by: str | None = None
    most: int = 40
    ranked: bool = True
    """The largest above; else in the order of the table."""


@dataclass(frozen=True)
class Curve(Figure):
    """The value over `x` with its band, one line for each value of `by`; needs two places of x.

    Of more than `most` lines those that move the most.
    """

    name_end: ClassVar[str] = "over-{x}"
    x: str = "scale"
    by: str | None = None
    log: bool = False
    most: int = 7
    reference: str | None = None
    """Another column, as a dotted line without a band."""
    draws: str | None = None
    """A table of controls drawn at random, y in a column of the same name: grey marks at their x."""


@dataclass(frozen=True)
class Scatter(Figure):
    """The value against another column `x`, a mark for each row, with the line where both are equal."""

    name_end: ClassVar[str] = "against-{x}"
    x: str = ""
    label: str = "head"


@dataclass(frozen=True)
class Matrix(Figure):
    """What pairs do: a map of `label` against `label`, where each row of the table is a pair A+B."""

    name_end: ClassVar[str] = "pairs"
    label: str = "head"


@dataclass(frozen=True)
class Histogram(Figure):
    """How many rows have which value, with a line where the column `at` lies."""

    name_end: ClassVar[str] = "histogram"
    at: str | None = None


@dataclass(frozen=True)
class Points(Figure):
    """A mark for each row at (`x`, y), coloured by a column; the pointer shows the columns `text`.

    Where the colours are names, the `most` frequent have one each, which the legend shows and hides, with how many
    marks they have; the others are grey, and those of `none` lighter.
    """

    name_end: ClassVar[str] = "by-{color}"
    x: str = "x"
    color: str = ""
    text: tuple[str, ...] = ()
    none: Any = None
    ordered: bool = False
    """Colours are numbers, on a scale."""
    most: int = 20
    typical: str | None = None
    """A column of texts, the token in ⟦ ⟧: each colour is named by its commonest tokens as well."""


@dataclass(frozen=True)
class Circuit(Figure):
    """The edges with the largest |y| as lines from `sender` to `reader`, layers upwards; a slider chooses how many.

    Lines are as wide as |y|, dotted where y is negative, and coloured by the column `part`; parts that no shown edge
    reaches are light. The steps of the slider are
    the column `enters`, the share of edges at which an edge enters; `f` is the share of the effect that these keep. Of
    more than `most` edges those with the largest |y| are drawn.
    """

    name_end: ClassVar[str] = "circuit"
    most: int = 200


OVER = "over_steps"  # in `Result.about`: whether the tables are of snapshots, with the columns run and step


def over_steps(figures: tuple[Figure, ...], tables: Mapping[str, Any]) -> tuple[Figure, ...]:
    """The figures of an instrument for snapshots, first a curve over steps: its own, or of its first figure."""
    curves = [figure for figure in figures if isinstance(figure, Curve) and figure.x == "step"]
    if curves:
        return (*curves, *(figure for figure in figures if figure not in curves))
    for figure in figures:
        table = next(iter(tables.values())) if figure.table is None else tables.get(figure.table)
        if table is None or figure.y not in table.frame or "step" not in table.frame:
            continue
        columns = table.frame.columns[: table.frame.columns.get_loc(figure.y)]
        labels = [name for name in columns if name not in ("run", "step", "tokens")]
        texts = [name for name in labels if not table.column(name).format]
        by = next((name for name in texts if table.frame[name].nunique() > 1), None)
        groups = table.frame.groupby(["run"] if by is None else ["run", by], dropna=False)
        panels = [name for name in labels if name != by and (groups[name].nunique() > 1).any()]
        return (Curve(figure.y, figure.table, x="step", by=by, each=tuple(panels)), *figures)
    return figures


SUFFIXES = (".html", ".svg", ".pdf", ".png")


def check_figure(path: Path) -> Path:
    """`path`; `InputError` where no figure can be written there, or kaleido, or its Chrome, is not installed."""
    if path.suffix not in SUFFIXES or os.path.isdir(path):
        raise InputError(f"--figure {path}: a figure is a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix != ".html":
        chrome = "kaleido_get_chrome fetches a Chrome where there is none; .html needs neither"
        if find_spec("kaleido") is None:
            raise InputError(f"{path} needs kaleido and a Chrome: pip install 'streamscope[figures]'; {chrome}")
        with suppress(ImportError):  # where another kaleido finds its Chrome in another way, it says so when it draws
            from choreographer.browsers.chromium import Chromium

            if Chromium.find_browser(skip_local=False) is None:
                raise InputError(f"{path} needs a Chrome or Chromium: {chrome}")
    check_writable(path)
    return path


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure in the form of its suffix, complete when it bears its name."""
    check_figure(path)
    if path.suffix == ".html":
        write_text(path, figure.to_html(include_plotlyjs=True))
        return
    try:
        image = figure.to_image(format=path.suffix[1:], scale=2 if path.suffix == ".png" else 1)
    except Exception as error:  # kaleido raises errors of Chromium, of its own and of asyncio
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{path} could not be drawn ({reason}); .html needs no Chromium") from None
    write_atomically(path, lambda part: part.write_bytes(image))
