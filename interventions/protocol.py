"""LFA's suppression protocol (§3.3, App. D, F): the sweep, its controls, its tables, its figure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from streamscope.interventions.edits import scale_heads
from streamscope.interventions.effects import Cell, asymmetry_rows, by_construction, curve_rows, effect_rows, holm
from streamscope.interventions.observe import UNIT, Observed
from streamscope.interventions.selection import random_sets, ranked
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head
from streamscope.probes.stats.permutations import rank_among
from streamscope.probes.undefined import mark

if TYPE_CHECKING:
    from streamscope.models.hooks import Edits

LAST = "undefined by construction, all heads in the last layer"
COLOURS = {"selected": "#c8553d", "bottom": "#3b6ea5", "random": "#999999"}


@dataclass(frozen=True)
class Protocol:
    """Selections of heads, each with its controls, under every gate."""

    edits: "list[Edits]"
    """The sweep to observe; gate 1 is the baseline and is not run."""
    cells: list[Cell]
    """Selected and bottom-k heads under every gate; labels: selection, group, k, heads, gate."""
    draws: list[Cell]
    """Matched-random heads under the smallest gate; labels as above and `draw`."""


def design(
    scores: Mapping[Head, float],
    selections: Mapping[str, Sequence[Head]],
    gates: Sequence[float],
    *,
    draws: int = 39,
    seed: int = 0,
) -> Protocol:
    """The edits of the protocol. Controls of k selected heads: the k with the smallest PDS, and `draws` random sets.

    Random sets (`selection.random_sets`) are run at the smallest gate only (hard suppression, LFA App. D).
    Raises `InputError` for gates that are not finite, repeat, or are all 1, and for k that leaves no controls.
    """
    if not all(np.isfinite(g) for g in gates) or len(set(gates)) < len(gates) or set(gates) <= {1.0}:
        raise InputError(f"gates {list(gates)}: give different finite numbers, not only 1")
    edits: list[Edits] = []
    index: dict[tuple[tuple[Head, ...], float], int] = {}

    def cell(heads: Sequence[Head], gate: float, **labels: Any) -> Cell:
        key = (tuple(heads), gate)
        if gate != 1 and key not in index:
            index[key] = len(edits)
            edits.append(scale_heads(heads, gate))
        names = {"k": len(heads), "heads": "+".join(h.label for h in heads), "gate": float(gate)}
        return Cell(key[0], float(gate), index.get(key), {**labels, **names})

    cells, random = [], []
    for name, heads in selections.items():
        groups = {"selected": tuple(heads), "bottom": ranked(scores, len(heads), "bottom")}
        for role, group in groups.items():
            cells += [cell(group, gate, selection=name, group=role) for gate in gates]
        for i, group in enumerate(random_sets(scores, heads, len(heads), draws, seed)):
            random.append(cell(group, min(gates), selection=name, group="random", draw=i))
    return Protocol(edits, cells, random)


@dataclass(frozen=True)
class Tables:
    """What the protocol found; NaN cells are explained in the column `undefined`."""

    effects: pd.DataFrame
    controls: pd.DataFrame
    curves: pd.DataFrame
    asymmetry: pd.DataFrame
    draws: pd.DataFrame


def tables(
    protocol: Protocol,
    observed: Mapping[str, Observed],
    n_layers: int,
    *,
    resamples: int = 2000,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Tables:
    """Effects with intervals, the rank of the selected heads among random ones, curves and asymmetry per measure.

    Holm's family: the effects of one measure, group of heads and gate, over selections (and, as families of their own,
    over selections × relations and × layers). Asymmetry and curves need orders and three gates; without them the tables
    are empty.
    """
    effects, controls, curves, asymmetries, drawn = [], [], [], [], []
    by_curve: dict[tuple, list[Cell]] = {}
    for cell in protocol.cells:
        by_curve.setdefault((cell.labels["selection"], cell.labels["group"]), []).append(cell)
    hard = min(cell.gate for cell in protocol.cells)
    for one in progress(list(observed.values())):
        rows = effect_rows(one, protocol.cells, n_layers, hard=hard, resamples=resamples)
        kind = np.where(rows["part"] == "all", "all", np.where(rows["part"].isin(one.readouts), "layer", "relation"))
        effects.append(holm(rows.assign(kind=kind), ("group", "gate", "kind")))
        changes = _draws(protocol, one, n_layers)
        drawn.append(changes)
        for cell in protocol.cells:
            if cell.gate == hard and cell.labels["group"] == "selected":
                controls.append(_control(cell, one, changes, rows, n_layers))
        if len(next(iter(by_curve.values()))) > 2:
            curves.append(curve_rows(one, list(by_curve.values()), n_layers))
        if set(one.cases["order"]) - {""}:
            asymmetries.append(asymmetry_rows(one, [c for c in protocol.cells if c.gate == hard], n_layers))

    def together(parts: list[pd.DataFrame]) -> pd.DataFrame:
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    return Tables(together(effects), pd.DataFrame(controls), together(curves), together(asymmetries), together(drawn))


def _draws(protocol: Protocol, observed: Observed, n_layers: int) -> pd.DataFrame:
    """One row per random draw: its mean change, undefined where the drawn heads cannot act on the measure."""
    rows = [
        {
            **cell.labels,
            "measure": observed.measure,
            "difference": float((observed.under(cell.edit) - observed.under(None)).mean()),
        }
        for cell in protocol.draws
    ]
    impossible = [by_construction(observed.measure, "all", cell.heads, n_layers) for cell in protocol.draws]
    return mark(
        pd.DataFrame(rows), ["difference"], impossible, "undefined by construction, all heads in the last layer"
    )


def _control(
    cell: Cell, observed: Observed, draws: pd.DataFrame, effects: pd.DataFrame, n_layers: int
) -> dict[str, Any]:
    """The selected heads at the smallest gate beside no intervention, bottom-k and random draws."""
    from streamscope.probes.undefined import note

    same = (effects["selection"] == cell.labels["selection"]) & (effects["gate"] == cell.gate)
    bottom = effects[same & (effects["part"] == "all") & (effects["group"] == "bottom")].iloc[0]
    random = draws.loc[draws["selection"] == cell.labels["selection"], "difference"].dropna().to_numpy()
    impossible = by_construction(observed.measure, "all", cell.heads, n_layers)
    effect = float((observed.under(cell.edit) - observed.under(None)).mean())
    row = {
        **{k: cell.labels[k] for k in ("selection", "k", "heads", "gate")},
        "measure": observed.measure,
        "baseline": float(observed.under(None).mean()),
        "selected": effect,
        "bottom": float(bottom["difference"]),
        "random": float(random.mean()) if len(random) else np.nan,
        "random_sd": float(random.std(ddof=1)) if len(random) > 1 else np.nan,
        "random_low": float(random.min()) if len(random) else np.nan,
        "random_high": float(random.max()) if len(random) else np.nan,
        "draws": len(random),
        "p_rank": np.nan,
        "p_rank_min": np.nan,
    }
    why: dict[str, str] = {}
    if impossible:
        why |= dict.fromkeys(("selected", "p_rank", "p_rank_min"), LAST)
        row["selected"] = np.nan
    elif len(random):
        rank = rank_among(effect, random)
        row |= {"p_rank": rank.p, "p_rank_min": rank.p_min}
    if not len(random):
        why |= dict.fromkeys(("random", "random_low", "random_high", "p_rank", "p_rank_min"), "no draw can act")
    if len(random) < 2:
        why["random_sd"] = "fewer than two draws that can act"
    if np.isnan(row["bottom"]):
        why["bottom"] = LAST
    return {**row, "undefined": note(why)}


def plot(found: Tables, title: str = "") -> Any:
    """Gate-response curves (LFA Figures 5 and 6): change against gate with 95 % intervals, random draws as points.

    The points stand beside their gate so that they hide nothing.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    whole = found.effects[found.effects["part"] == "all"]
    measures, selections = list(whole["measure"].unique()), list(whole["selection"].unique())
    names = [f"{m}, {s}" for m in measures for s in selections]
    grid = {"shared_xaxes": True, "shared_yaxes": "rows", "vertical_spacing": 0.12}
    figure = make_subplots(len(measures), len(selections), subplot_titles=names, **grid)
    shown: set[str] = set()
    for (measure, selection, role), one in whole.groupby(["measure", "selection", "group"], sort=False):
        at = {"row": measures.index(measure) + 1, "col": selections.index(selection) + 1}
        one = one.sort_values("gate")
        if one["difference"].isna().all():
            y = 0.9 if role == "selected" else 0.8
            axis = {"xref": "x domain", "yref": "y domain", "x": 0.5, "y": y, "showarrow": False}
            figure.add_annotation(text=f"{role}: undefined by construction", font={"size": 10}, **axis, **at)
            continue
        error = {
            "array": (one["ci_high"] - one["difference"]).fillna(0),
            "arrayminus": (one["difference"] - one["ci_low"]).fillna(0),
        }
        figure.add_trace(
            go.Scatter(
                x=one["gate"],
                y=one["difference"],
                error_y=error,
                name=role,
                legendgroup=role,
                showlegend=role not in shown,
                marker={"color": COLOURS[role]},
                hovertext=one["heads"],
            ),
            **at,
        )
        shown.add(role)
    for (measure, selection), one in found.draws.dropna(subset=["difference"]).groupby(["measure", "selection"]):
        figure.add_trace(
            go.Scatter(
                x=one["gate"] - 0.05, y=one["difference"], mode="markers", name="random", legendgroup="random",
                showlegend="random" not in shown, marker={"color": COLOURS["random"], "size": 4, "opacity": 0.6},
                hovertext=one["heads"],
            ),
            row=measures.index(measure) + 1,
            col=selections.index(selection) + 1,
        )  # fmt: skip
        shown.add("random")
    for i, measure in enumerate(measures, 1):
        figure.update_yaxes(title=f"Δ {measure}<br>{UNIT[measure]}", row=i, col=1)
    figure.update_xaxes(autorange="reversed")
    figure.update_xaxes(title="gate on z", row=len(measures))
    figure.update_layout(title=title, width=max(520, 300 * len(selections)), height=160 + 280 * len(measures))
    return figure
