"""How figures of papers look: their width, their fonts, colours or greys, a marker and a dash for every line."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.subplots import make_subplots

from streamscope.instruments.figures.drawing import PALETTE

INCH = 96
"""Pixels of plotly."""
WIDTHS = {"column": 3.3, "page": 6.9}
"""Inches."""
FLAT = 0.65
"""What is as high as it is wide in a column is this high on a page."""
GREYS = ("#000000", "#7a7a7a", "#404040", "#a6a6a6", "#595959", "#bfbfbf", "#262626")
FILLS = ("#8c8c8c", "#cccccc", "#5c5c5c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
RULE = {"color": "#555555", "width": 1, "dash": "dot"}
"""A line at a threshold."""


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

    @property
    def signed(self) -> str:
        """Of heat maps around 0: red is positive. Without colours dark is positive, and 0 in the middle."""
        return "Greys" if self.grey else "RdBu_r"

    def line(self, i: int) -> dict[str, Any]:
        """Keywords of a line of its own colour, dash and marker."""
        return {
            "mode": "lines+markers", "line": {"color": self.colour(i), "dash": DASHES[i % len(DASHES)], "width": 1.3},
            "marker": {"symbol": symbol(i), "size": 5, "color": self.colour(i)},
        }  # fmt: skip

    def band(self, i: int) -> dict[str, Any]:
        """Keywords of a band around the line of that number."""
        return {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": self.colour(i), "opacity": 0.2,
                "showlegend": False, "hoverinfo": "skip"}  # fmt: skip

    def fill(self, i: int) -> str:
        """The colour of bars: without colours light enough for what is drawn on them."""
        return FILLS[i % len(FILLS)] if self.grey else self.colour(i)

    def points(self, i: int, *, paper: bool = False, on_bar: bool = False, size: float = 6) -> dict[str, Any]:
        """Keywords of markers; open ones are the paper's, white inside where they stand on bars."""
        colour = self.colour(i)
        inside = "#ffffff" if on_bar else "rgba(0,0,0,0)"
        colours = {"color": inside, "line": {"color": colour, "width": 1.3}} if paper else {"color": colour}
        return {"mode": "markers", "marker": {"symbol": symbol(i), "size": size, **colours}}


def symbol(i: int) -> str:
    """The marker of a series; where colours begin again, another."""
    return MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]


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
    template = deepcopy(pio.templates["simple_white"])
    template.layout.update(
        xaxis={"title": {"standoff": 5}, "ticklen": 3}, yaxis={"title": {"standoff": 4}, "ticklen": 3}
    )
    canvas.update_layout(
        template=template, width=look.pixels, height=height * look.pixels * (FLAT if look.width == "page" else 1),
        font={"family": "Times New Roman, Nimbus Roman, serif", "size": 9}, margin={"l": 42, "r": 8, "t": 22, "b": 30},
        legend={"orientation": "h", "y": 0.01, "yref": "container", "yanchor": "bottom", "x": 0, "font": {"size": 8},
                "tracegroupgap": 0, "maxheight": 1},
        barmode="group", bargap=0.25,
    )  # fmt: skip
    return canvas


def key_of_paper(canvas: Any) -> None:
    """An entry of the legend that says what open markers are."""
    marker = {"symbol": "circle", "size": 7, "color": "#ffffff", "line": {"color": "#333333", "width": 1.3}}
    canvas.add_scatter(x=[None], y=[None], name="paper", mode="markers", marker=marker)


def note(canvas: Any, text: str) -> None:
    """A line above the panels."""
    canvas.update_layout(
        title={"text": text, "font": {"size": 8}, "x": 0, "xref": "paper", "y": 0.97, "yanchor": "top"}
    )
