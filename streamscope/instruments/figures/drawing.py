"""Draws the figures that instruments declare (`instruments.figures`): one palette, for the screen and for paper.

Colours are Okabe and Ito's, which colour-blind readers can distinguish, with marks and dashes that differ in grey.
Signed quantities have a diverging scale around 0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import singledispatch
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from streamscope.instruments.figures import (
    OVER,
    Circuit,
    Curve,
    Figure,
    HeadMap,
    Histogram,
    Intervals,
    Matrix,
    Points,
    Scatter,
)
from streamscope.instruments.figures.circuit import draw_circuit
from streamscope.instruments.observations import estimate
from streamscope.instruments.table import Column, Table, key

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PAPER: dict[str, Any] = {
    "width": 340,
    "height": 260,
    "font": {"size": 9, "family": "Helvetica, Arial, sans-serif"},
    "margin": {"l": 50, "r": 10, "t": 10, "b": 45},
    "title": None,
}
PART = re.compile(r"L(\d+)(\.?H\d+|[ .](attn|mlp|FFN)\w*)?|head")
"""The name of a layer, or of a head, the attention or the FFN in it, or of the readout."""
ZERO = 0.5
"""Where step 0 stands on a logarithmic axis."""
WIDE = 64
"""Last step / first step but 0 from which on the axis is logarithmic."""
MOST_NUMBERS = 100
"""Cells of a map that have their numbers written in them."""
MOST_NAMES = 50
"""Rows and columns of a map of pairs that have their names at the axes; of more the layers are named."""
MOST_LABELS = 12
"""Marks of a scatter that have their names beside them."""
SMALLEST = 7.0
"""Size of texts in cells; numbers that would be smaller are left out."""
OUTLYING = 3.0
"""How many times larger than all others a few cells must be for colours by the square root."""
MIXED = ("units of the measure", "of the phenomenon")
"""How the unit of a column begins that holds several measures."""
TITLE_CHARACTER = 7.5
"""About how many pixels a character of a panel's title is wide."""
WIDEST = 1400
"""Pixels of a figure with panels."""


def draw(figure: Figure, result: Any, *, paper: bool = False, dark: bool = False) -> go.Figure | None:
    """The figure of a result, for a screen or for a paper's column (340 pixels wide, 9 points).

    None where the table, or a value of the column, is not there.
    """
    if figure.table is not None and figure.table not in result.tables:
        return None
    table = result.table(figure.table)
    if figure.y not in table.frame or table.frame[figure.y].isna().all():
        return None
    table = _with_control(figure, result, table)
    runs = ["run", "step"] if result.about.get(OVER) and getattr(figure, "x", "") != "step" else ["run"]
    runs = [] if figure.over_runs else runs
    apart = [c for c in (*runs, *figure.each) if table.frame.get(c, pd.Series()).nunique() > 1]
    units = {block.measure.name: block.measure.unit for block in result.blocks.values()}
    drawn = _panels(figure, table, apart, units) if apart else _draw(figure, _in_units(figure, table, units))
    if drawn is not None and isinstance(figure, Curve) and figure.draws in result.tables:
        _add_draws(drawn, figure, result.table(figure.draws).frame, apart)
    if drawn is not None:
        width: int = PAPER["width"] if paper else max(860, drawn.layout.width or 0)
        drawn.layout.template = "plotly_dark" if dark else "plotly_white"
        if isinstance(figure, Intervals):  # a value beside its reference, not on it
            drawn.update_layout(scattermode="group", scattergap=0.5)
        drawn.layout.modebar = {"remove": ["lasso2d", "select2d", "autoScale2d"]}
        drawn.update_xaxes(exponentformat="power", minexponent=6)  # .0005, not 500µ
        drawn.update_yaxes(exponentformat="power", minexponent=6, ticklabelstandoff=4)
        drawn.update_layout(width=width, **({} if paper else _caption(figure, table, result.about, width, apart)))
        if not paper:  # the caption takes nothing from what is drawn
            drawn.update_layout(height=(drawn.layout.height or 450) + drawn.layout.margin.t - 78)
        _color(drawn, figure, table.column(figure.y))
        for trace in drawn.data if dark else ():  # white for the palette's black
            for part in (getattr(trace, "line", None), getattr(trace, "marker", None)):
                if part is not None and isinstance(part.color, str) and part.color == PALETTE[-1]:
                    part.color = "#ffffff"
            if getattr(trace, "fillcolor", None) == PALETTE[-1]:
                trace.fillcolor = "#ffffff"
        if paper:
            drawn.update_layout(**PAPER)
            if len(drawn.layout.annotations):  # titles of panels
                drawn.update_layout(margin_t=34).update_annotations(font_size=8)
            if isinstance(figure, Intervals):  # a line for each row
                places = {one.yaxis: len(one.y) for one in drawn.data if one.y is not None}
                down = len({axis.domain for axis in drawn.select_yaxes()})
                drawn.update_layout(height=max(PAPER["height"], down * (12 * max(places.values()) + 60)))
    return drawn


