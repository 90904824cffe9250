"""The figures of LFA."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.figures.drawing import scale
from streamscope.papers.comparison.printed import printed
from streamscope.papers.figures.style import (
    RULE,
    Style,
    between,
    dots,
    heat_maps,
    key_of_paper,
    note,
    panels,
    single,
    whiskers,
)
from streamscope.papers.lfa.runs import in_order
from streamscope.probes.pds import FIXED

ORDER = ("lfa", "std-t", "d-cas", "cfm")
"""The order of the paper's legends."""
NAMES = {"lfa": "LFA", "std-t": "Std-T", "d-cas": "D-Cas", "cfm": "CFM"}
COLUMNS = {"mean": "value", "ci_low": "low", "ci_high": "high"}
"""Of means over seeds, as `style.dots` calls them."""
Tables = Mapping[str, pd.DataFrame]


def presets(table: pd.DataFrame) -> list[str]:
    """Those of the table, in the paper's order, others behind."""
    have = list(dict.fromkeys(table["preset"]))
    return [one for one in ORDER if one in have] + [one for one in have if one not in ORDER]


def by_layer(tables: Tables, style: Style) -> Any:
    """Fig. 1: the largest PDS of a head in each layer, mean over seeds with 95 % intervals; what is printed in open
    markers of the same form, the threshold dotted. The paper's architectures stand side by side at a layer."""
    canvas, table = single(style, 0.8), tables["architectures"]
    rows = table[(table["family"] == "position by layer") & ~table["preset"].str.contains("+", regex=False)]
    shown = presets(rows)
    for i, preset in enumerate(shown):
        one = rows[(rows["preset"] == preset) & rows["mean"].notna()]
        x = one["quantity"].str.extract(r"L(\d+)$")[0].astype(int) + 0.14 * (i - (len(shown) - 1) / 2)
        ends = between(one.rename(columns=COLUMNS), (0.0, 1.0))
        bars = whiskers(ends["value"], ends["low"], ends["high"])
        canvas.add_scatter(x=x, y=one["mean"], error_y=bars, name=NAMES.get(preset, preset), **style.line(i))
        printed = one["paper"].notna()
        if printed.any():
            canvas.add_scatter(x=x[printed], y=one.loc[printed, "paper"], name=f"{preset}, paper", showlegend=False,
                               **style.points(i, paper=True, size=8))  # fmt: skip
    key_of_paper(canvas)
    canvas.add_hline(y=FIXED, line=RULE)
    canvas.update_xaxes(title="layer", dtick=1).update_yaxes(title="largest PDS", rangemode="tozero")
    return canvas


SUPPRESSED = {"lfa": ("lfa-s52-sps-lfa", "lfa-s52-sps-suppressed-lfa"),
              "cfm": ("lfa-s52-sps-cfm", "lfa-s52-sps-suppressed-cfm")}  # fmt: skip
"""Claims that print the bars of Fig. 2; those of Std-T are nowhere printed."""


