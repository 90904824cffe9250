"""The lexicon of the built-in stories: names, things and their uses, states and their consequences.

Every entry has the meaning that determines a pronoun: a tool has its own uses, a container its own way of closing, an
animal its own way of fleeing, a state its own consequence. So the word after a pronoun depends on its referent, and a
language model gains by finding it. All words and sentences are in `text.toml`.
"""

from pathlib import Path
from typing import Any

from streamscope.cli.disk import read_toml


def read_text(path: Path) -> dict[str, Any]:
    """The words and sentences of a TOML file beside the code, lists as tuples."""
    text: dict[str, Any] = _frozen(read_toml(path, dict[str, Any]))
    return text


def _frozen(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _frozen(value) for key, value in x.items()}
    return tuple(map(_frozen, x)) if isinstance(x, list) else x


TEXT = read_text(Path(__file__).with_name("text.toml"))
WORDS = TEXT["words"]
WISHES = (("color", WORDS["colors"], "liked {o} best", "picked the {o} one"), *WORDS["wishes"])
"""(wish, options, sentence before, sentence after); o is the option, which returns in the sentence after."""
LISTS = {**WORDS["lists"], "color": WORDS["colors"], "things": tuple(WORDS["things"])}
"""Lists for {#name} in templates."""
