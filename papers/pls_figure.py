"""PLS against C2 in one picture: Table 2, Figs. 3 and 4 of the paper, and its depth distribution."""

from typing import TYPE_CHECKING, Any

from papers.pls_depth import ranges
from papers.pls_printed import factor, printed
from papers.pls_runs import PRESETS, RUN
from papers.pls_seeds import is_factor

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {"pls": "#3b6ea5", "c2": "#e08a2e"}
DASHES = {"entity": "solid", "found-entity": "dash"}
TASK = "winograd"
GROUPS = ("entity", "found-entity")
TITLE = "PLS (blue) against C2 (orange), training seeds as units; diamonds and dotted lines: the paper"


def figure(tables: "dict[str, pd.DataFrame]") -> Any:
    """Six panels (plotly): matrices of both, factors, control curves, effect on every case, depth."""
    from plotly.subplots import make_subplots

    curves = tables["curves"]
    steered = str(curves["task"].iloc[0]) if len(curves) else "no task"
    titles = ["mean Δ P(answer), PLS, points", "C2", "|PLS| / |C2|, 95 % over pairs",
              f"{steered}: change of P(answer), points", f"{_spread_task(tables)}: Δ of every case, points",
              "share of tokens that settle at depth k*"]  # fmt: skip
    canvas = make_subplots(2, 3, subplot_titles=titles, horizontal_spacing=0.13, vertical_spacing=0.2)
    _matrices(canvas, tables["effects"])
    _factors(canvas, tables["comparisons"])
    if len(curves):
        _curves(canvas, curves)
    _cases(canvas, tables["cases"], _spread_task(tables))
    depth_bars(canvas, tables["depth"], 2, 3)
    canvas.update_layout(
        template="simple_white", width=1480, height=860, title=TITLE, legend={"orientation": "h", "y": -0.1},
        margin={"l": 110, "r": 20, "t": 100, "b": 60},
    )  # fmt: skip
    return canvas


def _spread_task(tables: "dict[str, pd.DataFrame]") -> str:
    """Winograd, or the last task where it is not measured."""
    tasks = list(dict.fromkeys(tables["cases"]["task"]))
    return TASK if TASK in tasks else str(tasks[-1])


def _matrices(canvas: Any, effects: "pd.DataFrame") -> None:
    """Mean Δ over seeds in percentage points, tasks × groups, one scale for both models."""
    mean = effects[effects["measure"] == "probability"].groupby(["preset", "task", "group"], sort=False)["difference"]
    grid = 100 * mean.mean().unstack("group")
    grid = grid[list(dict.fromkeys(effects["group"]))]
    limit = float(grid.abs().max().max()) or 1.0
    for column, preset in enumerate(PRESETS, 1):
        one = grid.loc[preset].loc[list(dict.fromkeys(effects["task"]))]
        canvas.add_heatmap(
            z=one.to_numpy(), x=list(one.columns), y=list(one.index), texttemplate="%{z:+.2g}", colorscale="RdBu",
            zmin=-limit, zmax=limit, showscale=False, row=1, col=column,
        )  # fmt: skip
        canvas.update_yaxes(autorange="reversed", row=1, col=column)
        canvas.update_xaxes(tickangle=30, row=1, col=column)


def _factors(canvas: Any, compared: "pd.DataFrame") -> None:
    """Factors that the paper prints, of its heads and of those found; logarithmic."""
    wanted = [is_factor(q) and factor(q) == factor(q) for q in compared["quantity"]]
    rows = compared[wanted]
    rows = rows[rows["value"].notna()]
    bars = {
        "array": (rows["ci_high"] - rows["value"]).fillna(0), "arrayminus": (rows["value"] - rows["ci_low"]).fillna(0),
        "symmetric": False, "thickness": 1.5, "width": 5,
    }  # fmt: skip
    names = rows["quantity"].str.split(".").str[:2].str.join(" ") + "<br>" + rows["quantity"].str.split(".").str[2]
    canvas.add_scatter(x=rows["value"], y=names, error_x=bars, mode="markers", showlegend=False,
                       marker={"color": COLOURS[RUN], "size": 8}, row=1, col=3)  # fmt: skip
    canvas.add_scatter(x=rows["paper"], y=names, mode="markers", name="paper", hovertext="paper",
                       marker={"color": "black", "size": 10, "symbol": "diamond-open"}, row=1, col=3)  # fmt: skip
    canvas.add_vline(1, line_dash="dot", line_color="gray", row=1, col=3)
    canvas.update_xaxes(type="log", range=[-2, 3], tickvals=[0.01, 0.1, 1, 10, 100, 1000], row=1, col=3)
    canvas.update_yaxes(tickfont={"size": 9}, autorange="reversed", row=1, col=3)


def _curves(canvas: Any, curves: "pd.DataFrame") -> None:
    """Change of P(answer) from scale 1, in percentage points: one line per run."""
    first = curves["task"].iloc[0]
    rows = curves[(curves["measure"] == "probability") & (curves["task"] == first) & curves["group"].isin(GROUPS)]
    shown = set()
    for (preset, seed, group), line in rows.groupby(["preset", "seed", "group"], sort=False):
        name = f"{preset}, {group}"
        style = {"color": COLOURS[preset], "dash": DASHES[group]}
        canvas.add_scatter(
            x=line["scale"], y=100 * line["change"], mode="lines", line=style, name=name, legendgroup=name,
            showlegend=name not in shown, hovertext=f"seed {seed}, {line['heads'].iloc[0]}", row=2, col=1,
        )  # fmt: skip
        shown.add(name)
    canvas.update_xaxes(title="scale g of the heads", row=2, col=1)


def _cases(canvas: Any, cases: "pd.DataFrame", task: str) -> None:
    """Δ of every case of the task in every run, in percentage points."""
    import numpy as np

    rows = cases[(cases["measure"] == "probability") & (cases["task"] == task)]
    groups = [g for g in GROUPS if g in set(rows["group"])] or list(dict.fromkeys(rows["group"]))[:2]
    rng = np.random.default_rng(0)
    for i, group in enumerate(groups):
        for j, preset in enumerate(PRESETS):
            one = rows[(rows["group"] == group) & (rows["preset"] == preset)]
            x = i + (j - 0.5) * 0.4 + rng.uniform(-0.14, 0.14, len(one))
            canvas.add_scatter(
                x=x, y=100 * one["delta"], mode="markers", name=preset, showlegend=False, row=2, col=2,
                marker={"color": COLOURS[preset], "size": 4, "opacity": 0.5},
                hovertext=[f"{case}, seed {seed}" for case, seed in zip(one["id"], one["seed"], strict=True)],
            )  # fmt: skip
    canvas.add_hline(0, line_dash="dash", line_width=1, row=2, col=2)
    canvas.update_xaxes(tickvals=list(range(len(groups))), ticktext=groups, row=2, col=2)


def depth_bars(canvas: Any, depth: "pd.DataFrame", row: int, col: int) -> None:
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
    canvas.update_xaxes(title="k*", row=row, col=col)
