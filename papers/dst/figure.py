"""DST's Table 4 and Fig. 2 in one picture: streams taken away, by place and by layer; loss and attention by α."""

from typing import Any

import pandas as pd
from plotly.subplots import make_subplots

from streamscope.papers.comparison.printed import printed
from streamscope.papers.dst.claims import PAPER_ALPHAS, PLACES, TABLE4, TABLE4_PRESET, TABLE5

COLOURS = ("#3b6ea5", "#c8553d", "#2e7d32", "#8e6bb0", "#b8860b", "#4f8a8b", "#7f7f7f", "#a0522d")
TITLE = "DST: streams taken away and attention sharpened; bars: 95 % over documents, diamonds and dots: the paper"


def figure(tables: dict[str, pd.DataFrame]) -> Any:
    """Four panels (plotly); without two streams the upper ones are empty.

    Where they are among the arms, the model of Table 4 in every cell of its factors, and those of Table 5; else all.
    """

    titles = ["loss without a stream, % more", "the stream changed from layer L on, % more", "degradation by α, %",
              "entropy of attention by α, nats"]  # fmt: skip
    canvas = make_subplots(2, 2, subplot_titles=titles, vertical_spacing=0.16, horizontal_spacing=0.09)
    cells, arms = tables["factors"], list(dict.fromkeys(tables["amplification"]["preset"]))
    of = cells["claim"].str.split(" ").str[0]
    models = [one for one in arms if one not in set(cells["preset"]) - set(of)]  # the others are cells of these
    if "streams" in tables:
        _whole(
            canvas,
            tables["streams"],
            [one for one in arms if one in set(cells["preset"][of == TABLE4_PRESET])] or models,
        )
        _layers(canvas, tables["streams"])
    _curves(canvas, tables["amplification"], [one for one in models if one in TABLE5] or models)
    canvas.update_layout(
        template="simple_white", width=1250, height=860, title=TITLE,
        legend={"orientation": "h", "y": -0.1}, margin={"l": 190, "r": 20, "t": 90, "b": 60},
    )  # fmt: skip
    return canvas


def _whole(canvas: Any, streams: pd.DataFrame, presets: list[str]) -> None:
    """Percent of every run by definition and place, logarithmic: x_t → 0 would hide all others."""
    whole = streams[streams["where"].isin(PLACES)]
    labels = list(dict.fromkeys(whole["definition"] + ", " + whole["where"]))
    place = {label: -at for at, label in enumerate(sorted(labels, key=lambda x: x.split(", ")[1]))}
    for i, preset in enumerate(presets):
        rows = whole[(whole["preset"] == preset) & (whole["percent"] > 0)]
        if rows.empty:
            continue
        bars = {
            "array": rows["percent_high"] - rows["percent"], "symmetric": False, "thickness": 1.2, "width": 4,
            "arrayminus": rows["percent"] - rows["percent_low"],
        }  # fmt: skip
        offset = 0.5 * (i - (len(presets) - 1) / 2) / len(presets)
        canvas.add_scatter(
            x=rows["percent"], y=(rows["definition"] + ", " + rows["where"]).map(place) - offset, error_x=bars,
            mode="markers", name=preset, legendgroup=f"{preset}, without a stream",
            hovertext="seed " + rows["seed"].astype(str),
            marker={"color": COLOURS[i % len(COLOURS)], "size": 7}, row=1, col=1,
        )  # fmt: skip
    paper = [(label, TABLE4[label.split(", ")[0]]) for label in labels if label.split(", ")[0] in TABLE4]
    canvas.add_scatter(
        x=[printed(f"dst-t4-change-{name}-everywhere") for _, name in paper], y=[place[label] for label, _ in paper],
        mode="markers", name="paper", marker={"color": "black", "size": 10, "symbol": "diamond-open"}, row=1, col=1,
    )  # fmt: skip
    canvas.update_xaxes(type="log", row=1, col=1)
    canvas.update_yaxes(tickvals=list(place.values()), ticktext=list(place), tickfont={"size": 10}, row=1, col=1)


def _layers(canvas: Any, streams: pd.DataFrame) -> None:
    """Percent by layer, mean over seeds, of Table 4's preset, or the first with two streams."""
    have = list(dict.fromkeys(streams["preset"]))
    shown = TABLE4_PRESET if TABLE4_PRESET in have else have[0]
    rows = streams[(streams["preset"] == shown) & (streams["reach"] == "onwards")]
    for i, (definition, one) in enumerate(rows.groupby("definition", sort=False)):
        mean = one.groupby("layer")["percent"].mean()
        canvas.add_scatter(
            x=[f"L{layer}" for layer in mean.index], y=mean, mode="lines+markers", name=f"{definition} ({shown})",
            line={"color": COLOURS[(i + 2) % len(COLOURS)]}, row=1, col=2,
        )  # fmt: skip


def _curves(canvas: Any, table: pd.DataFrame, presets: list[str]) -> None:
    """Degradation and entropy by α, a line per run; dotted what the paper prints."""
    for i, preset in enumerate(presets):
        colour = COLOURS[i % len(COLOURS)]
        for k, (seed, one) in enumerate(table[table["preset"] == preset].groupby("seed")):
            bars = {
                "array": (one["percent_high"] - one["percent"]).fillna(0), "thickness": 1, "symmetric": False,
                "arrayminus": (one["percent"] - one["percent_low"]).fillna(0),
            }  # fmt: skip
            style = {"line": {"color": colour}, "mode": "lines+markers", "legendgroup": preset, "name": preset,
                     "hovertext": f"seed {seed}"}  # fmt: skip
            first = {"error_y": bars, "showlegend": k == 0, "row": 2, "col": 1}
            canvas.add_scatter(x=one["alpha"], y=one["percent"], **first, **style)
            canvas.add_scatter(x=one["alpha"], y=one["entropy"], showlegend=False, row=2, col=2, **style)
        if preset in TABLE5:
            canvas.add_scatter(x=list(PAPER_ALPHAS), y=[100 * (x / TABLE5[preset][0] - 1) for x in TABLE5[preset]],
                               mode="lines", row=2, col=1,
                               line={"color": colour, "dash": "dot"}, name=f"{preset}, paper")  # fmt: skip
    for column in (1, 2):
        canvas.update_xaxes(type="log", title="α", tickvals=list(PAPER_ALPHAS), row=2, col=column)
