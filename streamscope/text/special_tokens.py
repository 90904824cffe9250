"""Reads the transformers library's files about special tokens.

tokenizer_config.json      `ROLES`, added_tokens_decoder, add_prefix_space
special_tokens_map.json    `ROLES`, if the first file does not name them or has no added_tokens_decoder
added_tokens.json          tokens besides vocab.json, if the first file does not list them
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from streamscope.cli.disk import read_json
from streamscope.cli.errors import InputError

CONFIG, MAP, ADDED = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The roles that a special token can have."""
REMEDY = "download it again"
PROPERTIES = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Special tokens, and tokens outside the vocabulary file."""

    roles: Mapping[str, str] = field(default_factory=dict)
    """Tokens by role (bos_token begins a text, eos_token ends it)."""
    source: str = ""
    """The file that should name them, or ""."""
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    """Additional tokens by id."""
    prefix_space: bool = False
    """Whether a space is added before a text (for a pair of files; tokenizer.json has its own setting)."""


def special_tokens(folder: Path) -> SpecialTokens:
    """Read the files of a folder. Raises `InputError` for a damaged one."""
    config, token_map = (_read(folder / name) for name in (CONFIG, MAP))
    decoded = "added_tokens_decoder" in config
    # as in the library: a configuration with added_tokens_decoder has priority over the map
    files = (token_map, config) if decoded else (config, token_map)
    named_in = [(role, _contents(fields.get(role))) for fields in files for role in ROLES]
    roles = {role: names[0] for role, names in named_in if len(names) == 1}
    special = {name for fields in files for value in fields.values() for name in _contents(value)}
    rows: Any = config["added_tokens_decoder"] if decoded else {
        i: {"content": name, "special": name in special, "normalized": name not in special}
        for name, i in _read(folder / ADDED).items()
    }  # fmt: skip
    try:
        added = {
            int(i): AddedToken(row["content"], **{name: row[name] for name in PROPERTIES if name in row})
            for i, row in rows.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: its added tokens are damaged ({error}); {REMEDY}") from None
    return SpecialTokens(
        roles=roles, added=added,
        source=next((name for name in (CONFIG, MAP) if (folder / name).is_file()), ""),
        prefix_space=config.get("add_prefix_space") is True,
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, dict[str, Any], REMEDY, any_int=True) if path.is_file() else {}


def _contents(value: Any) -> list[str]:
    """The tokens in a field: a name, a token with properties, or a list of either."""
    if isinstance(value, list):
        return [name for item in value for name in _contents(item)]
    if isinstance(value, Mapping):
        value = value.get("content")
    return [value] if isinstance(value, str) else []
