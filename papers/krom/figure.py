"""The picture of KROM's comparison: losses, the swap of every factor, and its way over the steps."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamscope.papers.krom.claims import CONTROL
from streamscope.papers.krom.mixing import ARM

COLOURS = {
    "fp32 adamw": "#3b6ea5", "bf16 adamw": "#c8553d", "bf16, stochastic adamw": "#8a5a9e",
    "fp32 sgd": "#6a9a4b", "bf16 sgd": "#e0a030", "bf16, stochastic sgd": "#7a6a58",
}  # fmt: skip


def figure(found: Mapping[str, pd.DataFrame]) -> Any:
    """Losses against the control, the swap of every factor by arm, and, where it was kept, its way over the steps."""

    panels = {}
    if len(found["comparison"]):
        panels[f"loss − {CONTROL}, nats/token"] = _gaps
    if len(found["factors"]):
        panels["swap at the end, one dot per factor that can act"] = _swaps
    if len(found["ways"]):
        panels["mean swap over training (dotted: no decay)"] = _ways
    canvas = make_subplots(1, max(1, len(panels)), subplot_titles=list(panels), horizontal_spacing=0.12)
    for column, draw in enumerate(panels.values(), 1):
        draw(canvas, found, column)
    canvas.update_layout(
        template="simple_white", width=260 + 360 * max(1, len(panels)), height=560,
        margin={"l": 70, "r": 90, "t": 40, "b": 190}, legend={"orientation": "h", "y": -0.55},
    )  # fmt: skip
    return canvas


def _gaps(canvas: Any, found: Mapping[str, pd.DataFrame], column: int) -> None:

    by = {preset: one.set_index("seed")["loss"] for preset, one in found["losses"].groupby("preset", sort=False)}
    for i, (preset, one) in enumerate((p, o) for p, o in by.items() if p != CONTROL):
        seeds = [s for s in one.index if s in by[CONTROL].index]
        gap = [one[s] - by[CONTROL][s] for s in seeds]
        dot = {"color": "#3b6ea5", "size": 9, "opacity": 0.7}
        canvas.add_trace(go.Scatter(x=[preset] * len(gap), y=gap, mode="markers", marker=dot, name="training seed",
                                    legendgroup="seed", showlegend=i == 0), row=1, col=column)  # fmt: skip
        paper = found["comparison"].set_index("preset").loc[preset, "printed_difference"]
        canvas.add_trace(go.Scatter(x=[preset], y=[paper], mode="markers", name="the blog", legendgroup="blog",
                                    marker={"symbol": "diamond-open", "size": 11, "color": "#222"},
                                    showlegend=i == 0), row=1, col=column)  # fmt: skip
    canvas.add_hline(y=0, line={"color": "#999", "width": 1}, row=1, col=column)


def label(r: Any) -> str:
    """An arm in few words."""
    rate = f" {r.lr:g}" if r.optimizer == "sgd" else ""
    decay = "" if r.decay else ", no decay"
    bias = "" if r.b_res != r.b_res else f" {r.b_res:g}"
    return f"{r.preset}{bias}, {r.storage}, {r.optimizer}{rate}{decay}, {r.steps:,} steps"


def _swaps(canvas: Any, found: Mapping[str, pd.DataFrame], column: int) -> None:

    shown: set[str] = set()
    for key, one in found["factors"].groupby([*ARM, "seed"], sort=False):
        first = one.iloc[0]
        kind, name = f"{first['storage']} {first['optimizer']}", label(first)
        acts = one[one["acts"]]
        dot = {"color": COLOURS[kind], "size": 6, "opacity": 0.6}
        canvas.add_trace(
            go.Scatter(x=[name] * len(acts), y=acts["swap"], mode="markers", name=kind, legendgroup=kind, marker=dot,
                       showlegend=kind not in shown, hovertext=acts["module"] + f", seed {key[-1]}"), row=1, col=column,
        )  # fmt: skip
        shown.add(kind)
        rest = found["mixing"][(found["mixing"][[*ARM, "seed"]] == list(key)).all(axis=1)]["swap_without_gradient"]
        bar = {"symbol": "line-ew-open", "size": 16, "color": "#222"}
        canvas.add_trace(
            go.Scatter(x=[name], y=rest, mode="markers", name="without gradient", legendgroup="rest", marker=bar,
                       showlegend="rest" not in shown), row=1, col=column,
        )  # fmt: skip
        shown.add("rest")
    _probabilities(canvas, found["factors"][found["factors"]["acts"]]["swap"], column)
    canvas.update_xaxes(tickangle=40, tickfont={"size": 9}, row=1, col=column)


def _ways(canvas: Any, found: Mapping[str, pd.DataFrame], column: int) -> None:

    for key, one in found["ways"].groupby([*ARM, "seed"], sort=False):
        first = one.iloc[0]
        line = {
            "color": COLOURS[f"{first['storage']} {first['optimizer']}"],
            "dash": "solid" if first["decay"] else "dot",
        }
        canvas.add_trace(
            go.Scatter(x=one["step"], y=one["swap"], mode="lines", showlegend=False,
                       name=f"{label(first)}, seed {key[-1]}", line=line), row=1, col=column,
        )  # fmt: skip
    _probabilities(canvas, found["ways"]["swap"], column)
    canvas.update_xaxes(title="step", row=1, col=column)


def _probabilities(canvas: Any, values: Any, column: int) -> None:
    """A logarithmic axis of whole decades: a thousandth of a swap is not spread over the panel."""

    low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
    canvas.update_yaxes(
        type="log", dtick=1, exponentformat="power", range=[low, max(high, low + 1)], title="probability", row=1,
        col=column,
    )  # fmt: skip
