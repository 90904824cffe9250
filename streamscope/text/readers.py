"""Reads documents from files incrementally, with errors that name the place.

Memory is bounded by the largest document (text), line (JSON Lines), row (CSV), row group (Parquet) or batch of rows
(Arrow); a .json file with a single value is read completely.
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from streamscope.cli.disk import sha256
from streamscope.cli.errors import InputError, near_files
from streamscope.text import END_OF_TEXT, SplitAt

PLAIN = (".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
PACKED = (".gz", ".zst")
SUFFIXES = (*PLAIN, *(kind + packed for kind in PLAIN for packed in PACKED), ".parquet", ".arrow")
KINDS = f"{', '.join(PLAIN)} (also {' and '.join(PACKED)}), .parquet, .arrow"
"""The supported kinds of files, for messages."""
POINTER = b"version https://git-lfs.github.com/spec/"
LONGEST_FIELD = 2**31 - 1
"""Maximum characters in a CSV field; the library's default is 131,072."""
PARQUET_ROWS = 1024
BLANK = re.compile(r"(?:\n|\r)[ \t]*(?=[\n\r])\s*")
"""One or more blank lines, with any line ends (CRLF is already LF)."""


def read_file(path: Path, text_field: str, split_at: SplitAt = "separator") -> Iterator[str]:
    """Read the raw texts of a file with one of `SUFFIXES`.

    The `text_field` of a JSON Lines object, an entry of a JSON list, or a row of CSV, Parquet or Arrow is one text. A
    list of messages there is a chat (`chat_text`), and so is the field messages if there is no field text. A text file
    is split after lines with `<|endoftext|>`, which stays in the text; with "blank" also at blank lines; with "file"
    not at all, and a separator becomes a blank line.

    Raises `InputError` with the file and the byte that is not UTF-8 (after decompression) or is NUL, the line that is
    not a JSON object with the field, or the available columns; also for a Git LFS pointer.
    """
    check_content(path)
    kind = suffix_of(path).removesuffix(".gz").removesuffix(".zst")
    if kind == ".parquet":
        return _read_parquet(path, text_field)
    if kind == ".arrow":
        return _read_arrow(path, text_field)
    if kind in (".jsonl", ".ndjson"):
        return _read_jsonl(path, text_field)
    if kind == ".json":
        return _read_json(path, text_field)
    if kind in (".csv", ".tsv"):
        return _read_csv(path, text_field, "," if kind == ".csv" else "\t")
    texts = _read_text(path)
    if split_at == "file":
        return iter(["".join(texts).replace(END_OF_TEXT, "\n\n")])
    return chain.from_iterable(map(BLANK.split, texts)) if split_at == "blank" else texts


def check_content(path: Path) -> None:
    """Raise `InputError` for a Git LFS pointer, and for a file that cannot be opened."""
    try:
        with open(path, "rb") as file:
            pointer = file.read(len(POINTER)) == POINTER
    except OSError as error:
        raise read_error(path, error) from error
    if pointer:
        raise InputError(f"{path} is a Git LFS pointer, not the file itself; run git lfs pull")


def suffix_of(path: Path) -> str:
    """The suffix of a file among `SUFFIXES`, ignoring case; "" for an unsupported file."""
    return max((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), key=len, default="")


