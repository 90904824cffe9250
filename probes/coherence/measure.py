"""Coherence: logits after every prompt, and after other prompts' nouns, summarised by category.

"Mia found a crayon and a basket. She used it to draw. She looked at the" can be answered from the verb alone. So as a
control the sentences with the nouns are replaced by those of another prompt of the same relation:

    own text        opening_i + rest_i
    elsewhere       opening_j + rest_i      j of another pair, same relation, no noun of i in it,
                                            its rest begins with the same word
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, joined
from streamscope.instruments.prompts.alignment import Aligned, align, align_once, none_left, prompt_table
from streamscope.instruments.prompts.suite import Prompt, Suite
from streamscope.instruments.table import Table, counts, described, number, quantity
from streamscope.models.hooks import Captures, Edits, run
from streamscope.probes.coherence import Coherence
from streamscope.probes.roles import CATEGORY, Groups, RoleQuery, by_category, groups_of

RESOLUTION = 1e-5
"""Log-odds closer than this count as equal (rounding of float32 logits), in nats."""
WORDS = ("log_p", "log_p_incoherent")
AFTER = tuple(f"{name}_elsewhere" for name in WORDS)
_WORD = re.compile(r"\w+")
_END = re.compile(r"[.!?][\"'”’]?\s+")
NO_CONTROL = "its nouns have no sentence of their own before the query, or no other prompt fits"


def _nouns(prompt: Prompt) -> list[tuple[int, int]]:
    return [span for role, span in prompt.roles.items() if role != "query"]


def opening(prompt: Prompt) -> int | None:
    """Characters up to the end of the sentence with the last noun; None if the query lies inside it."""
    end = _END.search(prompt.text, max((stop for _, stop in _nouns(prompt)), default=len(prompt.text)))
    return end.end() if end is not None and end.end() <= prompt.roles["query"][0] else None


def with_other_openings(aligned: Aligned, seed: int = 0) -> Suite | None:
    """The prompts that can have a control, each after another's opening, with the query as only role; None if there is
    none. `seed` draws the donor among those that fit."""
    pairs = zip(aligned.prompts, aligned.continuations, strict=True)
    cut = {p.id: stop for p, words in pairs if words is not None and (stop := opening(p)) is not None}
    groups: dict[tuple[str | None, str], list[Prompt]] = {}
    for p in aligned.prompts:
        if p.id in cut:  # grouped by relation and by the first word of the rest
            first_word = _WORD.search(p.text, cut[p.id])
            groups.setdefault((p.relation, first_word[0] if first_word else ""), []).append(p)
    donors_of = {p.id: group for group in groups.values() for p in group}
    rng, prompts = np.random.default_rng(seed), []
    for p in (p for p in aligned.prompts if p.id in cut):
        nouns = {word for start, end in _nouns(p) for word in _WORD.findall(p.text[start:end].lower())}
        donors = donors_of[p.id]
        for donor in (donors[i] for i in rng.permutation(len(donors))[:50]):
            other_opening = donor.text[: cut[donor.id]]
            if (donor.pair or donor.id) != (p.pair or p.id) and nouns.isdisjoint(_WORD.findall(other_opening.lower())):
                start, end = (x - cut[p.id] + cut[donor.id] for x in p.roles["query"])
                text = other_opening + p.text[cut[p.id] :]
                prompts.append(replace(p, text=text, roles={"query": (start, end)}, pair=None, order=None))
                break
    return Suite(f"{seed}-elsewhere", tuple(prompts), "other prompts' openings") if prompts else None


def aligned_control(aligned: Aligned, tokenizer: Any, n_ctx: int) -> Aligned | None:
    """`with_other_openings` in tokens."""
    suite = with_other_openings(aligned)
    return None if suite is None else align(suite, tokenizer, n_ctx)


def plan(options: Coherence, prompts: Suite | Aligned, tokenizer: Any) -> RoleQuery:
    """Logits at the last token of every prompt with continuations to compare; `InputError` if none has any."""
    aligned = align_once(prompts, tokenizer)
    keep = [i for i, continuation in enumerate(aligned.continuations) if continuation is not None]
    if not keep and aligned.unscored:
        raise InputError(f"there are no continuations to compare: {none_left(aligned.unscored, 'prompts', None)}")
    if not keep:
        raise InputError("no prompt has continuations; use a suite that has some, such as competing or stories")
    subset, logits = aligned.only(keep), [[len(aligned.tokens[i]) - 1] for i in keep]
    left_out = tuple(p.id for p, words in zip(aligned.prompts, aligned.continuations, strict=True) if words is None)
    return RoleQuery(tokens=subset.tokens, logits=logits, aligned=subset, left_out=left_out)


def read(options: Coherence, captures: Captures, query: RoleQuery) -> pd.DataFrame:
    """One row per prompt: ln p of either continuation's first token, and their difference `log_odds`, in nats."""
    assert captures.logits is not None
    aligned, log_p = query.aligned, []
    for row, continuation in zip(captures.logits, aligned.continuations, strict=True):
        assert continuation is not None
        log_p.append(row[0].double().log_softmax(-1)[[words[0] for words in continuation]].tolist())
    table = prompt_table(aligned.prompts).assign(
        coherent=[p.coherent for p in aligned.prompts], incoherent=[p.incoherent for p in aligned.prompts],
        **dict(zip(WORDS, np.transpose(log_p), strict=True)),
    )  # fmt: skip
    odds = table[WORDS[0]] - table[WORDS[1]]
    return table.assign(log_odds=odds, prefers=odds > 0)


