"""Ratios of a model's effects to a control model's: of spreads and of means (PLS Table 2, Fig. 4b).

    spread ratio     sd_i(Δ_i, model) / sd_i(Δ_i, control)         mean ratio     mean Δ, model / mean Δ, control

over the cases that both models can score. Clusters are resampled as a whole, jointly in both. A ratio of means has no
bounded interval if the control's mean is not significantly different from 0 (Fieller 1954); then only the ratio is
given.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments import observations
from streamscope.instruments.observations import Contrast, Measure, Observations, Reasons
from streamscope.instruments.stats.estimators import constant
from streamscope.instruments.table import Table, counts, described, key, number
from streamscope.interventions.controls import SHARING

NAN = float("nan")
FLAT, UNSURE = "no case of the control changes", "the control's mean is not significantly different from 0"
EQUAL = "the control changes by the same in every case"
ENDS = ("", "_low", "_high")


def changes(block: Observations) -> dict[tuple[str, str], np.ndarray]:
    """(task, group) -> Δ [cases] of a measure: ablated minus unedited, in the order of `cases`."""
    deltas = {}
    for row, (task, group, draw) in enumerate(block.cells[["task", "group", "draw"]].itertuples(index=False)):
        if group and draw < 0:
            change = block.total[row] - block.total[block.cell(task=task, group="")]
            deltas[task, group] = change[block.inside[row]]
    return deltas


def cases(block: Observations, task: str) -> pd.DataFrame:
    return block.units[block.units["task"] == task].reset_index(drop=True)


def sd_ratio(n: Any, x: Any, xx: Any, y: Any, yy: Any, axis: int = -1) -> np.ndarray:
    """Ratio of standard deviations, from totals per cluster: n, Σx, Σx², Σy, Σy²."""
    m = n.sum(axis)
    vx, vy = (s2.sum(axis) - s.sum(axis) ** 2 / m for s, s2 in ((x, xx), (y, yy)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.maximum(vx, 0) / vy))


def mean_ratio(n: Any, x: Any, xx: Any, y: Any, yy: Any, axis: int = -1) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(x.sum(axis) / y.sum(axis))


STATISTICS: dict[str, Callable[..., np.ndarray]] = {"sd_ratio": sd_ratio, "mean_ratio": mean_ratio}


def ratio_of_changes(
    x: np.ndarray, y: np.ndarray, clusters: Any, *, resolution: float, resamples: int = 2000
) -> tuple[dict[str, Any], dict[str, str]]:
    """sd_ratio and mean_ratio of x over y on the same cases, with _low and _high, and reasons for missing ones."""
    measure = Measure(name="change", unit="of the measure", resolution=resolution)
    units = pd.DataFrame({"unit": range(len(x)), "cluster": list(range(len(x)) if clusters is None else clusters)})
    cells = pd.DataFrame({"model": ["run", "control"]})
    joint = Observations(measure=measure, cells=cells, units=units, total=np.stack([x, y]), size=1.0)
    row = {"sd": x.std(ddof=1), "control_sd": y.std(ddof=1), "mean": x.mean(), "control_mean": y.mean()}
    reasons: dict[str, str] = {}

    def sums(total: np.ndarray, size: np.ndarray) -> list[np.ndarray]:
        return [np.ones(len(x)), x, x * x, y, y * y]

    for name, statistic in STATISTICS.items():
        interval = observations.bootstrap(joint, [0, 1], statistic, sums, resamples=resamples)
        numbers, lost = observations.interval_columns(name, interval)
        row |= {**numbers, "n": interval[0]["n"], "clusters": interval[0]["clusters"]}
        reasons |= lost
    if np.abs(y).max() <= resolution:
        gone = {f"{name}{end}": FLAT for name in STATISTICS for end in ENDS}
    else:
        of_control = observations.estimate(joint, [Contrast(quantity="control", weights={1: 1.0})]).frame.iloc[0]
        low, high = of_control[["low", "high"]].fillna(of_control["value"])
        sure = low > 0 or high < 0
        gone = {f"sd_ratio{end}": EQUAL for end in ENDS} if constant(y) else {}
        gone |= {} if sure else {f"mean_ratio{end}": UNSURE for end in ENDS[1:]}
    return row | dict.fromkeys(gone, NAN), reasons | gone


def table(run: Mapping[str, Observations], control: Mapping[str, Observations], *, resamples: int = 5000) -> Table:
    """One row per measure, task and group of both models: `ratio_of_changes` over the cases that both can score. Raises
    `InputError` if they share fewer than two cases."""
    rows: list[dict[str, Any]] = []
    missing: Reasons = {}
    for name, block in run.items():
        run_block, control_block = observations.on_shared_units(block, control[name])
        of_control = changes(control_block)
        for (task, group), x in changes(run_block).items():
            if (task, group) not in of_control:
                continue
            if len(x) < 2:
                raise InputError(f"task {task!r}: fewer than two cases can be scored with both models' tokenizers")
            ratios, reasons = ratio_of_changes(
                x, of_control[task, group], cases(run_block, task)["cluster"].to_numpy(),
                resolution=block.measure.resolution, resamples=resamples,
            )  # fmt: skip
            missing |= {(len(rows), column): text for column, text in reasons.items()}
            rows.append({"measure": name, "task": task, "group": group, **ratios})
    title = "Effects of the model divided by effects of the control: spreads and means of Δ"
    return Table(pd.DataFrame(rows), COLUMNS, missing, title)


MIXED = "units of the measure"
MEASURE = key("measure", "measure", "probability of the answer, or log_odds of answer against foil in nats")
TASK = key("task", "task", "the task whose answers are scored")
GROUP = key("group", "group", "the ablated group of heads")
ratio = partial(described, unit="ratio", format=".3f", source="PLS Table 2")
COLUMNS = (
    MEASURE, TASK, GROUP,
    number("sd", "spread, model", f"{MIXED}, between cases", "standard deviation of the model's Δ", ".4f"),
    number("control_sd", "spread, control", f"{MIXED}, between cases", "standard deviation of the control's Δ", ".4f"),
    *ratio("sd_ratio", "spread ratio", doc="spread of the model / spread of the control"),
    number("mean", "mean Δ, model", MIXED, "mean Δ of the model", "+.4f"),
    number("control_mean", "mean Δ, control", MIXED, "mean Δ of the control", "+.4f"),
    *ratio("mean_ratio", "mean ratio", doc="mean Δ of the model / mean Δ of the control"),
    *counts("cases that both models score", SHARING),
)  # fmt: skip
