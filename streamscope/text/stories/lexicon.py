"""The words of the stories (`text.toml`), and the templates that they are put into.

A known noun has one habit in the whole corpus. Guests have none: each story tells theirs. Reserved nouns are guests
that occur in no training text. In a template

    {name}     is the value of `name`; {^name} starts it with a capital letter
    <a|b|c>    is one of the alternatives, uniformly; they nest
    [key …]    is a mark: `parse` removes it and returns the span of its words

Articles are written "a" and become "an" where needed before the marks are read, so spans are exact.
"""

import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zlib import crc32

from streamscope.cli.disk import read_toml

T = TypeVar("T")
TEXT: dict[str, Any] = read_toml(Path(__file__).with_name("text.toml"), dict[str, Any])
HELD_OUT_PART = 8  # one pair of nouns in `HELD_OUT_PART` is held out
_CHOICE = re.compile(r"<([^<>]*)>")
_SLOT = re.compile(r"\{(\^?)(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?:\[\w+ )?(?:[aeioAEIO](?!ne\b)|[uU](?!ni|se|ku)|hour))")
_MARK = re.compile(r"\[(\w+) ([^\]]*)\]")


Noun = namedtuple("Noun", ("form", "singular", "habit"))
"""A name or noun, in the form the text uses; its singular; its habit, "" if only a story tells it."""


def _nouns(listed: str, plural: bool = False) -> tuple[Noun, ...]:
    nouns = []
    for entry in listed.split():
        forms, _, habit = entry.partition(":")
        singular, _, plural_form = forms.partition("/")
        nouns.append(Noun(plural_form if plural else singular, singular, habit))
    return tuple(nouns)


def _of_source(source: str) -> dict[str, tuple[Noun, ...]]:
    """Kind -> its nouns; animals are hunters and prey, groups are animals in the plural."""
    listed = TEXT[source]
    animals = f"{listed['hunters']} {listed['prey']}"
    kinds = {kind: _nouns(text) for kind, text in {**listed, "animals": animals}.items()}
    return {**kinds, "groups": _nouns(animals, plural=True)}


NOUNS = {source: _of_source(source) for source in ("known", "guests", "reserved")}  # source -> kind -> nouns
_VERBS = {
    pool: {past or base: base for base, _, past in (entry.partition(":") for entry in text.split())}
    for pool, text in TEXT["pools"].items()
}
BASES = {habit: base for verbs in _VERBS.values() for habit, base in verbs.items()}
"""Habit -> the verb's base form (of an adverb, itself)."""
HABITS = {pool: tuple(verbs) for pool, verbs in _VERBS.items()}  # pool -> the habits that its kinds may have
LISTS = {name: tuple(text.split("," if name == "events" else None)) for name, text in TEXT["lists"].items()}


def is_held_out(first: Noun, second: Noun) -> bool:
    """Whether no training passage has these two as candidates: one pair in eight, by CRC-32, in either order."""
    return crc32("|".join(sorted((first.singular, second.singular))).encode()) % HELD_OUT_PART == 0


Span = namedtuple("Span", ("start", "end"))
"""Characters `text[start:end]`."""


def pick(rng: Random, options: Sequence[T]) -> T:
    """A uniform choice. It uses `rng.random` alone, which gives the same numbers in every version of Python."""
    return options[int(rng.random() * len(options))]


def expand(template: str, values: Mapping[str, str], rng: Random) -> str:
    """Choose the alternatives of a template and fill in `values`."""
    while "<" in template:
        template = _CHOICE.sub(lambda match: pick(rng, match[1].split("|")), template)
    return _SLOT.sub(lambda match: capital(values[match[2]]) if match[1] else values[match[2]], template)


def capital(text: str) -> str:
    """Capitalise the first letter, also after an opening mark or quotation mark."""
    start = text.index(" ") + 1 if text.startswith("[") else 0
    start += text[start : start + 1] == '"'
    return text[:start] + text[start : start + 1].upper() + text[start + 1 :]


def parse(marked: str) -> tuple[str, list[tuple[str, Span]]]:
    marked = _ARTICLE.sub(r"\1n ", marked)
    text, spans, last = "", list[tuple[str, Span]](), 0
    for mark in _MARK.finditer(marked):
        text += marked[last : mark.start()]
        spans.append((mark[1], Span(len(text), len(text) + len(mark[2]))))
        text, last = text + mark[2], mark.end()
    return text + marked[last:], spans
