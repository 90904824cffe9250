"""Draws a circuit: parts of a model by layer, and edges between them as wide as their scores."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamscope.instruments.figures import Figure
from streamscope.instruments.table import Table

WIDEST_EDGE = 7.0
USED, UNUSED = "#555555", "#dddddd"
"""Colours of parts with and without an edge that is shown."""
NODE = re.compile(r"(?P<kind>[amx])(?P<layer>\d+)(\.(?P<part>h|kv|attn|mlp|rest|)(?P<head>\d*))?")


def place_of(name: str, heads: int, groups: int, last: int) -> tuple[float, float]:
    """(x, y) of a part by its name: layers upwards, heads from left to right, FFNs beside them and above.

    A key-value head is below the middle of the heads that share it; latents of an FFN are beside it.
    """
    name = name.partition("<")[0]
    match = NODE.fullmatch(name)
    if match is None:
        return 0.0, -1.0 if name == "input" else 2.0 * last + 2
    layer, head = int(match["layer"]), match["head"]
    if match["kind"] == "x":
        return -0.5 * heads - 0.5, 2.0 * layer + (0.6 if match["part"] == "mlp" else -0.4)
    if match["kind"] == "m":
        return 0.5 * heads + 0.5, 2.0 * layer + 1
    if not head:
        return 0.0, 2.0 * layer
    if match["part"] == "kv":
        return (int(head) + 0.5) * heads / groups - heads / 2, 2.0 * layer - 0.4
    return int(head) - (heads - 1) / 2, 2.0 * layer


def draw_circuit(figure: Figure, table: Table, palette: tuple[str, ...]) -> go.Figure | None:
    """The figure with its slider, or None for a table without edges."""
    frame = table.frame[table.frame[figure.y].notna()]
    frame = frame.loc[frame[figure.y].abs().sort_values(ascending=False, kind="stable").index[: figure.most]]
    if not len(frame) or frame[["sender", "reader"]].duplicated().any():
        return None
    names = pd.concat([table.frame["sender"], table.frame["reader"].str.partition("<")[0]]).unique().tolist()
    matches = [m for m in map(NODE.fullmatch, names) if m is not None]
    heads, groups = (
        1 + max((int(m["head"]) for m in matches if m["part"] == part and m["head"]), default=0) for part in ("h", "kv")
    )
    last = max((int(m["layer"]) for m in matches), default=0)
    spot = {name: place_of(name, heads, groups, last) for name in names}
    for layer, of_layer in groupby((m for m in matches if m["kind"] == "m" and m[3]), key=lambda m: m["layer"]):
        for i, m in enumerate(of_layer):
            spot[m[0]] = (spot[m[0]][0] + 0.8 * (i + 1), 2.0 * int(layer) + 1.2)
    colors = {name: palette[i % len(palette)] for i, name in enumerate(sorted(table.frame["part"].unique()))}
    column, largest = table.column(figure.y), float(frame[figure.y].abs().max()) or 1.0
    plot = go.Figure()
    for row in frame.to_dict("records"):
        (x0, y0), (x1, y1) = spot[row["sender"]], spot[row["reader"].partition("<")[0]]
        color, size = str(row["part"]), abs(row[figure.y]) / largest
        # a bend, so that edges along one column do not hide each other
        bend = 0.35 * np.sign(x1 - x0 or 1) * np.log1p(abs(y1 - y0) - 1 if abs(y1 - y0) > 1 else 0)
        t = np.linspace(0, 1, 9)
        x, y = x0 + (x1 - x0) * t + 4 * bend * t * (1 - t), y0 + (y1 - y0) * t
        text = f"{row['sender']} → {row['reader']}: {column.text(row[figure.y])}"
        plot.add_scatter(
            x=x, y=y, mode="lines", name=color, showlegend=False, text=[text] * len(t),
            opacity=0.35 + 0.6 * size, hovertemplate="%{text}<extra></extra>",
            line={"color": colors[color], "width": 0.6 + (WIDEST_EDGE - 0.6) * size,
                  "dash": "solid" if row[figure.y] >= 0 else "dot"},
        )  # fmt: skip
    colours = _colours(frame, names)
    plot.add_scatter(
        x=[spot[n][0] for n in names], y=[spot[n][1] for n in names], mode="markers+text", text=names, showlegend=False,
        textposition="middle right", textfont={"size": 8, "color": colours}, hoverinfo="skip",
        marker={"size": 9, "color": colours, "symbol": ["circle" if n[0] == "a" else "square" for n in names]},
    )  # fmt: skip
    legend = [(part, color, "solid") for part, color in colors.items() if part in set(frame["part"])]
    legend += [(f"{column.title} {sign}", USED, dash) for sign, dash in (("> 0", "solid"), ("< 0", "dot"))]
    for name, color, dash in legend:  # the first edge of a part may be hidden
        line = {"color": color, "width": 2, "dash": dash}
        plot.add_scatter(x=[None], y=[None], mode="lines", name=name, line=line, visible=True)
    axis = {"visible": False}
    plot.update_layout(
        xaxis=axis, yaxis=axis, height=200 + 64 * (last + 2), legend={"title": table.column("part").title},
    )  # fmt: skip
    _add_slider(plot, frame, table.frame, names)
    return plot


def _colours(edges: pd.DataFrame, names: Sequence[str]) -> list[str]:
    endpoints = {*edges["sender"], *edges["reader"].str.partition("<")[0]}
    return [USED if name in endpoints else UNUSED for name in names]


def _add_slider(plot: go.Figure, frame: pd.DataFrame, edges: pd.DataFrame, names: Sequence[str]) -> None:
    """A step for each share of edges: the edges that are in then, the parts that they reach, and f.

    The figure opens with the largest share of which all edges are drawn.
    """
    if "enters" not in frame:
        return
    steps: list[dict[str, Any]] = []
    active = 0
    for k, group in frame.groupby("enters"):
        f, visible, n_edges = group["f"].iloc[0], frame["enters"] <= k, int((edges["enters"] <= k).sum())
        label = f"{100 * float(k):g} %" + ("" if pd.isna(f) else f", f {round(f, 2) + 0.0:.2f}")
        if visible.sum() < n_edges:
            label += f", {visible.sum()} of {n_edges:,} drawn"
        else:
            active = len(steps)
        n_legend = len(plot.data) - len(frame) - 1  # of the legend
        look = {"visible": [*visible, *[True] * (1 + n_legend)]}
        colours = [*[None] * len(frame), _colours(frame[visible], names), *[None] * n_legend]
        look |= {"marker.color": colours, "textfont.color": colours}
        steps.append({"method": "restyle", "args": [look], "label": label})
    shown = steps[active]["args"][0]
    for trace, visible in zip(plot.data, shown["visible"], strict=True):
        trace.visible = visible
    colours = shown["marker.color"][len(frame)]
    plot.data[len(frame)].update(marker_color=colours, textfont_color=colours)
    slider = {"active": active, "steps": steps, "pad": {"t": 25}, "currentvalue": {"prefix": "edges: "}}
    plot.update_layout(sliders=[slider])
