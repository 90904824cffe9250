"""Suites of clean and corrupted prompts with answers and foils, put together from templates.

    load_suite("ioi", n=100)

Every prompt has a corrupted text of the same form in which the foils are right, so that patching
(`interventions.patch`) has two runs to compare. The words are in `datasets/counterfactual/templates.toml`; the card
next to it says what each suite asks, where it comes from and where it fails.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.suite import Prompt, Suite, check_space, last_word, order_of
from streamscope.rooms import folder_of

N = 200  # default number of prompts of a suite
MOST = 2000  # repetitions in a row after which no new prompt is expected
Spans = dict[str, tuple[int, int]]


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
    """The names of both genders."""
    return [*templates()["names"]["female"], *templates()["names"]["male"]]


def _listed(
    sentence: str, joint: str, names: list[str], n: int, tail: str = "", **words: str
) -> Iterator[dict[str, Any]]:
    """A prompt with a list of names whose answer is name n; the corrupted list has the last name there."""
    target, rival = names[n], names[-1]
    text, spans = fill(sentence, list=joint.join(names), **words)
    corrupt = fill(sentence, list=joint.join([*names[:n], rival, *names[n + 1 : -1], target]), **words)[0]
    begin, end = spans["list"][0] + len(joint.join([*names[:n], ""])), spans["list"][1]
    yield {
        "text": text + tail, "corrupt": corrupt + tail,
        "roles": {"target": (begin, begin + len(target)), "distractor": (end - len(rival), end)},
        "answers": (f" {target}",), "foils": (f" {rival}",), "words": {"target": target, "competitor": rival},
    }  # fmt: skip


def _ioi(rng: Random, other_names: bool) -> Iterator[dict[str, Any]]:
    """Indirect object identification (Wang et al. 2022): both orders of two names, of which one is repeated."""
    data = templates()["ioi"]
    target, rival, *more = rng.sample(every_name(), 5)
    sentence, place, thing = (rng.choice(data[kind]) for kind in ("sentences", "places", "things"))
    for first, second in ((target, rival), (rival, target)):
        text, spans = fill(sentence, first=first, second=second, again=rival, place=place, thing=thing)
        if other_names:
            names_of = dict(zip(("first", "second", "again"), more, strict=True))
        else:
            names_of = {"first": first, "second": second, "again": target}
        roles = {"target": spans["first" if first == target else "second"]}
        roles["distractor"] = spans["second" if first == target else "first"]
        yield {
            "text": text, "corrupt": fill(sentence, **names_of, place=place, thing=thing)[0], "roles": roles,
            "answers": (f" {target}",), "foils": (f" {rival}",), "order": order_of(roles),
            "words": {"target": target, "competitor": rival, "frame": sentence},
        }  # fmt: skip


def _greater_than(rng: Random) -> Iterator[dict[str, Any]]:
    """A span of years ends after it begins (Hanna et al. 2023); the corrupted one begins in the year 01."""
    data = templates()["greater-than"]
    sentence, event, century = (rng.choice(data[kind]) for kind in ("sentences", "events", "centuries"))
    year = rng.randrange(2, 99)
    text, spans = fill(sentence, event=event, year=f"{century}{year:02d}", century=str(century))
    corrupt = fill(sentence, event=event, year=f"{century}01", century=str(century))[0]
    start, end = spans["year"]
    yield {
        "text": text, "corrupt": corrupt, "roles": {"target": (start, end)},
        "answers": tuple(f"{later:02d}" for later in range(year + 1, 100)),
        "foils": tuple(f"{earlier:02d}" for earlier in range(year)), "words": {"event": event, "year": f"{year:02d}"},
    }  # fmt: skip


def _induction(rng: Random) -> Iterator[dict[str, Any]]:
    """A repeated list of names: the answer is the name that came next before. The corrupted list has another there."""
    names = rng.sample(every_name(), 6)
    sentence, n = rng.choice(templates()["induction"]["sentences"]), rng.randrange(1, 5)
    return _listed(sentence, " ", names, n, again=" ".join(names[:n]))


def _agreement(rng: Random) -> Iterator[dict[str, Any]]:
    """A verb agrees with its subject, whatever noun stands between (Linzen et al. 2016); in both numbers."""
    data = templates()["agreement"]
    subject, other_noun = rng.sample(data["nouns"], 2)
    sentence, where, number = rng.choice(data["sentences"]), rng.choice(data["places"]), rng.randrange(2)
    for right in (0, 1):
        texts = [fill(sentence, subject=subject[i], where=where, other=other_noun[number]) for i in (right, 1 - right)]
        yield {
            "text": texts[0][0], "corrupt": texts[1][0], "roles": {"target": texts[0][1]["subject"]},
            "relation": "same number" if right == number else "other number",
            "answers": tuple(data["answers"][right]), "foils": tuple(data["answers"][1 - right]),
            "words": {"subject": subject[0], "other": other_noun[0]},
        }  # fmt: skip


def _capitals(rng: Random) -> Iterator[dict[str, Any]]:
    """The capital of a country; the corrupted prompt names another one."""
    data = templates()["capitals"]
    (country, city), (other_country, foil) = rng.sample(data["cities"], 2)
    sentence = rng.choice(data["sentences"])
    text, spans = fill(sentence, country=country)
    yield {
        "text": text, "corrupt": fill(sentence, country=other_country)[0], "roles": {"target": spans["country"]},
        "answers": (f" {city}",), "foils": (f" {foil}",), "words": {"country": country, "other": other_country},
    }  # fmt: skip


def _pronouns(rng: Random) -> Iterator[dict[str, Any]]:
    """The pronoun of a name, of either gender; the corrupted prompt has a name of the other gender."""
    data, names = templates()["pronouns"], templates()["names"]
    sentence, name_pair = rng.choice(data["sentences"]), [rng.choice(names["female"]), rng.choice(names["male"])]
    for gender in (0, 1):
        text, spans = fill(sentence, name=name_pair[gender])
        yield {
            "text": text, "corrupt": fill(sentence, name=name_pair[1 - gender])[0], "roles": {"target": spans["name"]},
            "relation": ("female", "male")[gender], "answers": tuple(data["answers"][gender]),
            "foils": tuple(data["answers"][1 - gender]), "words": {"female": name_pair[0], "male": name_pair[1]},
        }  # fmt: skip


def _docstring(rng: Random) -> Iterator[dict[str, Any]]:
    """A list of names, then a sentence about each in the same order (the docstring task of Heimersheim & Janiak 2023).

    The answer is the name that comes next in the list. The corrupted list has another there.
    """
    data, n = templates()["docstring"], rng.randrange(1, 5)
    names = rng.sample(every_name(), 6)
    opening, row = rng.choice(data["openings"]), rng.choice(data["rows"])
    things = rng.sample(templates()["ioi"]["things"], n)
    rows = [fill(row, name=name, thing=thing)[0] for name, thing in zip(names, things, strict=False)]
    return _listed(opening, ", ", names, n, " ".join(["", *rows, row.partition(" {name}")[0]]))


def _name_copying(rng: Random) -> Iterator[dict[str, Any]]:
    """The only name of a text comes again; the corrupted text has another name of the same gender. Either way."""
    sentence = rng.choice(templates()["name-copying"]["sentences"])
    name_pair = rng.sample(templates()["names"][rng.choice(("female", "male"))], 2)
    for i, (target, rival) in enumerate((name_pair, name_pair[::-1])):
        text, spans = fill(sentence, name=target)
        yield {
            "text": text, "corrupt": fill(sentence, name=rival)[0], "roles": {"target": spans["name"]},
            "relation": ("one name", "other name")[i], "answers": (f" {target}",), "foils": (f" {rival}",),
            "words": {"name": name_pair[0], "other": name_pair[1], "frame": sentence},
        }  # fmt: skip


def _letter_case(rng: Random) -> Iterator[dict[str, Any]]:
    """A full stop calls for a word with a capital, a comma for one without; either way."""
    data = templates()["letter-case"]
    sentence, name = rng.choice(data["sentences"]), rng.choice(every_name())
    text, _ = fill(sentence, name=name)
    for i, (mark, other_mark) in enumerate(((".", ","), (",", "."))):
        yield {
            "text": text + mark, "corrupt": text + other_mark, "roles": {}, "relation": ("capital", "small")[i],
            "answers": tuple(data["answers"][i]), "foils": tuple(data["answers"][1 - i]),
            "words": {"name": name, "frame": sentence},
        }  # fmt: skip


SUITES: dict[str, Callable[[Random], Iterator[dict[str, Any]]]] = {
    "ioi": partial(_ioi, other_names=False),
    "ioi-abc": partial(_ioi, other_names=True),
    "greater-than": _greater_than,
    "induction": _induction,
    "agreement": _agreement,
    "capitals": _capitals,
    "pronouns": _pronouns,
    "docstring": _docstring,
    "name-copying": _name_copying,
    "letter-case": _letter_case,
}


def counterfactual_suite(name: str, n: int = N, seed: int = 2) -> Suite:
    """About `n` different prompts of a suite in groups that share their words, the same for the same seed.

    A prompt and its counterpart (the other order of names, the other number or gender) are one unit.
    """
    rng, prompts, texts = Random(f"{name} {seed}"), list[Prompt](), set[str]()
    group, repeated = -1, 0
    while repeated < MOST:
        group, rows = group + 1, list(SUITES[name](rng))
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
