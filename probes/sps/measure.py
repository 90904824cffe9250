"""SPS: attention at the query as cells × prompts, with rows for all heads, per layer and per head."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import streamscope.probes.roles as roles
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure
from streamscope.instruments.prompts.alignment import Aligned, prompt_table
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.models.hooks import Captures, run
from streamscope.probes.roles import RoleQuery, RoleTable
from streamscope.probes.sps import Sps

LEVELS = {"all": "all heads", "layers": "the heads of each layer", "heads": "each head"}
ROLES = ("semantic", "distractor", "even")
UNIT = "attention, target − competitor"
NO_SPREAD = "attention does not vary, or there is one prompt"


def plan(options: Sps, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """Patterns at the query, and gates if they are used."""
    return roles.role_query(
        prompts, tokenizer, needs=("target", "distractor"), gated=options.attention == "gated", whole=True
    )


def attention(captures: Captures, query: RoleQuery) -> RoleTable:
    """Attention of every head on every prompt to `ROLES`, `sps`, and `even`, the SPS of uniform attention."""
    heads, rows = roles.attention_rows(captures, query)
    semantic, distractor = (roles.attention_to(rows, query, role) for role in ("target", "distractor"))
    longer = [len(spans["target"]) - len(spans["distractor"]) for spans in query.aligned.positions]
    even = np.broadcast_to(np.array(longer) / (np.array(query.aligned.queries) + 1), semantic.shape)
    values = {"semantic": semantic, "distractor": distractor, "sps": semantic - distractor, "even": even}
    return RoleTable(heads, prompt_table(query.aligned.prompts), values)


def read(options: Sps, captures: Captures, query: RoleQuery) -> pd.DataFrame:
    """One row per prompt and head: attention `semantic` and `distractor`, `sps`, and `even`."""
    return attention(captures, query).frame()


def observe(options: Sps, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: attention of every head to target and competitor, and that of uniform attention. Units: prompts."""
    opened = data[Prompts]
    if options.attention == "gated" and not any(name.endswith("attn.hook_gate") for name in model.hook_dict):
        raise InputError(f"{title_of(model)} has no head gates, so its attention is raw: leave out --attention gated")
    query = plan(options, opened.aligned, opened.tokenizer)
    table = attention(run(model, query, progress=progress), query)
    measure = Measure(name="SPS", unit=UNIT, resolution=roles.RESOLUTION)
    block = table.block(measure, ROLES, [opened.unit(name) for name in table.cases["id"]])
    title = f"{title_of(model)} on {opened.title()}{roles.left_out(query, 'target and distractor')}"
    heads, blocks, contrasts = table.heads, {"sps": block}, {"sps": list[Contrast]()}
    levels = {
        "all": [({"head": "all", "layer": -1, "index": -1}, list(heads.index))],
        "layers": [({"head": f"L{layer}", "layer": layer, "index": -1}, list(members.index))
                   for layer, members in heads.groupby("layer")],
        "heads": [(labels, [i]) for i, labels in enumerate(heads.to_dict("records"))],
    }  # fmt: skip
    for level, of_level in levels.items():
        named = [({"level": level, **labels}, members) for labels, members in of_level]
        contrasts["sps"] += table.contrasts(ROLES, named, family=level, sps={"semantic": 1.0, "distractor": -1.0})
    groups = roles.groups_of(opened.cases())
    if len(groups) > 1:
        by_head = [c for c in contrasts["sps"] if c.labels["level"] != "layers"]
        blocks["categories"], contrasts["categories"] = roles.by_category(block, by_head, groups)
    blocks["best"], contrasts["best"], best = roles.best_heads(table, block, groups, "sps")
    return InstrumentData(blocks, contrasts, {"title": f"{title}; {options.attention} attention"}, extra=best)


def tables(options: Sps, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """all: SPS over all heads; layers: over those of each layer; heads: of each head; all-categories, categories: over
    all heads and of each head, within each category; best: the best head of each category, held out."""
    block, title, out = data.blocks["sps"], data.about["title"], {}
    for level, scope in LEVELS.items():
        level_estimates = estimates["sps"].where(level=level)
        frame, missing = level_estimates.wide(roles.KEYS)
        target, other = (
            np.stack([block.total[list(c.weights)].mean(0) for c in level_estimates.where(quantity=role).contrasts])
            for role in ("semantic", "distractor")
        )
        frame.insert(len(frame.columns) - 2, "d", roles.moved_d(target, other))
        missing |= {(int(i), "d"): NO_SPREAD for i in np.flatnonzero(frame["d"].isna())}
        out[level] = Table(frame, COLUMNS, missing, f"{title}; SPS of {scope}", "sps")
    if "categories" in estimates:
        for name, level in (("all-categories", "all"), ("categories", "heads")):
            frame, missing = estimates["categories"].where(level=level).wide(("category", *roles.KEYS))
            words = f"{title}; SPS of {LEVELS[level]}, by category"
            out[name] = Table(frame, (roles.CATEGORY, *OF_HEADS), missing, words, "sps", 3, ("category",))
    out["best"] = roles.best_table(estimates["best"], data.extra, BESTS, title)
    return out


OF_HEADS = (
    key("head", "heads", "the head, or the heads that are averaged"),
    number("layer", "layer", "layer", "counted from 0; −1 for all", "d", False),
    number("index", "index", "head", "number of the head in its layer; −1 for several", "d", False),
    number("semantic", "target", "attention to the target", "mean attention to the target", ".4f"),
    number("distractor", "competitor", "attention to the competitor", "mean attention to the competitor", ".4f"),
    *quantity("sps", "SPS", UNIT, "mean attention to the target − to the competitor", source="LFA Eq. 8",
              sd="cases"),
    number("even", "SPS, uniform attention", f"{UNIT}, for uniform attention",
           "(tokens of the target − tokens of the competitor) / keys", "+.4f"),
    *counts("prompts", "independent cases: a pair counts once; the fewest words of a kind if cases share words"),
)  # fmt: skip
COLUMNS = (
    *OF_HEADS[:-2],
    number("d", "Cohen's d", "pooled standard deviations, target against competitor",
           "Cohen's d between attention to the target and to the competitor", "+.3f", False),
    *OF_HEADS[-2:],
)  # fmt: skip
BESTS = (
    roles.CATEGORY, roles.BEST,
    *quantity("best", "SPS, held out", UNIT, "SPS of the head chosen without these prompts", sd="cases"),
    *OF_HEADS[-2:],
)  # fmt: skip
