"""The figure of `probes.over_steps`: a panel per measure, a curve per run, over steps."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

AXES = {
    "loss": "loss, nats per token",
    "induction": "largest induction score, share of attention",
    "pds": "largest PDS, attention",
    "due": "log-odds due to the nouns, nats",
    "depth": "settling layer, from 0",
}
COLOURS = ("#3b6ea5", "#c8553d", "#5b8c5a", "#8a5a9e", "#b8860b", "#444444")
DASHES = ("solid", "dash", "dot", "dashdot")
ZERO = 0.5
"""Where step 0 stands on the logarithmic axis."""
WIDE = 64
"""Last step / first step but 0 from which on the axis is logarithmic."""


def plot(summary: "pd.DataFrame") -> Any:
    """A curve per run in a panel per measure, with bands of 95 %; the control in grey.

    Runs of one preset have one colour and differ in their dashes. Steps are logarithmic where they span `WIDE`.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    names = [name for name in AXES if name in set(summary["measure"])]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = make_subplots(rows, columns, subplot_titles=[AXES[name] for name in names], horizontal_spacing=0.08)
    presets = list(dict.fromkeys(summary["preset"]))
    runs = {p: list(dict.fromkeys(summary.loc[summary["preset"] == p, "run"])) for p in presets}
    steps = sorted(int(s) for s in summary["step"].unique())
    log = steps[-1] >= WIDE * next((s for s in steps if s), steps[-1] + 1)
    least = ZERO if log else 0.0
    folder = Path(str(summary["run"].iloc[0])).parent
    beside = all(Path(str(run)).parent == folder for run in summary["run"].unique())
    for i, name in enumerate(names):
        place = {"row": i // columns + 1, "col": i % columns + 1}
        lines = []
        for (preset, run), one in summary[summary["measure"] == name].groupby(["preset", "run"], sort=False):
            colour = COLOURS[presets.index(preset) % len(COLOURS)]
            dash = DASHES[runs[preset].index(run) % len(DASHES)]
            label = Path(str(run)).name if beside else run
            lines.append((one.sort_values("step"), label, colour, dash, "value"))
        if "control" in summary:
            lines.append((lines[0][0], "control", "#888888", "solid", "control"))
        for one, label, colour, dash, column in lines:
            x = one["step"].clip(lower=least)
            if column == "value":
                band = one.dropna(subset=["ci_low", "ci_high"])
                at = band["step"].clip(lower=least)
                around = go.Scatter(
                    x=[*at, *at[::-1]], y=[*band["ci_high"], *band["ci_low"][::-1]], mode="lines", fill="toself",
                    line={"width": 0}, fillcolor=colour, opacity=0.15, hoverinfo="skip", showlegend=False,
                    legendgroup=label,
                )  # fmt: skip
                figure.add_trace(around, **place)
            curve = go.Scatter(
                x=x, y=one[column], mode="lines+markers", name=label, legendgroup=label, showlegend=i == 0,
                line={"color": colour, "dash": dash, "width": 2}, marker={"size": 4}, customdata=one[["step", "head"]],
                hovertemplate="step %{customdata[0]}: %{y:.4f} %{customdata[1]}",
            )  # fmt: skip
            figure.add_trace(curve, **place)
        figure.update_xaxes(title="optimiser steps", **place)
        if log:
            shown = [s for s in steps if s == 0 or s == steps[-1] or (s & (s - 1) == 0 and s.bit_length() % 2)]
            ticks = {"tickvals": [max(s, ZERO) for s in shown], "ticktext": [f"{s:,}" for s in shown]}
            figure.update_xaxes(type="log", **ticks, **place)
    figure.update_layout(
        width=430 * columns + 180, height=340 * rows + 60, legend={"title": "run"}, template="simple_white"
    )
    return figure


def picture(figure: Any, out: Path, form: str) -> None:
    """The figure beside the table as a picture; a line where it cannot be drawn."""
    from streamscope.probes.tables import write_atomically

    if form == "none":
        return
    try:
        image = figure.to_image(format=form, scale=1 if form == "svg" else 2)
    except Exception as error:  # kaleido raises errors of Chromium, of its own and of asyncio
        print(f"no picture, it needs kaleido and Chromium: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return
    picture = out.with_suffix(f".{form}")
    write_atomically(picture, lambda part: part.write_bytes(image))
    print(f"figure {picture}")
