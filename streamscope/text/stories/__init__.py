"""Children's stories in which it pays to know what a pronoun means: a planted corpus.

    streamscope stories --n 3                       three stories with their cases marked
    streamscope stories --pays                      what the meaning of a pronoun tells about the next word, in nats

The word after a labelled pronoun is a habit of the noun that is meant: of known nouns one habit in the whole corpus,
of others one that the story tells. So a model gains by attention from the pronoun to its antecedent. This shows that an
architecture can have a phenomenon, not that natural text makes it.

`story(seed, index, held_out)` is a pure function of its arguments, with the same text and labels on every machine.
Training uses seed 0, validation seed 1, evaluation seed 2 with `held_out`. See `datasets/stories/README.md`.
"""

from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from streamscope.cli.errors import InputError, unknown
from streamscope.text.stories import repeats
from streamscope.text.stories.lexicon import LISTS, NOUNS, Span, capital, expand, parse, pick
from streamscope.text.stories.passages import CATEGORIES, FRAME, HELD_OUT, NAMES, Label, draw, passage, two

REPEATS = 0.1  # share of the words of the corpus in texts of repeats, by default
ASIDE = 0.05  # share of the passages without a label
LENGTHS = (102.0, 163.3)
"""Mean number of words in a text of repeats and in a story, to convert shares of words to shares of documents."""
MISSES = 1000  # draws without a new minimal pair after which there are no more
_CHOICES = tuple(name for name, spec in CATEGORIES.items() for _ in range(spec["weight"]))


@dataclass(frozen=True)
class Case:
    """A pronoun with its antecedent, whose habit is the word after the pronoun, or follows "would" in its base form.

    `candidates` are the two nouns, each at its last mention before the pronoun, in the order of the text. The `cue`
    comes before the pronoun or is its form, so a causal model can resolve the case at the pronoun. `guest_habit` is
    the habit if only this story tells it, else "".
    """

    category: str
    relation: str
    pronoun: Span
    antecedent: Span
    candidates: tuple[Span, ...]
    cue: Span
    guest_habit: str


@dataclass(frozen=True)
class Story:
    text: str
    cases: tuple[Case, ...]


def story(seed: int, index: int, held_out: str = "") -> Story:
    """Story `index` of `seed` with its labelled cases in order.

    held_out: "" for training; "pairs": candidates are pairs of known nouns that no training passage has; "told":
    guests, whose habits the story tells; "words": reserved nouns, whose habits it tells.
    """
    rng = Random(f"stories5 {held_out} {seed} {index}")
    env = _cast(rng, held_out)
    paragraphs, labels = [expand(pick(rng, FRAME["openings"]), env, rng)], list[Label]()
    for i in range(4 + int(rng.random() * 6)):
        if rng.random() < ASIDE:
            paragraphs.append(_aside(rng, env))
            continue
        text, new_labels = passage(rng, env, pick(rng, _CHOICES), str(i), held_out)
        paragraphs.append(text)
        labels += new_labels
    paragraphs.append(expand(pick(rng, FRAME["closings"]), env, rng))
    text, spans = parse("\n\n".join(map(capital, paragraphs)))
    cases = [_case(label, spans) for label in labels]
    return Story(text, tuple(sorted(cases, key=lambda case: case.pronoun.start)))


def labelled(seed: int, n: int, held_out: str = "") -> Iterator[Story]:
    return (story(seed, i, held_out) for i in range(n))


def documents(seed: int, n: int, share: float = REPEATS) -> Iterator[str]:
    """The texts of the first `n` stories; some are replaced by texts of repeats, which have `share` (0 … 1) of the
    words."""
    if not 0 <= share <= 1:
        raise InputError(f"the share of repeats is {share:g}: give a number from 0 (only stories) to 1 (only repeats)")
    short, long = LENGTHS
    chance = share * long / (share * long + (1 - share) * short)  # of documents
    for i in range(n):
        rng = Random(f"stories5 repeats {seed} {i}")
        yield repeats.document(rng) if rng.random() < chance else story(seed, i).text


def _cast(rng: Random, held_out: str) -> dict[str, str]:
    """The two children who return through the story, an adult and a place."""
    if held_out not in HELD_OUT:
        raise unknown("held_out", held_out, list(HELD_OUT))
    girl, boy = draw(rng, NAMES, "pairs" if held_out == "pairs" else "", False)
    values = {"elder": pick(rng, LISTS["elders"]), "place": pick(rng, LISTS["places"])}
    children = [("she", girl), ("he", boy)][:: 1 if rng.random() < 0.5 else -1]
    for name, (pronoun, noun) in zip(("hero", "friend"), children, strict=True):
        values |= {name: noun.form, f"{name}_h": noun.habit, f"{name}_p": pronoun}
    return values


