"""How a behaviour follows the scale of a group of heads: range, monotonicity, leverage (PLS §5.2, Fig. 3).

z ← g z for the heads of a group, which is the same as scaling their attention weights without normalising them again
(z = A V is linear in A). Over the scales g, per measure m (P(answer), log-odds, loss):

    control range  max_g m̄(g) − min_g m̄(g) of the mean curve, over the scales within bounds (PLS: 0 to 1.5)
    monotonicity   Spearman's ρ between g and m within each case, averaged over cases; cases that do not move are left
                   out and counted. 1: every case rises with g
    leverage       control range of a model / control range of its control, on the same cases

A range is a maximum minus a minimum: never negative, and noise widens it. So it stands beside the ranges of random
groups of as many heads. Its interval, and that of the leverage, resample whole independent cases
(`estimators.statistic_interval`); a leverage over a control that does not move is undefined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from streamscope.interventions.controls import Sweep
from streamscope.interventions.groups import Group
from streamscope.interventions.model_differences import shared_cases
from streamscope.interventions.observe import SMALLEST, Observed
from streamscope.models.errors import InputError
from streamscope.probes.stats.comparisons import compare
from streamscope.probes.stats.estimators import BOOTSTRAP_CLUSTERS, Clusters, read_clusters, statistic_interval
from streamscope.probes.stats.means import estimate, with_holm
from streamscope.probes.stats.permutations import rank_among
from streamscope.probes.undefined import note, reasons

NAN = float("nan")
FEW = f"fewer than {BOOTSTRAP_CLUSTERS} independent cases to resample"
UNITS = {
    "scale": "factor on z",
    **dict.fromkeys(("mean", "ci_low", "ci_high", "sd"), "units of the measure: probability, nats, nats/token"),
    **dict.fromkeys(("change", "change_low", "change_high"), "units of the measure, from scale 1"),
    **dict.fromkeys(("range", "range_low", "range_high"), "units of the measure"),
    "random_range": "units of the measure, mean over random groups",
    "control_range": "units of the measure",
    "leverage": "no unit",
    "spearman": "Spearman's ρ within a case, mean over cases",
    "n": "cases",
    "flat": "cases that do not move",
}


@dataclass(frozen=True)
class Curve:
    """One measure of one group on one task: values [scales, N], and those of random groups [draws, scales, N]."""

    task: str
    group: Group
    measure: str
    scales: tuple[float, ...]
    values: np.ndarray
    random: np.ndarray
    cases: pd.DataFrame

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that name it."""
        return {"measure": self.measure, "task": self.task, "group": self.group.name, "heads": self.group.label}


def scales_of(scales: Sequence[float], within: tuple[float, float]) -> tuple[float, ...]:
    """The scales in order, 1 among them; `InputError` for no other, infinite ones, and bounds around fewer than two."""
    chosen = tuple(sorted({*map(float, scales), 1.0}))
    if len(chosen) < 2 or not np.isfinite(chosen).all():
        raise InputError(f"--scales {list(scales)}: give at least one finite scale besides 1")
    if not within[0] < within[1] or sum(within[0] <= g <= within[1] for g in chosen) < 2:
        raise InputError(f"--within {within[0]:g} {within[1]:g}: fewer than two scales lie there, of {list(chosen)}")
    return chosen


def curves(observed: Mapping[str, Observed], task: str, groups: Sequence[Group], sweep: Sweep) -> list[Curve]:
    """The curves of a task from a sweep over groups × scales (in this order) with its random sets."""
    scales = tuple(dict.fromkeys(g for _, g in sweep.cells))
    found = []
    for measure, one in observed.items():
        for i, group in enumerate(groups):
            cells = range(i * len(scales), (i + 1) * len(scales))
            at = [None if sweep.cells[c][1] == 1 else sweep.index[c] for c in cells]
            sets = max(len(sweep.controls[c]) for c in cells)
            drawn = [
                [one.under(sweep.controls[c][k][1] if sweep.controls[c] else None) for c in cells] for k in range(sets)
            ]
            values = np.stack([one.under(index) for index in at])
            random = np.array(drawn) if drawn else np.zeros((0, *values.shape))
            found.append(Curve(task, group, measure, scales, values, random, one.cases))
    return found


