"""From runs to presets: training seeds are the units, however many prompts or documents each saw.

A table of quantities has one row per run and number: preset, seed, quantity, value, undefined (`rows`). A seed
for which a quantity is undefined is left out and counted; with one seed left there is no interval.
"""

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.instruments.stats.estimators import mean
from streamscope.instruments.stats.t_tests import clustered_t, constant
from streamscope.instruments.undefined_cells import note, reasons

NAN = float("nan")
FLAT = "seeds without spread"


def seeds_of(quantities: pd.DataFrame, quantity: str, preset: str) -> tuple[np.ndarray, list[str]]:
    """Values over the seeds where the quantity is defined, and "seed s: reason" for the others."""
    mine = _rows(quantities, quantity, preset)
    values = quantities["value"].to_numpy(float)[mine]
    missing = np.isnan(values)
    if not missing.any():
        return values, []
    rows = quantities[["seed", "undefined"]].iloc[mine[missing]]
    why = [f"seed {s}: {reasons(u).get('value', '')}" for s, u in rows.itertuples(index=False)]
    return values[~missing], why


def _rows(quantities: pd.DataFrame, quantity: str, preset: str) -> np.ndarray:
    """Positions of the rows; no column is copied for them, which thousands of look-ups in one table would pay for."""
    one, other = quantities["quantity"] == quantity, quantities["preset"] == preset
    return np.flatnonzero(one.to_numpy(bool) & other.to_numpy(bool))


def nothing(quantities: pd.DataFrame, quantity: str, preset: str) -> str:
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


def over_seeds(quantities: pd.DataFrame) -> pd.DataFrame:
    """One row per preset and quantity of the table: unit, mean over seeds with its 95 % interval, n, undefined."""
    rows, ends = [], ("mean", "ci_low", "ci_high")
    for (preset, quantity), one in quantities.groupby(["preset", "quantity"], sort=False):
        values, _ = seeds_of(quantities, str(quantity), str(preset))
        if len(values):
            found = estimate(values)
        else:
            none = dict.fromkeys(ends, nothing(quantities, str(quantity), str(preset)))
            found = {"n": 0, **dict.fromkeys(ends, NAN), "why": none}
        why = {name: text for name, text in found["why"].items() if name in ends}
        row = {"preset": preset, "quantity": quantity, "unit": one["unit"].iloc[0]}
        rows.append({**row, **{name: found[name] for name in (*ends, "n")}, "undefined": note(why)})
    return pd.DataFrame(rows)


def spread(values: np.ndarray) -> dict[str, Any]:
    """sd over n seeds with the 95 % interval s √((n−1)/χ²) of normal values, and why what has no value."""
    missing = dict.fromkeys(("sd", "ci_low", "ci_high"), "no seed")
    found: dict[str, Any] = estimate(values) if len(values) else {"sd": NAN, "why": missing}
    if found["why"]:
        return {"sd": found["sd"], "ci_low": NAN, "ci_high": NAN, "why": found["why"]}
    free, sd = len(values) - 1, found["sd"]
    low, high = (sd * float(np.sqrt(free / stats.chi2.ppf(q, free))) for q in (0.975, 0.025))
    return {"sd": sd, "ci_low": low, "ci_high": high, "why": {}}


def paired(
    quantities: pd.DataFrame, quantity: str, a: str, b: str, *, ratio: bool = False, resolution: float = 0.0
) -> dict[str, Any]:
    """Preset a against b over the seeds that both have: `estimate` of x_a − x_b, and p of no difference.

    With `ratio`, of ln |x_a| − ln |x_b|, and its mean and ends as factors: the geometric mean of |x_a| / |x_b|, with
    p of 1. A seed in which either is undefined (of a ratio, not larger than `resolution`) is left out and named in
    `left_out`; `alike` is how many of the others have both of one sign. Runs of one seed share the order of their data
    and, of one architecture, where they begin: the seed is the pair.
    """
    seed, value = quantities["seed"].to_numpy(), quantities["value"].to_numpy(float)
    of = {p: {seed[i]: value[i] for i in _rows(quantities, quantity, p)} for p in (a, b)}
    numbers = ("mean", "sd", "ci_low", "ci_high", "p")
    row: dict[str, Any] = {**dict.fromkeys(numbers, NAN), "n": 0, "left_out": "", "alike": 0}
    for preset in (a, b):
        if all(np.isnan(one) for one in of[preset].values()):
            return {**row, "why": dict.fromkeys(numbers, nothing(quantities, quantity, preset))}
    seeds = sorted(of[a].keys() | of[b].keys())
    x, y = (np.array([of[preset].get(one, NAN) for one in seeds]) for preset in (a, b))
    small = (np.abs(x) <= resolution) | (np.abs(y) <= resolution)
    usable = np.isfinite(x) & np.isfinite(y) & ~(ratio & small)
    lost = ", ".join(f"seed {s}" for s, used in zip(seeds, usable, strict=True) if not used)
    if not usable.any():
        sized = f" and larger than {resolution:g}" if resolution else " and not 0"
        why = "no seed in which both are defined" + (sized if ratio else "")
        return {**row, "left_out": lost, "why": dict.fromkeys(numbers, why)}
    x, y = x[usable], y[usable]
    gaps = np.log(np.abs(x)) - np.log(np.abs(y)) if ratio else x - y
    found = estimate(gaps)
    tested = "ci_low" not in found["why"]
    found["p"] = float(clustered_t(gaps, np.ones(len(gaps))).p) if tested else NAN
    if not tested:
        found["why"]["p"] = found["why"]["ci_low"]
    if ratio:
        found |= {name: float(np.exp(found[name])) for name in ("mean", "ci_low", "ci_high")}
    return {**found, "left_out": lost, "alike": int((x * y > 0).sum())}
