"""PLS against C2 in one picture: Table 2, Figs. 3 and 4 of the paper, and its depth distribution."""

from typing import Any

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from streamscope.papers.pls.claims import printed
from streamscope.papers.pls.competence import LEAST
from streamscope.papers.pls.depth import ranges
from streamscope.papers.pls.runs import PRESETS, RUN

COLOURS = {"pls": "#3b6ea5", "c2": "#e08a2e"}
DASHES = {"entity": "solid", "found-entity": "dash"}
TASK = "winograd"
GROUPS = ("entity", "anchor", "found-entity", "found-anchor")
TITLE = "PLS (blue) against C2 (orange), dots and lines: training seeds; diamonds and dotted lines: the paper"


def figure(tables: dict[str, pd.DataFrame]) -> Any:
    """What the models can do, and of the tasks that both can do: factors, effects on every case, curves; depth."""

    able = tables["competence"].groupby("task", sort=False)["cannot"].apply(lambda why: not why.any())
    tasks = [str(task) for task in able.index[able]]
    shown = tasks[0] if tasks else "no task that both can do"
    curves = tables["curves"] if len(tables["curves"]) else None
    steered = curves is not None and str(curves["task"].iloc[0]) in tasks
    titles = ["unedited: P(answer), %", "unedited: log-odds, nats", "|PLS| / |C2|, claims that can be judged",
              f"{shown}: Δ P(answer) of every case, points", "share of tokens that settle at depth k*",
              f"{shown}: change of P(answer), points" if steered else ""]  # fmt: skip
    wide = [{}, {}, {}] if steered else [{}, {"colspan": 2}, None]
    canvas = make_subplots(2, 3, subplot_titles=titles if steered else titles[:-1], specs=[[{}, {}, {}], wide],
                           horizontal_spacing=0.11, vertical_spacing=0.2)  # fmt: skip
    _unedited(canvas, tables["baselines"])
    _factors(canvas, tables["claims"])
    if tasks:
        judged = tables["claims"].loc[tables["claims"]["p"].notna(), "quantity"]
        groups = [g for g in GROUPS if f"effect.{shown}.{g}" in set(judged)]
        _cases(canvas, tables["cases"], shown, groups)
    depth_bars(canvas, tables["depth"], 2, 2)
    if steered:
        _curves(canvas, tables["curves"])
    canvas.update_layout(
        template="simple_white", width=1480, height=860, title=TITLE, legend={"orientation": "h", "y": -0.1},
        margin={"l": 110, "r": 20, "t": 100, "b": 60},
    )  # fmt: skip
    return canvas


def _unedited(canvas: Any, baselines: pd.DataFrame) -> None:
    """P(answer) and log-odds of every run, with the limits below which no claim is judged."""
    tasks = list(dict.fromkeys(baselines["task"]))
    for column, (name, scale) in enumerate((("probability", 100), ("log_odds", 1)), 1):
        for i, preset in enumerate(PRESETS):
            one = baselines[baselines["preset"] == preset]
            canvas.add_scatter(
                x=[tasks.index(t) + (i - 0.5) * 0.25 for t in one["task"]], y=scale * one[name], mode="markers",
                name=preset, showlegend=False, marker={"color": COLOURS[preset], "size": 8, "opacity": 0.7},
                hovertext=[f"seed {s}" for s in one["seed"]], row=1, col=column,
            )  # fmt: skip
        canvas.update_xaxes(tickvals=list(range(len(tasks))), ticktext=tasks, row=1, col=column)
    canvas.add_hline(100 * LEAST, line_dash="dash", line_width=1, row=1, col=1)
    canvas.add_hline(0, line_dash="dash", line_width=1, row=1, col=2)
    canvas.update_yaxes(type="log", row=1, col=1)


