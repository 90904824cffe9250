"""Text that repeats, as in language: roll calls, echoes, refrains, growing lists.

A block draws `period` random words and repeats them two to eight times, with a few other words in between. So only the
earlier text predicts how a repeat continues. The stage of a curriculum, 0 to 1, extends the periods (from 3 to 10 words
up to 3 to 28) and the vocabulary (from the `FIRST` shortest words to all). With a BPE of 2,048 entries trained on all
stages, the longest periods are 14 and 70 tokens on average (`datasets/stories/README.md`).
"""

from random import Random

from streamscope.text.stories.template import Env, capital, expand, pick
from streamscope.text.stories4.lexicon import ADJECTIVES, CHANTED, CHANTED_RESERVED, TEXT, TRAINING

_TEXT = TEXT["repeats"]
FIRST = 256
"""Number of words that are repeated at stage 0."""
SHORTEST, SHORT, LONG = 3, 10, 28
"""The shortest period, in words, and the longest at stages 0 and 1."""
WORDS = 105
"""A text of repeats ends with the block that reaches this number of words."""
SHARES = (0.5, 0.1)
"""Share of the corpus' words in texts of repeats, at stages 0 and 1."""


def share(stage: float) -> float:
    """Share of the words in texts of repeats: .5 at stage 0, .1 at stage 1, linear in between."""
    return SHARES[0] + (SHARES[1] - SHARES[0]) * stage


def longest(stage: float) -> int:
    """The longest period in words: 10 at stage 0, 28 at stage 1."""
    return round(SHORT + (LONG - SHORT) * stage)


def repeated_words(stage: float, held_out: str = "") -> tuple[str, ...]:
    """Words that may be repeated: 256 at stage 0, all at stage 1, geometric in between; or the reserved words."""
    if held_out == "words":
        return CHANTED_RESERVED
    return CHANTED[: round(FIRST * (len(CHANTED) / FIRST) ** stage)]


def tell(rng: Random, env: Env, stage: float, held_out: str) -> tuple[str, tuple[int, ...]]:
    """(text of blocks, period of each in words)."""
    words, most = repeated_words(stage, held_out), longest(stage)
    paragraphs: list[str] = []
    periods: list[int] = []
    n_words = 0
    while n_words < WORDS:
        period = SHORTEST + int(rng.random() * (most - SHORTEST + 1))
        roll = rng.random()
        if roll < 0.15:
            period = min(period, 10)
            text = _growing(rng, env, rng.sample(words, period))
            n_words += period * (period + 5) // 2
        else:
            chant = _sentence(rng, words, period) if roll < 0.3 else _list(rng, words, period)
            period = chant.count(" ") + 1
            times = max(2, min(2 + int(rng.random() * 7), WORDS // period))
            text = _block(rng, env, capital(chant), times)
            n_words += times * (period + 4)
        paragraphs.append(text)
        periods.append(period)
    return "\n\n".join(paragraphs), tuple(periods)


def _block(rng: Random, env: Env, x: str, times: int) -> str:
    """The words, repeated `times` − 1 times; in a song with other lines in between."""
    song = rng.random() < 0.3
    lines = [_line(rng, _TEXT["calls"], env, x)]
    for _ in range(times - 1):
        if song:
            lines.append(_verse(rng, env))
        lines.append(_line(rng, _TEXT["agains"], env, x))
    return " ".join(lines)


def _line(rng: Random, templates: tuple[str, ...], env: Env, x: str) -> str:
    return capital(
        expand(pick(rng, templates), {**env, "x": x, "who": expand(pick(rng, _TEXT["speakers"]), env, rng)}, rng)
    )


def _verse(rng: Random, env: Env) -> str:
    words = {"adj": pick(rng, ADJECTIVES), "noun": pick(rng, TRAINING.animals), "place": pick(rng, TRAINING.places)}
    return expand(pick(rng, _TEXT["verses"]), {**env, **words}, rng)


def _list(rng: Random, words: tuple[str, ...], period: int) -> str:
    """`period` words joined by spaces, commas or "and", which counts as a word."""
    joint = pick(rng, _TEXT["joints"])
    return joint.join(rng.sample(words, max(2, (period + 1) // 2) if joint == " and " else period))


def _sentence(rng: Random, words: tuple[str, ...], period: int) -> str:
    """`period` words including function words: "the red fox and Anna, the kite and …"."""
    small = ("the", "and", "and the", "of the", "to the", "with")
    out: list[str] = []
    for word in rng.sample(words, period):
        if rng.random() < 0.5:
            out += pick(rng, small).split()
        out.append(word)
    return " ".join(out[:period])


def _growing(rng: Random, env: Env, items: list[str]) -> str:
    """A list that is repeated with one more word each time."""
    template = pick(rng, _TEXT["growing"])
    env = {**env, "place": pick(rng, TRAINING.places)}
    return " ".join(
        capital(expand(template, {**env, "x": " and ".join(items[: i + 1])}, rng)) for i in range(len(items))
    )
