"""PDS: patterns of minimal pairs as cells × pairs, with one row per head."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import streamscope.probes.roles as roles
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Estimates, Measure, Reasons
from streamscope.instruments.prompts.alignment import (
    Aligned,
    OpenPrompts,
    align_once,
    given_prompts,
    prompt_table,
    require_pairs,
)
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.result import Result
from streamscope.instruments.table import HEAD, Table, counts, key, number, quantity
from streamscope.models.checkpoint import load
from streamscope.models.hooks import Captures, run
from streamscope.probes.pds import FIXED, NOUNS, Pds
from streamscope.probes.roles import RoleQuery, RoleTable

UNIT = "attention"
CELLS = ("first", "last", "moved")
"""Attention to the target if it stands first, if it stands last, and |last − first| of the pair."""
NO_SPREAD = "attention does not vary, or there is one pair"


def plan(options: Pds, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """The patterns of the prompts with a complete pair; `InputError` without pairs."""
    aligned = align_once(prompts, tokenizer)
    return roles.role_query(aligned.only(np.ravel(require_pairs(aligned)).tolist()), tokenizer)


def pairs(captures: Captures, query: RoleQuery) -> tuple[RoleTable, np.ndarray]:
    """`CELLS` and `difference` = last − first of every head on every pair, and attention to the first token [heads]."""

    heads, rows = roles.attention_rows(captures, query)
    target = roles.attention_to(rows, query, "target")
    at_first, at_last = map(list, zip(*query.aligned.pairs(), strict=True))
    first, last = target[:, at_first], target[:, at_last]
    values = {"first": first, "last": last, "difference": last - first, "moved": np.abs(last - first)}
    cases = prompt_table(query.aligned.prompts).iloc[at_first].drop(columns="order").reset_index(drop=True)
    return RoleTable(heads, cases, values), rows[..., 0].mean(1)


def read(options: Pds, captures: Captures, query: RoleQuery) -> pd.DataFrame:
    """One row per pair and head: attention `first`, `last`, `difference` = last − first, and `moved`, its size."""
    return pairs(captures, query)[0].frame()


def observe(options: Pds, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: every head with the target first, the target last, and the pair's |difference|. Units: pairs."""
    opened = data[Prompts]
    origin = options.reference or ("this run" if options.threshold == "own" else None)
    about: dict[str, Any] = {"rule": f"μ+σ of {origin}" if origin else "fixed"}
    if options.reference is not None:
        prompts, reference = data.specs[Prompts], load(options.reference)
        if isinstance(prompts, OpenPrompts):  # these are this model's tokens; the reference tokenises the suite itself
            if prompts.suite is not None and reference.tokenizer is not None:
                prompts = given_prompts(prompts.suite, reference)
            else:
                prompts = given_prompts(prompts.aligned, reference, prompts.tokenizer)
        about["threshold"] = mean_plus_sd(Pds(per_pair=options.per_pair).measure(reference, prompts).table().frame)
    query = plan(options, opened.aligned, opened.tokenizer)
    table, bos = pairs(run(model, query, progress=progress), query)
    is_sink = (bos >= roles.SINK) & opened.tokenizer.adds_bos  # without BOS, position 0 is a word
    about["sinks"] = table.heads["head"][is_sink].tolist()
    about["title"] = f"{title_of(model)} on {opened.title()}{roles.left_out(query, 'target')}"
    about["title"] += roles.sinks_sentence(about["sinks"], bos.size)
    ids = [p.id for p in query.aligned.prompts]
    measure = Measure(name="PDS", unit=UNIT, resolution=roles.RESOLUTION, limits=(0.0, 1.0))
    block = table.block(measure, CELLS, [opened.unit(ids[i], ids[j]) for i, j in query.aligned.pairs()])
    contrasts = table.contrasts(CELLS, difference={"last": 1.0, "first": -1.0})
    measurements = InstrumentData({"heads": block}, {"heads": contrasts}, about)
    groups = roles.groups_of(opened.cases().query("pair != ''"))
    if len(groups) > 1:
        of_groups = roles.by_category(block, contrasts, groups)
        measurements.blocks["categories"], measurements.contrasts["categories"] = of_groups
    measurements.blocks["best"], measurements.contrasts["best"], measurements.extra = roles.best_heads(
        table, block, groups, "difference", measure=replace(measure, limits=(-1.0, 1.0)), signs=NOUNS
    )
    return measurements


