"""Coreference heads: which heads look from a pronoun to the noun it stands for, and do so wherever that noun stands?

    python -m probes.coreference runs/lfa                                29 instances in 13 prompts
    python -m probes.coreference runs/lfa --suite stories --n 1000 --out heads.parquet
    python -m probes.coreference runs/lfa --domain keys --top 5

Per head the mean attention to the antecedent (LFA Eq. 4), Top-1, the share of cases in which the antecedent gets most
attention (Eq. 5), and stability over minimal pairs (Eq. 6, App. G). Beside them stand chance and three rules without
meaning: the most recent candidate, the first-mentioned one, and the longest, the one with most tokens, which a head
that looks everywhere alike prefers. The best of many heads is best partly by luck, so a head is chosen on one half of
the cases and scored on the other; where a suite says which nouns its cases share, no noun is meant in both halves, and
intervals hold for new nouns. Prompts whose text up to the pronoun is asked with either answer (Winograd schemas,
Winogender) are left out and counted: there Top-1 is at most 50 % by construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.models.bounds import Count, Seed
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.probes.report import (
    INTERVAL,
    ProbeOptions,
    check_options,
    estimate,
    heat_map,
    hits,
    open_session,
    show,
    side_by_side,
    write,
)

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.capture import Captures, Query
    from streamscope.probes.align import Aligned
    from streamscope.probes.suite import Suite

DOMAINS = ["candidates", "keys"]
UNITS = {
    "attention": "attention to the target",
    "attention_sd": "attention, between independent cases",
    "attention_low": "attention",
    "attention_high": "attention",
    "top1": "share of cases",
    "top1_low": "share of cases",
    "top1_high": "share of cases",
    "ties": "share of cases",
    "stable": "share of pairs hit in both orders",
    "chance": "share of cases",
    "recency": "share of cases",
    "first_mention": "share of cases",
    "longest": "share of cases",
    "rule_share": "share of cases",
    "difference": "share of cases, head − rule",
    "ci_low": "share of cases",
    "ci_high": "share of cases",
    "n": "cases",
    "clusters": "independent cases: pairs and texts count once; fewest words of a kind where they share words",
    "jaccard": "heads that hit in both orders / in either",
    "over_total": "heads that hit in both orders / all heads",
}


@dataclass(frozen=True, kw_only=True)
class Coreference:
    """Attention from a pronoun to its antecedent, for every head and every prompt that names one."""

    domain: Literal["candidates", "keys"] = "candidates"
    """Where the argmax of Top-1 looks. candidates: the target against the distractors, attention to each summed over
    its tokens. keys: all single tokens up to and including the query; a hit is any token of the target. The paper does
    not say which (SPEC §7.3)."""

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise unknown("domain", str(self.domain), DOMAINS)

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """Patterns of the prompts with a target, and among candidates with a distractor: one candidate is no choice."""
        from streamscope.probes.attention import role_query

        return role_query(prompts, tokenizer, needs=("target", "distractor")[: 2 if self.domain == "candidates" else 1])

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per prompt and head: `attention` to the target, `hit`, `tie`, and what the rules say of the prompt.

        A hit needs strictly more attention than everything else in the domain; within `attention.TIE` it is a `tie`
        and no hit. `recency` and `first_mention`: whether the target is the last or the first candidate;
        `longest`: whether it has most tokens, the last of equals; `chance`: 1/candidates, or the target's tokens /
        keys.
        """
        import numpy as np

        from streamscope.probes.attention import RoleQuery, attention_rows, by_layer, exceeds, prompt_columns, tidy, to

        assert isinstance(query, RoleQuery)
        aligned = query.aligned
        attention, hit, tie = [], [], []
        for i, rows in attention_rows(captures, query):
            at = aligned.positions[i]
            target = to(rows, at["target"])
            if self.domain == "candidates":
                best, other = target, np.max([to(rows, where) for role, where in _others(at)], axis=0)
            else:
                own = np.isin(np.arange(rows.shape[-1]), at["target"])
                best, other = rows[..., own].max(-1), rows[..., ~own].max(-1)
            wins, ties = exceeds(best, other)
            attention.append(target)
            hit.append(wins)
            tie.append(ties)
        values = {"attention": np.stack(attention), "hit": np.stack(hit), "tie": np.stack(tie)}
        domain = {"domain": [self.domain] * len(attention)}
        columns: dict[str, list[Any]] = {**prompt_columns(aligned), **domain, **self._rules(aligned)}
        return tidy(columns, list(by_layer(captures, "hook_pattern")), values)

    def _rules(self, aligned: "Aligned") -> dict[str, list[Any]]:
        """What chance and the rules of position make of every prompt."""
        at = aligned.positions
        others = [[where for _, where in _others(roles)] for roles in at]
        keys = [len(roles["target"]) / (q + 1) for roles, q in zip(at, aligned.queries, strict=True)]
        return {
            "chance": keys if self.domain == "keys" else [1 / (1 + len(o)) for o in others],
            "recency": [all(a["target"] > where for where in o) for a, o in zip(at, others, strict=True)],
            "first_mention": [all(a["target"] < where for where in o) for a, o in zip(at, others, strict=True)],
            "longest": [
                all((len(a["target"]), a["target"]) > (len(where), where) for where in o)
                for a, o in zip(at, others, strict=True)
            ],
        }

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per head, best Top-1 first. The intervals are those of one head looked at alone: the best of many
        is judged by `held_out`."""
        import pandas as pd

        from streamscope.probes.stability import both_orders
        from streamscope.probes.undefined import note, reasons

        if table.empty:
            raise InputError("no cases to summarise: the table is empty")
        stable = both_orders(table)
        rows = []
        for (layer, index, head), one in table.groupby(["layer", "index", "head"]):
            mean, share = estimate(one["attention"], one["cluster"]), hits(one["hit"].to_numpy(), one["cluster"])
            why = {f"attention_{k.removeprefix('ci_')}": r for k, r in reasons(mean["undefined"]).items() if k != "p"}
            if share["why"]:
                why |= dict.fromkeys(("top1_low", "top1_high"), share["why"])
            if stable is None:
                why["stable"] = "no minimal pairs"
            rows.append(
                {
                    "head": head,
                    "layer": layer,
                    "index": index,
                    "attention": mean["mean"],
                    "attention_sd": mean["sd"],
                    "attention_low": mean["ci_low"],
                    "attention_high": mean["ci_high"],
                    "top1": share["share"],
                    "top1_low": share["ci_low"],
                    "top1_high": share["ci_high"],
                    "ties": one["tie"].mean(),
                    "stable": float("nan") if stable is None else float(stable[layer, index].mean()),
                    "chance": one["chance"].mean(),
                    "recency": one["recency"].mean(),
                    "first_mention": one["first_mention"].mean(),
                    "longest": one["longest"].mean(),
                    "n": mean["n"],
                    "clusters": mean["clusters"],
                    "undefined": note(why),
                }
            )
        order = ["top1", "attention"]
        return pd.DataFrame(rows).sort_values(order, ascending=False, kind="stable", ignore_index=True)

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Heat maps layer × head of Top-1 and mean attention."""
        summary = self.summarize(table)
        summary["top1"] *= 100
        rules = f"chance {100 * summary['chance'][0]:.0f} %, recency {100 * summary['recency'][0]:.0f} %"
        left, right = (
            heat_map(summary, "top1", unit="% of<br>cases", digits=0),
            heat_map(summary, "attention", unit="attention"),
        )
        return side_by_side((f"Top-1 ({rules})", "mean attention to the antecedent"), left, right, title)


