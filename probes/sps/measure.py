"""SPS: attention at the query as cells × prompts, with rows for all heads, per layer and per head."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, estimate
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.models.hooks import Captures, Query, run
from streamscope.probes.attention import (
    RESOLUTION,
    RoleQuery,
    attention_rows,
    attention_to,
    by_layer,
    left_out,
    moved_d,
    prompt_columns,
    role_query,
    tidy,
)
from streamscope.probes.categories import BEST, CATEGORY, FEW, best_heads, best_table, by_category, groups_of
from streamscope.probes.sps import Sps

KEYS = ("head", "layer", "index")
LEVELS = {"all": "all heads", "layers": "the heads of each layer", "heads": "each head"}
UNIT = "attention, target − competitor"
NO_SPREAD = "attention does not vary, or there is one prompt"


def plan(how: Sps, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """Patterns at the query, and gates if they are used."""
    return role_query(prompts, tokenizer, needs=("target", "distractor"), gated=how.attention == "gated")


def read(how: Sps, captures: Captures, query: Query) -> pd.DataFrame:
    """One row per prompt and head: attention `semantic` and `distractor`, `sps`, and `even`."""
    assert isinstance(query, RoleQuery)
    found: dict[str, list[np.ndarray]] = {"target": [], "distractor": []}
    for i, rows in attention_rows(captures, query, gated=how.attention == "gated"):
        for role, weights in found.items():
            weights.append(attention_to(rows, query.aligned.positions[i][role]))
    semantic, distractor = np.stack(found["target"]), np.stack(found["distractor"])
    values = {"semantic": semantic, "distractor": distractor, "sps": semantic - distractor}
    sizes = [len(at["target"]) - len(at["distractor"]) for at in query.aligned.positions]
    even = [size / (q + 1) for size, q in zip(sizes, query.aligned.queries, strict=True)]
    columns: dict[str, list[Any]] = {**prompt_columns(query.aligned), "even": even}
    return tidy(columns, list(by_layer(captures, "hook_pattern")), values)


def observe(how: Sps, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: attention of every head to target and competitor, and that of uniform attention. Units: prompts."""
    opened = data[Prompts]
    if how.attention == "gated" and not any(name.endswith("attn.hook_gate") for name in model.hook_dict):
        raise InputError(f"{title_of(model)} has no head gates, so its attention is raw: leave out --attention gated")
    query = plan(how, opened.aligned, opened.tokenizer)
    rows = read(how, run(model, query, progress=progress), query)
    seen, groups = seen_of(rows, opened.unit), groups_of(opened.cases())
    block = seen.blocks["sps"]
    if len(groups) > 1:
        wanted = [c for c in seen.contrasts["sps"] if c.labels["level"] != "layers"]
        seen.blocks["categories"], seen.contrasts["categories"] = by_category(block, wanted, groups)
    ids, rows = rows["id"].drop_duplicates().tolist(), rows.assign(case=rows["id"])
    seen.blocks["best"], seen.extra = best_heads(rows, block, groups, ids, ["sps"], block.measure)
    seen.contrasts["best"] = [
        Contrast(quantity="best", weights={i: 1.0}, labels={"category": name}, missing="" if head else FEW)
        for i, (name, head) in enumerate(seen.extra.items())
    ]
    lost = left_out(query, "target and distractor")
    seen.about["title"] = f"{title_of(model)} on {opened.title()}{lost}; {how.attention} attention"
    return seen


