"""Stories in which it pays to know what a pronoun means, the measure of what a text pays, and text that repeats."""

import hashlib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from streamscope.cli.errors import InputError
from streamscope.text import echo, stories
from streamscope.text.corpus import open_corpus
from streamscope.text.stories import CATEGORIES, NOUNS, _parsed, documents, labelled, minimal_pairs, story
from streamscope.text.stories.__main__ import main
from streamscope.text.stories.lexicon import BASES, is_held_out
from streamscope.text.stories.pays import Clue, clues, gain, passages_of_stories
from streamscope.text.stories.repeats import WORDS

ROOT = Path(__file__).resolve().parents[2]
NOUN_OF = {noun.form: noun for kinds in NOUNS.values() for nouns in kinds.values() for noun in nouns}
RESERVED = {noun.form for nouns in NOUNS["reserved"].values() for noun in nouns}
TALES = list(labelled(0, 600))


def words(text):
    return re.findall(r"\w+", text)


def cases(tales):
    return [(one.text, case) for one in tales for case in one.cases]


def at(text, span):
    return text[span.start : span.end]


def test_a_story_is_the_same_in_another_process():
    code = "from streamscope.text.stories import story, documents, minimal_pairs as m; print([repr(story(3, i, h)) for "
    code += "h in ('', 'pairs', 'told', 'words') for i in range(4)], list(documents(0, 30, 0.5)), m(2, 14))"
    out = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": x, "PYTHONPATH": str(ROOT)},
                       capture_output=True, check=True).stdout for x in "01"
    ]  # fmt: skip
    assert out[0] == out[1] and len(out[0]) > 5000
    text = "\n".join(one.text for one in TALES)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "04b9183578198d1e"


@pytest.mark.parametrize("held_out", ["", "pairs", "told", "words"])
def test_the_word_after_a_pronoun_is_the_habit_of_its_antecedent(held_out):
    found = Counter()
    for text, case in cases(labelled(1, 150, held_out)):
        noun = NOUN_OF[at(text, case.antecedent)]
        habit = noun.habit or case.guest_habit
        after = words(text[case.pronoun.end :])
        assert after[0] == habit or after[:2] == ["would", BASES[habit]]
        assert bool(case.guest_habit) == (noun.habit == "") and case.cue.end <= case.pronoun.end
        assert case.antecedent in case.candidates and case.candidates[0].end < case.candidates[1].start
        others = [at(text, span) for span in case.candidates if span != case.antecedent]
        assert not case.guest_habit or {habit, BASES[habit]} & set(words(text[: case.pronoun.start]))
        assert case.guest_habit or NOUN_OF[others[0]].habit != habit
        found[case.category, case.candidates[0] == case.antecedent] += 1
    assert {category for category, _ in found} == set(CATEGORIES)
    first = sum(n for (_, is_first), n in found.items() if is_first) / found.total()
    assert 0.42 < first < 0.58  # the rule "the first" is right half of the time


def test_training_text_has_no_held_out_pair_and_no_reserved_word():
    for text, case in cases(TALES):
        assert not is_held_out(*(NOUN_OF[at(text, span)] for span in case.candidates))
    everything = {word for text in documents(0, 400, 0.3) for word in words(text)}
    assert not RESERVED & {word.lower() for word in everything} and not RESERVED & everything
    for text, case in cases(labelled(2, 60, "pairs")):
        assert is_held_out(*(NOUN_OF[at(text, span)] for span in case.candidates))
    assert {at(text, span) for text, case in cases(labelled(2, 60, "words")) for span in case.candidates} <= RESERVED
    pairs = [(a, b) for a in NOUNS["known"]["girls"] for b in NOUNS["known"]["boys"]]
    assert 0.05 < sum(is_held_out(a, b) for a, b in pairs) / len(pairs) < 0.25
    assert all(is_held_out(a, b) == is_held_out(b, a) for a, b in pairs)


