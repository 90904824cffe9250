"""Rows by category beside the pooled ones, and the best head of each category.

A pooled mean hides a head that serves one kind of prompt, such as one that finds whom *she* means among prompts about
things. A category is a category or a relation of the prompts; those that hold the same prompts as an earlier one are
left out, and `all` holds every prompt. The best of many heads is best partly by luck, so the best head of a category is
chosen on one half of its cases and scored on the other, both ways.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations
from streamscope.instruments.prompts.suite import unit_of
from streamscope.instruments.stats.held_out import LEAST, best_head_held_out, halves
from streamscope.instruments.table import Column, Table, key

ALL = "all"
FEW = f"fewer than {LEAST} independent cases"
CATEGORY = key("category", "category", "category or relation of the prompts; all: every prompt")
BEST = key("heads", "heads", "best head of one half of the cases, scored on the other, and the reverse")
Groups = Mapping[str, tuple[str, str]]
"""Category -> the column of the cases that decides, and its value there; of all cases no column."""


def groups_of(cases: pd.DataFrame) -> Groups:
    """The categories of cases with the columns category and relation, `all` first."""
    groups, known = {ALL: ("", "")}, [np.ones(len(cases), bool)]
    for column in ("category", "relation"):
        for value in sorted(set(cases[column]) - {""}):
            mask = (cases[column] == value).to_numpy()
            if not any(np.array_equal(mask, other) for other in known):
                known.append(mask)
                groups[value if value not in groups else f"{value} ({column})"] = column, value
    return groups


def members(cases: pd.DataFrame, group: tuple[str, str]) -> np.ndarray:
    """[cases] whether a case is in the group."""
    column, value = group
    return (cases[column] == value).to_numpy() if column else np.ones(len(cases), bool)


def by_category(
    block: Observations, contrasts: Sequence[Contrast], groups: Groups, reasons: Mapping[str, str] | None = None
) -> tuple[Observations, list[Contrast]]:
    """The cells once for every category, each over the units in it, and the contrasts with the label `category`.

    Those of all categories but `all` are corrected together. `reasons`: quantity -> why it has no value in a category
    without units.
    """
    n, units = len(block.cells), len(block.units)
    there = np.stack([members(block.units, group) for group in groups.values()])[:, None] & block.inside
    repeated = replace(
        block, cells=pd.concat([block.cells.assign(category=name) for name in groups], ignore_index=True),
        units=block.units.drop(columns="category"), total=np.where(there, block.total, np.nan).reshape(-1, units),
        size=np.where(there, block.sizes, 0.0).reshape(-1, units),
    )  # fmt: skip
    filled, made = np.count_nonzero(repeated.inside, axis=1), []
    for i, name in enumerate(groups):
        for c in contrasts:
            weights = {i * n + cell: weight for cell, weight in c.weights.items()}
            lost = "" if filled[list(weights)].all() else (reasons or {}).get(c.quantity, "")
            family = f"{c.family or c.quantity}, {'all prompts' if name == ALL else 'by category'}"
            labels = {"category": name, **c.labels}
            made.append(replace(c, labels=labels, weights=weights, family=family, missing=c.missing or lost))
    return repeated, made


def best_heads(
    rows: pd.DataFrame, block: Observations, groups: Groups, case: Sequence[str], values: Sequence[str],
    measure: Measure, signs: tuple[str, str] | None = None, seed: int = 0, ties: Sequence[str] = (),
) -> tuple[Observations, dict[str, str]]:  # fmt: skip
    """The best head of each category, scored on cases that did not choose it; and its name, "" for too few cases.

    Args:
        rows: a row per case and head, with a column `case`, cluster, category, relation, head and `values`.
        block: has the cases as units.
        case: the names of the cases in the order of the units of `block`.
        values: what is scored, a cell for each and every category; the largest mean of the first one chooses.
        signs, ties: as `held_out.best_head_held_out`.
    """
    place = {name: i for i, name in enumerate(case)}
    total = np.full((len(groups), len(values), len(place)), np.nan)
    heads = dict.fromkeys(groups, "")
    for i, (name, group) in enumerate(groups.items()):
        some = rows[members(rows, group)]
        if some["cluster"].map(unit_of).nunique() >= LEAST:
            by, side = (values[0], *ties), halves(some, seed)[0]
            chosen, heads[name] = best_head_held_out(some, by, side, signs=signs)
            total[i][:, chosen["case"].map(place)] = chosen[list(values)].to_numpy(float).T
    cells = pd.DataFrame([{"category": name, "value": value} for name in groups for value in values])
    flat = total.reshape(len(cells), -1)
    units = block.units.drop(columns="category")
    return Observations(measure=measure, cells=cells, units=units, total=flat, size=~np.isnan(flat)), heads


def best_table(found: Estimates, heads: Mapping[str, str], columns: tuple[Column, ...], title: str) -> Table:
    """A row for each category with the heads of `best_heads`, and the estimates of their scores."""
    frame, missing = found.wide(["category"], describe=("sd", "low", "high"))
    frame.insert(1, BEST.name, frame["category"].map(heads))
    names = [column.name for column in columns]
    missing = {at: why for at, why in missing.items() if at[1] in names}
    words = "best head of each category, chosen on one half of its cases and scored on the other"
    return Table(frame[names], columns, missing, f"{title}; {words}")
