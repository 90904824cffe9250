"""The figures of KROM, whose post does not number them: named by what they show."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.papers.comparison.printed import printed
from streamscope.papers.figures.hdpl import losses
from streamscope.papers.figures.style import DASHES, MARKERS, Style, dots, heat_maps, note, panels, single, whiskers
from streamscope.papers.krom.claims import BIASES, CONTROL
from streamscope.papers.krom.mixing import ARM, label

Tables = Mapping[str, pd.DataFrame]
DRAWN = (-8.0, -2.0)
"""The initial biases whose factors the post draws."""


def bars(tables: Tables, style: Style) -> Any:
    """Final losses of the four architectures, means and 95 % intervals over seeds, and what the post prints, of another
    text and on an axis of its own."""
    table = plain(tables["comparison"])
    printed = table[table["printed"].notna()]
    canvas = panels(style, ["here", "as printed"], 2, 0.6, horizontal_spacing=0.16)
    interval = whiskers(table["loss"], table["loss_low"], table["loss_high"])
    canvas.add_scatter(
        x=table["preset"], y=table["loss"], error_y=interval, name="here", row=1, col=1, **style.points(0)
    )
    canvas.add_scatter(
        x=printed["preset"], y=printed["printed"], name="the post", row=1, col=2, **style.points(1, paper=True, size=8)
    )
    note(canvas, "here: means and 95 % intervals over seeds")
    return canvas.update_yaxes(title="validation loss, nats", col=1).update_layout(showlegend=False, margin={"t": 40})


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of four streams that mix by Kronecker factors."""
    return table[~table["preset"].str.contains("+", regex=False)]


