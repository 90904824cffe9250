"""The figures of KROM, whose post does not number them: named by what they show."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamscope.papers.figures.hdpl import losses
from streamscope.papers.figures.look import Look, single
from streamscope.papers.figures.options import PaperFigure

HOME = "krom_textbooks"
Tables = Mapping[str, pd.DataFrame]


def arm(row: Any) -> str:
    """How an arm is called on an axis."""
    more = "" if row["decay"] else ", no decay"
    return f"{row['preset'].removeprefix('krom')} {row['b_res']:g} {row['storage']} {row['optimizer']}{more}"


def bars(tables: Tables, look: Look) -> Any:
    """Final losses of the four architectures; what the post prints in open markers."""
    canvas, table = single(look, 0.75), tables["comparison"]
    canvas.add_bar(x=table["preset"], y=table["loss"], name="here", marker={"color": look.colour(0)})
    printed = table[table["printed"].notna()]
    canvas.add_scatter(x=printed["preset"], y=printed["printed"], name="the post", **look.points(1, paper=True, size=8))
    canvas.update_yaxes(title="validation loss, nats per token")
    return canvas


def heat(tables: Tables, look: Look) -> Any:
    """Swap probability of every mixing module, mean over its factors and seeds, by arm; logarithmic."""
    table = tables["factors"]
    table = table.assign(arm=[arm(row) for _, row in table.iterrows()])
    mean = table.pivot_table(index="module", columns="arm", values="swap", sort=False)
    canvas = single(look, 1.35)
    canvas.add_trace(go.Heatmap(
        z=np.log10(mean), x=mean.columns, y=[name.removeprefix("blocks.") for name in mean.index],
        colorscale=look.scale, colorbar={"title": "log₁₀ p(swap)", "thickness": 8},
    ))  # fmt: skip
    canvas.update_yaxes(autorange="reversed").update_xaxes(tickangle=40)
    canvas.update_layout(margin={"l": 62, "r": 8, "t": 12, "b": 110})
    return canvas


def scatter(tables: Tables, look: Look) -> Any:
    """Swap probability of each factor against the best it could reach for a token."""
    canvas, table = single(look, 0.9), tables["factors"]
    for i, (bias, one) in enumerate(table.groupby("b_res")):
        canvas.add_scatter(x=one["swap"], y=one["swap_best"], name=f"bias {bias:g}", **look.points(i, size=4))
    low = float(table["swap"].min())
    canvas.add_scatter(x=[low, 0.5], y=[low, 0.5], mode="lines", line={"color": "#888888", "width": 0.8, "dash": "dot"},
                       showlegend=False)  # fmt: skip
    canvas.update_xaxes(title="p(swap), static", type="log").update_yaxes(title="p(swap), largest", type="log")
    return canvas


def sweep(tables: Tables, look: Look) -> Any:
    """Swap probability by the initial bias, beside where decay alone would have taken it."""
    canvas, table = single(look, 0.75), tables["arms"]
    table = table[table["optimizer"] == "adamw"]
    for i, (column, name) in enumerate((("start", "at the start"), ("swap_without_gradient", "by decay alone"),
                                        ("swap", "trained"))):  # fmt: skip
        canvas.add_scatter(x=table["b_res"], y=table[column], name=name, **look.points(i, paper=i < 2, size=8))
    canvas.update_xaxes(title="initial bias of the mixing logits").update_yaxes(title="p(swap)", type="log")
    return canvas


FIGURES = (
    PaperFigure("curves", "Training curves", losses, (f"{HOME}/bundled",)),
    PaperFigure("bars", "Architecture comparison", bars, (f"{HOME}/comparison",)),
    PaperFigure("heat", "Swap probability by module and arm", heat, (f"{HOME}/factors",), height=1.35),
    PaperFigure("scatter", "Static and largest swap probability", scatter, (f"{HOME}/factors",), height=0.9),
    PaperFigure("sweep", "Swap probability by initial bias", sweep, (f"{HOME}/arms",)),
)
