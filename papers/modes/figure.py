"""Computational modes of PLS and C2 in one picture: depth, coverage by the largest clusters, agreement."""

from typing import Any

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from streamscope.papers.pls.claims import printed
from streamscope.papers.pls.figure import COLOURS, depth_bars
from streamscope.papers.pls.runs import PRESETS, RUN

AGREEMENT = {
    "hdbscan.ari": "ARI, all tokens", "hdbscan.ari_clustered": "ARI, in clusters of both", "kmeans.ari": "ARI, k-means",
    "hdbscan.identity": "features with token ids", "hdbscan.identity_raw": "raw with token ids",
    "kmeans.identity": "features with token ids, k-means", "kmeans.identity_raw": "raw with token ids, k-means",
}  # fmt: skip
TITLE = "Modes of PLS (blue) and C2 (orange), dots and lines: training seeds; black: the paper"


def figure(tables: dict[str, pd.DataFrame]) -> Any:
    """Three panels (plotly): shares by k*, share of tokens in the m largest clusters, ARI and AMI."""

    titles = ["share of tokens that settle at depth k*", "share of tokens in the m largest clusters",
              "agreement (ARI with raw clusters; AMI with token ids)"]  # fmt: skip
    canvas = make_subplots(1, 3, subplot_titles=titles, column_widths=[0.3, 0.32, 0.38], horizontal_spacing=0.12)
    depth_bars(canvas, tables["depth"], 1, 1)
    _coverage(canvas, tables["clusters"])
    _agreement(canvas, tables["runs"])
    canvas.update_layout(
        template="simple_white", width=1480, height=520, title=TITLE, barmode="group",
        legend={"orientation": "h", "y": -0.16}, margin={"l": 60, "r": 20, "t": 90, "b": 60},
    )  # fmt: skip
    return canvas


def _coverage(canvas: Any, clusters: pd.DataFrame) -> None:
    for (preset, seed), one in clusters.groupby(["preset", "seed"], sort=False):
        reached = np.cumsum(one["share"].to_numpy())
        canvas.add_scatter(
            x=np.arange(1, len(one) + 1), y=reached, mode="lines", line={"color": COLOURS[preset], "width": 1.5},
            name=preset, hovertext=f"seed {seed}", showlegend=False, row=1, col=2,
        )  # fmt: skip
    coverage, number = printed(RUN, "hdbscan.coverage"), printed(RUN, "hdbscan.clusters")
    assert coverage is not None and number is not None
    canvas.add_scatter(
        x=[number.value], y=[coverage.value], mode="markers", name="paper, PLS", row=1, col=2,
        marker={"color": "black", "symbol": "diamond-open", "size": 10},
    )  # fmt: skip
    canvas.update_xaxes(title="m", type="log", row=1, col=2)
    canvas.update_yaxes(range=[0, 1], row=1, col=2)


def _agreement(canvas: Any, quantities: pd.DataFrame) -> None:
    names = list(AGREEMENT.values())
    for i, preset in enumerate(PRESETS):
        one = quantities[(quantities["preset"] == preset) & quantities["quantity"].isin(list(AGREEMENT))]
        place = one["quantity"].map(lambda q: names.index(AGREEMENT[q])) + (i - 0.5) * 0.25
        canvas.add_scatter(
            x=one["value"], y=place, mode="markers", name=preset, showlegend=False, row=1, col=3,
            marker={"color": COLOURS[preset], "size": 8, "opacity": 0.7}, hovertext=[f"seed {s}" for s in one["seed"]],
        )  # fmt: skip
    paper = printed(RUN, "hdbscan.ari")
    assert paper is not None
    canvas.add_scatter(
        x=[paper.value] * 2, y=[0, 2], mode="markers", showlegend=False, hovertext="paper", row=1, col=3,
        marker={"color": "black", "symbol": "diamond-open", "size": 10},
    )  # fmt: skip
    canvas.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, autorange="reversed", tickfont={"size": 10}, row=1, col=3
    )
    canvas.add_vline(0, line_dash="dot", line_width=1, row=1, col=3)
