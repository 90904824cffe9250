"""Text that comes back as language repeats itself: roll calls, echoes, refrains, lists that grow.

A block draws `period` words that it then says again, two to eight times, with a few other words between. What the words
are is chance, so nothing but the text before tells how a repeat goes on. Two things are widened by the stage of a
curriculum, 0 to 1: periods from 3 to 10 words up to 3 to 28, the words from the `FIRST` shortest to all of them. With a
BPE of 2,048 entries trained on all stages the longest are 14 and 70 tokens on average (`datasets/stories/README.md`).
"""

from random import Random

from streamscope.text.stories.template import Env, capital, expand, pick
from streamscope.text.stories4.lexicon import ADJECTIVES, CHANTED, CHANTED_RESERVED, TRAINING
from streamscope.text.stories4.text import TEXT

_TEXT = TEXT["repeats"]
FIRST = 256
"""So many words are repeated at stage 0."""
SHORTEST, SHORT, LONG = 3, 10, 28
"""The shortest period, in words, and the longest at stages 0 and 1."""
WORDS = 105
"""A text of repeats ends with the block that reaches so many words."""
SHARES = (0.5, 0.1)
"""Part of the words of the corpus that stands in texts of repeats, at stages 0 and 1."""

SPEAKERS = _TEXT["speakers"]
CALLS = _TEXT["calls"]
AGAINS = _TEXT["agains"]
VERSES = _TEXT["verses"]
JOINTS = _TEXT["joints"]
GROWING = _TEXT["growing"]


def share(stage: float) -> float:
    """The part of the words that stands in texts of repeats: .5 at stage 0, .1 at stage 1, linear between."""
    return SHARES[0] + (SHARES[1] - SHARES[0]) * stage


def longest(stage: float) -> int:
    """The longest period in words: 10 at stage 0, 28 at stage 1."""
    return round(SHORT + (LONG - SHORT) * stage)


def repeated_words(stage: float, held_out: str = "") -> tuple[str, ...]:
    """What may be repeated: 256 words at stage 0, all at stage 1, geometric between; the reserved ones if held out."""
    if held_out == "words":
        return CHANTED_RESERVED
    return CHANTED[: round(FIRST * (len(CHANTED) / FIRST) ** stage)]


def tell(rng: Random, env: Env, stage: float, held_out: str) -> tuple[str, tuple[int, ...]]:
    """A text of blocks, and the period of each in words."""
    words, most = repeated_words(stage, held_out), longest(stage)
    paragraphs: list[str] = []
    periods: list[int] = []
    said = 0
    while said < WORDS:
        period = SHORTEST + int(rng.random() * (most - SHORTEST + 1))
        roll = rng.random()
        if roll < 0.15:
            period = min(period, 10)
            text = _growing(rng, env, rng.sample(words, period))
            said += period * (period + 5) // 2
        else:
            chant = _sentence(rng, words, period) if roll < 0.3 else _list(rng, words, period)
            period = chant.count(" ") + 1
            times = max(2, min(2 + int(rng.random() * 7), WORDS // period))
            text = _block(rng, env, capital(chant), times)
            said += times * (period + 4)
        paragraphs.append(text)
        periods.append(period)
    return "\n\n".join(paragraphs), tuple(periods)


def _block(rng: Random, env: Env, x: str, times: int) -> str:
    """The words said first, and `times` − 1 times again; in a song, with other lines between."""
    song = rng.random() < 0.3
    found = [_line(rng, CALLS, env, x)]
    for _ in range(times - 1):
        if song:
            found.append(_verse(rng, env))
        found.append(_line(rng, AGAINS, env, x))
    return " ".join(found)


def _line(rng: Random, templates: tuple[str, ...], env: Env, x: str) -> str:
    return capital(expand(pick(rng, templates), {**env, "x": x, "who": expand(pick(rng, SPEAKERS), env, rng)}, rng))


def _verse(rng: Random, env: Env) -> str:
    words = {"adj": pick(rng, ADJECTIVES), "noun": pick(rng, TRAINING.animals), "place": pick(rng, TRAINING.places)}
    return expand(pick(rng, VERSES), {**env, **words}, rng)


def _list(rng: Random, words: tuple[str, ...], period: int) -> str:
    """`period` words with nothing, commas or "and" between, which counts as a word."""
    joint = pick(rng, JOINTS)
    return joint.join(rng.sample(words, max(2, (period + 1) // 2) if joint == " and " else period))


def _sentence(rng: Random, words: tuple[str, ...], period: int) -> str:
    """`period` words with the small words of a sentence among them: "the red fox and Anna, the kite and …"."""
    small = ("the", "and", "and the", "of the", "to the", "with")
    out: list[str] = []
    for word in rng.sample(words, period):
        if rng.random() < 0.5:
            out += pick(rng, small).split()
        out.append(word)
    return " ".join(out[:period])


def _growing(rng: Random, env: Env, items: list[str]) -> str:
    """A list that is said again with one more word every time."""
    template = pick(rng, GROWING)
    env = {**env, "place": pick(rng, TRAINING.places)}
    return " ".join(
        capital(expand(template, {**env, "x": " and ".join(items[: i + 1])}, rng)) for i in range(len(items))
    )
