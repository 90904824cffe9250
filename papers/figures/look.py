"""How figures of papers look: their width, their fonts, colours or greys, a marker and a dash for every line."""

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamscope.probes.drawing import PALETTE

INCH = 96
"""Pixels of plotly."""
WIDTHS = {"column": 3.3, "page": 6.9}
"""Inches."""
GREYS = ("#000000", "#7a7a7a", "#404040", "#a6a6a6", "#595959", "#bfbfbf", "#262626")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
PAPER = "open"
"""What the paper prints is drawn in open markers."""


@dataclass(frozen=True)
class Look:
    """Width and colours of a figure."""

    width: str = "column"
    grey: bool = False

    @property
    def pixels(self) -> float:
        return WIDTHS[self.width] * INCH

    def colour(self, i: int) -> str:
        return (GREYS if self.grey else PALETTE)[i % len(PALETTE)]

    @property
    def scale(self) -> str:
        """Of heat maps from 0 on."""
        return "Greys" if self.grey else "Blues"

    def line(self, i: int) -> dict[str, Any]:
        """Keywords of a line of its own colour, dash and marker."""
        return {
            "mode": "lines+markers", "line": {"color": self.colour(i), "dash": DASHES[i % len(DASHES)], "width": 1.3},
            "marker": {"symbol": MARKERS[i % len(MARKERS)], "size": 5, "color": self.colour(i)},
        }  # fmt: skip

    def points(self, i: int, *, paper: bool = False, size: float = 6) -> dict[str, Any]:
        """Keywords of markers; open ones are the paper's."""
        symbol = MARKERS[i % len(MARKERS)] + (f"-{PAPER}" if paper else "")
        return {"mode": "markers", "marker": {"symbol": symbol, "size": size, "color": self.colour(i)}}


def panels(look: Look, titles: list[str], columns: int, height: float, **more: Any) -> Any:
    """A figure of panels in rows of at most `columns` on a page, one beside another in a column as well."""
    rows = -(-len(titles) // columns)
    canvas = make_subplots(rows, columns, subplot_titles=titles, **more)
    canvas.update_annotations(font_size=9)
    return dressed(canvas, look, height)


def single(look: Look, height: float) -> Any:
    """A figure of one panel."""
    return dressed(go.Figure(), look, height)


def dressed(canvas: Any, look: Look, height: float) -> Any:
    """Fonts, size and margins of a paper."""
    canvas.update_layout(
        template="simple_white", width=look.pixels, height=height * look.pixels,
        font={"family": "Times New Roman, Nimbus Roman, serif", "size": 9}, margin={"l": 42, "r": 8, "t": 24, "b": 36},
        legend={"orientation": "h", "y": -0.34, "yanchor": "top", "x": 0, "font": {"size": 8}, "tracegroupgap": 0},
        barmode="group", bargap=0.25,
    )  # fmt: skip
    canvas.update_xaxes(title_standoff=4, ticklen=3)
    canvas.update_yaxes(title_standoff=4, ticklen=3)
    return canvas
