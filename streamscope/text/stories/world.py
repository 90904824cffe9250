"""The frame of a story: its cast, plot, beginning and end, and facts that return at the end.

A plot is a list of stages, each a choice of templates (`stories.template`); labelled passages come between stages.
`binds` draws a word once per story, so that it can return. Slots: h and f are the two children (hs, ho, hp and fs, fo,
fp their pronouns), e the adult, toy a thing with its color ("red kite"), toy_noun and color its parts, place the
location, pet and pet_name.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from streamscope.text.stories.cases import NoCombination, Passage, agent_patient, tool_container
from streamscope.text.stories.lexicon import LISTS, TEXT, WORDS
from streamscope.text.stories.people import gender, number, possessor_possessed
from streamscope.text.stories.template import Label, capital, expand, pick

Passages = Mapping[str, Callable[..., Passage]]
_TEXT = TEXT["world"]
PASSAGES = {
    "tool-container": tool_container, "agent-patient": agent_patient, "possessor-possessed": possessor_possessed,
    "gender": gender, "number": number,
}  # fmt: skip
_PRONOUNS = {"f": ("she", "her", "her", "girl"), "m": ("he", "him", "his", "boy")}

FACTS = _TEXT["facts"]
EVENINGS = _TEXT["evenings"]
NIGHTS = _TEXT["nights"]


@dataclass(frozen=True)
class Plot:
    name: str
    places: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    binds: tuple[tuple[str, str], ...] = ()
    likes: tuple[str, ...] = ()


def _plot(text: dict[str, Any]) -> Plot:
    """A plot of text.toml, where a place may name a group of places."""
    return Plot(**{**text, "places": tuple(p for name in text["places"] for p in TEXT["groups"].get(name, (name,)))})


PLOTS = tuple(map(_plot, TEXT["plots"]))
QUIET_DAY = next(plot for plot in PLOTS if plot.name == "a quiet day")
"""The default plot: an outing."""
EVENING = 0.6
"""Share of the stories that are an evening of short tales (four to six passages) without a plot."""
QUIET = 0.12
"""Share of the other stories whose plot is an outing."""


def cast(rng: Random) -> dict[str, str]:
    """Draw two children of different gender, an adult, a pet, a thing with its color, and other details."""
    girl, boy = pick(rng, WORDS["girls"]), pick(rng, WORDS["boys"])
    hero_is_girl = rng.random() < 0.5
    elder = pick(rng, WORDS["elders"])
    color, toy = pick(rng, WORDS["colors"]), pick(rng, LISTS["things"])
    env = {"h": girl, "f": boy, "e": elder, "color": color, "toy_noun": toy, "toy": f"{color} {toy}"}
    if not hero_is_girl:
        env["h"], env["f"] = boy, girl
    for who, sex in (("h", "f" if hero_is_girl else "m"), ("f", "m" if hero_is_girl else "f")):
        env[who + "s"], env[who + "o"], env[who + "p"], child = _PRONOUNS[sex]
        env["child" if who == "h" else "child2"] = child
    env["fs_cap"] = capital(env["fs"])
    for slot, name in (("trait", "trait"), ("trait2", "trait"), ("home", "home"), ("age", "age"), ("fun", "fun"),
                       ("food", "dish"), ("dream", "job"), ("charm", "charm"), ("treat", "treat"),
                       ("time", "time")):  # fmt: skip
        env[slot] = pick(rng, LISTS[name])
    env["home_cap"] = capital(env["home"])
    env["pet"], env["pet_name"] = pick(rng, WORDS["pets"]), pick(rng, WORDS["pet_names"])
    return env


def tell(rng: Random, held_out: bool) -> tuple[str, list[Label]]:
    """One story as marked text, with the labels of its cases."""
    env = cast(rng)
    if rng.random() < EVENING:
        categories = rng.sample(sorted(PASSAGES), len(PASSAGES) - int(rng.random() * 2))
        if rng.random() < 0.5:
            categories.append(pick(rng, sorted(PASSAGES)))
        return tell_evening(rng, env, held_out, PASSAGES, categories)
    return tell_plot(rng, env, held_out, PASSAGES, lambda n: rng.sample(sorted(PASSAGES), n))


def tell_plot(
    rng: Random, env: dict[str, str], held_out: Any, passages: Passages, draw: Callable[[int], list[str]],
    likes: bool = True,
) -> tuple[str, list[Label]]:  # fmt: skip
    """Tell a plot with passages between its stages; `draw(n)` names n of `passages`.

    With `likes`, the plot may choose the first. `held_out` is passed to the passages.
    """
    plot = QUIET_DAY if rng.random() < QUIET else pick(rng, PLOTS)
    env["place"] = pick(rng, plot.places)
    for slot, name in plot.binds:
        env[slot] = expand(pick(rng, [x for x in LISTS[name] if x not in env.values()]), env, rng)
    roll = rng.random()
    n_passages = 0 if roll < 0.03 else 1 if roll < 0.36 else 2 if roll < 0.84 else 3
    if plot is QUIET_DAY:
        n_passages, gaps = 2, [0, 0]
    else:
        gaps = rng.sample(range(len(plot.stages) - 1), n_passages)
    categories = draw(n_passages)
    if likes and categories and plot.likes and rng.random() < 0.3:
        liked = pick(rng, plot.likes)
        categories = [liked, *(c for c in categories if c != liked)][:n_passages]

    facts = rng.sample(sorted(FACTS), 1 if n_passages > 2 or rng.random() < 0.6 else 2)
    if any("{toy" in t for stage in plot.stages for t in stage) and "toy" not in facts:
        facts[0] = "toy"
    bound = {slot for slot, _ in plot.binds}
    facts = [f for f in facts if not (f == "rule" and "time" in bound)]
    opening = [expand(pick(rng, _TEXT["openings"]), env, rng)]
    if rng.random() < 0.85:
        opening.append(expand(pick(rng, _TEXT["friends"]), env, rng))
    opening += [expand(pick(rng, FACTS[f][0]), env, rng) for f in facts]

    paragraphs = [opening, []]
    labels: list[Label] = []
    stages = [expand(pick(rng, stage), env, rng) for stage in plot.stages]
    waiting: list[list[str]] = []
    for i, stage in enumerate(stages):
        paragraphs[-1].append(stage)
        for k in (str(j) for j, gap in enumerate(gaps) if gap == i):
            with suppress(NoCombination):
                text, cases, frame = passages[categories[int(k)]](rng, env, k, held_out, rng.random() < 0.5, False)
                waiting.append([lead(rng, env, text, frame)])
                labels += cases
        if waiting and (i + 1 == len(stages) or not stages[i + 1].startswith('"')):  # do not interrupt a dialogue
            paragraphs += [*waiting, []]
            waiting = []
        elif rng.random() < 0.25:
            paragraphs.append([])
    closing = [expand(pick(rng, FACTS[f][1]), env, rng) for f in facts]
    if not closing or rng.random() < 0.6:
        closing.append(expand(pick(rng, _TEXT["endings"]), env, rng))
    paragraphs.append(closing)
    return "\n\n".join(" ".join(p) for p in paragraphs if p), labels


def tell_evening(
    rng: Random, env: dict[str, str], held_out: Any, passages: Passages, categories: Iterable[str]
) -> tuple[str, list[Label]]:
    """Short tales in sequence, where nearly every sentence belongs to a case."""
    paragraphs = [expand(pick(rng, EVENINGS), env, rng)]
    labels: list[Label] = []
    for k, category in enumerate(categories):
        with suppress(NoCombination):
            text, cases, frame = passages[category](rng, env, str(k), held_out, rng.random() < 0.5, False)
            paragraphs.append(lead(rng, env, text, frame))
            labels += cases
    return "\n\n".join([*paragraphs, expand(pick(rng, NIGHTS), env, rng)]), labels


def lead(rng: Random, env: dict[str, str], text: str, frame: str) -> str:
    """Add words that lead into a passage."""
    if text.startswith(('"', "here", "first", "there was")):
        return capital(text)
    link = expand(pick(rng, _TEXT["links"][frame]), env, rng)
    return capital(link) + text if link else capital(text)
