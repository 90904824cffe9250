"""Figures are declared by an instrument, a few kinds of them; `instruments.figures.drawing` draws them.

    figures: ClassVar = (HeadMap("delta"), Intervals("delta", reference="above"))

A figure names columns; titles, units and intervals come from the table. This module imports nothing heavy.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streamscope.cli.disk import check_writable, write_atomically, write_text
from streamscope.cli.errors import InputError

COMMON = ("kind", "y", "table", "title", "each", "over_runs")
OPTIONS = {
    "HeadMap": "rows columns by text names row_names levels root", "Intervals": "label by reference most ranked",
    "Curve": "x by log most reference draws", "Scatter": "x label", "Matrix": "label", "Histogram": "at",
    "Points": "x color text none ordered most typical", "Circuit": "most",
}  # fmt: skip
"""What each kind of figure reads besides `COMMON`."""


@dataclass(frozen=True)
class Figure:
    """A figure of column `y` of the table named `table`; None is the result's main table. Kinds:

    HeadMap     layer × head, at the smallest value of `by` where rows differ in it; rows without a layer are left out.
                Or what else `rows` and `columns` name: head × head, layer × position.
    Intervals   a row for each `label`: the value with its 95 % interval, another quantity (`reference`), and 0. At the
                smallest value of `by`; of more than `most` rows those with the largest values.
    Curve       the value over `x` with its band, a line for each value of `by`; needs two places of x. Of more than
                `most` lines those that move the most.
    Scatter     the value against another column `x`, a mark for each row, with the line where both are equal.
    Matrix      what pairs do: a map of `label` against `label`, where each row of the table is a pair A+B.
    Histogram   how many rows have which value, with a line where the column `at` lies.
    Points      a mark for each row at (`x`, y), coloured by the column `color`; the pointer shows the columns `text`.
                Where the colours are names, the `most` frequent have one each, which the legend shows and hides, with
                how many marks they have; the others are grey, and those of `none` lighter.
    Circuit     the edges with the largest |y|, `most` of them, as lines from `sender` to `reader`, layers upwards; a
                slider chooses how many. Lines are as wide as |y|, dotted where y is negative, and coloured by the
                column `part`; parts that no shown edge reaches are light. The slider's steps are the column `enters`,
                the share of edges at which an edge enters; `f` is the share of the effect that these keep.
    """

    kind: str
    y: str
    table: str | None = None
    _: KW_ONLY
    title: str = ""
    """What is shown, for the reader of a picture without its page; the model is added. Default: the column's title.

    A column in braces is replaced by its title, where the table is of whatever was measured: "{delta} from ablating
    each head"."""
    each: tuple[str, ...] = ()
    """A panel for every combination of these columns' values; the last of two or more varies from left to right."""
    over_runs: bool = False
    """Several runs are in one panel (rows of a map, places of x), and have no panels of their own."""
    x: str = ""
    by: str | None = None
    label: str = ""
    reference: str | None = None
    """Another column: of intervals a second mark in each row, of curves a dotted line without a band."""
    most: int = 0
    rows: str = ""
    columns: str = ""
    text: Any = None
    """The column that stands in the cells of a map, instead of the value; of points, the columns that the pointer
    shows."""
    names: str | None = None
    """The column that names the columns of the map."""
    row_names: str | None = None
    """The column that names its rows."""
    levels: tuple[tuple[float, str], ...] = ()
    """What the values of a map stand for where they are levels, from the lowest: the bar of colours is their legend."""
    root: bool = False
    """Colours by the square root, from 0 to 1: of attention, whose small weights matter next to BOS' large ones."""
    ranked: bool = True
    """The largest interval above; else in the order of the table."""
    log: bool = False
    draws: str | None = None
    """A table of controls drawn at random, y in a column of the same name: grey marks at their x on a curve."""
    at: str | None = None
    color: str = ""
    none: Any = None
    ordered: bool = False
    """Colours of points are numbers, on a scale."""
    typical: str | None = None
    """A column of texts, the token in ⟦ ⟧: each colour is named by its commonest tokens as well."""

    def __post_init__(self) -> None:
        known = {*COMMON, *OPTIONS.get(self.kind, "").split()}
        for option in fields(self) if self.kind in OPTIONS else ():  # a kind of somebody else reads what it wants
            if option.name not in known and getattr(self, option.name) != option.default:
                raise TypeError(f"{self.kind} has no option {option.name}")

    @property
    def name(self) -> str:
        """What `Result.figure` calls it."""
        names = {
            "Intervals": "intervals", "Curve": f"over-{self.x}", "Scatter": f"against-{self.x}", "Matrix": "pairs",
            "Histogram": "histogram", "Points": f"by-{self.color}", "Circuit": "circuit",
        }  # fmt: skip
        end = names.get(self.kind, "")
        if self.kind == "HeadMap" and (self.rows, self.columns) in (("layer", "position"), ("place", "dims")):
            end = f"by-{self.columns}"
        return "-".join(filter(None, (self.table, self.y, end)))


HeadMap = partial(Figure, "HeadMap", rows="layer", columns="index")
Intervals = partial(Figure, "Intervals", label="head", most=40)
Curve = partial(Figure, "Curve", x="scale", most=7)
Scatter = partial(Figure, "Scatter", label="head")
Matrix = partial(Figure, "Matrix", label="head")
Histogram = partial(Figure, "Histogram")
Points = partial(Figure, "Points", x="x", text=(), most=20)
Circuit = partial(Figure, "Circuit", most=200)

OVER = "over_steps"  # in `Result.about`: whether the tables are of snapshots, with the columns run and step


def over_steps(figures: tuple[Figure, ...], tables: Mapping[str, Any]) -> tuple[Figure, ...]:
    """The figures of an instrument for snapshots, first a curve over steps: its own, or of its first figure."""
    if curves := [figure for figure in figures if (figure.kind, figure.x) == ("Curve", "step")]:
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
