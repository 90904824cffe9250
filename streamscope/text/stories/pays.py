"""What the meaning of a pronoun tells about the words after it, in nats: whether a text pays for attention to it.

    clues(passages_of_stories(labelled(0, 1000)))     of the built-in world
    clues(read_passages(Path("own.jsonl")))           of a user's own text
    gain(clues["pronoun"]["gender"])                  nats, interval, bias

In a group of equal category, pronoun and previous word, the gain is

    H(next | group, shuffled antecedent) − H(next | group, antecedent)

with plug-in conditional entropies. Shuffling the antecedents within each group keeps the finite-sample bias and removes
what they tell, so a text that pays nothing gives 0 on average. Where they tell much, the gain is too small by at most
`bias` = H(next | group) − H(next | group, shuffled antecedent), which falls as the number of cases rises.
"""

import math
import re
from collections import defaultdict, namedtuple
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from streamscope.cli.errors import InputError
from streamscope.text.readers import json_lines, strings

WORD = re.compile(r"\w+|[^\w\s]")
SHUFFLES = 5  # shuffles that the control is averaged over


Clue = namedtuple("Clue", ("group", "antecedent", "next", "story"))
"""One place where a word is predicted, and who is meant there."""


@dataclass(frozen=True)
class Passage:
    """A labelled pronoun: characters of it and its antecedent; `guest_habit` is "" or the habit that the text told."""

    text: str
    query: tuple[int, int]
    target: tuple[int, int]
    category: str
    story: Hashable
    guest_habit: str = ""


Gain = namedtuple("Gain", ("n", "nats", "low", "high", "bias"))
"""Nats that the antecedents tell about the next word, with a 95 % interval over stories; NaN for a single one."""


def passages_of_stories(stories: Iterable[Any]) -> Iterator[Passage]:
    for i, tale in enumerate(stories):
        for case in tale.cases:
            query, target = ((span.start, span.end) for span in (case.pronoun, case.antecedent))
            yield Passage(tale.text, query, target, case.category, i, case.guest_habit)


def read_passages(path: Path) -> Iterator[Passage]:
    """The prompts of a JSONL file that have a target; what follows a text that ends with its pronoun is `coherent`."""
    for place, row in json_lines(path, "a prompt as JSON"):
        text, category = strings(place, row, ("text", "category"))
        roles = row.get("roles")
        if not isinstance(roles, dict) or "query" not in roles:
            raise InputError(f"{place}: give the characters [start, end) of its pronoun as role 'query'")
        if "target" not in roles:
            continue
        spans = []
        for role in ("query", "target"):
            match roles[role]:
                case [int(start), int(end)] if 0 <= start < end <= len(text):
                    spans.append((start, end))
                case other:
                    raise InputError(f"{place}: role {role!r} is {other}; give characters [start, end) of its text")
        query, target = spans
        story = str(row.get("pair") or row.get("cluster") or text)
        yield Passage(text + str(row.get("coherent") or ""), query, target, category, story)


def clues(passages: Iterable[Passage]) -> dict[str, dict[str, list[Clue]]]:
    """Place -> category -> clues. The places are

    pronoun          the word after the pronoun, given the antecedent's word;
    told             the same in cases whose habit is told, given what was told;
    noun             the antecedent's word where it comes again, given itself: copying pays this much at most;
    repeated noun    the word after the repeated noun, given the antecedent's word, not given the noun.
    """
    clues_at: dict[str, dict[str, list[Clue]]] = {place: defaultdict(list) for place in PLACES}
    for passage in passages:

        def add(place: str, group: Hashable, antecedent: str, word: str, passage: Passage = passage) -> None:
            if antecedent and word:
                clues_at[place][passage.category].append(Clue(group, antecedent, word, passage.story))

        text, (start, end) = passage.text, passage.query
        noun = text[slice(*passage.target)].lower()
        context, next_word = (text[start:end].lower(), _last(text[:start])), _first(text[end:])
        add("pronoun", context, noun, next_word)
        add("told", context, passage.guest_habit, next_word)
        paragraph_end = end + len(text[end:].partition("\n\n")[0])
        if repeat := re.compile(rf"\b{re.escape(noun)}\b", re.IGNORECASE).search(text, end, paragraph_end):
            previous = _last(text[: repeat.start()])
            add("noun", previous, noun, repeat[0].lower())
            add("repeated noun", previous, noun, _first(text[repeat.end() :]))
    return clues_at


PLACES = ("pronoun", "told", "noun", "repeated noun")


def _last(text: str) -> str:
    words = re.findall(r"\w+", text[-80:])
    return words[-1].lower() if words else ""


def _first(text: str) -> str:
    match = WORD.search(text)
    return match[0].lower() if match else ""


def gain(rows: Sequence[Clue]) -> Gain:
    """The gain of the module, averaged over shuffles; the interval holds the estimated probabilities fixed."""
    table, n, rng = pd.DataFrame(rows), len(rows), Random(0)
    groups = table.groupby("group", sort=False).indices.values()
    shuffled = pd.Series(0.0, index=table.index)
    for _ in range(SHUFFLES):
        names = table["antecedent"].to_numpy(copy=True)
        for places in groups:
            rng.shuffle(order := places.tolist())
            names[places] = names[order]
        shuffled += _surprise(table.assign(antecedent=names), "group", "antecedent") / SHUFFLES
    gains = shuffled - _surprise(table, "group", "antecedent")
    by_story = (gains - gains.mean()).groupby(table["story"]).sum()
    stories = len(by_story)
    variance = (by_story**2).sum() * stories / max(1, stories - 1) / n**2
    half = float(stdtrit(stories - 1, 0.975)) * math.sqrt(variance) if stories > 1 else math.nan
    bias = (_surprise(table, "group") - shuffled).mean()
    mean = float(gains.mean())
    return Gain(n, mean, mean - half, mean + half, float(bias))


def _surprise(table: pd.DataFrame, *keys: str) -> pd.Series:
    """−log of the share of each row's next word among the rows of its key; the mean is the conditional entropy."""
    hits, total = (table.groupby(list(names))["next"].transform("size") for names in ((*keys, "next"), keys))
    return -np.log(hits / total)
