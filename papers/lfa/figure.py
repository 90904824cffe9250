"""The comparison of LFA's four architectures in one picture: dots are seeds, bars intervals, diamonds the paper."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamscope.papers.lfa.runs import in_order

COLOURS = {"std-t": "#7a7a7a", "d-cas": "#3b6ea5", "lfa": "#c8553d", "cfm": "#e0a030"}
DASHES = ("solid", "dot", "dash", "dashdot")
"""Of an arm, with RoPE, with CLN, with both."""
PANELS = (
    ("loss", "validation loss, nats/token"),
    ("pds by layer", "largest PDS in each layer"),
    ("pds.over", "heads with PDS over 0.075"),
    ("coreference.keys.top1", "Top-1 over all keys, best head held out"),
    ("stability.keys.jaccard.competing", "stability over all keys, competing nouns"),
    ("suppress.top3.sps.d", "Cohen's d of SPS, top 3 suppressed"),
)
INSTEAD = ("sps", "SPS over all heads")
"""The panel where stability over all keys was not measured."""
TITLE = "LFA: training seeds (dots), means with 95 % intervals (bars), the paper's values (diamonds)"


def figure(quantities: pd.DataFrame, architectures: pd.DataFrame, mixed: Sequence[str] = ()) -> Any:
    """Six panels (plotly); a panel without numbers is empty. Rules are lines beside Top-1.

    `mixed` says in what arms differ besides their architecture; it stands under the title.
    """

    suppressed = [
        q for q in architectures["quantity"].unique() if q.startswith("suppress.top") and q.endswith(".sps.d")
    ]
    last = suppressed[-1] if suppressed else ""
    have = set(quantities["quantity"])
    fifth = PANELS[4] if PANELS[4][0] in have else INSTEAD
    panels = [*PANELS[:4], fifth, (last, f"Cohen's d of SPS, {last.split('.')[1] if last else 'heads'} suppressed")]
    canvas = make_subplots(2, 3, subplot_titles=[title for _, title in panels], vertical_spacing=0.17)
    for i, (quantity, _) in enumerate(panels):
        at = {"row": i // 3 + 1, "col": i % 3 + 1}
        if quantity == "pds by layer":
            _layers(canvas, architectures, at)
        else:
            _points(canvas, quantities, architectures, quantity, at)
    for rule, dash in (("recency", "dot"), ("chance", "dash")):
        values = quantities[quantities["quantity"] == f"coreference.keys.{rule}"]["value"]
        if len(values):
            _rule(canvas, rule, in_order(quantities["preset"]), float(values.mean()), dash)
    beside = f"<br><sup>Not of the architecture alone: {'; '.join(mixed)}</sup>" if mixed else ""
    canvas.update_layout(
        template="simple_white", width=1250, height=760, title=TITLE + beside,
        legend={"orientation": "h", "y": -0.14}, margin={"l": 60, "r": 20, "t": 90, "b": 60},
    )  # fmt: skip
    return canvas


def _rule(canvas: Any, name: str, arms: Sequence[str], share: float, dash: str) -> None:
    """A horizontal line in the panel of Top-1; a trace, so that the axis makes room for it."""

    line = {"color": "#444444", "width": 1, "dash": dash}
    canvas.add_trace(go.Scatter(x=list(arms), y=[share] * len(arms), mode="lines", line=line, name=name), row=2, col=1)


def _points(canvas: Any, quantities: pd.DataFrame, table: pd.DataFrame, quantity: str, at: dict[str, int]) -> None:
    """Seeds as dots, means with intervals, printed values as diamonds."""

    mine = table[table["quantity"] == quantity].set_index("preset")
    seeds = quantities[(quantities["quantity"] == quantity) & quantities["value"].notna()]
    for preset in in_order(mine.index):
        one, colour = mine.loc[preset], COLOURS[preset.split("+")[0]]
        values = seeds.loc[seeds["preset"] == preset, "value"]
        canvas.add_trace(
            go.Scatter(x=[preset] * len(values), y=values, mode="markers", showlegend=False,
                       marker={"color": colour, "size": 6, "opacity": 0.55}), **at,
        )  # fmt: skip
        if one["mean"] == one["mean"]:
            up, down = (one["ci_high"] - one["mean"], one["mean"] - one["ci_low"])
            ends = {"array": [up if up == up else 0.0], "arrayminus": [down if down == down else 0.0]}
            bar = {**ends, "symmetric": False, "width": 7, "thickness": 2}
            canvas.add_trace(
                go.Scatter(x=[preset], y=[one["mean"]], error_y=bar, mode="markers", showlegend=False,
                           marker={"color": colour, "size": 15, "symbol": "line-ew-open"}), **at,
            )  # fmt: skip
        if one["paper"] == one["paper"]:
            canvas.add_trace(
                go.Scatter(x=[preset], y=[one["paper"]], mode="markers", showlegend=False, name="paper",
                           hovertext=f"paper, {one['where']}",
                           marker={"color": "black", "size": 10, "symbol": "diamond-open"}), **at,
            )  # fmt: skip
    arms = in_order(mine.index)
    lines = [arm.replace("+", "<br>+") for arm in arms]
    canvas.update_xaxes(categoryorder="array", categoryarray=arms, tickvals=arms, ticktext=lines, tickangle=0, **at)


def _layers(canvas: Any, table: pd.DataFrame, at: dict[str, int]) -> None:
    """Largest PDS by layer, mean over seeds with intervals; the paper's value in the last layer where it prints one."""

    mine = table[(table["family"] == "position by layer") & table["mean"].notna()]
    for preset in in_order(mine["preset"]):
        one = mine[mine["preset"] == preset]
        layers = one["quantity"].str.rsplit(".", n=1).str[-1]
        bar = {"array": (one["ci_high"] - one["mean"]).fillna(0.0), "width": 3, "thickness": 1}
        look = {"color": COLOURS[preset.split("+")[0]], "dash": DASHES[preset.count("+") + preset.endswith("+cln")]}
        line = go.Scatter(x=layers, y=one["mean"], error_y=bar, name=preset, mode="lines+markers", line=look)
        canvas.add_trace(line, **at)
        paper = one["paper"].notna()
        canvas.add_trace(
            go.Scatter(x=layers[paper], y=one.loc[paper, "paper"], mode="markers", showlegend=False,
                       marker={"color": COLOURS[preset.split("+")[0]], "size": 10, "symbol": "diamond-open"}), **at,
        )  # fmt: skip
