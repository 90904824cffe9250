"""The words of the stories (`text.toml`): nouns by kind and source, and the habits of each kind.

A known noun has one habit in the whole corpus. Guests have none: each story tells theirs. Reserved nouns are guests
that occur in no training text.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from streamscope.cli.disk import read_toml

TEXT: dict[str, Any] = read_toml(Path(__file__).with_name("text.toml"), dict[str, Any])
SOURCES = ("known", "guests", "reserved")
HELD_OUT_PART = 8
"""One pair of nouns in `HELD_OUT_PART` is held out."""


@dataclass(frozen=True)
class Noun:
    """A name or noun, in the form the text uses; its singular; its habit, "" if only a story tells it."""

    form: str
    singular: str
    habit: str


def _nouns(listed: str, plural: bool) -> tuple[Noun, ...]:
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
    plural = {"groups": _nouns(animals, plural=True)}
    return {kind: _nouns(text, plural=False) for kind, text in {**listed, "animals": animals}.items()} | plural


NOUNS = {source: _of_source(source) for source in SOURCES}
"""Source -> kind -> nouns."""
BASES = {
    past or base: base
    for pool in TEXT["pools"].values()
    for base, _, past in (entry.partition(":") for entry in pool.split())
}
"""Habit -> the verb's base form (of an adverb, itself)."""
HABITS = {
    pool: tuple(past or base for base, _, past in (entry.partition(":") for entry in text.split()))
    for pool, text in TEXT["pools"].items()
}
"""Pool -> the habits that its kinds may have."""
LISTS = {name: tuple(text.split("," if name == "events" else None)) for name, text in TEXT["lists"].items()}


def is_held_out(first: Noun, second: Noun) -> bool:
    """Whether no training passage has these two as candidates: one pair in eight, by CRC-32, in either order."""
    return crc32("|".join(sorted((first.singular, second.singular))).encode()) % HELD_OUT_PART == 0
