"""The figures of PLS."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamscope.papers.figures.look import Look, panels, single
from streamscope.papers.figures.options import PaperFigure

HOME, MODES = "pls_tinystories", "pls_modes"
NAMES = {"pls": "PLS", "c2": "C2"}
GROUPS = ("entity", "anchor", "semantic")
Tables = Mapping[str, pd.DataFrame]


def raw_clusters(tables: Tables, look: Look) -> Any:
    """Fig. 1: agreement of clusters of features with those of raw activations, and of shuffled labels."""
    table = tables["agreement"]
    rows = table[(table["measure"] == "ARI") & (table["tokens"] != "in clusters of both")]
    canvas, mean = single(look, 0.7), rows.groupby(["method", "preset"], sort=False)[["value", "control"]].mean()
    x = [[method for method, _ in mean.index], [NAMES[preset] for _, preset in mean.index]]
    canvas.add_bar(x=x, y=mean["value"], name="features and raw", marker={"color": look.colour(0)})
    canvas.add_bar(x=x, y=mean["control"], name="shuffled labels", marker={"color": look.colour(1)})
    presets = tables["presets"]
    said = presets[presets["quantity"].str.endswith(".ari") & presets["paper"].notna()]
    canvas.add_scatter(
        x=[[q.split(".")[0] for q in said["quantity"]], [NAMES[p] for p in said["preset"]]], y=said["paper"],
        name="paper", **look.points(2, paper=True, size=8),
    )  # fmt: skip
    canvas.update_yaxes(title="adjusted Rand index")
    return canvas


def depth(tables: Tables, look: Look) -> Any:
    """Fig. 2: shares of tokens by k*, mean over seeds; the range over seeds as bars."""
    table = tables["depth"]
    canvas = panels(look, ["PLS", "C2"], 2, 0.6, shared_yaxes=True, horizontal_spacing=0.06)
    for i, preset in enumerate(("pls", "c2")):
        found = table[table["preset"] == preset].groupby("depth")["share"].agg(["mean", "min", "max"])
        bars = {"array": found["max"] - found["mean"], "arrayminus": found["mean"] - found["min"], "symmetric": False,
                "thickness": 0.8, "width": 2}  # fmt: skip
        canvas.add_bar(x=found.index, y=found["mean"], error_y=bars, showlegend=False, marker={"color": look.colour(i)},
                       row=1, col=i + 1)  # fmt: skip
    canvas.update_xaxes(title="k*", dtick=1).update_yaxes(title="share of tokens", col=1)
    return canvas


def steering(tables: Tables, look: Look) -> Any:
    """Fig. 3: P(answer) of capitalization by the scale of the entity heads, a line per seed."""
    table = tables["curves"]
    rows = table[
        (table["measure"] == "probability") & (table["task"] == "capitalization") & (table["group"] == "entity")
    ]
    canvas = single(look, 0.75)
    for i, preset in enumerate(("pls", "c2")):
        for k, (_, one) in enumerate(rows[rows["preset"] == preset].groupby("seed")):
            canvas.add_scatter(x=one["scale"], y=100 * one["mean"], name=NAMES[preset], legendgroup=preset,
                               showlegend=k == 0, **look.line(i))  # fmt: skip
    canvas.update_xaxes(title="scale of the heads").update_yaxes(title="P(answer), %", rangemode="tozero")
    return canvas


def modularity(tables: Tables, look: Look) -> Any:
    """Fig. 4: mean effect of removing a group on a task, % of P(answer); spread between cases below."""
    table = tables["effects"]
    rows = table[(table["measure"] == "probability") & table["group"].isin(GROUPS)]
    canvas = panels(look, ["PLS: effect", "C2: effect", "PLS: spread", "C2: spread"], 2, 0.95, vertical_spacing=0.16,
                    horizontal_spacing=0.14)  # fmt: skip
    for row, column in ((1, "difference"), (2, "sd")):
        for col, preset in enumerate(("pls", "c2"), 1):
            mean = (
                100
                * rows[rows["preset"] == preset].pivot_table(index="task", columns="group", values=column)[[*GROUPS]]
            )
            canvas.add_trace(
                go.Heatmap(z=mean, x=mean.columns, y=mean.index, coloraxis=f"coloraxis{'' if row == 1 else 2}",
                           text=mean.round(2), texttemplate="%{text}"), row=row, col=col,
            )  # fmt: skip
    bar = {"thickness": 8, "len": 0.45, "title": "%"}
    canvas.update_layout(
        coloraxis={
            "colorscale": "Greys" if look.grey else "RdBu",
            "cmid": None if look.grey else 0,
            "colorbar": {**bar, "y": 0.8},
        },
        coloraxis2={"colorscale": look.scale, "cmin": 0, "colorbar": {**bar, "y": 0.2}},
    )
    canvas.update_yaxes(showticklabels=False, col=2).update_xaxes(showticklabels=False, row=1)
    return canvas


MAP = "no table has a map: python -m features.cluster --out modes.parquet, then features.profile --figure map.html"
FIGURES = (
    PaperFigure("1", "Clusters of features are not those of raw activations", raw_clusters,
                (f"{MODES}/agreement", f"{MODES}/presets"), height=0.7),
    PaperFigure("2", "Depth of processing, PLS and C2", depth, (f"{HOME}/depth",), height=0.6),
    PaperFigure("3", "Capitalization by the scale of the entity heads", steering, (f"{HOME}/curves",)),
    PaperFigure("4", "Effects and spreads, task by group of heads", modularity, (f"{HOME}/effects",), height=0.95),
    PaperFigure("5", "Clusters on a UMAP of the features", instead=MAP),
    PaperFigure("6", "Depth on the same UMAP", instead=MAP),
)  # fmt: skip
