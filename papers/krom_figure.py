"""The picture of KROM's comparison: losses, the swap of every factor, and its way over the steps."""

from typing import Any

from papers.krom import CONTROL, Found
from papers.krom_page import ARM

COLOURS = {"fp32 adamw": "#3b6ea5", "bf16 adamw": "#c8553d", "fp32 sgd": "#6a9a4b", "bf16 sgd": "#e0a030"}


def figure(found: Found) -> Any:
    """Losses against the control, the swap of every factor by arm, and its way over the steps."""
    from plotly.subplots import make_subplots

    training = "mean swap over training (dotted: no decay)"
    titles = [f"loss − {CONTROL}, nats/token", "swap at the end, one dot per factor", training]
    canvas = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.09)
    if len(found.comparison):
        _gaps(canvas, found)
    if len(found.factors):
        _swaps(canvas, found)
        _ways(canvas, found)
    canvas.update_layout(
        template="simple_white", width=1250, height=560, margin={"l": 60, "r": 20, "t": 40, "b": 190},
        legend={"orientation": "h", "y": -0.55},
    )  # fmt: skip
    return canvas


def _gaps(canvas: Any, found: Found) -> None:
    import plotly.graph_objects as go

    by = {preset: one.set_index("seed")["loss"] for preset, one in found.losses.groupby("preset", sort=False)}
    for i, (preset, one) in enumerate((p, o) for p, o in by.items() if p != CONTROL):
        seeds = [s for s in one.index if s in by[CONTROL].index]
        gap = [one[s] - by[CONTROL][s] for s in seeds]
        dot = {"color": "#3b6ea5", "size": 9, "opacity": 0.7}
        canvas.add_trace(go.Scatter(x=[preset] * len(gap), y=gap, mode="markers", marker=dot, name="training seed",
                                    legendgroup="seed", showlegend=i == 0), row=1, col=1)  # fmt: skip
        paper = found.comparison.set_index("preset").loc[preset, "printed_difference"]
        canvas.add_trace(go.Scatter(x=[preset], y=[paper], mode="markers", name="the blog", legendgroup="blog",
                                    marker={"symbol": "diamond-open", "size": 11, "color": "#222"},
                                    showlegend=i == 0), row=1, col=1)  # fmt: skip
    canvas.add_hline(y=0, line={"color": "#999", "width": 1}, row=1, col=1)


def label(r: Any) -> str:
    """An arm in few words."""
    rate = f" {r.lr:g}" if r.optimizer == "sgd" else ""
    decay = "" if r.decay else ", no decay"
    return f"{r.preset} {r.b_res:g}, {r.storage}, {r.optimizer}{rate}{decay}, {r.steps:,} steps"


def _swaps(canvas: Any, found: Found) -> None:
    import plotly.graph_objects as go

    shown: set[str] = set()
    for key, one in found.factors.groupby([*ARM, "seed"], sort=False):
        first = one.iloc[0]
        kind, name = f"{first['storage']} {first['optimizer']}", label(first)
        acts = one[one["acts"]]
        dot = {"color": COLOURS[kind], "size": 6, "opacity": 0.6}
        canvas.add_trace(
            go.Scatter(x=[name] * len(acts), y=acts["swap"], mode="markers", name=kind, legendgroup=kind, marker=dot,
                       showlegend=kind not in shown, hovertext=acts["module"] + f", seed {key[-1]}"), row=1, col=2,
        )  # fmt: skip
        shown.add(kind)
        rest = found.mixing[(found.mixing[[*ARM, "seed"]] == list(key)).all(axis=1)]["swap_without_gradient"]
        bar = {"symbol": "line-ew-open", "size": 16, "color": "#222"}
        canvas.add_trace(
            go.Scatter(x=[name], y=rest, mode="markers", name="without gradient", legendgroup="rest", marker=bar,
                       showlegend="rest" not in shown), row=1, col=2,
        )  # fmt: skip
        shown.add("rest")
    canvas.update_yaxes(type="log", row=1, col=2, title="probability")
    canvas.update_xaxes(tickangle=40, tickfont={"size": 9}, row=1, col=2)


def _ways(canvas: Any, found: Found) -> None:
    import plotly.graph_objects as go

    from probes.mixing import log

    for run in (r for r in found.runs if "b_res" in r.config["model"]["residual"]):
        rows = log(run.folder)
        mean = rows[rows["metric"] == "swap_static"].groupby("step")["value"].mean()
        own = found.mixing[(found.mixing["preset"] == run.preset) & (found.mixing["seed"] == run.seed)]
        residual, t = run.config["model"]["residual"], run.config["training"]
        same = (own["b_res"] == residual["b_res"]) & (own["storage"] == residual["hc_dtype"])
        same &= (own["optimizer"] == t["hc_optimizer"]) & (own["lr"] == t["hc_lr"]) & (own["decay"] == t["hc_decay"])
        name = label(own[same & (own["steps"] == run.manifest["steps"])].iloc[0])
        dash = "dot" if t["hc_decay"] == 0 else "solid"
        colour = COLOURS[f"{residual['hc_dtype']} {t['hc_optimizer']}"]
        line = {"color": colour, "dash": dash}
        canvas.add_trace(
            go.Scatter(x=mean.index, y=mean, mode="lines", showlegend=False, name=f"{name}, seed {run.seed}",
                       line=line), row=1, col=3,
        )  # fmt: skip
    canvas.update_yaxes(type="log", row=1, col=3, title="probability")
    canvas.update_xaxes(title="step", row=1, col=3)
