"""Version 4 of the built-in stories: three times the words, reserved words for evaluation, and repeating text.

    python -m streamscope.text.stories --version 4 --n 3 --seed 0         # three stories with their cases marked
    python -m streamscope.text.stories --version 4 --n 20000 --stats      # the table of the data card

`story(seed, index, stage, held_out)` is a pure function of its arguments on every machine. A story is a text of repeats
(`repeats`), with a probability that falls with `stage`, or else has passages with labelled pronouns (`passages`, and
those of version 3), in an evening of tales or between the stages of a plot. See `datasets/stories/README.md`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from streamscope.cli.errors import InputError, unknown
from streamscope.text.stories import MinimalPair, order_pairs, text_and_cases
from streamscope.text.stories import statistics as case_statistics
from streamscope.text.stories import world as story_world
from streamscope.text.stories.cases import Passage
from streamscope.text.stories.template import Env, Label, Story, pick, plain
from streamscope.text.stories4 import passages, repeats
from streamscope.text.stories4.lexicon import RESERVED, TRAINING
from streamscope.text.stories4.passages import HELD_OUT, vocabulary

SAME_KIND = tuple(passages.SAME_KIND)
"""Categories in which two of the same kind compete and only the event decides."""
RELATIONS = SAME_KIND
"""Categories of minimal pairs."""
PLOT = 0.22
"""Share of the stories with a plot, without texts of repeats."""
CHOICES = (
    *3 * ("event", "state", "transfer", "person"), *2 * ("winograd", "spelled"), *story_world.PASSAGES,
)  # fmt: skip
"""Passages to draw from, with their frequencies."""
LENGTHS = (164.5, 163.3)
"""Mean number of words in a text of repeats and in others, to convert shares of words to shares of texts."""


@dataclass(frozen=True)
class Tale(Story):
    """A story of kind "repeats" (with the periods of its blocks in words), "evening" or "plot"."""

    kind: str
    periods: tuple[int, ...] = ()


def _older(name: str) -> Callable[..., Passage]:
    """Wrap a passage of version 3, which has reserved combinations instead of reserved words."""
    make = story_world.PASSAGES[name]

    def passage(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
        return make(rng, env, k, bool(held_out), first, pair)

    return passage


PASSAGES = {**passages.SAME_KIND, **passages.OTHERS, **{name: _older(name) for name in story_world.PASSAGES}}
CATEGORIES = (*SAME_KIND, "winograd", *story_world.PASSAGES)


def check_stage(stage: float) -> float:
    """Return `stage`; raises `InputError` unless it is in 0 … 1."""
    if not 0 <= stage <= 1:
        raise InputError(f"stage {stage} of the stories must lie between 0 (many short repeats) and 1 (few long ones)")
    return stage


def chance_of_repeats(stage: float) -> float:
    """Probability of a text of repeats, for a share `repeats.share` of all words."""
    share = repeats.share(stage)
    return share * LENGTHS[1] / (share * LENGTHS[1] + (1 - share) * LENGTHS[0])


def story(seed: int, index: int, stage: float = 1.0, held_out: str = "") -> Tale:
    """Story `index` of `seed` at a stage of the curriculum, with its labelled cases in order.

    Stage 0 has half of the words in repeats (of 3 to 10 out of 256 words), stage 1 a tenth (of 3 to 28 out of all).
    `held_out` is "" for training, "combinations" or "words" for evaluation. Raises `InputError` for others.
    """
    kind, marked, labels, periods = _tell(seed, index, check_stage(stage), held_out)
    return Tale(*text_and_cases(marked, labels), kind, periods)


def labelled(seed: int, n: int, stage: float = 1.0, held_out: str = "") -> Iterator[Tale]:
    return (story(seed, i, stage, held_out) for i in range(n))


def documents(seed: int, n: int, stage: float = 1.0) -> Iterator[str]:
    """The texts of `labelled`, without resolving cases."""
    check_stage(stage)
    return (plain(_tell(seed, i, stage, "")[1]) for i in range(n))


def _tell(seed: int, index: int, stage: float, held_out: str) -> tuple[str, str, list[Label], tuple[int, ...]]:
    """Kind, marked text, labels and periods of a story."""
    if held_out not in HELD_OUT:
        raise unknown("held_out", held_out, list(HELD_OUT))
    rng = Random(f"stories4 {held_out} {seed} {index}")
    env = cast(rng, held_out)
    if rng.random() < chance_of_repeats(stage):
        text, periods = repeats.tell(rng, env, stage, held_out)
        return "repeats", text, [], periods
    if rng.random() < PLOT:
        return "plot", *_plot(rng, env, held_out), ()
    return "evening", *_evening(rng, env, held_out), ()


def cast(rng: Random, held_out: str) -> dict[str, str]:
    """The cast of version 3, with children's names from all names."""
    words = vocabulary(held_out)
    env = story_world.cast(rng)
    names = {"girl": pick(rng, words.girls), "boy": pick(rng, words.boys)}
    env["h"], env["f"] = names[env["child"]], names[env["child2"]]
    return env


