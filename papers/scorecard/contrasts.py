"""Which arms of the scorecard differ from the control."""

import pandas as pd

from streamscope.papers.comparison.seeds import paired
from streamscope.probes.stats.means import with_holm
from streamscope.probes.undefined import note


def contrasts(quantities: pd.DataFrame, against: str, apart: tuple[str, ...] = ()) -> pd.DataFrame:
    """Every arm less the control, paired by seed: mean, interval and p over seeds, Holm over all rows.

    Of the two arms alone: arms spread differently between seeds, and a spread shared by all of them would call more
    than 5 % of nothing a difference. Quantities in `apart` are left out.
    """
    rows = []
    for (arm, name), one in quantities.groupby(["preset", "quantity"], sort=False):
        if arm == against or name in apart:
            continue
        found = paired(quantities, str(name), str(arm), against)
        numbers = {k: found[k] for k in ("n", "mean", "sd", "ci_low", "ci_high", "p", "left_out")}
        front = {"arm": arm, "control": against, "quantity": name, "unit": one["unit"].iloc[0]}
        rows.append({**front, **numbers, "undefined": note(found.get("why", {}))})
    return with_holm(pd.DataFrame(rows), "p") if rows else pd.DataFrame()
