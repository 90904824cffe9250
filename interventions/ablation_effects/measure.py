"""Effects of ablating groups of heads on tasks: Δ of the answer's probability and log-odds (PLS §5.1)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, effect_contrasts
from streamscope.instruments.open_data import task_block
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Column, Table, key, number, quantity
from streamscope.interventions import controls
from streamscope.interventions.ablation_effects import AblationEffects, diagonality, ratios
from streamscope.interventions.ablation_effects.ratios import GROUP, TASK, changes
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, observe_task
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
    units = {task.name: opened.units(task) for task in opened.tasks}
    own_groups = diagonality.own_groups(options.diagonal, list(units), [group.name for group in groups])
    heads, every = [group.heads for group in groups], every_head(model)
    sweep = controls.plan(heads, [0.0], every, scale_heads, draws=options.draws, seed=options.seed)
    edits: list[tuple[str, int, int | None]] = [("", -1, None)]
    for group, (members, g, drawn) in zip(groups, sweep.cells, strict=True):
        edits += [(group.name, draw, sweep.index[ablated, g]) for draw, ablated in enumerate([members, *drawn], -1)]
    rows: dict[str, list[tuple[dict[str, Any], np.ndarray]]] = {name: [] for name in NAMES}
    for task in opened.tasks:
        for measure, result in observe_task(model, task, sweep.edits, progress=progress).items():
            rows[measure] += [({"task": task.name, "group": g, "draw": i}, result.under(edit)) for g, i, edit in edits]
    blocks = {name: task_block(MEASURES[name], units, task_rows) for name, task_rows in rows.items()}
    contrasts = _contrasts(blocks["probability"].cells)
    about = {"title": title_of(model), "tasks": opened.title(), "groups": {g.name: g.label for g in groups}}
    return InstrumentData(blocks, dict.fromkeys(blocks, contrasts), about, extra=(opened.tasks, groups, own_groups))


def _contrasts(cells: pd.DataFrame) -> list[Contrast]:
    """Per task and group: the effects of the group and of the random sets. Holm's family is tasks × groups."""
    out = []
    for (task, group), rows in cells[cells["group"] != ""].groupby(list(KEYS), sort=False):
        base = int(cells.index[(cells["task"] == task) & (cells["group"] == "")][0])
        edited, *drawn = map(int, rows.index)
        labels = {"task": task, "group": group}
        out += effect_contrasts("edited", {edited: 1.0}, base, labels)
        out += controls.against_random(edited, base, drawn, labels, "" if drawn else controls.NO_DRAWS)
    return out


def tables(options: AblationEffects, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One per measure, a row per task and group; and diagonality."""
    tasks, groups, own_groups = data.extra
    rules, heads = {task.name: task.rule for task in tasks}, {group.name: group.label for group in groups}
    out = {}
    for name, block in data.blocks.items():
        frame, missing = controls.beside_draws(block, estimates[name], KEYS, resamples=options.resamples)
        frame.insert(2, "heads", frame["group"].map(heads))
        frame.insert(3, "rule", frame["task"].map(rules))
        change = changes(block)
        frame["spread"] = [change[pair].std(ddof=1) for pair in zip(frame["task"], frame["group"], strict=True)]
        title = f"{data.about['title']}: change of {NAMES[name]} from ablating groups of heads; {data.about['tasks']}"
        out[name] = Table(frame, columns_of(name), missing, title)
    return {**out, "diagonality": diagonality.table(data.blocks, own_groups, seed=options.seed)} if own_groups else out


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    return {"ratios": ratios.table(run.blocks, control.blocks)}


def columns_of(name: str) -> tuple[Column, ...]:
    unit, source = MEASURES[name].unit, "PLS Table 2"
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
        *controls.RANK_COLUMNS, *controls.EFFECT_SIZES, *controls.CASES,
    )  # fmt: skip
