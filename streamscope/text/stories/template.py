"""Templates with marked spans, which become text with labels.

A template is a string with three devices:

    {name}      the value of `name` in the environment; {^name} starts it with a capital letter
    {#name}     a random entry of `LISTS[name]`
    <a|b|c>     one of the alternatives, uniformly; they nest

A mark `[key words]` records the span of `words`: `parse` removes the brackets and returns the spans. Articles are
written "a" and corrected to "an" before the marks are read, so spans are exact.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, TypeVar

from streamscope.text.stories.lexicon import LISTS

Env = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """Characters `text[start:end]` of a document."""

    start: int
    end: int


@dataclass(frozen=True)
class Case:
    """One pronoun whose antecedent follows from meaning.

    `candidates` are the competing entities, including the antecedent, each at its last mention by noun or name before
    the pronoun, in that order. `cue` determines the antecedent; for gender and number it is the pronoun itself. A
    causal model can resolve the case at the pronoun only if `cue_before`. `combination` is (antecedent, competitor,
    verb).
    """

    category: str
    relation: str
    pronoun: Span
    antecedent: Span
    candidates: tuple[Span, ...]
    cue: Span
    combination: tuple[str, str, str]

    @property
    def cue_before(self) -> bool:
        return self.cue.end <= self.pronoun.end


@dataclass(frozen=True)
class Story:
    text: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Label:
    """A case with keys of marks instead of spans."""

    category: str
    relation: str
    pronoun: str
    antecedent: str
    candidates: tuple[str, ...]
    cue: str
    combination: tuple[str, str, str]


def pick(rng: Random, options: Sequence[T]) -> T:
    """A uniform choice, three times as fast as `rng.choice` and equal in all Python versions."""
    return options[int(rng.random() * len(options))]


@cache
def _compile(template: str) -> tuple[Any, ...]:
    """Parts of a template: str is literal; ("slot"|"cap"|"list", name); ("alt", compiled alternatives)."""
    parts: list[Any] = []
    alternatives: list[list[Any]] = []
    stack: list[tuple[list[Any], list[list[Any]]]] = []
    for token in re.findall(r"[<|>]|\{[#^]?\w+\}|[^<|>{}]+", template):
        if token == "<":
            stack.append((parts, alternatives))
            parts, alternatives = [], []
        elif token == "|":
            alternatives.append(parts)
            parts = []
        elif token == ">":
            alternatives.append(parts)
            choice = ("alt", tuple(tuple(a) for a in alternatives))
            parts, alternatives = stack.pop()
            parts.append(choice)
        elif token[0] == "{":
            kind = {"#": "list", "^": "cap"}.get(token[1], "slot")
            parts.append((kind, token.strip("{}#^")))
        else:
            parts.append(token)
    if stack or alternatives:
        raise ValueError(f"unbalanced alternatives in template: {template}")
    return tuple(parts)


def expand(template: str, env: Env, rng: Random) -> str:
    out: list[str] = []
    _expand(_compile(template), env, rng, out)
    return "".join(out)


def _expand(parts: tuple[Any, ...], env: Env, rng: Random, out: list[str]) -> None:
    for part in parts:
        if isinstance(part, str):
            out.append(part)
            continue
        kind, value = part
        if kind == "slot":
            out.append(env[value])
        elif kind == "alt":
            _expand(value[int(rng.random() * len(value))], env, rng, out)
        elif kind == "list":
            out.append(pick(rng, LISTS[value]))
        else:
            out.append(capital(env[value]))


def capital(text: str) -> str:
    """Capitalise the first letter, also after an opening mark."""
    at = text.index(" ") + 1 if text.startswith("[") else 0
    return text[:at] + text[at : at + 1].upper() + text[at + 1 :]


_ARTICLE = re.compile(r"\b([Aa]) (?=(?:\[\w+ )?(?:[aeioAEIO](?!ne\b)|hones|[uU](?!ni|se|ku)))")
_MARK = re.compile(r"\[(\w+) ([^\]]*)\]")


def plain(marked: str) -> str:
    """The text of `parse` without spans."""
    return _MARK.sub(r"\2", _ARTICLE.sub(r"\1n ", marked))


def parse(marked: str) -> tuple[str, list[tuple[str, Span]]]:
    """The plain text and its marks (key, span) in order."""
    marked = _ARTICLE.sub(r"\1n ", marked)
    pieces: list[str] = []
    spans: list[tuple[str, Span]] = []
    at = last = 0
    for mark in _MARK.finditer(marked):
        before = marked[last : mark.start()]
        words = mark.group(2)
        start = at + len(before)
        pieces += (before, words)
        at = start + len(words)
        spans.append((mark.group(1), Span(start, at)))
        last = mark.end()
    pieces.append(marked[last:])
    return "".join(pieces), spans


def resolve(label: Label, spans: list[tuple[str, Span]]) -> Case:
    """Convert the keys of a label to spans; a candidate's span is its last mention before the pronoun."""
    nearest: dict[str, Span] = {}
    cue: Span | None = None
    pronoun: Span | None = None
    for key, span in spans:
        if key == label.pronoun:
            pronoun = span
        if key == label.cue:
            cue = span
        if pronoun is None and key in label.candidates:
            nearest[key] = span
    if pronoun is None or cue is None or len(nearest) != len(label.candidates):
        raise ValueError(f"a mark of {label} is missing")
    return Case(
        label.category, label.relation, pronoun, nearest[label.antecedent],
        tuple(sorted(nearest.values(), key=lambda s: s.start)), cue, label.combination,
    )  # fmt: skip