def _with_control(figure: Figure, result: Any, table: Table) -> Table:
    """The table; of a run that is compared with a control, the rows of both, with the column run."""
    if "control" not in result.about:
        return table
    name = next(name for name, one in result.tables.items() if one is table)
    block, contrasts = (given.get(f"control-{name}") for given in (result.blocks, result.contrasts))
    if block is None:
        return table
    frame, _ = estimate(block, contrasts).wide(list(dict.fromkeys(key for c in contrasts for key in c.labels)))
    places = {getattr(figure, what, None) for what in ("x", "by", "rows", "columns", "label", "text")} | {*figure.each}
    if not {figure.y, *(places & {*table.frame})} <= {*frame}:
        return table
    names = [str(about.get("model")) for about in (result.about, result.about["control"])]
    names[1] += ", control" if names[0] == names[1] else ""
    parts = [one.assign(run=model) for model, one in zip(names, (table.frame, frame), strict=True)]
    both = pd.concat(parts, ignore_index=True)[["run", *table.frame]]
    columns, title = (key("run", "run", "run or control"), *table.columns), " and its control, ".join(names)
    if rest := table.title.removeprefix(names[0]).lstrip(":;, "):
        title = f"{title}: {rest}"
    return replace(table, frame=both, columns=columns, missing={}, title=title)


