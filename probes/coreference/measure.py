"""Coreference: attention at the pronoun as heads × cases and pairs, with one row per head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import streamscope.probes.roles as roles
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import NOWHERE, ONE_UNIT, Estimates, Measure, Observations, each, joined
from streamscope.instruments.prompts.alignment import Aligned, prompt_table
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.stats.held_out import RULES, held_out
from streamscope.instruments.table import HEAD, Table, counts, described, key, number, quantity
from streamscope.models.hooks import Captures, run
from streamscope.probes.coreference import Coreference
from streamscope.probes.roles import RoleQuery, RoleTable

READINGS, HITS = ("jaccard", "over_total"), ("hit", "tie")
RULED_BY, ENDS = ["chance", *RULES], ("low", "high", "p")
SAME = "the difference is the same in every cluster"
NO_PAIRS, NO_HIT = "no minimal pairs", "no head hits the target in any pair"
NO_HIT_HERE = "no head hits the target in either order"


def plan(options: Coreference, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """Patterns of the prompts with a target and, among candidates, with a distractor."""
    needs = ("target", "distractor")[: 2 if options.domain == "candidates" else 1]
    return roles.role_query(prompts, tokenizer, needs=needs)


def attention(options: Coreference, captures: Captures, query: RoleQuery) -> RoleTable:
    """`attention` to the target, `hit` and `tie` of every head on every prompt; of a prompt the results of the rules.

    A hit needs strictly more attention than everything else in the domain; within `roles.TIE` it is a `tie` and no
    hit. `recency`, `first_mention`: the target is the last or first candidate; `longest`: it has most tokens (the last
    of equals); `chance`: 1/candidates, or the target's tokens / keys.
    """
    others = [[span for role, span in spans.items() if role not in ("query", "target")]
              for spans in query.aligned.positions]  # fmt: skip
    targets = [spans["target"] for spans in query.aligned.positions]
    pairs = list(zip(targets, others, strict=True))
    rules: dict[str, list[Any]] = {
        "chance": [1 / (1 + len(spans)) for spans in others],
        "recency": [all(target > span for span in spans) for target, spans in pairs],
        "first_mention": [all(target < span for span in spans) for target, spans in pairs],
        "longest": [all((len(target), target) > (len(span), span) for span in spans) for target, spans in pairs],
    }
    if options.domain == "keys":
        rules["chance"] = [len(target) / (q + 1) for target, q in zip(targets, query.aligned.queries, strict=True)]

    heads, attended = roles.attention_rows(captures, query)
    target = best = roles.attention_to(attended, query, "target")
    if options.domain == "candidates":
        names = sorted(set().union(*query.aligned.positions) - {"query", "target"})
        rival = np.max([roles.attention_to(attended, query, name) for name in names], axis=0)
    else:
        is_target = np.zeros(attended.shape[1:], bool)
        for row, span in zip(is_target, targets, strict=True):
            row[list(span)] = True
        best, rival = (attended * is_target).max(-1), (attended * ~is_target).max(-1)
    values = dict(zip(("attention", "hit", "tie"), (target, *roles.exceeds(best, rival)), strict=True))
    return RoleTable(heads, prompt_table(query.aligned.prompts).assign(**rules), values)


def read(options: Coreference, captures: Captures, query: RoleQuery) -> pd.DataFrame:
    """One row per prompt and head of `attention`."""
    return attention(options, captures, query).frame()


def observe(options: Coreference, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: heads (attention, hits, ties) over cases, and hits in both orders over pairs."""
    opened = data[Prompts]
    query = plan(options, opened.aligned, opened.tokenizer)
    table = attention(options, run(model, query, progress=progress), query)
    measurements = observed(options, table, query.aligned.pairs(), roles.groups_of(opened.cases()), opened.unit)
    left_out = roles.left_out(query, "target and distractor")
    measurements.about["title"] = f"{title_of(model)} on {opened.title()}{left_out}"
    return measurements


def observed(
    options: Coreference, table: RoleTable, pairs: Sequence[tuple[int, int]], groups: roles.Groups,
    unit: Callable[..., str],
) -> InstrumentData:  # fmt: skip
    """Observations and contrasts of `attention`: heads × cases, and readings and heads × minimal pairs, which are
    places of cases (target first, target last). `unit` names the unit of one case or of a pair."""
    names, heads = [unit(name) for name in table.cases["id"]], table.heads
    weights = Measure(name="attention", unit="attention", resolution=roles.RESOLUTION, limits=(0.0, 1.0))
    hits = Measure(name="Top-1", unit="share of cases", resolution=0.0, kind="share")
    blocks = {"attention": table.block(weights, ["attention"], names), "top1": table.block(hits, HITS, names)}
    contrasts = {name: each(name, heads, null=None) for name in blocks}
    contrasts["top1"] += each("ties", heads, start=len(heads), null=None)
    of_groups = {name: table.cases[roles.members(table.cases, group)] for name, group in groups.items()}
    rules = pd.DataFrame({name: cases[RULED_BY].mean() for name, cases in of_groups.items()}).T
    measurements = InstrumentData(blocks, contrasts, extra={"rules": rules})
    if pairs:
        _add_pairs(measurements, table, sorted(pairs, key=lambda pair: table.cases["pair"][pair[0]]), unit)
    for name, block in list(blocks.items()) if len(groups) > 1 else ():
        of_heads = [c for c in contrasts[name] if c.quantity != "mean"]
        repeated = roles.by_category(block, of_heads, groups, {"stable": NO_PAIRS})
        blocks[f"{name}-categories"], contrasts[f"{name}-categories"] = repeated
    blocks["best"], contrasts["best"], measurements.extra["best"] = roles.best_heads(
        table, blocks["top1"], groups, "hit", "recency", seed=options.split_seed, ties=["attention"]
    )
    measurements.extra["held-out"] = held_out(table.frame(), seed=options.split_seed)
    return measurements


