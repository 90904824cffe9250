"""From patched log-odds to tables with intervals over pairs, the error of attribution, and heat maps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interventions.effects import holm
from probes.report import estimate
from probes.undefined import note, reasons

if TYPE_CHECKING:
    from interventions.pairs import PatchPair
    from interventions.patching import Cell, Patched
    from interventions.path_patching import Edge

RESOLUTION = 1e-5
"""Log-odds closer than this are equal: roundings of float32, in nats."""
NAN = float("nan")
UNITS = {
    **dict.fromkeys(("effect", "effect_low", "effect_high", "attribution"), "nats of log-odds, patched − its own run"),
    **dict.fromkeys(("recovery", "ci_low", "ci_high", "attributed"), "0: corrupted run, 1: clean run"),
    "sd": "of recovery, between independent pairs",
    "n": "pairs of prompts",
    "clusters": "independent pairs: the two orders of a minimal pair count once",
    "defined": "pairs whose runs differ by the threshold or more",
}
ERROR_UNITS = {
    **dict.fromkeys(("max_abs", "mean_abs", "exact_abs"), "nats of log-odds"),
    "correlation": "over cells and pairs",
    "values": "cells × pairs",
}


def cell_table(
    cells: "Sequence[Cell]",
    pairs: "Sequence[PatchPair]",
    found: "Patched | None",
    guessed: np.ndarray | None,
    threshold: float,
    gap: np.ndarray,
    direction: str,
) -> pd.DataFrame:
    """One row per cell: effect in nats, recovery, and what attribution says of both.

    effect: mean over all pairs; recovery: mean over the `defined` ones, where |clean − corrupt| reaches `threshold`.
    Both have 95 % t intervals over independent pairs; p is that of no effect, p_holm corrected over a hook's cells.
    `gap` [pairs] is clean − corrupt. Without `found` or `guessed` their columns are left out.
    """
    labels = [
        {
            "hook": cell.spot.short,
            "layer": cell.layer,
            "position": cell.place,
            "head": f"L{cell.layer}H{cell.head}" if cell.head is not None else "",
            "index": -1 if cell.head is None else cell.head,
        }
        for cell in cells
    ]
    table = effect_rows(labels, [p.cluster for p in pairs], found, guessed, threshold, gap, direction)
    return holm(table, ("hook",)) if found is not None else table


def edge_table(
    edges: "Sequence[Edge]", pairs: "Sequence[PatchPair]", found: "Patched", threshold: float
) -> pd.DataFrame:
    """One row per edge, columns as in `cell_table`; p_holm is corrected over a sender's edges."""
    labels = [
        {"sender": e.sender.label, "reader": e.label, "reader_kind": e.reader, "reader_layer": e.layer} for e in edges
    ]
    gap = found.clean - found.corrupt
    table = effect_rows(labels, [p.cluster for p in pairs], found, None, threshold, gap, found.direction)
    return holm(table, ("sender",))


def effect_rows(
    labels: Sequence[Mapping[str, Any]],
    clusters: Sequence[str],
    found: "Patched | None",
    guessed: np.ndarray | None,
    threshold: float,
    gap: np.ndarray,
    direction: str,
) -> pd.DataFrame:
    """Estimates of every row of effects [rows, pairs]."""
    units = np.asarray(clusters)
    clear = np.abs(gap) >= threshold
    rows = []
    for c, label in enumerate(labels):
        row: dict[str, Any] = {"direction": direction, **label}
        why: dict[str, str] = {}
        values = found.effect[c] if found is not None else guessed[c]  # type: ignore[index]
        there = np.isfinite(values)
        if found is not None:
            effect = _estimate(values, there, units)
            recovery = _estimate(found.recovery(threshold)[c], there & clear, units)
            row |= {"effect": effect["mean"], "effect_low": effect["ci_low"], "effect_high": effect["ci_high"]}
            row |= {"p": effect["p"], "recovery": recovery["mean"], "sd": recovery["sd"]}
            row |= {"ci_low": recovery["ci_low"], "ci_high": recovery["ci_high"]}
            renamed = {"mean": "effect", "ci_low": "effect_low", "ci_high": "effect_high", "p": "p"}
            why |= {renamed[k]: v for k, v in effect["why"].items() if k in renamed}
            renamed = {"mean": "recovery", "ci_low": "ci_low", "ci_high": "ci_high", "sd": "sd"}
            why |= {renamed[k]: v for k, v in recovery["why"].items() if k in renamed}
        if guessed is not None:
            start = 0.0 if direction == "denoise" else 1.0
            row["attribution"] = float(guessed[c][there].mean()) if there.any() else NAN
            both = there & clear
            row["attributed"] = float((start + guessed[c][both] / gap[both]).mean()) if both.any() else NAN
            why |= {} if there.any() else {"attribution": "no pair has such a position"}
            why |= {} if both.any() else {"attributed": _reason(threshold)}
        row |= {"n": int(there.sum()), "defined": int((there & clear).sum())}
        row["clusters"] = len(set(units[there]))
        rows.append({**row, "undefined": note({k: v.replace("{threshold}", f"{threshold:g}") for k, v in why.items()})})
    return pd.DataFrame(rows)


