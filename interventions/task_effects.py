"""What ablating groups of heads does to tasks: Δ of the answer's probability and log-odds (PLS §5.1), with controls.

    Δ = P_ablated(answer) − P_baseline(answer)          per case, in probability; log-odds likewise, in nats

Negative: the heads contributed to the answer; positive: they interfered.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from streamscope.interventions.batch import answer_log_probs
from streamscope.interventions.controls import Sweep, control_columns, plan
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.effects import Cell, by_construction, effect_rows, holm
from streamscope.interventions.groups import Group
from streamscope.interventions.observe import NAMES, SMALLEST, Observed
from streamscope.interventions.selection import every_head
from streamscope.models.errors import InputError
from streamscope.models.hooks import Edits
from streamscope.probes.prompts.tasks import Task
from streamscope.probes.stats.estimators import read_clusters
from streamscope.probes.stats.t_tests import clustered_t
from streamscope.probes.undefined import note, reasons

MEASURES = ("probability", "log_odds")
UNITS = {
    "baseline": "units of the measure: probability, or nats of log-odds",
    "condition": "units of the measure",
    "difference": "units of the measure, ablated − baseline",
    "sd": "units of the measure, between cases",
    "ci_low": "units of the measure",
    "ci_high": "units of the measure",
    "d": "pooled standard deviations",
    "d_z": "standard deviations of the differences",
    "n": "cases",
    "clusters": "independent cases, or the fewest words of a kind where cases share words",
    "control": "units of the measure, mean over random sets of as many heads",
    "control_sd": "units of the measure, between random sets",
    "draws": "random sets",
    "above": "units of the measure, difference − control",
    "delta": "units of the measure, ablated − baseline",
}


def observe_task(
    model: Any, task: Task, sweep: Sequence[Edits], *, progress: Callable[[Iterable], Iterable] = iter
) -> dict[str, Observed]:
    """`probability` and `log_odds` of every case of a task, unedited and under every edit."""
    reads = task.reads
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, sweep, progress=progress)
    cases = task.cases[list(NAMES)]
    return {m: Observed(m, cases, ("all",), v[0][None], v[1:, None]) for m, v in task.scores(log_p).items()}


@dataclass(frozen=True)
class Effects:
    """Of one model: the table of task × group × measure, and Δ of every case [cases] behind each of its rows."""

    table: pd.DataFrame
    changes: Mapping[tuple[str, str, str], np.ndarray]
    """(measure, task, group) -> Δ per case of `cases[task]`."""
    cases: Mapping[str, pd.DataFrame]

    def rows(self) -> pd.DataFrame:
        """One row per case, group and measure."""
        parts = [
            self.cases[task].assign(task=task, group=group, measure=measure, delta=delta)
            for (measure, task, group), delta in self.changes.items()
        ]
        return pd.concat(parts, ignore_index=True)


def ablate_tasks(
    model: Any,
    tasks: Sequence[Task],
    groups: Sequence[Group],
    *,
    draws: int = 39,
    seed: int = 0,
    resamples: int = 2000,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Effects:
    """Ablate each group (z ← 0) on every task: one row per measure, task and group.

    `comparisons.compare` of ablated with baseline, units of inference are the tasks' clusters; p_holm corrects over the
    tasks × groups of a measure. `control` is the mean effect of other random sets of as many heads (`controls`).
    Raises `InputError` for a task with fewer than two independent cases.
    """
    for task in tasks:
        if read_clusters(task.cases["cluster"], len(task.cases)).count < 2:
            raise InputError(f"task {task.name!r} has one independent case that can be scored; two are needed")
    sweep: Sweep = plan([g.heads for g in groups], [0.0], every_head(model), scale_heads, draws=draws, seed=seed)
    parts, changes = [], {}
    for task in tasks:
        cells = [
            Cell(g.heads, 0.0, at, {"task": task.name, "group": g.name, "heads": g.label, "rule": task.rule})
            for g, at in zip(groups, sweep.index, strict=True)
        ]
        for measure, one in observe_task(model, task, sweep.edits, progress=progress).items():
            table = effect_rows(one, cells, model.config.n_layers, resamples=resamples).drop(columns="part")
            added, _ = prompt_controls(one, sweep, model.config.n_layers)
            both = zip(table["undefined"], added["undefined"], strict=True)
            added["undefined"] = [note(reasons(a) | reasons(b)) for a, b in both]
            parts.append(table.assign(**added))
            for cell in cells:
                key = (measure, task.name, str(cell.labels["group"]))
                changes[key] = one.under(cell.edit) - one.under(None)
    table = pd.concat(parts, ignore_index=True)
    table = holm(holm(table, ("measure",)), ("measure",), "p_above")
    return Effects(table, changes, {task.name: task.cases for task in tasks})


def prompt_controls(observed: Observed, sweep: Sweep, n_layers: int) -> tuple[dict[str, Any], list[bool]]:
    """Columns of the controls, the reasons of their empty cells among them, and the cells that cannot have any."""

    within = read_clusters(observed.cases["cluster"].to_numpy(), len(observed.cases))
    rows, impossible = [], []
    for (heads, g), at, controls in zip(sweep.cells, sweep.index, sweep.controls, strict=True):
        able = [i for drawn, i in controls if not by_construction(observed.measure, "all", drawn, n_layers)]
        change = observed.under(at) - observed.under(None)
        others = np.array([observed.under(i) - observed.under(None) for i in able])
        paired = clustered_t(*within.totals(change - others.mean(0)), within.shared) if able else None
        effects = others.mean(-1) if able else []
        row = control_columns(float(change.mean()), effects, paired, g, resolution=SMALLEST[observed.measure])
        rows.append({"undefined": note(row.pop("why")), **row})
        impossible.append(by_construction(observed.measure, "all", heads, n_layers))
    return {name: [row[name] for row in rows] for name in rows[0]}, impossible
