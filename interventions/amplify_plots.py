"""The figures of `python -m interventions.amplify`: curves against α (DST Fig. 2), attention across α (DST Fig. 4)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamscope.interventions.amplify_tables import PAPER, PAPER_ALPHAS, degradation

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.head_spec import Head

MEAN, CONTROL = "#20457c", "#e08a2e"


def plot(table: "pd.DataFrame", heads: "pd.DataFrame", title: str = "") -> Any:
    """Loss, degradation, entropy and unchanged keys against α (plotly figure); 95 % over documents.

    Grey lines: the four models of DST Table 5 in the panel of degradation. Thin lines: layers in the panels of
    attention, of the model of `heads`. A second model (column `model`) is dashed, in another colour.
    """
    from plotly.colors import sample_colorscale
    from plotly.subplots import make_subplots

    names = ("loss", "degradation (grey: DST Table 5)", "entropy of attention", "same first key as at α = 1")
    axes = ("nats per token", "% of the loss at α = 1", "nats", "share of queries")
    figure = make_subplots(2, 2, subplot_titles=names, horizontal_spacing=0.1, vertical_spacing=0.17)
    models = list(table.groupby("model", sort=False)) if "model" in table else [("model", table)]
    bounds = {"loss": ("ci_low", "ci_high"), "percent": ("percent_low", "percent_high")}
    for panel, column in enumerate(("loss", "percent", "entropy", "unchanged")):
        at = {"row": panel // 2 + 1, "col": panel % 2 + 1}
        if column == "percent":
            for name, losses in PAPER.items():
                figure.add_scatter(
                    x=PAPER_ALPHAS, y=degradation(losses), mode="lines", line={"color": "#bbbbbb", "width": 1},
                    hovertemplate=f"DST, {name}: %{{y:.1f}} %<extra></extra>", showlegend=False, **at,
                )  # fmt: skip
        if column in ("entropy", "unchanged"):
            layers = sorted(set(heads["layer"]))
            shades = sample_colorscale("Viridis", [layer / max(1, layers[-1]) * 0.9 for layer in layers])
            for layer, shade in zip(layers, shades, strict=True):
                means = heads[heads["layer"] == layer].groupby("alpha")[column].mean().dropna()
                figure.add_scatter(
                    x=means.index, y=means, mode="lines", line={"color": shade, "width": 1}, name=f"layer {layer}",
                    legendgroup=f"L{layer}", showlegend=column == "entropy", **at,
                )  # fmt: skip
        for (name, mine), colour, dash in zip(models, (MEAN, CONTROL), ("solid", "dash"), strict=False):
            rows = mine[mine[column].notna()]
            low, high = bounds.get(column, (f"{column}_low", f"{column}_high"))
            shift = rows["baseline"] if column == "loss" else 0.0
            bars = {
                "array": (rows[high] + shift - rows[column]).fillna(0.0),
                "arrayminus": (rows[column] - rows[low] - shift).fillna(0.0),
                "symmetric": False, "thickness": 1.2, "width": 4,
            }  # fmt: skip
            figure.add_scatter(
                x=rows["alpha"], y=rows[column], error_y=bars, mode="lines+markers", name=name, legendgroup=name,
                line={"color": colour, "width": 2.5, "dash": dash}, showlegend=panel == 0, **at,
            )  # fmt: skip
        alphas = sorted(set(table["alpha"]))
        figure.update_xaxes(title="α", type="log", tickvals=alphas, ticktext=[f"{a:g}" for a in alphas], **at)
        figure.update_yaxes(title=axes[panel], **at)
    figure.update_layout(title=title, width=1080, height=780)
    return figure


def picture(model: Any, text: str, heads: "Sequence[Head]", alphas: Sequence[float], amplify: Any) -> "pd.DataFrame":
    """`probes.picture.picture` of the heads at each α, one after the other; the column `head` names head and α.

    `amplify(alpha)` gives the edits.
    """
    import pandas as pd

    from streamscope.probes.picture import picture as look

    tables = []
    for alpha in alphas:
        table = look(model, text, heads, edits=amplify(alpha))
        tables.append(table.assign(alpha=float(alpha), head=table["head"] + f", α = {alpha:g}"))
    found = pd.concat(tables, ignore_index=True)
    return found.sort_values(["layer", "index", "alpha"], kind="stable", ignore_index=True)
