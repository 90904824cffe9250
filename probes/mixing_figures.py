"""The blog's figures of mixing matrices (KROM), each of one or several runs. Tables as `probes.mixing` makes them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamscope.probes.mixing import short

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#1f6fb4", "#d1495b", "#3a9d5d", "#8d5fb0", "#e08e2b", "#4bb3c4", "#8a6d3b", "#777777")
FAINT = "#a9c9e6"
SHARES = ("gate_mean", "gate_low", "routing_share")


class Figures:
    """Several plotly figures on one page, with what a figure has that `write_results` needs."""

    def __init__(self, figures: Sequence[Any]) -> None:
        self.figures = list(figures)

    def to_html(self, include_plotlyjs: bool = True) -> str:
        """One HTML document; the library is in it once."""
        parts = [
            f.to_html(full_html=False, include_plotlyjs=include_plotlyjs and not i) for i, f in enumerate(self.figures)
        ]
        return f'<!doctype html><html><head><meta charset="utf-8"></head><body>{"".join(parts)}</body></html>'


def swap_bars(finals: "Mapping[str, pd.DataFrame]") -> Any:
    """A panel per run: static (faint) and best achievable swap of each module, the largest of its factors."""
    from plotly.subplots import make_subplots

    figure = make_subplots(1, len(finals), subplot_titles=list(finals), shared_yaxes=True, horizontal_spacing=0.03)
    for i, rows in enumerate(finals.values()):
        wide = _largest(rows)
        names = [short(m) for m in wide.index]
        for metric, name, colour in (("swap_static", "static", FAINT), ("swap_best", "best achievable", COLOURS[0])):
            if metric not in wide:
                continue
            figure.add_bar(
                x=names,
                y=100 * wide[metric],
                name=name,
                legendgroup=name,
                showlegend=not i,
                marker_color=colour,
                hovertemplate=f"%{{x}}: {name} %{{y:.3f}} %<extra></extra>",
                row=1,
                col=i + 1,
            )
    figure.update_yaxes(title="swap probability, % (larger factor)", rangemode="tozero", col=1)
    title = "Swap probability: the biases alone, and the most that any token could reach"
    return _laid_out(figure, title, len(finals), barmode="group")


def factor_maps(finals: "Mapping[str, pd.DataFrame]") -> Any:
    """A panel per run: static swap weight, modules by factors, on one scale."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(1, len(finals), subplot_titles=list(finals), shared_yaxes=False, horizontal_spacing=0.1)
    most = 0
    for i, rows in enumerate(finals.values()):
        grid = _of(rows, "swap_static").pivot(index="module", columns="part", values="value")
        grid = grid.reindex(dict.fromkeys(_of(rows, "swap_static")["module"]))
        most = max(most, len(grid))
        heat = go.Heatmap(
            z=grid.to_numpy(),
            x=list(grid.columns),
            y=[short(m) for m in grid.index],
            texttemplate="%{z:.4f}",
            hovertemplate="%{y}, %{x}: %{z:.5f}<extra></extra>",
            coloraxis="coloraxis",
        )
        figure.add_trace(heat, row=1, col=i + 1)
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(
        coloraxis={"colorscale": "Blues", "cmin": 0, "cmax": 0.5, "colorbar": {"title": "swap<br>weight"}}
    )
    return _laid_out(
        figure, "Swap weight of each Kronecker factor; 0 keeps, 0.5 mixes fully", len(finals), 130 + 28 * most
    )


