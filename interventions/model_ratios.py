"""How much larger a model's effects are than a control model's: ratios of spreads and of means (PLS Table 2, Fig. 4b).

    ratio of sds     sd_i(Δ_i, model) / sd_i(Δ_i, control)         ratio of means     mean Δ, model / mean Δ, control

over the cases that both models can score, whole clusters resampled together in both (`estimators.statistic_interval`).

No ratio is printed where its denominator is 0: no case of the control changed, or its mean is 0. A ratio of
means has no bounded interval where the control's mean cannot be told from 0 (Fieller 1954): then the ratio stands
without interval, "undefined". Fewer than eight clusters have no bootstrap interval.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from streamscope.interventions.model_differences import shared_cases
from streamscope.interventions.observe import SMALLEST
from streamscope.models.errors import InputError
from streamscope.probes.stats.estimators import BOOTSTRAP_CLUSTERS, mean, read_clusters, statistic_interval
from streamscope.probes.stats.t_tests import constant
from streamscope.probes.undefined import note

if TYPE_CHECKING:
    from streamscope.interventions.task_effects import Effects

NAN = float("nan")
FLAT, UNSURE = "no case of the control changes", "the control's mean cannot be told from 0"
FEW = f"fewer than {BOOTSTRAP_CLUSTERS} independent cases to resample"
SAME = "the ratio does not vary over resamples"
UNITS = {
    "sd": "units of the measure, between cases",
    "control_sd": "units of the measure, between cases",
    "mean": "units of the measure",
    "control_mean": "units of the measure",
    "sd_ratio": "no unit",
    "mean_ratio": "no unit",
    "n": "cases that both models score",
    "clusters": "independent cases, or the fewest words of a kind where cases share words",
}


def ratio_of_changes(
    x: np.ndarray, y: np.ndarray, clusters: Any, *, resolution: float, resamples: int = 5000, seed: int = 0
) -> dict[str, Any]:
    """sd_ratio and mean_ratio of x over y, the same cases, each with _low and _high; undefined as this module says.

    Raises `InputError` for unequal lengths.
    """
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"a ratio of effects needs the same two or more cases, got {len(x)} and {len(y)}")
    within = read_clusters(clusters, len(x))
    columns = [within.totals(v)[0] for v in (np.ones(len(x)), x, x * x, y, y * y)]
    d = within.count
    row: dict[str, Any] = {"n": len(x), "clusters": d, "sd": float(x.std(ddof=1)), "control_sd": float(y.std(ddof=1))}
    row |= {"mean": float(x.mean()), "control_mean": float(y.mean())}
    why: dict[str, str] = {}
    statistics: dict[str, Callable[..., np.ndarray]] = {"sd_ratio": sd_ratio, "mean_ratio": mean_ratio}
    names = [f"{name}{end}" for name in statistics for end in ("", "_low", "_high")]
    row |= dict.fromkeys(names, NAN)
    if np.abs(y).max() <= resolution:
        return {**row, "undefined": note(dict.fromkeys(names, FLAT))}
    for name, statistic in statistics.items():
        ends = (f"{name}_low", f"{name}_high")
        if name == "sd_ratio" and constant(y):
            why |= dict.fromkeys((name, *ends), "the control changes by the same in every case")
            continue
        row[name] = float(statistic(*columns))
        if name == "mean_ratio" and (d < 2 or _holds_zero(y, clusters)):
            why |= dict.fromkeys(ends, UNSURE if d > 1 else FEW)
        elif d < BOOTSTRAP_CLUSTERS:
            why |= dict.fromkeys(ends, FEW)
        else:
            low, high = statistic_interval(statistic, *columns, within=within, resamples=resamples, seed=seed)
            if np.isfinite(low) and np.isfinite(high):
                row |= {ends[0]: float(low), ends[1]: float(high)}
            else:
                why |= dict.fromkeys(ends, SAME)
    return {**row, "undefined": note(why)}


def _holds_zero(y: np.ndarray, clusters: Any) -> bool:
    found = mean(y, clusters)
    return not (found.ci_low > 0 or found.ci_high < 0)


def sd_ratio(n: Any, x: Any, xx: Any, y: Any, yy: Any, axis: int = -1) -> np.ndarray:
    """Ratio of standard deviations from totals per cluster: n, Σx, Σx², Σy, Σy²."""
    m = n.sum(axis)
    vx, vy = (s2.sum(axis) - s.sum(axis) ** 2 / m for s, s2 in ((x, xx), (y, yy)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.maximum(vx, 0) / vy))


def mean_ratio(n: Any, x: Any, xx: Any, y: Any, yy: Any, axis: int = -1) -> np.ndarray:
    """Σx / Σy."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(x.sum(axis) / y.sum(axis))


def compare_models(run: "Effects", control: "Effects", *, resamples: int = 5000) -> pd.DataFrame:
    """One row per measure, task and group of both models: `ratio_of_changes` over the cases that both score.

    Raises `InputError` where no two cases are common.
    """
    rows = []
    for key, x in run.changes.items():
        measure, task, group = key
        if key not in control.changes:
            continue
        mine, theirs = run.cases[task], control.cases[task]
        common, at = shared_cases(mine, theirs, task)
        changes = (x[common], control.changes[key][at])
        result = ratio_of_changes(
            *changes, mine["cluster"].to_numpy()[common], resolution=SMALLEST[measure], resamples=resamples
        )
        rows.append({"measure": measure, "task": task, "group": group, **result})
    return pd.DataFrame(rows)
