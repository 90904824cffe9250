"""From values under edits to effects: comparisons, asymmetry and gate-response curves, and the cells that have none.

Gating the outputs z of heads in layer ℓ changes attention in the layers after ℓ only. So SPS read in layers up to ℓ,
and SPS over all layers when ℓ is the last, cannot change: such cells are undefined by construction and not 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from streamscope.interventions.observe import SMALLEST, Observed
from streamscope.models.head_spec import Head
from streamscope.probes.stats.comparisons import asymmetry, compare
from streamscope.probes.stats.curves import response_curve
from streamscope.probes.stats.estimators import read_clusters
from streamscope.probes.stats.means import with_holm
from streamscope.probes.undefined import mark

EFFECT = (
    "difference", "sd", "ci_low", "ci_high", "t", "p", "d_pooled", "d_pooled_n", "d_z", "d", "d_low", "d_high",
)  # fmt: skip
REASON = "undefined by construction, heads do not change the attention of their own or earlier layers"


class Cell(NamedTuple):
    """Heads at a gate, the index of the edit that does it (None: the baseline), and the columns that name it."""

    heads: tuple[Head, ...]
    gate: float
    edit: int | None
    labels: Mapping[str, Any]


def by_construction(measure: str, readout: str, heads: Sequence[Head], n_layers: int) -> bool:
    """Whether gating the heads cannot change the measure."""
    if measure != "sps":
        return False
    first = min(head.layer for head in heads)
    return first == n_layers - 1 if readout == "all" else int(readout[1:]) <= first


def effect_rows(
    observed: Observed,
    cells: Sequence[Cell],
    n_layers: int,
    *,
    hard: float | None = None,
    resamples: int = 2000,
) -> pd.DataFrame:
    """One row per cell and part: edited against unedited (`comparisons.compare`), clustered by pair or document.

    `part` is "all"; at the gate `hard` also each relation with two or more independent cases (LFA App. F), and each
    layer that SPS was read in. Differences have the units of the measure, d none. No p_holm yet: `holm`.
    """
    every = np.ones(len(observed.cases), bool)
    whole = [("all", "all", every)]
    parts = list(whole)
    for name in sorted(set(observed.cases["relation"]) - {""}):
        at = (observed.cases["relation"] == name).to_numpy()
        if read_clusters(observed.cases["cluster"].to_numpy()[at], int(at.sum())).count > 1:
            parts.append((name, "all", at))
    parts += [(name, name, every) for name in observed.readouts[1:]]
    rows, impossible = [], []
    for cell in cells:
        for part, readout, at in parts if cell.gate == hard else whole:
            result = compare(
                observed.under(cell.edit, readout)[at],
                observed.under(None, readout)[at],
                observed.cases["cluster"].to_numpy()[at],
                resolution=SMALLEST[observed.measure],
                resamples=resamples,
            )
            rows.append({**cell.labels, "measure": observed.measure, "part": part, **result._asdict()})
            impossible.append(by_construction(observed.measure, readout, cell.heads, n_layers))
    return mark(pd.DataFrame(rows), EFFECT, impossible, REASON)


def holm(table: pd.DataFrame, family: Sequence[str], p: str = "p") -> pd.DataFrame:
    """`<p>_holm` beside `p`: Holm's correction within each group of rows that agree in the columns `family`."""
    groups = [with_holm(one, p) for _, one in table.groupby(list(family), sort=False)]
    return pd.concat(groups).sort_index()


def asymmetry_rows(observed: Observed, cells: Sequence[Cell], n_layers: int) -> pd.DataFrame:
    """LFA App. F: the effect where the target stands first minus the effect where it stands last, over pairs.

    Suppressing on target-first prompts only, or on target-last prompts only, are the two sides `first` and `last`.
    """
    order = observed.cases["order"].to_numpy()
    at = np.isin(order, ("target_first", "target_last"))
    rows, impossible = [], []
    for cell in cells:
        change = (observed.under(cell.edit) - observed.under(None))[at]
        result = asymmetry(
            change, order[at] == "target_first", observed.cases["pair"].to_numpy()[at],
            observed.cases["cluster"].to_numpy()[at], resolution=SMALLEST[observed.measure],
        )._asdict()  # fmt: skip
        result["last"] = result.pop("second")
        rows.append({**cell.labels, "measure": observed.measure, **result})
        impossible.append(by_construction(observed.measure, "all", cell.heads, n_layers))
    columns = ("first", "last", "difference", "sd", "ci_low", "ci_high", "t", "p")
    return mark(pd.DataFrame(rows), columns, impossible, REASON)


def curve_rows(observed: Observed, curves: Sequence[Sequence[Cell]], n_layers: int) -> pd.DataFrame:
    """Slope and linearity of the change against the gate (`curves.response_curve`); one row per list of cells.

    The slope is in units of the measure per unit of the gate: −slope is the effect of full suppression on a line.
    """
    rows, impossible = [], []
    for cells in curves:
        changes = np.stack([observed.under(c.edit) - observed.under(None) for c in cells], 1)
        result = response_curve(
            [c.gate for c in cells], changes, observed.cases["cluster"].to_numpy(),
            resolution=SMALLEST[observed.measure],
        )._asdict()  # fmt: skip
        labels = {k: v for k, v in cells[0].labels.items() if k != "gate"}
        rows.append({**labels, "measure": observed.measure, **result})
        impossible.append(by_construction(observed.measure, "all", cells[0].heads, n_layers))
    columns = [c for c in rows[0] if c.startswith(("slope", "p_", "inter", "r2", "depart", "curv"))]
    return mark(pd.DataFrame(rows), columns, impossible, REASON)
