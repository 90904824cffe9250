"""Suites of clean and corrupted prompts with answers and foils, put together from templates.

    load_suite("ioi", n=100)

Every prompt has a corrupted text of the same form in which the foils are right, so that patching
(`interventions.patch`) has two runs to compare. The words are in `datasets/counterfactual/templates.toml`; the card
next to it says what each suite asks, where it comes from and where it fails.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from streamscope.aliases import folder_of
from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.suite import Prompt, Suite, check_space, last_word

MOST = 2000  # repetitions in a row after which no new prompt is expected
Spans = dict[str, tuple[int, int]]
Words = Mapping[str, Any]
"""The templates of a suite, and the words that fill them."""


@cache
def templates() -> dict[str, Any]:
    """The words of the suites, by task."""
    return tomllib.loads((folder_of("datasets") / "counterfactual" / "templates.toml").read_text(encoding="utf-8"))


def fill(sentence: str, **words: str) -> tuple[str, Spans]:
    """The sentence with its slots filled, and the characters [start, end) of each slot."""
    text, spans = "", Spans()
    for i, piece in enumerate(sentence.replace("}", "{").split("{")):
        if i % 2:
            spans[piece] = (len(text), len(text) + len(words[piece]))
        text += words[piece] if i % 2 else piece
    return text, spans


def every_name() -> list[str]:
    return [*templates()["names"]["female"], *templates()["names"]["male"]]


def _row(
    sentence: str, slots: dict[str, str], corrupt: dict[str, str], roles: dict[str, str], answers: Sequence[str],
    foils: Sequence[str], words: dict[str, str], **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A prompt from a sentence and the words of its slots, some of which are others in the corrupted text.

    `roles` name the slot of each role.
    """
    text, spans = fill(sentence, **slots)
    return {
        "text": text, "corrupt": fill(sentence, **{**slots, **corrupt})[0], "answers": tuple(answers),
        "foils": tuple(foils), "words": words, "roles": {role: spans[slot] for role, slot in roles.items()}, **more,
    }  # fmt: skip


def _listed(
    sentence: str, joint: str, names: list[str], n: int, tail: str = "", **words: str
) -> Iterator[dict[str, Any]]:
    """A prompt with a list of names whose answer is name n; the corrupted list has the last name there."""
    target, rival = names[n], names[-1]
    parts = ("".join(f"{name}{joint}" for name in names[:n]), joint.join(["", *names[n + 1 : -1], ""]))
    sentence = sentence.replace("{list}", f"{parts[0]}{{target}}{parts[1]}{{rival}}") + tail
    slots, corrupt = {"target": target, "rival": rival, **words}, {"target": rival, "rival": target}
    roles, of_both = {"target": "target", "distractor": "rival"}, {"target": target, "competitor": rival}
    yield _row(sentence, slots, corrupt, roles, [f" {target}"], [f" {rival}"], of_both)


def _ioi(rng: Random, data: Words, other_names: bool = False) -> Iterator[dict[str, Any]]:
    """Indirect object identification (Wang et al. 2022): both orders of two names, of which one is repeated."""
    target, rival, *more = rng.sample(every_name(), 5)
    sentence, place, thing = (rng.choice(data[kind]) for kind in ("sentences", "places", "things"))
    words = {"target": target, "competitor": rival, "frame": sentence}
    for order, *places in (("target_first", "first", "second"), ("target_last", "second", "first")):
        slots = dict(zip(places, (target, rival), strict=True)) | {"again": rival, "place": place, "thing": thing}
        corrupt = dict(zip(("first", "second", "again"), more, strict=True)) if other_names else {"again": target}
        roles = dict(zip(("target", "distractor"), places, strict=True))
        yield _row(sentence, slots, corrupt, roles, [f" {target}"], [f" {rival}"], words, order=order)


