"""The figure of ablation effects: task × group matrices and the effect on every case (PLS Fig. 4)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamscope.interventions.task_effects import Effects

COLOURS = ("#3b6ea5", "#e08a2e")


def plot(names: Sequence[str], found: "Sequence[Effects]", measure: str = "probability") -> Any:
    """Above a heat map of mean Δ per model, below Δ of every case by task and group, one colour per model (plotly)."""
    import numpy as np
    from plotly.subplots import make_subplots

    tables = [one.table[one.table["measure"] == measure] for one in found]
    limit = max(float(t["difference"].abs().max()) for t in tables) or 1.0
    columns = len(found)
    titles = [f"mean Δ, {name}" for name in names]
    figure = make_subplots(
        2,
        columns,
        specs=[[{}] * columns, [{"colspan": columns}, *[None] * (columns - 1)]],
        subplot_titles=[*titles, "every case"],
        row_heights=[0.42, 0.58],
        vertical_spacing=0.16,
        horizontal_spacing=0.16,
    )
    for column, table in enumerate(tables, 1):
        grid = table.pivot(index="task", columns="group", values="difference")
        grid = grid.loc[list(dict.fromkeys(table["task"])), list(dict.fromkeys(table["group"]))]
        heads = dict(zip(table["group"], table["heads"], strict=True))
        figure.add_heatmap(
            z=grid.to_numpy(), x=[_heading(g, heads[g]) for g in grid.columns], y=list(grid.index),
            texttemplate="%{z:+.4f}", hovertemplate="%{y}, %{x}: %{z:+.5f}<extra></extra>", colorscale="RdBu",
            zmin=-limit, zmax=limit, showscale=column == columns,
            colorbar={"title": "Δ P(answer)", "len": 0.42, "y": 1.0, "yanchor": "top", "thickness": 14},
            row=1, col=column,
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", row=1)
    for i, (name, one) in enumerate(zip(names, found, strict=True)):
        cases = one.rows()
        cases = cases[cases["measure"] == measure]
        spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(cases))
        labels = [f"{t}<br>{g}" for t, g in zip(cases["task"], cases["group"], strict=True)]
        places = {label: at for at, label in enumerate(dict.fromkeys(labels))}
        centre = np.array([places[label] for label in labels]) + (i - (columns - 1) / 2) * 0.32
        figure.add_scatter(
            x=centre + spread, y=cases["delta"], mode="markers", name=name, text=cases["id"],
            hovertemplate="%{text}: %{y:+.4f}<extra></extra>",
            marker={"color": COLOURS[i % 2], "size": 5, "opacity": 0.6}, row=2, col=1,
        )  # fmt: skip
        figure.update_xaxes(tickvals=list(places.values()), ticktext=list(places), tickangle=0, row=2, col=1)
    figure.add_hline(0, line_dash="dash", line_width=1, row=2, col=1)
    figure.update_yaxes(title="Δ P(answer), ablated − baseline", row=2, col=1)
    legend = {"orientation": "h", "y": -0.14}
    return figure.update_layout(title=f"ablation effects, {' and '.join(names)}", width=1100, height=820, legend=legend)


def _heading(group: str, heads: str) -> str:
    return group if group == heads or len(heads) > 24 else f"{group}<br>{heads}"