def seen_of(rows: pd.DataFrame, unit: Callable[[str], str] = str) -> InstrumentData:
    """Observations and contrasts of the rows of `read`. Heads are averaged within a prompt: prompts are the units."""
    if rows.empty:
        raise InputError("the table has no prompts to summarise")
    heads = rows.drop_duplicates("head")[list(KEYS)].reset_index(drop=True)
    prompts = rows.drop_duplicates("id").reset_index(drop=True)
    n = len(heads)
    roles = [rows[role].to_numpy(float).reshape(len(prompts), n).T for role in ("semantic", "distractor")]
    cells = [heads.assign(role="semantic"), heads.assign(role="distractor")]
    cells.append(pd.DataFrame({"head": ["even"], "layer": -1, "index": -1, "role": "even"}))
    names = ("cluster", "category", "relation", "order")
    block = Observations(
        measure=Measure(name="SPS", unit=UNIT, resolution=RESOLUTION), cells=pd.concat(cells, ignore_index=True),
        units=prompts[list(names)].assign(unit=[unit(name) for name in prompts["id"]]),
        total=np.concatenate([*roles, prompts["even"].to_numpy(float)[None]]), size=1.0,
    )  # fmt: skip
    groups: list[tuple[str, str, int, int, Sequence[int]]] = [("all", "all", -1, -1, range(n))]
    groups += [("layers", f"L{layer}", layer, -1, list(some.index)) for layer, some in heads.groupby("layer")]
    groups += [("heads", one.head, one.layer, one.index, [i]) for i, one in enumerate(heads.itertuples(index=False))]
    contrasts = []
    for level, head, layer, index, some in groups:
        labels = {"level": level, "head": head, "layer": layer, "index": index}
        right, other = ({i + at: 1 / len(some) for i in some} for at in (0, n))
        difference = {**right, **{i: -w for i, w in other.items()}}
        contrasts += [
            Contrast(quantity="semantic", weights=right, labels=labels, null=None),
            Contrast(quantity="distractor", weights=other, labels=labels, null=None),
            Contrast(quantity="sps", weights=difference, labels=labels, family=level),
            Contrast(quantity="even", weights={2 * n: 1.0}, labels=labels, null=None),
        ]
    return InstrumentData({"sps": block}, {"sps": contrasts}, {"title": "SPS"})


def tables(how: Sps, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """all: SPS over all heads; layers: over those of each layer; heads: of each head; all-categories, categories: over
    all heads and of each head, within each category; best: the best head of each category, held out."""
    block, out = seen.blocks["sps"], {}
    for level, what in LEVELS.items():
        found = estimates["sps"].where(level=level)
        frame, missing = found.wide(KEYS)
        roles = ([block.total[list(c.weights)].mean(0) for c in found.where(quantity=role).contrasts]
                 for role in ("semantic", "distractor"))  # fmt: skip
        frame.insert(len(frame.columns) - 2, "d", [moved_d(*both) for both in zip(*roles, strict=True)])
        missing |= {(i, "d"): NO_SPREAD for i, d in enumerate(frame["d"]) if np.isnan(d)}
        out[level] = Table(frame, COLUMNS, missing, f"{seen.about['title']}; SPS of {what}", "sps")
    title = seen.about["title"]
    if "categories" in estimates:
        for name, level in (("all-categories", "all"), ("categories", "heads")):
            frame, missing = estimates["categories"].where(level=level).wide(("category", *KEYS))
            words = f"{title}; SPS of {LEVELS[level]}, by category"
            out[name] = Table(frame, (CATEGORY, *OF_HEADS), missing, words, "sps", 3, ("category",))
    if "best" in estimates:
        out["best"] = best_table(estimates["best"], seen.extra, BESTS, title)
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
    CATEGORY, BEST,
    *quantity("best", "SPS, held out", UNIT, "SPS of the head chosen without these prompts", sd="independent cases"),
    *OF_HEADS[-2:],
)  # fmt: skip


def summary(rows: pd.DataFrame, level: str = "all") -> pd.DataFrame:
    """A table (all, layers, heads) of the rows of `read`, with the short names that `papers` use: sd, ci_low …"""
    seen = seen_of(rows)
    return tables(Sps(), seen, {"sps": estimate(seen.blocks["sps"], seen.contrasts["sps"])})[level].short("sps")