def tables(options: Pds, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """heads: one row per head; layers: the number of heads over the threshold per layer (LFA Table 4, Figure 1);
    categories: heads within each category; best: the best head of each, held out."""
    frame, missing = _heads(options, estimates["heads"])
    first, last, _ = np.split(data.blocks["heads"].total, len(CELLS))
    frame["d"] = roles.moved_d(last, first)
    missing |= dict.fromkeys(product(np.flatnonzero(frame["d"].isna()).tolist(), ["d"]), NO_SPREAD)
    threshold = data.about.get("threshold", FIXED if options.threshold is None else options.threshold)
    frame["threshold"] = mean_plus_sd(frame) if threshold == "own" else float(threshold)
    frame["over"] = frame["pds"] > frame["threshold"]
    title, prefers_first = data.about["title"], frame["over"] & (frame["difference"] < 0)
    parts = {"over": ("over", "sum"), "over_first": ("over_first", "sum"), "heads": ("pds", "size")}
    by_layer = frame.assign(over_first=prefers_first).groupby("layer")
    of_layers = by_layer.agg(**parts, max=("pds", "max"), mean=("pds", "mean")).reset_index()
    n_over, over_first = frame["over"].sum(), prefers_first.sum()
    description = "PDS per head" + (", mean over pairs of |last − first|" if options.per_pair else "")
    words = f"threshold {frame['threshold'][0]:.4f} ({data.about['rule']}): {n_over} heads above it"
    words += f", {n_over - over_first} for the last noun and {over_first} for the first" if n_over else ""
    output = {
        "heads": Table(frame, HEADS, missing, f"{title}; {description}", "pds"),
        "layers": Table(of_layers, LAYERS, {}, words),
    }
    if "categories" in estimates:
        frame, missing = _heads(options, estimates["categories"], "category")
        words = f"{title}; {description}, by category"
        output["categories"] = Table(frame, (roles.CATEGORY, *OF_HEADS), missing, words, "pds", 3, ("category",))
    output["best"] = roles.best_table(estimates["best"], data.extra, BESTS, title)
    return output


def control_tables(run: Result, control: Result) -> dict[str, Table]:
    """models: PDS of every head of run and control, named as in the run's own table."""
    names = [result.about["model"] for result in (run, control)]
    names[1] += ", control" if names[0] == names[1] else ""
    parts = [result.table().frame.assign(model=name) for name, result in zip(names, (run, control), strict=True)]
    shown = ("head", "layer", "index", "pds", "threshold", "over")
    columns = (key("model", "model", "run or control"), *(column for column in HEADS if column.name in shown))
    frame = pd.concat(parts, ignore_index=True)[[column.name for column in columns]]
    words = f"{run.table().title.rpartition('; ')[2]}, of {names[0]} and of its control {names[1]}"
    return {"models": Table(frame, columns, {}, words, "pds")}


def _heads(options: Pds, estimates: Estimates, *keys: str) -> tuple[pd.DataFrame, Reasons]:
    """A row for each head (of each of `keys`), with PDS and the noun that it prefers."""
    frame, missing = estimates.wide((*keys, *roles.KEYS))
    moved = frame.pop("moved")
    frame.insert(len(keys) + 3, "pds", moved if options.per_pair else frame["difference"].abs())
    is_moved = frame["difference"].abs() > roles.RESOLUTION
    frame.insert(len(keys) + 4, "prefers", np.where(is_moved, np.take(NOUNS, frame["difference"] > 0), "neither"))
    return frame, {(i, name.replace("moved", "pds")): reason for (i, name), reason in missing.items()}


OF_HEADS = (
    *HEAD,
    number("pds", "PDS", UNIT, "|mean over pairs of attention to the target, last − first|, or mean of |last − first|",
           ".4f", source="LFA Eq. 7, App. C"),
    key("prefers", "prefers", "first, last or neither: where a noun gets more attention, the sign of last − first"),
    number("first", "target first", UNIT, "attention to the target if it stands first", ".4f"),
    number("last", "target last", UNIT, "attention to the target if it stands last", ".4f"),
    *quantity("difference", "last − first", UNIT, "attention to the target, last − first", sd="cases"),
    *counts("pairs",
            "independent cases: pairs of one text count once; the fewest words of a kind if cases share words"),
)  # fmt: skip
HEADS = (
    *OF_HEADS[:-2],
    number("d", "Cohen's d", "pooled standard deviations",
           "Cohen's d between last and first, pooled over the two orders", "+.3f", False),
    number("threshold", "threshold", UNIT, "heads with a larger PDS count as position-dependent", ".4f", False),
    key("over", "above threshold", "whether PDS exceeds the threshold", "yes or no"),
    *OF_HEADS[-2:],
)  # fmt: skip
BESTS = (
    roles.CATEGORY, roles.BEST,
    *quantity("best", "PDS, held out", UNIT, "attention to the target, the preferred place − the other", format="+.4f",
              sd="cases"),
    *OF_HEADS[-2:],
)  # fmt: skip
LAYERS = (
    key("layer", "layer", "counted from 0", "layer", "d"),
    number("over", "heads above threshold", "heads", "heads above the threshold", "d", source="LFA Table 4"),
    number("over_first", "of them prefer the first noun", "heads", "heads above it, last − first below 0", "d"),
    number("heads", "heads", "heads", "heads of the layer", "d"),
    number("max", "largest PDS", UNIT, "largest PDS of the layer", ".4f"),
    number("mean", "mean PDS", UNIT, "mean PDS of the layer", ".4f"),
)  # fmt: skip


def mean_plus_sd(summary: pd.DataFrame) -> float:
    """μ+σ of `pds` over heads (σ with n−1): for a reference run, the threshold of LFA App. C."""
    if len(summary) < 2:
        raise InputError(f"μ+σ needs at least two heads, the model has {len(summary)}; give a number as --threshold")
    return float(summary["pds"].mean() + summary["pds"].std(ddof=1))
