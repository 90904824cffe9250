"""The figures of `python -m interventions.ablate`: single heads, sets against the sum of their parts, pairs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def draw(figures: dict[str, Any], table: "pd.DataFrame", effect: str, unit: str, title: str, name: str = "") -> None:
    """Put the figures of a table of ablations among `figures`, at its smallest scale, where it has values."""
    one = table[table["scale"] == table["scale"].min()]
    title += f", g = {one['scale'].iloc[0]:g}"
    if "interaction" in one and one["interaction"].notna().any():
        figures[name] = plot_sets(one, unit, effect, f"{title}: sets against the sum of their heads")
        if (one["head"].str.count(r"\+") == 1).all() and len(one) > 1:
            pairs = plot_pairs(one, unit, f"{title}: interactions of pairs")
            figures["-".join(filter(None, (name, "pairs")))] = pairs
    elif ((one["layer"] >= 0) & one[effect].notna()).any():
        figures[name] = plot(one, title, effect, unit)


def plot(table: "pd.DataFrame", title: str = "", effect: str = "delta", unit: str = "nats/token") -> Any:
    """Heat map layer × head of the column `effect` at the smallest scale (plotly figure)."""
    import plotly.graph_objects as go

    one = table[(table["layer"] >= 0) & (table["scale"] == table["scale"].min())]
    grid = one.pivot(index="layer", columns="index", values=effect)
    low, high = (one.pivot(index="layer", columns="index", values=c).to_numpy() for c in ("ci_low", "ci_high"))
    text = [
        [f"{a:+.4f} to {b:+.4f}" if a == a else "undefined" for a, b in zip(x, y, strict=True)]
        for x, y in zip(low, high, strict=True)
    ]
    limit = float(one[effect].abs().max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=grid.to_numpy(),
            x=[f"H{h}" for h in grid.columns],
            y=[f"L{layer}" for layer in grid.index],
            customdata=text,
            texttemplate="%{z:+.3f}" if limit >= 0.01 else "%{z:+.1e}",
            hovertemplate=f"%{{y}}%{{x}}: %{{z:+.4f}} {unit}<br>95 % %{{customdata}}<extra></extra>",
            colorscale="RdBu_r",
            zmin=-limit,
            zmax=limit,
            colorbar={"title": f"Δ<br>{unit}"},
        )
    )
    figure.update_layout(title=title, xaxis_title="head", yaxis_title="layer", width=760, height=560)
    figure.update_yaxes(autorange="reversed")
    return figure


def plot_sets(table: "pd.DataFrame", unit: str, effect: str = "delta", title: str = "") -> Any:
    """Effect of every set against the sum of its heads' own, with the line where they add up (plotly figure)."""
    import plotly.graph_objects as go

    one = table[table["interaction"].notna() & (table["scale"] == table["scale"].min())]
    alone, together = one[effect] - one["interaction"], one[effect]
    ends = [min(alone.min(), together.min()), max(alone.max(), together.max())]
    figure = go.Figure(go.Scatter(x=ends, y=ends, mode="lines", line={"dash": "dot", "color": "gray"}, name="adds up"))
    figure.add_scatter(
        x=alone, y=together, mode="markers", name="sets", text=one["head"],
        hovertemplate="%{text}<br>one at a time %{x:.4f}<br>together %{y:.4f}<extra></extra>",
    )  # fmt: skip
    axes = {"xaxis_title": f"Σ of its heads, one at a time, {unit}", "yaxis_title": f"the set together, {unit}"}
    figure.update_layout(title=title, width=760, height=640, **axes)
    return figure


def plot_pairs(table: "pd.DataFrame", unit: str, title: str = "") -> Any:
    """Heat map head × head of the interaction of pairs at the smallest scale (plotly figure)."""
    import numpy as np
    import plotly.graph_objects as go

    one = table[table["interaction"].notna() & (table["scale"] == table["scale"].min())]
    pairs = [label.split("+") for label in one["head"]]
    names = list(dict.fromkeys(sorted((n for pair in pairs for n in pair), key=_place)))
    at = {name: i for i, name in enumerate(names)}
    grid = np.full((len(names), len(names)), np.nan)
    for (a, b), value in zip(pairs, one["interaction"], strict=True):
        grid[at[a], at[b]] = grid[at[b], at[a]] = value
    limit = float(np.nanmax(np.abs(grid))) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=grid, x=names, y=names, colorscale="RdBu_r", zmin=-limit, zmax=limit, hoverongaps=False,
            hovertemplate="%{y} and %{x}: %{z:+.4f}<extra></extra>", colorbar={"title": f"interaction<br>{unit}"},
        )
    )  # fmt: skip
    figure.update_layout(title=title, width=820, height=760, plot_bgcolor="#999")  # unmeasured pairs
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False)
    figure.update_yaxes(autorange="reversed", tickmode="linear")
    figure.update_xaxes(tickmode="linear")
    return figure


def _place(label: str) -> tuple[int, int]:
    """Layer and head of L5H4."""
    layer, _, head = label.removeprefix("L").partition("H")
    return int(layer), int(head)
