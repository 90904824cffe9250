"""Draws the figures that instruments declare (`instruments.figures`): one palette, for the screen and for paper.

Colours are Okabe and Ito's, which colour-blind readers can distinguish, with marks and dashes that differ in grey.
Signed quantities have a diverging scale around 0.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from streamscope.instruments.figures import OVER, Figure
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
ZERO = 0.5  # where step 0 stands on a logarithmic axis
WIDE = 64  # last step / first step but 0 from which on the axis is logarithmic
MOST_NUMBERS = 100  # cells of a map that have their numbers written in them
MOST_NAMES = 50  # rows and columns of a map of pairs that have their names at the axes; of more the layers are named
LONG_NAME = 7  # characters of a row's name from which on it says what the axis is
MOST_LABELS = 12  # marks of a scatter that have their names beside them
SMALLEST = 7.0  # size of texts in cells; numbers that would be smaller are left out
OUTLYING = 3.0  # how many times larger than all others a few cells must be for colours by the square root
MIXED = ("units of the measure", "of the phenomenon")  # how the unit of a column begins that holds several measures
TITLE_CHARACTER = 7.5  # about how many pixels a character of a panel's title is wide
WIDEST = 1400  # pixels of a figure with panels


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
    runs = ["run", "step"] if result.about.get(OVER) and figure.x != "step" else ["run"]
    runs = [] if figure.over_runs else runs
    panels = [c for c in (*runs, *figure.each) if table.frame.get(c, pd.Series()).nunique() > 1]
    units = {block.measure.name: block.measure.unit for block in result.blocks.values()}
    plot = _panels(figure, table, panels, units) if panels else _panel(figure, table, units)
    if plot is None:
        return None
    if figure.kind == "Curve" and figure.draws in result.tables:
        _add_draws(plot, figure, result.table(figure.draws).frame, panels)
    width: int = PAPER["width"] if paper else max(860, plot.layout.width or 0)
    plot.layout.template = "plotly_dark" if dark else "plotly_white"
    if figure.kind == "Intervals":  # a value beside its reference, not on it
        plot.update_layout(scattermode="group", scattergap=0.5)
    plot.layout.modebar = {"remove": ["lasso2d", "select2d", "autoScale2d"]}
    plot.update_xaxes(exponentformat="power", minexponent=6)  # .0005, not 500µ
    plot.update_yaxes(exponentformat="power", minexponent=6, ticklabelstandoff=4)
    plot.update_layout(width=width, **({} if paper else _caption(figure, table, result.about, width, panels)))
    if not paper:  # the caption takes nothing from what is drawn
        plot.update_layout(height=(plot.layout.height or 450) + plot.layout.margin.t - 78)
    _color(plot, figure, table.column(figure.y))
    for trace in plot.data if dark else ():  # white for the palette's black
        for name in ("line.color", "marker.color", "fillcolor"):
            if name.split(".")[0] in trace and isinstance(trace[name], str) and trace[name] == PALETTE[-1]:
                trace[name] = "#ffffff"
    if paper:
        plot.update_layout(**PAPER)
        if len(plot.layout.annotations):  # titles of panels
            plot.update_layout(margin_t=34).update_annotations(font_size=8)
        if figure.kind == "Intervals":  # a line for each row
            n_rows = max(len(trace.y) for trace in plot.data if trace.y is not None)
            n_panel_rows = len({axis.domain for axis in plot.select_yaxes()})
            plot.update_layout(height=max(PAPER["height"], n_panel_rows * (12 * n_rows + 60)))
    return plot


def _with_control(figure: Figure, result: Any, table: Table) -> Table:
    """The table; of a run that is compared with a control, the rows of both, with the column run."""
    if "control" not in result.about:
        return table
    name = next(name for name, candidate in result.tables.items() if candidate is table)
    block, contrasts = (blocks.get(f"control-{name}") for blocks in (result.blocks, result.contrasts))
    if block is None:
        return table
    frame, _ = estimate(block, contrasts).wide(list(dict.fromkeys(key for c in contrasts for key in c.labels)))
    places = {*figure.each, figure.x, figure.by, figure.rows, figure.columns, figure.label, figure.text}
    if not {figure.y, *(places & {*table.frame})} <= {*frame}:
        return table
    names = [str(about.get("model")) for about in (result.about, result.about["control"])]
    names[1] += ", control" if names[0] == names[1] else ""
    parts = [rows.assign(run=model) for model, rows in zip(names, (table.frame, frame), strict=True)]
    rows_of_both = pd.concat(parts, ignore_index=True)[["run", *table.frame]]
    columns, details = (key("run", "run", "run or control"), *table.columns), _details(table, names[0])
    title = " and its control, ".join(names) + (f": {details}" if details else "")
    return replace(table, frame=rows_of_both, columns=columns, missing={}, title=title)


def _details(table: Table, model: str) -> str:
    return table.title.removeprefix(model).lstrip(":;, ")


def _caption(
    figure: Figure, table: Table, about: Mapping[str, Any], width: int, panels: Sequence[str] = ()
) -> dict[str, Any]:
    """Title and margin: the figure's title and the model in bold, below the table's title and what marks mean.

    Lines end where the tools of the figure begin, which show when the pointer is over it.
    """
    model, details, head = about.get("model"), table.title, headline(figure, table)
    if isinstance(model, str) and "run" not in table.frame:
        head, details = f"{head}: {model}", _details(table, model)
    by = None if figure.kind == "Curve" else figure.by
    range_text = f"{by} = {table.frame[by].min():g}" if by in table.frame and table.frame[by].nunique() > 1 else ""
    details = "; ".join(filter(None, (details, range_text, *_notes(figure, table, panels))))
    lines, bold = wrap(details, (width - 230) // 6), wrap(head, (width - 230) // 8, break_on_hyphens=False)
    text = "<br>".join([f"<b>{'<br>'.join(map(escape, bold))}</b>", *map(escape, lines)])
    title = {"text": text, "font": {"size": 13}, "y": 1, "yanchor": "top", "pad": {"t": 20}}
    return {"title": title, "margin": {"t": 60 + 18 * (len(bold) + len(lines))}}


def _notes(figure: Figure, table: Table, panels: Sequence[str]) -> Iterator[str]:
    """What bands and whiskers are, and how many rows or lines a panel leaves out."""
    if figure.kind == "Circuit":
        yield "circles: heads, squares: other parts, light: without a shown edge; the wider a line, the larger its size"
    if figure.kind not in ("Curve", "Intervals"):
        return
    rows, curves = table.frame[table.frame[figure.y].notna()], figure.kind == "Curve"
    if ends := table.column(figure.y).interval:
        if rows[list(ends)].notna().any(axis=None):
            yield f"{'bands' if curves else 'whiskers'}: 95 % intervals"
        else:
            yield "no intervals: the table says why"
    parts = [part for _, part in rows.groupby(list(panels))] if panels else [rows]
    if figure.kind == "Curve":
        numbers = [part[figure.by].nunique() if figure.by else 1 for part in parts]
    else:
        numbers = [len(_smallest(figure, part)) for part in parts]
    if (n := max(numbers, default=0)) > figure.most:
        yield f"the {figure.most} of {n:,} {'lines that move the most' if curves else 'with the largest size'}"


def headline(figure: Figure, table: Table) -> str:
    """The figure's title; columns in braces are replaced by their titles, as in "{delta} from ablating each head"."""
    text = (figure.title or f"{{{figure.y}}}").format(**{column.name: column.title for column in table.columns})
    return text[:1].upper() + text[1:]


