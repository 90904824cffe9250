"""The built-in corpus: its ground truth is exact, its baselines are at chance, its text is well formed."""

import os
import pickle
import re
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamscope.cli.disk import read_toml
from streamscope.cli.errors import InputError
from streamscope.text.stories import (
    CATEGORIES,
    RELATIONS,
    Case,
    Span,
    Story,
    documents,
    is_held_out,
    labelled,
    minimal_pairs,
    story,
)
from streamscope.text.stories.__main__ import main
from streamscope.text.stories.lexicon import WORDS, read_text
from streamscope.text.stories.world import PLOTS

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("tools", "containers", "things", "neutral_things", "animals")
SINGULAR = {noun for kind in KINDS for noun in WORDS[kind]}
NOUNS = {
    *SINGULAR, *(plural for plural, _ in WORDS["animals"].values()), *WORDS["groups"],
    *(s.removeprefix("the ") for s in WORDS["singles"]), *WORDS["girls"], *WORDS["boys"],
}  # fmt: skip


def evaluate(expression: str, hash_seed: str = "0") -> Any:
    """The value of an expression about the generator in a process of its own.

    There it runs without the type checks that tests switch on, which cost seven times its own time.
    """
    code = "import pickle, sys; from streamscope.text.stories import *; "
    code += f"sys.stdout.buffer.write(pickle.dumps({expression}))"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, check=True)
    return pickle.loads(done.stdout)


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return evaluate("list(labelled(0, 4000))")


@pytest.fixture(scope="module")
def held_out() -> list[Story]:
    return evaluate("list(labelled(2, 1000, held_out=True))")


def words(text: str, span: Span) -> str:
    return text[span.start : span.end]


def by_category(stories: list[Story]) -> dict[str, list[tuple[Story, Case]]]:
    table: dict[str, list[tuple[Story, Case]]] = {category: [] for category in CATEGORIES}
    for one in stories:
        for case in one.cases:
            table[case.category].append((one, case))
    return table


def test_a_story_is_a_pure_function_of_seed_and_index(stories: list[Story]) -> None:
    assert story(0, 17) == stories[17]
    assert list(documents(0, 3)) == [s.text for s in stories[:3]]
    assert story(0, 17) != story(1, 17)


def test_the_same_stories_in_processes_with_other_hash_seeds() -> None:
    everything = "(list(labelled(0, 100)), list(labelled(2, 50, held_out=True)), minimal_pairs(0, 30))"
    here = (list(labelled(0, 100)), list(labelled(2, 50, held_out=True)), minimal_pairs(0, 30))
    assert evaluate(everything, "1") == evaluate(everything, "4711") == here


def test_spans_are_the_words_they_name(stories: list[Story]) -> None:
    for one in stories:
        for case in one.cases:
            assert words(one.text, case.pronoun) in {"it", "It", "he", "He", "she", "She", "They"}
            found = [words(one.text, span) for span in case.candidates]
            assert set(found) <= NOUNS and len(set(found)) == len(found)
            assert case.antecedent in case.candidates
            assert list(case.candidates) == sorted(case.candidates, key=lambda s: s.start)
            assert case.candidates[-1].end <= case.pronoun.start
            assert words(one.text, case.antecedent) == case.combination[0].removeprefix("the ")
            assert words(one.text, case.cue)


def test_each_candidate_is_at_its_mention_nearest_before_the_pronoun(stories: list[Story]) -> None:
    for one in stories:
        for case in one.cases:
            for span in case.candidates:
                between = one.text[span.end : case.pronoun.start]
                assert not re.search(rf"\b{words(one.text, span)}\b", between), (between, case)


def test_nothing_else_competes_for_it(stories: list[Story]) -> None:
    """Between the first candidate and "it" no other singular thing or animal is named."""
    for one in stories:
        for case in one.cases:
            if words(one.text, case.pronoun).lower() != "it":
                continue
            passage = one.text[case.candidates[0].start : case.pronoun.start]
            named = {w for w in re.findall(r"\b[a-z]+\b", passage) if w in SINGULAR}
            assert named <= {words(one.text, s) for s in case.candidates}, passage


def test_position_alone_is_at_chance(stories: list[Story]) -> None:
    for category, cases in by_category(stories).items():
        two = [case for _, case in cases if len(case.candidates) == 2]
        assert len(two) >= 2000, category
        recent = sum(case.candidates[-1] == case.antecedent for case in two) / len(two)
        assert 0.45 <= recent <= 0.55, (category, recent)  # the first mention is the complement
        relations = Counter(case.relation for case in two)
        assert max(relations.values()) / len(two) <= 0.62, (category, relations)
        three = [case for _, case in cases if len(case.candidates) == 3]
        for place in range(3 if three else 0):
            share = sum(case.candidates[place] == case.antecedent for case in three) / len(three)
            assert 0.2 <= share <= 0.5, (category, place, share)


def test_position_is_at_chance_at_every_distance(stories: list[Story]) -> None:
    for category, cases in by_category(stories).items():
        near: list[bool] = []
        far: list[bool] = []
        for one, case in cases:
            gap = one.text[case.candidates[-1].end : case.pronoun.start].count(".")
            (far if gap >= 2 else near).append(case.candidates[-1] == case.antecedent)
        for group in (near, far):
            if len(group) > 300:
                assert 0.4 <= sum(group) / len(group) <= 0.58, category


def test_most_cases_are_settled_at_the_pronoun(stories: list[Story]) -> None:
    for category, cases in by_category(stories).items():
        share = sum(case.cue_before for _, case in cases) / len(cases)
        assert share == 1.0 or (category == "agent-patient" and share > 0.7)


