"""What heads attend to: from the prompts of a suite to a table prompt × head × role, and the rows made of it.

`pds`, `sps`, `coreference` and `head_groups` differ in what they read of a prompt's rows and in their contrasts. Only
the pattern's row at the query position is kept, so memory grows with prompts × heads × keys.

A pooled mean hides a head that serves one kind of prompt. A category is a category or a relation of the prompts; those
that hold the same prompts as an earlier one are left out, and `all` holds every prompt. The best of many heads is best
partly by luck, so the best head of a category is chosen on one half of its cases and scored on the other, both ways.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, each
from streamscope.instruments.prompts.alignment import Aligned, align_once
from streamscope.instruments.prompts.suite import Prompt, Suite, units
from streamscope.instruments.stats.estimators import cohens_d
from streamscope.instruments.stats.held_out import CHOSEN, LEAST, SIGNED, best_head_held_out, halves, unit_of
from streamscope.instruments.table import Column, Table, key
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Captures, Query

KEYS = ("head", "layer", "index")
PATTERN, GATE = "blocks.*.attn.hook_pattern", "blocks.*.attn.hook_gate"
RESOLUTION = 1e-6
"""Attention weights closer than this count as equal (rounding of a float32 softmax)."""
SINK = 0.9
"""A head whose mean attention to BOS is at least this is a BOS sink: it says little about the text."""
TIE = 1e-5
"""Two candidates tie if their weights differ by less than this share of the larger one."""


@dataclass(frozen=True, kw_only=True)
class RoleQuery(Query):
    """A query with its prompts; and ids of prompts that are left out, without the roles that the probe needs, or
    because the same text up to the query has another answer elsewhere."""

    aligned: Aligned
    left_out: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


def undecided(prompts: Sequence[Prompt]) -> set[str]:
    """Ids of the prompts whose text up to and including the query occurs again with another target: a causal model
    attends equally in all of them. Winograd and Winogender schemas have many."""
    groups: dict[tuple[str, tuple[int, int]], list[Prompt]] = {}
    for p in prompts:
        groups.setdefault((p.text[: p.roles["query"][1]], p.roles["query"]), []).append(p)
    return {p.id for twins in groups.values() if len({q.roles.get("target") for q in twins}) > 1 for p in twins}


def role_query(
    prompts: Suite | Aligned, tokenizer: Any, *, needs: tuple[str, ...] = ("target",), gated: bool = False,
    whole: bool = False,
) -> RoleQuery:  # fmt: skip
    """Patterns, and gates if `gated`, at the query position of every prompt that has the roles `needs`; without the
    tokens after it, which a causal model cannot see there, or with them (`whole`). Raises `InputError` if no prompt has
    the roles, or all are `undecided`."""
    aligned = align_once(prompts, tokenizer)
    lacking = {p.id for p, spans in zip(aligned.prompts, aligned.positions, strict=True) if not {*needs} <= {*spans}}
    if len(lacking) == len(aligned.prompts):
        raise InputError(f"no prompt has the roles {' and '.join(needs)}; use another suite, such as competing")
    open_ended = undecided([p for p in aligned.prompts if p.id not in lacking])
    subset = aligned.only([i for i, p in enumerate(aligned.prompts) if p.id not in lacking | open_ended])
    if not subset.prompts:
        raise InputError(
            f"every prompt has a twin with the same text up to the query and another answer ({len(open_ended)}), and a "
            "causal model attends equally in both; use a suite whose text decides before the query"
        )
    tokens = [ids if whole else ids[: q + 1] for ids, q in zip(subset.tokens, subset.queries, strict=True)]
    return RoleQuery(
        tokens=tokens, hooks=(PATTERN, GATE) if gated else (PATTERN,), aligned=subset,
        positions=[[q] for q in subset.queries], left_out=tuple(p.id for p in aligned.prompts if p.id in lacking),
        undecided=tuple(p.id for p in aligned.prompts if p.id in open_ended),
    )  # fmt: skip


def left_out(query: RoleQuery, roles: str) -> str:
    """For a title: how many prompts a `role_query` left out, and why."""
    text = f", {len(query.left_out)} without {roles}" if query.left_out else ""
    if query.undecided:
        text += f", {len(query.undecided)} left out whose text up to the query also occurs with another answer "
        text += "(Top-1 at most 50 % and SPS 0 by construction)"
    return text


def attention_rows(captures: Captures, query: RoleQuery) -> Iterator[tuple[int, np.ndarray]]:
    """(prompt, α [L, H, keys ≤ q]), float64; with gates in the query Ã = ḡ α, ḡ_h the mean over d_h (SPEC §7.3)."""
    patterns, gates = by_layer(captures, "hook_pattern"), by_layer(captures, "hook_gate")
    for i, q in enumerate(query.aligned.queries):
        layers = {layer: x[i][:, 0, : q + 1].double() for layer, x in patterns.items()}
        if GATE in query.hooks:
            layers = {layer: a * gates[layer][i][0].double().mean(-1)[:, None] for layer, a in layers.items()}
        yield i, torch.stack(list(layers.values())).cpu().numpy()


def sink_names(to_bos: np.ndarray) -> list[str]:
    """The BOS sinks, such as L3.H2, from the mean attention to BOS [L, H]."""
    return [f"L{layer}.H{h}" for layer, h in np.argwhere(to_bos >= SINK)]


def sinks_sentence(sinks: Sequence[str], heads: int) -> str:
    """For a title: how many heads are BOS sinks; "" if none is."""
    return f"; {len(sinks)} of {heads} heads are BOS sinks (at least {SINK:.0%} of attention to BOS)" if sinks else ""


def head_scores(table: pd.DataFrame, column: str) -> dict[Head, float]:
    """Head -> its value in a column of a table with a row per head, for `head_spec.parse_heads` (top2:entity)."""
    rows = table[["layer", "index", column]].itertuples(index=False)
    return {Head(int(layer), int(index)): float(score) for layer, index, score in rows}


def by_layer(captures: Captures, hook: str) -> dict[int, list[torch.Tensor]]:
    """Layer -> activations per prompt of the attention hook `hook`, in layer order."""
    activations = {int(name.split(".")[1]): x for name, x in captures.hooks.items() if name.endswith(f".attn.{hook}")}
    return dict(sorted(activations.items()))


def exceeds(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first > second, tie) elementwise; a tie is a difference below `TIE` of the larger one and does not win."""
    tie = np.abs(first - second) <= TIE * np.maximum(first, second)
    return (first > second) & ~tie, tie


