"""How a behaviour follows the scale of a group of heads: levels, control range, monotonicity, leverage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from streamscope.cli.errors import InputError
from streamscope.instruments import observations
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Documents, Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import rank_among
from streamscope.instruments.table import Column, Table, counts, described, key, note, number, quantity
from streamscope.interventions.controls import CASES, plan
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, observe_loss, observe_task, task_blocks
from streamscope.interventions.selection import HeadFinder
from streamscope.interventions.steer_heads import SteerHeads
from streamscope.models.head_spec import every_head

NAN = float("nan")
BASELINE = "scale 1 is the baseline itself"
NO_CHANGE, NO_DRAWS = "no case changes with the scale", "no random groups were drawn"
CONTROL_CONSTANT = "the control does not change"
KEYS = ("task", "group")
NAMES = {"probability": "P(answer)", "log_odds": "log-odds", "loss": "loss"}
"""The measures, and their names in titles."""
Blocks = Mapping[str, Observations]


def observe(options: SteerHeads, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: groups (draw −1) and random groups at every scale, for every task; scale 1 is the unedited model. Units:
    cases of the tasks, or documents."""
    opened, scales = data[Tasks], options.chosen
    groups = HeadFinder(model, opened.tokenizer, k=options.k, layers=options.layers).groups(options.groups)
    heads, every = [group.heads for group in groups], every_head(model)
    sweep = plan(heads, scales, every, scale_heads, draws=options.draws, seed=options.seed)
    cells = [
        ({"group": group.name, "scale": scale, "draw": i}, None if scale == 1 else sweep.index[members, scale])
        for (group, scale), (own, _, drawn) in zip(product(groups, scales), sweep.cells, strict=True)
        for i, members in enumerate([own, *drawn], -1)
    ]
    tasks = opened.tasks if "task" in options.measures else ()
    cases = {t.name: (observe_task(model, t, sweep.edits, progress=progress), opened.units(t)) for t in tasks}
    blocks = task_blocks(cases, cells)
    if "loss" in options.measures:
        documents = data[Documents]
        losses = observe_loss(model, sweep.edits, documents, progress=progress)
        blocks |= task_blocks({"documents": ({"loss": losses}, documents.units())}, cells)
    about = {"title": title_of(model), "tasks": opened.title(), "groups": {g.name: g.label for g in groups}}
    contrasts = {name: contrasts_of(block) for name, block in blocks.items()}
    for name, block in list(blocks.items()):
        rho, of_rho = monotonicity(block, options.within)
        if rho.inside.any():
            blocks[f"{name}-monotonicity"], contrasts[f"{name}-monotonicity"] = rho, of_rho
    return InstrumentData(blocks, contrasts, about)


def contrasts_of(block: Observations) -> list[Contrast]:
    """Level and change from scale 1, for every group and scale; Holm's family is a task's groups and scales."""
    group_cells, out = block.cells[block.cells["draw"] == -1], []
    for (task, _), rows in group_cells.groupby(list(KEYS), sort=False):
        base, family = rows.index[rows["scale"] == 1][0], f"{block.measure.name} of {task}"
        for i, labels in zip(rows.index, rows.drop(columns="draw").to_dict("records"), strict=True):
            weights, fixed = ({base: 0.0}, BASELINE) if i == base else ({i: 1.0, base: -1.0}, "")
            out += [
                Contrast(quantity="level", weights={i: 1.0}, labels=labels, tested=False),
                Contrast(quantity="change", weights=weights, labels=labels, family=family, fixed=fixed),
            ]
    return out


def curves_of(block: Observations, within: tuple[float, float]) -> dict[tuple[str, str], list[int]]:
    """(task, group) -> its cells, in the order of the scales within bounds."""
    cells = block.cells[(block.cells["draw"] == -1) & block.cells["scale"].between(*within)].sort_values("scale")
    return {(str(task), str(group)): list(rows.index) for (task, group), rows in cells.groupby(list(KEYS), sort=False)}


def spearman(scales: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Spearman's ρ [N] of values [S, N] with scales [S], mean ranks for ties; NaN for a constant column."""
    x, y = rankdata(scales) - (len(scales) + 1) / 2, rankdata(values, axis=0) - (len(scales) + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x[:, None] * y).sum(0) / np.sqrt((x**2).sum() * (y**2).sum(0)))


def _of_cases(block: Observations, cells: Sequence[int]) -> np.ndarray:
    return np.asarray(block.total[cells] / np.where(block.inside[cells], block.sizes[cells], 1.0))


