"""The sentences of `papers.demo` that say what was found: computed from the tables, with n, interval and p.

A verdict is drawn where an interval or a corrected p allows it and not otherwise. "held up" means p < 0.05 after the
correction of its table. Each function takes the name of a run and its tables.
"""

from collections.abc import Mapping
from math import floor, log10
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    import pandas as pd

    Tables = Mapping[str, pd.DataFrame]

LEVEL = 0.05


def places(*values: float, least: int = 3) -> int:
    """Decimals that show two digits of the largest value, at least `least`, at most 7."""
    largest = max((abs(v) for v in values if v == v), default=0.0)
    return least if largest == 0 else min(7, max(least, 1 - floor(log10(largest))))


def signed(x: float, digits: int = 3) -> str:
    """A number with its sign, a true minus; what rounds to 0 has no sign."""
    text = f"{x:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def spread(low: float, high: float, digits: int = 3) -> str:
    """An interval, or that there is none."""
    if low != low or high != high:
        return "interval undefined"
    return f"95 %\u00a0{signed(low, digits)} to {signed(high, digits)}"


def chance_of(p: float, name: str = "p") -> str:
    """p in words: "p < 0.001", "p = 0.03", "p undefined"."""
    if p != p:
        return f"{name} undefined"
    return f"{name} < 0.001" if p < 0.001 else f"{name} = {p:.2g}"


def parameters(name: str, tables: "Tables") -> str:
    """How large it is and where its training ended."""
    total, losses = int(tables["parameters"]["parameters"].sum()), tables["losses"]
    last = losses[losses["kind"] == "eval"].tail(1)
    end = ""
    if len(last):
        step, loss, tokens = (last[name].iloc[0] for name in ("step", "loss", "tokens"))
        seen = f" ({tokens / 1e6:.1f} M tokens seen)" if tokens == tokens else ""
        end = f" After {int(step):,} steps{seen} its validation loss is {loss:.3f} nats per token."
    return f"**{name}** has {total:,} parameters.{end}"


def pds(name: str, tables: "Tables") -> str:
    """Heads over the threshold, and the largest."""
    table = tables["pds"]
    best = table.loc[table["pds"].idxmax()]
    over, threshold = int(table["over"].sum()), float(table["threshold"].iloc[0])
    return (
        f"**{name}**: {over} of {len(table)} heads {'is' if over == 1 else 'are'} over {threshold:g}. The largest is "
        f"{best['head']} with {best['pds']:.3f} (last − first {signed(best['difference'])}, "
        f"{spread(best['ci_low'], best['ci_high'])}, n = {int(best['n'])} pairs)."
    )


def hardest(tables: "Tables") -> Any:
    """The row of the best head against the rule that is right most often on the same cases."""
    both = tables["coreference-held-out"]
    both = both[both["halves"] == "both"]
    return both.loc[both["rule_share"].idxmax()]


def over_keys(tables: "Tables") -> Any:
    """The row of the head that is best over all tokens in one half of the cases, scored on the other."""
    both = tables["coreference-keys-held-out"]
    return both[both["halves"] == "both"].iloc[0]


def coreference(name: str, tables: "Tables") -> str:
    """The chosen head against the best rule."""
    row = hardest(tables)
    rule = str(row["rule"]).replace("_", " ")
    if row["ci_low"] > 0:
        verdict = "of the two nouns it prefers the right one more often than the rule"
    elif row["ci_high"] < 0:
        verdict = "of the two nouns it prefers the right one less often than the rule"
    else:
        verdict = "it cannot be told from the rule"
    keys = over_keys(tables)
    return (
        f"**{name}**: the best head of one half ({row['head']}) prefers the right noun in {100 * row['top1']:.1f} % of "
        f"the other, the rule “{rule}” in {100 * row['rule_share']:.1f} %. Difference "
        f"{signed(100 * row['difference'], 1)} points "
        f"({spread(100 * row['ci_low'], 100 * row['ci_high'], 1)}, {chance_of(row['p'])}, n = {int(row['n'])} prompts "
        f"that share {int(row['clusters'])} nouns or more of a kind): {verdict}. Over all tokens, as in the paper's "
        f"Top-1, the best head of one half ({keys['head']}) gives the right noun most attention in "
        f"{100 * keys['top1']:.1f} % of the other; by chance it would in {100 * keys['chance']:.1f} %."
    )


