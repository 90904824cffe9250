"""Head groups: effective attention to classes of words as heads × prompts, groups, and shuffled classes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import streamscope.probes.roles as roles
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Estimates, Measure, estimate_all
from streamscope.instruments.prompts.alignment import Aligned, prompt_table
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.prompts.word_classes import CLASSES, token_classes
from streamscope.instruments.stats.estimators import holm
from streamscope.instruments.stats.held_out import halves
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.models.head_spec import Head
from streamscope.models.hooks import Captures, run
from streamscope.probes.head_groups import HeadGroups
from streamscope.probes.roles import RoleQuery, RoleTable

UNIT = "effective attention, excess over uniform"
BATCH_TOKENS = 1024
"""Padded tokens of a batch: a real model needs seconds for it, and memory grows with it."""


def capture(
    model: Any, prompts: Suite | Aligned, tokenizer: Any, progress: Progress = iter
) -> tuple[Captures, RoleQuery]:
    """Attention at the query of every prompt with a target, and gates if the model has them."""
    query = roles.role_query(prompts, tokenizer, gated=any(name.endswith("attn.hook_gate") for name in model.hook_dict))
    return run(model, query, batch_tokens=BATCH_TOKENS, progress=progress), query


def read(captures: Captures, query: RoleQuery, tokenizer: Any) -> RoleTable:
    """The scores of every head on every prompt for the three classes, from −1 to 1."""

    heads, rows = roles.attention_rows(captures, query)
    classes, total, keys = _classes(query, tokenizer), rows.sum(-1), np.array(query.aligned.queries) + 1
    values = {}
    for name in CLASSES:
        is_member = (classes == name).astype(float)
        values[name] = np.einsum("hpk,pk->hp", rows, is_member) - total * is_member.sum(1) / keys
    return RoleTable(heads, prompt_table(query.aligned.prompts), values)


def _classes(query: RoleQuery, tokenizer: Any) -> np.ndarray:
    """[prompts, keys] the classes of the tokens before the query, and "" from there on."""
    queries = query.aligned.queries
    classes = np.full((len(queries), max(queries) + 1), "", dtype=object)
    for row, prompt, q in zip(classes, query.aligned.prompts, queries, strict=True):
        row[:q] = token_classes(prompt, tokenizer.spans(prompt.text)[1])[:q]
    return classes


def observe(options: HeadGroups, model: Any, data: Opened, progress: Progress = iter) -> InstrumentData:
    """Cells: head × class, and every head's score for its own class on the half that did not choose it."""
    opened = data[Prompts]
    check_heads(model.cfg.n_heads * (model.cfg.n_layers if options.layers == "all" else 1), options.k)
    captures, query = capture(model, opened.aligned, opened.tokenizer, progress)
    measurements = observed(options, read(captures, query, opened.tokenizer), opened.unit)
    measurements.about["title"] = f"{title_of(model)} on {opened.title()}{roles.left_out(query, 'target')}"
    return measurements


def observed(options: HeadGroups, table: RoleTable, unit: Callable[[str], str] = str) -> InstrumentData:
    """Observations and contrasts of the scores; `extra`: every head's group, and the class it is scored in, of heads
    without a group their largest one on the choosing half."""
    choose = halves(table.cases.assign(relation=""), options.split)[0] == 0
    choice_scores = np.stack([table.values[name][:, choose].mean(1) for name in CLASSES], 1)  # [heads, classes]
    layer = table.heads["layer"].to_numpy()
    searched = (layer == layer.max()) | (options.layers == "all")
    check_heads(int(searched.sum()), options.k)
    from scipy.optimize import linear_sum_assignment  # a quarter of a second, for this alone

    # disjoint groups of k heads with the largest sum of scores
    heads, columns = linear_sum_assignment(np.repeat(choice_scores[searched], options.k, 1), maximize=True)
    groups = np.full(len(layer), "", dtype=object)
    groups[np.flatnonzero(searched)[heads]] = np.repeat(CLASSES, options.k)[columns]
    scored_classes = [group or CLASSES[best] for group, best in zip(groups, choice_scores.argmax(1), strict=True)]
    held_scores = np.stack([table.values[name][i] for i, name in enumerate(scored_classes)])
    names, unit_names = (*CLASSES, "held_out"), [unit(name) for name in table.cases["id"]]
    measure = Measure(name="score", unit=UNIT, resolution=roles.RESOLUTION, limits=(-1.0, 1.0))
    block = replace(table, values={**table.values, "held_out": held_scores}).block(measure, names, unit_names)
    size = np.where(block.cells["what"].eq("held_out").to_numpy()[:, None] & choose, 0.0, 1.0)
    block = replace(block, total=np.where(size > 0, block.total, 0.0), size=size)
    contrasts = {"score": table.contrasts(names, held_out={"held_out": 1.0})}
    return InstrumentData({"score": block}, contrasts, extra={"group": groups, "scored": scored_classes})