def test_held_out_combinations_are_disjoint(stories: list[Story], held_out: list[Story]) -> None:
    train = {(c.category, c.combination) for s in stories for c in s.cases}
    evaluation = {(c.category, c.combination) for s in held_out for c in s.cases}
    assert not any(is_held_out(*key) for key in train)
    assert all(is_held_out(*key) for key in evaluation) and len(evaluation) > 500
    assert not train & evaluation
    possible = [(t, c, use) for t, uses in WORDS["tools"].items() for c in WORDS["containers"] for use in uses]
    share = sum(is_held_out("tool-container", key) for key in possible) / len(possible)
    assert 0.07 <= share <= 0.13
    assert all(len(cases) > 300 for cases in by_category(held_out).values())


def test_text_is_well_formed(stories: list[Story], held_out: list[Story]) -> None:
    for text in (s.text for s in (*stories, *held_out)):
        assert "  " not in text and text == text.strip() and not re.search(r"[\[\]{}<>|^#]", text), text
        for paragraph in text.split("\n\n"):
            assert paragraph and paragraph.count('"') % 2 == 0, paragraph
            assert re.fullmatch(r'["A-Z].*[.!?"]', paragraph), paragraph
        assert not re.search(r"\ba (?:[aeio](?!ne\b)|u(?!ni|se))|\ban [^aeiouh]", text, re.IGNORECASE), text
        assert not re.search(r"(?<!Mr)(?<!Mrs)[.!?] [a-z]", text), text
        assert not re.search(r"\b(\w+) \1\b", text), text
        assert 40 <= len(text.split()) <= 280


def test_the_corpus_is_rich(stories: list[Story]) -> None:
    texts = [s.text for s in stories[:5000]]
    assert len(set(texts)) / len(texts) > 0.999
    assert len({w for t in texts for w in re.findall(r"[a-z]+", t.lower())}) >= 600
    assert sum(len(s.cases) for s in stories) / len(stories) >= 1.5
    assert len({plot.name for plot in PLOTS}) == len(PLOTS) >= 12
    raw = "\n".join(texts).encode()
    assert len(zlib.compress(raw, 9)) / len(raw) > 0.2  # a grammar of few templates falls far below


def test_facts_told_early_come_back(stories: list[Story]) -> None:
    """A colored thing given in the opening is named in the last paragraph too."""
    told = back = 0
    for text in (s.text for s in stories):
        opening, *_, closing = text.split("\n\n")
        for color, thing in re.findall(r"(?:given \w+ an?|liked the|had an?) (\w+) (\w+)\b", opening):
            if thing in WORDS["things"]:
                told += 1
                back += f"{color} {thing}" in closing
    assert told > 100 and back / told > 0.9


@pytest.mark.parametrize("reserved", [True, False])
def test_minimal_pairs_differ_only_in_the_order_of_two_nouns(reserved: bool) -> None:
    pairs = minimal_pairs(0, 400, held_out=reserved, relations=(*RELATIONS, "gender"))
    assert Counter(p.category for p in pairs) == dict.fromkeys((*RELATIONS, "gender"), 100)
    assert len({p.first for p in pairs}) == 400
    for pair in pairs:
        assert is_held_out(pair.category, pair.combination) == reserved
        assert {pair.coherent, pair.incoherent} == {pair.target, pair.competitor}
        f, g = pair.first_spans, pair.last_spans
        for text, spans in ((pair.first, f), (pair.last, g)):
            assert words(text, spans.target) == pair.target
            assert words(text, spans.competitor) == pair.competitor
            assert words(text, spans.query).lower() in {"it", "he", "she"}
            assert spans.cue.end <= spans.query.end and not text.endswith(" ")
        assert f.target.end < f.competitor.start < f.query.start
        assert g.competitor.end < g.target.start < g.query.start
        assert pair.first[f.query.start :] == pair.last[g.query.start :]
        swap = {pair.target: "X", pair.competitor: "X"}
        bare = [
            [swap.get(w, w) for w in re.findall(r"\w+", re.sub(r"\b([Aa])n\b", r"\1", t))]
            for t in (pair.first, pair.last)
        ]
        assert bare[0] == bare[1]


def test_minimal_pairs_reach_the_suites_size_and_refuse_number() -> None:
    assert evaluate("len(minimal_pairs(1, 1200))") == 1200
    with pytest.raises(ValueError, match="number"):
        minimal_pairs(0, 1, relations=("number",))


def test_the_command_prints_stories_and_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--n", "2", "--seed", "0"])
    assert "--- story 1 of seed 0 ---" in capsys.readouterr().out
    main(["--n", "200", "--stats"])
    out = capsys.readouterr().out
    assert "zlib ratio" in out and all(category in out for category in CATEGORIES)
    main(["--n", "1", "--seed", "2", "--held-out", "combinations"])
    assert story(2, 0, held_out=True).text[:40] in capsys.readouterr().out.replace("[", "").replace("]", "")
    with pytest.raises(InputError, match="^--held-out words needs --version 4"):
        main(["--held-out", "words"])


def test_the_command_refuses_a_number_of_stories_below_one() -> None:
    from streamscope.cli.errors import InputError

    with pytest.raises(InputError, match="^--n must be at least 1, got 0$"):
        main(["--n", "0"])


def test_a_damaged_lexicon_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.toml").write_text('[words]\ngirls = ["Lily"')
    with pytest.raises(InputError, match="cannot be read .*; restore it"):
        read_text(tmp_path / "text.toml")


def test_words_of_the_file_reach_the_generator() -> None:
    path = ROOT / "streamscope/text/stories/text.toml"
    assert read_toml(path, dict[str, object])["words"]["girls"] == list(WORDS["girls"])
    assert read_toml(path, dict[str, object])["plots"][0]["places"] == ["outside"] and "the park" in PLOTS[0].places
