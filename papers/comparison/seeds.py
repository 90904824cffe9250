"""Quantities of runs, and from runs to presets: training seeds are the units, however many prompts each saw.

A table of quantities has one row per run and number: preset, seed, quantity, value, undefined (`Rows`). A seed for
which a quantity is undefined is left out and counted; with one seed left there is no interval.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.estimators import clustered_t, constant, mean
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.papers.comparison.printed import Printed

NAN = float("nan")
NUMBERS = ("mean", "sd", "ci_low", "ci_high")
FLAT = "seeds without spread"
ONE_PER_RUN = "one number per run, its spread is that over seeds"

Progress = Callable[[str], Callable[[Iterable], Iterable]]
"""Label -> a wrapper that shows how far an iteration is."""


@dataclass
class Rows:
    """Quantities while they are collected."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, quantity: str, family: str, unit: str, value: float, *, sd: float = NAN,
        interval: tuple[float, float] = (NAN, NAN), n: int = 1, detail: str = "", why: str = "",
    ) -> None:  # fmt: skip
        """One row; `why` says why there is no value."""
        cells = {"value": float(value), "sd": float(sd), "ci_low": float(interval[0]), "ci_high": float(interval[1])}
        reason = why.replace(";", ",") or ONE_PER_RUN
        if value != value and not why:
            raise AssertionError(f"{quantity} has no value and no reason")
        missing = note({name: reason for name, x in cells.items() if x != x})
        row = {"quantity": quantity, "family": family, "unit": unit, **cells, "n": n, "detail": detail}
        self.rows.append({**row, "undefined": missing})

    def of(self, preset: str, seed: int) -> pd.DataFrame:
        """The table of a run's quantities."""
        return pd.DataFrame(self.rows).assign(preset=preset, seed=seed)


def by_row(table: pd.DataFrame, add: Callable[[Rows, Any], None]) -> pd.DataFrame:
    """The quantities that follow from a table of runs: `add` puts those of a row (of preset and seed) to `Rows`."""
    parts = []
    for r in table.itertuples():
        add(rows := Rows(), r)
        parts.append(rows.of(r.preset, r.seed))
    return pd.concat(parts, ignore_index=True)


def long_table(wide: pd.DataFrame, units: Mapping[str, str], why: str = "not measured") -> pd.DataFrame:
    """The quantities of runs of a table with a column for each: preset, seed, and those of `units`, run by run.

    `why` is the reason of those that are missing.
    """
    rows = wide.reset_index(drop=True).melt(["preset", "seed"], list(units), "quantity", ignore_index=False)
    rows = rows.sort_index(kind="stable").reset_index(drop=True)
    rows["undefined"] = rows["value"].isna().map({True: note({"value": why}), False: ""})
    rows.insert(3, "unit", rows["quantity"].map(units))
    return rows


def why_of(undefined: str) -> str:
    """The reasons of an `undefined` cell, without the names of its columns."""
    return ", ".join(dict.fromkeys(reasons(undefined).values()))


# ---- over seeds ----------------------------------------------------------------------------------


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
    """Positions of the rows; no column is copied for them, which thousands of look-ups in one table would pay for.

    Raises `InputError` for a seed that is there twice, which would count as two.
    """
    one, other = quantities["quantity"] == quantity, quantities["preset"] == preset
    rows = np.flatnonzero(one.to_numpy(bool) & other.to_numpy(bool))
    seeds = quantities["seed"].to_numpy()[rows].tolist()
    if len(set(seeds)) < len(seeds):
        twice = next(seed for i, seed in enumerate(seeds) if seed in seeds[:i])
        raise InputError(f"seed {twice} of {preset} has {quantity} twice; give each run once")
    return rows


def nothing(quantities: pd.DataFrame, quantity: str, preset: str) -> str:
    """Why a preset has no value of a quantity at all."""
    if preset not in set(quantities["preset"]):
        return f"no run of {preset}"
    _, why = seeds_of(quantities, quantity, preset)
    return why[0].split(": ", 1)[1] if why else f"not measured on {preset}"


def estimate(values: np.ndarray, none: str = "no seed") -> dict[str, Any]:
    """n, mean, sd, ci_low, ci_high over seeds, x̄ ± t_{n−1} s/√n, and why there is none: `none`, one seed, no spread.

    The dictionary `why` is column -> reason.
    """
    row: dict[str, Any] = {"n": len(values), **dict.fromkeys(NUMBERS, NAN)}
    if not len(values):
        return {**row, "why": dict.fromkeys(NUMBERS, none)}
    row["mean"] = float(values.mean())
    if len(values) < 2:
        return {**row, "why": dict.fromkeys(NUMBERS[1:], "one seed")}
    if constant(values):
        return {**row, "sd": 0.0, "why": dict.fromkeys(NUMBERS[2:], FLAT)}
    interval = mean(values)
    return {**row, "sd": interval.sd, "ci_low": interval.ci_low, "ci_high": interval.ci_high, "why": {}}


def against_zero(values: np.ndarray, none: str = "no seed") -> dict[str, Any]:
    """`estimate` with p that the mean is 0; without an interval there is no p, for the same reason."""
    numbers = estimate(values, none)
    if reason := numbers["why"].get("ci_low"):
        return {**numbers, "p": NAN, "why": {**numbers["why"], "p": reason}}
    return {**numbers, "p": float(clustered_t(values, np.ones(len(values))).p)}


