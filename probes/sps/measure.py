"""SPS: attention at the query as cells × prompts, with rows for all heads, per layer and per head."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.models.hooks import Captures, Query, run
from streamscope.probes import roles
from streamscope.probes.roles import RoleQuery, RoleTable
from streamscope.probes.sps import Sps

LEVELS = {"all": "all heads", "layers": "the heads of each layer", "heads": "each head"}
ROLES = ("semantic", "distractor", "even")
UNIT = "attention, target − competitor"
NO_SPREAD = "attention does not vary, or there is one prompt"


def plan(how: Sps, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """Patterns at the query, and gates if they are used."""
    return roles.role_query(prompts, tokenizer, needs=("target", "distractor"), gated=how.attention == "gated")


def attention(how: Sps, captures: Captures, query: RoleQuery) -> RoleTable:
    """Attention of every head on every prompt to `ROLES`, `sps`, and `even`, the SPS of uniform attention."""
    positions = query.aligned.positions

    def of(i: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        semantic, distractor = (roles.attention_to(rows, positions[i][role]) for role in ("target", "distractor"))
        longer = len(positions[i]["target"]) - len(positions[i]["distractor"])
        even = np.full_like(semantic, longer / rows.shape[-1])
        return {"semantic": semantic, "distractor": distractor, "sps": semantic - distractor, "even": even}

    return roles.role_table(captures, query, of, gated=how.attention == "gated")


def read(how: Sps, captures: Captures, query: Query) -> pd.DataFrame:
    """One row per prompt and head: attention `semantic` and `distractor`, `sps`, and `even`."""
    assert isinstance(query, RoleQuery)
    return attention(how, captures, query).frame()


def observe(how: Sps, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: attention of every head to target and competitor, and that of uniform attention. Units: prompts."""
    opened = data[Prompts]
    if how.attention == "gated" and not any(name.endswith("attn.hook_gate") for name in model.hook_dict):
        raise InputError(f"{title_of(model)} has no head gates, so its attention is raw: leave out --attention gated")
    query = plan(how, opened.aligned, opened.tokenizer)
    table = attention(how, run(model, query, progress=progress), query)
    measure = Measure(name="SPS", unit=UNIT, resolution=roles.RESOLUTION)
    block = table.block(measure, ROLES, [opened.unit(name) for name in table.cases["id"]])
    wanted = contrasts(table)
    lost = roles.left_out(query, "target and distractor")
    title = f"{title_of(model)} on {opened.title()}{lost}; {how.attention} attention"
    seen, groups = InstrumentData({"sps": block}, {"sps": wanted}, {"title": title}), roles.groups_of(opened.cases())
    if len(groups) > 1:
        some = [c for c in wanted if c.labels["level"] != "layers"]
        seen.blocks["categories"], seen.contrasts["categories"] = roles.by_category(block, some, groups)
    seen.blocks["best"], seen.contrasts["best"], seen.extra = roles.best_heads(table, block, groups, "sps")
    return seen


def contrasts(table: RoleTable) -> list[Contrast]:
    """Every role and the SPS of all heads, of those of each layer, and of each head."""
    heads = table.heads
    levels = {
        "all": [({"head": "all", "layer": -1, "index": -1}, list(heads.index))],
        "layers": [({"head": f"L{layer}", "layer": layer, "index": -1}, list(some.index))
                   for layer, some in heads.groupby("layer")],
        "heads": [(labels, [i]) for i, labels in enumerate(heads.to_dict("records"))],
    }  # fmt: skip
    wanted = []
    for level, of_level in levels.items():
        groups = [({"level": level, **labels}, some) for labels, some in of_level]
        wanted += [c for name in ROLES for c in table.contrasts(ROLES, name, {name: 1.0}, groups, null=None)]
        wanted += table.contrasts(ROLES, "sps", {"semantic": 1.0, "distractor": -1.0}, groups, family=level)
    return wanted


def tables(how: Sps, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """all: SPS over all heads; layers: over those of each layer; heads: of each head; all-categories, categories: over
    all heads and of each head, within each category; best: the best head of each category, held out."""
    block, out = seen.blocks["sps"], {}
    for level, what in LEVELS.items():
        found = estimates["sps"].where(level=level)
        frame, missing = found.wide(roles.KEYS)
        attended = ([block.total[list(c.weights)].mean(0) for c in found.where(quantity=role).contrasts]
                 for role in ("semantic", "distractor"))  # fmt: skip
        frame.insert(len(frame.columns) - 2, "d", [roles.moved_d(*both) for both in zip(*attended, strict=True)])
        missing |= {(i, "d"): NO_SPREAD for i, d in enumerate(frame["d"]) if np.isnan(d)}
        out[level] = Table(frame, COLUMNS, missing, f"{seen.about['title']}; SPS of {what}", "sps")
    title = seen.about["title"]
    if "categories" in estimates:
        for name, level in (("all-categories", "all"), ("categories", "heads")):
            frame, missing = estimates["categories"].where(level=level).wide(("category", *roles.KEYS))
            words = f"{title}; SPS of {LEVELS[level]}, by category"
            out[name] = Table(frame, (roles.CATEGORY, *OF_HEADS), missing, words, "sps", 3, ("category",))
    out["best"] = roles.best_table(estimates["best"], seen.extra, BESTS, title)
    return out


OF_HEADS = (
    key("head", "heads", "the head, or the heads that are averaged"),
    number("layer", "layer", "layer", "counted from 0; −1 for all", "d", False),
    number("index", "index", "head", "number of the head in its layer; −1 for several", "d", False),
    *quantity("semantic", "target", "attention to the target", "mean attention to the target", tested=False,
              format=".4f"),
    *quantity("distractor", "competitor", "attention to the competitor", "mean attention to the competitor",
              tested=False, format=".4f"),
    *quantity("sps", "SPS", UNIT, "mean attention to the target − to the competitor", source="LFA Eq. 8",
              sd="independent cases"),
    *quantity("even", "SPS, uniform attention", f"{UNIT}, for uniform attention",
              "(tokens of the target − tokens of the competitor) / keys", tested=False),
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
    *quantity("best", "SPS, held out", UNIT, "SPS of the head chosen without these prompts", sd="independent cases"),
    *OF_HEADS[-2:],
)  # fmt: skip
