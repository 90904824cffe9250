"""Text that repeats itself, in the words of the stories; a model gains by copying from earlier in the text.

One third of the documents are a game in which everyone says one list of words again. One third repeat one list of words
to the end. The others alternate fresh words with a copy of words from 2 to 60 words back. Lengths and distances are
log-uniform from 2 to 60 words, because long distances alone teach nothing.
"""

import math
from random import Random

from streamscope.text.stories.lexicon import BASES, LISTS, NOUNS, TEXT, capital, expand, pick

WORDS = tuple(dict.fromkeys(
    [noun.form for source in ("known", "guests") for nouns in NOUNS[source].values() for noun in nouns]
    + [*BASES, *BASES.values(), *LISTS["places"], *LISTS["goods"], *LISTS["elders"], *LISTS["adjectives"]]
))  # fmt: skip
"""The words that are repeated: nouns, names, habits and places of the stories; no reserved word."""
LEAST, MOST = 60, 140  # number of words in a document
SHORTEST, LONGEST = 2, 60  # periods and distances, in words


def log_uniform(rng: Random, low: int, high: int) -> int:
    return min(high, int(low * math.exp(rng.random() * math.log((high + 1) / low))))


def document(rng: Random) -> str:
    """A document of 60 to 140 words, which may end in the middle of a copy."""
    size, kind = LEAST + int(rng.random() * (MOST - LEAST + 1)), int(rng.random() * 3)
    if kind == 0:
        return _game(rng, size)
    words = list[str]()
    if kind == 1:
        words = _fresh(rng, log_uniform(rng, SHORTEST, LONGEST)) * size
    while len(words) < size:
        words += _fresh(rng, log_uniform(rng, SHORTEST, 12))
        distance, length = min(len(words), log_uniform(rng, SHORTEST, LONGEST)), log_uniform(rng, 3, 24)
        for _ in range(length):
            words.append(words[-distance])
    return " ".join(words[:size])


def _fresh(rng: Random, n: int) -> list[str]:
    return [pick(rng, WORDS) for _ in range(n)]


def _game(rng: Random, size: int) -> str:
    chant = pick(rng, (" ", ", ")).join(_fresh(rng, log_uniform(rng, SHORTEST, 20)))
    people, lines = [noun.form for kind in ("girls", "boys") for noun in NOUNS["known"][kind]], list[str]()
    while len(lines) < 2 or len(" ".join(lines).split()) < size:
        values = {"x": chant, "who": pick(rng, (*people, *LISTS["elders"]))}
        lines.append(capital(expand(pick(rng, TEXT["frame"]["chants"]), values, rng)))
    return " ".join(lines)