def _others(at: dict[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """The distractors."""
    return [(role, where) for role, where in at.items() if role not in ("query", "target")]


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m probes.coreference`."""

    suite: str = "coreference"
    """coreference, competing, stories, story-cases, story-events, a JSONL file, or FORMAT:PATH of a published set."""
    domain: Literal["candidates", "keys"] = "candidates"
    """Top-1 among the candidates, or among all tokens up to the query."""
    split_seed: Seed = 0
    """Which half of the cases chooses heads first."""
    top: Count = 10
    """Print this many heads; the file has all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    probe = Coreference(domain=options.domain)

    from streamscope.probes.attention import left_out
    from streamscope.probes.held_out import held_out
    from streamscope.probes.probe import measure
    from streamscope.probes.stability import by_order, mean_stability, stability

    session = open_session(options)
    table = measure(session.model, probe, session.aligned, tokenizer=session.tokenizer)
    summary, halves = probe.summarize(table), held_out(table, seed=options.split_seed)
    title = session.title + left_out(probe.plan(session.aligned, session.tokenizer), "target and distractor")
    rules = ", ".join(
        f"{c.replace('_', ' ')} {summary[c][0]:.3f}" for c in ("chance", "recency", "first_mention", "longest")
    )
    columns: tuple[str, ...] = ("head", "attention", "top1", INTERVAL, "ties", "stable")
    best = summary.head(options.top).rename(columns={"top1_low": "ci_low", "top1_high": "ci_high"})
    show(best, f"{title}; Top-1 among {probe.domain}; {rules}", columns)
    against = halves["rule"] + halves["rule_share"].map(" {:.3f}".format)
    columns = ("head", "top1", "against", "gain", INTERVAL, "p")
    renamed = halves.assign(against=against, gain=halves["difference"])
    apart = f"the best head of one half of the cases, scored on the other; the halves share no {halves['apart'][0]}"
    show(renamed, apart, columns)
    tables = {"": (summary, UNITS), "rows": (table, UNITS), "held-out": (halves, UNITS)}
    if by_order(table) is not None:
        pairs = stability(table)
        columns = ("reading", "mean", "sd", INTERVAL, "pairs", "left_out")
        show(mean_stability(pairs), f"stability over {len(pairs)} minimal pairs", columns)
        tables["stability"] = (pairs, UNITS)
    figure = probe.plot(table, f"{title}; {summary['n'][0]} cases")
    write(options, session, tables, figure, domain=probe.domain, split_seed=options.split_seed)


if __name__ == "__main__":
    command(main)
