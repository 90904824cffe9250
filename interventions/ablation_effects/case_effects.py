"""Δ of every case, from the observations of ablated groups on tasks."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from streamscope.instruments.observations import Observations


def changes(block: Observations) -> dict[tuple[str, str], np.ndarray]:
    """(task, group) -> Δ [cases] of a measure: ablated minus unedited, in the order of `cases`."""
    deltas = {}
    for row, (task, group, draw) in enumerate(block.cells[["task", "group", "draw"]].itertuples(index=False)):
        if group and draw < 0:
            change = block.total[row] - block.total[block.cell(task=task, group="")]
            deltas[task, group] = change[block.inside[row]]
    return deltas


def cases(block: Observations, task: str) -> pd.DataFrame:
    """The units of a task."""
    return block.units[block.units["task"] == task].reset_index(drop=True)


def rows(blocks: Mapping[str, Observations]) -> pd.DataFrame:
    """One row per case, group and measure: the columns of the case, and `delta`."""
    parts = [
        cases(block, task).assign(group=group, measure=name, delta=delta)
        for name, block in blocks.items()
        for (task, group), delta in changes(block).items()
    ]
    return pd.concat(parts, ignore_index=True)