@pytest.mark.parametrize("held_out", ["pairs", "told", "words"])
def test_orders_of_a_minimal_pair_differ_in_nothing_else(held_out, monkeypatch):
    """Nor do a text and its corruption, whose pronoun means the competitor, before the nouns are named."""
    pairs = minimal_pairs(2, 70, held_out)
    assert Counter(pair.first_case.category for pair in pairs) == dict.fromkeys(CATEGORIES, 10)
    for pair in pairs:
        first, nouns = (pair.first, pair.first_corrupt, pair.first_case), set()
        for text, corrupt, case in (first, (pair.last, pair.last_corrupt, pair.last_case)):
            rival = case.candidates[case.candidates[0] == case.antecedent]
            nouns.add((at(text, case.antecedent), at(text, rival)))
            assert case.pronoun.end == len(text) and case.cue.end <= len(text)
            assert (case.antecedent.start < rival.start) == (text == pair.first)
            end = max(case.antecedent.end, rival.end)
            assert text[:end] == corrupt[:end] and text[end:] != corrupt[end:]
            if case.category in ("gender", "anchor", "number"):
                kinds = {"it", "they"} if case.category == "number" else {"he", "she"}
                assert {one.split()[-1].lower() for one in (text, corrupt)} == kinds
        assert at(pair.first, pair.first_case.cue) == at(pair.last, pair.last_case.cue)
        small = {"was", "by", "belonged", "to", "a", "gift", "for", "kept", "in", "the", "lent", "an", "and", "had"}
        difference = set(words(pair.first.lower())) ^ set(words(pair.last.lower()))
        assert case.category in ("possessor-possessed", "agent-patient") or difference <= small
        assert pair.coherent != pair.incoherent and pair.coherent.startswith(" ")
        ((target, competitor),) = nouns
        if held_out == "pairs":
            assert NOUN_OF[target].habit == pair.coherent[1:]
            assert NOUN_OF[competitor].habit == pair.incoherent[1:]
    for i, category in enumerate(CATEGORIES):
        (_, _, meant), (_, _, other) = (_parsed(f"{i}", category, held_out, False, side) for side in (False, True))
        assert meant.habits == other.habits[::-1]
    for call in (lambda: story(0, 0, "unknown"), lambda: minimal_pairs(2, 3, "unknown")):
        with pytest.raises(InputError, match="unknown held_out 'unknown'"):
            call()
    monkeypatch.setattr(stories, "_pair", lambda *_: pairs[0])
    with pytest.raises(InputError, match="only 1 distinct"):
        minimal_pairs(2, 2)


def test_repeats_have_every_period_from_2_to_60_and_the_share_that_is_asked_for():
    periods = Counter()
    for text in documents(4, 500, 1.0):
        found = words(text)
        periods.update(p for p in range(2, 61) if len(found) > p + 3 and found[-4:] == found[-4 - p : -p])
    assert min(periods[p] for p in (2, 3, 4, 6, 12)) > 3 and sum(periods[p] for p in range(30, 61)) > 10
    assert len({word for text in documents(4, 500, 1.0) for word in words(text)} & set(WORDS)) > 0.95 * len(WORDS)
    assert next(open_corpus("stories:0:5").documents()) == story(0, 0).text
    tales = {one.text for one in TALES}
    for share in (0.0, 0.5, 1.0):
        texts = list(open_corpus(f"stories:0:600:{share}").documents())
        repeated = sum(len(words(text)) for text in texts if text not in tales)
        assert repeated / sum(map(len, map(words, texts))) == pytest.approx(share, abs=0.05)