def _aside(rng: Random, env: dict[str, str]) -> str:
    animal, things = pick(rng, NOUNS["known"]["animals"]), NOUNS["known"]["things"]
    thing, thing2 = pick(rng, things), pick(rng, things)
    place, place2 = two(rng, LISTS["places"])
    words = {"animal": animal.form, "h": animal.habit, "Name": capital(pick(rng, things).form), "thing": thing.form,
             "thing_h": thing.habit, "thing2": thing2.form, "place": place, "place2": place2}  # fmt: skip
    return expand(pick(rng, FRAME["leads"]), env, rng) + expand(pick(rng, FRAME["asides"]), {**env, **words}, rng)


def _case(label: Label, spans: Sequence[tuple[str, Span]]) -> Case:
    """Spans for the keys of a label; a candidate's span is its last mention before the pronoun."""
    pronoun = next(span for key, span in spans if key == f"q{label.mark}")
    cue = next((span for key, span in spans if key == f"u{label.mark}"), pronoun)
    mentions = {key: span for key, span in spans if span.end <= pronoun.start}
    candidates = sorted((mentions[f"a{label.key}"], mentions[f"b{label.key}"]), key=lambda span: span.start)
    habit = label.habits[0] if label.guests else ""
    return Case(label.category, label.relation, pronoun, mentions[label.target], tuple(candidates), cue, habit)


MinimalPair = namedtuple(
    "MinimalPair",
    ("first", "last", "first_corrupt", "last_corrupt", "first_case", "last_case", "coherent", "incoherent"),
)
"""Two texts that differ only in the order of two nouns: `first` names the target first, `last` last.

Both end with the pronoun. `coherent` is the habit of the target, `incoherent` that of the competitor, each with its
leading space; `first_corrupt` and `last_corrupt` are the texts whose pronoun means the competitor.
"""


def minimal_pairs(seed: int, n: int, held_out: str = "pairs") -> list[MinimalPair]:
    """`n` distinct pairs, the categories in turn; `held_out` as in `story`."""
    pairs, attempt, last, categories = dict[str, MinimalPair](), 0, 0, tuple(CATEGORIES)
    while len(pairs) < n:
        category = categories[len(pairs) % len(categories)]
        pair = _pair(f"stories5 pair {held_out} {seed} {attempt}", category, held_out)
        if pair.first not in pairs:
            pairs[pair.first], last = pair, attempt
        attempt += 1
        if attempt - last > MISSES:
            raise InputError(f"only {len(pairs)} distinct pairs found of {n} wanted; ask for a smaller n")
    return list(pairs.values())


def _parsed(seed: str, category: str, held_out: str, swapped: bool, competitor: bool) -> tuple[str, Any, Label]:
    rng = Random(seed)
    marked, (label,) = passage(rng, _cast(rng, held_out), category, "0", held_out, swapped, competitor)
    return *parse(marked), label


def _pair(seed: str, category: str, held_out: str) -> MinimalPair:
    texts, corrupt, cases = dict[bool, str](), dict[bool, str](), dict[bool, Case]()
    for swapped in (False, True):  # with the same random numbers, so that only the order differs
        text, spans, label = _parsed(seed, category, held_out, swapped, False)
        other_text, other_spans, other_label = _parsed(seed, category, held_out, swapped, True)
        case = _case(label, spans)
        first = case.antecedent == case.candidates[0]
        texts[first], cases[first] = text[: case.pronoun.end], case
        corrupt[first] = other_text[: _case(other_label, other_spans).pronoun.end]
    habits = (f" {habit}" for habit in label.habits)
    return MinimalPair(texts[True], texts[False], corrupt[True], corrupt[False], cases[True], cases[False], *habits)


def marked_text(tale: Story) -> str:
    """The story with its cases marked: candidates [hammer], pronouns it{tool-container: hammer}."""
    inserts: set[tuple[int, str]] = set()
    for case in tale.cases:
        answer = tale.text[case.antecedent.start : case.antecedent.end]
        inserts.add((case.pronoun.end, f"{{{case.category}: {answer}{', told' if case.guest_habit else ''}}}"))
        for span in case.candidates:
            inserts |= {(span.start, "["), (span.end, "]")}
    text = tale.text
    for place, mark in sorted(inserts, reverse=True):
        text = text[:place] + mark + text[place:]
    return text