def put_interval(
    row: dict[str, Any], why: dict[str, str], name: str, numbers: Mapping[str, Any], of: str = "mean"
) -> None:
    """A number of `estimate` and its interval as the columns NAME, NAME_low and NAME_high of a row, with reasons."""
    for cell, column in ((of, name), ("ci_low", f"{name}_low"), ("ci_high", f"{name}_high")):
        row[column] = numbers[cell]
        why |= {column: numbers["why"][cell]} if cell in numbers["why"] else {}


def over_seeds(quantities: pd.DataFrame) -> pd.DataFrame:
    """One row per preset and quantity of the table: unit, mean over seeds with its 95 % interval, n, undefined."""
    rows, shown = [], ("mean", "ci_low", "ci_high")
    for (preset, quantity), one in quantities.groupby(["preset", "quantity"], sort=False):
        values, left_out = seeds_of(quantities, str(quantity), str(preset))
        numbers = estimate(values, left_out[0].split(": ", 1)[1] if left_out else "")
        why = {name: text for name, text in numbers["why"].items() if name in shown}
        row = {"preset": preset, "quantity": quantity, "unit": one["unit"].iloc[0]}
        rows.append({**row, **{name: numbers[name] for name in (*shown, "n")}, "undefined": note(why)})
    return pd.DataFrame(rows)


def means(
    quantities: pd.DataFrame,
    arms: Sequence[str],
    printed: Callable[[str, str], Printed | None] | None = None,
    limits: Callable[[str, str, str], tuple[float, float]] = lambda quantity, family, unit: (-np.inf, np.inf),
) -> pd.DataFrame:
    """One row per quantity and arm: n seeds, mean, sd, 95 % t interval, and what the paper prints where it is given.

    `limits` of (quantity, family, unit) are where intervals end. An arm without a run has rows where the paper prints
    something.
    """
    have, rows = set(quantities["preset"]), []
    for quantity, own in quantities.groupby("quantity", sort=False):
        family, unit = own[["family", "unit"]].iloc[0]
        low, high = limits(str(quantity), family, unit)
        for arm in arms:
            paper = printed(arm, str(quantity)) if printed else None
            if paper is None and arm not in have:
                continue
            values, left_out = seeds_of(own, str(quantity), arm)
            row = estimate(values, "" if len(values) else nothing(quantities, str(quantity), arm))
            row |= {"ci_low": np.maximum(row["ci_low"], low), "ci_high": np.minimum(row["ci_high"], high)}
            why = row.pop("why")
            if printed:
                row |= {"paper": paper.value if paper else NAN, "printed": paper.text if paper else ""}
                row["where"] = paper.where if paper else ""
                why |= {} if paper else {"paper": "the paper prints none"}
            key = {"quantity": quantity, "family": family, "unit": unit, "preset": arm}
            rows.append({**key, **row, "left_out": ", ".join(left_out), "undefined": note(why)})
    return pd.DataFrame(rows)


def spread(values: np.ndarray) -> dict[str, Any]:
    """sd over n seeds with the 95 % interval s √((n−1)/χ²) of normal values, and why what has no value."""
    numbers = estimate(values)
    if numbers["why"]:
        return {"sd": numbers["sd"], "ci_low": NAN, "ci_high": NAN, "why": numbers["why"]}
    free, sd = len(values) - 1, numbers["sd"]
    low, high = (sd * float(np.sqrt(free / stats.chi2.ppf(q, free))) for q in (0.975, 0.025))
    return {"sd": sd, "ci_low": low, "ci_high": high, "why": {}}


def paired(
    quantities: pd.DataFrame, quantity: str, a: str, b: str, *, ratio: bool = False, resolution: float = 0.0
) -> dict[str, Any]:
    """Preset a against b over the seeds that both have: `estimate` of x_a − x_b, and p of no difference.

    With `ratio`, of ln |x_a| − ln |x_b|, and its mean and ends as factors: the geometric mean of |x_a| / |x_b|, with
    p of 1. A seed in which either is undefined (of a ratio, not larger than `resolution`) is left out and named in
    `left_out`; `same_sign` is how many of the others have both of one sign. Runs of one seed share the order of their
    data and, of one architecture, where they begin: the seed is the pair.
    """
    seed, value = quantities["seed"].to_numpy(), quantities["value"].to_numpy(float)
    of = {p: {seed[i]: value[i] for i in _rows(quantities, quantity, p)} for p in (a, b)}
    row: dict[str, Any] = {"left_out": "", "same_sign": 0}
    for preset in (a, b):
        if all(np.isnan(one) for one in of[preset].values()):
            return {**row, **against_zero(np.array([]), nothing(quantities, quantity, preset))}
    seeds = sorted(of[a].keys() | of[b].keys())
    x, y = (np.array([of[preset].get(one, NAN) for one in seeds]) for preset in (a, b))
    small = (np.abs(x) <= resolution) | (np.abs(y) <= resolution)
    usable = np.isfinite(x) & np.isfinite(y) & ~(ratio & small)
    row["left_out"] = ", ".join(f"seed {s}" for s, used in zip(seeds, usable, strict=True) if not used)
    if not usable.any():
        sized = f" and larger than {resolution:g}" if resolution else " and not 0"
        why = "no seed in which both are defined" + (sized if ratio else "")
        return {**row, **against_zero(np.array([]), why)}
    x, y = x[usable], y[usable]
    numbers = against_zero(np.log(np.abs(x)) - np.log(np.abs(y)) if ratio else x - y)
    if ratio:
        numbers |= {name: float(np.exp(numbers[name])) for name in ("mean", "ci_low", "ci_high")}
    return {**row, **numbers, "same_sign": int((x * y > 0).sum())}