def monotonicity(block: Observations, within: tuple[float, float]) -> tuple[Observations, list[Contrast]]:
    """Spearman's ρ between scale and measure for every case that changes, per task and group, and its means."""
    curves = curves_of(block, within)
    total, size = np.zeros((2, len(curves), len(block.units)))
    for row, weights, cells in zip(total, size, curves.values(), strict=True):
        values = _of_cases(block, cells)
        moved = np.ptp(values, axis=0) > block.measure.resolution
        row[moved], weights[moved] = spearman(block.cells["scale"].to_numpy()[cells], values[:, moved]), 1.0
    name = f"monotonicity of {block.measure.name}"
    measure = Measure(name=name, unit="Spearman's ρ", resolution=1e-9, limits=(-1.0, 1.0))
    keys = pd.DataFrame(list(curves), columns=list(KEYS))
    rho = Observations(measure=measure, cells=keys, units=block.units, total=total, size=size)
    missing = ["" if n else NO_CHANGE for n in rho.inside.sum(1)]
    return rho, observations.each("spearman", keys, tested=False, missing=missing)


def curve_range(y: np.ndarray, n: np.ndarray, axis: int = -1) -> np.ndarray:
    """max − min over cells of Σ y / Σ n, from totals and sizes [cells, …]."""
    return np.asarray(np.ptp(y.sum(axis) / n.sum(axis), axis=0))


