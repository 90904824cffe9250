"""Which arms of the scorecard differ from the control: the spread that decides is that of all arms together."""

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.papers.comparison.seeds import NAN, paired
from streamscope.probes.stats.means import with_holm
from streamscope.probes.undefined import note

ALPHA = 0.25
"""Of the test whether arms spread alike. It comes before another, so it must find differences rather than overlook
them: at .05 arms whose spreads differ fivefold had a family-wise error of .1 in place of .05, at .25 of .05."""


def contrasts(quantities: pd.DataFrame, against: str, apart: tuple[str, ...] = ()) -> pd.DataFrame:
    """Every arm less the control over the n seeds that both have: mean, sd, interval, p, and p corrected by Holm.

    x_as is the quantity of arm a trained from seed s. With a handful of seeds two arms alone say hardly anything of
    how much seeds differ, so where all arms spread alike (Bartlett's test, p > `ALPHA`) s² is the residual variance of
    x_as = μ_a + τ_s over all arms, with its degrees of freedom ν, and the interval x̄_a − x̄_c ± t_ν s √(2/n). Where
    they do not, the differences of the two arms alone are what it is of (`papers.comparison.seeds.paired`). `spread`
    says which, `sd` is √2 s or the differences' own. Quantities in `apart` are left out. Holm goes over all rows.
    """
    rows = []
    for name, one in quantities.groupby("quantity", sort=False):
        if name in apart:
            continue
        common = pooled(one)
        for arm in dict.fromkeys(one["preset"]):
            if arm != against:
                front = {"arm": arm, "control": against, "quantity": name, "unit": one["unit"].iloc[0]}
                rows.append({**front, **_contrast(quantities, str(name), str(arm), against, common)})
    return with_holm(pd.DataFrame(rows), "p") if rows else pd.DataFrame()


def _contrast(
    quantities: pd.DataFrame, name: str, arm: str, against: str, common: tuple[float, int, str]
) -> dict[str, Any]:
    found = paired(quantities, name, arm, against)
    row = {k: found[k] for k in ("n", "mean", "sd", "ci_low", "ci_high", "p", "left_out")}
    s, free, spread = common
    if free and row["n"]:
        row["sd"] = np.sqrt(2) * s
        error = row["sd"] / np.sqrt(row["n"])
        half = stats.t.ppf(0.975, free) * error
        row |= {"ci_low": row["mean"] - half, "ci_high": row["mean"] + half}
        row["p"] = float(2 * stats.t.sf(abs(row["mean"]) / error, free))
        found["why"] = {}
    return {**row, "df": free or max(row["n"] - 1, 0), "spread": spread, "undefined": note(found.get("why", {}))}


def pooled(one: pd.DataFrame) -> tuple[float, int, str]:
    """s and ν of `contrasts` from the rows of one quantity, and what decides; ν is 0 where arms do not spread alike."""
    wide = one[one["value"].notna()].pivot_table(index="preset", columns="seed", values="value")
    values = [row[~np.isnan(row)] for row in wide.to_numpy(float)]
    several = [v for v in values if len(v) > 1]
    if len(several) < 2:
        return NAN, 0, "two arms"
    if any(np.ptp(v) == 0 for v in several):
        return NAN, 0, "two arms: some have no spread"
    p = float(stats.bartlett(*several).pvalue)
    if p <= ALPHA:
        return NAN, 0, f"two arms: they do not spread alike (p = {p:.2g})"
    y, (arm, seed) = wide.to_numpy(float), np.indices(wide.shape)
    kept = ~np.isnan(y)
    effects = [arm[kept][:, None] == np.arange(wide.shape[0]), seed[kept][:, None] == np.arange(wide.shape[1])]
    design = np.hstack(effects).astype(float)
    free = int(kept.sum() - np.linalg.matrix_rank(design))
    if free < 1:
        return NAN, 0, "two arms"
    residual = y[kept] - design @ np.linalg.lstsq(design, y[kept], rcond=None)[0]
    return float(np.sqrt((residual**2).sum() / free)), free, "all arms"
