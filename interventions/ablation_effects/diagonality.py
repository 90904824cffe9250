"""Whether tasks rely on different heads: diagonality of the task × group matrix (PLS §5.3, Fig. 4a).

PLS expects an own group for each task: entity heads for capitalization, anchor heads for gender (§5.3). Let E_tg =
|mean over the cases of task t of Δ under group g|, for the measured tasks with an own group, and their own groups as
columns. Then

    diagonality D = mean of E over the own cells − mean of E over all other cells

in units of the measure: positive if tasks rely on their own heads more than on each other's, 0 if one group matters
more for every task. p: under the null, the groups of a case are exchangeable, so their Δ are permuted within each
independent case; p = (1 + #{D* ≥ D}) / (1 + permutations), one-sided.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.observations import Observations, Reasons
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.table import Table, key, number
from streamscope.interventions.ablation_effects.ratios import MEASURE, MIXED, cases, changes

OWN = {"capitalization": "entity", "gender": "anchor"}
NUMBERS = ("own", "other", "diagonality", "p", "p_min")
FEW = "fewer than two own groups are measured"
COLUMNS = (
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


def own_groups(pairs: Sequence[str], tasks: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    """Task -> own group, from `pairs` TASK=GROUP, or by default PLS' pairs among the measured tasks and groups. Raises
    `InputError` for a malformed pair and for a task or group that is not measured."""
    if pairs:
        chosen = {}
        for pair in pairs:
            task, equals, group = pair.partition("=")
            if not equals:
                raise InputError(f"--diagonal {pair}: give TASK=GROUP, as capitalization=entity")
            for kind, name, names in (("task", task, tasks), ("group of heads", group, groups)):
                if name not in names:
                    raise unknown(kind, name, list(names))
            chosen[task] = group
        return chosen
    group_of: dict[str, str] = {}
    for task in tasks:
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
    gap = _gap(e, mask)
    row |= {"own": float(e[mask].mean()), "other": float(e[~mask].mean()), "diagonality": float(gap)}
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
        null = _gap(np.stack(permuted, 1), mask)
        p = max(p, (1 + int((null >= gap - 1e-12).sum())) / (1 + permutations))
    return {**row, "p": p, "p_min": 1 / (1 + permutations)}


def _gap(effects: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the own cells minus mean over the others, of effects [..., tasks, groups]."""
    return np.asarray(effects[..., mask].mean(-1) - effects[..., ~mask].mean(-1))


def _shuffled(totals: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Σ over clusters [n, groups] of totals [clusters, groups] after permuting groups within each cluster."""
    out = np.empty((n, totals.shape[1]))
    step = max(1, 2_000_000 // totals.size)
    for start in range(0, n, step):
        size = min(step, n - start)
        order = rng.random((size, *totals.shape)).argsort(-1)
        out[start : start + size] = np.take_along_axis(totals[None], order, -1).sum(1)
    return out


def table(blocks: Mapping[str, Observations], group_of: Mapping[str, str], *, seed: int = 0) -> Table:
    """`diagonality` of each measure of a model, from the blocks of `measure.observe`."""
    rows: list[dict[str, Any]] = []
    missing: Reasons = {}
    for i, (name, block) in enumerate(blocks.items()):
        clusters = {task: cases(block, task)["cluster"].to_numpy() for task in group_of}
        row = {"measure": name, **diagonality(changes(block), clusters, group_of, seed=seed)}
        missing |= {(i, column): FEW for column in NUMBERS if np.isnan(row[column])}
        rows.append(row)
    return Table(pd.DataFrame(rows), COLUMNS, missing, "Diagonality: effect of own groups minus other groups")