def levels(found: Sequence[Curve]) -> pd.DataFrame:
    """One row per curve and scale: mean with 95 % over independent cases, and the change from scale 1 (`compare`).

    p_holm corrects over the scales and groups of a task and measure.
    """
    rows = []
    for one in found:
        clusters = one.cases["cluster"].to_numpy()
        base = one.values[one.scales.index(1.0)]
        for scale, x in zip(one.scales, one.values, strict=True):
            level = estimate(x, clusters)
            tested = compare(x, base, clusters, resolution=SMALLEST[one.measure], resamples=200)
            why = reasons(level.pop("undefined")) | {
                {"ci_low": "change_low", "ci_high": "change_high"}.get(name, name): reason
                for name, reason in reasons(tested.undefined).items()
                if name in ("ci_low", "ci_high", "p")
            }
            level.pop("p")
            names = {*level, "change_low", "change_high", "p"}
            why = {name: reason for name, reason in why.items() if name in names}
            change = {"change": tested.difference, "change_low": tested.ci_low, "change_high": tested.ci_high}
            rows.append({**one.labels, "scale": scale, **level, **change, "p": tested.p, "undefined": note(why)})
    table = pd.DataFrame(rows)
    return pd.concat([with_holm(part) for _, part in table.groupby(["measure", "task"], sort=False)]).sort_index()


def summaries(found: Sequence[Curve], within: tuple[float, float], *, resamples: int = 2000) -> pd.DataFrame:
    """One row per curve: control range with interval, beside random groups; monotonicity of cases and of the mean."""
    rows = []
    for one in found:
        at, clusters = _inside(one, within), one.cases["cluster"].to_numpy()
        why: dict[str, str] = {}
        row: dict[str, Any] = {**one.labels, "range": float(np.ptp(one.values[at].mean(1)))}
        row |= dict.fromkeys(("range_low", "range_high", "random_range", "p_rank", "p_rank_min"), NAN)
        moved = np.ptp(one.values[at], axis=0) > SMALLEST[one.measure]
        within_clusters = read_clusters(clusters, len(clusters))
        columns = _totals(one.values[at], within_clusters)
        if not moved.any() or within_clusters.count < BOOTSTRAP_CLUSTERS:
            reason = FEW if moved.any() else "no case moves with the scale"
            why |= dict.fromkeys(("range_low", "range_high"), reason)
        else:
            low, high = statistic_interval(curve_range, *columns, within=within_clusters, resamples=resamples)
            row |= {"range_low": float(low), "range_high": float(high)}
        if len(one.random):
            ranges = np.ptp(one.random[:, at].mean(2), axis=1)
            rank = rank_among(row["range"], ranges, alternative="greater")
            row |= {"random_range": float(ranges.mean()), "p_rank": rank.p, "p_rank_min": rank.p_min}
        else:
            why |= dict.fromkeys(("random_range", "p_rank", "p_rank_min"), "no random groups were drawn")
        row |= {"draws": len(one.random), **_monotonicity(one, moved, at, clusters, why)}
        rows.append({**row, "undefined": note(why)})
    return pd.DataFrame(rows)


def _monotonicity(
    one: Curve, moved: np.ndarray, at: np.ndarray, clusters: np.ndarray, why: dict[str, str]
) -> dict[str, Any]:
    """spearman, its interval, spearman_curve, n, clusters, flat; reasons are added to `why`."""
    names = ("spearman", "spearman_low", "spearman_high", "spearman_curve")
    row: dict[str, Any] = {**dict.fromkeys(names, NAN), "n": int(moved.sum()), "flat": int((~moved).sum())}
    scales = np.array(one.scales)[at]
    if not moved.any():
        why |= dict.fromkeys(names, "no case moves with the scale")
        return {**row, "clusters": 0}
    each = estimate(spearman(scales, one.values[at][:, moved]), clusters[moved])
    row |= {"spearman": each["mean"]}  # a correlation: its interval ends where it does
    row |= {"spearman_low": np.maximum(each["ci_low"], -1.0), "spearman_high": np.minimum(each["ci_high"], 1.0)}
    for name, reason in reasons(each["undefined"]).items():
        why |= {f"spearman_{name.removeprefix('ci_')}": reason} if name.startswith("ci_") else {}
    row["spearman_curve"] = float(spearman(scales, one.values[at].mean(1)[:, None])[0])
    return {**row, "clusters": each["clusters"]}


