"""What heads attend to: from the prompts of a suite to a table prompt × head × role, and the rows made of it.

`pds`, `sps`, `coreference` and `head_groups` differ in what they read of a prompt's rows and in their contrasts. Only
the pattern's row at the query position is kept, so memory grows with prompts × heads × keys.

A pooled mean hides a head that serves one kind of prompt. A category is a category or a relation of the prompts; those
that hold the same prompts as an earlier one are left out, and `all` holds every prompt. The best of many heads is best
partly by luck, so the best head of a category is chosen on one half of its cases and scored on the other, both ways.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, each
from streamscope.instruments.prompts.alignment import Aligned, align_once
from streamscope.instruments.prompts.suite import Prompt, Suite
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
    targets, ids = defaultdict(set), defaultdict(set)
    for p in prompts:
        text = p.text[: p.roles["query"][1]], p.roles["query"]
        targets[text].add(p.roles.get("target"))
        ids[text].add(p.id)
    return set().union(*[ids[text] for text, antecedents in targets.items() if len(antecedents) > 1])


def role_query(
    prompts: Suite | Aligned, tokenizer: Any, *, needs: tuple[str, ...] = ("target",), gated: bool = False,
    whole: bool = False,
) -> RoleQuery:  # fmt: skip
    """Patterns, and gates if `gated`, at the query position of every prompt that has the roles `needs`; without the
    tokens after it, which a causal model cannot see there, or with them (`whole`). Raises `InputError` if no prompt has
    the roles, or all are `undecided`."""
    aligned = align_once(prompts, tokenizer)
    spans = zip(aligned.prompts, aligned.positions, strict=True)
    lacking = [p.id for p, roles in spans if not roles.keys() >= {*needs}]
    if len(lacking) == len(aligned.prompts):
        raise InputError(f"no prompt has the roles {' and '.join(needs)}; use another suite, such as competing")
    open_ended = undecided([p for p in aligned.prompts if p.id not in lacking])
    subset = aligned.only([i for i, p in enumerate(aligned.prompts) if p.id not in open_ended.union(lacking)])
    if not subset.prompts:
        raise InputError(
            f"every prompt has a twin with the same text up to the query and another answer ({len(open_ended)}), and a "
            "causal model attends equally in both; use a suite whose text decides before the query"
        )
    tokens = [ids if whole else ids[: q + 1] for ids, q in zip(subset.tokens, subset.queries, strict=True)]
    return RoleQuery(
        tokens=tokens, hooks=(PATTERN, GATE) if gated else (PATTERN,), aligned=subset,
        positions=[[q] for q in subset.queries], left_out=tuple(lacking), undecided=tuple(sorted(open_ended)),
    )  # fmt: skip


def left_out(query: RoleQuery, roles: str) -> str:
    """For a title: how many prompts a `role_query` left out, and why."""
    text = f", {len(query.left_out)} without {roles}" if query.left_out else ""
    if query.undecided:
        text += f", {len(query.undecided)} left out whose text up to the query also occurs with another answer "
        text += "(Top-1 at most 50 % and SPS 0 by construction)"
    return text


def attention_rows(captures: Captures, query: RoleQuery) -> tuple[pd.DataFrame, np.ndarray]:
    """The heads (head, layer, index), and α [heads, prompts, keys] at every query, float64, 0 after it.

    With gates in the query Ã = ḡ α, ḡ_h the mean over d_h (SPEC §7.3).
    """
    patterns, gates, layers = by_layer(captures, "hook_pattern"), by_layer(captures, "hook_gate"), []
    for layer, of_prompts in patterns.items():
        cut = [x[:, 0, : q + 1].T for x, q in zip(of_prompts, query.aligned.queries, strict=True)]
        rows = pad_sequence(cut).double()  # [keys, prompts, heads]
        if GATE in query.hooks:
            rows *= torch.cat(gates[layer]).double().mean(-1)
        layers.append(rows.cpu().numpy().T)
    places = product(patterns, range(len(layers[0])))
    heads = pd.DataFrame([(f"L{layer}.H{h}", layer, h) for layer, h in places], columns=list(KEYS))
    return heads, np.concatenate(layers)


def attention_to(rows: np.ndarray, query: RoleQuery, role: str) -> np.ndarray:
    """[heads, prompts] attention to all tokens of a role; 0 in a prompt without it."""
    is_role = np.zeros(rows.shape[1:])
    for i, spans in enumerate(query.aligned.positions):
        is_role[i, list(spans.get(role, ()))] = 1.0
    return np.einsum("hpk,pk->hp", rows, is_role)


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


def moved_d(condition: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Cohen's d, (m1 − m0) / sqrt((s1² + s0²)/2), between attention in two conditions [heads, cases] -> [heads]; NaN
    for one case, and where attention does not vary."""
    if condition.shape[-1] < 2:
        return np.full(len(condition), np.nan)
    spread = np.sqrt((condition.var(-1, ddof=1) + baseline.var(-1, ddof=1)) / 2)
    largest = np.maximum(np.abs(condition), np.abs(baseline)).max(-1)
    varies = (spread > 8 * np.finfo(float).eps * largest) & (np.abs(condition - baseline).max(-1) > RESOLUTION)
    return (condition - baseline).mean(-1) / np.where(varies, spread, np.nan)


