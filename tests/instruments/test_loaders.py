"""Readers of published sets: on the real files where they are, on small hand-made ones in the published format."""

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.loaders import (
    FORMATS,
    GAP_COLUMNS,
    blimp,
    gap,
    winobias,
    winogender,
    wsc273,
    wsc285,
)
from streamscope.instruments.prompts.suite import Prompt, Suite, population, units
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.stats.held_out import halves
from streamscope.probes.roles import undecided
from tests.instruments.prompts_by_hand import words_of
from tests.tiny import refused

WINOBIAS = "1 [The developer] argued with the designer because [she] did not like the design.\n"
WSC273 = json.dumps(
    {"qID": "w", "sentence": "The bag beat the box because _ is big.", "option1": "The bag", "option2": "the box",
     "answer": "1"}
)  # fmt: skip
WSC285 = """<?xml version="1.0" encoding="ISO-8859-1"?>
<collection><schema><text><txt1>
The cat saw
the dog because </txt1> <pron> it </pron> <txt2> was big. </txt2></text>
<answers><answer>The cat </answer><answer> the dog</answer></answers><correctAnswer> B. </correctAnswer></schema>
</collection>
"""
WINOGENDER = (
    "sentid\tsentence\n"
    "technician.customer.1.male.txt\tThe technician told the customer that he could pay with cash.\n"
    "technician.someone.0.neutral.txt\tThe technician told someone that they had completed the repair.\n"
    "nurse.patient.0.female.txt\tThe nurse notified the patient that her shift would be ending in an hour.\n"
)
GAP_TEXT = 'Ann "Annie" met Sue Lee. Later she left with Bea.'
GAP = "\t".join(GAP_COLUMNS) + "\n"
GAP += f"g-1\t{GAP_TEXT}\tshe\t31\tAnn\t0\tFALSE\tSue Lee\t16\tTRUE\thttp://e.org/a\n"
GAP += f"g-2\t{GAP_TEXT}\tshe\t31\tAnn\t0\tFALSE\tSue Lee\t16\tFALSE\thttp://e.org/a\n"
GAP += f"g-3\t{GAP_TEXT}\tshe\t31\tAnn\t0\tTRUE\tBea\t45\tFALSE\thttp://e.org/a\n"
BLIMP = json.dumps(
    {"sentence_good": "Ann hurt herself.", "sentence_bad": "Ann hurt himself.", "UID": "u", "pairID": "0"}
)

SAMPLES: dict[str, tuple[Callable[[str | Path], object], str]] = {
    "winobias": (winobias, WINOBIAS), "wsc273": (wsc273, WSC273), "wsc285": (wsc285, WSC285),
    "winogender": (winogender, WINOGENDER), "gap": (gap, GAP), "blimp": (blimp, BLIMP),
}  # fmt: skip