def _factors(canvas: Any, claims: pd.DataFrame) -> None:
    """Factors of the claims that are judged; logarithmic."""
    rows = claims[(claims["kind"] == "factor") & claims["p"].notna()]
    if len(rows):
        bars = {
            "array": rows["ci_high"] - rows["difference"], "arrayminus": rows["difference"] - rows["ci_low"],
            "symmetric": False, "thickness": 1.5, "width": 5,
        }  # fmt: skip
        parts = rows["quantity"].str.split(".")
        names = parts.str[:2].str.join(" ") + "<br>" + parts.str[2]
        canvas.add_scatter(x=rows["difference"], y=names, error_x=bars, mode="markers", showlegend=False,
                           marker={"color": COLOURS[RUN], "size": 8}, row=1, col=3)  # fmt: skip
        canvas.add_scatter(x=rows["paper"], y=names, mode="markers", name="paper", hovertext="paper",
                           marker={"color": "black", "size": 10, "symbol": "diamond-open"}, row=1, col=3)  # fmt: skip
    canvas.add_vline(1, line_dash="dot", line_width=1, row=1, col=3)
    canvas.update_xaxes(type="log", range=[-3, 3], tickvals=[0.001, 0.01, 0.1, 1, 10, 100, 1000], row=1, col=3)
    canvas.update_yaxes(tickfont={"size": 9}, autorange="reversed", row=1, col=3)


def _curves(canvas: Any, curves: pd.DataFrame) -> None:
    """Change of P(answer) from scale 1, in percentage points: one line per run."""
    first = curves["task"].iloc[0]
    rows = curves[(curves["measure"] == "probability") & (curves["task"] == first) & curves["group"].isin(DASHES)]
    shown = set()
    for (preset, seed, group), line in rows.groupby(["preset", "seed", "group"], sort=False):
        name = f"{preset}, {group}"
        style = {"color": COLOURS[preset], "dash": DASHES[group]}
        canvas.add_scatter(
            x=line["scale"], y=100 * line["change"], mode="lines", line=style, name=name, legendgroup=name,
            showlegend=name not in shown, hovertext=f"seed {seed}, {line['heads'].iloc[0]}", row=2, col=3,
        )  # fmt: skip
        shown.add(name)
    canvas.update_xaxes(title="scale g of the heads", row=2, col=3)


def _cases(canvas: Any, cases: pd.DataFrame, task: str, groups: list[str]) -> None:
    """Δ of every case of the task in every run, in percentage points, of groups of heads."""

    rows = cases[(cases["measure"] == "probability") & (cases["task"] == task)]
    rng = np.random.default_rng(0)
    name = "unit" if "unit" in rows else "id"  # of earlier tables
    for i, group in enumerate(groups):
        for j, preset in enumerate(PRESETS):
            one = rows[(rows["group"] == group) & (rows["preset"] == preset)]
            x = i + (j - 0.5) * 0.4 + rng.uniform(-0.14, 0.14, len(one))
            canvas.add_scatter(
                x=x, y=100 * one["delta"], mode="markers", name=preset, showlegend=False, row=2, col=1,
                marker={"color": COLOURS[preset], "size": 4, "opacity": 0.5},
                hovertext=[f"{case}, seed {seed}" for case, seed in zip(one[name], one["seed"], strict=True)],
            )  # fmt: skip
    canvas.add_hline(0, line_dash="dash", line_width=1, row=2, col=1)
    canvas.update_xaxes(tickvals=list(range(len(groups))), ticktext=groups, row=2, col=1)


def depth_bars(canvas: Any, depth: pd.DataFrame, row: int, col: int) -> None:
    """Shares of tokens by k*, bars: mean over seeds; dotted: the paper's three ranges, spread evenly."""
    for preset in PRESETS:
        one = depth[depth["preset"] == preset]
        mean = one.groupby("depth")["share"].mean()
        canvas.add_bar(x=mean.index, y=mean, name=preset, marker={"color": COLOURS[preset]}, row=row, col=col)
        for name, layers in ranges(int(depth["depth"].max())).items():
            paper = printed(preset, f"depth.{name}")
            assert paper is not None
            y = [paper.value / len(layers) for _ in layers]
            style = {"color": COLOURS[preset], "dash": "dot"}
            canvas.add_scatter(
                x=list(layers), y=y, mode="lines", showlegend=False, line=style, row=row, col=col,
                hovertext="paper, its range spread evenly",
            )  # fmt: skip
    canvas.update_xaxes(title="k*", dtick=1, row=row, col=col)
