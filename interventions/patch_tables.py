"""From patched log-odds to tables with intervals over pairs, the error of attribution, and heat maps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from streamscope.interventions.effects import holm
from streamscope.probes.prompts.suite import Unit
from streamscope.probes.stats.estimators import read_clusters
from streamscope.probes.stats.means import estimate
from streamscope.probes.undefined import note, reasons

if TYPE_CHECKING:
    from streamscope.interventions.pairs import PatchPair
    from streamscope.interventions.patching import Cell, Patched
    from streamscope.interventions.path_patching import Edge

RESOLUTION = 1e-5
"""Log-odds closer than this are equal: roundings of float32, in nats."""
NAN = float("nan")
UNITS = {
    **dict.fromkeys(("effect", "effect_low", "effect_high", "attribution"), "nats of log-odds, patched − its own run"),
    **dict.fromkeys(("recovery", "ci_low", "ci_high", "attributed"), "0: corrupted run, 1: clean run"),
    "sd": "of recovery, between independent pairs",
    "n": "pairs of prompts",
    "clusters": "independent pairs, or the fewest words of a kind where pairs share words",
    "defined": "pairs whose runs differ by the threshold or more",
}
ERROR_UNITS = {
    **dict.fromkeys(("max_abs", "mean_abs", "exact_abs"), "nats of log-odds"),
    "correlation": "over cells and pairs",
    "values": "cells × pairs",
}


def cell_labels(cells: "Sequence[Cell]") -> list[dict[str, Any]]:
    """The columns that name each cell."""
    return [
        {
            "hook": cell.spot.short,
            "layer": cell.layer,
            "position": cell.place,
            "head": f"L{cell.layer}H{cell.head}" if cell.head is not None else "",
            "index": -1 if cell.head is None else cell.head,
        }
        for cell in cells
    ]


def edge_labels(edges: "Sequence[Edge]") -> list[dict[str, Any]]:
    """The columns that name each path."""
    return [
        {"sender": e.sender.label, "reader": e.label, "reader_kind": e.reader, "reader_layer": e.layer} for e in edges
    ]


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
    table = effect_rows(cell_labels(cells), [p.cluster for p in pairs], found, guessed, threshold, gap, direction)
    return holm(table, ("hook",)) if found is not None else table


def edge_table(
    edges: "Sequence[Edge]", pairs: "Sequence[PatchPair]", found: "Patched", threshold: float
) -> pd.DataFrame:
    """One row per edge, columns as in `cell_table`; p_holm is corrected over a sender's edges."""
    gap = found.clean - found.corrupt
    table = effect_rows(edge_labels(edges), [p.cluster for p in pairs], found, None, threshold, gap, found.direction)
    return holm(table, ("sender",))


def effect_rows(
    labels: Sequence[Mapping[str, Any]],
    clusters: Sequence[Unit],
    found: "Patched | None",
    guessed: np.ndarray | None,
    threshold: float,
    gap: np.ndarray,
    direction: str,
) -> pd.DataFrame:
    """Estimates of every row of effects [rows, pairs]."""
    units = pd.Series(list(clusters), dtype=object).to_numpy()
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
        row["clusters"] = read_clusters(units[there], int(there.sum())).count if there.any() else 0
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