def _reason(threshold: float) -> str:
    return f"in no pair do clean and corrupted differ by {threshold:g} nats"


def _estimate(values: np.ndarray, use: np.ndarray, units: np.ndarray) -> dict[str, Any]:
    """`report.estimate` of the values to use, its reasons as a dictionary; all undefined without any."""
    names = ("mean", "sd", "ci_low", "ci_high", "p")
    if not use.any():
        reason = "in no pair do clean and corrupted differ by {threshold} nats"
        return {**dict.fromkeys(names, NAN), "why": dict.fromkeys(names, reason)}
    found = estimate(values[use], units[use], resolution=RESOLUTION)
    return {**found, "why": reasons(found["undefined"])}


def error_table(cells: "Sequence[Cell]", exact: np.ndarray, guessed: np.ndarray, direction: str) -> pd.DataFrame:
    """One row per hook: how far attribution is from the exact effects, over cells × pairs, in nats.

    correlation is Pearson's; max_abs and mean_abs are of guess − exact, exact_abs is the mean size of what is guessed.
    """
    rows = []
    for name in dict.fromkeys(cell.spot.short for cell in cells):
        at = [c for c, cell in enumerate(cells) if cell.spot.short == name]
        a, b = exact[at].ravel(), guessed[at].ravel()
        a, b = a[np.isfinite(a)], b[np.isfinite(a)]
        flat = len(a) < 2 or a.std() < RESOLUTION or b.std() < RESOLUTION
        rows.append(
            {
                "direction": direction,
                "hook": name,
                "values": len(a),
                "correlation": NAN if flat else float(np.corrcoef(a, b)[0, 1]),
                "max_abs": float(np.abs(b - a).max()),
                "mean_abs": float(np.abs(b - a).mean()),
                "exact_abs": float(np.abs(a).mean()),
                "undefined": note({"correlation": "one of the two does not vary"} if flat else {}),
            }
        )
    return pd.DataFrame(rows)


# ---- figures -----------------------------------------------------------------------------------


def plot(table: pd.DataFrame, title: str = "") -> Any:
    """A heat map per hook: layer × position, or layer × head (plotly figure).

    The colour is the recovery of denoising, or of noising what is lost of it, 1 − recovery; where no recovery is
    defined, the effect in nats.
    """
    exact = "recovery" in table
    values, unit = _shown(table, *(("recovery", "effect") if exact else ("attributed", "attribution")))
    shown = table.assign(value=values, label=_columns(table), row="L" + table["layer"].astype(str))
    layers = [f"L{layer}" for layer in sorted(set(table["layer"]))]
    grids = [(str(name), one, layers) for name, one in shown.groupby("hook", sort=False)]
    return _heat_maps(grids, unit, title, "layer")


def plot_edges(table: pd.DataFrame, title: str = "") -> Any:
    """Sender × reader, in order of computation: the recovery through each edge (plotly figure)."""
    values, unit = _shown(table, "recovery", "effect")
    order = {"attn_in": 0, "attn_v_in": 1, "mlp_in": 2, "head": 3}
    place = table["reader_layer"] * len(order) + table["reader_kind"].map(order)
    shown = table.assign(value=values, label=table["reader"], row=table["sender"], place=place).sort_values("place")
    return _heat_maps([("", shown, list(dict.fromkeys(table["sender"])))], unit, title, "sender")


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
