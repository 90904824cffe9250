"""The figure of `python -m interventions.streams`: the loss without a stream, by place, of a model or two."""

from typing import TYPE_CHECKING, Any

from streamscope.interventions.streams_tables import EVERYWHERE

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#3b6ea5", "#c8553d", "#2e7d32", "#8e6bb0", "#b8860b", "#4f8a8b", "#7f7f7f", "#a0522d")
TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
REACH = {"layer": "read by that layer only", "onwards": "from that layer on"}


def plot(table: "pd.DataFrame", title: str = "") -> Any:
    """Loss by the place where a stream is replaced, a colour per definition, beside the baseline (plotly figure).

    Logarithmic; bars are the 95 % intervals of the change over documents. One panel per reach; head and everywhere are
    in each. A second model (column `model`) has open markers and a dashed baseline.
    """
    from plotly.subplots import make_subplots

    reaches = [r for r in REACH if (table["reach"] == r).any()] or [""]
    figure = make_subplots(
        len(reaches), 1, subplot_titles=[REACH.get(r, "") for r in reaches], vertical_spacing=0.24 / len(reaches)
    )
    places = sorted(set(table["where"]), key=lambda w: (0, int(w[1:])) if w[:1] == "L" else (1, w == EVERYWHERE))
    models = dict(tuple(table.groupby("model", sort=False))) if "model" in table else {"": table}
    definitions = list(dict.fromkeys(table["definition"]))
    panels = [(panel, reach, *one) for panel, reach in enumerate(reaches, 1) for one in enumerate(models.items())]
    for panel, reach, which, (model, mine) in panels:
        shown = mine[mine["reach"].isin((reach, "")) & mine["percent"].notna()]
        for i, definition in enumerate(definitions):
            rows = shown[shown["definition"] == definition]
            name = f"{definition}, {model}" if len(models) > 1 else definition
            marker = {"color": COLOURS[i % len(COLOURS)], "size": 9, "symbol": "circle-open" if which else "circle"}
            bars = {
                "array": rows["ci_high"] - rows["delta"],
                "arrayminus": rows["delta"] - rows["ci_low"],
                "symmetric": False, "thickness": 1.2, "width": 4,
            }  # fmt: skip
            figure.add_scatter(
                x=rows["where"], y=rows["loss"], error_y=bars, name=name, legendgroup=name, mode="markers",
                showlegend=panel == 1, marker=marker, row=panel, col=1,
                customdata=rows["percent"],
                hovertemplate=f"{name} at %{{x}}: %{{y:.4f}} nats, %{{customdata:+.2f}} %<extra></extra>",
            )  # fmt: skip
        base, dash = float(mine["baseline"].iloc[0]), "dash" if which else "dot"
        figure.add_hline(base, line={"dash": dash, "color": "gray"}, row=panel, col=1)
        figure.update_xaxes(categoryorder="array", categoryarray=places, row=panel, col=1)
        figure.update_yaxes(title="loss, nats per token", type="log", tickvals=TICKS, row=panel, col=1)
    nowhere = "dotted and dashed" if len(models) > 1 else "dotted"
    figure.update_xaxes(title=f"where the stream is replaced; {nowhere}: nowhere", row=len(reaches), col=1)
    figure.update_layout(title=title, scattermode="group", width=980, height=180 + 300 * len(reaches))
    return figure
