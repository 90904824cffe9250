"""Templates with marked spans, which become text with labels.

    {name}     the value of `name`; {^name} starts it with a capital letter
    <a|b|c>    one of the alternatives, uniformly; they nest
    [key …]    a mark: `parse` removes it and returns the span of its words

Articles are written "a" and become "an" where needed before the marks are read, so spans are exact.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")
_CHOICE = re.compile(r"<([^<>]*)>")
_SLOT = re.compile(r"\{(\^?)(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?:\[\w+ )?(?:[aeioAEIO](?!ne\b)|[uU](?!ni|se|ku)|hour))")
_MARK = re.compile(r"\[(\w+) ([^\]]*)\]")


@dataclass(frozen=True)
class Span:
    """Characters `text[start:end]`."""

    start: int
    end: int


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
    """The text without marks, and (key, span) of each mark in order."""
    marked = _ARTICLE.sub(r"\1n ", marked)
    pieces, spans, length, last = list[str](), list[tuple[str, Span]](), 0, 0
    for mark in _MARK.finditer(marked):
        pieces += (marked[last : mark.start()], mark[2])
        start = length + len(pieces[-2])
        length, last = start + len(mark[2]), mark.end()
        spans.append((mark[1], Span(start, length)))
    return "".join([*pieces, marked[last:]]), spans