def recipe(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the arms that differ in the initial bias and in storage alone: AdamW with decay.

    Of KromCanon, which the post sweeps, and of KromHC where it has the one bias alone. The post stores everything in
    bf16, in which nothing moves from −8; stored in fp32 it does.
    """
    same = table[(table["optimizer"] == "adamw") & (table["decay"] > 0)]
    swept = [name for name in ("kromcanon", "kromhc") if same.loc[same["preset"] == name, "b_res"].nunique() > 1]
    return same[same["preset"].isin(swept[:1])].sort_values(["b_res", "storage"], kind="stable")


def by_arm(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each arm of `recipe`, by its bias and storage: "bias −8, bf16"."""
    arms = table.groupby(["b_res", "storage"], sort=False)
    return {f"bias {bias:g}, {storage}".replace("-", "−"): rows for (bias, storage), rows in arms}


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of every factor that can act, by arm, module and factor, of the two biases that the post
    draws."""
    table = recipe(table)
    table = table[table["acts"] & table["b_res"].isin(DRAWN)]
    each = ["b_res", "storage", "module", "factor"]
    return table.groupby(each, sort=False)[["swap", "swap_best"]].mean().reset_index()


def swap(tables: Tables, style: Style) -> Any:
    """Swap probability of every factor that can act: of the static bias alone, and the largest that a token could get
    with the dynamic part; mean over seeds, a panel per initial bias and storage, all on one scale."""
    arms = by_arm(cells(tables["factors"]))
    canvas = panels(style, list(arms), 1, 1.4, vertical_spacing=0.1, shared_xaxes=True)
    colours = (style.fill(1), style.fill(0)) if style.grey else (style.colour(5), style.colour(0))
    for row, one in enumerate(arms.values(), 1):
        x = [f"{name.removeprefix('blocks.').removesuffix('_hc')} {factor}"
             for name, factor in zip(one["module"], one["factor"], strict=True)]  # fmt: skip
        for i, (column, name) in enumerate((("swap", "static bias alone"), ("swap_best", "largest, with dynamics"))):
            canvas.add_bar(x=x, y=one[column], name=name, showlegend=row == 1, row=row, col=1,
                           marker={"color": colours[i]})  # fmt: skip
    canvas.update_yaxes(title="p(swap)", rangemode="tozero", matches="y").update_yaxes(matches=None, row=1)
    canvas.update_xaxes(tickangle=90, tickfont={"size": 7}, dtick=1)
    return canvas


def heat(tables: Tables, style: Style) -> Any:
    """Swap probability of the static bias, module by factor, mean over seeds, one scale for every initial bias and
    storage.

    Factors that cannot act are left blank: all streams are the same before the first write.
    """
    arms = by_arm(cells(tables["factors"]))
    modules = list(dict.fromkeys(tables["factors"]["module"]))
    canvas = panels(style, list(arms), len(arms), 0.95, horizontal_spacing=0.06)
    grids = [one.pivot_table(index="module", columns="factor", values="swap").reindex(modules) for one in arms.values()]
    texts = [grid.map(lambda x: f"{x:.3f}" if x == x else "").to_numpy() for grid in grids]
    named = (grid.rename(lambda name: name.removeprefix("blocks.")) for grid in grids)
    heat_maps(canvas, named, len(arms), {"title": "p(swap)"}, texts, colorscale=style.scale, cmin=0)
    canvas.update_layout(margin={"l": 56})
    canvas.update_yaxes(autorange="reversed", showticklabels=False).update_yaxes(showticklabels=True, col=1)
    canvas.update_xaxes(title="factor", dtick=1)
    return canvas


def effort(tables: Tables, style: Style) -> Any:
    """Learned α of the dynamic part against the largest swap probability of the factor; those that can act, a marker
    per factor and seed."""
    table, canvas = recipe(tables["factors"]), single(style, 0.8)
    for i, (name, one) in enumerate(by_arm(table[table["acts"]]).items()):
        canvas.add_scatter(x=one["alpha_res"], y=one["swap_best"], name=name, **style.points(i, size=5))
    canvas.update_xaxes(title="α of the dynamic part").update_yaxes(title="p(swap), largest", rangemode="tozero")
    return canvas


def by_bias(canvas: Any, style: Style, quantity: str, name: str = "the post", unit: float = 1.0) -> None:
    """What the post prints of a quantity at each initial bias, which lie across."""
    values = [unit * printed(f"krom-sweep-{quantity}-b{abs(bias):g}") for bias in BIASES]
    canvas.add_scatter(x=BIASES, y=values, name=name, **style.points(6, paper=True, size=8))
    canvas.update_xaxes(title="initial bias of the mixing logits", tickvals=BIASES)


def cosines(tables: Tables, style: Style) -> Any:
    """Cosine of a contrast's directions between streams by initial bias, a marker per run; the same of shuffled
    labels, which hold no contrast; the post's own in open markers."""
    table, canvas = plain(tables["mixing"]), single(style, 0.95)
    canon, bf16 = table["preset"] == "kromcanon", table["storage"] == "bf16"
    arms = {"KromHC": table[~canon], "KromCanon": table[canon & ~bf16], "KromCanon in bf16": table[canon & bf16]}
    names = (("stream_cosine", "contrast"), ("shuffled_cosine", "shuffled labels"))
    for i, (column, name) in enumerate(names):
        for j, (preset, rows) in enumerate(arms.items()):
            if rows.empty:
                continue
            marker = {"color": style.colour(i), "symbol": MARKERS[j], "size": 6}
            canvas.add_scatter(x=rows["b_res"] + 0.5 * i - 0.25, y=rows[column], name=f"{preset}, {name}",
                               mode="markers", marker=marker)  # fmt: skip
    by_bias(canvas, style, "cosine")
    canvas.update_yaxes(title="cosine between streams")
    return canvas


OF_POST = {"kromcanon -8, bf16": "krom-sweep-cosine-b8", "kromcanon -2, fp32": "krom-sweep-cosine-b2"}
"""Arms that mix as the post's of one bias do: stored in bf16 as there, or with a bias that is not rounded away."""


def finetuned(tables: Tables, style: Style) -> Any:
    """Cosine of the safety direction between streams, of every run before and after fine-tuning, a panel per arm; the
    same of shuffled labels, and of fine-tuning on exchanged responses; the post's own, after, in open markers."""
    rows = tables["runs"][tables["runs"]["unit"] == "cosine"]
    wide = rows.pivot(index=["preset", "seed"], columns="quantity", values="value").dropna()
    arms = {", ".join(name.split(", ")[:2]): one for name, one in wide.groupby(level=0)}
    titles = [name.replace("-", "−") for name in arms]
    canvas = panels(style, titles, len(arms), 0.75, horizontal_spacing=0.12, shared_yaxes=True)
    when = {".before": "before", "": "after", ".control": "control"}
    for column, (name, one) in enumerate(arms.items(), 1):
        for i, (quantity, words) in enumerate((("cosine", "contrast"), ("shuffled", "shuffled labels"))):
            for seed, y in enumerate(one[[f"{quantity}{end}" for end in when]].to_numpy()):
                canvas.add_scatter(
                    x=list(when.values()), y=y, name=words, legendgroup=words, showlegend=column == 1 and not seed,
                    mode="lines+markers", line={"color": style.colour(i), "width": 1, "dash": DASHES[i]},
                    marker={"size": 4, "symbol": MARKERS[i]}, row=1, col=column,
                )  # fmt: skip
        if name in OF_POST:
            canvas.add_scatter(
                x=["after"], y=[printed(OF_POST[name])], name="the post", legendgroup="the post",
                showlegend=column == 1, **style.points(6, paper=True, size=8), row=1, col=column,
            )  # fmt: skip
    canvas.update_yaxes(title="cosine between streams", col=1)
    return canvas


def sweep(tables: Tables, style: Style) -> Any:
    """Swap probability by the initial bias, stored in fp32: at the start, where decay alone would take it, and trained;
    trained in bf16 as well, where that was done. The post prints that of the start."""
    canvas, every = single(style, 0.75), recipe(tables["arms"])
    table, bf16 = (every[every["storage"] == storage] for storage in ("fp32", "bf16"))
    shown = (("start", "at the start"), ("swap_without_gradient", "by decay alone"), ("swap", "trained"))
    for i, (column, name) in enumerate(shown):
        canvas.add_scatter(x=table["b_res"] + 0.3 * (i - 1), y=table[column], name=name, **style.points(i, size=6))
    if len(bf16):
        canvas.add_scatter(x=bf16["b_res"] + 0.6, y=bf16["swap"], name="trained, bf16", **style.points(3, size=6))
    by_bias(canvas, style, "swap", "at the start, the post", 0.01)
    canvas.update_yaxes(title="p(swap)", type="log", exponentformat="power", dtick=1)
    return canvas


def gradient(tables: Tables, style: Style) -> Any:
    """p(1−p), how much a swap moves with its logit, by the initial bias: of the softmax in use, and as printed."""
    canvas, table = single(style, 0.75), tables["arithmetic"].drop_duplicates("bias")
    canvas.add_scatter(x=table["bias"], y=table["p(1-p)"], name="here", **style.points(0, size=6))
    by_bias(canvas, style, "gradient")
    canvas.update_yaxes(title="p(1 − p)", type="log", exponentformat="power", dtick=1)
    return canvas


def runs(tables: Tables, style: Style) -> Any:
    """Every run: its loss less the control's of its seed, the swap of every factor that can act, with that of decay
    alone, and, where it was kept, the mean swap over the steps (dashed: no decay)."""
    titles = {"comparison": f"loss − {CONTROL}, nats/token", "factors": "p(swap) at the end, every factor that can act",
              "ways": "mean p(swap) over training"}  # fmt: skip
    have = [name for name in titles if len(tables.get(name, ()))]
    if not have:
        raise InputError(f"no run mixes streams, and {CONTROL} is compared with nothing")
    factors, mixing = (tables.get(name, pd.DataFrame()) for name in ("factors", "mixing"))
    arms = mixing.drop_duplicates(ARM) if "factors" in have else mixing
    heights = [{"comparison": len(tables.get("comparison", ())), "factors": len(arms), "ways": 8}[one] for one in have]
    canvas = panels(style, [titles[name] for name in have], 1, 0.45 + 0.045 * sum(heights), row_heights=heights,
                    vertical_spacing=3 / (10 + sum(heights)))  # fmt: skip
    for row, name in enumerate(have, 1):
        if name == "comparison":
            losses = tables["losses"].merge(tables["comparison"][["preset", "printed_difference"]], "left", "preset")
            own = losses[losses["preset"] == CONTROL].set_index("seed")["loss"]
            losses = losses.assign(value=losses["loss"] - losses["seed"].map(own))[losses["preset"] != CONTROL]
            names = {"preset": "label", "printed_difference": "paper"}
            dots(canvas, style, losses.rename(columns=names), row=row)
            canvas.add_vline(x=0, line={"color": "#999999", "width": 1}, row=row, col=1)
        elif name == "factors":
            labels = [label(one) for one in factors.itertuples()]
            rows = factors.assign(label=labels, value=factors["swap"], text=factors["module"])[factors["acts"]]
            dots(canvas, style, rows, row=row, averaged=False)
            places = {name: i for i, name in enumerate(dict.fromkeys(rows["label"]))}
            decay = mixing.assign(label=[label(one) for one in mixing.itertuples()]).drop_duplicates("label")
            canvas.add_scatter(x=decay["swap_without_gradient"], y=decay["label"].map(places), name="by decay alone",
                               mode="markers", row=row, col=1,
                               marker={"symbol": "x-thin-open", "size": 7, "color": "#000000"})  # fmt: skip
            canvas.update_xaxes(type="log", dtick=1, exponentformat="power", row=row)
        else:
            kinds = list(dict.fromkeys(label(one) for one in tables["ways"].itertuples()))
            for key, one in tables["ways"].groupby([*ARM, "seed"], sort=False):
                arm = label(next(one.itertuples()))
                line = {
                    "width": 1.2,
                    "color": style.colour(kinds.index(arm)),
                    "dash": "solid" if one["decay"].iloc[0] else DASHES[1],
                }
                canvas.add_scatter(x=one["step"], y=one["swap"], mode="lines", line=line, name=arm, legendgroup=arm,
                                   showlegend=bool(key[-1] == min(tables["ways"]["seed"])), row=row, col=1)  # fmt: skip
            canvas.update_yaxes(type="log", dtick=1, exponentformat="power", row=row)
            canvas.update_xaxes(title="step", row=row)
    return canvas.update_layout(margin={"l": 210})


CAPTION = {
    "gpt2": {2000: "krom-caption-loss-gpt2"}, "canon": {2000: "krom-caption-loss-canon"},
    "kromhc": {2000: "krom-loss-kromhc"}, "kromcanon": {2000: "krom-caption-loss-kromcanon"},
}  # fmt: skip
"""What the caption of the curves prints, after its 2,000 steps."""
curves = losses(CAPTION, others=False)