def spearman(scales: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Spearman's ρ [N] of values [S, N] with scales [S], ties at their mean rank; NaN for a constant column."""
    x, y = rankdata(scales) - (len(scales) + 1) / 2, rankdata(values, axis=0) - (len(scales) + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x[:, None] * y).sum(0) / np.sqrt((x**2).sum() * (y**2).sum(0)))


def leverage(run: Sequence[Curve], control: Sequence[Curve], within: tuple[float, float]) -> pd.DataFrame:
    """One row per curve of both models: control ranges and their ratio with a bootstrap interval over shared cases."""
    theirs = {(c.measure, c.task, c.group.name): c for c in control}
    rows = []
    for one in run:
        other = theirs.get((one.measure, one.task, one.group.name))
        if other is None or one.measure == "loss":  # documents of two models need not be the same
            continue
        common, place = shared_cases(one.cases, other.cases, one.task)
        clusters = one.cases["cluster"].to_numpy()[common]
        x, y = one.values[_inside(one, within)][:, common], other.values[_inside(other, within)][:, place]
        rows.append(
            {**{k: one.labels[k] for k in ("measure", "task", "group")}, **_leverage(x, y, clusters, one.measure)}
        )
    return pd.DataFrame(rows)


def _leverage(x: np.ndarray, y: np.ndarray, clusters: np.ndarray, measure: str) -> dict[str, Any]:
    """range, control_range, leverage with interval of values [scales, N] of two models."""
    ranges = {"range": float(np.ptp(x.mean(1))), "control_range": float(np.ptp(y.mean(1)))}
    row: dict[str, Any] = {**ranges, **dict.fromkeys(("leverage", "leverage_low", "leverage_high"), NAN)}
    within = read_clusters(clusters, x.shape[1])
    row |= {"n": x.shape[1], "clusters": within.count}
    if ranges["control_range"] <= SMALLEST[measure]:
        why = dict.fromkeys(("leverage", "leverage_low", "leverage_high"), "the control does not move")
        return {**row, "undefined": note(why)}
    row["leverage"] = ranges["range"] / ranges["control_range"]
    ends = ("leverage_low", "leverage_high")
    if row["clusters"] < BOOTSTRAP_CLUSTERS:
        return {**row, "undefined": note(dict.fromkeys(ends, FEW))}
    n, *sums = _totals(np.concatenate([x, y]), within)
    low, high = statistic_interval(partial(range_ratio, len(x)), n, *sums, within=within, resamples=2000)
    if not (np.isfinite(low) and np.isfinite(high)):
        return {**row, "undefined": note(dict.fromkeys(ends, "the leverage does not vary over resamples"))}
    return {**row, ends[0]: float(low), ends[1]: float(high), "undefined": ""}


def curve_range(n: np.ndarray, *sums: np.ndarray, axis: int = -1) -> np.ndarray:
    """max − min over scales of Σ / Σ n, from counts and one column of sums per scale."""
    return np.asarray(np.ptp(np.stack([s.sum(axis) for s in sums]), axis=0) / n.sum(axis))


def range_ratio(k: int, n: np.ndarray, *sums: np.ndarray, axis: int = -1) -> np.ndarray:
    """`curve_range` of the first k columns over that of the others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(curve_range(n, *sums[:k], axis=axis) / curve_range(n, *sums[k:], axis=axis))


def _totals(values: np.ndarray, within: Clusters) -> list[np.ndarray]:
    """Counts per cluster, then sums per cluster of each row of values [rows, N]."""
    totals, counts = within.totals(values)
    return [counts, *totals]


def _inside(one: Curve, within: tuple[float, float]) -> np.ndarray:
    """Which scales lie within the bounds."""
    return np.array([within[0] <= g <= within[1] for g in one.scales])
