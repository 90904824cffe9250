"""The figure of the scorecard: a panel for each quantity, a line for each arm, a dot for each run."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from streamscope.papers.figures.style import Style, dots, panels

COLUMNS = 4
ROUNDING = 1e-9
"""Relative; runs that differ by less are one value, around which a panel needs a range of its own."""


def runs(tables: Mapping[str, pd.DataFrame], style: Style) -> Any:
    """Dots: runs, with the 95 % interval over cases or documents where they have one; bars: means over seeds."""
    table = tables["runs"]
    arms, columns = list(dict.fromkeys(table["preset"])), {"preset": "label", "ci_low": "low", "ci_high": "high"}
    names = [name for name, one in table.groupby("quantity", sort=False) if one["value"].notna().any()]
    units = table.drop_duplicates("quantity").set_index("quantity")["unit"]
    lines = -(-len(names) // COLUMNS)
    height = lines * (0.17 + 0.026 * len(arms)) + 0.1  # of the width of a page
    canvas = panels(style, [f"{name}<br><sup>{units[name]}</sup>" for name in names], COLUMNS, height,
                    shared_yaxes=True, horizontal_spacing=0.02, vertical_spacing=0.1 / height)  # fmt: skip
    for i, name in enumerate(names):
        at: dict[str, Any] = {"row": i // COLUMNS + 1, "col": i % COLUMNS + 1}
        rows = table[table["quantity"] == name].rename(columns=columns)
        text = rows["label"] + ", seed " + rows["seed"].astype(str) + " " + rows["detail"].astype(str)
        dots(canvas, style, rows.assign(text=text), labels=arms, **at)
        low, high = rows["value"].min(), rows["value"].max()
        if high - low <= ROUNDING * abs(high):
            room = abs(high) / 10 or 1.0
            canvas.update_xaxes(range=[high - room, high + room], **at)
        if low < 0 < high:
            canvas.add_vline(x=0, line={"color": "#bbbbbb", "width": 1}, **at)
    canvas.update_yaxes(tickfont={"size": 8}).update_xaxes(tickfont={"size": 8}, nticks=4)
    return canvas.update_layout(margin={"l": 150, "t": 40})
