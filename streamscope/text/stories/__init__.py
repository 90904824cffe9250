"""The built-in corpus: children's stories in which every labelled pronoun has a known antecedent.

    python -m streamscope.text.stories --n 3 --seed 0          # three stories with their cases marked
    python -m streamscope.text.stories --n 20000 --stats       # the table of the data card

`story(seed, index)` is a pure function of its arguments, with the same text and labels on every machine. Training uses
seed 0, validation seed 1, evaluation seed 2 with `held_out=True`: combinations (antecedent, competitor, verb) that no
other story uses. See `datasets/stories/README.md`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

from streamscope.text.stories.cases import HELD_OUT_PART, NoCombination, Passage, event, is_held_out
from streamscope.text.stories.template import Case, Label, Span, Story, capital, parse, resolve
from streamscope.text.stories.world import PASSAGES, cast, tell

__all__ = [
    "CATEGORIES", "HELD_OUT_PART", "RELATIONS", "Case", "MinimalPair", "PairSpans", "Span", "Story",
    "documents", "is_held_out", "labelled", "minimal_pairs", "story",
]  # fmt: skip

CATEGORIES = tuple(PASSAGES)
RELATIONS = ("tool-container", "agent-patient", "possessor-possessed")
"""The competing-noun relations of LFA App. F; minimal pairs exist for these, for gender and for events."""
PAIRABLE = {**{name: PASSAGES[name] for name in (*RELATIONS, "gender")}, "event": event}
"""Passages for minimal pairs. The orders of an event also differ in voice: "a cat was helped by a dog"."""


def story(seed: int, index: int, *, held_out: bool = False) -> Story:
    """Story `index` of `seed`, with its labelled cases in order; with `held_out`, all use reserved combinations."""
    rng = Random(f"{'held-out' if held_out else 'story'} {seed} {index}")
    marked, labels = tell(rng, held_out)
    return Story(*text_and_cases(marked, labels))


def text_and_cases(marked: str, labels: Iterable[Label]) -> tuple[str, tuple[Case, ...]]:
    """The text of a marked story, and its labelled cases in order."""
    text, spans = parse(marked)
    cases = (resolve(label, spans) for label in labels)
    return text, tuple(sorted(cases, key=lambda case: case.pronoun.start))


def labelled(seed: int, n: int, *, held_out: bool = False) -> Iterator[Story]:
    return (story(seed, i, held_out=held_out) for i in range(n))


def documents(seed: int, n: int) -> Iterator[str]:
    return (story(seed, i).text for i in range(n))


@dataclass(frozen=True)
class PairSpans:
    """Spans of the two nouns, the pronoun and the cue in one text of a pair."""

    target: Span
    competitor: Span
    query: Span
    cue: Span


@dataclass(frozen=True)
class MinimalPair:
    """Two texts that differ only in the order of two nouns: `first` names the target first, `last` last.

    Both end where a noun must follow: " " + `coherent` fits the pronoun, " " + `incoherent` is the other noun. The
    query is the pronoun; the cue comes before it (for gender, it is the pronoun), so a causal model can resolve it
    there.
    """

    category: str
    relation: str
    target: str
    competitor: str
    first: str
    last: str
    first_spans: PairSpans
    last_spans: PairSpans
    coherent: str
    incoherent: str
    combination: tuple[str, str, str]


def minimal_pairs(
    seed: int, n: int, *, held_out: bool = True, relations: Sequence[str] = RELATIONS
) -> list[MinimalPair]:
    """`n` distinct pairs of these relations in turn: `RELATIONS`, "gender" or "event".

    Number has no pairs, because "they" can always mean both of two noun phrases.
    """
    unknown = [r for r in relations if r not in PAIRABLE]
    if unknown or not relations:
        raise ValueError(f"no minimal pairs for {unknown}; known: {', '.join(PAIRABLE)}")

    def make(relation: str, rng: Random, first: bool) -> Passage:
        return PAIRABLE[relation](rng, cast(rng), "0", held_out, first, True)

    return order_pairs(f"pair {seed}", n, {relation: partial(make, relation) for relation in relations})


def order_pairs(seed: str, n: int, makers: Mapping[str, Callable[[Random, bool], Passage]]) -> list[MinimalPair]:
    """`n` distinct pairs of `makers` in turn: functions (rng, target first) -> a passage with `pair`."""
    names = list(makers)
    pairs: dict[str, MinimalPair] = {}
    for attempt in range(50 * n + 1000):
        if len(pairs) == n:
            break
        name = names[len(pairs) % len(names)]
        with suppress(NoCombination):
            pair = _pair(f"{seed} {attempt}", name, makers[name])
            pairs.setdefault(pair.first, pair)
    if len(pairs) < n:
        raise ValueError(f"only {len(pairs)} distinct pairs found of {n} wanted")
    return list(pairs.values())


def _pair(seed: str, category: str, make: Callable[[Random, bool], Passage]) -> MinimalPair:
    texts: list[str] = []
    cases: list[Case] = []
    for first in (True, False):  # with the same random numbers, so that only the order differs
        marked, labels, _ = make(Random(seed), first)
        text, spans = parse(capital(marked))
        texts.append(text)
        cases.append(resolve(labels[0], spans))
    spans_of = [
        PairSpans(c.antecedent, next(s for s in c.candidates if s != c.antecedent), c.pronoun, c.cue) for c in cases
    ]
    target, competitor, _ = cases[0].combination
    return MinimalPair(
        category, cases[0].relation, target, competitor, texts[0], texts[1], spans_of[0], spans_of[1],
        target, competitor, cases[0].combination,
    )  # fmt: skip


def marked_text(one: Story) -> str:
    """The story with its cases marked: candidates [hammer], pronouns it{tool-container: hammer}."""
    inserts: set[tuple[int, str]] = set()
    for case in one.cases:
        answer = one.text[case.antecedent.start : case.antecedent.end]
        inserts.add((case.pronoun.end, f"{{{case.category}, {case.relation}: {answer}}}"))
        for span in case.candidates:
            inserts |= {(span.start, "["), (span.end, "]")}
    text = one.text
    for at, mark in sorted(inserts, reverse=True):
        text = text[:at] + mark + text[at:]
    return text


def statistics(stories: Sequence[Story], categories: Sequence[str] = CATEGORIES) -> str:
    """The table of the data card: lengths, vocabulary, compressibility and two baseline rules."""
    import re
    import zlib

    texts = [s.text for s in stories]
    words = [re.findall(r"[a-z]+(?:'[a-z]+)?", t.lower()) for t in texts]
    lengths = [len(w) for w in words]
    raw = "\n".join(texts).encode()
    cases = [(s, c) for s in stories for c in s.cases]
    lines = [
        f"stories              {len(stories)}  (distinct: {len(set(texts)) / len(texts):.2%})",
        f"words per story      {sum(lengths) / len(lengths):.0f}, from {min(lengths)} to {max(lengths)}",
        f"distinct words       {len({w for ws in words for w in ws})}",
        f"cases per story      {len(cases) / len(stories):.2f}",
        f"zlib ratio           {len(zlib.compress(raw, 9)) / len(raw):.3f}  ({len(raw)} bytes)",
        "",
        "category             cases  recent  first  cue before  3 candidates  words between",
    ]
    for category in categories:
        mine = [(s, c) for s, c in cases if c.category == category]
        two = [c for _, c in mine if len(c.candidates) == 2]
        if not two:
            continue
        recent = sum(c.candidates[-1] == c.antecedent for c in two) / len(two)
        first = sum(c.candidates[0] == c.antecedent for c in two) / len(two)
        before = sum(c.cue_before for _, c in mine) / len(mine)
        three = 1 - len(two) / len(mine)
        gap = sum(len(s.text[c.antecedent.end : c.pronoun.start].split()) for s, c in mine) / len(mine)
        shares = f"{recent:6.1%} {first:6.1%} {before:10.0%} {three:12.1%} {gap:12.1f}"
        lines.append(f"{category:20} {len(mine):6} {shares}")
    return "\n".join(lines)