def visible_files(folder: Path) -> list[Path]:
    """Every file below `folder`, sorted by path, without hidden files and folders.

    Links are followed, except to an enclosing folder. Raises `InputError` for a folder that cannot be opened.
    """
    files, todo = list[Path](), [(folder, frozenset[str]())]
    while todo:
        at, above = todo.pop()
        if (real := os.path.realpath(at)) in above:
            continue
        try:
            visible = [path for path in at.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            raise read_error(at, error) from error
        files += [path for path in visible if path.is_file()]
        todo += [(path, above | {real}) for path in visible if path.is_dir()]
    return sorted(files, key=lambda path: path.relative_to(folder).parts)


def digest(path: Path, root: Path) -> dict[str, Any]:
    """Name below `root`, sha256 and size of a file, for fingerprints and manifests; `InputError` for a pointer."""
    check_content(path)
    try:
        return {"name": path.relative_to(root).as_posix(), "sha256": sha256(path), "bytes": path.stat().st_size}
    except OSError as error:
        raise read_error(path, error) from error


def numbered_lines(path: Path, *, may_be_empty: bool = False) -> Iterator[tuple[str, str]]:
    """("file:line", text) of the lines that are not blank. Raises `InputError` as `read_file`, and where there are
    none, unless the file `may_be_empty`."""
    check_content(path)
    for number, line in enumerate(_decoded(path), 1):
        if line.strip():
            may_be_empty = True
            yield f"{path}:{number}", line.removesuffix("\n")
    if not may_be_empty:
        raise InputError(f"{path}: the file is empty")


def json_lines(path: Path, expected: str, *, may_be_empty: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", object) of a JSONL file; `InputError` that names the line and `expected` for anything else."""
    for where, line in numbered_lines(path, may_be_empty=may_be_empty):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected {expected} on each line, found {line[:60]!r}")
        yield where, row


def strings(where: str, row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """The values of `names`, which must be there and be text."""
    for name in names:
        if not isinstance(row.get(name), str):
            raise InputError(f"{where}: expected an object with text under {', '.join(names)}; {name!r} is missing")
    return tuple(row[name] for name in names)


def _decoded(path: Path) -> Iterator[str]:
    """The lines of a text file."""
    start = 0
    for raw in _lines(path):
        yield _decode(raw, start, path)
        start += len(raw)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise read_error(path, error) from error


def _open(path: Path) -> io.BufferedIOBase:
    """Open a file to read, decompressed by its suffix."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path)
    if path.suffix.lower() == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return open(path, "rb")


def read_error(path: Path, error: Exception) -> InputError:
    """The `InputError` for a file that cannot be opened, or is incomplete."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    near = near_files(path) if isinstance(error, FileNotFoundError) else ""
    return InputError(f"{path}: cannot be read ({why}); {near or 'check the file'}")


def _decode(raw: bytes, start: int, path: Path) -> str:
    """Decode UTF-8 that begins at byte `start` of the uncompressed file; CRLF becomes LF."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = start + error.start
        raise InputError(f"{path}: not UTF-8 at byte {byte}; convert the file to UTF-8") from error
    if "\0" in text:
        byte = start + raw.index(0)
        change = "convert a UTF-16 file to UTF-8, remove a stray NUL, leave out a binary file"
        raise InputError(f"{path}: NUL at byte {byte}; {change}")
    return (text.removeprefix("\ufeff") if start == 0 else text).replace("\r\n", "\n")


def _read_text(path: Path) -> Iterator[str]:
    separator = END_OF_TEXT.encode()
    start, parts = 0, list[bytes]()
    for line in _lines(path):
        parts.append(line)
        if separator in line:
            raw = b"".join(parts)
            yield _decode(raw, start, path)
            start += len(raw)
            parts.clear()
    if parts:
        yield _decode(b"".join(parts), start, path)


def _read_jsonl(path: Path, text_field: str) -> Iterator[str]:
    for where, row in json_lines(path, f"an object with a field {text_field!r}", may_be_empty=True):
        yield record_text(row, text_field, where)


def _read_json(path: Path, text_field: str) -> Iterator[str]:
    """Read a list of objects or texts, one object, or (often in .json files) one object per line."""
    try:
        lined = isinstance(json.loads(next(filter(bytes.strip, _lines(path)), b"")), dict)
    except (ValueError, RecursionError):
        lined = False
    if lined:
        yield from _read_jsonl(path, text_field)
    elif (text := _decode(b"".join(_lines(path)), 0, path)).strip():
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not a JSON value ({error}); write a list of objects") from error
        for number, row in enumerate(value if isinstance(value, list) else [value], 1):
            where = f"{path}: record {number}"
            if not isinstance(row, str | dict):
                raise InputError(f"{where}: a JSON {type(row).__name__}, not an object with a field {text_field!r}")
            yield checked_text(row, where) if isinstance(row, str) else record_text(row, text_field, where)


def _read_csv(path: Path, text_field: str, delimiter: str) -> Iterator[str]:
    """Read CSV as in RFC 4180; the first line names the columns."""
    csv.field_size_limit(LONGEST_FIELD)
    rows = csv.reader(_decoded(path), delimiter=delimiter, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            return
        name = field_of(header, text_field, str(path))
        if header.count(name) > 1:
            raise InputError(f"{path}: {header.count(name)} columns are called {name!r}; rename all but one")
        for row in filter(None, rows):
            if len(row) != len(header):
                raise InputError(
                    f"{path}:{rows.line_num}: {len(row)} fields, but the first line has {len(header)}; quote "
                    "texts with commas or line ends"
                )
            yield checked_text(row[header.index(name)], f"{path}:{rows.line_num}")
    except csv.Error as error:
        raise InputError(f"{path}:{rows.line_num}: not CSV ({error}); check the quotes") from error


def _read_parquet(path: Path, text_field: str) -> Iterator[str]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            name = field_of(file.schema_arrow.names, text_field, str(path))
            for rows in file.iter_batches(batch_size=PARQUET_ROWS, columns=[name]):
                for value in rows.column(0).to_pylist():
                    yield value_text(value, str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a readable Parquet file ({first_line(error)})") from error


def _read_arrow(path: Path, text_field: str) -> Iterator[str]:
    """Read an Arrow stream (the format of the cache of `datasets`) or an Arrow file."""
    import pyarrow
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(path)) as file:
            framed = file.read(6) == b"ARROW1"
            file.seek(0)
            read = pyarrow.ipc.open_file(file) if framed else pyarrow.ipc.open_stream(file)
            name = field_of(read.schema.names, text_field, str(path))
            batches = map(read.get_batch, range(read.num_record_batches)) if framed else read
            for rows in batches:
                for value in rows.column(name).to_pylist():
                    yield value_text(value, str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a readable Arrow file ({first_line(error)})") from error


def record_text(row: Mapping[str, Any], text_field: str, where: str) -> str:
    """The document of a record: the text or chat in its field. Raises `InputError` like `field_of` and `value_text`."""
    return value_text(row[field_of(row, text_field, where)], where)


def field_of(names: Iterable[str], text_field: str, where: str) -> str:
    """The field with the text: `text_field`, or messages if there is no field text.

    Raises `InputError` with the available fields if there is neither.
    """
    known = list(names)
    if text_field in known:
        return text_field
    if text_field == "text" and "messages" in known:
        return "messages"
    there = ", ".join(known) or "none"
    raise InputError(f"{where}: no field {text_field!r}; it has {there}; name one of them with --text-field")


def value_text(value: object, where: str) -> str:
    """Convert a field's value, a string or a list of messages, to a document."""
    return chat_text(value, where) if isinstance(value, list) else checked_text(value, where)


def chat_text(messages: Sequence[Any], where: str) -> str:
    """Convert a chat to a document with a line "Role: content" per message, as in the template of `text.pairs`.

    A message is {"role": …, "content": …}; content is a string or a list of parts {"type": "text", "text": …}. Raises
    `InputError` for others.
    """
    lines = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise InputError(f"{where}: message {number} is a {type(message).__name__}, not an object with a role")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise InputError(f"{where}: message {number} has no role: give every message role and content")
        parts = content if isinstance(content, list) else [{"text": content}]
        values = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
        texts = [text for text in values if isinstance(text, str)]
        if len(texts) < len(values):
            raise InputError(f"{where}: message {number} has no content in text: leave it out")
        lines.append(f"{role.capitalize()}: {checked_text(''.join(texts), where)}")
    return "\n".join(lines)


def checked_text(value: object, where: str) -> str:
    """Check that a value is a text; null is an empty document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: the text is a {type(value).__name__}, not a string; name another field")
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise InputError(f"{where}: the text holds a lone surrogate, which UTF-8 cannot hold; remove it")
    return value


def first_line(error: Exception) -> str:
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