def moved_d(condition: np.ndarray, baseline: np.ndarray) -> float:
    """Cohen's d between attention in two conditions; NaN for one case, and where attention does not vary."""
    return cohens_d(condition, baseline) if np.abs(condition - baseline).max() > RESOLUTION else float("nan")


def prompt_columns(aligned: Aligned) -> dict[str, list[Any]]:
    """One entry per prompt; "" for missing ones."""
    names = ("id", "pair", "category", "relation", "order")
    columns = {name: [getattr(prompt, name) or "" for prompt in aligned.prompts] for name in names}
    return {**columns, "cluster": units(aligned.prompts)}


@dataclass(frozen=True)
class RoleTable:
    """Numbers of every head (head, layer, index) on every case, a prompt or a pair: `values` name -> [heads, cases]."""

    heads: pd.DataFrame
    cases: pd.DataFrame
    values: Mapping[str, np.ndarray]

    def frame(self) -> pd.DataFrame:
        """One row per case and head."""
        rows = self.cases.merge(self.heads, how="cross")
        return rows.assign(**{name: x.T.reshape(-1) for name, x in self.values.items()})

    def block(self, measure: Measure, names: Sequence[str], unit: Sequence[str]) -> Observations:
        """Cells: every head for the first of the values `names`, for the next …; units: the cases, called `unit`."""
        cells = pd.concat([self.heads.assign(what=name) for name in names], ignore_index=True)
        total = np.concatenate([self.values[name] for name in names])
        units = self.cases.drop(columns="id").assign(unit=list(unit))
        return Observations(measure=measure, cells=cells, units=units, total=total, size=1.0)

    def contrasts(
        self, names: Sequence[str], groups: Sequence[tuple[Mapping[str, Any], Sequence[int]]] | None = None, *,
        family: str = "", **tested: Mapping[str, float],
    ) -> list[Contrast]:  # fmt: skip
        """Over the cells of `block` with these names, every value, described, and each quantity of `tested`, Σ weight ·
        value; for every head, or as mean over each of `groups` (labels, heads)."""
        start = {name: i * len(self.heads) for i, name in enumerate(names)}
        values: dict[str, tuple[Mapping[str, float], Any]] = {
            **{name: ({name: 1.0}, {"null": None}) for name in names if name not in tested},
            **{name: (weights, {"family": family}) for name, weights in tested.items()},
        }
        return [
            Contrast(
                quantity=quantity, labels=labels, **options,
                weights={start[name] + h: w / len(heads) for name, w in weights.items() for h in heads},
            )
            for quantity, (weights, options) in values.items()
            for labels, heads in groups or [(row, [i]) for i, row in enumerate(self.heads.to_dict("records"))]
        ]  # fmt: skip


def role_table(
    captures: Captures, query: RoleQuery, score_rows: Callable[[int, np.ndarray], Mapping[str, np.ndarray]]
) -> RoleTable:
    """What `score_rows(prompt, attention [L, H, keys])` makes of the rows of every prompt: name -> [L, H]."""
    prompts = [score_rows(i, rows) for i, rows in attention_rows(captures, query)]
    values = {name: np.stack([scores[name] for scores in prompts], -1) for name in prompts[0]}
    layers, index = list(by_layer(captures, "hook_pattern")), range(next(iter(values.values())).shape[1])
    heads = [{"head": f"L{layer}.H{h}", "layer": layer, "index": h} for layer in layers for h in index]
    flat = {name: x.reshape(len(heads), -1) for name, x in values.items()}
    return RoleTable(pd.DataFrame(heads), pd.DataFrame(prompt_columns(query.aligned)), flat)