def _caption(
    figure: Figure, table: Table, about: Mapping[str, Any], width: int, panels: Sequence[str] = ()
) -> dict[str, Any]:
    """Title and margin: the figure's title and the model in bold, below the table's title and what marks mean.

    Lines end where the tools of the figure begin, which show when the pointer is over it.
    """
    model, rest, head = about.get("model"), table.title, headline(figure, table)
    if isinstance(model, str) and "run" not in table.frame:
        head, rest = f"{head}: {model}", rest.removeprefix(model).lstrip(":;, ")
    by = None if isinstance(figure, Curve) else getattr(figure, "by", None)
    where = f"{by} = {table.frame[by].min():g}" if by in table.frame and table.frame[by].nunique() > 1 else ""
    rest = "; ".join(filter(None, (rest, where, *_notes(figure, table, panels))))
    lines, bold = wrap(rest, (width - 230) // 6), wrap(head, (width - 230) // 8, break_on_hyphens=False)
    text = "<br>".join([f"<b>{'<br>'.join(map(escape, bold))}</b>", *map(escape, lines)])
    title = {"text": text, "font": {"size": 13}, "y": 1, "yanchor": "top", "pad": {"t": 20}}
    return {"title": title, "margin": {"t": 60 + 18 * (len(bold) + len(lines))}}


def _notes(figure: Figure, table: Table, panels: Sequence[str]) -> Iterator[str]:
    """What bands and whiskers are, and how many rows or lines a panel leaves out."""
    if isinstance(figure, Circuit):
        yield "circles: heads, squares: other parts, light: without a shown edge; the wider a line, the larger its size"
    if not isinstance(figure, Curve | Intervals):
        return
    rows, curves = table.frame[table.frame[figure.y].notna()], isinstance(figure, Curve)
    if ends := table.column(figure.y).interval:
        there = rows[list(ends)].notna().any(axis=None)
        yield f"{'bands' if curves else 'whiskers'}: 95 % intervals" if there else "no intervals: the table says why"
    parts = [part for _, part in rows.groupby(list(panels))] if panels else [rows]
    if isinstance(figure, Curve):
        n = max((part[figure.by].nunique() for part in parts), default=0) if figure.by else 1
    else:
        n = max((len(_smallest(figure, part)) for part in parts), default=0)
    if n > figure.most:
        yield f"the {figure.most} of {n:,} {'lines that move the most' if curves else 'with the largest size'}"


def headline(figure: Figure, table: Table) -> str:
    """The figure's title; columns in braces are replaced by their titles, as in "{delta} from ablating each head"."""
    text = (figure.title or f"{{{figure.y}}}").format(**{column.name: column.title for column in table.columns})
    return text[:1].upper() + text[1:]


def _add_draws(drawn: go.Figure, figure: Curve, draws: pd.DataFrame, by: list[str]) -> None:
    """Controls drawn at random as grey marks, each in the panel of its values of `by`."""
    axes = dict.fromkeys((one.xaxis, one.yaxis) for one in drawn.data)  # in the order of the panels
    for i, (names, (x, y)) in enumerate(zip(drawn.layout.meta or [()], axes, strict=True)):
        rows = draws
        for column, value in zip(by, names, strict=True):
            rows = rows[rows[column] == value]
        drawn.add_scatter(
            x=rows[figure.x], y=rows[figure.y], mode="markers", name="random", xaxis=x, yaxis=y, showlegend=i == 0,
            marker={"color": "#555555", "symbol": "line-ew-open", "size": 9, "line": {"width": 2}},
        )  # fmt: skip


def _in_units(figure: Figure, table: Table, units: Mapping[str, str]) -> Table:
    """The table with the drawn rows' own unit, if its column holds several measures and these rows are of one.

    `units`: measure -> unit; a column `unit` of the table says it as well.
    """
    column, frame = table.column(figure.y), table.frame
    if not column.unit.startswith(MIXED):
        return table
    unit_of = frame["unit"] if "unit" in frame else frame["measure"].map(units) if "measure" in frame else pd.Series()
    if unit_of.nunique() != 1 or unit_of.isna().any():
        return table
    one = replace(column, unit=unit_of.iloc[0])
    return replace(table, columns=tuple(one if c.name == figure.y else c for c in table.columns))


# ---- colours -----------------------------------------------------------------------------------


def scale(
    values: np.ndarray, *, signed: bool, unit: str = "", root: bool = False
) -> tuple[list[tuple[float, str]], float, float, bool]:
    """(steps of colours, value of the first, value of the last, whether by the square root) for the cells of a map.

    A step is (place from 0 to 1, colour). Signed values are white at 0, and as red above it as they are blue below it;
    the colours span only the values that occur. Where a few cells (a fiftieth, one at least) are `OUTLYING` times as
    large as all others, colours go by the square root of the size, so that the others differ by eye and none is cut.
    With `root` they do anyhow, from 0 to 1; probabilities are from 0 to 1 as well.
    """
    sizes = np.sort(np.abs(values[np.isfinite(values)]))[::-1]
    few = max(1, len(sizes) // 50)
    limit = 1.0 if root or unit == "probability" else float(sizes[0]) or 1.0
    root |= bool(len(sizes) > 10 and sizes[few] > 0 and limit > OUTLYING * sizes[few] and unit != "probability")
    low = min(0.0, float(np.nanmin(values))) if signed else 0.0
    high = max(0.0, float(np.nanmax(values))) if signed else limit
    power = 2 if root else 1
    ends = [np.sign(end) * (abs(end) / limit) ** (1 / power) for end in (low, high)]
    at = np.linspace(ends[0], ends[1], 41)  # of the colours, evenly
    places = (np.sign(at) * np.abs(at) ** power * limit - low) / ((high - low) or 1.0)
    colors = sample_colorscale("RdBu_r", 0.5 + 0.5 * at) if signed else sample_colorscale("Blues", at)
    places[[0, -1]] = 0.0, 1.0  # plotly draws other colours where rounding leaves the last one below 1
    return list(zip(np.clip(places, 0, 1).tolist(), colors, strict=True)), low, high, root


def _color(drawn: go.Figure, figure: Figure, column: Column) -> None:
    """One scale for all maps of one unit, so that panels can be compared by eye, and texts that fit their cells.

    The bar is a legend of the map's `levels`, if it has them. Of several units each has a bar beside its maps.
    """
    units: dict[str, list[go.Heatmap]] = {}
    for one in (trace for trace in drawn.data if trace.type == "heatmap"):
        units.setdefault(one.meta or column.unit, []).append(one)
    for unit, maps in units.items():
        place = {}
        if len(units) > 1:
            domains = [drawn.layout[f"yaxis{(one.yaxis or 'y')[1:]}"].domain for one in maps]
            low, high = min(a for a, _ in domains), max(b for _, b in domains)
            place = {"y": (low + high) / 2, "len": high - low}
        _color_maps(drawn, maps, figure, replace(column, unit=unit), place)


def _color_maps(
    drawn: go.Figure, maps: list[go.Heatmap], figure: Figure, column: Column, place: Mapping[str, float]
) -> None:
    """The scale of some maps, and their bar at a `place`."""
    values, levels = np.concatenate([np.ravel(np.asarray(one.z, float)) for one in maps]), getattr(figure, "levels", ())
    signed, root = column.format.startswith("+") and not levels, getattr(figure, "root", False)
    steps, low, high, root = scale(values, signed=signed, unit=column.unit, root=root)
    height = drawn.layout.height - (drawn.layout.margin.t or 40) - 80
    bar = _bar(column, height * place.get("len", 1.0), root=root) | dict(place)
    if levels:  # bands of equal height, one colour each
        at = [value for value, _ in levels]
        half = (at[-1] - at[0]) / (2 * (len(at) - 1))
        low, high = at[0] - half, at[-1] + half
        colors = [color for color in sample_colorscale("Blues", np.linspace(0.1, 0.85, len(at))) for _ in range(2)]
        edges = [edge for i in range(len(at)) for edge in (i / len(at), (i + 1) / len(at))]
        steps = list(zip(edges, colors, strict=True))
        bar = {"thickness": 14, "tickvals": at, "ticktext": [name for _, name in levels]}
    for i, one in enumerate(maps):
        one.update(colorscale=steps, zmin=low, zmax=high, colorbar=bar, showscale=i == 0)
    for one in [one for one in maps if one.text is not None]:  # plotly contrasts the texts with their cells
        longest = max(len(re.sub("<[^>]*>", "", str(text))) for text in np.ravel(one.text))
        size = float(np.clip(_cell(drawn, one) / (0.62 * longest), SMALLEST, 12))
        if getattr(figure, "text", None) or size > SMALLEST:
            one.update(texttemplate="%{text}", textfont_size=size)


def _cell(drawn: go.Figure, one: go.Heatmap) -> float:
    """About how many pixels a cell of a map is wide."""
    domain = drawn.layout[f"xaxis{(one.xaxis or 'x')[1:]}"].domain or (0, 1)
    return (drawn.layout.width - 180) * (domain[1] - domain[0]) / len(one.x)


def _panels(figure: Figure, table: Table, by: list[str], units: Mapping[str, str]) -> go.Figure | None:
    """One panel for each run, or combination of other columns: the last of several across, the others below."""
    each: dict[tuple[Any, ...], go.Figure] = {}
    for names, rows in table.frame.groupby(by, sort=False):
        part = replace(table, frame=rows.reset_index(drop=True), missing={})
        one = _draw(figure, _in_units(figure, part, units))
        if one is not None:
            each[tuple(names)] = one
    if not each:
        return None
    wide = max(one.layout.width or 300 for one in each.values())
    down = list(dict.fromkeys(names[:-1] if len(by) > 1 else names for names in each))
    across = list(dict.fromkeys(names[-1:] if len(by) > 1 else () for names in each))
    if len(each) < len(down) * len(across) or (len(by) == 1 and isinstance(figure, Curve | HeadMap)):
        m = min(3, len(each), max(1, WIDEST // wide))  # no order that rows or columns could show, or holes in it
        n = -(-len(each) // m)
        places = {names: divmod(i, m) for i, names in enumerate(each)}
    else:
        n, m = len(down), len(across)
        cut = 1 if len(by) == 1 else len(by) - 1
        places = {names: (down.index(names[:cut]), across.index(names[cut:])) for names in each}
    width = max(860, min(WIDEST, m * wide))
    held = {place: names for names, place in places.items()}
    titles = []
    for values in (held.get((a, b), ()) for a in range(n) for b in range(m)):
        named = zip(by, values, strict=bool(values))  # a number with what it counts: attn.v, layer 2
        titles.append(", ".join(x if isinstance(x, str) else f"{name} {x}" for name, x in named if x != ""))
    heights = [one.layout.height or 450 for one in each.values()]
    traces = [trace for one in each.values() for trace in one.data]
    room = 105
    if isinstance(figure, HeadMap):  # its columns' names may stand upright
        room = max(150, 110 + 6 * max(len(str(x)) for trace in traces for x in trace.x))
    height = (n * max(heights) if m > 1 else sum(heights)) + (n - 1) * max(0, room - 150)
    below = max(0.25 / n, room / (height - 160))  # of the height without margins
    labels = [y for trace in traces for y in (() if trace.y is None else trace.y) if isinstance(y, str)]
    left = max(0.2 / m, (50 + 6 * max(map(len, labels), default=0)) / width)  # names of rows
    space = {"vertical_spacing": min(below, 0.8 / n), "horizontal_spacing": min(left, 0.5 / m)}
    room_for_title = int((width - 180) / m / TITLE_CHARACTER)
    titles = ["<br>".join(wrap(title, max(12, room_for_title))) for title in titles]
    whole = make_subplots(n, m, subplot_titles=titles, **space)
    whole.update_annotations(font_size=13)
    for i, (names, one) in enumerate(each.items()):
        at = {"row": 1 + places[names][0], "col": 1 + places[names][1]}
        for trace in one.data:
            if trace.type != "heatmap":
                trace.update(showlegend=bool(trace.showlegend is not False and i == 0 and trace.name))
            whole.add_trace(trace, **at)
        for ticks in (one.layout.xaxis, one.layout.yaxis):
            ticks.title.text = "<br>".join(wrap(ticks.title.text or "", max(12, room_for_title))) or None
        whole.update_xaxes(one.layout.xaxis.to_plotly_json(), **at)
        whole.update_yaxes(one.layout.yaxis.to_plotly_json(), **at)
        for shape in one.layout.shapes:  # lines across a panel
            whole.add_vline(shape.x0, line=shape.line, **at)
        for note in one.layout.annotations:
            whole.add_annotation(x=note.x, y=1, yref="y domain", text=note.text, showarrow=False, xanchor="left",
                                 yanchor="top", **at)  # fmt: skip
    same_axes = len({(one.layout.xaxis.title.text, one.layout.yaxis.title.text) for one in each.values()}) == 1
    if same_axes and {"run", "model"} & {*by} and isinstance(figure, Histogram | Intervals):
        whole.update_xaxes(matches="x")  # a run and its control on one scale
        bins = [trace.xbins for trace in traces if trace.type == "histogram"]
        if bins:
            low, high = min(one.start for one in bins), max(one.end for one in bins)
            whole.update_traces(xbins={"start": low, "end": high, "size": (high - low) / 25})
    if isinstance(figure, Curve) and len(by) == 1:
        for b in range(1, m) if len({one.layout.yaxis.title.text for one in each.values()}) == 1 else ():
            whole.update_yaxes(title=None, col=b + 1)
        whole.update_layout(legend={"orientation": "h", "y": -0.35 / n, "yanchor": "top"})
    whole.layout.meta = [list(names) for names in each]
    return whole.update_layout(height=height, width=width)


def axis(column: Column) -> str:
    """What stands at an axis: title and unit, if the title does not say it."""
    return column.title if column.unit == column.title else f"{column.title} [{column.unit}]"


def _titled(drawn: go.Figure, figure: Curve | Points | Scatter, table: Table, **layout: Any) -> go.Figure:
    """The figure with title and unit of x and y at its axes, and other parts of its layout."""
    x, y = (axis(table.column(name)) for name in (figure.x, figure.y))
    return drawn.update_layout(xaxis_title=x, yaxis_title=y, **layout)


def _smallest(figure: HeadMap | Intervals, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the smallest value of the column `by`."""
    return frame if figure.by is None or not len(frame) else frame[frame[figure.by] == frame[figure.by].min()]


def _bar(column: Column, height: float, *, root: bool) -> dict[str, Any]:
    """The bar of a map's colours: title, and the unit up to its first comma, in lines as long as the bar."""
    short = replace(column, unit=column.unit.split(",")[0])
    lines = wrap(axis(short) + (", colours by the square root" if root else ""), max(20, int(height) // 8))
    return {"title": {"text": "<br>".join(lines), "side": "right"}, "thickness": 14}


@singledispatch
def _draw(figure: Figure, table: Table) -> go.Figure | None:
    raise TypeError(f"{type(figure).__name__} cannot be drawn; register a function for it here")


@_draw.register
def _(figure: HeadMap, table: Table) -> go.Figure | None:
    column, frame = table.column(figure.y), table.frame
    axes = [figure.rows, figure.columns]
    numbers = [name for name in axes if pd.api.types.is_numeric_dtype(frame[name])]
    frame = _smallest(figure, frame[(frame[numbers] >= 0).all(axis=1) & frame[figure.text or figure.y].notna()])
    if not len(frame) or frame.duplicated(axes).any():
        return None
    names = [column.name, *(column.interval or ())]
    frame = frame.assign(text=[column.text(*row) for row in frame[names].itertuples(index=False, name=None)])
    down, across = (sorted(set(frame[a])) if a in numbers else _by_depth(dict.fromkeys(frame[a])) for a in axes)

    def cells(name: str) -> pd.DataFrame:
        return frame.pivot(index=axes[0], columns=axes[1], values=name).reindex(index=down, columns=across)

    grid, texts = cells(figure.y), cells("text")
    largest = float(frame[figure.y].abs().max())
    digits = ("+" if column.format.startswith("+") else "") + (".3f" if largest >= 0.01 or not largest else ".1e")
    written = None
    if figure.text is not None:
        written = cells(figure.text).fillna("–").to_numpy()
    elif grid.size <= MOST_NUMBERS and grid.shape[1] <= 12:
        written = grid.map(lambda value: format(value, digits)).to_numpy()
    if written is not None and not figure.levels:
        written = np.where(grid.notna(), written, "")
    drawn = go.Figure(
        go.Heatmap(
            z=grid.to_numpy(), x=_names(table.column(figure.columns), grid.columns),
            y=_names(table.column(figure.rows), grid.index), customdata=texts.to_numpy(), text=written,
            hovertemplate=f"%{{y}}%{{x}}: %{{customdata}} {column.unit}<extra></extra>", meta=column.unit,
        )
    )  # fmt: skip
    for at, called, values in ((axes[1], figure.names, grid.columns), (axes[0], figure.row_names, grid.index)):
        if called is not None:
            names = frame.drop_duplicates(at).set_index(at)[called]
            ticks = {"tickvals": list(range(len(values))), "ticktext": [names[value] for value in values]}
            drawn.update_xaxes(**ticks, tickangle=-40) if at == axes[1] else drawn.update_yaxes(**ticks)
    row = max(22, min(70, 900 // len(grid)))
    drawn.update_layout(
        xaxis_title="head" if axes[1] == "index" else table.column(axes[1]).title,
        yaxis_title=table.column(axes[0]).title,
        height=max(320, row * len(grid) + 120),
        width=min(WIDEST, 120 + 24 * grid.shape[1]) if written is None else 120 + 46 * grid.shape[1],
    )  # fmt: skip
    drawn.update_yaxes(autorange="reversed")
    return drawn


def _by_depth(names: Iterable[Any]) -> list[Any]:
    """Names of parts of a model by layer; others as they are."""
    layers = {name: PART.fullmatch(str(name)) for name in names}
    if not all(layers.values()):
        return list(layers)
    return sorted(layers, key=lambda name: int(found[1] or 1e9) if (found := layers[name]) else 0)


def _names(column: Column, values: Any) -> list[str]:
    """L5 of layers, H5 of heads; positions and clusters are numbers, names are unchanged."""
    plain = {"position", "cluster"} & {column.name, column.unit.split()[0]}
    letter = "L" if "layer" in (column.name, column.unit) else "" if plain else "H"
    return [value if isinstance(value, str) else f"{letter}{value}" for value in values]


@_draw.register
def _(figure: Circuit, table: Table) -> go.Figure | None:
    return draw_circuit(figure, table, PALETTE)


@_draw.register
def _(figure: Intervals, table: Table) -> go.Figure:
    frame = _smallest(figure, table.frame[table.frame[figure.y].notna()])
    order = frame[figure.y].abs().sort_values(ascending=False, kind="stable").index[: figure.most]
    frame = frame.loc[order if figure.ranked else sorted(order)].iloc[::-1]
    drawn = go.Figure()
    reference = [figure.reference] if figure.reference is not None and figure.reference in frame else []
    for i, name in enumerate([figure.y, *reference]):
        column = table.column(name)
        ends = [frame[end] for end in column.interval] if column.interval else None
        bars = {} if ends is None else {"array": ends[1] - frame[name], "arrayminus": frame[name] - ends[0]}
        drawn.add_scatter(
            x=frame[name], y=[str(v) for v in frame[figure.label]], mode="markers", name=column.title,
            marker={"color": PALETTE[i], "symbol": MARKS[i], "size": 8},
            **({"orientation": "h", "offsetgroup": str(i)} if reference else {}),
            error_x={"type": "data", "thickness": 1.2, **bars} if bars else None,
        )  # fmt: skip
    drawn.add_vline(x=0, line={"color": "gray", "width": 1, "dash": "dot"})
    if pd.api.types.is_numeric_dtype(frame[figure.label]):
        drawn.update_yaxes(title=table.column(figure.label).title)
    drawn.update_layout(
        xaxis_title=axis(table.column(figure.y)),
        width=430,
        yaxis={"type": "category", "dtick": 1},
        height=max(320, (26 if reference else 18) * len(frame) + 140),
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
            showlegend=bool(figure.by or figure.reference),
        )  # fmt: skip
        if figure.reference is not None and one[figure.reference].notna().any():
            drawn.add_scatter(
                x=one[figure.x], y=one[figure.reference], mode="lines",
                line={"color": colour, "width": 1, "dash": "dot"}, legendgroup=str(name),
                name=f"{name} {table.column(figure.reference).title}".strip(),
            )  # fmt: skip
    _titled(drawn, figure, table, height=480)
    if log:
        drawn.update_xaxes(type="log")
        places = sorted(x for x in set(frame[figure.x]) if x > 0)
        if not steps and len(places) <= MOST_LABELS:
            drawn.update_xaxes(tickvals=places, ticktext=[f"{x:g}" for x in places])
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
        x=frame[figure.x], y=frame[figure.y], text=[str(v) for v in frame[figure.label]], textposition="top center",
        mode="markers+text" if len(frame) <= MOST_LABELS else "markers", cliponaxis=False,
        showlegend=False, marker={"color": PALETTE[0]}, hovertemplate="%{text}: %{x:.4f}, %{y:.4f}<extra></extra>",
    )  # fmt: skip
    if len(frame) <= MOST_LABELS:  # room for the names
        room = 0.12 * (ends[1] - ends[0]) or 1.0
        drawn.update_xaxes(range=[ends[0] - room, ends[1] + room])
    return _titled(drawn, figure, table, height=560)


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
    drawn = go.Figure(
        go.Heatmap(z=grid, x=names, y=names, hoverongaps=False, hovertemplate="%{y} and %{x}: %{z:+.4f}<extra></extra>")
    )
    drawn.update_layout(plot_bgcolor="#999", height=760)  # pairs that were not measured are grey
    ticks: dict[str, Any] = {"tickmode": "linear"}
    if len(names) > MOST_NAMES:  # the first head of each layer
        layers = [_place(name)[0] for name in names]
        first = [i for i, layer in enumerate(layers) if i == 0 or layer != layers[i - 1]]
        ticks = {"tickvals": [names[i] for i in first], "ticktext": [f"L{layers[i]}" for i in first]}
    drawn.update_xaxes(showgrid=False, tickangle=-90 if len(names) > MOST_LABELS else None, **ticks)
    drawn.update_yaxes(showgrid=False, autorange="reversed", **ticks)
    return drawn


@_draw.register
def _(figure: Histogram, table: Table) -> go.Figure:
    column = table.column(figure.y)
    values, at = table.frame[figure.y].dropna().to_numpy(float), None
    if figure.at is not None and pd.notna(table.frame[figure.at].iloc[0]):
        at = float(table.frame[figure.at].iloc[0])
    low, high = (float(end([*values, *([] if at is None else [at])])) for end in (np.min, np.max))
    size = (high - low) / 24 or 1.0
    bins = {"start": low, "end": high + size, "size": size}  # none begins below the smallest value
    drawn = go.Figure(go.Histogram(x=values, xbins=bins, marker={"color": PALETTE[0]}))
    if at is not None:
        drawn.add_vline(at, line_dash="dash", annotation_text=f"{at:.3g}: {(values > at).sum()} over")
    drawn.update_layout(xaxis_title=axis(column), yaxis_title="count", showlegend=False, height=420)
    if np.histogram(values, 25, (low, high + size))[0].max() < 5:
        drawn.update_yaxes(dtick=1)
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
        known = frame[figure.color].value_counts().drop(figure.none, errors="ignore").index
        names = known[: figure.most]
        none, rest = frame[frame[figure.color] == figure.none], frame[frame[figure.color].isin(known[figure.most :])]
        groups = []
        if len(none):
            groups.append((f"in no {column.title} ({len(none):,})", none, {"color": "#ddd"}))
        if len(rest):
            groups.append((f"{len(known) - len(names)} smaller ones ({len(rest):,})", rest, {"color": "#999"}))
        for i, name in enumerate(names):
            mark = {"color": PALETTE[i % len(PALETTE)], "symbol": MARKS[i // len(PALETTE) % len(MARKS)]}
            rows = frame[frame[figure.color] == name]
            label = f"{column.title} {name} ({len(rows):,})"
            if figure.typical:  # the commonest tokens of texts that have theirs in ⟦ ⟧
                texts = rows[figure.typical]
                tokens = texts.str.extract("⟦(.*?)⟧", expand=False).fillna(texts).str.strip()
                label += f": {escape(', '.join(tokens.value_counts(sort=True).index[:3]))}"
            groups.append((label, rows, mark))
    for name, rows, marker in groups:
        texts = np.stack([[escape(str(value)) for value in rows[c.name]] for c in shown], axis=1)
        drawn.add_scattergl(
            x=rows[figure.x], y=rows[figure.y], mode="markers", name=name, customdata=texts, hovertemplate=template,
            marker={"size": 4, "opacity": 0.7, **marker}, showlegend=bool(name),
        )  # fmt: skip
    return _titled(drawn, figure, table, height=720, legend={"itemsizing": "constant"}, dragmode="pan")


def _place(label: str) -> tuple[int, int, str]:
    """Layer and head of L5.H4, for sorting."""
    found = re.fullmatch(r"L(\d+)\.H(\d+)", label)
    return (int(found[1]), int(found[2]), label) if found else (-1, -1, label)
