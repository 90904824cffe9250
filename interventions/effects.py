"""Effects of edited heads on prompts: cells without a value by construction, and effect sizes.

Gating the outputs z of heads in layer ℓ changes attention only in layers after ℓ. SPS read up to layer ℓ, and SPS over
all layers if ℓ is the last, cannot change. Such cells are undefined by construction, not 0.
"""

from collections.abc import Sequence

import numpy as np

from streamscope.instruments.observations import Observations, Reasons, bootstrap
from streamscope.instruments.stats.estimators import cohens_d, d_columns, d_of_totals
from streamscope.instruments.table import described, number
from streamscope.models.head_spec import Head

REASON = "undefined by construction: heads do not change the attention of their own or earlier layers"


def by_construction(measure: str, readout: str, heads: Sequence[Head], n_layers: int) -> bool:
    """Whether gating the heads cannot change the measure."""
    if measure != "sps":
        return False
    first = min(head.layer for head in heads)
    return first == n_layers - 1 if readout == "all" else int(readout[1:]) <= first


def effect_sizes(
    block: Observations, cells: Sequence[int], row: int, missing: Reasons, resamples: int = 2000
) -> dict[str, float]:
    """d, d_low, d_high and d_z of the first of two cells (edited) against the second, with clusters resampled.

    Reasons for missing values go into `missing` of the row; without a delta all are missing.
    """
    both = block.total[list(cells)]
    inside = block.inside[list(cells)].all(0)
    x1, x0 = both[:, inside]
    out = dict.fromkeys(("d", "d_low", "d_high", "d_z"), np.nan)
    why = dict.fromkeys(out, missing.get((row, "delta"), ""))
    if not why["d"] and np.abs(x1 - x0).max() <= block.measure.resolution:
        why = dict.fromkeys(out, "no case changed under the edit")
    if not why["d"]:
        out |= {"d": cohens_d(x1, x0, "pooled"), "d_z": cohens_d(x1, x0, "d_z")}
        if np.isfinite(out["d"]):
            found, lost = bootstrap(block, cells, d_of_totals, d_columns, resamples=resamples)
            for end in ("low", "high"):
                out[f"d_{end}"], why[f"d_{end}"] = found[end], lost.get(end, "")
    for column, value in out.items():
        if np.isnan(value):
            missing[row, column] = why[column] or "values without spread"
    return out


EFFECT_SIZES = (
    *described("d", "Cohen's d", "pooled standard deviations", "edited minus unedited model over their pooled sd",
               format="+.3f", source="LFA Eq. 9", shown=False),
    number("d_z", "paired d", "standard deviations of the differences",
           "mean difference over the standard deviation of the differences (d_z)", "+.3f", False),
)  # fmt: skip