# ---- rows by category, and the best head of each ----------------------------------------------------

ALL = "all"
FEW = f"fewer than {LEAST} independent cases"
CATEGORY = key("category", "category", "category or relation of the prompts; all: every prompt")
BEST = key("heads", "heads", "best head of one half of the cases, scored on the other, and the reverse")
Groups = Mapping[str, tuple[str, str]]
"""Category -> the column of the cases that decides, and its value there; of all cases no column."""


def groups_of(cases: pd.DataFrame) -> Groups:
    """The categories of cases with the columns category and relation, `all` first."""
    groups, masks = {ALL: ("", "")}, [np.ones(len(cases), bool)]
    for column in ("category", "relation"):
        for value in sorted(set(cases[column]) - {""}):
            mask = (cases[column] == value).to_numpy()
            if not any(np.array_equal(mask, earlier) for earlier in masks):
                masks.append(mask)
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

    Those of all categories but `all` are corrected together. `reasons`: of a quantity in a category without units.
    """
    n, units = len(block.cells), len(block.units)
    is_member = np.stack([members(block.units, group) for group in groups.values()])[:, None] & block.inside
    repeated = replace(
        block, cells=pd.concat([block.cells.assign(category=name) for name in groups], ignore_index=True),
        units=block.units.drop(columns="category"), total=np.where(is_member, block.total, np.nan).reshape(-1, units),
        size=np.where(is_member, block.sizes, 0.0).reshape(-1, units),
    )  # fmt: skip
    filled, repeated_contrasts = np.count_nonzero(repeated.inside, axis=1), []
    for i, name in enumerate(groups):
        for c in contrasts:
            weights = {i * n + cell: weight for cell, weight in c.weights.items()}
            reason = "" if filled[list(weights)].all() else (reasons or {}).get(c.quantity, "")
            family = f"{c.family or c.quantity}, {'all prompts' if name == ALL else 'by category'}"
            new = replace(c, labels={"category": name, **c.labels}, weights=weights, family=family)
            repeated_contrasts.append(replace(new, missing=c.missing or reason))
    return repeated, repeated_contrasts


def best_heads(
    table: RoleTable, block: Observations, groups: Groups, value: str, rival: str = "", *,
    measure: Measure | None = None, signs: tuple[str, str] | None = None, seed: int = 0, ties: Sequence[str] = (),
) -> tuple[Observations, list[Contrast], dict[str, str]]:  # fmt: skip
    """The best head of each category, scored on cases that did not choose it; and its name, "" for too few cases.

    The largest mean of `value` chooses (`signs`, `ties`: as `held_out.best_head_held_out`). The contrast `best` is
    tested; with a `rival`, a column of the cases, it is described, as the rival is, and `lead`, their difference, is
    tested. `block` has the cases as units, and the measure of the scores, if none is given.
    """
    score_names, rows, n, n_heads = [value, rival] if rival else [value], table.frame(), len(groups), len(table.heads)
    total, heads = np.full((len(score_names), n, len(table.cases)), np.nan), dict.fromkeys(groups, "")
    for i, (name, group) in enumerate(groups.items()):
        in_group = members(table.cases, group)
        cases = table.cases[in_group]
        if cases["cluster"].map(unit_of).nunique() >= LEAST:
            side = halves(cases, seed)[0].repeat(n_heads)
            in_rows = rows[in_group.repeat(n_heads)]
            best_rows, heads[name] = best_head_held_out(in_rows, (value, *ties), side, signs=signs)
            total[:, i, best_rows.index // n_heads] = best_rows[score_names].to_numpy(float).T
    categories, missing = pd.DataFrame({"category": list(groups)}), ["" if heads[name] else FEW for name in groups]
    contrasts = each("best", categories, null=None if rival else 0.0, missing=missing)
    if rival:
        contrasts += each(rival, categories, start=n, null=None, missing=missing)
        contrasts += [
            replace(c, quantity="lead", weights={i: 1.0, n + i: -1.0}, null=0.0) for i, c in enumerate(contrasts[:n])
        ]
    flat = total.reshape(-1, len(table.cases))
    observations = Observations(
        measure=replace(measure or block.measure, inflation=SIGNED if signs else CHOSEN),
        units=block.units.drop(columns="category"), total=flat, size=~np.isnan(flat),
        cells=pd.concat([categories.assign(value=name) for name in score_names], ignore_index=True),
    )  # fmt: skip
    return observations, contrasts, heads


def best_table(estimates: Estimates, heads: Mapping[str, str], columns: tuple[Column, ...], title: str) -> Table:
    """A row for each category with the heads of `best_heads`, and the estimates of their scores."""
    frame, missing = estimates.wide(["category"], describe=("sd", "low", "high"))
    frame.insert(1, BEST.name, frame["category"].map(heads))
    names = [column.name for column in columns]
    missing = {cell: reason for cell, reason in missing.items() if cell[1] in names}
    words = "best head of each category, chosen on one half of its cases and scored on the other"
    return Table(frame[names], columns, missing, f"{title}; {words}")
