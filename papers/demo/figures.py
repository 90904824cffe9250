"""The figures of `papers.demo`, from the tables of the probes, in the colours of the page; model i has `accent(i)`."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamscope.papers.demo.html import INK, LINE, MUTED, SURFACE, accent

LEGIBLE = 8
"""Numbers are written into the cells of a heat map with up to this many columns."""
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}


def losses(tables: Sequence[tuple[str, pd.DataFrame]]) -> Any:
    """Training loss as a line, validation loss as points, both models; nats per token."""

    figure = go.Figure()
    for i, (name, table) in enumerate(tables):
        for kind, label in (("train", f"{name}, training"), ("eval", f"{name}, validation")):
            one = table[table["kind"] == kind]
            figure.add_scatter(
                x=one["step"].tolist(), y=one["loss"].tolist(), name=label,
                mode="lines" if kind == "train" else "markers",
                line={"color": accent(i)}, marker={"color": accent(i), "size": 9},
                hovertemplate=f"{label}<br>step %{{x:,}}: %{{y:.3f}}<extra></extra>",
            )  # fmt: skip
    figure.update_layout(legend=LEGEND, margin={"l": 52, "r": 12, "t": 48, "b": 44})
    figure.update_xaxes(title="training step")
    figure.update_yaxes(title="nats per token")
    return figure


def heads(table: pd.DataFrame, column: str, i: int, limit: float, *, unit: str, signed: bool, digits: int = 3) -> Any:
    """Layer × head; the model's colour for `limit`, the page's for 0, grey for −limit if `signed`."""

    grid = table.pivot(index="layer", columns="index", values=column)
    scale = [[0, MUTED], [0.5, SURFACE], [1, accent(i)]] if signed else [[0, SURFACE], [1, accent(i)]]
    sign = "+" if signed else ""
    figure = go.Figure(
        go.Heatmap(
            z=grid.to_numpy().tolist(),
            x=[f"H{h}" for h in grid.columns],
            y=[f"L{layer}" for layer in grid.index],
            texttemplate=f"%{{z:{sign}.{digits}f}}" if grid.shape[1] <= LEGIBLE else None,
            textfont={"size": 11},
            hovertemplate=f"%{{y}}%{{x}}: %{{z:{sign}.4f}} {unit}<extra></extra>",
            colorscale=scale,
            zmin=-limit if signed else 0,
            zmax=limit,
            xgap=2,
            ygap=2,
            colorbar={
                "thickness": 10,
                "outlinewidth": 0,
                "nticks": 5,
                "exponentformat": "power",
                "x": 1.02,
                "xpad": 0,
                "len": 1,
            },
        )
    )
    figure.update_layout(margin={"l": 34, "r": 8, "t": 8, "b": 42})
    figure.update_xaxes(title="head", showgrid=False, zeroline=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    return figure


def shares(tables: Sequence[tuple[str, pd.DataFrame]]) -> Any:
    """Top-1 of the chosen head with its 95 % interval, against chance and rules without meaning; in per cent.

    The rules depend on the prompts alone, so they are drawn once.
    """

    figure = go.Figure()
    rules = tables[0][1]
    rules = rules[rules["who"] != "best head"]
    figure.add_bar(
        y=[str(who).replace("_", " ") for who in rules["who"]][::-1], x=(100 * rules["share"]).tolist()[::-1],
        orientation="h", marker={"color": MUTED}, opacity=0.55, hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
    )  # fmt: skip
    for i, (name, table) in reversed(list(enumerate(tables))):
        row = table[table["who"] == "best head"].iloc[0]
        figure.add_bar(
            y=[f"best head, {name}"], x=[100 * row["share"]], orientation="h", marker={"color": accent(i)},
            error_x=_bars([row["share"]], [row["ci_low"]], [row["ci_high"]], 100),
            hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
        )  # fmt: skip
    figure.update_layout(showlegend=False, bargap=0.35, margin={"l": 110, "r": 16, "t": 8, "b": 42})
    figure.update_xaxes(title="right, % of prompts", range=[0, 100])
    figure.update_yaxes(showgrid=False)
    return figure


def dots(
    tables: Sequence[tuple[str, pd.DataFrame]],
    across: str,
    value: str,
    title: str,
    *,
    first: int = 0,
    limits: tuple[float, float] | None = None,
) -> Any:
    """Points with 95 % intervals, a row per entry of `across`, the models side by side; no interval, no bar.

    `first` is the number of the first model, which has its colour; `limits` are shown whole, with 0.
    """

    figure, names = go.Figure(), [str(x) for x in tables[0][1][across]]
    step = 0.26
    for i, (name, table) in enumerate(tables):
        shift = (i - (len(tables) - 1) / 2) * step
        figure.add_scatter(
            x=table[value].tolist(), y=[y + shift for y in range(len(table))], mode="markers", name=name,
            marker={"color": accent(first + i), "size": 9}, text=names,
            error_x=_bars(table[value], table["ci_low"], table["ci_high"]),
            hovertemplate=f"{name}, %{{text}}: %{{x:+.4f}}<extra></extra>",
        )  # fmt: skip
        figure.data[-1].error_x.update(color=accent(first + i))
    figure.add_vline(0, line={"color": MUTED, "width": 1, "dash": "dot"})
    figure.update_layout(legend=LEGEND, showlegend=True, margin={"l": 60, "r": 12, "t": 32, "b": 42})
    figure.update_xaxes(title=title, zeroline=False)
    if limits is not None:
        low, high = min(0.0, limits[0]), max(0.0, limits[1])
        figure.update_xaxes(range=[low - 0.05 * (high - low), high + 0.05 * (high - low)])
    half = 0.5 + step * len(tables) / 4
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": [n.replace("_", " ").replace("-", "-<br>") for n in names],
    }
    figure.update_yaxes(range=[len(names) - 1 + half, -half], showgrid=False, zeroline=False, **ticks)
    return figure


def gates(effects: pd.DataFrame, draws: pd.DataFrame, measure: str, i: int, title: str) -> Any:
    """Change against the gate: the selected heads, the bottom ones, and random sets as points at the smallest gate.

    LFA Figures 5 and 6. A curve that is undefined by construction is not drawn; the text says so.
    """

    figure = go.Figure()
    random = draws[(draws["measure"] == measure)].dropna(subset=["delta"])
    figure.add_scatter(
        x=(random["gate"] - 0.06).tolist(), y=random["delta"].tolist(), mode="markers", name="random",
        marker={"color": MUTED, "size": 5, "opacity": 0.7}, text=random["heads"].tolist(),
        hovertemplate="%{text}: %{y:+.4f}<extra></extra>",
    )  # fmt: skip
    whole = effects[(effects["measure"] == measure) & (effects["part"] == "all")]
    styles = {"bottom": ("smallest PDS", MUTED, "dash"), "selected": ("largest PDS", accent(i), "solid")}
    absent = []
    for role, (label, colour, dash) in styles.items():
        one = whole[whole["group"] == role].sort_values("gate")
        if one["delta"].isna().all():
            absent.append(label)
            continue
        figure.add_scatter(
            x=one["gate"].tolist(), y=one["delta"].tolist(), name=label, mode="lines+markers",
            line={"color": colour, "dash": dash}, marker={"size": 8}, text=one["heads"].tolist(),
            error_y=_bars(one["delta"], one["ci_low"], one["ci_high"]),
            hovertemplate="%{text}, gate %{x}: %{y:+.4f}<extra></extra>",
        )  # fmt: skip
        figure.data[-1].error_y.update(color=colour)
    if absent:
        note = f"{' and '.join(absent)}:<br>undefined by construction"
        figure.add_annotation(
            text=note, x=0.5, y=0.96, xref="paper", yref="paper", yanchor="top", showarrow=False,
            font={"color": INK, "size": 12}, bgcolor=SURFACE, bordercolor=LINE, borderpad=5,
        )  # fmt: skip
    figure.add_hline(0, line={"color": MUTED, "width": 1, "dash": "dot"})
    figure.update_layout(legend=LEGEND, showlegend=True, margin={"l": 62, "r": 12, "t": 32, "b": 42})
    figure.update_xaxes(title="gate on the heads' outputs", range=[1.06, -0.14], tickvals=[1, 0.5, 0], zeroline=False)
    figure.update_yaxes(title=title, zeroline=False)
    return figure


def _bars(values: Any, low: Any, high: Any, factor: float = 1) -> dict[str, Any]:
    """Error bars of an interval; an undefined one has no length."""
    up = [factor * (h - v) if h == h else 0 for v, h in zip(values, high, strict=True)]
    down = [factor * (v - w) if w == w else 0 for v, w in zip(values, low, strict=True)]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5, "width": 4,
            "color": INK}  # fmt: skip
