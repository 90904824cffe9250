"""Two sets of texts to contrast: from files, from categories of a suite, or built in.

read_set("happy")                 built in: happy, sad, indoor, outdoor (datasets/contrast)
read_set("harmful.jsonl")         JSONL, the text under "text"; a .txt file holds one text per line
read_set("competing#tool-container")   the prompts of one category or relation of a suite (`instruments.prompts`)

Texts that share something lie in one line: text i of two files of one length (a field "cluster" of JSONL, in every row,
names another line), and prompts of a suite that share a pair, a cluster or a text. Lines are the units of intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamscope.aliases import folder_of
from streamscope.cli.errors import InputError, did_you_mean, near_files, unknown
from streamscope.cli.terminal import counted
from streamscope.text.readers import json_lines, numbered_lines, strings

FOLDER = folder_of("datasets") / "contrast"
BUILT_IN = ("indoor", "outdoor", "happy", "sad")
LEAST = 8  # fewest texts of a set: halves of four


@dataclass(frozen=True)
class PromptSet:
    """Different texts under one name, and the line of each: a name, or without names its place in the source.

    `encode` adds their token ids, BOS first. `repeated` texts of the source are left out, and those `too_long` for the
    context.
    """

    name: str
    texts: Sequence[str]
    lines: Sequence[str | int]
    repeated: int = 0
    tokens: Sequence[list[int]] = ()
    too_long: int = 0

    def only(self, places: Sequence[int]) -> "PromptSet":
        """Some of the encoded texts, by their places."""
        columns = ("texts", "lines", "tokens")
        chosen: dict[str, Any] = {name: [getattr(self, name)[i] for i in places] for name in columns}
        return replace(self, **chosen)


def read_set(source: str) -> PromptSet:
    """The texts of a source (see this module's docstring), each once, in order."""
    if source in BUILT_IN:
        path = FOLDER / f"{source}.jsonl"
        if not path.is_file():
            raise InputError(f"{path} is missing; run from a clone of the repository, which holds datasets/")
        rows = _lines(path)
    elif "#" in source:
        rows = _category(*source.rsplit("#", 1))
    else:
        path = Path(source).expanduser()
        if not path.exists() and (suggestion := did_you_mean(source, BUILT_IN) or near_files(path)):
            raise InputError(f"unknown prompt set {source!r}: {suggestion}")
        if not path.suffix and not path.exists():
            raise unknown("prompt set", source, list(BUILT_IN))
        rows = _lines(path)
    lines: dict[str, str | int] = {}
    for text, line in rows:
        lines.setdefault(text, line)
    if len(lines) < LEAST:
        raise InputError(f"{source}: {len(lines)} different texts; a contrast needs at least {LEAST} on each side")
    name = Path(source).stem if "#" not in source else source
    return PromptSet(name, tuple(lines), tuple(lines.values()), len(rows) - len(lines))


def _lines(path: Path) -> list[tuple[str, str | int]]:
    if path.suffix == ".jsonl":
        rows = list(json_lines(path, '{"text": …}'))
        fields = ("text", "cluster") if any("cluster" in row for _, row in rows) else ("text",)
        values = [strings(place, row, fields) for place, row in rows]
        return [(row[0], row[1] if len(fields) > 1 else i) for i, row in enumerate(values)]
    if path.suffix == ".txt":
        return [(line, i) for i, (_, line) in enumerate(numbered_lines(path))]
    raise InputError(f"{path}: a prompt set is a .jsonl file with a field text, or a .txt file with a text per line")


def _category(suite: str, category: str) -> list[tuple[str, str | int]]:
    from streamscope.instruments.prompts import load_suite
    from streamscope.instruments.prompts.suite import units
    from streamscope.instruments.stats.held_out import unit_of

    prompts = load_suite(suite).prompts
    pairs = zip(prompts, units(prompts), strict=True)
    chosen: list[tuple[str, str | int]] = [
        (p.text, f"{suite} {unit_of(unit)}") for p, unit in pairs if category in (p.category, p.relation)
    ]
    if not chosen:
        names = sorted({p.category for p in prompts} | {p.relation for p in prompts if p.relation is not None})
        raise unknown(f"category of {suite}", category, names)
    return chosen


def contrast(a: str, b: str) -> tuple[PromptSet, PromptSet]:
    """Two sets that share no text, or `InputError`. Without names, lines are shared by sources of one length alone."""
    set_a, set_b = read_set(a), read_set(b)
    if texts := set(set_a.texts) & set(set_b.texts):
        shared = f"{counted(len(texts), 'text')}, such as {min(texts)[:60]!r}"
        raise InputError(f"{a} and {b} share {shared}; remove them from one")
    if len(set_a.texts) + set_a.repeated != len(set_b.texts) + set_b.repeated:
        lines = tuple(line if isinstance(line, str) else -1 - line for line in set_b.lines)
        set_b = replace(set_b, lines=lines)
    return set_a, set_b


def encode(prompts: PromptSet, tokenizer: Any, n_ctx: int, template: str = "{text}") -> PromptSet:
    """The set with token ids, in a template; texts longer than the context or without a token are left out."""
    start, end = template.split("{text}")
    rows: Sequence[list[int]] = tokenizer.encode_batch([start + text + end for text in prompts.texts])
    fitting = [i for i, row in enumerate(rows) if 1 < len(row) <= n_ctx]
    if len(fitting) < LEAST:
        raise InputError(f"{prompts.name}: {len(fitting)} of {len(rows)} texts fit a context of {n_ctx} tokens")
    return replace(prompts, tokens=rows, too_long=len(rows) - len(fitting)).only(fitting)