def planted(n, chance, seed=0):
    """Clues whose antecedent, one of 8, tells the next word with this chance; else it is any of 8."""
    rng, rows = Random(seed), []
    for i in range(n):
        noun = rng.randrange(8)
        word = noun if rng.random() < chance else rng.randrange(8)
        rows.append(Clue(("she", rng.choice("xyz")), f"n{noun}", f"w{word}", i // 4))
    return rows


def test_gain_is_the_information_that_was_planted():
    exact, p = math.log(8), 0.5 + 0.5 / 8
    found = gain(planted(20_000, 1.0))
    assert found.nats + found.bias == pytest.approx(exact, abs=0.01) and found.nats == pytest.approx(exact, abs=0.03)
    half = exact + p * math.log(p) + 7 * 0.5 / 8 * math.log(0.5 / 8)
    found = gain(planted(20_000, 0.5))
    assert found.low < half < found.high and found.high - found.low < 0.1
    nothing = gain(planted(2000, 0.0))
    assert nothing.low < 0 < nothing.high and nothing.nats == pytest.approx(0, abs=0.02) and nothing.bias > 0


def test_the_interval_of_few_stories_is_wide_and_one_story_has_none():
    """Of two stories one tells all and one nothing, so they lie as far from their mean as it is from 0."""
    told = [Clue("a", f"n{i % 2}", f"w{i % 2}", 0) for i in range(50)]
    found = gain(told + [Clue("b", "n", "w", 1) for _ in range(50)])
    assert found.high - found.nats == pytest.approx(12.7062 * found.nats)
    assert found.nats == pytest.approx(gain(told).nats / 2, rel=0.05) and math.isnan(gain(told).low)


def test_the_world_pays_in_every_category():
    found = clues(passages_of_stories([*TALES, *labelled(1, 1400)]))
    for category in CATEGORIES:
        found_gain = gain(found["pronoun"][category])  # of 2,000 stories; of 20,000 every gain is above 1.3
        assert found_gain.low > 0.6 and found_gain.nats + found_gain.bias > 1.3
    assert gain(found["repeated noun"]["number"]).low > 0.5 and gain(found["told"]["tool-container"]).low > 1


def test_pays_reads_a_users_labels(tmp_path, capsys):
    path, rows, rng = tmp_path / "own.jsonl", [], Random(0)
    for _ in range(300):
        girl, boy = rng.choice(["Ann", "Bea", "Cleo"]), rng.choice(["Dirk", "Earl"])
        text = f"{girl} met {boy}. She {dict(Ann='sang', Bea='ran', Cleo='hid')[girl]}. All saw {girl}."
        query = [text.index("She"), text.index("She") + 3]
        rows.append({"text": text, "category": "own", "roles": {"query": query, "target": [0, len(girl)]}})
    path.write_text("\n".join(map(json.dumps, rows)))
    main(["--pays", "--labels", str(path)])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| own | 300 |"))
    assert float(line.split("|")[3].split()[0]) == pytest.approx(math.log(3), abs=0.1)
    for roles, more, line in (
        ({"query": [0, 3]}, [], "no prompt with the role 'target'"),
        ({"query": [0, 3], "target": [0, 9]}, [], "own.jsonl:1: role 'target'"),
        ({}, ["--n", "3"], "leave them out"),
    ):
        path.write_text(json.dumps({"text": "She", "category": "x", "roles": roles, "coherent": " hid"}))
        with pytest.raises(InputError, match=line):
            main(["--pays", "--labels", str(path), *more])


def test_command_marks_cases(capsys):
    main(["--n", "2", "--seed", "1", "--held-out", "told"])
    out = capsys.readouterr().out
    assert out.count("--- story") == 2 and re.search(r"\{gender: \w+, told\}|\{[a-z-]+: \w+, told\}", out)


# ---- echo text: what repeats, how far back, and that nothing else is regular -----------------------

ECHOES = [text.split() for text in echo.documents(3, 400)]


def copied(words: list[str]) -> list[int]:
    """Places whose word and the word before stand next to each other at least once within the 60 words before."""
    pairs = [(words[i - 1], words[i]) for i in range(1, len(words))]
    return [i + 1 for i, pair in enumerate(pairs) if pair in pairs[max(0, i - 60) : i]]


def test_most_words_of_echo_text_can_be_copied_and_at_every_distance() -> None:
    share = np.mean([len(copied(words)) / len(words) for words in ECHOES])
    assert 0.5 < share < 0.9
    lists = [words for words in ECHOES if any(words == (words[:n] * 70)[: len(words)] for n in range(1, 61))]
    assert len(lists) == pytest.approx(200, abs=40), "half are lists said again"
    periods = [next(n for n in range(1, 61) if words == (words[:n] * 70)[: len(words)]) for words in lists]
    assert np.median(periods) == pytest.approx((2 * 24) ** 0.5, abs=2), "log-uniform from 2 to 24"


def test_echo_is_a_source_of_training_text() -> None:
    corpus = open_corpus("echo:3:5")
    assert [text.split() for text in corpus.documents()] == ECHOES[:5]
    assert corpus.fingerprint() != open_corpus("echo:4:5").fingerprint() != open_corpus("stories:4:5").fingerprint()
    assert all(re.fullmatch(r"[A-Za-z']+", word) for word in echo.WORDS) and len(set(echo.WORDS)) == len(echo.WORDS)