@dataclass(frozen=True)
class RoleTable:
    """Numbers of every head (head, layer, index) on every case, a prompt or a pair: `values` name -> [heads, cases]."""

    heads: pd.DataFrame
    cases: pd.DataFrame
    values: Mapping[str, np.ndarray]

    def frame(self) -> pd.DataFrame:
        """One row per case and head."""
        rows = self.cases.merge(self.heads, how="cross")
        for name, x in self.values.items():
            rows[name] = x.T.reshape(-1)
        return rows

    def block(self, measure: Measure, names: Sequence[str], unit: Sequence[str]) -> Observations:
        """Cells: every head for the first of the values `names`, for the next …; units: the cases, called `unit`."""
        cells = pd.DataFrame({"what": names}).merge(self.heads, how="cross")
        total = np.concatenate([*map(self.values.__getitem__, names)])
        units = self.cases.drop(columns="id").assign(unit=list(unit))
        return Observations(measure=measure, cells=cells, units=units, total=total, size=1.0)

    def contrasts(
        self, names: Sequence[str], groups: Sequence[tuple[Mapping[str, Any], Sequence[int]]] | None = None, *,
        family: str = "", **tested: Mapping[str, float],
    ) -> list[Contrast]:  # fmt: skip
        """Over the cells of `block` with these names, every value, described, and each quantity of `tested`, Σ weight ·
        value; for every head, or as mean over each of `groups` (labels, heads)."""
        contrasts = []
        for quantity in dict.fromkeys([*names, *tested]):
            terms = tested.get(quantity, {quantity: 1.0})
            options: dict[str, Any] = {"family": family} if quantity in tested else {"null": None}
            start = [names.index(name) * len(self.heads) for name in terms]
            for labels, heads in groups or [(row, [i]) for i, row in enumerate(self.heads.to_dict("records"))]:
                shares = np.repeat(list(terms.values()), len(heads)) / len(heads)
                weights = dict(zip(np.add.outer(start, heads).ravel(), shares, strict=True))
                contrasts.append(Contrast(quantity=quantity, labels=labels, weights=weights, **options))
        return contrasts


# ---- rows by category, and the best head of each ----------------------------------------------------

ALL = "all"
FEW = f"fewer than {LEAST} independent cases"
CATEGORY = key("category", "category", "category or relation of the prompts; all: every prompt")
BEST = key("heads", "heads", "best head of one half of the cases, scored on the other, and the reverse")
Groups = Mapping[str, tuple[str, str]]
"""Category -> the column of the cases that decides, and its value there; of all cases no column."""


def groups_of(cases: pd.DataFrame) -> Groups:
    """The categories of cases with the columns category and relation, `all` first."""
    groups, masks = {ALL: ("", "")}, {np.ones(len(cases), bool).tobytes()}
    for column in ("category", "relation"):
        for value in sorted(set(cases[column]) - {""}):
            mask = (cases[column] == value).to_numpy().tobytes()
            if mask not in masks:
                masks.add(mask)
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
            cells = i * n + np.array(list(c.weights))
            reason = "" if filled[cells].all() else (reasons or {}).get(c.quantity, "")
            family = f"{c.family or c.quantity}, {'all prompts' if name == ALL else 'by category'}"
            repeated_contrasts.append(replace(
                c, labels={"category": name, **c.labels}, weights=dict(zip(cells, c.weights.values(), strict=True)),
                family=family, missing=c.missing or reason,
            ))  # fmt: skip
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
