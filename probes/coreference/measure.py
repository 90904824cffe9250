"""Coreference: attention at the pronoun as heads × cases and pairs, with one row per head."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import (
    NOWHERE,
    Contrast,
    Estimates,
    Measure,
    Observations,
    each,
    estimate_all,
    joined,
)
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.prompts.suite import Suite
from streamscope.instruments.stats.held_out import RULES, held_out
from streamscope.instruments.table import HEAD, Column, Table, counts, descending, described, key, number, quantity
from streamscope.instruments.undefined_cells import note
from streamscope.models.hooks import Captures, Query, run
from streamscope.probes.attention import (
    RESOLUTION,
    RoleQuery,
    attention_rows,
    attention_to,
    by_layer,
    exceeds,
    left_out,
    prompt_columns,
    role_query,
    tidy,
    up_to_query,
)
from streamscope.probes.categories import BEST, CATEGORY, FEW, best_heads, best_table, by_category, groups_of
from streamscope.probes.coreference import Coreference

KEYS = ("head", "layer", "index")
READINGS = ("jaccard", "over_total")
NO_PAIRS, NO_HIT = "no minimal pairs", "no head hits the target in any pair"
NO_HIT_HERE = "no head hits the target in either order"


def plan(how: Coreference, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """Patterns of the prompts with a target and, among candidates, with a distractor."""
    needs = ("target", "distractor")[: 2 if how.domain == "candidates" else 1]
    return up_to_query(role_query(prompts, tokenizer, needs=needs))


def read(how: Coreference, captures: Captures, query: Query) -> pd.DataFrame:
    """One row per prompt and head: `attention` to the target, `hit`, `tie`, and the results of the rules.

    A hit needs strictly more attention than everything else in the domain; within `attention.TIE` it is a `tie` and no
    hit. `recency`, `first_mention`: the target is the last or first candidate; `longest`: it has most tokens (the last
    of equals); `chance`: 1/candidates, or the target's tokens / keys.
    """
    assert isinstance(query, RoleQuery)
    aligned = query.aligned
    values: dict[str, list[np.ndarray]] = {"attention": [], "hit": [], "tie": []}
    for i, rows in attention_rows(captures, query):
        at = aligned.positions[i]
        target = attention_to(rows, at["target"])
        if how.domain == "candidates":
            best, other = target, np.max([attention_to(rows, where) for where in _others(at)], axis=0)
        else:
            own = np.isin(np.arange(rows.shape[-1]), at["target"])
            best, other = rows[..., own].max(-1), rows[..., ~own].max(-1)
        for name, x in zip(values, (target, *exceeds(best, other)), strict=True):
            values[name].append(x)
    domain = [how.domain] * len(aligned.prompts)
    columns: dict[str, list[Any]] = {**prompt_columns(aligned), "domain": domain, **_rules(aligned)}
    if how.domain == "keys":
        each = zip(aligned.positions, aligned.queries, strict=True)
        columns["chance"] = [len(roles["target"]) / (q + 1) for roles, q in each]
    stacked = {name: np.stack(some) for name, some in values.items()}
    return tidy(columns, list(by_layer(captures, "hook_pattern")), stacked)


def _rules(aligned: Aligned) -> dict[str, list[Any]]:
    """Chance among the candidates, and whether each position rule is right, for every prompt."""
    each = [(at["target"], _others(at)) for at in aligned.positions]
    return {
        "chance": [1 / (1 + len(others)) for _, others in each],
        "recency": [all(target > where for where in others) for target, others in each],
        "first_mention": [all(target < where for where in others) for target, others in each],
        "longest": [
            all((len(target), target) > (len(where), where) for where in others) for target, others in each
        ],
    }  # fmt: skip


def _others(at: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The positions of the distractors."""
    return [where for role, where in at.items() if role not in ("query", "target")]


