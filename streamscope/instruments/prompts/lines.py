"""Reading files of lines, with the place of every line for the error that names it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.text.readers import check_content


def read_text(path: Path) -> str:
    """The whole file as UTF-8; `InputError` for one that is missing, no text or a pointer of Git LFS."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; check the path") from None
    check_content(path)
    return text


def numbered(path: Path) -> Iterator[tuple[str, str]]:
    """("file:line", line) of the lines that are not blank; at least one, or `InputError`."""
    rows = [(f"{path}:{i}", line) for i, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    if not rows:
        raise InputError(f"{path}: the file is empty")
    yield from ((where, line.rstrip("\r")) for where, line in rows)


def json_lines(path: Path, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", object) of a JSONL file; `InputError` naming the line and `expected` for anything else."""
    for where, line in numbered(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected {expected} on each line, found {line[:60]!r}")
        yield where, row


def strings(where: str, row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """The values of `names`, which must be there and be text."""
    for name in names:
        if not isinstance(row.get(name), str):
            raise InputError(f"{where}: expected an object with text under {', '.join(names)}; {name!r} is missing")
    return tuple(row[name] for name in names)
