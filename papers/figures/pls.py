"""The figures of PLS."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamscope.cli.errors import InputError
from streamscope.instruments.figures.drawing import PALETTE
from streamscope.papers.comparison.printed import numbers, printed
from streamscope.papers.figures.style import RULE, Style, dots, heat_maps, note, panels, single, whiskers
from streamscope.papers.pls.competence import LEAST
from streamscope.papers.pls.verdicts import FACTORS

NAMES = {"pls": "PLS", "c2": "C2"}
GROUPS = ("entity", "anchor", "semantic")
Tables = Mapping[str, pd.DataFrame]


def raw_clusters(tables: Tables, style: Style) -> Any:
    """Fig. 1: agreement of clusters of features with those of raw activations, and of shuffled labels."""
    table = tables["agreement"]
    rows = table[(table["measure"] == "ARI") & (table["tokens"] != "in clusters of both")]
    canvas, mean = single(style, 0.7), rows.groupby(["method", "preset"], sort=False)[["value", "control"]].mean()
    x = [[method for method, _ in mean.index], [NAMES[preset] for _, preset in mean.index]]
    canvas.add_bar(x=x, y=mean["value"], name="features and raw", marker={"color": style.fill(0)})
    canvas.add_bar(x=x, y=mean["control"], name="shuffled labels", marker={"color": style.fill(1)})
    presets = tables["presets"]
    paper = presets[presets["quantity"].str.endswith(".ari") & presets["paper"].notna()]
    canvas.add_scatter(
        x=[[q.split(".")[0] for q in paper["quantity"]], [NAMES[p] for p in paper["preset"]]], y=paper["paper"],
        name="paper", **style.points(2, paper=True, on_bar=True, size=8),
    )  # fmt: skip
    canvas.update_yaxes(title="adjusted Rand index")
    return canvas


RANGES = {"early": (0, 1), "middle": (2, 4), "late": (5, 6)}
"""Ranges of k* of Table 1, which prints the shares of Fig. 2."""


def depth(tables: Tables, style: Style) -> Any:
    """Fig. 2: shares of tokens by k*, mean over seeds, the range over seeds as bars; below by the ranges of Table 1."""
    table = tables["depth"]
    canvas = panels(
        style, ["PLS", "C2", "", ""], 2, 0.85, shared_yaxes=True, horizontal_spacing=0.06, vertical_spacing=0.14
    )
    for i, preset in enumerate(("pls", "c2")):
        one = table[table["preset"] == preset]
        by_range = pd.concat(
            one[one["depth"].between(*ends)].groupby("seed")["share"].sum().rename(name).to_frame()
            for name, ends in RANGES.items()
        )
        for row, values in ((1, one.pivot_table(index="seed", columns="depth", values="share")),
                            (2, by_range.groupby("seed").first()[[*RANGES]])):  # fmt: skip
            mean = values.mean()
            bars = whiskers(mean, values.min(), values.max())
            x = [f"{low}–{high}" for low, high in RANGES.values()] if row == 2 else mean.index
            canvas.add_bar(x=x, y=mean, error_y=bars, showlegend=False, marker={"color": style.fill(i)},
                           row=row, col=i + 1)  # fmt: skip
        canvas.add_scatter(x=[f"{low}–{high}" for low, high in RANGES.values()], name="paper", showlegend=i == 0,
                           y=[printed(f"pls-t1-{name}-{preset}") / 100 for name in RANGES],
                           row=2, col=i + 1, **style.points(6, paper=True, on_bar=True, size=8))  # fmt: skip
    canvas.update_xaxes(dtick=1, row=1).update_xaxes(title="k*", type="category", row=2)
    canvas.update_yaxes(title="share of tokens", col=1)
    return canvas


def floor(tables: Tables) -> str:
    """Which of the tasks the unedited models cannot do, of the table `competence`."""
    rows = tables["competence"]
    tasks = list(dict.fromkeys(rows.loc[rows["cannot"] != "", "task"]))
    return f"at chance or below 1 % unedited: {', '.join(tasks)}" if tasks else ""


def steering(tables: Tables, style: Style) -> Any:
    """Fig. 3: P(answer) of capitalization by the scale of the entity heads, a line per seed; what is printed is that
    the range of PLS is four times that of C2."""
    table = tables["curves"]
    rows = table[
        (table["measure"] == "probability") & (table["task"] == "capitalization") & (table["group"] == "entity")
    ]
    level = "level" if "level" in rows else "mean"  # what the shipped tables, which are older, call it
    canvas = single(style, 0.75)
    for i, preset in enumerate(("pls", "c2")):
        for k, (_, one) in enumerate(rows[rows["preset"] == preset].groupby("seed")):
            canvas.add_scatter(x=one["scale"], y=100 * one[level], name=NAMES[preset], legendgroup=preset,
                               showlegend=k == 0, **style.line(i))  # fmt: skip
    note(canvas, floor(tables))
    canvas.update_xaxes(title="scale of the heads").update_yaxes(title="P(answer), %", rangemode="tozero")
    return canvas


TABLE2 = {
    ("capitalization", "entity"): "capitalization",
    ("gender", "anchor"): "gender",
    ("winograd", "entity"): "winograd",
}
TASKS = ("capitalization", "gender", "winograd")


def modularity(tables: Tables, style: Style) -> Any:
    """Fig. 4: (a) mean effect of removing a group on a task, % of P(answer), over seeds, and what Table 2 prints;
    (b) the effects of the entity heads on the single cases of Winograd, all seeds, with σ (mean over
    seeds) and, in brackets, what is printed."""
    table, cases = tables["effects"], tables["cases"]
    rows = table[(table["measure"] == "probability") & table["group"].isin(GROUPS)]
    effect = "delta" if "delta" in rows else "difference"  # what the shipped tables, which are older, call it
    single_cases = cases[
        (cases["task"] == "winograd") & (cases["group"] == "entity") & (cases["measure"] == "probability")
    ]
    sd = 100 * single_cases.groupby(["preset", "seed"])["delta"].std().groupby("preset").mean()
    titles = [f"σ {sd[preset]:.2f} % ({printed(f'pls-f4b-spread-{preset}'):g} %)" for preset in ("pls", "c2")]
    canvas = panels(style, ["PLS", "C2", *titles], 2, 1.05, vertical_spacing=0.2, horizontal_spacing=0.1)
    wide = 1.05 * 100 * float(single_cases["delta"].abs().max())
    grids, texts = [], []
    for col, preset in enumerate(("pls", "c2"), 1):
        one = rows[rows["preset"] == preset]
        mean = 100 * one.pivot_table(index="task", columns="group", values=effect).reindex([*TASKS])[[*GROUPS]]
        text = mean.map("{:+.2f}".format)
        for (task, group), name in TABLE2.items():
            text.loc[task, group] += f"<br>({printed(f'pls-t2-{name}-{preset}'):+g})"
        grids.append(mean)
        texts.append(text.to_numpy())
        values = 100 * single_cases.loc[single_cases["preset"] == preset, "delta"]
        bins = {"start": -wide, "end": wide, "size": wide / 20}
        canvas.add_trace(go.Histogram(x=values, xbins=bins, showlegend=False, marker={"color": style.fill(col - 1)}),
                         row=2, col=col)  # fmt: skip
    note(canvas, f"{floor(tables)}<br>in brackets: the paper")
    bar = {"len": 0.45, "y": 0.8, "title": "%"}
    heat_maps(canvas, grids, 2, bar, texts, colorscale=style.signed, cmid=0)
    canvas.update_layout(margin={"t": 46})
    canvas.update_xaxes(tickangle=30, tickfont={"size": 7}, row=1)
    canvas.update_yaxes(autorange="reversed", row=1).update_yaxes(showticklabels=False, row=1, col=2)
    canvas.update_yaxes(type="log", dtick=1, matches="y3", row=2).update_yaxes(matches=None, row=2, col=1)
    canvas.update_xaxes(title="effect, %", range=[-wide, wide], row=2)
    canvas.update_yaxes(title="cases", row=2, col=1)
    return canvas


def islands(tables: Tables, style: Style) -> Any:
    """Fig. 5: tokens on the UMAP of their features, those of one cluster in one colour (which others have too), the
    ones in none light grey."""
    table, canvas = placed(tables), single(style, 1.05)
    clustered = table[table["cluster"] >= 0]
    none = table[table["cluster"] < 0]
    canvas.add_scatter(x=none["x"], y=none["y"], name="in no cluster", mode="markers",
                       marker={"size": 2, "color": "#dddddd"})  # fmt: skip
    for i, (_, one) in enumerate(clustered.groupby(clustered["cluster"] % len(PALETTE))):
        canvas.add_scatter(x=one["x"], y=one["y"], mode="markers", showlegend=False,
                           marker={"size": 2, "color": style.colour(i)})  # fmt: skip
    share, many = len(clustered) / len(table), clustered["cluster"].nunique()
    note(canvas, f"{len(table):,} tokens, {100 * share:.0f} % of them in {many} clusters<br>"
                 f"(printed: 50,453, {printed('pls-c5-coverage'):g} % in {printed('pls-c5-clusters'):g})")  # fmt: skip
    return flat(canvas)


def strata(tables: Tables, style: Style) -> Any:
    """Fig. 6: the same map, tokens by k*, the layer from which on the model predicts what it ends with."""
    table, canvas = placed(tables), single(style, 1.05)
    layers = int(table["k_star"].max())
    bar = {"title": "k*", "thickness": 8, "tickvals": [*range(layers + 1)]}
    marker = {"size": 2, "color": table["k_star"], "colorscale": "Greys" if style.grey else "Viridis_r",
              "colorbar": bar, "cmin": 0, "cmax": layers}  # fmt: skip
    canvas.add_scatter(x=table["x"], y=table["y"], mode="markers", marker=marker, showlegend=False)
    note(canvas, "features are 0 but at layer k*, so any map of them has such strata")
    return flat(canvas)


def placed(tables: Tables) -> pd.DataFrame:
    """The tokens that have a place. Raises `InputError` for a table without: clustered by --no-umap, or too few."""
    table = tables["modes-labels"]
    if not {"x", "y"} <= set(table) or not (found := table[table["x"].notna()]).size:
        raise InputError("these tokens have no place on a map: python -m features.cluster without --no-umap gives one")
    return found


def flat(canvas: Any) -> Any:
    """Without axes: distances on a UMAP mean nothing far apart, and its directions nothing at all."""
    canvas.update_layout(margin={"l": 8, "r": 8}, legend={"itemsizing": "constant"})
    return canvas.update_xaxes(visible=False).update_yaxes(visible=False)


def predicted(tables: Tables, style: Style) -> Any:
    """§5.4, of which the paper has no figure: how much of the size of a head's effect on a token's loss the features of
    the token tell, on documents that were not seen; lines: what position, loss and confidence tell without features."""
    canvas = panels(style, [*NAMES.values()], 1, 1.05, shared_xaxes=True, vertical_spacing=0.1)
    for row, preset in enumerate(NAMES, 1):
        table = tables[f"predicted-{preset}"]
        one = table[(table["of"] == "absolute") & (table["measure"] == "delta_loss")]
        bars = whiskers(one["r2"], one["r2_low"], one["r2_high"]) | {"width": 0}
        at = {"x": one["edit"], "row": row, "col": 1, "showlegend": row == 1}
        canvas.add_scatter(y=one["r2"], error_y=bars, name="features, 95 % over documents", **at, **style.points(0))
        line = {"color": style.colour(1), "width": 1.2}
        canvas.add_scatter(y=one["baselines"], name="position, loss, confidence", mode="lines", line=line, **at)
        canvas.add_scatter(y=one["shuffled"], name="shuffled effects", mode="lines", line=RULE, **at)
    firsts = one["edit"].groupby(one["edit"].str.extract(r"^(L\d+)")[0]).first()
    canvas.update_xaxes(tickvals=firsts, ticktext=firsts.index, showgrid=True)
    canvas.update_xaxes(title="ablated head, by layer", row=2)
    canvas.update_yaxes(title="R² of |Δ loss|", rangemode="tozero")
    return canvas


def runs(tables: Tables, style: Style) -> Any:
    """Every run: what the unedited models can do, with the least that a claim needs; of the first task that
    both can do the factors, the effects on every case and the curves."""
    able = tables["competence"].groupby("task", sort=False)["cannot"].apply(lambda why: not why.any())
    tasks = [str(task) for task in able.index[able]]
    task, curves = tasks[0] if tasks else "no task that both can do", tables["curves"]
    steered = len(curves) and str(curves["task"].iloc[0]) in tasks
    titles = ["unedited: P(answer), %", "unedited: log-odds, nats", f"{task}: |PLS| / |C2|",
              f"{task}: Δ P(answer), every case, %", f"{task}: change of P(answer), %"]  # fmt: skip
    titles = titles if steered else titles[:4]
    height, between = (1.25, 0.1) if steered else (0.9, 0.16)
    canvas = panels(style, titles, 2, height, vertical_spacing=between, horizontal_spacing=0.2)
    table = tables["baselines"].rename(columns={"task": "label", "preset": "group"})
    dots(canvas, style, table.assign(value=100 * table["probability"], group=table["group"].map(NAMES)))
    dots(canvas, style, table.assign(value=table["log_odds"], group=table["group"].map(NAMES)), col=2)
    canvas.add_vline(x=100 * LEAST, line=RULE, row=1, col=1).add_vline(x=0, line=RULE, row=1, col=2)
    groups = [place + group for place in ("", "found-") for of, group in TABLE2 if of == task]
    words = tables["comparisons"]["quantity"].str.split(".")
    own = words.str[0].isin(FACTORS) & (words.str[1] == task) & words.str[2].isin(groups)
    factors = tables["comparisons"][own].rename(columns={"ci_low": "low", "ci_high": "high"})
    if len(factors):
        dots(canvas, style, factors.assign(label=words[own].str[0] + ", " + words[own].str[2]), row=2)
        canvas.add_vline(x=1, line=RULE, row=2, col=1)
    ticks = [0.001, 0.01, 0.1, 1, 10, 100, 1000]
    canvas.update_xaxes(type="log", range=[-3, 3], tickvals=ticks, ticktext=[f"{x:g}" for x in ticks], row=2, col=1)
    canvas.update_xaxes(type="log", tickvals=[0.1, 0.3, 1, 3, 10, 30, 100], row=1, col=1)
    if len(cases := cases_of(tables["cases"], task, groups)):
        dots(canvas, style, cases, row=2, col=2)
    for col, rows in ((1, factors), (2, cases)):
        if not len(rows):
            canvas.add_annotation(text="none", showarrow=False, x=0, y=0, row=2, col=col)
            canvas.update_xaxes(visible=False, row=2, col=col).update_yaxes(visible=False, row=2, col=col)
    if steered:
        own = curves[(curves["measure"] == "probability") & (curves["task"] == curves["task"].iloc[0])]
        own = own[own["group"].isin(["entity", "found-entity"])]
        for (preset, group, seed), one in own.groupby(["preset", "group", "seed"], sort=False):
            dash, name = "solid" if group == "entity" else "dash", f"{NAMES[preset]}, {group}"
            line = {"width": 1.2, "color": style.colour([*NAMES].index(preset)), "dash": dash}
            canvas.add_scatter(x=one["scale"], y=100 * one["change"], mode="lines", line=line, name=name, row=3, col=1,
                               legendgroup=name, showlegend=bool(seed == own["seed"].min()),
                               hovertext=f"seed {seed}, {one['heads'].iloc[0]}")  # fmt: skip
        canvas.update_xaxes(title="scale of the heads", row=3, col=1)
    return canvas.update_layout(margin={"l": 100})


def cases_of(cases: pd.DataFrame, task: str, groups: Sequence[str]) -> pd.DataFrame:
    """Δ P(answer) in % of every case of a task in every run, of groups of heads, as rows of `dots`."""
    rows = cases[(cases["measure"] == "probability") & (cases["task"] == task) & cases["group"].isin(groups)]
    name = "unit" if "unit" in rows else "id"  # of earlier tables
    text = rows[name].astype(str) + ", seed " + rows["seed"].astype(str)
    return pd.DataFrame(
        {"label": rows["group"], "group": rows["preset"].map(NAMES), "value": 100 * rows["delta"], "text": text}
    )


AGREEMENT = {
    "hdbscan.ari": "ARI, all tokens", "hdbscan.ari_clustered": "ARI, in clusters of both", "kmeans.ari": "ARI, k-means",
    "hdbscan.identity": "AMI, features with token ids", "hdbscan.identity_raw": "AMI, raw with token ids",
    "kmeans.identity": "AMI, features with ids, k-means", "kmeans.identity_raw": "AMI, raw with ids, k-means",
}  # fmt: skip


def modes(tables: Tables, style: Style) -> Any:
    """Computational modes of every run: depth, the share of tokens in the largest clusters, and agreement (ARI with
    clusters of raw activations, AMI with token ids)."""
    titles = ["share of tokens by depth k*", "share of tokens in the m largest clusters", "agreement of clusters", ""]
    specs = [[{}, {}], [{"colspan": 2}, None]]
    canvas = panels(style, titles, 2, 0.95, specs=specs, vertical_spacing=0.16, horizontal_spacing=0.1)
    for i, preset in enumerate(NAMES):
        mean = tables["depth"][tables["depth"]["preset"] == preset].groupby("depth")["share"].mean()
        canvas.add_bar(x=mean.index, y=mean, showlegend=False, marker={"color": style.fill(i)}, row=1, col=1)
        for seed, one in tables["clusters"][tables["clusters"]["preset"] == preset].groupby("seed"):
            canvas.add_scatter(x=[*range(1, len(one) + 1)], y=one["share"].cumsum(), mode="lines", showlegend=False,
                               line={"color": style.colour(i), "width": 1}, hovertext=f"seed {seed}", row=1,
                               col=2)  # fmt: skip
    own = numbers("pls")
    canvas.add_scatter(x=[own["pls", "hdbscan.clusters"].value], y=[own["pls", "hdbscan.coverage"].value], row=1, col=2,
                       showlegend=False, mode="markers",
                       marker={"symbol": "diamond-open", "size": 8, "color": "#000000"})  # fmt: skip
    paper = {one: own["pls", one].value for one in AGREEMENT if ("pls", one) in own}
    rows = tables["runs"][tables["runs"]["quantity"].isin(AGREEMENT)]
    rows = rows.assign(label=rows["quantity"].map(AGREEMENT), group=rows["preset"].map(NAMES),
                       paper=rows["quantity"].map(paper).where(rows["preset"] == "pls"))  # fmt: skip
    order = [*AGREEMENT]
    dots(canvas, style, rows.sort_values("quantity", key=lambda own: own.map(order.index), kind="stable")
         .drop(columns=["ci_low", "ci_high"]), row=2)  # fmt: skip
    canvas.update_xaxes(title="k*", dtick=1, row=1, col=1).update_xaxes(title="m", type="log", dtick=1, row=1, col=2)
    canvas.update_yaxes(range=[0, 1], row=1, col=2).add_vline(x=0, line=RULE, row=2, col=1)
    return canvas
