"""The style of the papers' figures: width, fonts, colours or greys, a marker and a dash for every line."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from plotly.subplots import make_subplots

from streamscope.instruments.figures.drawing import PALETTE
from streamscope.instruments.stats.bounded import inside

INCH = 96
"""Pixels of plotly."""
WIDTHS = {"column": 3.3, "page": 6.9}
"""Inches."""
FLAT = 0.65
"""Height on a page, as a share of the width, of a figure that is square in a column."""
GREYS = ("#000000", "#7a7a7a", "#404040", "#a6a6a6", "#595959", "#bfbfbf", "#262626")
FILLS = ("#8c8c8c", "#cccccc", "#5c5c5c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
RULE = {"color": "#555555", "width": 1, "dash": "dot"}
"""A line at a threshold."""


@dataclass(frozen=True)
class Style:
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


def panels(style: Style, titles: list[str], columns: int, height: float, **more: Any) -> Any:
    """A figure of panels, at most `columns` in a row, whatever the width of the figure."""
    rows = -(-len(titles) // columns)
    canvas = make_subplots(rows, columns, subplot_titles=titles, **more)
    canvas.update_annotations(font_size=9)
    return dressed(canvas, style, height)


def single(style: Style, height: float) -> Any:
    """A figure of one panel."""
    return dressed(go.Figure(), style, height)


def dressed(canvas: Any, style: Style, height: float) -> Any:
    """Fonts, size and margins of a paper."""
    template = deepcopy(pio.templates["simple_white"])
    template.layout.update(
        xaxis={"title": {"standoff": 5, "font": {"size": 9}}, "ticklen": 3},
        yaxis={"title": {"standoff": 4, "font": {"size": 9}}, "ticklen": 3},
    )
    canvas.update_layout(
        template=template, width=style.pixels, height=height * style.pixels * (FLAT if style.width == "page" else 1),
        font={"family": "Times New Roman, Nimbus Roman, serif", "size": 9}, margin={"l": 42, "r": 8, "t": 22, "b": 30},
        legend={"orientation": "h", "y": 0.01, "yref": "container", "yanchor": "bottom", "x": 0, "font": {"size": 8},
                "tracegroupgap": 0, "maxheight": 1},
        barmode="group", bargap=0.25,
    )  # fmt: skip
    return canvas


def dots(
    canvas: Any,
    style: Style,
    rows: pd.DataFrame,
    *,
    row: int = 1,
    col: int = 1,
    labels: Sequence[str] = (),
    means: pd.DataFrame | None = None,
    averaged: bool = True,
) -> None:
    """A line for each `label` (of the rows, or those given), downwards, with a dot at each `value`, and its interval
    where it has `low` and `high`.

    Dots of a `group` have one colour and a place of their own on the line. Where a group has several dots, a bar marks
    their mean, unless they are not `averaged`; of `means` (label, group, value, low, high) also the interval of the
    mean. Open diamonds: the column `paper`.
    """
    at, labels = {"row": row, "col": col}, labels or list(dict.fromkeys(rows["label"]))
    rows = rows if "group" in rows else rows.assign(group="")
    groups, named = list(dict.fromkeys(rows["group"])), {one.name for one in canvas.data}
    room = 0.84 / len(groups)
    for i, group in enumerate(groups):
        place = {label: n + room * (i - (len(groups) - 1) / 2) for n, label in enumerate(labels)}
        one = rows[(rows["group"] == group) & rows["value"].notna()]
        each = one.groupby("label", sort=False)["label"]
        step = (each.cumcount() + 0.5) / each.transform("size") - 0.5
        canvas.add_scatter(
            x=one["value"], y=one["label"].map(place) + 0.75 * room * step, mode="markers", error_x=_interval(one),
            name=group, legendgroup=group, showlegend=bool(group) and group not in named, hovertext=one.get("text"),
            marker={"color": style.colour(i), "symbol": symbol(i), "size": 4, "opacity": 0.8}, **at,
        )  # fmt: skip
        own = one.groupby("label", sort=False)["value"].agg(["mean", "size"]).query("size > 1").reset_index()
        own = own.rename(columns={"mean": "value"}) if means is None else means
        if averaged and len(own):
            canvas.add_scatter(
                x=own["value"], y=own["label"].map(place), mode="markers", error_x=_interval(own), showlegend=False,
                hoverinfo="x", marker={"symbol": "line-ns-open", "size": 9, "color": "#000000"}, **at,
            )  # fmt: skip
    if "paper" in rows and len(own := rows[rows["paper"].notna()].drop_duplicates("label")):
        marker = {"symbol": "diamond-open", "size": 8, "color": "#000000"}
        canvas.add_scatter(x=own["paper"], y=own["label"].map({label: n for n, label in enumerate(labels)}), **at,
                           mode="markers", name="paper", showlegend="paper" not in named, marker=marker)  # fmt: skip
    canvas.update_yaxes(tickvals=[*range(len(labels))], ticktext=labels, range=[len(labels) - 0.4, -0.6], **at)


def between(rows: pd.DataFrame, limits: tuple[float, float]) -> pd.DataFrame:
    """The rows; ends of t intervals (`low` to `high`) beyond the limits are those on the log-odds scale."""
    known = rows[["value", "low", "high"]].notna().all(axis=1)
    for i, (value, low, high) in rows.loc[known, ["value", "low", "high"]].iterrows():
        rows.loc[i, ["low", "high"]] = inside((low, high), value, max(high - value, value - low), limits)
    return rows


def whiskers(value: pd.Series, low: pd.Series, high: pd.Series) -> dict[str, Any]:
    """Error bars from low to high."""
    up, down = (high - value).fillna(0), (value - low).fillna(0)
    return {"array": up, "arrayminus": down, "symmetric": False, "thickness": 0.8, "width": 2}


def _interval(rows: pd.DataFrame) -> dict[str, Any] | None:
    """Error bars from low to high, none where the table has no such columns."""
    return whiskers(rows["value"], rows["low"], rows["high"]) if "low" in rows else None


def heat_maps(
    canvas: Any, grids: Iterable[pd.DataFrame | None], columns: int, bar: dict[str, Any], texts: Sequence[Any] = (),
    **colours: Any,
) -> None:  # fmt: skip
    """A map of each grid in the next panel (None leaves it empty), all on one scale of colours with one bar.

    `texts` are what stands in the cells of each grid, by default nothing.
    """
    for i, z in enumerate(grids):
        if z is not None:
            text = {"text": texts[i], "texttemplate": "%{text}"} if texts else {}
            canvas.add_trace(go.Heatmap(z=z, x=z.columns, y=z.index, coloraxis="coloraxis", **text),
                             row=i // columns + 1, col=i % columns + 1)  # fmt: skip
    canvas.update_layout(coloraxis={"colorbar": {"thickness": 8, **bar}, **colours})


def key_of_paper(canvas: Any) -> None:
    """An entry of the legend that says what open markers are."""
    marker = {"symbol": "circle", "size": 7, "color": "#ffffff", "line": {"color": "#333333", "width": 1.3}}
    canvas.add_scatter(x=[None], y=[None], name="paper", mode="markers", marker=marker)


def note(canvas: Any, text: str) -> None:
    """Lines above the panels, as long as the figure is wide; the panels make room for them."""
    letters = int(canvas.layout.width / 4)
    lines = [part for line in text.split("<br>") for part in wrap(line, letters)]
    above = {"yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 8 * len(lines)}}
    title = {"text": "<br>".join(lines), "font": {"size": 8}, "x": 0, "xref": "paper", **above}
    canvas.update_layout(title=title, margin={"t": max(canvas.layout.margin.t, 26 + 14 * len(lines))})
