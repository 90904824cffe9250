"""A prompt with roles, and a suite of prompts: plain data, checked when it is made."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from streamscope.cli.errors import InputError

Order = Literal["target_first", "target_last"]
Unit = str | tuple[str, ...]
"""The unit of inference of a prompt, or with words that prompts share (unit, label, label, …)."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One text with roles; characters [start, end) count from 0."""

    id: str
    text: str
    roles: dict[str, tuple[int, int]]
    """"query": where attention is read from; "target": the right antecedent; "distractor", "distractor2", …"""
    pair: str | None = None
    """Two prompts that differ only in the order of target and competitor share this name."""
    cluster: str | None = None
    """Prompts that share it are one unit of inference, for other reasons than a pair's: one frame, one story."""
    words: dict[str, str] | None = None
    """Kind -> label that prompts share crosswise, as target -> crayon, competitor -> basket: two prompts that agree
    in any of them may depend on each other, and an interval over them all holds for new words (`estimators.Shared`)."""
    order: Order | None = None
    """Whether the target or the first-named competitor stands first."""
    category: str
    """competing-nouns, gender, plurality, or that of a published set."""
    relation: str | None = None
    """tool-container, agent-patient, possessor-possessed (LFA App. F)."""
    coherent: str | None = None
    """What may follow `text` by its meaning, with its leading space."""
    incoherent: str | None = None
    """What may follow by grammar only: the competitor, with its leading space."""
    corrupt: str | None = None
    """A text of the same form after which the foils are right: the other run of a patch."""
    answers: tuple[str, ...] = ()
    """All continuations that are right after `text`, if there are several; default: `coherent`."""
    foils: tuple[str, ...] = ()
    """All that are right after `corrupt`; default: `incoherent`."""

    def __post_init__(self) -> None:
        place = f"prompt {self.id!r}"
        if "query" not in self.roles:
            raise InputError(f"{place} has no role 'query'; give the characters [start, end) of its pronoun")
        for role, (start, end) in self.roles.items():
            if not re.fullmatch(r"query|target|distractor\d*", role):
                raise InputError(f"{place}: unknown role {role!r}; use query, target, distractor, distractor2, …")
            if not 0 <= start < end <= len(self.text):
                length = f"{len(self.text)} characters"
                raise InputError(f"{place}: role {role!r} [{start}, {end}) leaves the text of {length}")
            if self.text[start:end] != self.text[start:end].strip():
                raise InputError(f"{place}: role {role!r} is {self.text[start:end]!r}; leave the space out")
        if self.order is not None and self.order != order_of(self.roles):
            raise InputError(f"{place} is marked {self.order!r}, but its roles say {order_of(self.roles)}")
        if self.pair is not None and self.order is None:
            raise InputError(f"{place} is of pair {self.pair!r} but has no order; write target_first or target_last")
        if self.words is not None and not (self.words and all(self.words.values())):
            raise InputError(f"{place} has empty 'words'; name at least one kind and its label, or leave them out")
        if (self.coherent is None) != (self.incoherent is None):
            raise InputError(f"{place} has one continuation; give both, or none")
        if self.coherent is not None and not (self.coherent.strip() and (self.incoherent or "").strip()):
            raise InputError(f"{place} has an empty continuation")
        if self.corrupt is not None and self.coherent is None:
            raise InputError(f"{place} has a corrupted text, but no answers and foils; give both")
        if self.corrupt == self.text:
            raise InputError(f"{place}: its corrupted text is the text; give another one")
        if bool(self.answers) != bool(self.foils) or not all(text.strip() for text in (*self.answers, *self.foils)):
            raise InputError(f"{place} needs both 'answers' and 'foils', and none of them empty")
        if common := set(self.answers) & set(self.foils):
            raise InputError(f"{place} has {common.pop()!r} among its answers and among its foils")
        for continuation in (self.coherent, self.incoherent, *self.answers, *self.foils):
            if continuation is not None:
                check_space(self.text, continuation, place)


UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Letters of scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese."""


def check_space(text: str, continuation: str, place: str = "a continuation") -> None:
    """Raise `InputError` for a continuation that lacks its leading space: "hummed" after "She" reads "Shehummed".

    A word needs a space after a letter, a digit or one of . , ; : ! ? and a number needs one after a letter. Marks,
    the rest of a number ("84" after "19") and scripts without spaces need none.
    """
    end, start = (unicodedata.category(c)[0] for c in (text[-1:] or " ", continuation[:1] or " "))
    word = start == "L" and (end in "LMN" or text[-1:] in tuple(".,;:!?"))
    if (word or (start == "N" and end in "LM")) and not UNSPACED.search(text[-1] + continuation[0]):
        line = f"{continuation!r} would run on from {text.split()[-1]!r}"
        raise InputError(f"{place}: {line}: begin it with a space, ' {continuation}'")


def last_word(text: str) -> tuple[int, int]:
    """The characters of the last word, after which the answer is predicted."""
    if (match := re.search(r"\S+(?=\s*$)", text)) is None:
        raise InputError("a prompt is empty; give a text with words")
    return match.span()


def order_of(roles: dict[str, tuple[int, int]]) -> Order | None:
    """The order of "target" and "distractor"; None if either is missing."""
    if "target" not in roles or "distractor" not in roles:
        return None
    return "target_first" if roles["target"] < roles["distractor"] else "target_last"


@dataclass(frozen=True)
class Suite:
    """Prompts under one name. Ids are unique; a pair has exactly one prompt of either order, or `InputError`."""

    name: str
    prompts: tuple[Prompt, ...]
    source: str
    """The file, or the generator with its arguments."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Entries of the source that cannot be prompts, and why."""

    def __post_init__(self) -> None:
        if duplicates := [name for name, n in Counter(p.id for p in self.prompts).items() if n > 1]:
            raise InputError(f"{self.source}: the id {duplicates[0]!r} occurs twice; make the ids unique")
        if len({tuple(p.words or ()) for p in self.prompts}) > 1:
            raise InputError(f"{self.source}: every prompt needs 'words' of the same kinds in the same order, or none")
        for name, orders in self.pairs.items():
            if sorted(orders) != sorted(get_args(Order)):
                needed = "it needs one prompt of each order"
                raise InputError(f"{self.source}: pair {name!r} is {', '.join(orders)}; {needed}")

    @cached_property
    def pairs(self) -> dict[str, list[str]]:
        """The orders of each pair's prompts, by pair."""
        orders: dict[str, list[str]] = {}
        for prompt in self.prompts:
            if prompt.pair is not None:
                orders.setdefault(prompt.pair, []).append(str(prompt.order))
        return orders


def units(prompts: Sequence[Prompt]) -> list[Unit]:
    """The unit of inference of each prompt: prompts that share a pair, a cluster or a text are one unit.

    Two pronouns of one text are two prompts and one sample of text; so are the two orders of a pair. Where the prompts
    have `words`, each entry is (unit, label of each kind): labels for `estimators.read_clusters`.
    """
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(x: tuple[str, str]) -> tuple[str, str]:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    for p in prompts:
        for kind, name in (("pair", p.pair), ("cluster", p.cluster)):
            if name is not None:
                parent[root(("text", p.text))] = root((kind, name))
    names: dict[tuple[str, str], str] = {}  # a unit is called after its first pair, cluster or prompt
    unit_names = [names.setdefault(root(("text", p.text)), p.pair or p.cluster or p.id) for p in prompts]
    return [(unit, *p.words.values()) if p.words else unit for unit, p in zip(unit_names, prompts, strict=True)]


def unit_of(label: Unit) -> str:
    """The unit of a label of `units`, without the words."""
    return label if isinstance(label, str) else label[0]


def population(prompts: Sequence[Prompt]) -> str:
    """For what an interval over these prompts holds: new words, or where they share none, new texts like these."""
    unit_labels = units(prompts)
    names = next((list(p.words) for p in prompts if p.words), [])
    if not names:
        return f"95 % for new texts, {len(set(unit_labels))} independent"
    counts = [len(set(labels)) for labels in zip(*unit_labels, strict=True)]
    kinds = ", ".join(f"{n} {name}" for n, name in zip(counts[1:], names, strict=True))
    return f"95 % for new words, {kinds}"
