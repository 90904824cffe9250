"""The heat maps of `python -m interventions.patch`, of a model or of two side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd


def plot(table: pd.DataFrame, title: str = "") -> Any:
    """A heat map per hook: layer × position, or layer × head (plotly figure).

    The colour is the recovery of denoising, or of noising what is lost of it, 1 − recovery; where no recovery is
    defined, the effect in nats. Two models (column `model`) stand side by side.
    """
    exact = "recovery" in table
    values, unit = _shown(table, *(("recovery", "effect") if exact else ("attributed", "attribution")))
    rows = ["no layer" if layer < 0 else f"L{layer}" for layer in table["layer"]]
    shown = table.assign(value=values, label=_columns(table), row=rows)
    layers = [f"L{layer}" for layer in sorted(set(table["layer"])) if layer >= 0]
    grids = [
        (name, one, layers if one["layer"].iloc[0] >= 0 else ["no layer"]) for name, one in _by_model(shown, "hook")
    ]
    return _heat_maps(grids, unit, title, "layer")


def plot_edges(table: pd.DataFrame, title: str = "") -> Any:
    """Sender × reader, in order of computation: the recovery through each edge, per model (plotly figure)."""
    values, unit = _shown(table, "recovery", "effect")
    order = {"attn_in": 0, "attn_v_in": 1, "mlp_in": 2, "head": 3}
    place = table["reader_layer"] * len(order) + table["reader_kind"].map(order)
    shown = table.assign(value=values, label=table["reader"], row=table["sender"], place=place).sort_values("place")
    senders = list(dict.fromkeys(table["sender"]))
    return _heat_maps([(name, one, senders) for name, one in _by_model(shown)], unit, title, "sender")


def _by_model(table: pd.DataFrame, *columns: str) -> list[tuple[str, pd.DataFrame]]:
    """(title, rows) of every value of the columns and, where there are two, every model."""
    by = [*columns, *(["model"] if "model" in table else [])]
    if not by:
        return [("", table)]
    order = {name: at for at, name in enumerate(dict.fromkeys(table["model"]))} if "model" in table else {}
    parts = [(key, one) for key, one in table.groupby(by, sort=False)]
    places = {name: at for at, name in enumerate(dict.fromkeys(key[0] for key, _ in parts))}
    parts.sort(key=lambda part: (places[part[0][0]], order.get(part[0][-1], 0)))
    return [(", ".join(map(str, key)), one) for key, one in parts]


def _shown(table: pd.DataFrame, share: str, nats: str) -> tuple[pd.Series, str]:
    """What the colour is, and its unit."""
    if table[share].isna().all():
        return table[nats], "effect<br>nats"
    noise = table["direction"].iloc[0] == "noise"
    return (1 - table[share], "lost<br>(1 − recovery)") if noise else (table[share], "recovery")


def _columns(table: pd.DataFrame) -> list[str]:
    """Column labels: the head, the position, or both."""
    labels = []
    for head, index, place in zip(table["head"], table["index"], table["position"], strict=True):
        parts = ([f"H{index}"] if head else []) + ([place] if place != "all" or not head else [])
        labels.append(" ".join(parts))
    return labels


def _heat_maps(grids: Sequence[tuple[str, pd.DataFrame, list[str]]], unit: str, title: str, y: str) -> Any:
    """One heat map per grid, two beside each other, one colour axis around 0."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns = 1 if len(grids) == 1 else 2
    height = -(-len(grids) // columns)
    limit = max([float(one["value"].abs().max()) for _, one, _ in grids if one["value"].notna().any()] or [1.0]) or 1.0
    figure = make_subplots(
        height, columns, subplot_titles=[name for name, _, _ in grids], horizontal_spacing=0.12,
        vertical_spacing=min(0.3, 0.26 / height) if height > 1 else None,
    )  # fmt: skip
    tallest = max(len(rows) for _, _, rows in grids)
    for i, (_, one, rows) in enumerate(grids):
        labels = list(dict.fromkeys(one["label"]))
        grid = one.pivot(index="row", columns="label", values="value").reindex(index=rows, columns=labels)
        heat = go.Heatmap(
            z=grid.to_numpy(), x=[_short(label) for label in labels], y=rows, coloraxis="coloraxis", xgap=1, ygap=1,
            text=_written(grid.to_numpy()), texttemplate="%{text}", textfont={"size": 10}, hoverongaps=False,
            hovertemplate="%{y}, %{x}: %{z:+.4f}<extra></extra>",
        )  # fmt: skip
        at = {"row": i // columns + 1, "col": i % columns + 1}
        figure.add_trace(heat, **at)
        figure.update_yaxes(autorange="reversed", title=y if i % columns == 0 else None, **at)
        figure.update_xaxes(tickangle=-45, tickmode="array", tickvals=[_short(label) for label in labels], **at)
    bar = {"title": unit, "thickness": 14}
    figure.update_layout(
        title=title, width=620 * columns if columns > 1 else 860, height=170 + height * (130 + 32 * max(tallest, 3)),
        coloraxis={"colorscale": "RdBu_r", "cmin": -limit, "cmax": limit, "colorbar": bar}, plot_bgcolor="white",
    )  # fmt: skip
    return figure


def _written(grid: np.ndarray) -> np.ndarray:
    """Texts of the cells: two decimals where there is room and something to say."""
    if grid.size > 160:
        return np.full(grid.shape, "")
    return np.array([["" if not abs(x) >= 0.005 else f"{x:.2f}" for x in row] for row in grid], dtype=object)


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"