def _add_pairs(
    data: InstrumentData, table: RoleTable, pairs: Sequence[tuple[int, int]], unit: Callable[..., str]
) -> None:
    """Both readings of Eq. 6 (SPEC §7.3) and every head's hits in both orders, over pairs; and a row per pair (App. G).

    jaccard = |S_first ∩ S_last| / |S_first ∪ S_last|, S the heads that hit the target in that order; this reading gives
    the paper's numbers, and pairs without a hit are left out and counted. over_total = |S_first ∩ S_last| / |heads|,
    the printed formula.
    """
    first, last = map(list, zip(*pairs, strict=True))
    hits, heads, ids = table.values["hit"], table.heads, table.cases["id"]
    hit_in_both, hit_in_either = hits[:, first] & hits[:, last], hits[:, first] | hits[:, last]
    some_hit = hit_in_either.any(0)
    with np.errstate(invalid="ignore"):
        jaccard = np.where(some_hit, hit_in_both.sum(0) / hit_in_either.sum(0), np.nan)
    cases = table.cases.iloc[first].reset_index(drop=True)
    data.extra["pairs"] = cases[["pair", "relation"]].assign(
        stable=hit_in_both.sum(0), either=hit_in_either.sum(0), jaccard=jaccard
    )
    readings = pd.DataFrame([{"reading": name, "head": "all", "layer": -1, "index": -1} for name in READINGS])
    data.blocks["stability"] = Observations(
        measure=Measure(name="stability", unit="share", resolution=0.0, limits=(0.0, 1.0)),
        cells=pd.concat([readings, heads.assign(reading="stable")], ignore_index=True),
        units=cases[["cluster", "category", "relation"]].assign(unit=[unit(ids[i], ids[j]) for i, j in pairs]),
        total=np.stack([jaccard, hit_in_both.mean(0), *hit_in_both.astype(float)]),
        size=np.stack([some_hit, *np.ones((1 + len(heads), len(pairs)))]),
    )  # fmt: skip
    reasons = ["" if some_hit.any() else NO_HIT, ""]
    data.contrasts["stability"] = [
        *each("mean", readings[["reading"]], null=None, missing=reasons),
        *each("stable", heads, start=len(READINGS), null=None),
    ]


