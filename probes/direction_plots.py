"""The figure of `probes.directions`: norms, separation, cosines, and how the streams share the direction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.probes.direction_tables import Found, labels
from streamscope.probes.stream_states import RESID

COLOURS = ("#3b6ea5", "#c44e52", "#55a868", "#8172b2", "#ccb974", "#64b5cd", "#8c564b", "#7f7f7f", "#d08c60")
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot")


def plot(runs: Sequence[Found], cosines: pd.DataFrame, title: str = "") -> Any:
    """Four panels (plotly figure).

    Top: norm of the difference of means by layer, dotted what shuffled labels give; AUC on held-out prompts with its
    95 % interval. Bottom: mean |cosine| of runs, or cosines of one run's layers; shares of the streams' norms, or
    with a single stream the |cosine| of both ways to compute a direction. Colour: stream of one run, or run.
    """
    from plotly.subplots import make_subplots

    single = len(runs) == 1
    short = labels(runs)
    multi = {name: found for name, found in zip(short, runs, strict=True) if "joint" in found.vectors}
    headings = (
        "difference of means; dotted: shuffled labels",
        "separation of held-out prompts (AUC, 95 %)",
        "cosines of the readout's directions" if single else "mean |cosine| of the readout's directions",
        f"share of each stream in the norm{'' if single else ', mean over layers'}"
        if multi
        else "|cosine| of mean difference and SVD",
    )
    figure = make_subplots(2, 2, subplot_titles=headings, horizontal_spacing=0.14, vertical_spacing=0.16)
    for i, found in enumerate(runs):
        streams = [s for s in found.vectors if s != "joint"] if single else [RESID]
        for j, stream in enumerate(streams):
            rows = found.layers[found.layers["stream"] == stream].sort_values("layer")
            # streams that lie on each other stay visible: the readout below, broken lines above
            dash = DASHES[j % len(DASHES)] if single and stream != RESID else "solid"
            style = {"color": COLOURS[(j if single else i) % len(COLOURS)], "width": 3 if stream == RESID else 1.6}
            name = stream if single else short[i]
            legend = {"name": name, "legendgroup": name, "mode": "lines+markers"}
            figure.add_scatter(x=rows["layer"], y=rows["norm"], line={**style, "dash": dash}, row=1, col=1, **legend)
            figure.add_scatter(
                x=rows["layer"], y=rows["shuffled_norm"], line={**style, "width": 1, "dash": "dot"}, mode="lines",
                name=f"{name}, shuffled", legendgroup=name, showlegend=False, row=1, col=1,
            )  # fmt: skip
            figure.add_scatter(
                x=rows["layer"] + (0.04 * j if single else 0.04 * i), y=rows["auc"], line={**style, "dash": dash},
                error_y={
                    "array": rows["auc_high"] - rows["auc"], "arrayminus": rows["auc"] - rows["auc_low"],
                    "symmetric": False, "thickness": 1, "width": 2,
                },
                showlegend=False, row=1, col=2, **legend,
            )  # fmt: skip
    figure.add_hline(0.5, line={"color": "gray", "dash": "dot"}, row=1, col=2)
    _heat(figure, runs, cosines)
    _shares(figure, multi) if multi else _agreement(figure, runs)
    top = max(found.layers.loc[found.layers["stream"] != "joint", "norm"].max() for found in runs)
    figure.update_yaxes(title="norm", range=[0, 1.08 * top], row=1, col=1)
    figure.update_yaxes(title="AUC", range=[0, 1.03], row=1, col=2)
    for column in (1, 2):
        figure.update_xaxes(title="layer", dtick=1, row=1, col=column)
    figure.update_layout(title=title, width=1180, height=860, legend={"title": "stream" if single else "run"})
    return figure


def _heat(figure: Any, runs: Sequence[Found], cosines: pd.DataFrame) -> None:
    """Layer × layer of one run, or run × run."""
    import plotly.graph_objects as go

    if len(runs) == 1:
        vectors = runs[0].vectors[RESID]
        grid, names, signed = vectors @ vectors.T, [f"L{i}" for i in range(len(vectors))], True
    else:
        names, paths = labels(runs), [found.run for found in runs]
        own = cosines[cosines["stream"] == RESID].groupby(["run_a", "run_b"])["absolute"].mean()
        grid, signed = np.full((len(runs), len(runs)), np.nan), False  # runs of unequal width have none
        np.fill_diagonal(grid, 1.0)
        for (a, b), value in own.items():
            i, j = paths.index(a), paths.index(b)
            grid[i, j] = grid[j, i] = value
    colours = {"colorscale": "RdBu_r", "zmin": -1} if signed else {"colorscale": "Blues", "zmin": 0}
    text = "%{z:.2f}" if len(names) <= 12 else ""
    bar = {"title": "cosine" if signed else "|cosine|", "x": 0.44, "y": 0.2, "len": 0.44, "thickness": 12}
    heat = go.Heatmap(z=grid, x=names, y=names, zmax=1, texttemplate=text, colorbar=bar, **colours)
    figure.add_trace(heat, row=2, col=1)
    figure.update_yaxes(autorange="reversed", row=2, col=1)


def _shares(figure: Any, multi: Mapping[str, Found]) -> None:
    """Stacked bars: the norms of the parallel streams, divided by their sum, by layer or for several runs by run."""
    for label, found in multi.items():
        own = found.layers[~found.layers["stream"].isin(["joint", RESID])]
        total = own.groupby("layer")["norm"].transform("sum")
        share = (own["norm"] / total.where(total > 0)).fillna(0.0)
        for j, stream in enumerate(own["stream"].unique()):
            at = own["stream"] == stream
            one = len(multi) == 1
            x = [f"L{layer}" for layer in own.loc[at, "layer"]] if one else [label]
            y = share[at].tolist() if one else [share[at].mean()]
            figure.add_bar(
                x=x, y=y, name=stream, marker={"color": COLOURS[j % len(COLOURS)]}, showlegend=False,
                text=[stream] * len(x), textposition="inside", textangle=0, row=2, col=2,
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="share", range=[0, 1], row=2, col=2)


def _agreement(figure: Any, runs: Sequence[Found]) -> None:
    """|cosine| of the difference of means and the first singular vector, by layer."""
    for i, found in enumerate(runs):
        rows = found.layers[found.layers["stream"] == RESID].sort_values("layer")
        line = {"color": COLOURS[i % len(COLOURS)]}
        figure.add_scatter(
            x=rows["layer"], y=rows["svd_cosine"], line=line, name=found.run, showlegend=False, row=2, col=2
        )
    figure.update_xaxes(title="layer", dtick=1, row=2, col=2)
    figure.update_yaxes(title="|cosine|", range=[0, 1.03], row=2, col=2)
