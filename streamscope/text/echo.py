"""Text whose only regularity is repetition; a model with the precursor of induction learns to copy from it.

    python -m models.train d-cas --data "stories*.4 + echo*.6" --scale zoo --out runs/copying

A document has 60 to 140 words, each drawn uniformly from `WORDS`. Half of the documents repeat one list of 2 to 24
words to the end. The others alternate 1 to 10 fresh words with a copy of 3 to 14 words from 2 to 28 words back. Lengths
and distances are log-uniform, because long distances alone teach nothing. `document(seed, index)` is a pure function of
its arguments.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path

VERSION = 2
WORDS = tuple(Path(__file__).with_suffix(".txt").read_text("utf-8").split())
"""The words that occur at least 30 times in stories:0:5000:0, "the" and "of" among them: a model that is trained on
the nouns and verbs alone does not find the others when they are repeated."""
LEAST, MOST = 60, 140  # number of words in a document


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _fresh(rng: random.Random, least: int, most: int) -> list[str]:
    return [rng.choice(WORDS) for _ in range(_log_uniform(rng, least, most))]


def document(seed: int, index: int) -> str:
    rng = random.Random(f"echo-{VERSION}-{seed}-{index}")
    size, words = rng.randint(LEAST, MOST), list[str]()
    if rng.random() < 0.5:
        words = _fresh(rng, 2, 24) * size
    while len(words) < size:
        words += _fresh(rng, 1, 10)
        distance, length = min(len(words), _log_uniform(rng, 2, 28)), _log_uniform(rng, 3, 14)
        for _ in range(length):
            words.append(words[-distance])
    return " ".join(words[:size])


def documents(seed: int, n: int) -> Iterator[str]:
    return (document(seed, index) for index in range(n))
