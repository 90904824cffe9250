"""The figures of `probes.picture`: rows of heads that look from one token, or one map of query × key per head."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {"query": "#6a3d9a", "target": "#2e7d32"}
OTHER = "#c8553d"
"""Of the distractors."""
LONGEST = 14
"""Characters of a token on an axis."""
WRITTEN = 0.1
"""Weights from here on are written into their cell; smaller ones are colour only."""


def plot(table: "pd.DataFrame", title: str = "") -> Any:
    """A plotly figure of a table of `Picture.read`: with one query a row per head, with several a map per head.

    The colour is the share of attention from 0 to the largest in the table. Spaces are shown as ·, line breaks as ⏎;
    key 0 is BOS. Tokens with a role are coloured, their columns framed and named above. In a map the half that a
    causal model cannot see is blank.
    """
    return _rows(table, title) if table["query"].nunique() == 1 else _maps(table, title)


def shown(piece: str, position: int) -> str:
    """A token's text on an axis: spaces visible, HTML escaped, cut to `LONGEST` characters."""
    from streamscope.probes.logit_lens.measure import visible

    if position == 0:
        return "BOS"
    return visible(piece.replace(" ", "·"), LONGEST)


def _labels(table: "pd.DataFrame") -> tuple[list[int], list[str], dict[int, str]]:
    """Key positions, their texts (coloured by role) and roles."""
    keys = table.drop_duplicates("key").sort_values("key")
    roles = {int(k): str(r) for k, r in zip(keys["key"], keys["role"], strict=True) if r}
    texts = []
    for k, piece in zip(keys["key"], keys["key_token"], strict=True):
        text = shown(piece, k)
        if k in roles:
            text = f'<b><span style="color:{_colour(roles[k])}">{text}</span></b>'
        texts.append(text)
    return keys["key"].tolist(), texts, roles


def _colour(role: str) -> str:
    return COLOURS.get(role, OTHER)


def _top(title: str) -> dict[str, Any]:
    """The title at the top, clear of the names of roles and heads."""
    return {"text": title, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 40}}