def suppressed(tables: Tables, style: Style) -> Any:
    """Fig. 2: SPS of every run, with and without its heads over the threshold of PDS, next to the printed values.

    The suppressed bar has ± one standard error of the change, between independent prompts: both bars are of the same
    prompts, so that errors of each alone, which the paper has, would not tell whether they differ. A bar is left out
    where it could only be the baseline's: where no head is over the threshold, and where all are in the last layer,
    which change no attention.
    """
    table = tables["suppression"].rename(columns={"condition": "edited", "difference": "delta"})  # as older tables say
    whole = table[(table["group"] == "selected") & (table["measure"] == "sps") & (table["part"] == "all")
                  & (table["gate"] == 0)]  # fmt: skip
    over = whole[whole["selection"] == "over"]
    if over.empty:
        raise InputError("no run of these tables has heads over the threshold to suppress")
    over = over.assign(sem=(over["ci_high"] - over["ci_low"]) / 2 / stats.t.ppf(0.975, over["clusters"] - 1))
    rows = whole.drop_duplicates(["preset", "seed"])[["preset", "seed", "baseline"]]
    rows = rows.merge(over[["preset", "seed", "edited", "delta", "sem"]], "left", ["preset", "seed"])
    rows = rows[rows["preset"].isin(ORDER)].assign(label="seed " + rows["seed"].astype(str))
    paper = pd.DataFrame(
        [(preset, "paper", *map(printed, claims)) for preset, claims in SUPPRESSED.items()],
        columns=["preset", "label", "baseline_paper", "edited_paper"],
    )
    order = {preset: place for place, preset in enumerate(ORDER)}
    table = pd.concat([rows, paper], ignore_index=True)
    table = table.sort_values("preset", key=lambda own: own.map(order), kind="stable")
    table = table.assign(edited=table["edited"].where(table["delta"].notna())).astype(object).replace(np.nan, None)
    canvas, x = single(style, 0.85), [table["preset"].map(NAMES), table["label"]]
    for i, (column, name) in enumerate((("baseline", "baseline"), ("edited", "suppressed"))):
        errors = {"array": table["sem"], "thickness": 0.8, "width": 2, "visible": column == "edited"}
        canvas.add_bar(x=x, y=table[column], name=name, marker={"color": style.fill(i)}, offsetgroup=i, error_y=errors)
        canvas.add_bar(x=x, y=table[f"{column}_paper"], name=f"{name}, paper", offsetgroup=i,
                       marker={"color": "#ffffff", "line": {"color": style.fill(i), "width": 1.2}})  # fmt: skip
    note(canvas, "error bars: SEM of the change, between independent prompts<br>"
                 "no second bar: no head over the threshold, or all in the last layer")  # fmt: skip
    canvas.update_xaxes(tickangle=90).update_yaxes(title="SPS")
    return canvas


