"""Draws the figures that instruments declare (`instruments.figures`): one palette, for the screen and for paper.

Colours are Okabe and Ito's, told apart by colour-blind readers, with marks and dashes that differ in grey; signed
quantities are drawn in a diverging scale around 0.
"""

from dataclasses import replace
from functools import singledispatch
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamscope.instruments.figures import OVER, Curve, Figure, HeadMap, Histogram, Intervals, Matrix, Points, Scatter
from streamscope.instruments.table import Column, Table

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PAPER = {
    "width": 340,
    "height": 260,
    "font": {"size": 9, "family": "Helvetica, Arial, sans-serif"},
    "margin": {"l": 50, "r": 10, "t": 10, "b": 45},
    "title": None,
}
ZERO = 0.5
"""Where step 0 stands on a logarithmic axis."""
WIDE = 64
"""Last step / first step but 0 from which on the axis is logarithmic."""
MOST_NUMBERS = 100
"""Cells of a map that have their numbers written in them."""


def draw(figure: Figure, result: Any, *, paper: bool = False, dark: bool = False) -> go.Figure | None:
    """The figure of a result, for a screen or for a paper's column (340 pixels wide, 9 points).

    None where the table, or a value of the column, is not there.
    """
    if figure.table is not None and figure.table not in result.tables:
        return None
    table = result.table(figure.table)
    if figure.y not in table.frame or table.frame[figure.y].isna().all():
        return None
    runs = ["run", "step"] if result.about.get(OVER) and getattr(figure, "x", "") != "step" else ["run"]
    runs = [] if getattr(figure, "over_runs", False) else runs
    apart = [c for c in (*runs, *getattr(figure, "each", ())) if table.frame.get(c, pd.Series()).nunique() > 1]
    drawn = _panels(figure, table, apart) if apart else _draw(figure, table)
    if drawn is not None:
        drawn.layout.template = "plotly_dark" if dark else "plotly_white"
        said = f"{table.title}; {at}" if (at := _at(figure, table.frame)) else table.title
        lines = wrap(said, 110)
        title = {
            "text": "<br>".join(map(escape, lines)),
            "font": {"size": 13},
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 14},
        }
        screen = {"width": drawn.layout.width or 860, "title": title, "margin": {"t": 60 + 18 * len(lines)}}
        drawn.update_layout(**(PAPER if paper else screen))
    return drawn


