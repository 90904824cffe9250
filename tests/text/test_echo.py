"""Echo text: what repeats, how far back, and that nothing else is regular."""

import re

import numpy as np
import pytest

from streamscope.text import echo
from streamscope.text.corpus import open_corpus

DOCUMENTS = [text.split() for text in echo.documents(3, 400)]


def copied(words: list[str]) -> list[int]:
    """Places whose word and the word before stand next to each other at least once within the 60 words before."""
    pairs = [(words[i - 1], words[i]) for i in range(1, len(words))]
    return [i + 1 for i, pair in enumerate(pairs) if pair in pairs[max(0, i - 60) : i]]


def test_most_words_can_be_copied_and_at_every_distance() -> None:
    share = np.mean([len(copied(words)) / len(words) for words in DOCUMENTS])
    assert 0.5 < share < 0.9
    lists = [words for words in DOCUMENTS if any(words == (words[:n] * 70)[: len(words)] for n in range(1, 61))]
    assert len(lists) == pytest.approx(200, abs=40), "half are lists said again"
    periods = [next(n for n in range(1, 61) if words == (words[:n] * 70)[: len(words)]) for words in lists]
    assert np.median(periods) == pytest.approx((2 * 24) ** 0.5, abs=2), "log-uniform from 2 to 24"


def test_a_source_of_training_text() -> None:
    corpus = open_corpus("echo:3:5")
    assert [text.split() for text in corpus.documents()] == DOCUMENTS[:5]
    assert corpus.fingerprint() != open_corpus("echo:4:5").fingerprint() != open_corpus("stories:4:5").fingerprint()
    assert all(re.fullmatch(r"[A-Za-z']+", word) for word in echo.WORDS) and len(set(echo.WORDS)) == len(echo.WORDS)