def observe(how: Coreference, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: heads (attention, hits, ties) over cases, and hits in both orders over pairs."""
    opened = data[Prompts]
    query = plan(how, opened.aligned, opened.tokenizer)
    rows = read(how, run(model, query, progress=progress), query)
    seen = seen_of(rows, opened.unit)
    chosen = best_by_category(seen, rows, opened.cases(), how.split_seed)
    seen.extra = (held_out(rows, seed=how.split_seed), seen.extra, chosen)
    seen.about["title"] = f"{title_of(model)} on {opened.title()}{left_out(query, 'target and distractor')}"
    return seen


def seen_of(rows: pd.DataFrame, unit: Callable[..., str] = lambda *ids: ids[0]) -> InstrumentData:
    """Observations and contrasts of the rows of `read`: heads × cases, and readings and heads × minimal pairs."""
    if rows.empty:
        raise InputError("the table has no cases to summarise")
    rows = rows.sort_values(["layer", "index"], kind="stable")
    heads = rows.drop_duplicates("head")[list(KEYS)].reset_index(drop=True)
    cases = rows[rows["head"] == heads["head"][0]].reset_index(drop=True)
    names = ["cluster", "category", "relation", "order", "chance", *RULES]
    units = cases[names].assign(unit=[unit(name) for name in cases["id"]])
    values = {name: rows[name].to_numpy(float).reshape(len(heads), len(cases)) for name in ("attention", "hit", "tie")}
    attention = Observations(
        measure=Measure(name="attention", unit="attention", resolution=RESOLUTION, limits=(0.0, 1.0)),
        cells=heads, units=units, total=values["attention"], size=1.0,
    )  # fmt: skip
    hits = Observations(
        measure=Measure(name="Top-1", unit="share of cases", resolution=0.0, kind="share"), units=units, size=1.0,
        cells=pd.concat([heads.assign(what="hit"), heads.assign(what="tie")], ignore_index=True),
        total=np.concatenate([values["hit"], values["tie"]]),
    )  # fmt: skip
    contrasts = {name: each(name, heads, null=None) for name in ("attention", "top1")}
    contrasts["top1"] += each("ties", heads, start=len(heads), null=None)
    seen = InstrumentData({"attention": attention, "top1": hits}, contrasts, {"title": "coreference"})
    pairs = pairs_of(cases, values["hit"])
    if pairs is not None:
        ids, about, first, last = pairs
        both, either = (first & last), (first | last)
        some_hit = either.any(0)
        with np.errstate(invalid="ignore"):
            jaccard = np.where(some_hit, both.sum(0) / either.sum(0), np.nan)
        seen.extra = by_pair(about, both.sum(0), either.sum(0), jaccard)
        cells = [{"reading": name, "head": "all", "layer": -1, "index": -1} for name in READINGS]
        seen.blocks["stability"] = Observations(
            measure=Measure(name="stability", unit="share", resolution=0.0, limits=(0.0, 1.0)),
            cells=pd.DataFrame([*cells, *({"reading": "stable", **one} for one in heads.to_dict("records"))]),
            units=about.drop(columns="pair").assign(unit=[unit(*both) for both in ids]),
            total=np.stack([jaccard, both.mean(0), *both.astype(float)]),
            size=np.stack([some_hit, *np.ones((1 + len(heads), len(ids)))]),
        )  # fmt: skip
        readings, lost = pd.DataFrame({"reading": READINGS}), ["" if some_hit.any() else NO_HIT, ""]
        seen.contrasts["stability"] = each("mean", readings, null=None, missing=lost)
        seen.contrasts["stability"] += each("stable", heads, start=len(READINGS), null=None)
    return seen


def best_by_category(seen: InstrumentData, rows: pd.DataFrame, cases: pd.DataFrame, seed: int) -> dict[str, str]:
    """Add heads × cases within each category, and the best head of each, which is returned by category."""
    groups = groups_of(cases)
    for name, block in list(seen.blocks.items()) if len(groups) > 1 else ():
        wanted = [c for c in seen.contrasts[name] if c.quantity != "mean"]
        at = f"{name}-categories"
        seen.blocks[at], seen.contrasts[at] = by_category(block, wanted, groups, {"stable": NO_PAIRS})
    hits, ids = seen.blocks["top1"], rows["id"].drop_duplicates()
    rows = rows.assign(case=rows["id"])
    seen.blocks["best"], heads = best_heads(
        rows, hits, groups, ids.tolist(), ["hit", "recency"], hits.measure, seed=seed, ties=["attention"]
    )
    seen.contrasts["best"] = []
    for i, (name, head) in enumerate(heads.items()):
        how: dict[str, Any] = {"labels": {"category": name}, "missing": "" if head else FEW}
        seen.contrasts["best"] += [
            Contrast(quantity="best", weights={2 * i: 1.0}, null=None, **how),
            Contrast(quantity="recency", weights={2 * i + 1: 1.0}, null=None, **how),
            Contrast(quantity="lead", weights={2 * i: 1.0, 2 * i + 1: -1.0}, **how),
        ]
    return heads


def pairs_of(
    cases: pd.DataFrame, hits: np.ndarray
) -> tuple[list[tuple[str, str]], pd.DataFrame, np.ndarray, np.ndarray] | None:
    """Ids of every complete pair, what is known of it, and the hits [heads, pairs] in each order (App. G)."""
    at = {(p, order): i for i, (p, order) in enumerate(zip(cases["pair"], cases["order"], strict=True)) if p and order}
    names = sorted(p for p, order in at if order == "target_first" and (p, "target_last") in at)
    if not names:
        return None
    first, last = ([at[name, order] for name in names] for order in ("target_first", "target_last"))
    ids = list(zip(cases["id"].iloc[first], cases["id"].iloc[last], strict=True))
    about = cases.loc[first, ["pair", "cluster", "category", "relation"]].reset_index(drop=True)
    return ids, about, hits[:, first].astype(bool), hits[:, last].astype(bool)


def by_pair(about: pd.DataFrame, stable: np.ndarray, either: np.ndarray, jaccard: np.ndarray) -> pd.DataFrame:
    """One row per minimal pair: heads that hit the target in both orders, in at least one, and their ratio (App. G)."""
    frame = about[["pair", "relation"]].fillna({"relation": ""}).assign(stable=stable, either=either, jaccard=jaccard)
    return frame.assign(undefined=["" if n else note({"jaccard": NO_HIT_HERE}) for n in either])


def tables(how: Coreference, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """heads: one row per head, best first; held-out: chosen heads and rules; categories: heads within each category;
    best: the best head of each; stability, pairs: LFA Eq. 6."""
    title = seen.about["title"]
    heads = table_of(seen, estimates)
    first = heads.frame.iloc[0]
    rules = ", ".join(f"{name.replace('_', ' ')} {first[name]:.3f}" for name in ("chance", *RULES))
    heads = Table(heads.frame, HEADS, heads.missing, f"{title}; Top-1 among {how.domain}; {rules}", "top1", how.top)
    chosen, pairs, of_category = seen.extra
    words = f"The best head of one half of the cases, scored on the other; the halves share no {chosen['apart'][0]}"
    out = {"heads": heads, "held-out": Table.noted(chosen, HELD_OUT, words)}
    if "top1-categories" in estimates:
        by = table_of(seen, estimates, categories=True)
        words = f"{title}; Top-1 among {how.domain}, by category"
        out["categories"] = replace(by, title=words, by="top1", most=3, per=("category",))
    out["best"] = best_table(estimates["best"], of_category, BESTS, f"{title}; Top-1 among {how.domain}")
    if "stability" in estimates:
        out["stability"] = stability(seen, estimates["stability"])
        each = Table.noted(pairs, PAIRS, f"Stability of every minimal pair; Top-1 among {how.domain}")
        out["pairs"] = replace(each, by="jaccard", most=10)
    return out


def table_of(seen: InstrumentData, estimates: Mapping[str, Estimates], *, categories: bool = False) -> Table:
    """One row per head (of each category), best Top-1 first. Intervals are for a single head; `held_out` judges the
    best of many."""
    end, first = ("-categories", (CATEGORY,)) if categories else ("", ())
    columns, keys = (*first, *HEADS), [*(column.name for column in first), *KEYS]
    parts = [estimates[f"attention{end}"], *(estimates[f"top1{end}"].where(quantity=q) for q in ("top1", "ties"))]
    if f"stability{end}" in estimates:
        parts.append(estimates[f"stability{end}"].where(quantity="stable"))
    frame, missing = joined(parts, keys, columns)
    if "stable" not in frame:
        frame["stable"] = np.nan
        missing |= {(i, "stable"): NO_PAIRS for i in range(len(frame))}
    block = seen.blocks[f"top1{end}"]
    groups = block.cells["category"] if categories else pd.Series("", index=block.cells.index)
    rules = {
        name: block.units.loc[block.inside[i], ["chance", *RULES]].mean()
        for i, name in groups.drop_duplicates().items()
    }
    of = frame["category"] if categories else [""] * len(frame)
    frame = frame.assign(**{rule: [rules[name][rule] for name in of] for rule in ("chance", *RULES)})
    missing |= {(int(i), rule): NOWHERE for rule in ("chance", *RULES) for i in np.flatnonzero(frame[rule].isna())}
    frame, missing = descending(frame, missing, ["top1", "attention"])
    table = Table(frame, columns, missing, seen.about["title"])
    order = frame["category"].map({name: i for i, name in enumerate(rules)}) if categories else frame.index.to_series()
    return table.only(order.sort_values(kind="stable").index.tolist(), table.title)


def stability(seen: InstrumentData, found: Estimates) -> Table:
    """The mean over pairs of both readings of Eq. 6 (SPEC §7.3), with intervals cut at 0 and 1.

    jaccard = |S_first ∩ S_last| / |S_first ∪ S_last|, S the heads that hit the target in that order; this reading gives
    the paper's numbers, and pairs without a hit are left out and counted. over_total = |S_first ∩ S_last| / |heads|,
    the printed formula.
    """
    frame, missing = found.where(quantity="mean").wide(["reading"], describe=("sd", "low", "high"))
    for end in ("mean_low", "mean_high"):
        frame[end] = frame[end].clip(0.0, 1.0)
    pairs = len(seen.blocks["stability"].units)
    frame = frame.rename(columns={"n": "pairs"}).assign(left_out=pairs - frame["n"])
    return Table(frame, STABILITY, missing, f"Stability over {pairs} minimal pairs")


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
               sd="independent cases", source="LFA Eq. 4"),
    *described("top1", "Top-1", CASES, "cases in which the antecedent gets most attention; Wilson's interval",
               format=".3f", source="LFA Eq. 5"),
    number("ties", "ties", CASES, "cases without a single largest candidate; they are no hits", ".3f"),
    number("stable", "hit in both orders", "share of pairs", "minimal pairs hit in both orders", ".3f",
           source="LFA App. G"),
    *RULED,
    *counts("cases", INDEPENDENT),
)  # fmt: skip
BESTS = (
    CATEGORY, BEST,
    *described("best", "Top-1, held out", CASES, "cases in which the head chosen without them is right", format=".3f",
               sd="independent cases"),
    *described("recency", "last-candidate rule", CASES, "cases in which the last candidate is right", format=".3f",
               sd="independent cases"),
    *quantity("lead", "head − rule", f"{CASES}, head − rule", "how much more often the head is right", format="+.3f",
              sd="independent cases"),
    *counts("cases", INDEPENDENT),
)  # fmt: skip
HELD_OUT = (
    key("halves", "halves", "half that chose the head, and half that scores it"),
    key("head", "head", "the chosen head"),
    key("rule", "rule", "rule that it is compared with on the same cases"),
    number("top1", "Top-1", CASES, "Top-1 of the head on the other half", ".3f"),
    number("rule_share", "rule is right", CASES, "cases in which the rule is right", ".3f"),
    RULED[0],
    Column(name="difference", title="head − rule", unit=f"{CASES}, head − rule", format="+.3f",
           interval=("ci_low", "ci_high"), doc="how much more often the head is right"),
    number("ci_low", "lower", f"{CASES}, head − rule", "lower end of the 95 % interval of the difference", "+.3f",
           False),
    number("ci_high", "upper", f"{CASES}, head − rule", "upper end of the 95 % interval of the difference", "+.3f",
           False),
    number("p", "p", "probability", "p that head and rule are right equally often", "p"),
    *counts("cases", INDEPENDENT),
    key("apart", "disjoint in", "what the halves do not share", shown=False),
)  # fmt: skip
STABILITY = (
    key("reading", "reading", "reading of Eq. 6"),
    *described("mean", "stability", "share of heads", "mean over pairs", sd="independent cases", format=".3f",
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


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of heads of the rows of `read`, with the text column `undefined`."""
    seen = seen_of(rows)
    return table_of(seen, estimate_all(seen.blocks, seen.contrasts)).short()


def _stability_data(rows: pd.DataFrame) -> InstrumentData:
    seen = seen_of(rows)
    if "stability" not in seen.blocks:
        raise InputError("stability compares the two orders of a minimal pair, but the table has no complete pair")
    return seen


def mean_stability(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of stability of the rows of `read`, with short names; `InputError` without complete pairs."""
    seen = _stability_data(rows)
    return stability(seen, estimate_all(seen.blocks, seen.contrasts)["stability"]).short("mean")


def pair_stability(rows: pd.DataFrame) -> pd.DataFrame:
    """`by_pair` for the rows of `read`; `InputError` without complete pairs."""
    pairs: pd.DataFrame = _stability_data(rows).extra
    return pairs
