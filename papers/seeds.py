"""From runs to presets: training seeds are the units, however many prompts or documents each saw.

A table of quantities has one row per run and number: preset, seed, quantity, value, undefined (`papers.rows`). A seed
for which a quantity is undefined is left out and counted; with one seed left there is no interval.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from probes.statistics import mean
from probes.t_tests import constant
from probes.undefined import reasons

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
FLAT = "seeds without spread"


def seeds_of(quantities: "pd.DataFrame", quantity: str, preset: str) -> tuple[np.ndarray, list[str]]:
    """Values over the seeds where the quantity is defined, and "seed s: reason" for the others."""
    rows = quantities[(quantities["quantity"] == quantity) & (quantities["preset"] == preset)]
    defined = rows["value"].notna()
    why = [f"seed {s}: {reasons(u).get('value', '')}" for s, u in rows.loc[~defined, ["seed", "undefined"]].to_numpy()]
    return rows.loc[defined, "value"].to_numpy(float), why


def nothing(quantities: "pd.DataFrame", quantity: str, preset: str) -> str:
    """Why a preset has no value of a quantity at all."""
    if preset not in set(quantities["preset"]):
        return f"no run of {preset}"
    _, why = seeds_of(quantities, quantity, preset)
    return why[0].split(": ", 1)[1] if why else f"not measured on {preset}"


def estimate(values: np.ndarray) -> dict[str, Any]:
    """n, mean, sd, ci_low, ci_high over seeds, x̄ ± t_{n−1} s/√n, and why what has no value: one seed, no spread."""
    row: dict[str, Any] = {"n": len(values), "mean": float(values.mean()), "sd": NAN, "ci_low": NAN, "ci_high": NAN}
    if len(values) < 2:
        return {**row, "why": dict.fromkeys(("sd", "ci_low", "ci_high"), "one seed")}
    found = mean(values)
    row["sd"] = found.sd
    if constant(values):
        return {**row, "sd": 0.0, "why": dict.fromkeys(("ci_low", "ci_high"), FLAT)}
    return {**row, "ci_low": found.ci_low, "ci_high": found.ci_high, "why": {}}
