"""The figure of control curves: a measure against the scale of a group of heads (PLS Fig. 3)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#3b6ea5", "#e08a2e")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
AXES = {"probability": "P(answer)", "log_odds": "log-odds, nats", "loss": "loss, nats/token"}


def plot(table: "pd.DataFrame") -> Any:
    """A panel per task and measure; one colour per model, one dash per group; bars: 95 % of the change from scale 1."""
    from plotly.subplots import make_subplots

    models, groups = (list(dict.fromkeys(table[name])) for name in ("model", "group"))
    panels = list(dict.fromkeys(zip(table["task"], table["measure"], strict=True)))
    columns = min(len(panels), 3 if len(set(table["task"]) - {"documents"}) < 2 else 2)
    rows = -(-len(panels) // columns)
    titles = [f"{task}: {AXES[measure]}" for task, measure in panels]
    figure = make_subplots(rows, columns, subplot_titles=titles, horizontal_spacing=0.1, vertical_spacing=0.16)
    for at, (task, measure) in enumerate(panels):
        place = {"row": at // columns + 1, "col": at % columns + 1}
        one = table[(table["task"] == task) & (table["measure"] == measure)]
        for (model, group), line in one.groupby(["model", "group"], sort=False):
            line = line.sort_values("scale")
            bars = {
                "array": (line["change_high"] - line["change"]).fillna(0), "thickness": 1, "width": 3,
                "arrayminus": (line["change"] - line["change_low"]).fillna(0), "symmetric": False,
            }  # fmt: skip
            name = f"{model}, {group} heads" if len(models) > 1 or len(groups) > 1 else f"{group} heads"
            style = {"color": COLOURS[models.index(model) % 2], "dash": DASHES[groups.index(group) % len(DASHES)]}
            figure.add_scatter(
                x=line["scale"], y=line["mean"], error_y=bars, mode="lines+markers", line=style, name=name,
                legendgroup=name, showlegend=at == 0, hovertext=line["heads"], **place,
            )  # fmt: skip
        figure.add_vline(1, line_dash="dot", line_color="lightgray", **place)
        figure.update_xaxes(title="scale g of the heads", **place)
        figure.update_yaxes(title=AXES[measure], **place)
    height, legend = 140 + 340 * rows, {"orientation": "h", "y": -0.22 / rows}
    title = f"{' and '.join(models)}: scaled heads; bars: 95 % of the change from scale 1"
    return figure.update_layout(title=title, width=360 * columns + 120, height=height, legend=legend)
