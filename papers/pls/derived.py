"""Numbers of PLS that follow from effects and losses of runs, whenever these were measured.

loss                     validation loss, of the last layer alone in either model (§3.3)
largest.capitalization   |effect| of the entity heads on capitalization less the larger of |effect| of the anchor heads
                         on gender and of the entity heads on Winograd (§5.2)
"""

import pandas as pd

from streamscope.papers.comparison.rows import Rows

LOSS, LARGEST = "loss", "largest.capitalization"
OWN_EFFECT, OTHERS = "effect.capitalization.entity", ("effect.gender.anchor", "effect.winograd.entity")
NOT_ALL = "not all three tasks were measured"


def with_derived(quantities: pd.DataFrame, losses: pd.DataFrame) -> pd.DataFrame:
    """The quantities of all runs with `loss` and `largest.capitalization`, those of before left out."""
    own = quantities[~quantities["quantity"].isin([LOSS, LARGEST])]
    parts = [own]
    effects = own.pivot_table(index=["preset", "seed"], columns="quantity", values="value", sort=False)
    whole = losses.set_index(["preset", "seed"])["loss"].to_dict()
    for (preset, seed), one in effects.iterrows():
        rows = Rows()
        if (loss := whole.get((preset, seed))) is not None:
            rows.add(LOSS, "loss", "nats/token", loss)
        sizes = one.reindex([OWN_EFFECT, *OTHERS]).abs()
        gap = float(sizes[OWN_EFFECT] - sizes[list(OTHERS)].max(skipna=False))
        rows.add(LARGEST, "effect", "probability", gap, why="" if gap == gap else NOT_ALL)
        parts.append(pd.DataFrame(rows.rows).assign(preset=preset, seed=seed)[list(own.columns)])
    return pd.concat(parts, ignore_index=True)