def sps(name: str, tables: "Tables") -> str:
    """Whether attention, averaged over heads, leans to the right noun by more than the nouns' lengths explain."""
    table = tables["sps"]
    row = table[table["heads"] == "all"].iloc[0]
    low, high = min(0.0, row["even"]), max(0.0, row["even"])
    if row["ci_low"] > high:
        verdict = "attention leans to the right noun"
    elif row["ci_high"] < low:
        verdict = "attention leans to the competitor"
    else:
        verdict = "no lean beyond chance and the lengths of the nouns"
    return (
        f"**{name}**, attention: SPS {signed(row['sps'], 4)} ({spread(row['ci_low'], row['ci_high'], 4)}, "
        f"n = {int(row['n'])} prompts); a head that looks everywhere alike would have {signed(row['even'], 4)}: "
        f"{verdict}."
    )


def coherence(name: str, tables: "Tables") -> str:
    """Whether the model would say the right noun."""
    row = tables["coherence"].iloc[0]
    if row["ci_low"] > 0:
        verdict = "it prefers the right noun"
    elif row["ci_high"] < 0:
        verdict = "it prefers the competitor"
    else:
        verdict = "no preference that could be told from 0"
    return (
        f"**{name}**, words: log-odds {signed(row['log_odds'])} nats ({spread(row['ci_low'], row['ci_high'])}, "
        f"{chance_of(row['p'])}); the right noun is the likelier in {100 * row['share']:.1f} % of {int(row['n'])} "
        f"prompts: {verdict}."
    )


def following(name: str, tables: "Tables") -> str:
    """What is due to the nouns, and whether the head that follows the right one carries more of it than others."""
    table = tables["following"]
    if table.empty:
        return f"**{name}**: no prompt has nouns that can be exchanged."
    rows = {role: table[table["role"] == role].iloc[0] for role in table["role"].unique()}
    whole, chosen = rows["whole"], rows["chosen"]
    text = (
        f"**{name}**: of its log-odds, {signed(whole['change'])} nats ({spread(whole['ci_low'], whole['ci_high'])}, "
        f"n = {int(whole['n'])} prompts) are due to the nouns of the text. "
    )
    if not whole["ci_low"] > 0:
        return text + "That cannot be told from 0, so it cannot be asked which head they need."
    text += f"Without {chosen['who']} they change by {signed(chosen['change'])} "
    text += f"({spread(chosen['ci_low'], chosen['ci_high'])})"
    if "above" not in rows:
        return text + "."
    above = rows["above"]
    text += (
        f", without one of the other {int((table['role'] == 'other').sum())} heads of its layer by "
        f"{signed(rows['mean']['change'])} on average. The difference is {signed(above['change'])} "
        f"({spread(above['ci_low'], above['ci_high'])}, {chance_of(above['p'])}): "
    )
    if above["ci_high"] < 0 and chosen["ci_high"] < 0:
        return text + "this head carries part of what the nouns say, more than its neighbours do."
    return text + "it cannot be told from its neighbours."


def ablation(name: str, tables: "Tables") -> str:
    """How many heads matter, how many matter more than another head would, and the one that matters most."""
    table = tables["ablation"]
    best = table.loc[table["delta"].idxmax()]
    changed = int((table["p_holm"] < LEVEL).sum())
    digits = places(best["delta"], least=4)
    text = (
        f"**{name}**: without one head the loss changes by {signed(table['delta'].min(), digits)} to "
        f"{signed(table['delta'].max(), digits)} nats per token; the change holds up for {changed} of {len(table)} "
        f"heads. Most is lost without {best['head']} ({spread(best['ci_low'], best['ci_high'], digits)}, "
        f"n = {int(best['n'])} documents)."
    )
    if controlled(table):
        n = above(table)
        text += f" {n} {'costs' if n == 1 else 'cost'} more than the other heads do on average."
    return text


def controlled(table: pd.DataFrame) -> bool:
    """Whether an ablation has controls."""
    return "p_above_holm" in table


def above(table: pd.DataFrame) -> int:
    """Heads that cost more than their controls, corrected."""
    return int(((table["p_above_holm"] < LEVEL) & (table["above"] > 0)).sum())


