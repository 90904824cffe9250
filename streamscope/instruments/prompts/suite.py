"""A prompt with roles, and a suite of prompts: plain data, checked when it is made; suites of files and of stories."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streamscope.cli.disk import parse
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.text.corpus import records

if TYPE_CHECKING:
    from streamscope.text.stories import Case

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
        order = order_of(self.roles)
        continuations = [c for c in (self.coherent, self.incoherent, *self.answers, *self.foils) if c is not None]
        problems = {
            f" is marked {self.order!r}, but its roles say {order}": self.order not in (None, order),
            f" is of pair {self.pair!r} but has no order; write target_first or target_last":
                self.pair is not None and self.order is None,
            " has empty 'words'; name at least one kind and its label, or leave them out":
                self.words is not None and not (self.words and all(self.words.values())),
            " has one continuation; give both, or none": (self.coherent is None) != (self.incoherent is None),
            " has a corrupted text, but no answers and foils; give both":
                self.corrupt is not None and self.coherent is None,
            ": its corrupted text is the text; give another one": self.corrupt == self.text,
            " needs both 'answers' and 'foils'": bool(self.answers) != bool(self.foils),
            " has an empty continuation, answer or foil": "" in map(str.strip, continuations),
        }  # fmt: skip
        for problem, is_there in problems.items():
            if is_there:
                raise InputError(f"{place}{problem}")
        if common := set(self.answers) & set(self.foils):
            raise InputError(f"{place} has {common.pop()!r} among its answers and among its foils")
        for continuation in continuations:
            check_space(self.text, continuation, place)


UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Letters of scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese."""


def check_space(text: str, continuation: str, place: str = "a continuation") -> None:
    """Raise `InputError` for a continuation that lacks its leading space: "hummed" after "She" reads "Shehummed".

    A word needs a space after a letter, a digit or one of . , ; : ! ? and a number needs one after a letter. Marks,
    the rest of a number ("84" after "19") and scripts without spaces need none.
    """
    end, start = unicodedata.category(text[-1:] or " ")[0], unicodedata.category(continuation[:1] or " ")[0]
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
        (name, n), *_ = [*Counter([p.id for p in self.prompts]).most_common(1), ("", 0)]
        if n > 1:
            raise InputError(f"{self.source}: the id {name!r} occurs twice; make the ids unique")
        if len(Counter([tuple(p.words or ()) for p in self.prompts])) > 1:
            raise InputError(f"{self.source}: every prompt needs 'words' of the same kinds in the same order, or none")
        for name, orders in self.pairs.items():
            if sorted(orders) != ["target_first", "target_last"]:
                needed = "it needs one prompt of each order"
                raise InputError(f"{self.source}: pair {name!r} is {', '.join(orders)}; {needed}")

    @property
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


def population(prompts: Sequence[Prompt]) -> str:
    """For what an interval over these prompts holds: new words, or where they share none, new texts like these."""
    unit_labels = units(prompts)
    names = list(prompts[0].words or ())  # the prompts of a suite have words of the same kinds, or none
    if not names:
        return f"95 % for new texts, {len(set(unit_labels))} independent"
    counts = [len(set(labels)) for labels in zip(*unit_labels, strict=True)]
    kinds = ", ".join(f"{n} {name}" for n, name in zip(counts[1:], names, strict=True))
    return f"95 % for new words, {kinds}"


# ---- suites of files --------------------------------------------------------------------------


def read_suite(source: str, name: str) -> Suite:
    """The prompts of a JSONL, CSV or parquet file or of hf:DATASET, every type checked."""
    names, rows = [f.name for f in fields(Prompt)], dict[str, dict[str, Any]]()
    is_table = Path(source).suffix not in (".jsonl", ".ndjson")
    for place, row in records(source, "a prompt as JSON"):
        if is_table or "clean" in row or "roles" not in row:
            with reading(place):
                row = _own(row, len(rows), is_table)
        if not row.keys() <= {*names}:
            raise InputError(f"{place}: {unknown('key of a prompt', min(row.keys() - names), [*names, 'clean'])}")
        answers, foils = row.get("answers"), row.get("foils")
        if isinstance(answers, list) and isinstance(foils, list) and answers and foils:
            row = {"coherent": answers[0], "incoherent": foils[0], **row}
        rows[place] = row
    try:
        return Suite(name, tuple(parse(json.dumps([*rows.values()]), list[Prompt], source)), source)
    except InputError:
        for place, row in rows.items():  # which of them it is
            with reading(place):
                parse(json.dumps(row), Prompt, "the prompt", f"its keys are {', '.join(names)}")
        raise


