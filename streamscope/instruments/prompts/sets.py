"""Two sets of texts to contrast: from files, from categories of a suite, or built in.

read_set("happy")                 built in: happy, sad, indoor, outdoor (datasets/contrast)
read_set("harmful.jsonl")         JSONL, the text under "text"; a .txt file holds one text per line
read_set("coreference#gender")    the prompts of one category or relation of a suite (`instruments.prompts`)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError, unknown
from streamscope.rooms import folder_of
from streamscope.text.readers import json_lines, numbered_lines, strings

FOLDER = folder_of("datasets") / "contrast"
BUILT_IN = ("indoor", "outdoor", "happy", "sad")
LEAST = 8
"""Fewest texts of a set: halves of four."""


@dataclass(frozen=True)
class PromptSet:
    """Different texts under one name, and how many repeated ones of the source were left out."""

    name: str
    texts: tuple[str, ...]
    repeated: int = 0


@dataclass(frozen=True)
class Rows:
    """A set's texts and their token ids, BOS first, and how many were longer than the context and left out."""

    name: str
    texts: list[str]
    tokens: list[list[int]]
    too_long: int


def read_set(source: str) -> PromptSet:
    """The texts of a source (see this module's docstring), each once, in order.

    Raises `InputError` for a missing file, a bad line (named), an unknown set or category, fewer than `LEAST` texts.
    """
    if source in BUILT_IN:
        path = FOLDER / f"{source}.jsonl"
        if not path.is_file():
            raise InputError(f"{path} is missing; run from a clone of the repository, which holds datasets/")
        texts = _lines(path)
    elif "#" in source:
        texts = _category(*source.rsplit("#", 1))
    else:
        path = Path(source).expanduser()
        if not path.suffix and not path.exists():
            raise unknown("prompt set", source, list(BUILT_IN))
        texts = _lines(path)
    kept = tuple(dict.fromkeys(texts))
    if len(kept) < LEAST:
        raise InputError(f"{source}: {len(kept)} different texts; a contrast needs at least {LEAST} on each side")
    return PromptSet(Path(source).stem if "#" not in source else source, kept, len(texts) - len(kept))


def _lines(path: Path) -> list[str]:
    if path.suffix == ".jsonl":
        return [strings(where, row, ("text",))[0] for where, row in json_lines(path, '{"text": …}')]
    if path.suffix == ".txt":
        return [line for _, line in numbered_lines(path)]
    raise InputError(f"{path}: a prompt set is a .jsonl file with a field text, or a .txt file with a text per line")


def _category(suite: str, category: str) -> list[str]:
    from streamscope.instruments.prompts import load_suite

    prompts = load_suite(suite).prompts
    chosen = [p.text for p in prompts if category in (p.category, p.relation)]
    if not chosen:
        known = sorted({p.category for p in prompts} | {p.relation for p in prompts if p.relation is not None})
        raise unknown(f"category of {suite}", category, known)
    return chosen


def contrast(a: str, b: str) -> tuple[PromptSet, PromptSet]:
    """Two sets that share no text, or `InputError`."""
    one, other = read_set(a), read_set(b)
    both = set(one.texts) & set(other.texts)
    if both:
        raise InputError(f"{a} and {b} share {len(both)} texts, such as {sorted(both)[0][:60]!r}; remove them from one")
    return one, other


def check_template(template: str) -> None:
    """Raise `InputError` unless the template holds {text} exactly once."""
    if template.count("{text}") != 1:
        raise InputError(f"template {template!r} must hold {{text}} exactly once")


def encode(prompts: PromptSet, tokenizer: Any, n_ctx: int, template: str = "{text}") -> Rows:
    """Token ids of the texts in their template; those longer than the context or without a token are left out.

    Raises `InputError` when fewer than `LEAST` remain.
    """
    check_template(template)
    before, after = template.split("{text}")
    rows: Sequence[list[int]] = tokenizer.encode_batch([before + text + after for text in prompts.texts])
    kept = {text: row for text, row in zip(prompts.texts, rows, strict=True) if 1 < len(row) <= n_ctx}
    if len(kept) < LEAST:
        raise InputError(f"{prompts.name}: {len(kept)} of {len(rows)} texts fit a context of {n_ctx} tokens")
    return Rows(prompts.name, list(kept), list(kept.values()), len(rows) - len(kept))