def suppression(name: str, tables: "Tables") -> list[str]:
    """Per measure, the selected heads at the smallest gate beside random sets of as many."""
    effects, lines = tables["suppression"], []
    for row in tables["suppression-controls"].itertuples(index=False):
        what = "SPS" if row.measure == "sps" else "coherence"
        unit = "" if row.measure == "sps" else " nats"
        start = f"**{name}**, {what}: without {row.heads.replace('+', ', ')}"
        if row.selected != row.selected:
            lines.append(f"{start} undefined by construction: heads act on the attention of later layers only.")
            continue
        same = (effects["measure"] == row.measure) & (effects["selection"] == row.selection)
        same &= (effects["group"] == "selected") & (effects["part"] == "all") & (effects["gate"] == row.gate)
        one = effects[same].iloc[0]
        digits = places(row.selected, row.random_low, row.random_high)
        lines.append(
            f"{start} it changes by {signed(row.selected, digits)}{unit} "
            f"({spread(one['ci_low'], one['ci_high'], digits)}, n = {int(one['n'])} prompts)"
            + (
                f"; {row.draws} random sets change it by {signed(row.random_low, digits)} to "
                f"{signed(row.random_high, digits)} ({chance_of(row.p_rank, 'rank p')})"
                if row.draws
                else ""
            )
            + f": {_beside_random(one, row.p_rank)}."
        )
    return lines


def _beside_random(effect: Any, p_rank: float) -> str:
    """What an effect is worth beside random sets of heads."""
    if not (effect["ci_low"] > 0 or effect["ci_high"] < 0):
        return "no change that could be told from 0"
    if p_rank != p_rank:
        return "a change, without random sets to compare it with"
    return "a change that random heads do not make" if p_rank <= LEVEL else "a change as random heads make too"


def summary(runs: "Mapping[str, Tables]") -> pd.DataFrame:
    """One row per measure, one column per run: the whole page in numbers."""

    rows: dict[str, list[str]] = {}

    def add(what: str, text: str) -> None:
        rows.setdefault(what, []).append(text)

    for tables in runs.values():
        add("parameters", f"{int(tables['parameters']['parameters'].sum()):,}")
        last = tables["losses"][tables["losses"]["kind"] == "eval"]["loss"].tail(1)
        add("validation loss, nats per token", f"{last.iloc[0]:.3f}" if len(last) else "no log")
        scores = tables["pds"]
        add(f"heads with PDS over {scores['threshold'].iloc[0]:g}", f"{int(scores['over'].sum())} of {len(scores)}")
        row = hardest(tables)
        add(
            "best head − best rule between the two nouns, points",
            _range(100 * row["difference"], 100 * row["ci_low"], 100 * row["ci_high"], 1),
        )
        add("Top-1 of the best head over all tokens, %", f"{100 * over_keys(tables)['top1']:.1f}")
        row = tables["sps"][tables["sps"]["heads"] == "all"].iloc[0]
        add("SPS", _range(row["sps"], row["ci_low"], row["ci_high"], 4))
        row = tables["coherence"].iloc[0]
        add("coherence, nats", _range(row["log_odds"], row["ci_low"], row["ci_high"], 3))
        rows_of = tables["following"].set_index("role")
        for what, role in (("due to the nouns, nats", "whole"), ("… lost with the best head, beyond others", "above")):
            here = role in rows_of.index
            one = rows_of.loc[role] if here else None
            add(what, _range(one["change"], one["ci_low"], one["ci_high"], 3) if one is not None else "no such prompts")
        heads = tables["ablation"]
        add("heads whose ablation changes the loss", f"{int((heads['p_holm'] < LEVEL).sum())} of {len(heads)}")
        best = heads.loc[heads["delta"].idxmax()]
        if controlled(heads):
            add("… by more than the other heads do", f"{above(heads)} of {len(heads)}")
        lost = _range(best["delta"], best["ci_low"], best["ci_high"], places(best["delta"], least=4))
        add("largest loss without one head, nats per token", f"{best['head']} {lost}")
    return pd.DataFrame([{"measure": what, **dict(zip(runs, texts, strict=True))} for what, texts in rows.items()])


def _range(value: float, low: float, high: float, digits: int) -> str:
    if low != low:
        return f"{signed(value, digits)} (interval undefined)"
    return f"{signed(value, digits)} ({signed(low, digits)} to {signed(high, digits)})"
