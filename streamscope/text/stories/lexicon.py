"""The lexicon of the built-in stories: names, things and their uses, states and their consequences.

Every entry has the meaning that determines a pronoun: a tool has its own uses, a container its own way of closing, an
animal its own way of fleeing, a state its own consequence. So the word after a pronoun depends on its referent, and a
language model gains by finding it. All words and sentences are in `text.toml`, which is validated by the schemas here.
"""

from pathlib import Path

from typing_extensions import TypedDict

from streamscope.cli.disk import read_toml


class Words(TypedDict):
    """Words of the stories."""

    girls: tuple[str, ...]
    boys: tuple[str, ...]
    elders: tuple[str, ...]
    colors: tuple[str, ...]
    tools: dict[str, tuple[str, ...]]
    containers: dict[str, tuple[str, ...]]
    tool_acts: dict[str, str]
    container_acts: dict[str, str]
    items: tuple[str, ...]
    neutral_things: tuple[str, ...]
    animals: dict[str, tuple[str, str]]
    hunters: tuple[str, ...]
    small_hunters: tuple[str, ...]
    big_prey: tuple[str, ...]
    hunts: dict[str, str]
    hunted: dict[str, str]
    things: dict[str, tuple[str, str]]
    pets: tuple[str, ...]
    pet_names: tuple[str, ...]
    states: dict[str, tuple[str, tuple[str, ...]]]
    animal_states: dict[str, tuple[str, tuple[str, ...]]]
    groups: tuple[str, ...]
    singles: dict[str, str]
    lists: dict[str, tuple[str, ...]]
    wishes: tuple[tuple[str, tuple[str, ...], str, str], ...]


class Cases(TypedDict):
    """Sentences about things, containers and animals (`stories.cases`)."""

    between_it: tuple[str, ...]
    between_people: tuple[str, ...]
    between_plural: tuple[str, ...]
    after_thing: tuple[str, ...]
    after_animal: tuple[str, ...]
    after_person: tuple[str, ...]
    qualities: tuple[str, ...]
    looks: tuple[str, ...]
    two_things: tuple[str, ...]
    two_things_apart: tuple[str, ...]
    three_things: tuple[str, ...]
    use: tuple[str, ...]
    fill: tuple[str, ...]
    at_work: tuple[str, ...]
    filled: tuple[str, ...]
    events: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], str, str, str, str]]
    chase: tuple[str, str, tuple[str, ...], tuple[str, ...], str, str, str, str]
    hunt: tuple[str, ...]
    flee: tuple[str, ...]
    stalk: tuple[str, ...]
    escape: tuple[str, ...]
    glad: tuple[str, ...]
    two_animals: tuple[str, ...]
    two_animals_apart: tuple[str, ...]


class People(TypedDict):
    """Sentences about people and their possessions (`stories.people`)."""

    owners: tuple[str, ...]
    care: dict[str, str]
    person_acts: tuple[str, ...]
    owner_first: tuple[str, ...]
    owned_first: tuple[str, ...]
    animal_moods: tuple[str, ...]
    animal_calm: tuple[str, ...]
    animal_and_thing: tuple[str, ...]
    two_people: tuple[str, ...]
    two_people_apart: tuple[str, ...]
    joints: tuple[str, ...]


class World(TypedDict):
    """Sentences around the labelled passages (`stories.world`)."""

    openings: tuple[str, ...]
    friends: tuple[str, ...]
    facts: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    endings: tuple[str, ...]
    links: dict[str, tuple[str, ...]]
    evenings: tuple[str, ...]
    nights: tuple[str, ...]


class PlotText(TypedDict):
    """A plot (`stories.plots`); a place may name a group of places."""

    name: str
    places: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    binds: tuple[tuple[str, str], ...]
    likes: tuple[str, ...]


class Text(TypedDict):
    """text.toml."""

    words: Words
    cases: Cases
    people: People
    world: World
    groups: dict[str, tuple[str, ...]]
    plots: tuple[PlotText, ...]


TEXT: Text = read_toml(Path(__file__).with_name("text.toml"), Text)
WORDS = TEXT["words"]
GIRLS = WORDS["girls"]
BOYS = WORDS["boys"]
ELDERS = WORDS["elders"]
COLORS = WORDS["colors"]
TOOLS = WORDS["tools"]
CONTAINERS = WORDS["containers"]
TOOL_ACTS = WORDS["tool_acts"]
CONTAINER_ACTS = WORDS["container_acts"]
ITEMS = WORDS["items"]
NEUTRAL_THINGS = WORDS["neutral_things"]
ANIMALS = WORDS["animals"]
HUNTERS = WORDS["hunters"]
SMALL_HUNTERS = WORDS["small_hunters"]
BIG_PREY = WORDS["big_prey"]
HUNTS = WORDS["hunts"]
HUNTED = WORDS["hunted"]
THINGS = WORDS["things"]
PETS = WORDS["pets"]
PET_NAMES = WORDS["pet_names"]
STATES = WORDS["states"]
ANIMAL_STATES = WORDS["animal_states"]
GROUPS = WORDS["groups"]
SINGLES = WORDS["singles"]
WISHES = (("color", COLORS, "liked {o} best", "picked the {o} one"), *WORDS["wishes"])
"""(wish, options, sentence before, sentence after); o is the option, which returns in the sentence after."""
LISTS = {**WORDS["lists"], "color": COLORS, "things": tuple(THINGS)}
"""Lists for {#name} in templates."""