def distribution(tables: Tables, style: Style) -> Any:
    """Fig. 4: PDS of all heads of all seeds, by architecture; the line is the threshold."""
    table = tables["heads"]
    shown = [one for one in presets(table) if "+" not in one]
    canvas = panels(style, [NAMES.get(one, one) for one in shown], 2, 0.85, shared_xaxes=True, vertical_spacing=0.16)
    top = float(table["pds"].max())
    for i, preset in enumerate(shown):
        at = {"row": i // 2 + 1, "col": i % 2 + 1}
        values = table.loc[table["preset"] == preset, "pds"]
        bins = {"start": 0, "end": top * 1.001, "size": top / 24}
        canvas.add_trace(go.Histogram(x=values, xbins=bins, showlegend=False, marker={"color": style.fill(0)}), **at)
        canvas.add_vline(x=FIXED, line=RULE, **at)
    canvas.update_xaxes(matches="x").update_xaxes(matches=None, row=1, col=1).update_yaxes(title="heads", col=1)
    canvas.update_xaxes(title="PDS", row=-(-len(shown) // 2))
    return canvas


def gates(selection: str) -> Any:
    """Figs. 5 and 6: SPS by the gate on the position heads, mean over seeds of an architecture, or a line per run."""

    def draw(tables: Tables, style: Style) -> Any:
        table = tables["suppress"]
        if "preset" not in table:
            runs = table["run"] if "run" in table else pd.Series("run", table.index)
            table = table.assign(preset=runs.str.removeprefix("stories/"))
        rows = table[(table["selection"] == selection) & (table["group"] == "selected") & (table["measure"] == "sps")]
        rows = rows[~rows["preset"].str.contains("+", regex=False)]
        if rows["gate"].nunique() < 2:
            raise InputError("these tables have one gate alone: a curve needs python -m interventions.suppress --gates")
        canvas = single(style, 0.75)
        still = rows.loc[rows["delta"].isna() & (rows["gate"] != 1), "preset"]
        for i, preset in enumerate(one for one in presets(rows) if one not in set(still)):
            mean = rows[rows["preset"] == preset].groupby("gate")["edited"].mean().sort_index()
            canvas.add_scatter(x=mean.index, y=mean, name=NAMES.get(preset, preset), **style.line(i))
        if not canvas.data:
            raise InputError(f"no run of these tables has {selection} heads below the last layer to turn down")
        if len(still):
            names = ", ".join(NAMES.get(one, one) for one in dict.fromkeys(still))
            note(canvas, f"not drawn, their heads are in the last layer: {names}")
        canvas.update_xaxes(title="gate of the heads").update_yaxes(title="SPS")
        return canvas

    return draw


def heat(tables: Tables, style: Style) -> Any:
    """Fig. 7: PDS of every head, layers downwards, a map for each run (model, training seed): heads of two seeds have
    nothing but their number in common. Of the paper's LFA only L5.H0 is printed (.276)."""
    table = tables["heads"]
    shown, seeds = [one for one in presets(table) if "+" not in one], sorted(set(table["seed"]))
    titles = [f"{NAMES[preset]} {seed}" for preset in shown for seed in seeds]
    canvas = panels(style, titles, len(seeds), 0.24 + 0.32 * len(shown), vertical_spacing=0.16 / len(shown),
                    horizontal_spacing=0.04, shared_yaxes=True)  # fmt: skip
    runs = table.set_index(["preset", "seed"])
    steps, _, top, root = scale(table.loc[table["preset"].isin(shown), "pds"].to_numpy(), signed=False)
    places = [place for place, _ in steps]  # by the square root where a few heads are far above all others
    colors = sample_colorscale(style.scale, [place**0.5 if root else place for place in places])
    bar = {"title": "PDS,<br>colours by<br>the square<br>root" if root else "PDS"}
    grids = (
        runs.loc[[run]].pivot(index="layer", columns="index", values="pds") if run in runs.index else None
        for run in product(shown, seeds)
    )
    heat_maps(canvas, grids, len(seeds), bar, colorscale=list(zip(places, colors, strict=True)), cmin=0, cmax=top)
    canvas.update_xaxes(dtick=1, showticklabels=False).update_yaxes(dtick=1, autorange="reversed")
    canvas.update_xaxes(title="head", showticklabels=True, row=len(shown)).update_yaxes(title="layer", col=1)
    return canvas


QUANTITIES = {
    "loss": "validation loss, nats/token", "pds.over": "heads with PDS over 0.075",
    "coreference.keys.top1": "Top-1 over all keys, best head held out",
    "stability.keys.jaccard.competing": "stability over all keys, competing nouns", "sps": "SPS over all heads",
    "suppress.top3.sps.d": "Cohen's d of SPS, top 3 suppressed",
}  # fmt: skip


LIMITS = {
    "pds.over": (0.0, np.inf), "coreference.keys.top1": (0.0, 1.0), "stability.keys.jaccard.competing": (0.0, 1.0),
}  # fmt: skip
"""The least and the largest possible value of a quantity, inside which intervals are drawn."""


def arms(tables: Tables, style: Style) -> Any:
    """Every arm and seed, means with 95 % intervals, and what the paper prints; lines in Top-1 are rules without
    meaning."""
    runs, table = tables["runs"], tables["architectures"]
    shown = [q for q in QUANTITIES if runs.loc[runs["quantity"] == q, "value"].notna().any()]
    names = in_order(table["preset"])
    canvas = panels(style, [QUANTITIES[q] for q in shown], 2, 0.3 + 0.05 * len(names) * -(-len(shown) // 2),
                    shared_yaxes=True, horizontal_spacing=0.05, vertical_spacing=0.12)  # fmt: skip
    for i, quantity in enumerate(shown):
        means = table[(table["quantity"] == quantity) & table["preset"].isin(names)].rename(columns=COLUMNS)
        means = between(means.rename(columns={"preset": "label"}), LIMITS.get(quantity, (-np.inf, np.inf)))
        rows = runs.loc[runs["quantity"] == quantity, ["preset", "seed", "value"]].rename(columns={"preset": "label"})
        rows = rows.merge(means[["label", "paper"]], "left", "label")
        at: dict[str, Any] = {"row": i // 2 + 1, "col": i % 2 + 1}
        dots(canvas, style, rows.assign(text="seed " + rows["seed"].astype(str)), labels=names, means=means, **at)
        if quantity == "coreference.keys.top1":
            for rule in ("recency", "chance"):
                share = runs.loc[runs["quantity"] == f"coreference.keys.{rule}", "value"].mean()
                canvas.add_vline(x=share, line=RULE, annotation_text=rule, annotation_font_size=8, **at)
    return canvas.update_layout(margin={"l": 90})