def rows(
    model: Any, aligned: Aligned, controls: Aligned | None, tokenizer: Any, edits: Edits | None = None,
    progress: Any = iter,
) -> pd.DataFrame:  # fmt: skip
    """`read` for the prompts, under edits if given, joined with `AFTER` of `controls` (`aligned_control`) and `due`,
    log-odds − log-odds elsewhere; NaN for prompts without a control."""
    options, tables = Coherence(), []
    for prompts in (aligned, controls) if controls is not None else (aligned,):
        query = plan(options, prompts, tokenizer)
        tables.append(read(options, run(model, query, edits, progress=progress), query))
    elsewhere = tables[-1] if controls is not None else tables[0].iloc[:0]
    elsewhere = elsewhere[["id", *WORDS]].rename(columns=dict(zip(WORDS, AFTER, strict=True)))
    joint = tables[0].merge(elsewhere, on="id", how="left")
    return joint.assign(due=joint["log_odds"] - (joint[AFTER[0]] - joint[AFTER[1]]))


def observe(options: Coherence, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: category × (ln p of each word, after the own text and elsewhere), and whether the right word leads."""
    opened = data[Prompts]
    controls = aligned_control(opened.aligned, opened.tokenizer, model.cfg.n_ctx) if options.elsewhere else None
    table = rows(model, opened.aligned, controls, opened.tokenizer, progress=progress)
    groups = groups_of(opened.cases()[[p.coherent is not None for p in opened.prompts]])
    measurements = observed(table, groups, opened.unit, elsewhere=options.elsewhere)
    prompts = opened.title() + opened.aligned.scoring()
    measurements.about["title"] = f"{title_of(model)} on {prompts}; log-odds of the coherent continuation, nats"
    return measurements


def observed(table: pd.DataFrame, groups: Groups, unit: Callable[[str], str], *, elsewhere: bool) -> InstrumentData:
    """Observations and contrasts of `rows`, for all prompts and per category."""
    words = [*WORDS, *(AFTER if elsewhere else ())]
    units = table[["cluster", "category", "relation", "order"]].assign(unit=[unit(name) for name in table["id"]])
    total = table[words].to_numpy(float).T
    odds = Observations(
        measure=Measure(name="coherence", unit="nats", resolution=RESOLUTION), cells=pd.DataFrame({"word": words}),
        units=units, total=total, size=~np.isnan(total),
    )  # fmt: skip
    share = Observations(
        measure=Measure(name="share", unit="of prompts", resolution=0.0, kind="share"),
        cells=pd.DataFrame({"word": ["both"]}), units=units, total=table["prefers"].to_numpy(float)[None], size=1.0,
    )  # fmt: skip
    contrasts = [Contrast(quantity="log_odds", weights={0: 1.0, 1: -1.0})]
    if elsewhere:
        contrasts += [
            Contrast(quantity="elsewhere", weights={2: 1.0, 3: -1.0}, null=None),
            Contrast(quantity="due", weights={0: 1.0, 1: -1.0, 2: -1.0, 3: 1.0}),
            Contrast(quantity="lift", weights={0: 0.5, 1: 0.5, 2: -0.5, 3: -0.5}, null=None),
        ]
    measurements = InstrumentData()
    described = [Contrast(quantity="share", weights={0: 1.0}, null=None)]
    for name, block, block_contrasts in (("log_odds", odds, contrasts), ("share", share, described)):
        reasons = dict.fromkeys(("elsewhere", "due", "lift"), NO_CONTROL)
        measurements.blocks[name], measurements.contrasts[name] = by_category(block, block_contrasts, groups, reasons)
    return measurements


def tables(options: Coherence, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """coherence: one row for all prompts and one per category."""
    log_odds = estimates["log_odds"]
    due = log_odds.where(quantity="due").frame
    columns = (*ODDS, *(DUE if len(due) else ()))
    frame, missing = joined([log_odds, estimates["share"]], ["category"], columns)
    if len(due):
        frame["controls"] = due["n"]
    return {"coherence": Table(frame, columns, missing, data.about["title"])}


ODDS = (
    CATEGORY,
    *quantity("log_odds", "log-odds", "nats", "ln p of the coherent − of the incoherent continuation",
              sd="cases"),
    *described("share", "prefers coherent", "share of prompts", "prompts with log-odds above 0; Wilson's interval",
               format=".3f"),
    *counts("prompts", "independent cases: a pair counts once; the fewest words of a kind if cases share words"),
)  # fmt: skip
DUE = (
    number("elsewhere", "log-odds, other nouns", "nats, the same prompts after another prompt's nouns",
           "log-odds after another prompt's nouns, for prompts with a control", "+.4f"),
    *quantity("due", "due to nouns", "nats, log-odds − log-odds with other nouns, for prompts with a control",
              "log-odds − log-odds with other nouns", sd="cases"),
    number("lift", "copying of both words", "nats, mean over both continuations of ln p − ln p elsewhere",
           "how much likelier the text's nouns make both words, without a choice between them", "+.4f"),
    number("controls", "controls", "prompts with a control", "number of prompts with a control", "d"),
)  # fmt: skip
