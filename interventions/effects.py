"""What an edit of heads does to prompts: which cells have no value by construction, and effect sizes.

Gating the outputs z of heads in layer ℓ changes attention in the layers after ℓ only. So SPS read in layers up to ℓ,
and SPS over all layers when ℓ is the last, cannot change: such cells are undefined by construction and not 0.
"""

from collections.abc import Sequence

import numpy as np

from streamscope.instruments.observations import Observations, Reasons
from streamscope.instruments.stats.effect_sizes import cohens_d, d_interval
from streamscope.instruments.stats.estimators import BOOTSTRAP_CLUSTERS, read_clusters
from streamscope.instruments.table import Column
from streamscope.models.head_spec import Head

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
    inside = block.inside[list(cells)].all(0)
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
