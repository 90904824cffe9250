"""The lexicon of stories4: `lexicon.toml`, the words of version 3, and names formed by rule; sentences in `text.toml`.

A rule name has a start and an end, which shows the gender: Belina is a girl, Belo a boy. `RESERVED` holds the words for
evaluation (one rule name in six, by CRC-32, and the words of [reserved]), `TRAINING` all others.
"""

from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from streamscope.cli.disk import read_toml
from streamscope.text.stories.lexicon import WORDS, read_text

TEXT = read_text(Path(__file__).with_name("text.toml"))
"""The sentences."""
KINDS = ("girls", "boys", "animals", "people", "things", "foods")
"""Kinds of words; two words of the same kind compete on equal terms."""
RESERVED_NAMES = 6
"""One rule name in `RESERVED_NAMES` is reserved."""


@dataclass(frozen=True)
class Words:
    """Words by kind; `places` are never reserved."""

    girls: tuple[str, ...]
    boys: tuple[str, ...]
    animals: tuple[str, ...]
    people: tuple[str, ...]
    things: tuple[str, ...]
    foods: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.girls + self.boys

    @property
    def nouns(self) -> tuple[str, ...]:
        return self.animals + self.people + self.things + self.foods + self.places


def _load() -> tuple[Words, Words, tuple[str, ...], tuple[str, ...]]:
    tables = read_toml(Path(__file__).with_name("lexicon.toml"), dict[str, dict[str, str]])
    data = {section: {k: v.split() for k, v in table.items()} for section, table in tables.items()}
    names, nouns, reserved, plain = data["names"], data["nouns"], data["reserved"], data["plain"]
    old = {kind: WORDS[kind] for kind in ("girls", "boys", "animals")}
    old["things"] = (*WORDS["things"], *WORDS["tools"], *WORDS["containers"])
    known = {k: [*old.get(k, ()), *names.get(k, nouns.get(k, ()))] for k in (*KINDS, "places")}
    kept: dict[str, list[str]] = {k: list(reserved.get(k, ())) for k in known}
    taken = {word.lower() for table in (known, plain) for group in table.values() for word in group}
    for kind in ("girls", "boys"):
        made = (start + end for start in names["starts"] for end in names[f"{kind[:-1]}_ends"])
        for name in (one for one in made if one.lower() not in taken):
            (known if crc32(name.encode()) % RESERVED_NAMES else kept)[kind].append(name)
    used, own = (Words(**{k: tuple(dict.fromkeys(v)) for k, v in table.items()}) for table in (known, kept))
    return used, own, tuple(plain["verbs"]), tuple(plain["adjectives"])


TRAINING, RESERVED, VERBS, ADJECTIVES = _load()
KIND_OF = {word: kind for words in (TRAINING, RESERVED) for kind in KINDS for word in getattr(words, kind)}
"""The kind of every name and noun except places."""
CHANTED = tuple(
    sorted({*TRAINING.names, *TRAINING.nouns, *VERBS, *ADJECTIVES}, key=lambda word: (len(word), crc32(word.encode())))
)
"""All words that may be repeated, shortest first (any tokenizer keeps these whole)."""
CHANTED_RESERVED = (*RESERVED.names, *RESERVED.nouns)