def _cell(n: int, largest: int = 46, smallest: int = 15, room: int = 1000) -> int:
    """Pixels of a cell such that n of them fill `room`, within reason."""
    return max(smallest, min(largest, room // n))


def _written(grid: Any, cell: int) -> Any:
    """Texts of the cells: two decimals where there is room and the weight is worth it."""
    import numpy as np

    if cell < 24:
        return np.full(grid.shape, "")
    digits = 2 if cell >= 30 else 1
    texts = [[f"{x:.{digits}f}".removeprefix("0") if x >= WRITTEN else "" for x in row] for row in grid]
    return np.array(texts, dtype=object)


def _frames(figure: Any, roles: dict[int, str], rows: int, **where: int) -> None:
    """Frames around the columns of the roles, and their names above; neighbours with one role share a frame."""
    runs: list[list[int]] = []
    for k in sorted(roles):
        if runs and roles[runs[-1][1]] == roles[k] and runs[-1][1] == k - 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    for first, last in runs:
        role = roles[first]
        line = {"color": _colour(role), "width": 2}
        figure.add_shape(type="rect", x0=first - 0.5, x1=last + 0.5, y0=-0.5, y1=rows - 0.5, line=line, **where)
        figure.add_annotation(
            text=role, x=(first + last) / 2, y=-0.5, yanchor="bottom", xanchor="left", textangle=-40, showarrow=False,
            font={"color": _colour(role), "size": 12}, **where,
        )  # fmt: skip


def _rows(table: "pd.DataFrame", title: str) -> Any:
    """Heads as rows, keys as columns, from one query."""
    import plotly.graph_objects as go

    keys, texts, roles = _labels(table)
    order = table.drop_duplicates("head")["head"].tolist()
    grid = table.pivot(index="head", columns="key", values="attention").loc[order].to_numpy()
    query, token = int(table["query"].iloc[0]), shown(table["query_token"].iloc[0], int(table["query"].iloc[0]))
    cell = _cell(len(keys))
    figure = go.Figure(
        go.Heatmap(
            z=grid, x=keys, y=list(range(len(order))), text=_written(grid, cell), texttemplate="%{text}",
            textfont={"size": 10}, customdata=[[(h, t) for t in texts] for h in order], xgap=1, ygap=1,
            hovertemplate="%{customdata[0]} looks at %{customdata[1]} (%{x}): %{z:.4f}<extra></extra>",
            colorscale="Blues", zmin=0, zmax=float(table["attention"].max()),
            colorbar={"title": "share of<br>attention", "thickness": 14},
        )
    )  # fmt: skip
    _frames(figure, roles, len(order))
    layers = table.drop_duplicates("head")["layer"].tolist()
    for i in range(1, len(layers)):
        if layers[i] != layers[i - 1]:
            figure.add_hline(i - 0.5, line={"color": "#555555", "width": 1})
    figure.update_xaxes(tickvals=keys, ticktext=texts, tickangle=-60, range=[-0.5, len(keys) - 0.5], showgrid=False)
    figure.update_xaxes(title=f"key: the token looked at (the query is “{token}”, token {query})")
    figure.update_yaxes(tickvals=list(range(len(order))), ticktext=order, range=[len(order) - 0.5, -0.5])
    figure.update_yaxes(title="head", showgrid=False)
    width, height = 190 + cell * len(keys), 310 + 19 * len(order)
    margin = {"l": 80, "r": 110, "t": 165, "b": 140}
    figure.update_layout(title=_top(title), width=max(760, width), height=height, margin=margin, plot_bgcolor="white")
    return figure


def _maps(table: "pd.DataFrame", title: str) -> Any:
    """One map per head: queries as rows from the top, keys as columns."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    keys, texts, roles = _labels(table)
    heads = table.drop_duplicates("head")["head"].tolist()
    n = len(keys)
    cell = _cell(n, largest=34, room=1000 if len(heads) == 1 else 480)
    columns = min(len(heads), max(1, 1300 // (cell * n + 150)))
    rows = -(-len(heads) // columns)
    side, gap, margin = cell * n, 150, {"l": 130, "r": 110, "t": 190, "b": 130}
    wide, tall = columns * side + (columns - 1) * gap, rows * side + (rows - 1) * (gap + 60)
    spacing = {"horizontal_spacing": gap / wide, "vertical_spacing": (gap + 60) / tall}
    figure = make_subplots(rows, columns, **spacing)
    for i, head in enumerate(heads):
        at = {"row": i // columns + 1, "col": i % columns + 1}
        grid = table[table["head"] == head].pivot(index="query", columns="key", values="attention").to_numpy()
        heat = go.Heatmap(
            z=grid, x=keys, y=keys, text=_written(grid, cell), texttemplate="%{text}", textfont={"size": 9},
            customdata=[[(q, t) for t in texts] for q in texts], coloraxis="coloraxis", xgap=1, ygap=1,
            hovertemplate="%{customdata[0]} (%{y}) to %{customdata[1]} (%{x}): %{z:.4f}<extra>" + head + "</extra>",
            hoverongaps=False,
        )  # fmt: skip
        figure.add_trace(heat, **at)
        _frames(figure, {k: role for k, role in roles.items() if role != "query"}, n, **at)
        for k in (k for k, role in roles.items() if role == "query"):
            line = {"color": _colour("query"), "width": 2}
            figure.add_shape(type="rect", x0=-0.5, x1=k + 0.5, y0=k - 0.5, y1=k + 0.5, line=line, **at)
        place = {
            "xref": "x domain",
            "yref": "y domain",
            "x": 0,
            "y": 1,
            "yshift": 44 if roles else 6,
            "xanchor": "left",
        }
        figure.add_annotation(
            text=f"<b>{head}</b>", showarrow=False, yanchor="bottom", font={"size": 14}, **place, **at
        )
        figure.update_xaxes(title="key: the token looked at", tickangle=-60, **at)
        figure.update_yaxes(title="query: the token that looks", **at)
    size = {"size": max(8, min(12, cell - 4))}
    figure.update_xaxes(tickvals=keys, ticktext=texts, range=[-0.5, n - 0.5], showgrid=False, tickfont=size)
    figure.update_yaxes(tickvals=keys, ticktext=texts, range=[n - 0.5, -0.5], showgrid=False, tickfont=size)
    bar = {
        "title": "share of<br>attention",
        "thickness": 14,
        "lenmode": "pixels",
        "len": side,
        "y": 1,
        "yanchor": "top",
    }
    colours = {"colorscale": "Blues", "cmin": 0, "cmax": float(table["attention"].max()), "colorbar": bar}
    figure.update_layout(title=_top(title), coloraxis=colours, margin=margin, plot_bgcolor="white")
    figure.update_layout(width=max(760, wide + margin["l"] + margin["r"]), height=tall + margin["t"] + margin["b"])
    return figure
