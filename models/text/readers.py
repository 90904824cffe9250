"""Reading documents out of files, incrementally, with errors that say where.

Memory is bounded by the largest document (text), line (JSON Lines), row group (Parquet) or batch of rows (Arrow).
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from streamscope.models.errors import InputError
from streamscope.models.text import END_OF_TEXT, SplitAt

SUFFIXES = (".txt", ".txt.gz", ".md", ".jsonl", ".jsonl.gz", ".parquet", ".arrow")
PARQUET_ROWS = 1024
BLANK = re.compile(r"(?:\n|\r)[ \t]*(?=[\n\r])\s*")
"""One blank line and more, in any convention of line ends (CRLF is LF already)."""


def read_file(path: Path, text_field: str, split_at: SplitAt = "separator") -> Iterator[str]:
    """The raw texts of one file whose name ends in one of `SUFFIXES`.

    A JSON Lines object or a row of Parquet or Arrow is one text, its `text_field`. A text file is cut behind the
    lines that hold `<|endoftext|>`, which stays in the text; with "blank" at blank lines as well, with
    "file" not at all: a separator in it counts as a blank line.

    Raises:
        InputError: names the file and the byte that is not UTF-8 (counted after decompression) or is NUL,
            the line that is not a JSON object with the field, or the columns when that one is missing.
    """
    if path.suffix == ".parquet":
        return _read_parquet(path, text_field)
    if path.suffix == ".arrow":
        return _read_arrow(path, text_field)
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _read_jsonl(path, text_field)
    texts = _read_text(path)
    if split_at == "file":
        return iter(["".join(texts).replace(END_OF_TEXT, "\n\n")])
    return chain.from_iterable(map(BLANK.split, texts)) if split_at == "blank" else texts


def visible_files(folder: Path) -> list[Path]:
    """Every file below `folder` in order of path, without hidden files and folders."""
    below = ((path.relative_to(folder).parts, path) for path in folder.rglob("*"))
    visible = [(parts, path) for parts, path in below if not any(p.startswith(".") for p in parts)]
    return [path for _, path in sorted(visible) if path.is_file()]


def digest(path: Path, root: Path) -> dict[str, Any]:
    """Name below `root`, sha256 and size of one file, for fingerprints and manifests."""
    try:
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
    return {"name": path.relative_to(root).as_posix(), "sha256": sha256, "bytes": path.stat().st_size}


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> InputError:
    """The error for a file that does not open, or breaks off."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return InputError(f"{path}: cannot be read ({why}); check the file")


def _decode(raw: bytes, start: int, path: Path) -> str:
    """`raw` as UTF-8, where `start` is its byte offset in the (uncompressed) file; CRLF becomes LF."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = start + error.start
        raise InputError(f"{path}: not UTF-8 at byte {byte}; convert the file to UTF-8") from error
    if "\0" in text:
        byte = start + raw.index(0)
        raise InputError(
            f"{path}: a NUL at byte {byte}, no text; convert a UTF-16 file to UTF-8, leave a binary one out"
        )
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
    start = 0
    for number, raw in enumerate(_lines(path), 1):
        line = _decode(raw, start, path)
        start += len(raw)
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not a JSON value ({error}); write one object per line") from error
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise InputError(f"{where}: a JSON {kind}, not an object with a field {text_field!r}")
        if text_field not in row:
            raise no_field(where, text_field, row)
        yield checked_text(row[text_field], where)


def _read_parquet(path: Path, text_field: str) -> Iterator[str]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if text_field not in names:
                raise no_field(str(path), text_field, names)
            for rows in file.iter_batches(batch_size=PARQUET_ROWS, columns=[text_field]):
                for value in rows.column(0).to_pylist():
                    yield checked_text(value, str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a readable Parquet file ({first_line(error)})") from error


def _read_arrow(path: Path, text_field: str) -> Iterator[str]:
    """A stream of Arrow, as `datasets` writes into its cache, or a file of it."""
    import pyarrow
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(path)) as file:
            framed = file.read(6) == b"ARROW1"
            file.seek(0)
            read = pyarrow.ipc.open_file(file) if framed else pyarrow.ipc.open_stream(file)
            if text_field not in read.schema.names:
                raise no_field(str(path), text_field, read.schema.names)
            batches = map(read.get_batch, range(read.num_record_batches)) if framed else read
            for rows in batches:
                for value in rows.column(text_field).to_pylist():
                    yield checked_text(value, str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a readable Arrow file ({first_line(error)})") from error


def checked_text(value: object, where: str) -> str:
    """`value` as a document's text; a null is an empty document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: the text is a {type(value).__name__}, not a string; name another field")
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise InputError(f"{where}: the text holds a lone surrogate, which UTF-8 cannot hold; remove it")
    return value


def no_field(where: str, text_field: str, fields: Iterable[str]) -> InputError:
    """The error for a missing text field; it lists the fields there are."""
    known = ", ".join(fields) or "none"
    return InputError(f"{where}: no field {text_field!r}; it has {known}; name one of them")


def first_line(error: Exception) -> str:
    """What `error` says, on one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
