"""Effects of ablating groups of heads on tasks: Δ of the answer's probability and log-odds (PLS §5.1), with controls.

    Δ = P_ablated(answer) − P_baseline(answer)          per case, in probability; log-odds likewise, in nats

Negative: the heads contributed to the answer; positive: they interfered.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, Observations, Reasons, effect_contrasts
from streamscope.instruments.open_data import task_block
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Column, Table, counts, key, number, quantity
from streamscope.interventions.ablation_effects import AblationEffects, diagonality, ratios
from streamscope.interventions.ablation_effects.case_effects import changes
from streamscope.interventions.controls import EFFECT_SIZES, NO_DRAWS, RANK_COLUMNS, beside_draws, effect_sizes, plan
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, UNIT, observe_task
from streamscope.interventions.selection import HeadFinder
from streamscope.models.head_spec import every_head

KEYS = ("task", "group")
NAMES = {"probability": "P(answer)", "log_odds": "log-odds"}
"""The measures, and their names in titles."""


def observe(options: AblationEffects, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: each task unedited, with each group ablated, and with each random set ablated. Units: cases of all
    tasks."""
    opened = data[Tasks]
    for task in opened.tasks:
        if read_clusters(task.cases["cluster"], len(task.cases)).count < 2:
            raise InputError(f"task {task.name!r} has one independent case that can be scored; it needs two")
    groups = HeadFinder(model, opened.tokenizer, k=options.k, layers=options.layers).groups(options.groups)
    own_groups = diagonality.own_groups(
        options.diagonal, [task.name for task in opened.tasks], [group.name for group in groups]
    )
    sweep = plan(
        [g.heads for g in groups], [0.0], every_head(model), scale_heads, draws=options.draws, seed=options.seed
    )
    edits: list[tuple[str, int, int | None]] = [("", -1, None)]
    for group, index, drawn in zip(groups, sweep.index, sweep.controls, strict=True):
        edits += [(group.name, draw, edit) for draw, edit in enumerate([index, *(i for _, i in drawn)], -1)]
    rows: dict[str, list[tuple[dict[str, Any], np.ndarray]]] = {name: [] for name in NAMES}
    for task in opened.tasks:
        for measure, result in observe_task(model, task, sweep.edits, progress=progress).items():
            rows[measure] += [({"task": task.name, "group": g, "draw": i}, result.under(edit)) for g, i, edit in edits]
    units = {task.name: opened.units(task) for task in opened.tasks}
    blocks = {name: task_block(MEASURES[name], units, task_rows) for name, task_rows in rows.items()}
    contrasts = _contrasts(blocks["probability"].cells)
    about = {"title": title_of(model), "tasks": opened.title(), "groups": {g.name: g.label for g in groups}}
    return InstrumentData(blocks, dict.fromkeys(blocks, contrasts), about, extra=(opened.tasks, groups, own_groups))


def _contrasts(cells: pd.DataFrame) -> list[Contrast]:
    """Per task and group: the effects of the group and of the random sets. Holm's family is tasks × groups."""
    out = []
    for (task, group), rows in cells[cells["group"] != ""].groupby(list(KEYS), sort=False):
        base = int(cells.index[(cells["task"] == task) & (cells["group"] == "")][0])
        edited, drawn = int(rows.index[0]), [int(i) for i in rows.index[1:]]
        share, less = (dict.fromkeys(drawn, sign / max(1, len(drawn))) for sign in (1, -1))
        labels, none = {"task": task, "group": group}, "" if drawn else NO_DRAWS
        out += [
            *effect_contrasts("edited", {edited: 1.0}, base, labels),
            Contrast(quantity="control", weights={**share, base: -1.0}, labels=labels, null=None, missing=none),
            Contrast(quantity="above", weights={edited: 1.0, **less}, labels=labels, missing=none),
        ]
    return out


def tables(options: AblationEffects, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One table per measure with a row per task and group, and the diagonality."""
    tasks, groups, own_groups = data.extra
    rules, heads = {task.name: task.rule for task in tasks}, {group.name: group.label for group in groups}
    out = {}
    for name, block in data.blocks.items():
        frame, missing = table_of(block, estimates[name], options.resamples)
        frame.insert(2, "heads", frame["group"].map(heads))
        frame.insert(3, "rule", frame["task"].map(rules))
        description = f"change of {NAMES[name]} from ablating groups of heads"
        out[name] = Table(
            frame, columns_of(name), missing, f"{data.about['title']}: {description}; {data.about['tasks']}"
        )
    return {**out, "diagonality": diagonality.table(data.blocks, own_groups, seed=options.seed)} if own_groups else out


def table_of(block: Observations, estimates: Estimates, resamples: int) -> tuple[pd.DataFrame, Reasons]:
    """The numbers of one measure, a row per task and group, and why cells have no value."""
    frame, missing = estimates.wide(KEYS)
    deltas = [c for c in estimates.contrasts if c.quantity == "delta"]
    change, more = changes(block), []
    for row, (task, group, delta) in enumerate(frame[[*KEYS, "delta"]].itertuples(index=False, name=None)):
        in_group = (block.cells["task"] == task) & (block.cells["group"] == group)
        drawn = block.cells.index[in_group & (block.cells["draw"] >= 0)]
        base = block.total[block.cell(task=task, group="")]
        effects = [float((block.total[i] - base)[block.inside[i]].mean()) for i in drawn]
        rank, reasons = beside_draws(delta, effects, NO_DRAWS)
        missing |= {(row, column): text for column, text in reasons.items()}
        sizes = effect_sizes(block, list(deltas[row].weights), row, missing, resamples)
        more.append({"spread": change[task, group].std(ddof=1), **rank, **sizes})
    return frame.assign(**pd.DataFrame(more)), missing


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    """Ratios of the model's effects to the control's."""
    return {"ratios": ratios.table(run.blocks, control.blocks)}


TASK = key("task", "task", "the task whose answers are scored")
GROUP = key("group", "group", "the ablated group of heads")


def columns_of(name: str) -> tuple[Column, ...]:
    """The columns of the table of a measure."""
    unit, source = UNIT[name], "PLS Table 2"
    return (
        TASK, GROUP,
        key("heads", "heads", "the heads of the group", "layer and index"),
        key("rule", "rule", "scoring: the answer's token after a prompt, or the good one of two sentences",
            shown=False),
        number("edited", f"{NAMES[name]}, ablated", unit, f"{NAMES[name]} with the heads ablated", ".4f", shown=False),
        number("baseline", f"{NAMES[name]}, unedited", unit, f"{NAMES[name]} of the unedited model", ".4f"),
        *quantity("delta", f"Δ {NAMES[name]}", unit, "ablated − unedited", sd="cases", source=source),
        number("spread", "spread of Δ", f"{unit}, between cases", "standard deviation of Δ between cases", ".4f",
               source="PLS §5.2, Fig. 4b"),
        number("control", "Δ, random heads", unit, "control: mean Δ of random other groups of as many heads", "+.4f"),
        *quantity("above", "Δ − random heads", unit, "Δ − control", sd="cases", shown=False),
        *RANK_COLUMNS, *EFFECT_SIZES,
        *counts("cases", "independent cases, or the fewest words of a kind if cases share words"),
    )  # fmt: skip
