"""What a story of version 4 is made of, its minimal pairs and its statistics."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from streamscope.cli.errors import InputError, unknown
from streamscope.text.stories import MinimalPair, order_pairs
from streamscope.text.stories import statistics as case_statistics
from streamscope.text.stories import world as story_world
from streamscope.text.stories.cases import Passage
from streamscope.text.stories.template import Env, Label, Story, expand, parse, pick, plain, resolve
from streamscope.text.stories4 import passages, repeats
from streamscope.text.stories4.lexicon import RESERVED, TRAINING
from streamscope.text.stories4.passages import HELD_OUT, vocabulary

VERSION = 4
"""Raised whenever the same (seed, index, stage) gives another story."""
SAME_KIND = tuple(passages.SAME_KIND)
"""Categories in which two of one kind compete and only what happened decides."""
RELATIONS = SAME_KIND
"""What minimal pairs are made from."""
PLOT = 0.22
"""Part of the stories, without texts of repeats, that have a plot."""
CHOICES = (
    *3 * ("event", "state", "transfer", "person"), *2 * ("winograd", "spelled"), *story_world.PASSAGES,
)  # fmt: skip
"""What passages are drawn from, with these frequencies."""
LENGTHS = (164.5, 163.3)
"""Mean words of a text of repeats and of any other: from a share of the words to one of the texts."""


@dataclass(frozen=True)
class Tale(Story):
    """A story, and of what kind: "repeats" (with the periods of its blocks, in words), "evening" or "plot"."""

    kind: str
    periods: tuple[int, ...] = ()


def _older(name: str) -> Callable[..., Passage | None]:
    """A passage of version 3, whose reserved combinations stand in for reserved words: it has none."""
    make = story_world.PASSAGES[name]

    def passage(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage | None:
        return make(rng, env, k, bool(held_out), first, pair)

    return passage


PASSAGES = {**passages.SAME_KIND, **passages.OTHERS, **{name: _older(name) for name in story_world.PASSAGES}}
CATEGORIES = (*SAME_KIND, "winograd", *story_world.PASSAGES)


def check_stage(stage: float) -> float:
    """`stage`, if it lies in 0 … 1. Raises `InputError` otherwise."""
    if not 0 <= stage <= 1:
        raise InputError(f"stage {stage} of the stories must lie between 0 (many short repeats) and 1 (few long ones)")
    return stage


def chance_of_repeats(stage: float) -> float:
    """Of a story to be a text of repeats, so that `repeats.share` of all words stand in such texts."""
    share = repeats.share(stage)
    return share * LENGTHS[1] / (share * LENGTHS[1] + (1 - share) * LENGTHS[0])


def story(seed: int, index: int, stage: float = 1.0, held_out: str = "") -> Tale:
    """Story `index` of the stream `seed` at a stage of the curriculum, with its labelled cases in order.

    Args:
        stage: 0 (half of the words in repeats, of 3 to 10 words out of 256) to 1 (a tenth, of 3 to 28 out of all).
        held_out: "" for training; "combinations" or "words" for evaluation alone (`passages.HELD_OUT`).

    Raises:
        InputError: a stage outside 0 … 1, another `held_out`.
    """
    kind, marked, labels, periods = _tell(seed, index, check_stage(stage), held_out)
    text, spans = parse(marked)
    cases = sorted((resolve(label, spans) for label in labels), key=lambda case: case.pronoun.start)
    return Tale(text, tuple(cases), kind, periods)


def labelled(seed: int, n: int, stage: float = 1.0, held_out: str = "") -> Iterator[Tale]:
    return (story(seed, i, stage, held_out) for i in range(n))


def documents(seed: int, n: int, stage: float = 1.0) -> Iterator[str]:
    """The texts of `labelled`, without finding where the cases are."""
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
    """The cast of the older stories, with children's names out of all."""
    found = vocabulary(held_out)
    env = story_world.cast(rng)
    names = {"girl": pick(rng, found.girls), "boy": pick(rng, found.boys)}
    env["h"], env["f"] = names[env["child"]], names[env["child2"]]
    return env


def _evening(rng: Random, env: dict[str, str], held_out: str) -> tuple[str, list[Label]]:
    """Five to seven passages one after the other."""
    paragraphs = [expand(pick(rng, story_world.EVENINGS), env, rng)]
    labels: list[Label] = []
    for k in range(5 + int(rng.random() * 3)):
        passage = PASSAGES[pick(rng, CHOICES)](rng, env, str(k), held_out, rng.random() < 0.5, False)
        if passage is not None:
            paragraphs.append(story_world.lead(rng, env, passage[0], passage[2]))
            labels += passage[1]
    return "\n\n".join([*paragraphs, expand(pick(rng, story_world.NIGHTS), env, rng)]), labels


def _plot(rng: Random, env: dict[str, str], held_out: str) -> tuple[str, list[Label]]:
    """A plot of the older stories with passages of all kinds between its stages."""
    return story_world.plotted(
        rng, env, held_out, PASSAGES, lambda n: [pick(rng, CHOICES) for _ in range(n)], likes=False
    )


def minimal_pairs(
    seed: int, n: int, *, held_out: str = "words", relations: Sequence[str] = RELATIONS
) -> list[MinimalPair]:
    """`n` distinct pairs (`text.stories.MinimalPair`), the relations in turn: one happening told in both orders.

    With an event the orders differ in voice, with a transfer in the verb (gave to, got from).

    Raises:
        InputError: unknown relations or `held_out`.
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
    """The table of the data card: words, repeats, and the tables of the cases."""
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
