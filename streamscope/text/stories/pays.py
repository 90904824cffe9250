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
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.text.readers import json_lines, strings

WORD = re.compile(r"\w+|[^\w\s]")
SHUFFLES = 5
"""Shuffles that the control is averaged over."""


@dataclass(frozen=True)
class Clue:
    """One place where a word is predicted, and who is meant there."""

    group: Hashable
    antecedent: str
    next: str
    story: Hashable


@dataclass(frozen=True)
class Passage:
    """A labelled pronoun: characters of it and its antecedent; `guest_habit` is "" or the habit that the text told."""

    text: str
    query: tuple[int, int]
    target: tuple[int, int]
    category: str
    story: Hashable
    guest_habit: str = ""


@dataclass(frozen=True)
class Gain:
    """Nats that the antecedents tell about the next word, with a 95 % interval over stories."""

    n: int
    nats: float
    low: float
    high: float
    bias: float


def passages_of_stories(stories: Iterable[Any]) -> Iterator[Passage]:
    """The cases of built-in stories (`Story` of any version)."""
    for i, one in enumerate(stories):
        for case in one.cases:
            pronoun, noun = case.pronoun, case.antecedent
            yield Passage(one.text, (pronoun.start, pronoun.end), (noun.start, noun.end), case.category, i,
                          getattr(case, "guest_habit", ""))  # fmt: skip


def read_passages(path: Path) -> Iterator[Passage]:
    """The prompts of a JSONL file that have a target; what follows a text that ends with its pronoun is `coherent`.

    Raises `InputError` with the line whose text, category or roles are missing or do not fit.
    """
    for where, row in json_lines(path, "a prompt as JSON"):
        text, category = strings(where, row, ("text", "category"))
        roles = row.get("roles")
        if not isinstance(roles, dict) or "query" not in roles:
            raise InputError(f"{where}: give the characters [start, end) of its pronoun as role 'query'")
        if "target" not in roles:
            continue
        for role in ("query", "target"):
            match roles[role]:
                case [int(start), int(end)] if 0 <= start < end <= len(text):
                    pass
                case _:
                    raise InputError(
                        f"{where}: role {role!r} is {roles[role]}; give characters [start, end) of its text"
                    )
        query, target = ((roles[role][0], roles[role][1]) for role in ("query", "target"))
        yield Passage(text + str(row.get("coherent") or ""), query, target, category,
                      str(row.get("pair") or row.get("cluster") or text))  # fmt: skip


def clues(passages: Iterable[Passage]) -> dict[str, dict[str, list[Clue]]]:
    """Place -> category -> clues. The places are

    pronoun          the word after the pronoun, given the antecedent's word;
    told             the same in cases whose habit is told, given what was told;
    noun             the antecedent's word where it comes again, given itself: copying pays this much at most;
    repeated noun    the word after the repeated noun, given the antecedent's word, not given the noun.
    """
    found: dict[str, dict[str, list[Clue]]] = {place: defaultdict(list) for place in PLACES}
    for one in passages:
        text, (start, end) = one.text, one.query
        noun = text[slice(*one.target)].lower()
        context = (text[start:end].lower(), _last(text[:start]))
        after = _first(text[end:])
        if after:
            found["pronoun"][one.category].append(Clue(context, noun, after, one.story))
            if one.guest_habit:
                found["told"][one.category].append(Clue(context, one.guest_habit, after, one.story))
        again = re.compile(rf"\b{re.escape(noun)}\b", re.IGNORECASE).search(text, end, _paragraph_end(text, end))
        if again:
            before = _last(text[: again.start()])
            found["noun"][one.category].append(Clue(before, noun, again[0].lower(), one.story))
            if after := _first(text[again.end() :]):
                found["repeated noun"][one.category].append(Clue(before, noun, after, one.story))
    return found


PLACES = ("pronoun", "told", "noun", "repeated noun")


def _last(text: str) -> str:
    words = re.findall(r"\w+", text[-80:])
    return words[-1].lower() if words else ""


def _first(text: str) -> str:
    found = WORD.search(text)
    return found[0].lower() if found else ""


def _paragraph_end(text: str, start: int) -> int:
    end = text.find("\n\n", start)
    return end if end >= 0 else len(text)


def gain(rows: Sequence[Clue], *, shuffles: int = SHUFFLES, seed: int = 0) -> Gain:
    """The gain of the module, averaged over shuffles; the interval holds the estimated probabilities fixed.

    Raises `ValueError` without rows.
    """
    if not rows:
        raise ValueError("no cases")
    known = _surprise([(row.group, row.antecedent) for row in rows], rows)
    unknown = _surprise([row.group for row in rows], rows)
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        members[row.group].append(i)
    shuffled, rng = [0.0] * len(rows), Random(seed)
    for _ in range(shuffles):
        keys: list[Hashable] = [None] * len(rows)
        for places in members.values():
            names = [rows[i].antecedent for i in places]
            rng.shuffle(names)
            for i, name in zip(places, names, strict=True):
                keys[i] = (rows[i].group, name)
        shuffled = [x + y / shuffles for x, y in zip(shuffled, _surprise(keys, rows), strict=True)]
    by_story: dict[Hashable, float] = defaultdict(float)
    differences = [x - y for x, y in zip(shuffled, known, strict=True)]
    mean, n = sum(differences) / len(rows), len(rows)
    for row, difference in zip(rows, differences, strict=True):
        by_story[row.story] += difference - mean
    half = 1.96 * math.sqrt(sum(x * x for x in by_story.values())) / n
    return Gain(n, mean, mean - half, mean + half, (sum(unknown) - sum(shuffled)) / n)


def _surprise(keys: Sequence[Hashable], rows: Sequence[Clue]) -> list[float]:
    """−log of the share of each row's next word among the rows of its key; the mean is the conditional entropy."""
    counts: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for key, row in zip(keys, rows, strict=True):
        counts[key][row.next] += 1
    totals = {key: sum(found.values()) for key, found in counts.items()}
    return [-math.log(counts[key][row.next] / totals[key]) for key, row in zip(keys, rows, strict=True)]