def _add_draws(plot: go.Figure, figure: Figure, draws: pd.DataFrame, by: list[str]) -> None:
    """Controls drawn at random as grey marks, each in the panel of its values of `by`."""
    axes = dict.fromkeys((trace.xaxis, trace.yaxis) for trace in plot.data)  # in the order of the panels
    for i, (names, (x, y)) in enumerate(zip(plot.layout.meta or [()], axes, strict=True)):
        rows = draws
        for column, value in zip(by, names, strict=True):
            rows = rows[rows[column] == value]
        plot.add_scatter(
            x=rows[figure.x], y=rows[figure.y], mode="markers", name="random", xaxis=x, yaxis=y, showlegend=i == 0,
            marker={"color": "#555555", "symbol": "line-ew-open", "size": 9, "line": {"width": 2}},
        )  # fmt: skip


def _panel(figure: Figure, table: Table, units: Mapping[str, str]) -> go.Figure | None:
    """The figure of a table. If its column holds several measures and these rows are of one, they have its unit, that
    of the column `unit` or of `units`."""
    column, frame = table.column(figure.y), table.frame
    if column.unit.startswith(MIXED):
        unit_of = frame["unit"] if "unit" in frame else frame.get("measure", pd.Series(dtype=object)).map(units)
        if unit_of.nunique() == 1 and unit_of.notna().all():
            columns = {c.name: c for c in table.columns} | {figure.y: replace(column, unit=unit_of.iloc[0])}
            table = replace(table, columns=tuple(columns.values()))
    return DRAWN[figure.kind](figure, table)