def tables(options: HeadGroups, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """heads: one row per head; groups: the heads with a group."""
    scores, title = estimates["score"], data.about.get("title", "")
    frame, missing = scores.where(quantity="held_out").wide(roles.KEYS)
    classes = {name: scores.where(quantity=name).frame["value"] for name in CLASSES}
    frame = frame.assign(**classes, **data.extra)
    heads = Table(frame, COLUMNS, missing, f"{title}: every head", "held_out")
    in_group = frame[frame["group"] != ""].sort_values(["group", "held_out"], ascending=[True, False], kind="stable")
    words = f"{title}: heads of the groups, chosen on one half of the cases"
    return {"heads": heads, "groups": heads.only(list(in_group.index), words)}


COLUMNS = (
    number("layer", "layer", "layer", "counted from 0", "d", False),
    number("index", "index", "head", "of the head in its layer, from 0", "d", False),
    key("head", "head", "layer and index"),
    *(number(name, name, UNIT, f"score for the class {name}, on all cases", "+.4f") for name in CLASSES),
    key("group", "group", "group of the head", unit="class"),
    key("scored", "scored class", "class of the held-out score: that of the group, or the head's largest", "class"),
    *quantity("held_out", "held-out score", UNIT, "score for that class on the other half of the cases",
              sd="cases", source="PLS §5.1"),
    *counts("prompts", "independent cases"),
)  # fmt: skip


def summary(options: HeadGroups, table: RoleTable) -> pd.DataFrame:
    """The frame of the table `heads` from the scores of `read`."""
    measurements = observed(options, table)
    return tables(options, measurements, estimate_all(measurements.blocks, measurements.contrasts))["heads"].frame


def shuffled_scores(
    options: HeadGroups, captures: Captures, query: RoleQuery, tokenizer: Any, *, draws: int = 199, seed: int = 0
) -> np.ndarray:
    """[draws, heads]: the held-out score of every head under shuffles of the tokens' classes.

    A form is a token id with its class. Classes are permuted over the forms, so a head that attends to one word instead
    of a class scores as much in a shuffle. A head's class is its largest one on the choosing half.
    """
    forms: dict[tuple[int, str], int] = {}
    token_forms = []
    for ids, kinds, q in zip(query.tokens, _classes(query, tokenizer), query.aligned.queries, strict=True):
        pairs = zip(ids[: q + 1], kinds, strict=False)
        token_forms.append([forms.setdefault(pair, len(forms)) if pair[1] else -1 for pair in pairs])
    labels, rng = np.array([CLASSES.index(c) for _, c in forms]), np.random.default_rng(seed)
    classes = np.stack([np.append(rng.permutation(labels), -1) for _ in range(draws)])  # the last: no class
    scores = []  # per prompt [draws, heads, classes]
    rows = roles.attention_rows(captures, query)[1]
    for i, of_tokens in enumerate(token_forms):
        flat = rows[:, i, : len(of_tokens)]
        member = classes[:, of_tokens] == np.arange(len(CLASSES))[:, None, None]
        of_class = member @ flat.T - member.mean(-1)[..., None] * flat.sum(-1)  # [classes, draws, heads]
        scores.append(of_class.astype(np.float32).transpose(1, 2, 0))
    choose = halves(prompt_table(query.aligned.prompts).assign(relation=""), options.split)[0] == 0
    choosing, held_scores = (np.stack(scores)[choose == side] for side in (True, False))
    best = choosing.mean(0).argmax(-1)
    return np.take_along_axis(held_scores.mean(0), best[..., None], -1)[..., 0].astype(float)


def role_tests(summary: pd.DataFrame, shuffled_scores: np.ndarray) -> pd.DataFrame:
    """The heads of the groups of `summary`, compared with themselves under shuffled classes (`shuffled_scores`).

    p_shuffled = (1 + shuffles with at least this score) / (1 + shuffles), corrected over the heads of the groups (Holm)
    in p_shuffled_holm; `above_shuffled` if that is at most .05. `shuffled_95`: 95 % quantile of the shuffles.
    """
    in_group = summary["group"].to_numpy() != ""
    frame, dealt = summary[in_group].reset_index(drop=True), shuffled_scores[:, in_group]
    p = (1 + (dealt >= frame["held_out"].to_numpy()).sum(0)) / (1 + len(dealt))
    frame = frame.assign(shuffled_95=np.quantile(dealt, 0.95, axis=0), draws=len(dealt), p_shuffled=p)
    frame["p_shuffled_holm"] = holm(frame["p_shuffled"])
    return frame.assign(above_shuffled=frame["p_shuffled_holm"] <= 0.05)


def check_heads(n: int, k: int) -> None:
    """Raise `InputError` if `n` heads are too few for groups of k in every class."""
    if n < (need := k * len(CLASSES)):
        groups = f"{len(CLASSES)} groups of {k} need {need} heads"
        raise InputError(f"{groups}, here are {n}; lower --k, or use --layers all")


def groups_of(summary: pd.DataFrame) -> dict[str, tuple[Head, ...]]:
    """Class -> its heads, from a table of `summary`."""
    return {name: tuple(sorted(roles.head_scores(summary[summary["group"] == name], name))) for name in CLASSES}