def _greater_than(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """A span of years ends after it begins (Hanna et al. 2023); the corrupted one begins in the year 01."""
    sentence, event, century = (rng.choice(data[kind]) for kind in ("sentences", "events", "centuries"))
    year, years = rng.randrange(2, 99), [f"{year:02d}" for year in range(100)]
    slots = {"event": event, "year": f"{century}{years[year]}", "century": str(century)}
    corrupt, words = {"year": f"{century}01"}, {"event": event, "year": years[year]}
    yield _row(sentence, slots, corrupt, {"target": "year"}, years[year + 1 :], years[:year], words)


def _induction(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """A repeated list of names: the answer is the name that came next before. The corrupted list has another there."""
    names = rng.sample(every_name(), 6)
    sentence, n = rng.choice(data["sentences"]), rng.randrange(1, 5)
    return _listed(sentence, " ", names, n, again=" ".join(names[:n]))


def _agreement(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """A verb agrees with its subject, whatever noun stands between (Linzen et al. 2016); in both numbers."""
    subject, other_noun = rng.sample(data["nouns"], 2)
    sentence, where, number = rng.choice(data["sentences"]), rng.choice(data["places"]), rng.randrange(2)
    words = {"subject": subject[0], "other": other_noun[0]}
    for right, wrong in ((0, 1), (1, 0)):
        slots, answers = {"subject": subject[right], "where": where, "other": other_noun[number]}, data["answers"]
        corrupt, relation = {"subject": subject[wrong]}, "same number" if right == number else "other number"
        roles = {"target": "subject"}
        yield _row(sentence, slots, corrupt, roles, answers[right], answers[wrong], words, relation=relation)


def _capitals(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """The capital of a country; the corrupted prompt names another one."""
    (country, city), (other_country, foil) = rng.sample(data["cities"], 2)
    sentence, words = rng.choice(data["sentences"]), {"country": country, "other": other_country}
    slots, corrupt, roles = {"country": country}, {"country": other_country}, {"target": "country"}
    yield _row(sentence, slots, corrupt, roles, [f" {city}"], [f" {foil}"], words)


def _pronouns(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """The pronoun of a name, of either gender; the corrupted prompt has a name of the other gender."""
    names, sentence, genders = templates()["names"], rng.choice(data["sentences"]), ("female", "male")
    words = {gender: rng.choice(names[gender]) for gender in genders}
    for gender, other in (genders, genders[::-1]):
        answers, foils = (data["answers"][genders.index(name)] for name in (gender, other))
        slots, corrupt = {"name": words[gender]}, {"name": words[other]}
        yield _row(sentence, slots, corrupt, {"target": "name"}, answers, foils, words, relation=gender)


def _docstring(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """A list of names, then a sentence about each in the same order (the docstring task of Heimersheim & Janiak 2023).

    The answer is the name that comes next in the list. The corrupted list has another there.
    """
    n, names = rng.randrange(1, 5), rng.sample(every_name(), 6)
    opening, row = rng.choice(data["openings"]), rng.choice(data["rows"])
    things = rng.sample(templates()["ioi"]["things"], n)
    rows = [fill(row, name=name, thing=thing)[0] for name, thing in zip(names, things, strict=False)]
    return _listed(opening, ", ", names, n, " ".join(["", *rows, row.partition(" {name}")[0]]))


def _name_copying(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """The only name of a text comes again; the corrupted text has another name of the same gender. Either way."""
    sentence = rng.choice(data["sentences"])
    names = rng.sample(templates()["names"][rng.choice(("female", "male"))], 2)
    words = {"name": names[0], "other": names[1], "frame": sentence}
    for relation, target, rival in (("one name", *names), ("other name", *names[::-1])):
        slots, answers, foils = {"name": target}, [f" {target}"], [f" {rival}"]
        yield _row(sentence, slots, {"name": rival}, {"target": "name"}, answers, foils, words, relation=relation)


def _letter_case(rng: Random, data: Words) -> Iterator[dict[str, Any]]:
    """A full stop calls for a word with a capital, a comma for one without; either way."""
    sentence, name = rng.choice(data["sentences"]), rng.choice(every_name())
    words, answers = {"name": name, "frame": sentence}, data["answers"]
    for i, (relation, mark, other) in enumerate((("capital", ".", ","), ("small", ",", "."))):
        slots, corrupt = {"name": name, "mark": mark}, {"mark": other}
        yield _row(f"{sentence}{{mark}}", slots, corrupt, {}, answers[i], answers[1 - i], words, relation=relation)


SUITES: dict[str, Callable[[Random, Words], Iterator[dict[str, Any]]]] = {
    "ioi": _ioi, "ioi-abc": partial(_ioi, other_names=True), "greater-than": _greater_than, "induction": _induction,
    "agreement": _agreement, "capitals": _capitals, "pronouns": _pronouns, "docstring": _docstring,
    "name-copying": _name_copying, "letter-case": _letter_case,
}  # fmt: skip


@lru_cache(maxsize=16)
def counterfactual_suite(name: str, n: int, seed: int) -> Suite:
    """About `n` different prompts of a suite in groups that share their words, the same for the same seed.

    A prompt and its counterpart (the other order of names, the other number or gender) are one unit.
    """
    rng, prompts, texts = Random(f"{name} {seed}"), list[Prompt](), set[str]()
    group, repeated, data = -1, 0, templates()[name.removesuffix("-abc")]
    while repeated < MOST:
        group, rows = group + 1, list(SUITES[name](rng, data))
        if texts & {row["text"] for row in rows}:
            repeated += 1
            continue
        repeated = 0
        texts |= {row["text"] for row in rows}
        unit = f"{name}-{seed}-{group:05d}"
        for row in rows:
            order = row.get("order")
            suffix = {"target_first": "first", "target_last": "last"}.get(order or "", row.get("relation", "")).split()
            prompts.append(Prompt(
                id="-".join([unit, *suffix]), category=name, cluster=unit, pair=unit if order else None,
                coherent=row["answers"][len(row["answers"]) // 2], incoherent=row["foils"][len(row["foils"]) // 2],
                **{**row, "roles": {"query": last_word(row["text"]), **row["roles"]}},
            ))  # fmt: skip
        if len(prompts) >= n:
            source = f"streamscope.instruments.prompts.counterfactual.counterfactual_suite({name!r}, {n}, {seed})"
            return Suite(name, tuple(prompts), source)
    raise InputError(f"the suite {name!r} has {len(prompts)} different prompts, not {n}: ask for a smaller n")


def write_pairs(
    path: str | Path, clean: Sequence[str], corrupt: Sequence[str], answers: Sequence[Sequence[str]],
    foils: Sequence[Sequence[str]],
) -> None:  # fmt: skip
    """Write a task of your own, whose name is then `path`. Answers follow the clean texts, foils the corrupted ones."""
    lengths = [len(column) for column in (clean, corrupt, answers, foils)]
    if len(set(lengths)) != 1 or not clean:
        needed = "a task needs as many answers and foils as clean and corrupted texts"
        raise InputError(f"{needed}, got {', '.join(map(str, lengths[:3]))} and {lengths[3]}")
    lines = []
    for a, b, right, wrong in zip(clean, corrupt, answers, foils, strict=True):
        for continuation in (*right, *wrong):
            check_space(a, continuation)
        lines.append(json.dumps({"clean": a, "corrupt": b, "answers": [*right], "foils": [*wrong]}) + "\n")
    write_text(Path(path), "".join(lines))