def scale(
    values: np.ndarray, *, signed: bool, unit: str = "", root: bool = False
) -> tuple[list[tuple[float, str]], float, float, bool]:
    """(steps (place from 0 to 1, colour), value of the first, of the last, whether by the square root) of a map.

    Signed values are white at 0, and as red above it as they are blue below it; the colours span the values that occur.
    Where a few cells (a fiftieth, one at least) are `OUTLYING` times as large as all others, colours go by the square
    root, so that the others differ by eye and none is cut. With `root` they do anyhow, from 0 to 1 as probabilities.
    """
    sizes = np.sort(np.abs(values[np.isfinite(values)]))[::-1]
    n_out = max(1, len(sizes) // 50)
    limit = 1.0 if root or unit == "probability" else float(sizes[0]) or 1.0
    root |= bool(len(sizes) > 10 and sizes[n_out] > 0 and limit > OUTLYING * sizes[n_out] and unit != "probability")
    low = min(0.0, float(np.nanmin(values))) if signed else 0.0
    high = max(0.0, float(np.nanmax(values))) if signed else limit
    power = 2 if root else 1
    ends = [np.sign(end) * (abs(end) / limit) ** (1 / power) for end in (low, high)]
    positions = np.linspace(ends[0], ends[1], 41)  # of the colours, evenly
    places = (np.sign(positions) * np.abs(positions) ** power * limit - low) / ((high - low) or 1.0)
    colors = sample_colorscale("RdBu_r", 0.5 + 0.5 * positions) if signed else sample_colorscale("Blues", positions)
    places[[0, -1]] = 0.0, 1.0  # plotly draws other colours where rounding leaves the last one below 1
    return list(zip(np.clip(places, 0, 1).tolist(), colors, strict=True)), low, high, root


def _color(plot: go.Figure, figure: Figure, column: Column) -> None:
    """One scale and bar for all maps of one unit, so that panels compare by eye, and texts that fit their cells."""
    units: dict[str, list[go.Heatmap]] = {}
    for panel in (trace for trace in plot.data if trace.type == "heatmap"):
        units.setdefault(panel.meta or column.unit, []).append(panel)
    for unit, maps in units.items():
        place = {}
        if len(units) > 1:
            domains = [plot.layout[f"yaxis{(panel.yaxis or 'y')[1:]}"].domain for panel in maps]
            low, high = min(a for a, _ in domains), max(b for _, b in domains)
            place = {"y": (low + high) / 2, "len": high - low}
        values = np.concatenate([np.ravel(np.asarray(panel.z, float)) for panel in maps])
        levels = figure.levels
        signed = column.format.startswith("+") and not levels
        steps, low, high, root = scale(values, signed=signed, unit=unit, root=figure.root)
        height = (plot.layout.height - (plot.layout.margin.t or 40) - 80) * place.get("len", 1.0)
        title = axis(replace(column, unit=unit.split(",")[0])) + (", colours by the square root" if root else "")
        lines = wrap(title, max(20, int(height) // 8))  # as long as the bar
        bar = {"title": {"text": "<br>".join(lines), "side": "right"}, "thickness": 14, **place}
        if levels:  # bands of equal height, one colour each
            marks = [value for value, _ in levels]
            half = (marks[-1] - marks[0]) / (2 * (len(marks) - 1))
            low, high = marks[0] - half, marks[-1] + half
            colors = sample_colorscale("Blues", np.linspace(0.1, 0.85, len(marks)))
            steps = [(edge / len(marks), color) for i, color in enumerate(colors) for edge in (i, i + 1)]
            bar = {"thickness": 14, "tickvals": marks, "ticktext": [name for _, name in levels]}
        for i, panel in enumerate(maps):
            panel.update(colorscale=steps, zmin=low, zmax=high, colorbar=bar, showscale=i == 0)
        for panel in [panel for panel in maps if panel.text is not None]:  # plotly contrasts the texts with their cells
            domain = plot.layout[f"xaxis{(panel.xaxis or 'x')[1:]}"].domain or (0, 1)
            cell_width = (plot.layout.width - 180) * (domain[1] - domain[0]) / len(panel.x)
            longest = max(len(re.sub("<[^>]*>", "", str(text))) for text in np.ravel(panel.text))
            size = float(np.clip(cell_width / (0.7 * longest), SMALLEST, 12))
            if figure.text or size > SMALLEST:
                panel.update(texttemplate="%{text}", textfont_size=size)


def _panels(figure: Figure, table: Table, by: list[str], units: Mapping[str, str]) -> go.Figure | None:
    """One panel for each run, or combination of other columns: the last of several across, the others below."""
    panels: dict[tuple[Any, ...], go.Figure] = {}
    for names, rows in table.frame.groupby(by, sort=False):
        part = replace(table, frame=rows.reset_index(drop=True), missing={})
        if (panel := _panel(figure, part, units)) is not None:
            panels[tuple(names)] = panel
    if not panels:
        return None
    wide = max(panel.layout.width or 300 for panel in panels.values())
    cut = max(1, len(by) - 1)
    row_keys, column_keys = ([*dict.fromkeys(names[part] for names in panels)] for part in (slice(cut), slice(cut, 9)))
    if len(panels) < len(row_keys) * len(column_keys) or (len(by) == 1 and figure.kind in ("Curve", "HeadMap")):
        m = min(3, len(panels), max(1, WIDEST // wide))  # no order that rows or columns could show, or holes in it
        n = -(-len(panels) // m)
        places = {names: divmod(i, m) for i, names in enumerate(panels)}
    else:
        n, m = len(row_keys), len(column_keys)
        places = {names: (row_keys.index(names[:cut]), column_keys.index(names[cut:])) for names in panels}
    width = max(860, min(WIDEST, m * wide))
    grid_names = {place: names for names, place in places.items()}
    titles = []
    for values in (grid_names.get((a, b), ()) for a in range(n) for b in range(m)):
        named_values = zip(by, values, strict=bool(values))  # a number with what it counts: attn.v, layer 2
        titles.append(", ".join(x if isinstance(x, str) else f"{name} {x}" for name, x in named_values if x != ""))
    heights = [panel.layout.height or 450 for panel in panels.values()]
    traces = [trace for panel in panels.values() for trace in panel.data]
    room = 105
    if figure.kind == "HeadMap":  # its columns' names may stand upright
        room = max(150, 110 + 6 * max(len(str(x)) for trace in traces for x in trace.x))
    height = (n * max(heights) if m > 1 else sum(heights)) + (n - 1) * max(0, room - 150)
    below = max(0.25 / n, room / (height - 160))  # of the height without margins
    labels = [y for trace in traces for y in (() if trace.y is None else trace.y) if isinstance(y, str)]
    margin = max(0.2 / m, (50 + 7 * max(map(len, labels), default=0)) / (width - 100))  # names of rows
    space = {"vertical_spacing": min(below, 0.8 / n), "horizontal_spacing": min(margin, 0.5 / m)}
    room_for_title = int((width - 180) / m / TITLE_CHARACTER)
    titles = ["<br>".join(wrap(title, max(12, room_for_title))) for title in titles]
    subplots = make_subplots(n, m, subplot_titles=titles, **space)
    subplots.update_annotations(font_size=13)
    for i, (names, panel) in enumerate(panels.items()):
        cell = {"row": 1 + places[names][0], "col": 1 + places[names][1]}
        for trace in panel.data:
            if trace.type != "heatmap":
                trace.update(showlegend=bool(trace.showlegend is not False and i == 0 and trace.name))
            subplots.add_trace(trace, **cell)
        for ticks in (panel.layout.xaxis, panel.layout.yaxis):
            ticks.title.text = "<br>".join(wrap(ticks.title.text or "", max(12, room_for_title))) or None
        subplots.update_xaxes(panel.layout.xaxis.to_plotly_json(), **cell)
        subplots.update_yaxes(panel.layout.yaxis.to_plotly_json(), **cell)
        for shape in panel.layout.shapes:  # lines across a panel
            subplots.add_vline(shape.x0, line=shape.line, **cell)
        for note in panel.layout.annotations:
            subplots.add_annotation(x=note.x, y=1, yref="y domain", text=note.text, showarrow=False, xanchor="left",
                                 yanchor="top", **cell)  # fmt: skip
    x_titles, y_titles = ({panel.layout[name].title.text for panel in panels.values()} for name in ("xaxis", "yaxis"))
    if len(x_titles) == len(y_titles) == 1 and {"run", "model"} & {*by} and figure.kind in ("Histogram", "Intervals"):
        subplots.update_xaxes(matches="x")  # a run and its control on one scale
        if bins := [trace.xbins for trace in traces if trace.type == "histogram"]:
            low, high = min(xbin.start for xbin in bins), max(xbin.end for xbin in bins)
            subplots.update_traces(xbins={"start": low, "end": high, "size": (high - low) / 25})
    if figure.kind == "Curve" and len(by) == 1:
        for b in range(1, m) if len(y_titles) == 1 else ():
            subplots.update_yaxes(title=None, col=b + 1)
        subplots.update_layout(legend={"orientation": "h", "y": -0.35 / n, "yanchor": "top"})
    subplots.layout.meta = [list(names) for names in panels]
    return subplots.update_layout(height=height, width=width)


def axis(column: Column) -> str:
    """What stands at an axis: title and unit, if the title does not say it."""
    return column.title if column.unit == column.title else f"{column.title} [{column.unit}]"


def _titled(plot: go.Figure, figure: Figure, table: Table, **layout: Any) -> go.Figure:
    x, y = (axis(table.column(name)) for name in (figure.x, figure.y))
    return plot.update_layout(xaxis_title=x, yaxis_title=y, **layout)


def _smallest(figure: Figure, frame: pd.DataFrame) -> pd.DataFrame:
    return frame if figure.by is None or not len(frame) else frame[frame[figure.by] == frame[figure.by].min()]


def _map(figure: Figure, table: Table) -> go.Figure | None:
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
    cell_texts = None
    if figure.text is not None:
        cell_texts = cells(figure.text).fillna("–").to_numpy()
    elif grid.size <= MOST_NUMBERS and grid.shape[1] <= 12:
        cell_texts = grid.map(lambda value: format(value, digits)).to_numpy()
    if cell_texts is not None and not figure.levels:
        cell_texts = np.where(grid.notna(), cell_texts, "")
    plot = go.Figure(
        go.Heatmap(
            z=grid.to_numpy(), x=_names(table.column(figure.columns), grid.columns),
            y=_names(table.column(figure.rows), grid.index), customdata=texts.to_numpy(), text=cell_texts,
            hovertemplate=f"%{{y}}%{{x}}: %{{customdata}} {column.unit}<extra></extra>", meta=column.unit,
        )
    )  # fmt: skip

    def ticks(axis_name: str, label_column: str, values: Any) -> dict[str, list[Any]]:
        names = frame.drop_duplicates(axis_name).set_index(axis_name)[label_column]
        return {"tickvals": list(range(len(values))), "ticktext": [names[value] for value in values]}

    if figure.names is not None:
        plot.update_xaxes(**ticks(axes[1], figure.names, grid.columns), tickangle=-40)
    if figure.row_names is not None:
        plot.update_yaxes(**ticks(axes[0], figure.row_names, grid.index))
    row = max(22, min(70, 900 // len(grid)))
    plot.update_layout(
        xaxis_title="head" if axes[1] == "index" else table.column(axes[1]).title,
        yaxis_title=None if max(map(len, map(str, down))) > LONG_NAME else table.column(axes[0]).title,
        height=max(320, row * len(grid) + 120),
        width=min(WIDEST, 120 + 24 * grid.shape[1]) if cell_texts is None else 120 + 46 * grid.shape[1],
    )  # fmt: skip
    plot.update_yaxes(autorange="reversed")
    return plot


def _by_depth(names: Iterable[Any]) -> list[Any]:
    """Names of parts of a model by layer; others as they are."""
    layers = {name: PART.fullmatch(str(name)) for name in names}
    if not all(layers.values()):
        return list(layers)
    return sorted(layers, key=lambda name: int(match[1] or 1e9) if (match := layers[name]) else 0)


def _names(column: Column, values: Any) -> list[str]:
    """L5 of layers, H5 of heads; positions and clusters are numbers, names are unchanged."""
    plain = {"position", "cluster"} & {column.name, column.unit.split()[0]}
    letter = "L" if "layer" in (column.name, column.unit) else "" if plain else "H"
    return [value if isinstance(value, str) else f"{letter}{value}" for value in values]


def _intervals(figure: Figure, table: Table) -> go.Figure:
    frame = _smallest(figure, table.frame[table.frame[figure.y].notna()])
    order = frame[figure.y].abs().sort_values(ascending=False, kind="stable").index[: figure.most]
    frame = frame.loc[order if figure.ranked else sorted(order)].iloc[::-1]
    plot = go.Figure()
    reference = [figure.reference] if figure.reference is not None and figure.reference in frame else []
    for i, name in enumerate([figure.y, *reference]):
        column = table.column(name)
        ends = [frame[end] for end in column.interval] if column.interval else None
        bars = {} if ends is None else {"array": ends[1] - frame[name], "arrayminus": frame[name] - ends[0]}
        plot.add_scatter(
            x=frame[name], y=[str(v) for v in frame[figure.label]], mode="markers", name=column.title,
            marker={"color": PALETTE[i], "symbol": MARKS[i], "size": 8},
            **({"orientation": "h", "offsetgroup": str(i)} if reference else {}),
            error_x={"type": "data", "thickness": 1.2, **bars} if bars else None,
        )  # fmt: skip
    plot.add_vline(x=0, line={"color": "gray", "width": 1, "dash": "dot"})
    if pd.api.types.is_numeric_dtype(frame[figure.label]):
        plot.update_yaxes(title=table.column(figure.label).title)
    plot.update_layout(
        xaxis_title=axis(table.column(figure.y)),
        width=430,
        yaxis={"type": "category", "dtick": 1},
        height=max(320, (26 if reference else 18) * len(frame) + 140),
    )
    return plot


def _curve(figure: Figure, table: Table) -> go.Figure | None:
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
    plot = go.Figure()
    for i, name in enumerate(name for name in groups if name in most):
        group, colour = groups[name].sort_values(figure.x), PALETTE[i % len(PALETTE)]
        if column.interval:
            low, high = (group[end].fillna(group[figure.y]) for end in column.interval)
            plot.add_scatter(
                x=[*group[figure.x], *group[figure.x][::-1]], y=[*high, *low[::-1]], fill="toself", fillcolor=colour,
                mode="lines", line={"width": 0}, opacity=0.15, showlegend=False, hoverinfo="skip",
                legendgroup=str(name),
            )  # fmt: skip
        plot.add_scatter(
            x=group[figure.x], y=group[figure.y], mode="lines+markers", name=str(name) or column.title,
            legendgroup=str(name),
            line={"color": colour, "dash": DASHES[i % len(DASHES)]}, marker={"symbol": MARKS[i % len(MARKS)]},
            showlegend=bool(figure.by or figure.reference),
        )  # fmt: skip
        if figure.reference is not None and group[figure.reference].notna().any():
            plot.add_scatter(
                x=group[figure.x], y=group[figure.reference], mode="lines",
                line={"color": colour, "width": 1, "dash": "dot"}, legendgroup=str(name),
                name=f"{name} {table.column(figure.reference).title}".strip(),
            )  # fmt: skip
    _titled(plot, figure, table, height=480)
    if log:
        plot.update_xaxes(type="log")
        places = sorted(x for x in set(frame[figure.x]) if x > 0)
        if not steps and len(places) <= MOST_LABELS:
            plot.update_xaxes(tickvals=places, ticktext=[f"{x:g}" for x in places])
    if steps and log:
        shown = [*([0] if 0 in steps else []), *(10**i for i in range(len(str(int(steps[-1])))))]
        plot.update_xaxes(tickvals=[max(s, ZERO) for s in shown], ticktext=[f"{s:,}" for s in shown])
    return plot


def _scatter(figure: Figure, table: Table) -> go.Figure | None:
    if figure.x not in table.frame:
        return None
    frame = table.frame[table.frame[[figure.x, figure.y]].notna().all(axis=1)]
    if not len(frame):
        return None
    points = frame[[figure.x, figure.y]].to_numpy()
    ends = [points.min(), points.max()]
    plot = go.Figure(go.Scatter(x=ends, y=ends, mode="lines", line={"dash": "dot", "color": "gray"}, name="equal"))
    plot.add_scatter(
        x=frame[figure.x], y=frame[figure.y], text=[str(v) for v in frame[figure.label]], textposition="top center",
        mode="markers+text" if len(frame) <= MOST_LABELS else "markers", cliponaxis=False,
        showlegend=False, marker={"color": PALETTE[0]}, hovertemplate="%{text}: %{x:.4f}, %{y:.4f}<extra></extra>",
    )  # fmt: skip
    if len(frame) <= MOST_LABELS:  # room for the names
        room = 0.12 * (ends[1] - ends[0]) or 1.0
        plot.update_xaxes(range=[ends[0] - room, ends[1] + room])
    return _titled(plot, figure, table, height=560)


def _matrix(figure: Figure, table: Table) -> go.Figure | None:
    frame = table.frame[table.frame[figure.y].notna()]
    pairs = [str(label).split("+") for label in frame[figure.label]]
    if len(pairs) < 2 or any(len(pair) != 2 for pair in pairs) or frame[figure.label].duplicated().any():
        return None
    names = sorted({name for pair in pairs for name in pair}, key=_place)
    index, grid = {name: i for i, name in enumerate(names)}, np.full((len(names), len(names)), np.nan)
    for (a, b), value in zip(pairs, frame[figure.y], strict=True):
        grid[index[a], index[b]] = grid[index[b], index[a]] = value
    plot = go.Figure(
        go.Heatmap(z=grid, x=names, y=names, hoverongaps=False, hovertemplate="%{y} and %{x}: %{z:+.4f}<extra></extra>")
    )
    plot.update_layout(plot_bgcolor="#999", height=760)  # pairs that were not measured are grey
    ticks: dict[str, Any] = {"tickmode": "linear"}
    if len(names) > MOST_NAMES:  # the first head of each layer
        layers = [_place(name)[0] for name in names]
        first = [i for i, layer in enumerate(layers) if i == 0 or layer != layers[i - 1]]
        ticks = {"tickvals": [names[i] for i in first], "ticktext": [f"L{layers[i]}" for i in first]}
    plot.update_xaxes(showgrid=False, tickangle=-90 if len(names) > MOST_LABELS else None, **ticks)
    plot.update_yaxes(showgrid=False, autorange="reversed", **ticks)
    return plot


def _histogram(figure: Figure, table: Table) -> go.Figure:
    column = table.column(figure.y)
    values, threshold = table.frame[figure.y].dropna().to_numpy(float), None
    if figure.at is not None and pd.notna(table.frame[figure.at].iloc[0]):
        threshold = float(table.frame[figure.at].iloc[0])
    low, high = (float(end([*values, *([] if threshold is None else [threshold])])) for end in (np.min, np.max))
    size = (high - low) / 24 or 1.0
    bins = {"start": low, "end": high + size, "size": size}  # none begins below the smallest value
    plot = go.Figure(go.Histogram(x=values, xbins=bins, marker={"color": PALETTE[0]}))
    if threshold is not None:
        plot.add_vline(
            threshold, line_dash="dash", annotation_text=f"{threshold:.3g}: {(values > threshold).sum()} over"
        )
    plot.update_layout(xaxis_title=axis(column), yaxis_title="count", showlegend=False, height=420)
    if np.histogram(values, 25, (low, high + size))[0].max() < 5:
        plot.update_yaxes(dtick=1)
    return plot


def _points(figure: Figure, table: Table) -> go.Figure | None:
    frame = table.frame
    if not {figure.x, figure.color, *figure.text} <= set(frame):
        return None
    column, plot = table.column(figure.color), go.Figure()
    shown = [table.column(name) for name in (*figure.text, figure.color)]
    template = "<br>".join(f"{c.title} %{{customdata[{i}]}}" for i, c in enumerate(shown)) + "<extra></extra>"
    if figure.ordered:
        colour = {"color": frame[figure.color], "colorscale": "Viridis", "colorbar": {"title": column.title}}
        groups = [("", frame, {**colour, "showscale": True})]
    else:
        categories = frame[figure.color].value_counts().drop(figure.none, errors="ignore").index
        names, rest = categories[: figure.most], categories[figure.most :]
        none, small = frame[frame[figure.color] == figure.none], frame[frame[figure.color].isin(rest)]
        groups = [
            (f"in no {column.title} ({len(none):,})", none, {"color": "#ddd"}),
            (f"{len(rest)} smaller ones ({len(small):,})", small, {"color": "#999"}),
        ]
        groups = [group for group in groups if len(group[1])]
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
        plot.add_scattergl(
            x=rows[figure.x], y=rows[figure.y], mode="markers", name=name, customdata=texts, hovertemplate=template,
            marker={"size": 4, "opacity": 0.7, **marker}, showlegend=bool(name),
        )  # fmt: skip
    return _titled(plot, figure, table, height=720, legend={"itemsizing": "constant"}, dragmode="pan")


def _place(label: str) -> tuple[int, int, str]:
    match = re.fullmatch(r"L(\d+)\.H(\d+)", label)
    return (int(match[1]), int(match[2]), label) if match else (-1, -1, label)


DRAWN: dict[str, Callable[[Figure, Table], go.Figure | None]] = {
    "HeadMap": _map, "Intervals": _intervals, "Curve": _curve, "Scatter": _scatter, "Matrix": _matrix,
    "Histogram": _histogram, "Points": _points, "Circuit": partial(draw_circuit, palette=PALETTE),
}  # fmt: skip