def _own(row: dict[str, Any], i: int, is_table: bool) -> dict[str, Any]:
    """Row `i`, where cells of a table hold JSON, as a prompt; without roles its query is its last word."""
    for key in {"answers", "foils", "roles", "words"} & {*row} if is_table else ():
        cell = row[key]
        if isinstance(cell, dict):  # a column of objects has None for what a row lacks
            row = row | {key: {role: value for role, value in cell.items() if value is not None}}
        elif isinstance(cell, str):  # another text is a list of one
            try:
                row = row | {key: json.loads(cell) if cell.lstrip()[:1] in ("[", "{") else [cell]}
            except ValueError:
                raise InputError(f"{cell[:60]!r} is no JSON; write a list or an object") from None
    if "clean" in row:
        for side in ("answers", "foils"):
            if not isinstance(row.get(side), list) or not row[side]:
                raise InputError(f"a prompt with 'clean' needs {side!r}, a list of continuations")
        if not isinstance(row["clean"], str) or not isinstance(row.get("corrupt"), str):
            raise InputError("'clean' and 'corrupt' must be text")
        row = {"text": row["clean"], **{key: value for key, value in row.items() if key != "clean"}}
    elif "roles" in row or not isinstance(row.get("text"), str):
        return row
    return {"id": f"prompt-{i + 1}", "category": "own", "roles": {"query": list(last_word(row["text"]))}, **row}


# ---- suites of the built-in stories -----------------------------------------------------------

HELD_OUT = {"stories": "pairs", "stories-told": "told", "stories-words": "words"}
"""Suites of minimal pairs, by what the stories hold out: pairs of nouns; guests, whose habits are told; words."""
CATEGORY = {"gender": "gender", "anchor": "gender", "number": "plurality"}
"""Category of a passage's kind; in all others nouns compete (LFA App. F), and `relation` says how."""


@lru_cache(maxsize=16)  # a thousand pairs of stories take a second
def story_suite(name: str, n: int, seed: int) -> Suite:
    """`n` minimal pairs of the built-in stories (`HELD_OUT`), or for story-cases `n` labelled pronouns in stories of
    held-out pairs, each in its paragraph; the cases of one story are one unit."""
    from streamscope.text.stories import minimal_pairs, story  # which read their lexicons

    prompts: list[Prompt] = []
    if name in HELD_OUT:
        for i, p in enumerate(minimal_pairs(seed, n, HELD_OUT[name])):
            pair, first, last = f"{name}-{seed}-{i:05d}", (p.first, p.first_case), (p.last, p.last_case)
            for order, (text, case), corrupt in (("first", first, p.first_corrupt), ("last", last, p.last_corrupt)):
                options: dict[str, Any] = {"corrupt": corrupt, "coherent": p.coherent, "incoherent": p.incoherent}
                prompts.append(_of_case(text, case, id=f"{pair}-{case.relation}-{order}", pair=pair, **options))
        return Suite(name, tuple(prompts), f"streamscope.text.stories.minimal_pairs({seed}, {n}, {HELD_OUT[name]!r})")
    for index in count():
        tale, tale_name = story(seed, index, "pairs"), f"{seed}-{index:05d}"
        for i, case in enumerate(tale.cases):
            start = tale.text.rfind("\n\n", 0, case.candidates[0].start) + 2 if "\n\n" in tale.text else 0
            stop = tale.text.find("\n\n", case.pronoun.end)
            text = tale.text[start : stop if stop >= 0 else None]
            place = {"id": f"story-cases-{tale_name}-{i}", "cluster": f"story-{tale_name}"}
            prompts.append(_of_case(text, case, start, **place))
            if len(prompts) == n:
                return Suite(name, tuple(prompts), f"streamscope.text.stories.labelled({seed}, {index + 1}, 'pairs')")
    raise AssertionError("stories do not end")


def _of_case(text: str, case: "Case", start: int = 0, **options: Any) -> Prompt:
    """The prompt of a labelled pronoun in a text that begins at character `start` of its story."""
    rival = next(span for span in case.candidates if span != case.antecedent)
    marks = {"query": case.pronoun, "target": case.antecedent, "distractor": rival}
    roles = {role: (span.start - start, span.end - start) for role, span in marks.items()}
    target, competitor = (text[slice(*roles[role])].lower() for role in ("target", "distractor"))
    category = CATEGORY.get(case.category, "competing-nouns")
    options |= {"roles": roles, "order": order_of(roles), "words": {"target": target, "competitor": competitor}}
    return Prompt(text=text, category=category, relation=case.category, **options)