def write(folder: Path, text: str, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def by_id(suite: Suite) -> dict[str, Prompt]:
    return {p.id: p for p in suite.prompts}


def test_files_of_winograd_schemas(shared_data: Path) -> None:
    one = wsc273(shared_data / "eval" / "wsc" / "wsc_square_one.jsonl")
    two = wsc285(shared_data / "eval" / "wsc" / "WSCollection_panda0881.xml")
    for suite, n, least in ((one, 273, 220), (two, 285, 275)):
        assert len(suite.prompts) + len(suite.skipped) == n and len(suite.prompts) > least
    assert not any("_" in p.text for p in one.prompts)
    assert not any("  " in p.text or " ." in p.text for p in two.prompts)
    prompts = by_id(one) | by_id(two)
    for name, target, distractor in (
        ("wsc2", "trophy", "suitcase"), ("wsc3", "suitcase", "trophy"),
        ("wsc285-000", "city councilmen", "demonstrators"), ("wsc285-001", "demonstrators", "city councilmen"),
    ):  # fmt: skip
        found = words_of(prompts[name])
        assert (found["target"], found["distractor"]) == (target, distractor)
    assert prompts["wsc2"].text == "The trophy doesn't fit into the brown suitcase because"
    assert "antecedent and competitor are not named apart" in {why for name, why in one.skipped if name == "wsc27"}


def test_winobias_format(tmp_path: Path) -> None:
    text = WINOBIAS + "2 The guard hated [the construction worker] and told [him] about [his] cook.\n"
    text += "7 The baker and the cook saw [the guard] and [she] smiled at the nurse.\n"
    suite = winobias(write(tmp_path, text, "anti_stereotyped_type1.txt.dev"))
    one, two, three, several = suite.prompts
    assert one.text == "The developer argued with the designer because she did not like the design."
    assert words_of(one) == {"query": "she", "target": "developer", "distractor": "designer"}
    assert (one.id, one.order) == ("anti_stereotyped_type1-1", "target_first")
    assert words_of(two) == {"query": "him", "target": "construction worker", "distractor": "guard"}
    assert words_of(three) == {"query": "his", "target": "construction worker", "distractor": "guard"}
    assert [two.id[-3:], three.id[-3:]] == ["2-1", "2-2"] and two.order == "target_last"
    assert words_of(several) == {"query": "she", "target": "guard", "distractor": "baker", "distractor2": "cook"}


def test_wsc273_format(tmp_path: Path) -> None:
    rows = [
        json.loads(WSC273),
        {"qID": "a", "sentence": "_ ran.", "option1": "A", "option2": "B", "answer": "2"},
        {"qID": "b", "sentence": "Ann ran and _ fell.", "option1": "Ann", "option2": "the moon", "answer": "1"},
        {"qID": "c", "sentence": "I saw Ann, Sue and, so, _ fell.", "option1": "ann", "option2": "Sue", "answer": "2"},
        {"qID": "x", "sentence": "Ann and Sue ran, so Ann met Sue and then _", "option1": "Ann", "option2": "Sue",
         "answer": "1"},
    ]  # fmt: skip
    suite = wsc273(write(tmp_path, "\n".join(map(json.dumps, rows))))
    assert suite.skipped == (
        ("a", "the sentence starts with the blank"),
        ("b", "the competitor is not named before the query"),
    )
    first, last, twice = suite.prompts
    assert (twice.roles["target"], twice.roles["distractor"]) == ((20, 23), (28, 31)), "the last mentions"
    assert first.text == "The bag beat the box because"
    assert words_of(first) == {"query": "because", "target": "bag", "distractor": "box"}
    assert words_of(last) == {"query": "so,", "target": "Sue", "distractor": "Ann"} and last.order == "target_last"


def test_wsc285_format(tmp_path: Path) -> None:
    (prompt,) = wsc285(write(tmp_path, WSC285)).prompts
    assert prompt.text == "The cat saw the dog because it was big."
    assert words_of(prompt) == {"query": "it", "target": "dog", "distractor": "cat"} and prompt.order == "target_last"


def test_winogender_format(tmp_path: Path) -> None:
    suite = winogender(write(tmp_path, WINOGENDER, "all_sentences.tsv"))
    assert [words_of(p) for p in suite.prompts] == [
        {"query": "he", "target": "customer", "distractor": "technician"},
        {"query": "they", "target": "technician", "distractor": "someone"},
        {"query": "her", "target": "nurse", "distractor": "patient"},
    ]
    assert [p.category for p in suite.prompts] == ["winogender-male", "winogender-neutral", "winogender-female"]
    assert suite.prompts[0].id == "technician.customer.1.male"


def test_winogender_cases_of_an_occupation_are_one_unit(tmp_path: Path) -> None:
    """Twelve sentences of an occupation are two templates; participants that occupations share cross them."""
    lines = ["sentid\tsentence"]
    people = (("technician", "customer"), ("cashier", "customer"), ("nurse", "patient"))
    answers = ((1, "could wait"), (0, "was almost done"))
    pronouns = (("male", "he"), ("female", "she"), ("neutral", "they"))
    for (occupation, participant), (answer, rest), (gender, word) in product(people, answers, pronouns):
        for who, mention in ((participant, f"the {participant}"), ("someone", "someone")):
            text = f"The {occupation} told {mention} that {word} {rest}."
            lines.append(f"{occupation}.{who}.{answer}.{gender}.txt\t{text}")
    suite = winogender(write(tmp_path, "\n".join(lines) + "\n", "all_sentences.tsv"))
    labels = units(suite.prompts)
    assert len(labels) == 36 and [len(set(kind)) for kind in zip(*labels, strict=True)] == [3, 5]
    assert {u for u, who in labels if who == "customer"} == {"technician", "cashier"}
    assert len({u for u, who in labels if who.startswith("someone")}) == 3  # "someone" is not one participant of all
    assert read_clusters(labels, 36).count == 3
    assert population(suite.prompts) == "95 % for new words, 5 participant"
    assert undecided(suite.prompts) == {p.id for p in suite.prompts}  # all are the same up to the pronoun
    table = pd.DataFrame({"cluster": pd.Series(labels), "relation": ""})
    with pytest.raises(InputError, match="at least four independent ones, got 3"):
        halves(table, 0)


def test_sentences_about_the_same_people_are_not_independent(tmp_path: Path) -> None:
    lines = [
        "1 [The developer] argued with the designer because [she] did not like the design.",
        "2 The developer argued with [the designer] because [his] idea cannot be implemented.",
        "3 [The developer] called the nurse because [he] was ill.",
    ]
    suite = winobias(write(tmp_path, "\n".join(lines) + "\n", "pro.txt.dev"))
    assert units(suite.prompts) == [
        ("designer / developer", "developer", "designer"),
        ("designer / developer", "designer", "developer"),
        ("developer / nurse", "developer", "nurse"),
    ]
    row = json.loads(WSC273)
    rows = [
        row | {"qID": "a"}, row | {"qID": "b", "sentence": row["sentence"].replace("big", "old"), "answer": "2"},
        row | {"qID": "c", "sentence": "In the box the bag fell and _ tore.", "answer": "1"},
    ]  # fmt: skip
    schemas = wsc273(write(tmp_path, "\n".join(map(json.dumps, rows)) + "\n")).prompts
    assert len(set(units(schemas))) == 1
    assert undecided(schemas) == {"a", "b"}  # the same text to the blank, either answer


def test_gap_format(tmp_path: Path) -> None:
    suite = gap(write(tmp_path, GAP, "gap-validation.tsv"))
    first, third = suite.prompts
    assert words_of(first) == {"query": "she", "target": "Sue Lee", "distractor": "Ann"}
    assert first.text == GAP_TEXT and first.roles["target"] == (16, 23) and first.order == "target_last"
    assert suite.skipped == (("g-2", "neither name is meant"),)
    assert words_of(third) == {"query": "she", "target": "Ann", "distractor": "Bea"}


def test_blimp_format(tmp_path: Path) -> None:
    (pair,) = blimp(write(tmp_path, BLIMP)).pairs
    assert (pair.id, pair.good, pair.bad, pair.category) == ("u-0", "Ann hurt herself.", "Ann hurt himself.", "u")
    plain = winogender(write(tmp_path, WINOGENDER, "a.tsv")).prompts
    path = tmp_path / "b.tsv"  # with the line ends of Windows and a byte order mark
    path.write_bytes(b"\xef\xbb\xbf" + WINOGENDER.replace("\n", "\r\n").encode())
    assert winogender(path).prompts == plain


@pytest.mark.parametrize("given", SAMPLES)
@pytest.mark.parametrize("reader", SAMPLES)
def test_another_format_is_refused_with_file_and_line(tmp_path: Path, reader: str, given: str) -> None:
    read, path = SAMPLES[reader][0], write(tmp_path, SAMPLES[given][1])
    if reader == given:
        read(path)
        return
    with refused(r"^\S*file\.txt:1: expected "):
        read(path)


@pytest.mark.parametrize("reader", SAMPLES)
def test_missing_empty_and_binary_files(tmp_path: Path, reader: str) -> None:
    (binary := tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x9d" * 50)
    for path, line in (
        (tmp_path / "no-file", "no-file is missing: "),
        (write(tmp_path, "\n \n"), r"file\.txt.*(empty|expected)"),
        (binary, "binary"),
    ):
        with pytest.raises(InputError, match=line):
            SAMPLES[reader][0](path)


@pytest.mark.parametrize(
    ("reader", "text", "where"),
    [
        ("winobias", WINOBIAS + "2 The guard [left.\n", ":2: expected a number and a sentence"),
        ("winobias", WINOBIAS + "2 [The guard] and [the cook] left.\n", ":2: expected"),
        ("winobias", WINOBIAS + "\n2 [The guard] left.\n", ":3: expected"),
        ("wsc273", WSC273 + "\n" + WSC273.replace('"1"', '"3"'), ":2: expected one blank .* answer 1 or 2"),
        ("wsc273", WSC273.replace("_", "it"), ":1: expected one blank"),
        ("wsc285", WSC285.replace("B.", "C."), ": schema 1: expected .* A or B, found 'C'"),
        ("wsc285", WSC285.replace("</answers>", ""), ":5: expected an XML collection"),
        ("winogender", WINOGENDER + "nurse.patient.2.female.txt\tThe nurse.\n", ":5: expected an id such as"),
        ("winogender", WINOGENDER + "nurse.patient.1.female.txt\tThe nurse left.\n", ":5: no female pronoun"),
        ("gap", GAP.replace("she\t31\tAnn\t0\tTRUE", "she\t30\tAnn\t0\tTRUE"), ":4: expected Pronoun 'she' at"),
        ("gap", GAP.replace("\tTRUE\thttp", "\tyes\thttp"), ":2: expected 11 columns, and TRUE or FALSE"),
        ("gap", GAP + "g-4\tAnn left.\n", ":5: expected Pronoun '' at character ''"),
        ("gap", GAP + "g-4\n", ":5: expected"),
        ("blimp", BLIMP + "\n" + BLIMP.replace("himself", "herself"), ":2: expected two different sentences"),
        ("blimp", BLIMP.replace("sentence_bad", "bad"), ":1: expected .*'sentence_bad' is missing"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, reader: str, text: str, where: str) -> None:
    with pytest.raises(InputError, match=rf"file\.txt{where}"):
        SAMPLES[reader][0](write(tmp_path, text))


def test_every_reader_of_prompts_has_a_name_for_the_commands(tmp_path: Path) -> None:
    assert set(FORMATS) == set(SAMPLES) - {"blimp"}
    for name, read in FORMATS.items():
        path = write(tmp_path, SAMPLES[name][1])
        assert load_suite(f"{name}:{path}") == read(path)
        assert all(re.fullmatch(r"\S.*\S|\S", text) for p in read(path).prompts for text in words_of(p).values())
