"""The figures of DST."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamscope.papers.dst.claims import FROZEN, PAPER_ALPHAS, TABLE5
from streamscope.papers.figures.look import Look, note, panels
from streamscope.papers.figures.options import PaperFigure

HOME, BUNDLED = "dst_eighth", "bundled"
GATE = "+gate"
"""What the name of an arm with head gates has."""
Tables = Mapping[str, pd.DataFrame]


def amplified(tables: Tables, look: Look) -> Any:
    """Fig. 2: validation loss by the factor α on the scores, mean over seeds, (a) by mixing, (b) with head gates beside
    the same without; what Table 5 prints in open markers.

    The frozen-token models of the paper, and beside each the same with a token stream that moves; of other models
    only where there is none of these.
    """
    table = tables["amplification"]
    twins = [one for frozen in TABLE5 for one in (frozen, frozen.removesuffix(FROZEN))]
    have = twins if set(twins) & set(table["preset"]) else [*twins, *dict.fromkeys(table["preset"])]
    gated = [one for one in have if GATE in one]
    open_twins = dict.fromkeys(one.replace(GATE, "") for one in gated)
    shown_here = [one for one in have if one in TABLE5 or one in set(table["preset"])]
    height = 0.62 + 0.07 * (len(shown_here) + len(TABLE5))  # a line of the legend each
    canvas = panels(look, ["(a) mixing", "(b) gates"], 2, height, shared_yaxes=True, horizontal_spacing=0.06)
    for col, shown in enumerate(([one for one in have if one not in gated], [*open_twins, *gated]), 1):
        for preset in shown:
            mean, i = table[table["preset"] == preset].groupby("alpha")["loss"].mean(), have.index(preset)
            at = {"row": 1, "col": col, "showlegend": col == 1 or preset in gated}
            if len(mean):
                canvas.add_scatter(x=mean.index, y=mean, name=preset, **at, **look.line(i))
            if preset in TABLE5:
                canvas.add_scatter(x=list(PAPER_ALPHAS), y=list(TABLE5[preset]), name=f"{preset}, paper", **at,
                                   **look.points(i, paper=True))  # fmt: skip
    canvas.update_xaxes(title="α", type="log", tickvals=sorted({*PAPER_ALPHAS, *table["alpha"]}))
    canvas.update_yaxes(title="loss, nats per token", col=1)
    return canvas


def routing(tables: Tables, look: Look) -> Any:
    """Fig. 3: W_ij of every Kronecker projection and layer: to head i (downwards) from head j; red is positive."""
    table = tables["routing-cells"]
    where = list(table[["projection", "layer"]].drop_duplicates().itertuples(index=False, name=None))
    layers = max(table["layer"]) + 1
    canvas = panels(look, [f"{one.removeprefix('attn.')} L{layer}" for one, layer in where], layers,
                    0.26 + 0.17 * len(where) / layers, horizontal_spacing=0.02, vertical_spacing=0.16)  # fmt: skip
    for i, (projection, layer) in enumerate(where):
        one = table[(table["projection"] == projection) & (table["layer"] == layer)]
        cells = one.pivot_table(index="to", columns="from", values="value")
        canvas.add_trace(go.Heatmap(z=cells, x=cells.columns, y=cells.index, coloraxis="coloraxis"),
                         row=i // layers + 1, col=i % layers + 1)  # fmt: skip
    canvas.update_layout(coloraxis={"colorscale": look.signed, "cmid": 0,
                                    "colorbar": {"title": "W", "thickness": 8}})  # fmt: skip
    canvas.update_yaxes(autorange="reversed", dtick=1, showticklabels=False).update_xaxes(showticklabels=False)
    canvas.update_yaxes(title="to head", showticklabels=look.width == "page", col=1)
    canvas.update_xaxes(title="from", showticklabels=look.width == "page", row=-(-len(where) // layers))
    return canvas


def sharpened(tables: Tables, look: Look) -> Any:
    """Fig. 4: where one head looks in a text at every α: from a word (downwards) to a word (across)."""
    table = tables["amplify-picture"]
    first = table[["layer", "index"]].iloc[0]
    table = table[(table["layer"] == first["layer"]) & (table["index"] == first["index"])]
    alphas = list(dict.fromkeys(table["alpha"]))
    columns = min(len(alphas), 3)
    canvas = panels(look, [f"α = {alpha:g}" for alpha in alphas], columns, 0.2 + 0.46 * -(-len(alphas) // columns),
                    horizontal_spacing=0.04, vertical_spacing=0.2, shared_yaxes=True)  # fmt: skip
    words = table.drop_duplicates("key").sort_values("key")["key_token"]
    for i, alpha in enumerate(alphas):
        cells = table[table["alpha"] == alpha].pivot_table(index="query", columns="key", values="attention")
        canvas.add_trace(go.Heatmap(z=cells, x=cells.columns, y=cells.index, coloraxis="coloraxis"),
                         row=i // columns + 1, col=i % columns + 1)  # fmt: skip
    canvas.update_layout(coloraxis={"colorscale": look.scale, "cmin": 0, "cmax": 1,
                                    "colorbar": {"title": "attention", "thickness": 8}}, margin={"t": 40})  # fmt: skip
    said = ["BOS" if word.startswith("<|") else word.strip() or "␣" for word in words]
    ticks = {"tickvals": [*range(len(words))], "ticktext": said, "tickfont": {"size": 6}}
    canvas.update_yaxes(autorange="reversed", **ticks).update_xaxes(tickangle=90, **ticks)
    note(canvas, f"head {first['index']} of layer {first['layer']}, from a word (down) to a word (across)")
    return canvas


def coreference(tables: Tables, look: Look) -> Any:
    """Fig. 5: the share of cases in which a head's largest attention is on the antecedent, a panel per run."""
    table = tables["coreference"]
    if "run" not in table:
        table = table.assign(run="run")
    runs = list(dict.fromkeys(table["run"]))
    titles = [str(run).rsplit("/", 1)[-1].rstrip(")") for run in runs]
    canvas = panels(look, titles, 2, 0.12 + 0.44 * -(-len(runs) // 2),
                    horizontal_spacing=0.12, vertical_spacing=0.16)  # fmt: skip
    for i, run in enumerate(runs):
        cells = table[table["run"] == run].pivot_table(index="layer", columns="index", values="top1")
        canvas.add_trace(go.Heatmap(z=100 * cells, x=cells.columns, y=cells.index, coloraxis="coloraxis"),
                         row=i // 2 + 1, col=i % 2 + 1)  # fmt: skip
    canvas.update_layout(coloraxis={"colorscale": look.scale, "cmin": 0, "colorbar": {"title": "%", "thickness": 8}})
    canvas.update_xaxes(dtick=1).update_yaxes(dtick=1, autorange="reversed")
    canvas.update_xaxes(title="head", row=-(-len(runs) // 2)).update_yaxes(title="layer", col=1)
    return canvas


FIGURES = (
    PaperFigure("1", "The architecture", instead="a drawing: python -m models.describe dst-kron"),
    PaperFigure("2", "Validation loss by attention amplification", amplified, (f"{HOME}/amplification",)),
    PaperFigure("3", "Learned Kronecker routing matrices", routing, (f"{BUNDLED}/routing-cells",)),
    PaperFigure("4", "Attention under amplification", sharpened, (f"{BUNDLED}/amplify-picture",)),
    PaperFigure("5", "Coreference accuracy by head", coreference, (f"{BUNDLED}/coreference",)),
)  # fmt: skip
