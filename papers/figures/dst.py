"""The figures of DST."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from streamscope.papers.comparison.printed import printed
from streamscope.papers.dst.claims import FROZEN, PAPER_ALPHAS, PLACES, TABLE4, TABLE4_PRESET, TABLE5
from streamscope.papers.figures.style import Style, dots, heat_maps, key_of_paper, note, panels

GATE = "+gate"
"""What the name of an arm with head gates has."""
Tables = Mapping[str, pd.DataFrame]


def amplified(tables: Tables, style: Style) -> Any:
    """Fig. 2: validation loss by the factor α on the scores, mean over seeds, (a) by mixing, (b) with and without head
    gates; what Table 5 prints in open markers. A colour for each mixing, dashed without a frozen stream.

    The paper's frozen-token models, each with its twin whose token stream moves. Other models are drawn only where
    there are none of these.
    """
    table = tables["amplification"]
    twins = [one for frozen in TABLE5 for one in (frozen, frozen.removesuffix(FROZEN))]
    have = twins if set(twins) & set(table["preset"]) else [*twins, *dict.fromkeys(table["preset"])]
    gated = [one for one in have if GATE in one]
    open_twins = dict.fromkeys(one.replace(GATE, "") for one in gated)
    shown_here = [one for one in have if one in TABLE5 or one in set(table["preset"])]
    height = 0.66 + 0.07 * len(shown_here)  # a line of the legend each
    kinds = list(dict.fromkeys(one.removesuffix(FROZEN) for one in have))
    canvas = panels(style, ["(a) mixing", "(b) gates"], 2, height, shared_yaxes=True, horizontal_spacing=0.06)
    for col, shown in enumerate(([one for one in have if one not in gated], [*open_twins, *gated]), 1):
        for preset in shown:
            mean = table[table["preset"] == preset].groupby("alpha")["loss"].mean()
            i, at = kinds.index(preset.removesuffix(FROZEN)), {"row": 1, "col": col}
            if len(mean):
                line = style.line(i)
                line["line"]["dash"] = "solid" if FROZEN in preset else "dash"
                named = col == 1 or preset in gated
                canvas.add_scatter(x=mean.index, y=mean, name=preset, showlegend=named, **at, **line)
            if preset in TABLE5:
                canvas.add_scatter(x=list(PAPER_ALPHAS), y=list(TABLE5[preset]), name=f"{preset}, paper", **at,
                                   showlegend=False, **style.points(i, paper=True))  # fmt: skip
    key_of_paper(canvas)
    canvas.update_xaxes(title="α", type="log", tickvals=sorted({*PAPER_ALPHAS, *table["alpha"]}))
    canvas.update_yaxes(title="loss, nats per token", col=1)
    return canvas


def routing(tables: Tables, style: Style) -> Any:
    """Fig. 3: W_ij of every Kronecker projection and layer: to head i (downwards) from head j; red is positive."""
    table = tables["routing-cells"]
    of = dict(list(table.groupby(["projection", "layer"], sort=False)))
    layers = max(table["layer"]) + 1
    canvas = panels(style, [f"{one.removeprefix('attn.')} L{layer}" for one, layer in of], layers,
                    0.26 + 0.17 * len(of) / layers, horizontal_spacing=0.02, vertical_spacing=0.16)  # fmt: skip
    grids = (one.pivot_table(index="to", columns="from", values="value") for one in of.values())
    heat_maps(canvas, grids, layers, {"title": "W"}, colorscale=style.signed, cmid=0)
    canvas.update_yaxes(autorange="reversed", dtick=1, showticklabels=False).update_xaxes(showticklabels=False)
    canvas.update_yaxes(title="to head", showticklabels=style.width == "page", col=1)
    canvas.update_xaxes(title="from", showticklabels=style.width == "page", row=-(-len(of) // layers))
    return canvas


def sharpened(tables: Tables, style: Style) -> Any:
    """Fig. 4: where one head looks in a text at every α: from a word (downwards) to a word (across)."""
    table = tables["amplify-picture"]
    first = table[["layer", "index"]].iloc[0]
    table = table[(table["layer"] == first["layer"]) & (table["index"] == first["index"])]
    of = dict(list(table.groupby("alpha", sort=False)))
    columns = min(len(of), 3)
    canvas = panels(style, [f"α = {alpha:g}" for alpha in of], columns, 0.2 + 0.46 * -(-len(of) // columns),
                    horizontal_spacing=0.04, vertical_spacing=0.2, shared_yaxes=True)  # fmt: skip
    grids = (one.pivot_table(index="query", columns="key", values="attention") for one in of.values())
    heat_maps(canvas, grids, columns, {"title": "attention"}, colorscale=style.scale, cmin=0, cmax=1)
    canvas.update_layout(margin={"t": 40})
    words = table.drop_duplicates("key").sort_values("key")["key_token"]
    labels = ["BOS" if word.startswith("<|") else word.strip() or "␣" for word in words]
    ticks = {"tickvals": [*range(len(words))], "ticktext": labels, "tickfont": {"size": 6}}
    canvas.update_yaxes(autorange="reversed", **ticks).update_xaxes(tickangle=90, **ticks)
    note(canvas, f"head {first['index']} of layer {first['layer']}, from a word (down) to a word (across)")
    return canvas


def coreference(tables: Tables, style: Style) -> Any:
    """Fig. 5: the share of cases in which a head's largest attention is on the antecedent, a panel per run."""
    table = tables["coreference"]
    of = dict(list(table.groupby("run", sort=False))) if "run" in table else {"run": table}
    canvas = panels(style, [str(run).rsplit("/", 1)[-1].rstrip(")") for run in of], 2, 0.12 + 0.44 * -(-len(of) // 2),
                    horizontal_spacing=0.12, vertical_spacing=0.16)  # fmt: skip
    grids = (100 * one.pivot_table(index="layer", columns="index", values="top1") for one in of.values())
    heat_maps(canvas, grids, 2, {"title": "%"}, colorscale=style.scale, cmin=0)
    canvas.update_xaxes(dtick=1).update_yaxes(dtick=1, autorange="reversed")
    canvas.update_xaxes(title="head", row=-(-len(of) // 2)).update_yaxes(title="layer", col=1)
    return canvas


def streams(tables: Tables, style: Style) -> Any:
    """Table 4: what is lost without a stream, by place (logarithmic: x_t → 0 would hide all others) and from a layer
    on, mean over seeds of the paper's model; below, loss and entropy of attention by α, a line per run.

    Where they are among the arms, of the model of Table 4 in every cell of its factors, and of those of Table 5.
    """
    cells, table = tables["factors"], tables["amplification"]
    of = cells["claim"].str.split(" ").str[0]
    models = [one for one in dict.fromkeys(table["preset"]) if one not in set(cells["preset"]) - set(of)]
    titles = ["loss without a stream, % more", "stream changed from a layer on, % more", "loss by α, % more",
              "entropy of attention by α, nats"]  # fmt: skip
    canvas = panels(style, titles, 2, 1.5, vertical_spacing=0.1, horizontal_spacing=0.09)
    if "streams" in tables:
        whole = tables["streams"][tables["streams"]["where"].isin(PLACES) & (tables["streams"]["percent"] > 0)]
        shown = set(cells["preset"][of == TABLE4_PRESET]) & set(whole["preset"]) or set(models)
        rows = whole[whole["preset"].isin(shown)].sort_values("where", kind="stable")
        paper = {name: printed(f"dst-t4-change-{row}-everywhere") for name, row in TABLE4.items()}
        rows = rows.assign(label=rows["definition"] + ", " + rows["where"], paper=rows["definition"].map(paper))
        names = {"preset": "group", "percent": "value", "percent_low": "low", "percent_high": "high"}
        dots(canvas, style, rows.rename(columns=names), averaged=False)
        canvas.update_xaxes(type="log", dtick=1, row=1, col=1).update_yaxes(tickfont={"size": 8}, row=1, col=1)
        have = dict.fromkeys(tables["streams"]["preset"])
        first = TABLE4_PRESET if TABLE4_PRESET in have else next(iter(have))
        onwards = tables["streams"].query("preset == @first and reach == 'onwards'")
        for i, (definition, one) in enumerate(onwards.groupby("definition", sort=False)):
            mean = one.groupby("layer")["percent"].mean()
            canvas.add_scatter(x=[f"L{layer}" for layer in mean.index], y=mean, name=f"{definition} ({first})", row=1,
                               col=2, **style.line(i + 2))  # fmt: skip
    for i, preset in enumerate([one for one in models if one in TABLE5] or models):
        for k, (seed, one) in enumerate(table[table["preset"] == preset].groupby("seed")):
            line = {**style.line(i), "name": preset, "legendgroup": preset, "hovertext": f"seed {seed}"}
            bars = {"array": (one["percent_high"] - one["percent"]).fillna(0), "thickness": 0.8, "width": 2}
            canvas.add_scatter(x=one["alpha"], y=one["percent"], error_y=bars, showlegend=k == 0, row=2, col=1, **line)
            canvas.add_scatter(x=one["alpha"], y=one["entropy"], showlegend=False, row=2, col=2, **line)
        if preset in TABLE5:
            percent = [100 * (loss / TABLE5[preset][0] - 1) for loss in TABLE5[preset]]
            canvas.add_scatter(x=list(PAPER_ALPHAS), y=percent, name=f"{preset}, paper", row=2, col=1,
                               **style.points(i, paper=True))  # fmt: skip
    canvas.update_xaxes(type="log", title="α", tickvals=list(PAPER_ALPHAS), row=2)
    return canvas.update_layout(margin={"l": 150 if "streams" in tables else 42})
