"""The sentences of stories4: `text.toml`, validated by a schema."""

from pathlib import Path

from typing_extensions import TypedDict

from streamscope.cli.disk import read_toml


class Passages(TypedDict):
    """Sentences of the labelled passages."""

    acts: tuple[str, ...]
    thing_acts: tuple[str, ...]
    tails: tuple[str, ...]
    after: tuple[str, ...]
    conditions: dict[str, tuple[str, ...]]
    thing_conditions: dict[str, tuple[str, ...]]
    transfers: dict[str, tuple[str, bool]]
    giver: tuple[str, ...]
    taker: tuple[str, ...]
    schemas: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], str, str], ...]
    retell: dict[str, tuple[str, ...]]
    task_pairs: tuple[str, ...]
    named: tuple[str, ...]
    unnamed: tuple[str, ...]
    aside: tuple[str, ...]
    titles: tuple[str, ...]
    gendered: dict[str, tuple[str, ...]]
    one_person: tuple[str, ...]
    two_persons: tuple[str, ...]


class Repeats(TypedDict):
    """Sentences of texts that repeat words."""

    speakers: tuple[str, ...]
    calls: tuple[str, ...]
    agains: tuple[str, ...]
    verses: tuple[str, ...]
    joints: tuple[str, ...]
    growing: tuple[str, ...]


class Text(TypedDict):
    """text.toml."""

    passages: Passages
    repeats: Repeats


TEXT: Text = read_toml(Path(__file__).with_name("text.toml"), Text)
