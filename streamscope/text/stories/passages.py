"""Labelled passages: two nouns, and a pronoun that a cue before it, or its own form, gives to one of them.

The word after the pronoun is the habit of the noun that is meant, so a model gains by finding it. A passage has a scene
with both nouns in either order, perhaps a sentence between, one pronoun or one for each noun, and perhaps a sentence
that repeats the noun. In a told passage the nouns are guests and the text first tells their habits.
"""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from streamscope.text.stories.lexicon import BASES, HABITS, LISTS, NOUNS, TEXT, Noun, capital, expand, is_held_out, pick

CATEGORIES: dict[str, dict[str, Any]] = TEXT["categories"]
KINDS, FRAME, STATES = TEXT["kinds"], TEXT["frame"], TEXT["states"]
HELD_OUT = ("", "pairs", "told", "words")
"""Training; held-out pairs of known nouns; guests, whose habits the text tells; reserved nouns, likewise."""
GUESTS = 0.1  # share of the passages that tell the habits
NAMES = ("girls", "boys")
PLAIN_SCENE = ("gender", "anchor", "number", "tool-container")
"""Categories whose scene says nothing that decides; a told passage may leave it out."""
BETWEEN, BOTH, AGAIN, ADJECTIVE = 0.1, 0.9, 0.25, 0.15
"""Chances of a sentence between, of a pronoun for each noun, of the noun again after it, of an adjective."""
Values = dict[str, str]


Label = namedtuple("Label", ("category", "relation", "key", "mark", "target", "habits", "guests"))
"""A case with the keys of marks: of the passage, of the pronoun and its cue (`mark`), of the antecedent (`target`).

`habits` are those of the antecedent and of its competitor.
"""


@dataclass(frozen=True)
class Member:
    """One of the two nouns of a passage, with its side of the category."""

    key: str
    side: str
    kind: str
    noun: Noun
    habit: str
    state: str

    def mention(self, article: str, adjective: str = "") -> str:
        """The marked noun with its article; names and told groups have none."""
        words = (article if self.kind not in NAMES else "", adjective, f"[{self.key} {self.noun.form}]")
        return " ".join(filter(None, words))

    @property
    def sentences(self) -> str:
        """Which sentences fit the habit: those for a manner, or for a verb."""
        return "manners" if KINDS[self.kind]["pool"] == "manners" else "verbs"


Members = tuple[Member, ...]


def draw(rng: Random, kinds: tuple[str, str], held_out: str, guests: bool) -> tuple[Noun, Noun]:
    """Two different nouns on the wanted side of `is_held_out`, with different habits."""
    source = NOUNS["reserved" if held_out == "words" else "guests" if guests else "known"]
    while True:
        first, second = pick(rng, source[kinds[0]]), pick(rng, source[kinds[1]])
        fits = held_out in ("told", "words") or is_held_out(first, second) == (held_out == "pairs")
        if fits and first.singular != second.singular and (guests or first.habit != second.habit):
            return first, second


def two(rng: Random, options: tuple[str, ...]) -> tuple[str, str]:
    first = pick(rng, options)
    return first, pick(rng, [option for option in options if option != first])


