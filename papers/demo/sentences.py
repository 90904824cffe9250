"""The numbers in the text of `papers.demo`. What was found is worded in sentences.j2, all other prose in prose.j2.

"holds up" means p < 0.05 after the correction of its table. Each function takes the name of a run and its tables.
"""

import re
from collections.abc import Mapping
from functools import cache
from math import floor, log10
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

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


def interval(row: Mapping[str, Any], digits: int = 3, factor: float = 1) -> str:
    """The interval of a row, or that there is none."""
    low, high = (factor * row[end] for end in ("ci_low", "ci_high"))
    if low != low or high != high:
        return "interval undefined"
    return f"95 %\u00a0{signed(low, digits)} to {signed(high, digits)}"


def chance(p: float, name: str = "p") -> str:
    """p in words: "p < 0.001", "p = 0.03", "p undefined"."""
    if p != p:
        return f"{name} undefined"
    return f"{name} < 0.001" if p < 0.001 else f"{name} = {p:.2g}"


@cache
def _macros(file: str) -> Any:
    """The macros of a template in this folder."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"signed": signed, "interval": interval, "chance": chance}
    return made.get_template(file).module


def _sentence(kind: str, name: str, **values: Any) -> str:
    """The sentence of a kind, on one line."""
    return re.sub(r"[ \n]+", " ", getattr(_macros("sentences.j2"), kind)(name, **values)).strip()


def prose(section: str, **values: Any) -> str:
    """The paragraphs of a section of the page, from prose.j2."""
    text: str = getattr(_macros("prose.j2"), section)(**values)
    return text.strip()


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_dict("records")
    return found


def parameters(name: str, tables: Tables) -> str:
    """How large it is and where its training ended."""
    losses = tables["losses"]
    last = _rows(losses[losses["kind"] == "eval"].tail(1))
    total = int(tables["parameters"]["parameters"].sum())
    return _sentence("parameters", name, total=total, last=last[0] if last else None)


def pds(name: str, tables: Tables) -> str:
    """Heads over the threshold, and the largest."""
    table = tables["pds"]
    (best,) = _rows(table.loc[[table["pds"].idxmax()]])
    over, threshold = int(table["over"].sum()), float(table["threshold"].iloc[0])
    return _sentence("pds", name, over=over, heads=len(table), threshold=threshold, best=best)


def held_out(tables: Tables, name: str, by: str) -> dict[str, Any]:
    """Of the rows of both halves the one with the most of `by`: against the rule that is right most often."""
    both = tables[name][tables[name]["halves"] == "both"]
    return _rows(both.loc[[both[by].idxmax()]])[0]


def coreference(name: str, tables: Tables) -> str:
    """The chosen head against the best rule."""
    row = held_out(tables, "coreference-held-out", "rule_share")
    return _sentence("coreference", name, row=row, keys=held_out(tables, "coreference-keys-held-out", "top1"))


def picture(name: str, head: str, right: dict[str, Any]) -> str:
    """How often the head of the picture is right."""
    return _sentence("picture", name, head=head, right=right)


def sps(name: str, tables: Tables) -> str:
    """Whether attention, averaged over heads, leans to the right noun by more than the nouns' lengths explain."""
    return _sentence("sps", name, row=_rows(tables["sps"].query("heads == 'all'"))[0])


def coherence(name: str, tables: Tables) -> str:
    """Whether the model would say the right noun."""
    return _sentence("coherence", name, row=_rows(tables["coherence"])[0])


def following(name: str, tables: Tables) -> str:
    """What is due to the nouns, and whether the head that follows the right one carries more of it than others."""
    table = tables["following"]
    rows: dict[str, Any] = {str(role): _rows(one)[0] for role, one in table.groupby("role")}
    rows = {"above": None, **rows} if rows else {}
    return _sentence("following", name, rows=rows, others=int((table["role"] == "other").sum()))


def ablation(name: str, tables: Tables) -> str:
    """How many heads matter, how many matter more than another head would, and the one that matters most."""
    table = tables["ablation"]
    (best,) = _rows(table.loc[[table["delta"].idxmax()]])
    return _sentence(
        "ablation", name, low=table["delta"].min(), high=table["delta"].max(), heads=len(table), best=best,
        changed=int((table["p_holm"] < LEVEL).sum()), digits=places(best["delta"], least=4), above=costlier(table),
    )  # fmt: skip


def costlier(table: pd.DataFrame) -> int | None:
    """Heads that cost more than their controls, corrected; None without controls."""
    if "p_above_holm" not in table:
        return None
    return int(((table["p_above_holm"] < LEVEL) & (table["above"] > 0)).sum())


def suppression(name: str, tables: Tables) -> list[str]:
    """Per measure, the selected heads at the smallest gate compared with random sets of as many."""
    effects, lines = tables["suppression"], []
    for row in _rows(tables["suppression-controls"]):
        same = (effects["group"] == "selected") & (effects["part"] == "all")
        for column in ("measure", "selection", "gate"):
            same &= effects[column] == row[column]
        digits = places(row["selected"], row["random_low"], row["random_high"])
        lines.append(_sentence("suppression", name, row=row, effect=_rows(effects[same])[0], digits=digits))
    return lines


def summary(runs: Mapping[str, Tables]) -> pd.DataFrame:
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
        row = held_out(tables, "coreference-held-out", "rule_share")
        add(
            "best head − best rule between the two nouns, points",
            _range(100 * row["difference"], 100 * row["ci_low"], 100 * row["ci_high"], 1),
        )
        add(
            "Top-1 of the best head over all tokens, %",
            f"{100 * held_out(tables, 'coreference-keys-held-out', 'top1')['top1']:.1f}",
        )
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
        if (above := costlier(heads)) is not None:
            add("… by more than the other heads do", f"{above} of {len(heads)}")
        lost = _range(best["delta"], best["ci_low"], best["ci_high"], places(best["delta"], least=4))
        add("largest loss without one head, nats per token", f"{best['head']} {lost}")
    return pd.DataFrame([{"measure": what, **dict(zip(runs, texts, strict=True))} for what, texts in rows.items()])


def _range(value: float, low: float, high: float, digits: int) -> str:
    if low != low:
        return f"{signed(value, digits)} (interval undefined)"
    return f"{signed(value, digits)} ({signed(low, digits)} to {signed(high, digits)})"