def _panels(figure: Figure, table: Table, by: list[str]) -> go.Figure | None:
    """One panel for each run, or combination of other columns: the last of several across, the others below."""
    each: dict[tuple[Any, ...], go.Figure] = {}
    for names, rows in table.frame.groupby(by, sort=False):
        one = _draw(figure, replace(table, frame=rows.reset_index(drop=True), missing={}))
        if one is not None:
            each[tuple(names)] = one
    if not each:
        return None
    if len(by) == 1 and isinstance(figure, Curve):  # they have no order that rows or columns could show
        m = min(3, len(each))
        n = -(-len(each) // m)
        places = {names: divmod(i, m) for i, names in enumerate(each)}
    else:
        down = list(dict.fromkeys(names[:-1] if len(by) > 1 else names for names in each))
        across = list(dict.fromkeys(names[-1:] if len(by) > 1 else () for names in each))
        n, m = len(down), len(across)
        cut = 1 if len(by) == 1 else len(by) - 1
        places = {names: (down.index(names[:cut]), across.index(names[cut:])) for names in each}
    held = {place: names for names, place in places.items()}
    titles = [", ".join(map(str, held.get((a, b), ()))) for a in range(n) for b in range(m)]
    space = {"vertical_spacing": 0.25 / n, "horizontal_spacing": 0.2 / m}
    whole = make_subplots(n, m, subplot_titles=titles, **space)
    for i, (names, one) in enumerate(each.items()):
        at = {"row": 1 + places[names][0], "col": 1 + places[names][1]}
        for trace in one.data:
            if trace.type == "heatmap":  # one scale for all, so that panels can be compared by eye
                low, high = ([getattr(o.data[0], end) for o in each.values()] for end in ("zmin", "zmax"))
                trace.update(zmin=min(low), zmax=max(high), showscale=i == 0)
            else:
                trace.update(showlegend=bool(trace.showlegend is not False and i == 0 and trace.name))
            whole.add_trace(trace, **at)
        whole.update_xaxes(one.layout.xaxis.to_plotly_json(), **at)
        whole.update_yaxes(one.layout.yaxis.to_plotly_json(), **at)
        for shape in one.layout.shapes:  # lines across a panel
            whole.add_vline(shape.x0, line=shape.line, **at)
    if isinstance(figure, Curve) and len(by) == 1:
        for b in range(1, m):
            whole.update_yaxes(title=None, col=b + 1)
        whole.update_layout(legend={"orientation": "h", "y": -0.35 / n, "yanchor": "top"})
    heights = [one.layout.height or 450 for one in each.values()]
    return whole.update_layout(height=n * max(heights) if m > 1 else sum(heights), width=max(860, 300 * m))


def _at(figure: Figure, frame: pd.DataFrame) -> str | None:
    """Which rows are drawn where they differ in the column `by`: those with its smallest value."""
    by = getattr(figure, "by", None)
    if isinstance(figure, Curve) or by is None or by not in frame or frame[by].nunique() < 2:
        return None
    return f"{by} = {frame[by].min():g}"


def axis(column: Column) -> str:
    """What stands at an axis: title and unit."""
    return f"{column.title} [{column.unit}]"


def _bar(column: Column) -> dict[str, Any]:
    """The bar of a map's colours: title, and the unit up to its first comma, for a bar has less room than an axis."""
    short = replace(column, unit=column.unit.split(",")[0])
    return {"title": {"text": axis(short), "side": "right"}, "thickness": 14}


@singledispatch
def _draw(figure: Figure, table: Table) -> go.Figure | None:
    raise TypeError(f"{type(figure).__name__} cannot be drawn; register a function for it here")


@_draw.register
def _(figure: HeadMap, table: Table) -> go.Figure | None:
    column, frame = table.column(figure.y), table.frame
    axes = [figure.rows, figure.columns]
    numbers = [name for name in axes if pd.api.types.is_numeric_dtype(frame[name])]
    frame = frame[(frame[numbers] >= 0).all(axis=1) & frame[figure.y].notna()]
    if figure.by is not None and len(frame):
        frame = frame[frame[figure.by] == frame[figure.by].min()]
    if not len(frame) or frame.duplicated(axes).any():
        return None
    names = [column.name, *(column.interval or ())]
    frame = frame.assign(text=[column.text(*row) for row in frame[names].itertuples(index=False, name=None)])
    down, across = (sorted(set(frame[a])) if a in numbers else list(dict.fromkeys(frame[a])) for a in axes)

    def cells(name: str) -> pd.DataFrame:
        return frame.pivot(index=axes[0], columns=axes[1], values=name).reindex(index=down, columns=across)

    grid, texts = cells(figure.y), cells("text")
    signed = column.format.startswith("+")
    limit = 1.0 if column.unit == "probability" else float(frame[figure.y].abs().max()) or 1.0
    values = frame[figure.y]
    if signed and values.min() < 0 < values.max():
        colours, low, high = "RdBu_r", -limit, limit
    else:  # one sign: the whole scale is used
        below = signed and values.max() <= 0
        colours, low, high = ("Blues_r", -limit, 0.0) if below else ("Reds" if signed else "Blues", 0.0, limit)
    written = None if figure.text is None else cells(figure.text).fillna("–").to_numpy()
    digits = ("+" if signed else "") + (".3f" if limit >= 0.01 else ".1e")
    drawn = go.Figure(
        go.Heatmap(
            z=grid.to_numpy(), x=_names(table.column(figure.columns), grid.columns),
            y=_names(table.column(figure.rows), grid.index), customdata=texts.to_numpy(), text=written,
            texttemplate="%{text}" if figure.text else f"%{{z:{digits}}}" if grid.size <= MOST_NUMBERS else None,
            hovertemplate=f"%{{y}}%{{x}}: %{{customdata}} {column.unit}<extra></extra>",
            colorscale=colours, zmin=low, zmax=high, colorbar=_bar(column),
        )
    )  # fmt: skip
    for at, called, values in ((axes[1], figure.names, grid.columns), (axes[0], figure.row_names, grid.index)):
        if called is not None:
            told = frame.drop_duplicates(at).set_index(at)[called]
            ticks = {"tickvals": list(range(len(values))), "ticktext": [told[value] for value in values]}
            drawn.update_xaxes(**ticks, tickangle=-40) if at == axes[1] else drawn.update_yaxes(**ticks)
    row = max(22, min(70, 900 // len(grid)))
    drawn.update_layout(
        xaxis_title={"index": "head"}.get(axes[1], axes[1]), yaxis_title=axes[0], height=max(320, row * len(grid) + 120)
    )
    drawn.update_yaxes(autorange="reversed")
    return drawn


def _names(column: Column, values: Any) -> list[str]:
    """L5 of layers, H5 of heads; positions and clusters are numbers, names as they are."""
    plain = {"position", "cluster"} & {column.name, column.unit.split()[0]}
    letter = "L" if column.name == "layer" else "" if plain else "H"
    return [value if isinstance(value, str) else f"{letter}{value}" for value in values]


@_draw.register
def _(figure: Intervals, table: Table) -> go.Figure:
    frame = table.frame[table.frame[figure.y].notna()]
    if figure.by is not None and len(frame):
        frame = frame[frame[figure.by] == frame[figure.by].min()]
    order = frame[figure.y].abs().sort_values(ascending=False, kind="stable").index[: figure.most]
    frame = frame.loc[order if figure.ranked else sorted(order)].iloc[::-1]
    drawn = go.Figure()
    for i, name in enumerate([figure.y, *([figure.beside] if figure.beside and figure.beside in frame else [])]):
        column = table.column(name)
        ends = [frame[end] for end in column.interval] if column.interval else None
        bars = {} if ends is None else {"array": ends[1] - frame[name], "arrayminus": frame[name] - ends[0]}
        drawn.add_scatter(
            x=frame[name], y=[str(v) for v in frame[figure.label]], mode="markers", name=column.title,
            marker={"color": PALETTE[i], "symbol": MARKS[i], "size": 8},
            error_x={"type": "data", "thickness": 1.2, **bars} if bars else None,
        )  # fmt: skip
    drawn.add_vline(x=0, line={"color": "gray", "width": 1, "dash": "dot"})
    drawn.update_layout(
        xaxis_title=axis(table.column(figure.y)),
        yaxis={"type": "category", "dtick": 1},
        height=max(320, 18 * len(frame) + 140),
    )
    return drawn


@_draw.register
def _(figure: Curve, table: Table) -> go.Figure | None:
    frame = table.frame[table.frame[figure.y].notna()]
    if figure.x not in frame or frame[figure.x].nunique() < 2:
        return None
    steps = sorted(set(frame[figure.x])) if figure.x == "step" else []
    log = figure.log or (len(steps) > 1 and steps[-1] >= WIDE * next(step for step in steps if step))
    if steps and log:
        frame = frame.assign(step=frame["step"].clip(lower=ZERO))
    column = table.column(figure.y)
    groups = dict(list(frame.groupby(figure.by, sort=False))) if figure.by else {"": frame}
    most = sorted(groups, key=lambda name: -float(np.ptp(groups[name][figure.y])))[: figure.most]
    drawn = go.Figure()
    for i, name in enumerate(name for name in groups if name in most):
        one, colour = groups[name].sort_values(figure.x), PALETTE[i % len(PALETTE)]
        if column.interval:
            low, high = (one[end].fillna(one[figure.y]) for end in column.interval)
            drawn.add_scatter(
                x=[*one[figure.x], *one[figure.x][::-1]], y=[*high, *low[::-1]], fill="toself", fillcolor=colour,
                mode="lines", line={"width": 0}, opacity=0.15, showlegend=False, hoverinfo="skip",
                legendgroup=str(name),
            )  # fmt: skip
        drawn.add_scatter(
            x=one[figure.x], y=one[figure.y], mode="lines+markers", name=str(name) or column.title,
            legendgroup=str(name),
            line={"color": colour, "dash": DASHES[i % len(DASHES)]}, marker={"symbol": MARKS[i % len(MARKS)]},
            showlegend=bool(figure.by or figure.beside),
        )  # fmt: skip
        if figure.beside is not None and one[figure.beside].notna().any():
            drawn.add_scatter(
                x=one[figure.x], y=one[figure.beside], mode="lines", line={"color": colour, "width": 1, "dash": "dot"},
                name=f"{name} {table.column(figure.beside).title}".strip(), legendgroup=str(name),
            )  # fmt: skip
    drawn.update_layout(xaxis_title=axis(table.column(figure.x)), yaxis_title=axis(column), height=480)
    if log:
        drawn.update_xaxes(type="log")
    if steps and log:
        shown = [*([0] if 0 in steps else []), *(10**i for i in range(len(str(int(steps[-1])))))]
        drawn.update_xaxes(tickvals=[max(s, ZERO) for s in shown], ticktext=[f"{s:,}" for s in shown])
    return drawn


@_draw.register
def _(figure: Scatter, table: Table) -> go.Figure | None:
    if figure.x not in table.frame:
        return None
    frame = table.frame[table.frame[[figure.x, figure.y]].notna().all(axis=1)]
    if not len(frame):
        return None
    both = frame[[figure.x, figure.y]].to_numpy()
    ends = [both.min(), both.max()]
    drawn = go.Figure(go.Scatter(x=ends, y=ends, mode="lines", line={"dash": "dot", "color": "gray"}, name="equal"))
    drawn.add_scatter(
        x=frame[figure.x], y=frame[figure.y], text=[str(v) for v in frame[figure.label]], mode="markers",
        showlegend=False, marker={"color": PALETTE[0]}, hovertemplate="%{text}: %{x:.4f}, %{y:.4f}<extra></extra>",
    )  # fmt: skip
    titles = (axis(table.column(name)) for name in (figure.x, figure.y))
    drawn.update_layout(**dict(zip(("xaxis_title", "yaxis_title"), titles, strict=True)), height=560)
    return drawn


@_draw.register
def _(figure: Matrix, table: Table) -> go.Figure | None:
    frame = table.frame[table.frame[figure.y].notna()]
    pairs = [str(label).split("+") for label in frame[figure.label]]
    if len(pairs) < 2 or any(len(pair) != 2 for pair in pairs) or frame[figure.label].duplicated().any():
        return None
    names = sorted({name for pair in pairs for name in pair}, key=_place)
    at, grid = {name: i for i, name in enumerate(names)}, np.full((len(names), len(names)), np.nan)
    for (a, b), value in zip(pairs, frame[figure.y], strict=True):
        grid[at[a], at[b]] = grid[at[b], at[a]] = value
    limit = float(np.nanmax(np.abs(grid))) or 1.0
    drawn = go.Figure(
        go.Heatmap(
            z=grid, x=names, y=names, colorscale="RdBu_r", zmin=-limit, zmax=limit, hoverongaps=False,
            hovertemplate="%{y} and %{x}: %{z:+.4f}<extra></extra>",
            colorbar=_bar(table.column(figure.y)),
        )
    )  # fmt: skip
    drawn.update_layout(plot_bgcolor="#999", height=760)  # pairs that were not measured are grey
    drawn.update_xaxes(showgrid=False, tickmode="linear")
    drawn.update_yaxes(showgrid=False, tickmode="linear", autorange="reversed")
    return drawn


@_draw.register
def _(figure: Histogram, table: Table) -> go.Figure:
    column = table.column(figure.y)
    drawn = go.Figure(go.Histogram(x=table.frame[figure.y].dropna(), nbinsx=24, marker={"color": PALETTE[0]}))
    if figure.at is not None and pd.notna(table.frame[figure.at].iloc[0]):
        line = float(table.frame[figure.at].iloc[0])
        over = int((table.frame[figure.y] > line).sum())
        drawn.add_vline(line, line_dash="dash", annotation_text=f"{line:.3f}: {over} over")
    drawn.update_layout(xaxis_title=axis(column), yaxis_title="rows", showlegend=False, height=420)
    return drawn


@_draw.register
def _(figure: Points, table: Table) -> go.Figure | None:
    frame = table.frame
    if not {figure.x, figure.color, *figure.text} <= set(frame):
        return None
    column, drawn = table.column(figure.color), go.Figure()
    shown = [table.column(name) for name in (*figure.text, figure.color)]
    template = "<br>".join(f"{c.title} %{{customdata[{i}]}}" for i, c in enumerate(shown)) + "<extra></extra>"
    if figure.ordered:
        colour = {"color": frame[figure.color], "colorscale": "Viridis", "colorbar": {"title": column.title}}
        groups = [("", frame, {**colour, "showscale": True})]
    else:
        names = frame[figure.color].value_counts().drop(figure.none, errors="ignore").index[: figure.most]
        rest = frame[~frame[figure.color].isin(names)]
        groups = [("others", rest, {"color": "#bbb"})] if len(rest) else []
        for i, name in enumerate(names):
            mark = {"color": PALETTE[i % len(PALETTE)], "symbol": MARKS[i // len(PALETTE) % len(MARKS)]}
            groups.append((f"{column.title} {name}", frame[frame[figure.color] == name], mark))
    for name, rows, marker in groups:
        texts = np.stack([[escape(str(value)) for value in rows[c.name]] for c in shown], axis=1)
        drawn.add_scattergl(
            x=rows[figure.x], y=rows[figure.y], mode="markers", name=name, customdata=texts, hovertemplate=template,
            marker={"size": 4, "opacity": 0.7, **marker}, showlegend=bool(name),
        )  # fmt: skip
    titles = (axis(table.column(name)) for name in (figure.x, figure.y))
    drawn.update_layout(**dict(zip(("xaxis_title", "yaxis_title"), titles, strict=True)), height=720)
    drawn.update_layout(legend={"itemsizing": "constant"}, dragmode="pan")
    return drawn


def _place(label: str) -> tuple[int, int, str]:
    """Layer and head of L5H4, for sorting."""
    layer, _, head = label.removeprefix("L").partition("H")
    return (int(layer), int(head), label) if layer.isdigit() and head.isdigit() else (-1, -1, label)
