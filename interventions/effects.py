"""What an edit of heads does to prompts: which cells have no value by construction, and effect sizes.

Gating the outputs z of heads in layer ℓ changes attention in the layers after ℓ only. So SPS read in layers up to ℓ,
and SPS over all layers when ℓ is the last, cannot change: such cells are undefined by construction and not 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from streamscope.interventions.observe import SMALLEST, Observed
from streamscope.models.head_spec import Head
from streamscope.probes.observations import Observations, Reasons
from streamscope.probes.result import Column
from streamscope.probes.stats.comparisons import compare
from streamscope.probes.stats.effect_sizes import cohens_d, d_interval
from streamscope.probes.stats.estimators import BOOTSTRAP_CLUSTERS, read_clusters
from streamscope.probes.stats.means import with_holm
from streamscope.probes.undefined import mark

REASON = "undefined by construction, heads do not change the attention of their own or earlier layers"


def by_construction(measure: str, readout: str, heads: Sequence[Head], n_layers: int) -> bool:
    """Whether gating the heads cannot change the measure."""
    if measure != "sps":
        return False
    first = min(head.layer for head in heads)
    return first == n_layers - 1 if readout == "all" else int(readout[1:]) <= first


def effect_sizes(
    block: Observations, cells: Sequence[int], row: int, missing: Reasons, resamples: int = 2000
) -> dict[str, float]:
    """d, d_low, d_high and d_z of the first of two cells, the edited one, against the other; clusters resampled.

    Why some have no value goes into `missing` of the row; where its delta has none, they have none either.
    """
    both = block.total[list(cells)]
    inside = ~np.isnan(both).any(0)
    x1, x0 = both[:, inside]
    out = dict.fromkeys(("d", "d_low", "d_high", "d_z"), np.nan)
    why = dict.fromkeys(out, missing.get((row, "delta"), ""))
    if not why["d"] and np.abs(x1 - x0).max() <= block.measure.resolution:
        why = dict.fromkeys(out, "no case changed under the condition")
    if not why["d"]:
        out |= {"d": cohens_d(x1, x0, "pooled"), "d_z": cohens_d(x1, x0, "d_z")}
        labelled = block.units["cluster"][inside].to_list()
        if read_clusters(labelled, len(x1)).count < BOOTSTRAP_CLUSTERS:
            why |= dict.fromkeys(("d_low", "d_high"), f"fewer than {BOOTSTRAP_CLUSTERS} clusters to resample")
        elif np.isfinite(out["d"]):
            out["d_low"], out["d_high"] = d_interval(x1, x0, labelled, resamples=resamples)
    for column, value in out.items():
        if np.isnan(value):
            missing[row, column] = why[column] or "values without spread"
    return out


EFFECT_SIZES = (
    Column(name="d", title="d", unit="pooled standard deviations", format="+.3f", interval=("d_low", "d_high"),
           doc="Cohen's d of the scaled against the unedited model, pooled over both", source="LFA Eq. 9", shown=False),
    Column(name="d_low", title="d, lower", unit="pooled standard deviations", format="+.3f", shown=False,
           doc="lower end of the 95 % bootstrap interval of d"),
    Column(name="d_high", title="d, upper", unit="pooled standard deviations", format="+.3f", shown=False,
           doc="upper end of the 95 % bootstrap interval of d"),
    Column(name="d_z", title="d_z", unit="standard deviations of the differences", format="+.3f", shown=False,
           doc="mean difference over the standard deviation of the differences"),
)  # fmt: skip


EFFECT = (
    "difference", "sd", "ci_low", "ci_high", "t", "p", "d_pooled", "d_pooled_n", "d_z", "d", "d_low", "d_high",
)  # fmt: skip


class Cell(NamedTuple):
    """Heads at a gate, the index of the edit that does it (None: the baseline), and the columns that name it."""

    heads: tuple[Head, ...]
    gate: float
    edit: int | None
    labels: Mapping[str, Any]


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
