"""Text whose only regularity is repetition; a model with the precursor of induction learns to copy from it.

    python -m models.train std-t --start stories/std-t-rope --data "stories*.8 + echo*.2" --scale zoo --out runs/copying

A document has 60 to 140 words, each drawn uniformly from `WORDS`; one in ten is a fragment instead: one to three
letters, a number or a mark. Half of the documents repeat one list of words to the end. The others alternate 1 to 12
fresh words with a copy of 3 to 24 words from 2 to 60 words back. Lengths and distances are log-uniform, because long
distances alone teach nothing. `document(seed, index)` is a pure function of its arguments.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path

VERSION = 1
WORDS = tuple(Path(__file__).with_suffix(".txt").read_text("utf-8").split())
"""The 4,130 words that occur at least 30 times in stories:10:60000, stories4:10:20000:0 and stories4:11:20000:.5."""
LETTERS, MARKS = "abcdefghijklmnopqrstuvwxyz", ".,!?:;-\"'()"
LEAST, MOST = 60, 140
"""Number of words in a document."""


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    """Draw an integer from `low` to `high` with a uniform logarithm."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def fresh_words(rng: random.Random, n: int) -> list[str]:
    """Draw n words independently."""
    fragments = (
        lambda: "".join(rng.choices(LETTERS, k=rng.randint(1, 3))),
        lambda: str(rng.randrange(1000)),
        lambda: rng.choice(MARKS),
    )
    return [fragments[rng.randrange(3)]() if rng.random() < 0.1 else rng.choice(WORDS) for _ in range(n)]


def document(seed: int, index: int) -> str:
    """Document number `index` of `seed`."""
    rng = random.Random(f"echo-{VERSION}-{seed}-{index}")
    size, words = rng.randint(LEAST, MOST), list[str]()
    if rng.random() < 0.5:
        again = fresh_words(rng, log_uniform(rng, 2, 60))
        words = again * math.ceil(size / len(again))
    while len(words) < size:
        words += fresh_words(rng, log_uniform(rng, 1, 12))
        distance, length = min(len(words), log_uniform(rng, 2, 60)), log_uniform(rng, 3, 24)
        for _ in range(length):
            words.append(words[-distance])
    return " ".join(words[:size])


def documents(seed: int, n: int) -> Iterator[str]:
    """The first n documents of `seed`."""
    return (document(seed, index) for index in range(n))