def scatter(finals: "Mapping[str, pd.DataFrame]") -> Any:
    """α_res against the best achievable swap of each module (its larger factor); the strongest α_res are named."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, (run, rows) in enumerate(finals.items()):
        wide = _largest(rows)
        if not {"alpha_res", "swap_best"} <= set(wide):
            continue
        figure.add_scatter(
            x=wide["alpha_res"],
            y=100 * wide["swap_best"],
            mode="markers+text",
            text=[short(m) if big else "" for m, big in zip(wide.index, _extreme(wide["alpha_res"]), strict=True)],
            customdata=[short(m) for m in wide.index],
            hovertemplate="%{customdata}: α_res %{x:.3f}, best swap %{y:.3f} %<extra></extra>",
            textposition="top center",
            textfont={"size": 10},
            name=run,
            marker={"size": 9, "color": COLOURS[i % len(COLOURS)]},
        )
    figure.update_xaxes(title="α_res, logits")
    figure.update_yaxes(title="best achievable swap, %", rangemode="tozero")
    return _laid_out(figure, "How hard the dynamic term pulls, and how far a token could get", 1, 480, showlegend=True)


CURVES = (
    ("swap_static", "static swap probability"),
    ("distance_dynamic", "‖H_res − I‖_F, mean over tokens"),
    ("alpha_res", "α_res, logits"),
    ("gradient", "‖∂L/∂b_res‖, nats per token"),
    ("sigma2_dynamic", "σ_2(H_res), mean over tokens"),
    ("gate_mean", "mean gate of a head"),
    ("gate_low", "share of gates below 0.1"),
    ("routing_norm", "‖W − diag W‖_F"),
    ("routing_share", "off-diagonal share of W"),
)


def trajectories(logs: "Mapping[str, pd.DataFrame]") -> Any:
    """Over the steps of training: a line per module and part, a colour per run; None where nothing was logged.

    Gradients have a logarithmic axis.
    """
    from plotly.subplots import make_subplots

    shown = [(m, title) for m, title in CURVES if any(_of(rows, m)["step"].nunique() for rows in logs.values())]
    if not shown:
        return None
    deep = -(-len(shown) // 2)
    titles = [title for _, title in shown]
    figure = make_subplots(deep, 2, subplot_titles=titles, vertical_spacing=0.24 / deep)
    named: set[str] = set()
    for at, (metric, _) in enumerate(shown):
        where = {"row": at // 2 + 1, "col": at % 2 + 1}
        for i, (run, rows) in enumerate(logs.items()):
            for (module, part), line in _of(rows, metric).groupby(["module", "part"], sort=False):
                what = f"{short(module)} {part}".strip()
                figure.add_scatter(
                    x=line["step"],
                    y=line["value"],
                    mode="lines+markers" if len(line) < 12 else "lines",
                    line={"color": COLOURS[i % len(COLOURS)], "width": 1.2},
                    marker={"size": 4},
                    opacity=0.75,
                    name=run,
                    legendgroup=run,
                    showlegend=run not in named,
                    hovertemplate=f"{what}, step %{{x}}: %{{y:.5g}}<extra>{run}</extra>",
                    **where,
                )
                named.add(run)
        figure.update_yaxes(type="log" if metric == "gradient" else "linear", exponentformat="power", **where)
        if metric in SHARES:
            figure.update_yaxes(range=[-0.03, 1.03], **where)
        figure.update_xaxes(title="step", **where)
    title = "Over training: a line per module and factor or head"
    return _laid_out(figure, title, 2, 110 + 310 * deep, showlegend=True)


def sweep(runs: "pd.DataFrame") -> Any:
    """Runs by their initial bias: swap (static and best), ‖H_res − I‖ and validation loss, a point per run.

    `runs` has run, bias, swap_static, swap_best, distance_static, loss. None with fewer than two biases.
    """
    from plotly.subplots import make_subplots

    runs = runs[runs["bias"].notna()].sort_values("bias")
    if runs["bias"].nunique() < 2:
        return None
    titles = ("swap probability, mean of factors", "‖H_res − I‖_F, mean of modules", "validation loss, nats per token")
    figure = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.08)
    lines = (
        ("swap_static", "static", 1, 0),
        ("swap_best", "best achievable", 1, 1),
        ("distance_static", "", 2, 0),
        ("loss", "", 3, 2),
    )
    for column, name, col, colour in lines:
        figure.add_scatter(
            x=runs["bias"],
            y=runs[column],
            mode="markers+lines" if runs["bias"].is_unique else "markers",
            marker={"size": 9, "color": COLOURS[colour]},
            name=name,
            showlegend=bool(name),
            text=runs["run"],
            hovertemplate="%{text}, bias %{x}: %{y:.4f}<extra></extra>",
            row=1,
            col=col,
        )
    figure.update_xaxes(title="initial bias b_res", dtick=2)
    figure.update_yaxes(rangemode="tozero", col=1)
    figure.update_yaxes(rangemode="tozero", col=2)
    return _laid_out(figure, "Bias sweep: a point per run", 3, 430, showlegend=True)


def _of(rows: "pd.DataFrame", metric: str) -> "pd.DataFrame":
    return rows[(rows["metric"] == metric) & rows["value"].notna()]


def _extreme(alpha: "pd.Series") -> "pd.Series":
    """Whether α is among the three largest in size."""
    return alpha.abs().rank(ascending=False) <= 3


def _largest(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Modules × swap_static, swap_best, alpha_res, the largest of the parts; modules in order."""
    own = rows[rows["metric"].isin(["swap_static", "swap_best", "alpha_res"]) & rows["value"].notna()]
    order = list(dict.fromkeys(own["module"]))
    return own.pivot_table(index="module", columns="metric", values="value", aggfunc="max").reindex(order)


def _laid_out(figure: Any, title: str, columns: int, height: int = 460, **layout: Any) -> Any:
    figure.update_layout(
        title=title,
        width=max(820, 230 + 360 * columns),
        height=height,
        template="plotly_white",
        margin={"l": 80, "r": 40, "t": 90, "b": 60},
        **layout,
    )
    return figure
