"""The scorecard as one picture: a panel per quantity, a row per arm, a dot per run with its interval."""

from typing import Any

import pandas as pd
from plotly.subplots import make_subplots

COLUMNS, GAP = 4, 70
"""Panels in a row; pixels between rows of panels."""
ROUNDING = 1e-9
"""Relative; runs that differ by less are one value, around which a panel needs a range of its own."""
RUN, MEAN = "#3b6ea5", "#c8553d"


def figure(tables: dict[str, pd.DataFrame]) -> Any:
    """Dots: runs, with the 95 % interval over cases or documents where they have one; red lines: means over seeds."""
    runs = tables["runs"]
    arms = list(dict.fromkeys(runs["preset"]))[::-1]
    names = [name for name, one in runs.groupby("quantity", sort=False) if one["value"].notna().any()]
    units = runs.drop_duplicates("quantity").set_index("quantity")["unit"]
    lines, panel = -(-len(names) // COLUMNS), 40 + 17 * len(arms)
    inside = lines * panel + (lines - 1) * GAP
    canvas = make_subplots(
        lines, COLUMNS, subplot_titles=[f"{name}<br><sup>{units[name]}</sup>" for name in names],
        shared_yaxes=True, horizontal_spacing=0.02, vertical_spacing=GAP / inside,
    )  # fmt: skip
    for i, name in enumerate(names):
        _panel(canvas, runs[(runs["quantity"] == name) & runs["value"].notna()], arms, *divmod(i, COLUMNS))
    canvas.update_yaxes(
        range=[-0.7, len(arms) - 0.3], tickvals=list(range(len(arms))), ticktext=arms, tickfont={"size": 10},
        showgrid=True, gridcolor="#eeeeee",
    )  # fmt: skip
    canvas.update_xaxes(tickfont={"size": 9}, nticks=4)
    canvas.update_annotations(font_size=12)
    canvas.update_layout(
        template="simple_white", width=1300, height=inside + 150, showlegend=False,
        title="Scorecard; blue: runs with 95 % over cases or documents, red: means over seeds",
        margin={"l": 190, "r": 20, "t": 110, "b": 40},
    )  # fmt: skip
    return canvas


def _panel(canvas: Any, rows: pd.DataFrame, arms: list[str], line: int, column: int) -> None:
    at = {"row": line + 1, "col": column + 1}
    of = {arm: 0 for arm in arms}
    heights = []
    for arm in rows["preset"]:
        heights.append(arms.index(arm) + 0.18 * (of[arm] - (rows["preset"] == arm).sum() / 2 + 0.5))
        of[arm] += 1
    bars = {
        "array": (rows["ci_high"] - rows["value"]).fillna(0), "symmetric": False, "thickness": 1.2, "width": 0,
        "arrayminus": (rows["value"] - rows["ci_low"]).fillna(0),
    }  # fmt: skip
    text = rows["preset"] + ", seed " + rows["seed"].astype(str) + " " + rows["detail"].astype(str)
    canvas.add_scatter(
        x=rows["value"], y=heights, error_x=bars, mode="markers", hovertext=text,
        marker={"color": RUN, "size": 6}, **at,
    )  # fmt: skip
    means = rows.groupby("preset")["value"].agg(["mean", "size"]).query("size > 1")
    for arm, one in means.iterrows():
        y = arms.index(str(arm))
        canvas.add_scatter(
            x=[one["mean"]] * 2,
            y=[y - 0.4, y + 0.4],
            mode="lines",
            line={"color": MEAN, "width": 2},
            hoverinfo="skip",
            **at,
        )
    low, high = rows["value"].min(), rows["value"].max()
    if high - low <= ROUNDING * abs(high):
        room = abs(high) / 10 or 1.0
        canvas.update_xaxes(range=[high - room, high + room], **at)
    if low < 0 < high:
        canvas.add_vline(x=0, line={"color": "#bbbbbb", "width": 1}, **at)