def passage(
    rng: Random, values: Mapping[str, str], category: str, key: str, held_out: str, swapped: bool | None = None,
    competitor: bool = False,
) -> tuple[str, list[Label]]:  # fmt: skip
    """Marked text and labels. With `swapped`, the short form of a minimal pair, in which only the order depends on it;
    with `competitor` the pronoun and its cue mean the other noun.

    Marks: a and b with `key` are the nouns; q, u and `key` with the side's number are pronoun and cue.
    """
    short = swapped is not None
    guests = held_out in ("told", "words") or (not held_out and rng.random() < GUESTS)
    members = _members(rng, category, key, held_out, guests)
    env = {**values, "place": pick(rng, LISTS["places"]), "elder": pick(rng, LISTS["elders"])}
    env["who"] = pick(rng, (*LISTS["elders"], env["hero"], env["friend"]))
    env["goods"] = pick(rng, LISTS["goods"])
    order = members[::-1] if (rng.random() < 0.5 if swapped is None else swapped) else members
    parts = Random(f"{rng.random()}")  # of its own: the two orders of a pair may draw from it unequally often
    sentences = []
    with_scene = not guests or category not in PLAIN_SCENE or (not short and rng.random() < 0.5)
    if guests:
        sentences.append(_tell(parts, env, members if with_scene and short else order, members))
        if not short and rng.random() < 0.5:
            order = order[::-1]
    if with_scene:
        sentences.append(_scene(parts, env, category, order, members, short))
    if not short:
        sentences[0] = expand(pick(rng, FRAME["leads"]), env, rng) + sentences[0]
        if rng.random() < BETWEEN:
            sentences.append(expand(pick(rng, FRAME["between"]), env, rng))
    antecedents = members if (rng.random() < 0.5) != competitor else members[::-1]
    labels = []
    for i, member in enumerate(antecedents if not short and rng.random() < BOTH else antecedents[:1]):
        mark = f"{key}{'xy'[i]}"
        rival = members[1] if member is members[0] else members[0]
        sentences.append(_ask(rng, env, category, member, mark, short))
        labels.append(Label(category, member.side, key, mark, member.key, (member.habit, rival.habit), guests))
    if not short and rng.random() < AGAIN:
        noun = member.noun.form if member.kind in NAMES else f"the {member.noun.form}"
        about = {**env, "n": noun, "h": member.habit}
        sentences.append(expand(pick(rng, FRAME["repeats"][member.sentences]), about, rng))
    return " ".join(map(capital, sentences)), labels


def _members(rng: Random, category: str, key: str, held_out: str, guests: bool) -> Members:
    sides = CATEGORIES[category]["sides"]
    names = tuple(sides)
    first = pick(rng, sides[names[0]])
    second = first if sides[names[1]] == ["same"] else pick(rng, sides[names[1]])
    nouns = draw(rng, (first, second), held_out, guests)
    habits = two(rng, HABITS[KINDS[first]["pool"]]) if guests else tuple(noun.habit for noun in nouns)
    rows = zip("ab", names, (first, second), nouns, habits, two(rng, tuple(STATES)), strict=True)
    return tuple(Member(f"{mark}{key}", *row) for mark, *row in rows)


def _tell(rng: Random, env: Values, order: Members, members: Members) -> str:
    """What the text tells of two guests, with the habit after both nouns or before both."""
    place, clauses = pick(rng, ("after", "before")), {}
    for member in members:
        kind = KINDS[member.kind]
        mention = member.mention("" if member.kind == "groups" else "a")
        about = {"called": kind["called"], "h": member.habit, "base": BASES[member.habit], "n": mention}
        clauses[member.key] = expand(pick(rng, TEXT["tells"][kind["tells"]][place]), about, rng)
    first, second = (clauses[member.key] for member in order)
    if place == "before":
        return f"{first}, and {second}."
    return expand(pick(rng, FRAME["told"]), {**env, "x": first, "y": second}, rng)


def _scene(rng: Random, env: Values, category: str, order: Members, members: Members, short: bool) -> str:
    spec = CATEGORIES[category]
    scenes = spec["second"] if "second" in spec and order[0] is members[1] else spec["scenes"]
    article, mentions = pick(rng, ("a", "the")), {}
    for member in members:
        adjective = pick(rng, LISTS["adjectives"]) if rng.random() < ADJECTIVE else ""
        if category == "state":
            adjective = member.state
        elif short or KINDS[member.kind]["tells"] not in ("things", "manners"):
            adjective = ""
        determiner = "some" if member.kind == "groups" and article == "a" else article
        mentions[member.key] = member.mention(determiner, adjective)
    x, y = (mentions[member.key] for member in order)
    return expand(pick(rng, scenes), {**env, "x": x, "y": y}, rng)


def _ask(rng: Random, env: Values, category: str, member: Member, mark: str, short: bool) -> str:
    asks = CATEGORIES[category]["asks"][member.side]
    about = {
        "p": KINDS[member.kind]["pronoun"], "h": member.habit, "base": BASES[member.habit],
        "cue": pick(rng, STATES[member.state]), "event": pick(rng, LISTS["events"]),
        "tail": "." if short else expand(pick(rng, FRAME["tails"][member.sentences]), env, rng),
    }  # fmt: skip
    sentence = expand(asks[0] if short else pick(rng, asks), {**env, **about}, rng)
    return sentence.replace("[q ", f"[q{mark} ").replace("[u ", f"[u{mark} ")
