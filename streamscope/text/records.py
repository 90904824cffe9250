"""Rows with named fields, of JSON lines, CSV, parquet, or a Hugging Face dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.text.readers import json_lines, rows, suffix_of


def is_records(source: str) -> bool:
    """Whether the source is a dataset (hf:…) or a file that is there."""
    return source.startswith("hf:") or Path(source).expanduser().is_file()


def records(source: str, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", fields) of every row; `source` is a file, or hf:ID[:CONFIG][:SPLIT]. Cells of CSV are text, and
    empty ones are left out. Raises `InputError` for a file that cannot be read, and for JSON lines other than
    `expected`."""
    if source.startswith("hf:"):
        from streamscope.text.corpus import HubCorpus, open_corpus  # no command needs it for its help

        hub = open_corpus(source)
        assert isinstance(hub, HubCorpus)
        yield from ((f"{source}, row {i}", row) for i, row in enumerate(hub.records(), 1))
        return
    path = Path(source).expanduser()
    if not suffix_of(path).startswith((".csv", ".tsv", ".parquet")):
        yield from json_lines(path, expected)
        return
    where = ""
    for where, row in rows(path, expected):
        yield where, {name: value for name, value in row.items() if value not in (None, "")}
    if not where:
        raise InputError(f"{path}: the file is empty")