def _evening(rng: Random, env: dict[str, str], held_out: str) -> tuple[str, list[Label]]:
    """Five to seven passages in sequence."""

    def drawn() -> Iterator[str]:
        for _ in range(5 + int(rng.random() * 3)):
            yield pick(rng, CHOICES)

    return story_world.tell_evening(rng, env, held_out, PASSAGES, drawn())


def _plot(rng: Random, env: dict[str, str], held_out: str) -> tuple[str, list[Label]]:
    """A plot of version 3 with passages of all kinds between its stages."""
    return story_world.tell_plot(
        rng, env, held_out, PASSAGES, lambda n: [pick(rng, CHOICES) for _ in range(n)], likes=False
    )


def minimal_pairs(
    seed: int, n: int, *, held_out: str = "words", relations: Sequence[str] = RELATIONS
) -> list[MinimalPair]:
    """`n` distinct pairs (`text.stories.MinimalPair`), the relations in turn: one event told in both orders.

    The orders of an event differ in voice, those of a transfer in the verb (gave to, got from). Raises `InputError` for
    unknown relations or `held_out`.
    """
    if held_out not in HELD_OUT:
        raise unknown("held_out", held_out, list(HELD_OUT))
    for relation in relations:
        if relation not in RELATIONS:
            raise unknown("relation", relation, list(RELATIONS))
    make = {name: partial(_ordered, passages.SAME_KIND[name], held_out) for name in relations}
    return order_pairs(f"pair4 {held_out} {seed}", n, make)


def _ordered(make: Callable[..., Passage], held_out: str, rng: Random, first: bool) -> Passage:
    return make(rng, cast(rng, held_out), "0", held_out, first, True)


def statistics(stories: Sequence[Tale]) -> str:
    """The table of the data card: words, repeats and cases."""
    counts = [len(re.findall(r"\w+", one.text)) for one in stories]
    repeated = [(n, one) for n, one in zip(counts, stories, strict=True) if one.kind == "repeats"]
    periods = [p for _, one in repeated for p in one.periods] or [0]
    cases = [case for one in stories for case in one.cases]
    same = sum(case.category in SAME_KIND for case in cases)
    return "\n".join([
        f"names                {len(TRAINING.names)} in training, {len(RESERVED.names)} reserved",
        f"nouns                {len(TRAINING.nouns)} in training, {len(RESERVED.nouns)} reserved",
        f"words in repeats     {sum(n for n, _ in repeated) / sum(counts):.1%} of all words",
        f"periods              {min(periods)} to {max(periods)} words, mean {sum(periods) / len(periods):.1f}",
        f"same-kind cases      {same / max(1, len(cases)):.1%} of {len(cases)}",
        f"cue before pronoun   {sum(case.cue_before for case in cases) / max(1, len(cases)):.1%}",
        "",
        case_statistics(stories, CATEGORIES),
    ])  # fmt: skip