def tables(options: Coreference, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """heads: one row per head, best first; held-out: chosen heads and rules; categories: heads within each category;
    best: the best head of each; stability, pairs: LFA Eq. 6."""
    among, extra = f"{data.about['title']}; Top-1 among {options.domain}", data.extra
    rules = ", ".join(f"{name.replace('_', ' ')} {x:.3f}" for name, x in extra["rules"].loc[roles.ALL].items())
    held_rows = extra["held-out"]
    words = f"The best head of one half of the cases, scored on the other; the halves share no {held_rows['apart'][0]}"
    flat = {
        (int(i), f"difference_{end}"): ONE_UNIT if held_rows["clusters"][i] < 2 else SAME
        for end in ENDS
        for i in np.flatnonzero(held_rows[f"difference_{end}"].isna())
    }
    out = {
        "heads": replace(table_of(data, estimates), title=f"{among}; {rules}", by="top1", most=options.top),
        "held-out": Table(held_rows, HELD_OUT, flat, words),
    }
    if "top1-categories" in estimates:
        category_table = table_of(data, estimates, categories=True)
        out["categories"] = replace(category_table, title=f"{among}, by category", by="top1", most=3, per=("category",))
    out["best"] = roles.best_table(estimates["best"], extra["best"], BESTS, among)
    if "stability" in estimates:
        readings = estimates["stability"].where(quantity="mean")
        frame, missing = readings.wide(["reading"], describe=("sd", "low", "high"))
        n_pairs = len(data.blocks["stability"].units)
        frame = frame.rename(columns={"n": "pairs"}).assign(left_out=n_pairs - frame["n"])
        out["stability"] = Table(frame, STABILITY, missing, f"Stability over {n_pairs} minimal pairs")
        missing = {(int(i), "jaccard"): NO_HIT_HERE for i in np.flatnonzero(extra["pairs"]["jaccard"].isna())}
        words = f"Stability of every minimal pair; Top-1 among {options.domain}"
        out["pairs"] = Table(extra["pairs"], PAIRS, missing, words, "jaccard", 10)
    return out


def table_of(data: InstrumentData, estimates: Mapping[str, Estimates], *, categories: bool = False) -> Table:
    """One row per head (of each category), best Top-1 first. Intervals are for a single head."""
    end, first = ("-categories", (roles.CATEGORY,)) if categories else ("", ())
    columns, keys = (*first, *HEADS), [*(column.name for column in first), *roles.KEYS]
    parts = [estimates[f"attention{end}"], *(estimates[f"top1{end}"].where(quantity=q) for q in ("top1", "ties"))]
    if f"stability{end}" in estimates:
        parts.append(estimates[f"stability{end}"].where(quantity="stable"))
    frame, missing = joined(parts, keys, columns)
    if "stable" not in frame:
        frame["stable"] = np.nan
        missing |= {(i, "stable"): NO_PAIRS for i in range(len(frame))}
    place = data.extra["rules"].index.get_indexer(frame["category"] if categories else [roles.ALL] * len(frame))
    frame[RULED_BY] = data.extra["rules"].to_numpy()[place]
    missing |= {(int(i), rule): NOWHERE for rule in RULED_BY for i in np.flatnonzero(frame[rule].isna())}
    order = np.lexsort((-frame["attention"], -frame["top1"], place))
    return Table(frame, columns, missing).only(order.tolist(), "")


CASES = "share of cases"
RULED = (
    number("chance", "chance", CASES, "1 / candidates, or the target's tokens / keys", ".3f", False),
    number("recency", "last-candidate rule", CASES, "cases in which the last candidate is right", ".3f", False),
    number("first_mention", "first-mention rule", CASES, "cases in which the first candidate is right", ".3f", False),
    number("longest", "longest-candidate rule", CASES,
           "cases in which the candidate with most tokens is right (the last of equals)", ".3f", False),
)  # fmt: skip
INDEPENDENT = "independent cases: pairs and texts count once; the fewest words of a kind if cases share words"
HEADS = (
    *HEAD,
    *described("attention", "attention", "attention to the target", "mean attention to the antecedent",
               sd="cases", source="LFA Eq. 4"),
    *described("top1", "Top-1", CASES, "cases in which the antecedent gets most attention; Wilson's interval",
               format=".3f", source="LFA Eq. 5"),
    number("ties", "ties", CASES, "cases without a single largest candidate; they are no hits", ".3f"),
    number("stable", "hit in both orders", "share of pairs", "minimal pairs hit in both orders", ".3f",
           source="LFA App. G"),
    *RULED,
    *counts("cases", INDEPENDENT),
)  # fmt: skip
BESTS = (
    roles.CATEGORY, roles.BEST,
    *described("best", "Top-1, held out", CASES, "cases in which the head chosen without them is right", format=".3f",
               sd="cases"),
    *described("recency", "last-candidate rule", CASES, "cases in which the last candidate is right", format=".3f",
               sd="cases"),
    *quantity("lead", "head − rule", f"{CASES}, head − rule", "how much more often the head is right", format="+.3f",
              sd="cases"),
    *counts("cases", INDEPENDENT),
)  # fmt: skip
HELD_OUT = (
    key("halves", "halves", "half that chose the head, and half that scores it"),
    key("head", "head", "the chosen head"),
    key("rule", "rule", "rule that it is compared with on the same cases"),
    number("top1", "Top-1", CASES, "Top-1 of the head on the other half", ".3f"),
    number("rule_share", "rule is right", CASES, "cases in which the rule is right", ".3f"),
    RULED[0],
    *described("difference", "head − rule", f"{CASES}, head − rule", "how much more often the head is right",
               format="+.3f"),
    number("difference_p", "p", "probability", "p that head and rule are right equally often", "p"),
    *counts("cases", INDEPENDENT),
    key("apart", "disjoint in", "what the halves do not share", shown=False),
)  # fmt: skip
STABILITY = (
    key("reading", "reading", "reading of Eq. 6"),
    *described("mean", "stability", "share of heads", "mean over pairs", sd="cases", format=".3f",
               source="LFA Eq. 6"),
    number("pairs", "pairs", "pairs", "pairs in which the reading is defined", "d"),
    number("clusters", "independent", INDEPENDENT, "independent pairs", "d", False),
    number("left_out", "left out", "pairs", "pairs in which no head hits in either order", "d"),
)  # fmt: skip
PAIRS = (
    key("pair", "pair", "the minimal pair, its target first and last"),
    key("relation", "relation", "relation of target and distractor"),
    number("stable", "hit in both orders", "heads", "heads that hit the target in both orders", "d"),
    number("either", "hit in either order", "heads", "heads that hit the target in at least one order", "d"),
    number("jaccard", "stability", "share of heads", "heads that hit in both orders / in either order", ".3f",
           source="LFA App. G"),
)  # fmt: skip
