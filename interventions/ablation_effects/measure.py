"""Effects of ablating groups of heads on tasks: Δ of the answer's probability and log-odds (PLS §5.1).

Ratios of a model's effects to a control model's (PLS Table 2, Fig. 4b), over the cases that both can score:

    spread ratio     sd_i(Δ_i, model) / sd_i(Δ_i, control)         mean ratio     mean Δ, model / mean Δ, control

Clusters are resampled as a whole, jointly in both. A ratio of means has no bounded interval if the control's mean is
not significantly different from 0 (Fieller 1954); then only the ratio is given.

Whether tasks rely on different heads: diagonality of the task × group matrix (PLS §5.3, Fig. 4a). PLS expects an own
group for each task: entity heads for capitalization, anchor heads for gender (§5.3). Let E_tg = |mean over the cases of
task t of Δ under group g|, for the measured tasks with an own group, and their own groups as columns. Then

    diagonality D = mean of E over the own cells − mean of E over all other cells

in units of the measure: positive if tasks rely on their own heads more than on each other's, 0 if one group matters
more for every task. p: under the null, the groups of a case are exchangeable, so their Δ are permuted within each
independent case; p = (1 + #{D* ≥ D}) / (1 + permutations), one-sided.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError, unknown
from streamscope.instruments import observations
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, effect_contrasts
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Column, Table, counts, described, key, note, number, quantity
from streamscope.interventions import controls
from streamscope.interventions.ablation_effects import AblationEffects
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import MEASURES, observe_task, task_blocks
from streamscope.interventions.selection import HeadFinder
from streamscope.models.head_spec import every_head

KEYS = ("task", "group")
NAN = float("nan")
FLAT, UNSURE = "no case of the control changes", "the control's mean is not significantly different from 0"
EQUAL = "the control changes by the same in every case"
ENDS = ("", "_low", "_high")
OWN = {"capitalization": "entity", "gender": "anchor"}
NUMBERS = ("own", "other", "diagonality", "p", "p_min")
FEW_GROUPS = "fewer than two own groups are measured"
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
    own = own_groups(options.diagonal, [task.name for task in opened.tasks], [group.name for group in groups])
    heads, every = [group.heads for group in groups], every_head(model)
    sweep = controls.plan(heads, [0.0], every, scale_heads, draws=options.draws, seed=options.seed)
    cells: list[tuple[dict[str, Any], int | None]] = [({"group": "", "draw": -1}, None)]
    for group, (members, g, drawn) in zip(groups, sweep.cells, strict=True):
        sets = enumerate([members, *drawn], -1)
        cells += [({"group": group.name, "draw": i}, sweep.index[ablated, g]) for i, ablated in sets]
    blocks = task_blocks({
        task.name: (observe_task(model, task, sweep.edits, progress=progress), opened.units(task))
        for task in opened.tasks
    }, cells)  # fmt: skip
    keys, contrasts = blocks["probability"].cells, list[Contrast]()  # Holm's family is tasks × groups
    for (task, name), rows in keys[keys["group"] != ""].groupby(list(KEYS), sort=False):
        base, (edited, *drawn_cells) = blocks["probability"].cell(task=task, group=""), map(int, rows.index)
        labels, none = {"task": task, "group": name}, "" if drawn_cells else controls.NO_DRAWS
        contrasts += effect_contrasts("edited", {edited: 1.0}, base, labels)
        contrasts += controls.against_random(edited, base, drawn_cells, labels, none)
    about = {"title": title_of(model), "tasks": opened.title(), "groups": {g.name: g.label for g in groups}}
    return InstrumentData(blocks, dict.fromkeys(blocks, contrasts), about, extra=(opened.tasks, groups, own))


def tables(options: AblationEffects, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One per measure, a row per task and group; and diagonality."""
    tasks, groups, own = data.extra
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
    if own:
        rows = list[dict[str, Any]]()
        for name, block in data.blocks.items():
            clusters = {task: cases(block, task)["cluster"].to_numpy() for task in own}
            row = {"measure": name, **diagonality(changes(block), clusters, own, seed=options.seed)}
            reasons = {column: FEW_GROUPS for column in NUMBERS if np.isnan(row[column])}
            rows.append({**row, "undefined": note(reasons)})
        words = "Diagonality: effect of own groups minus other groups"
        out["diagonality"] = Table.noted(pd.DataFrame(rows), DIAGONALITY, words)
    return out


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    return {"ratios": ratio_table(run.blocks, control.blocks)}


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
        is_constant = np.ptp(y) <= 8 * np.finfo(float).eps * np.abs(y).max()  # but for rounding
        gone = {f"sd_ratio{end}": EQUAL for end in ENDS} if is_constant else {}
        gone |= {} if sure else {f"mean_ratio{end}": UNSURE for end in ENDS[1:]}
    return row | dict.fromkeys(gone, NAN), reasons | gone


def ratio_table(
    run: Mapping[str, Observations], control: Mapping[str, Observations], *, resamples: int = 5000
) -> Table:
    """One row per measure, task and group of both models: `ratio_of_changes` over the cases that both can score. Raises
    `InputError` if they share fewer than two cases."""
    rows = list[dict[str, Any]]()
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
            rows.append({"measure": name, "task": task, "group": group, **ratios, "undefined": note(reasons)})
    title = "Effects of the model divided by effects of the control: spreads and means of Δ"
    return Table.noted(pd.DataFrame(rows), RATIOS, title)


