"""The figure of direct and total effects: a point per head, and where the compensation happens."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 6


def plot(table: "pd.DataFrame", layers: "pd.DataFrame", title: str = "") -> Any:
    """Per task: total against direct effect, a point per head or group, and compensation by layer of the largest six.

    On the dashed line nothing is made up for; on the horizontal axis everything is. A second model (column `model`) has
    points of another colour and hatched bars, of the groups that are the largest in the first (plotly figure).
    """
    from plotly.subplots import make_subplots

    tasks = list(dict.fromkeys(table["task"]))
    titles = [f"{task}: {what}" for task in tasks for what in ("total against direct effect", "compensation by layer")]
    figure = make_subplots(len(tasks), 2, subplot_titles=titles, horizontal_spacing=0.12, vertical_spacing=0.14)
    models = list(dict.fromkeys(table["model"])) if "model" in table else [""]
    for row, task in enumerate(tasks, 1):
        largest: list[str] = []
        for which, model in enumerate(models):
            mine, own = (one[one["model"] == model] if model else one for one in (table, layers))
            mine, own = mine[mine["task"] == task], own[(own["task"] == task) & own["part"].isin(["attn", "mlp"])]
            part = {name: one.set_index("group") for name, one in mine.groupby("part")}
            x, y = part["direct"]["mean"], part["total"]["mean"].loc[part["direct"].index]
            bars = {
                "array": (part["total"]["ci_high"] - part["total"]["mean"]).loc[x.index].fillna(0),
                "thickness": 1, "color": FAINT[which],
            }  # fmt: skip
            largest = largest or list(x.abs().sort_values(ascending=False, kind="stable").index[:SHOWN])
            figure.add_scatter(
                x=x, y=y, error_y=bars, mode="markers+text", text=[g if g in largest else "" for g in x.index],
                hovertext=list(x.index), textposition="top center", textfont={"size": 9}, name=model,
                legendgroup=model, showlegend=bool(model) and row == 1, marker={"color": COLOURS[which], "size": 6},
                row=row, col=1,
            )  # fmt: skip
            ends = [float(x.min()), float(x.max())]
            line = {"dash": "dash", "color": "gray", "width": 1}
            figure.add_scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, row=row, col=1)
            for place, group in enumerate(largest):
                one = own[own["group"] == group]
                at = [f"L{layer} {p}" for layer, p in zip(one["layer"], one["part"], strict=True)]
                marker = {"color": COLOURS[place], "pattern": {"shape": "/" if which else ""}}
                name = f"{group}, {model}" if which else group
                bar = {"marker": marker, "name": name, "legendgroup": f"{task}{name}"}
                figure.add_bar(x=at, y=one["mean"], legend=f"legend{row if row > 1 else ''}", **bar, row=row, col=2)
        figure.add_hline(0, line_width=1, line_color="lightgray", row=row, col=1)
        own = layers[(layers["task"] == task) & layers["part"].isin(["attn", "mlp"])]
        order = [f"L{layer} {p}" for layer in sorted(set(own["layer"])) for p in ("attn", "mlp")]
        figure.update_xaxes(categoryorder="array", categoryarray=order, row=row, col=2)
        figure.update_xaxes(title="direct effect, nats", row=row, col=1)
        figure.update_yaxes(title="total effect, nats", row=row, col=1)
        figure.update_yaxes(title="compensation, nats", row=row, col=2)
        top = 1 - (row - 1) / len(tasks)
        figure.update_layout({f"legend{row if row > 1 else ''}": {"y": top, "title": f"ablated, {task}"}})
    return figure.update_layout(
        title=f"{title}: direct and total effects of ablation", width=1200, height=430 * len(tasks)
    )


FAINT = ("rgba(59, 110, 165, 0.4)", "rgba(224, 138, 46, 0.4)")
COLOURS = ("#3b6ea5", "#e08a2e", "#5a9b5a", "#b04a5a", "#7d6bb0", "#8a7a5a")
