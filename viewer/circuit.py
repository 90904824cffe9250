"""A circuit for the live page: the edges of a file that `streamscope circuits RUN --out circuit.json` wrote."""

from pathlib import Path
from typing import Any

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits.formats import CircuitFile
from streamscope.interventions.circuits.graph import graph_of
from streamscope.interventions.circuits.measure import edge_cells
from streamscope.interventions.circuits.worth import SHARES, size_of

F = ("f", "f_low", "f_high", "random")
MOST = 1000
"""Number of edges that the page draws at most, those with the largest scores by size."""


def circuit_for_page(model: Any, name: str, path: Path) -> dict[str, Any]:
    """What the page draws of a circuit: edges from the largest score down, and f for each share of the edges. Raises
    `InputError` for a file of another form or of another model, and for a score that is no number."""
    file, graph = CircuitFile.read(path), graph_of(model)
    for key in ("n_layers", "n_heads"):
        if file.cfg[key] != getattr(model.config, key):
            raise InputError(f"{path} has {key} {file.cfg[key]}, and {name} {getattr(model.config, key)}")
    places = {edge: i for i, edge in enumerate(graph.names)}
    for edge, score in zip(file.edges["edge"], file.edges["score"], strict=True):
        if edge not in places:
            raise InputError(f"{path}: {edge!r} is no edge of {name}: it is of another model, or has latents")
        if not np.isfinite(score):
            raise InputError(f"{path}: the score of {edge} is no number")
    if not len(file.edges):
        raise InputError(f"{path} has no edges")
    scores, total = np.zeros(len(graph.names)), len(graph.names)
    scores[[places[edge] for edge in file.edges["edge"]]] = file.edges["score"]
    order = np.argsort(-np.abs(scores), kind="stable")[: min(MOST, len(file.edges))]
    cells = edge_cells(model, graph).loc[order, ["sender", "reader", "part", "stream"]]
    curve, n_edges = _curve(file, total), int(file.edges["in_graph"].sum())
    return {
        "file": path.name,
        "edges": total,
        "kv_heads": model.config.kv_heads,
        "rows": [[*row, float(scores[i])] for i, row in zip(order, cells.to_numpy().tolist(), strict=True)],
        "curve": curve,
        "share": min(curve, key=lambda point: abs(point["edges"] - n_edges))["share"],
    }


def _curve(file: CircuitFile, total: int) -> list[dict[str, Any]]:
    """Number of edges and f for each share of edges, from the smallest; f is None where the file has none."""
    table = file.faithfulness[file.faithfulness["share"].between(0, 1, inclusive="right")].sort_values("share")
    shares = table.to_dict("records") or [{"share": k} for k in SHARES]
    return [
        {
            "share": row["share"], "edges": size_of(row["share"], total),
            **{name: x if np.isfinite(x := row.get(name, np.nan)) else None for name in F},
        }
        for row in shares
    ]  # fmt: skip
