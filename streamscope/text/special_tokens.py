"""What the files beside a vocabulary say of its tokens, as the transformers library writes them.

tokenizer_config.json      bos_token, eos_token, added_tokens_decoder, add_prefix_space
special_tokens_map.json    bos_token, eos_token, where the first does not name them, or has no added_tokens_decoder
added_tokens.json          tokens besides vocab.json, where the first does not list them
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from streamscope.cli.disk import read_json
from streamscope.cli.errors import InputError

CONFIG, MAP, ADDED = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
REMEDY = "restore it from where the tokenizer came from"
PROPERTIES = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Names of tokens, and the tokens that stand outside the vocabulary file."""

    bos: str | None = None
    """What begins a text; None where nothing names it."""
    eos: str | None = None
    """What ends one."""
    source: str = ""
    """The file that should name them; empty where there is none."""
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    """Tokens besides the vocabulary, by their ids."""
    prefix_space: bool = False
    """Whether a text is read as if a space stood before it (for a pair of files: tokenizer.json says it itself)."""


def special_tokens(folder: Path) -> SpecialTokens:
    """What the files of a folder say. Raises `InputError` for a damaged one."""
    config, named = (_read(folder / name) for name in (CONFIG, MAP))
    # as in the library: a configuration that lists its added tokens is of a version that reads the map no more
    files = (named, config) if "added_tokens_decoder" in (config or {}) else (config, named)
    roles = {role: name for fields in files for role, name in _roles(fields or {}).items()}
    rows: dict[Any, Any] = {}
    if config is not None and "added_tokens_decoder" in config:
        rows = config["added_tokens_decoder"]
    else:
        special = {name for fields in (named, config) for value in (fields or {}).values() for name in _contents(value)}
        for name, i in (_read(folder / ADDED) or {}).items():
            rows[i] = {"content": name, "special": name in special, "normalized": name not in special}
    try:
        added = {
            int(i): AddedToken(row["content"], **{name: row[name] for name in PROPERTIES if name in row})
            for i, row in rows.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: its added tokens are damaged ({error}); {REMEDY}") from None
    return SpecialTokens(
        bos=roles.get("bos_token"), eos=roles.get("eos_token"), added=added,
        source=next((name for name, found in ((CONFIG, config), (MAP, named)) if found is not None), ""),
        prefix_space=(config or {}).get("add_prefix_space") is True,
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any] | None:
    """The fields of a file; None where it is not there."""
    return read_json(path, dict[str, Any], REMEDY) if path.is_file() else None


def _contents(value: Any) -> list[str]:
    """The tokens in a field: a name, a token with properties, or a list of either."""
    if isinstance(value, list):
        return [name for one in value for name in _contents(one)]
    if isinstance(value, Mapping):
        value = value.get("content")
    return [value] if isinstance(value, str) else []


def _roles(fields: Mapping[str, Any]) -> dict[str, str]:
    """The fields that name one token."""
    return {role: found[0] for role, value in fields.items() if len(found := _contents(value)) == 1}