def own_groups(pairs: Sequence[str], tasks: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    """Task -> own group, from `pairs` TASK=GROUP, or by default PLS' pairs among the measured tasks and groups. Raises
    `InputError` for a malformed pair and for a task or group that is not measured."""
    group_of = dict[str, str]()
    for pair in pairs:
        task, equals, group = pair.partition("=")
        if not equals:
            raise InputError(f"--diagonal {pair}: give TASK=GROUP, as capitalization=entity")
        for kind, name, names in (("task", task, tasks), ("group of heads", group, groups)):
            if name not in names:
                raise unknown(kind, name, list(names))
        group_of[task] = group
    for task in tasks if not pairs else ():
        expected = OWN.get(task.split("-")[0])
        if match := [g for g in groups if expected and g in (expected, f"found-{expected}")]:
            group_of[task] = match[0]
    return group_of


def diagonality(
    changes: Mapping[tuple[str, str], np.ndarray], clusters: Mapping[str, Any], group_of: Mapping[str, str], *,
    permutations: int = 9999, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """own, other, diagonality, p, p_min, tasks; NaN with fewer than two own groups. changes: (task, group) -> Δ
    [cases]; clusters: task -> labels [cases]. With several kinds of labels, groups are permuted within the labels of
    one kind at a time, and p is the largest."""
    columns = sorted(set(group_of.values()))
    row: dict[str, Any] = {"tasks": ", ".join(f"{t}={g}" for t, g in group_of.items()), "permutations": permutations}
    if len(columns) < 2:
        return {**row, **dict.fromkeys(NUMBERS, np.nan)}
    rng = np.random.default_rng(seed)
    deltas = {task: np.stack([changes[task, group] for group in columns], 1) for task in group_of}  # [cases, groups]
    mask = np.array([[group == group_of[task] for group in columns] for task in group_of])
    e = np.stack([np.abs(delta.sum(0)) / len(delta) for delta in deltas.values()])
    own, other = float(e[mask].mean()), float(e[~mask].mean())
    row |= {"own": own, "other": other, "diagonality": own - other}
    kinds = {}
    for task, delta in deltas.items():
        within = read_clusters(clusters[task], len(delta))
        kinds[task] = [within.codes] if within.shared is None else [k[within.codes] for k in within.shared.kinds]
    p = 0.0
    for k in range(max(map(len, kinds.values()))):
        permuted = []
        for task, delta in deltas.items():
            codes = kinds[task][min(k, len(kinds[task]) - 1)]
            totals = np.zeros((codes.max() + 1, len(columns)))
            np.add.at(totals, codes, delta)
            permuted.append(np.abs(_shuffled(totals, permutations, rng)) / len(delta))
        dealt = np.stack(permuted, 1)  # [permutations, tasks, groups]
        null = dealt[:, mask].mean(-1) - dealt[:, ~mask].mean(-1)
        p = max(p, (1 + int((null >= own - other - 1e-12).sum())) / (1 + permutations))
    return {**row, "p": p, "p_min": 1 / (1 + permutations)}


def _shuffled(totals: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Σ over clusters [n, groups] of totals [clusters, groups] after permuting groups within each cluster."""
    out, step = list[np.ndarray](), max(1, 2_000_000 // totals.size)
    for start in range(0, n, step):
        order = rng.random((min(step, n - start), *totals.shape)).argsort(-1)
        out.append(np.take_along_axis(totals[None], order, -1).sum(1))
    return np.concatenate(out)


MIXED = "units of the measure"
MEASURE = key("measure", "measure", "probability of the answer, or log_odds of answer against foil in nats")
TASK = key("task", "task", "the task whose answers are scored")
GROUP = key("group", "group", "the ablated group of heads")
_ratio = partial(described, unit="ratio", format=".3f", source="PLS Table 2")
RATIOS = (
    MEASURE, TASK, GROUP,
    number("sd", "spread, model", f"{MIXED}, between cases", "standard deviation of the model's Δ", ".4f"),
    number("control_sd", "spread, control", f"{MIXED}, between cases", "standard deviation of the control's Δ", ".4f"),
    *_ratio("sd_ratio", "spread ratio", doc="spread of the model / spread of the control"),
    number("mean", "mean Δ, model", MIXED, "mean Δ of the model", "+.4f"),
    number("control_mean", "mean Δ, control", MIXED, "mean Δ of the control", "+.4f"),
    *_ratio("mean_ratio", "mean ratio", doc="mean Δ of the model / mean Δ of the control"),
    *counts("cases that both models score", controls.SHARING),
)  # fmt: skip
DIAGONALITY = (
    MEASURE,
    key("tasks", "own groups", "TASK=GROUP of each task with an own group"),
    number("permutations", "permutations", "exchanges of groups", "number of permutations behind p", "d", False),
    number("own", "own group", MIXED, "mean |Δ| of a task's own group", ".4f"),
    number("other", "other groups", MIXED, "mean |Δ| of the other tasks' groups", ".4f"),
    number("diagonality", "own − other", MIXED, "positive if tasks rely on their own heads more than on each other's",
           "+.4f", source="PLS §5.3, Fig. 4a"),
    number("p", "p", "probability", "share of permutations with a larger own − other", "p"),
    number("p_min", "smallest possible p", "probability", "smallest p possible with this number of permutations", "p",
           False),
)  # fmt: skip


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