def range_ratio(k: int, y: np.ndarray, n: np.ndarray, axis: int = -1) -> np.ndarray:
    """`curve_range` of the first k cells divided by that of the others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(curve_range(y[:k], n[:k], axis) / curve_range(y[k:], n[k:], axis))


def ranges(blocks: Blocks, within: tuple[float, float], heads: Mapping[str, str]) -> Table:
    """One row per measure, task and group: control range and those of random groups; monotonicity of cases and mean.
    `heads` names the heads of each group."""
    rows = list[dict[str, Any]]()
    for name in (name for name in NAMES if name in blocks):
        block = blocks[name]
        rho, of_rho = monotonicity(block, within)
        estimates, lost = observations.estimate(rho, of_rho).wide(KEYS)
        for i, ((task, group), cells) in enumerate(curves_of(block, within).items()):
            row, reasons = _range(block, task, group, cells)
            row |= {"measure": name, "heads": heads[group], **estimates.drop(columns="spearman_sd").loc[i].to_dict()}
            reasons |= {column: lost[i, column] for column in row if (i, column) in lost}
            moves, mean, scales = row["n"] > 0, block.values[cells, None], block.cells["scale"].to_numpy()[cells]
            row |= {"flat": int(block.inside[cells[0]].sum()) - row["n"], "spearman_curve": NAN}
            if moves:
                row["spearman_curve"] = float(spearman(scales, mean)[0])
            if np.isnan(row["spearman_curve"]):
                reasons["spearman_curve"] = "the mean over cases does not change" if moves else NO_CHANGE
            rows.append({**row, "undefined": note(reasons)})
    title = f"Control range and monotonicity, scales {within[0]:g} to {within[1]:g}"
    frame = pd.DataFrame(rows)[[*(column.name for column in CURVES), "undefined"]]
    return Table.noted(frame, CURVES, title)


def _range(block: Observations, task: str, group: str, cells: list[int]) -> tuple[dict[str, Any], dict[str, str]]:
    row, reasons = observations.interval_columns("range", observations.bootstrap(block, cells, curve_range))
    if not (np.ptp(_of_cases(block, cells), axis=0) > block.measure.resolution).any():
        row |= {"range_low": NAN, "range_high": NAN}
        reasons = dict.fromkeys(("range_low", "range_high"), NO_CHANGE)
    group_cells = block.cells[(block.cells["task"] == task) & (block.cells["group"] == group)]
    scales = block.cells["scale"].to_numpy()[cells]
    base = block.values[group_cells.index[(group_cells["draw"] == -1) & (group_cells["scale"] == 1)][0]]
    draws = group_cells[(group_cells["draw"] >= 0) & group_cells["scale"].isin(scales)].groupby("draw")
    drawn = [float(np.ptp([*block.values[rows.index], *([base] if 1.0 in scales else [])])) for _, rows in draws]
    row |= dict.fromkeys(("random_range", "p_rank", "p_rank_min"), NAN) | {"draws": len(drawn)}
    if drawn:
        rank = rank_among(row["range"], np.array(drawn), alternative="greater")
        row |= {"random_range": float(np.mean(drawn)), "p_rank": rank.p, "p_rank_min": rank.p_min}
    else:
        reasons |= dict.fromkeys(("random_range", "p_rank", "p_rank_min"), NO_DRAWS)
    return row, reasons


def leverage(run: Blocks, control: Blocks, within: tuple[float, float]) -> Table:
    """One row per measure, task and group of both models: control ranges and their ratio, over shared cases. Raises
    `InputError` if the models share fewer than two cases of a task."""
    rows = list[dict[str, Any]]()
    for name in (name for name in ("probability", "log_odds") if name in run and name in control):
        block, control_block = observations.on_shared_units(run[name], control[name])
        control_curves = curves_of(control_block, within)
        for (task, group), cells in curves_of(block, within).items():
            if (task, group) not in control_curves:
                continue
            shared_cases = block.inside[cells[0]]
            if shared_cases.sum() < 2:
                raise InputError(f"task {task!r}: fewer than two cases can be scored with both models' tokenizers")
            x = block.total[cells][:, shared_cases]
            y = control_block.total[control_curves[task, group]][:, shared_cases]
            joint = replace(block.at(shared_cases),
                            cells=pd.DataFrame({"model": ["run"] * len(x) + ["control"] * len(y)}),
                            total=np.concatenate([x, y]), size=1.0)  # fmt: skip
            interval = observations.bootstrap(joint, range(len(joint.cells)), partial(range_ratio, len(x)))
            numbers, reasons = observations.interval_columns("leverage", interval)
            if (control_range := float(np.ptp(y.mean(1)))) <= block.measure.resolution:
                numbers, reasons = dict.fromkeys(numbers, NAN), dict.fromkeys(numbers, CONTROL_CONSTANT)
            rows.append({
                "measure": name, "task": task, "group": group, "range": np.ptp(x.mean(1)),
                "control_range": control_range, **numbers, "n": interval[0]["n"], "clusters": interval[0]["clusters"],
                "undefined": note(reasons),
            })  # fmt: skip
    return Table.noted(pd.DataFrame(rows), LEVERAGE, "Leverage: control range of the model divided by its control's")


def tables(options: SteerHeads, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    heads, title = data.about["groups"], data.about["title"]
    out = {}
    for name in (name for name in NAMES if name in data.blocks):
        data_title = data.about["tasks"] if name != "loss" else "documents"
        frame, missing = estimates[name].wide([*KEYS, "scale"])
        frame.insert(2, "heads", frame["group"].map(heads))
        heading = f"{title}: {NAMES[name]} under scaled heads; {data_title}"
        out[name] = Table(frame, columns_of(name), missing, heading)
    return {**out, "curves": ranges(data.blocks, options.within, heads)}


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    table = leverage(run.blocks, control.blocks, tuple(run.about["options"]["within"]))
    return {"leverage": table} if len(table.frame) else {}


TASK = key("task", "task", "the task whose answers are scored, or documents")
GROUP = key("group", "group", "the scaled group of heads")
HEADS = key("heads", "heads", "the heads of the group", "layer and index")
MIXED = "units of the measure: probability, nats, nats/token"


def columns_of(name: str) -> tuple[Column, ...]:
    unit = MEASURES[name].unit
    return (
        TASK, GROUP, HEADS,
        key("scale", "scale", "factor g on the heads' outputs", "factor on z", "g"),
        *described("level", NAMES[name], unit, "mean under scaled heads", sd="cases", source="PLS Fig. 3"),
        *quantity("change", "change", unit, "level − level at scale 1", sd="cases"),
        *CASES,
    )  # fmt: skip


MEASURE = key("measure", "measure", "probability of the answer, log_odds of answer against foil, loss of documents")
RHO = "Spearman's ρ"
CURVES = (
    MEASURE, TASK, GROUP, HEADS,
    *described("range", "control range", MIXED, "largest − smallest mean over the scales", source="PLS §5.2"),
    number("random_range", "range, random heads", MIXED, "control: mean range of random groups of as many heads",
           ".4f"),
    number("p_rank", "p among random heads", "probability",
           "share of groups with at least this range, among the random groups and itself", "p"),
    number("p_rank_min", "smallest p among random heads", "probability",
           "smallest p_rank possible with this number of groups", "p", False),
    number("draws", "random groups", "random groups", "number of random groups compared with", "d", False),
    *described("spearman", "monotonicity", RHO, "between scale and measure within a case, mean over cases that change",
               format="+.2f"),
    number("spearman_curve", "monotonicity of mean", RHO, "between scale and the mean over cases", "+.2f",
           source="PLS §5.2"),
    number("flat", "constant cases", "cases", "cases that do not change with the scale", "d"),
    *counts("cases that change", "independent cases among them"),
)  # fmt: skip
LEVERAGE = (
    MEASURE, TASK, GROUP,
    number("range", "range", MIXED, "control range of the model", ".4f"),
    number("control_range", "range, control", MIXED, "control range of the control", ".4f"),
    *described("leverage", "leverage", "ratio", "range / range of the control", format=".3f", source="PLS §5.2"),
    *counts("cases that both models score", "independent cases"),
)  # fmt: skip
