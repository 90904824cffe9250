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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from streamscope.cli.disk import sha256
from streamscope.cli.errors import InputError, near_files, reading
from streamscope.text import END_OF_TEXT, SplitAt

PLAIN = (".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
PACKED = (".gz", ".zst")
SUFFIXES = (*PLAIN, *map("".join, product(PLAIN, PACKED)), ".parquet", ".arrow")
KINDS = f"{', '.join(PLAIN)} (also {' and '.join(PACKED)}), .parquet, .arrow"
"""The supported kinds of files, for messages."""
CHECK = "check the file"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SPLITS = {
    "train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}  # fmt: skip
"""Splits of a dataset, and the words for them in file and folder names, as in `datasets`."""
CACHED = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")
"""Cached results of `map` and `filter` in a folder of `datasets`."""
ABOUT = re.compile(
    r"(licen[cs]e|readme|copying)(?![a-z]).*|notice|citation|authors|contributors|changelog|requirements"
    r"|dataset_infos?|dataset_dict|state",
    re.IGNORECASE,
)
"""Stems of files about the data."""
UNREAD = (
    *PACKED, ".zip", ".tar", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".lz4", ".pkl", ".pickle", ".pt", ".npy", ".npz",
    ".bin", ".h5", ".hdf5", ".feather", ".orc", ".avro", ".db", ".sqlite", ".xls", ".xlsx", ".xml", ".html", ".htm",
    ".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub", ".tex", ".rst", ".text", ".raw", ".tokens",
)  # fmt: skip
"""Suffixes of files that may hold text but cannot be read; a folder with one is refused."""
POINTER = b"version https://git-lfs.github.com/spec/"
BLANK = re.compile(r"(?:\n|\r)[ \t]*(?=[\n\r])\s*")  # one or more blank lines, with any line ends (CRLF is already LF)


def read_file(path: Path, text_field: str, split_at: SplitAt = "separator") -> Iterator[str]:
    """Read the raw texts of a file with one of `SUFFIXES`.

    The `text_field` of a record (`rows`) is one text, and a list of messages there a chat (`record_text`). A text file
    is split after lines with `<|endoftext|>`, which stays in the text; with "blank" also at blank lines; with "file"
    not at all, and a separator becomes a blank line.
    """
    if not suffix_of(path).startswith((".txt", ".md")):
        expected = f"an object with a field {text_field!r}"
        for place, row in rows(path, expected, lambda names: [field_of(names, text_field, str(path))]):
            yield checked_text(row, place) if isinstance(row, str) else record_text(row, text_field, place)
        return
    with reading(path, CHECK):
        check_content(path)
        texts = _decoded(path, END_OF_TEXT.encode())
        if split_at == "file":
            yield "".join(texts).replace(END_OF_TEXT, "\n\n")
        else:
            yield from chain.from_iterable(map(BLANK.split, texts)) if split_at == "blank" else texts


def rows(path: Path, expected: str, columns: Callable[[list[str]], list[str]] = list) -> Iterator[tuple[str, Any]]:
    """("file:line", fields) of every record of a file, or its text where a JSON list holds texts.

    JSON lines and JSON values have `expected` records; of CSV, Parquet and Arrow only `columns` of the names are read.
    """
    kind = suffix_of(path).removesuffix(".gz").removesuffix(".zst")
    with reading(path, CHECK):
        check_content(path)
        if kind in (".csv", ".tsv"):
            yield from _read_csv(path, "," if kind == ".csv" else "\t", columns)
        elif kind in (".parquet", ".arrow"):
            records = chain.from_iterable(batch.to_pylist() for batch in _read_batches(path, columns))
            yield from ((f"{path}, row {i}", row) for i, row in enumerate(records, 1))
        else:
            yield from (_read_json if kind == ".json" else json_lines)(path, expected)


def check_content(path: Path) -> None:
    """Raise `InputError` for a Git LFS pointer, and for a file that cannot be opened."""
    with reading(path, CHECK if path.exists() else near_files(path) or CHECK), open(path, "rb") as file:
        pointer = file.read(len(POINTER)) == POINTER
    if pointer:
        raise InputError(f"{path} is a Git LFS pointer, not the file itself; run git lfs pull")


def suffix_of(path: Path) -> str:
    """The suffix of a file among `SUFFIXES`, ignoring case; "" for an unsupported file."""
    return max(filter(path.name.lower().endswith, SUFFIXES), key=len, default="")


def visible_files(folder: Path) -> list[Path]:
    """Every file below `folder`, sorted by path, without hidden files and folders.

    Links are followed, except to an enclosing folder.
    """
    files, todo = list[Path](), [(folder, frozenset[str]())]
    while todo:
        directory, above = todo.pop()
        if (real := os.path.realpath(directory)) in above:
            continue
        with reading(directory, "check the folder"):
            visible = [path for path in directory.iterdir() if not path.name.startswith(".")]
        files += [path for path in visible if path.is_file()]
        todo += [(path, above | {real}) for path in visible if path.is_dir()]
    return sorted(files, key=lambda path: path.relative_to(folder).parts)


def files_of(source: str, folder: Path) -> tuple[Path, ...]:
    """The files of a folder to read, or of its train split (see `text.corpus`), each text once."""
    visible = visible_files(folder)
    if unread := next((p for p in visible if p.name.lower().endswith(UNREAD) and not suffix_of(p)), None):
        raise InputError(f"{unread} cannot be read (only {KINDS}): unpack it, or move it elsewhere")
    candidates = [p for p in visible if suffix_of(p) and not CACHED.fullmatch(p.name)]
    texts = [p for p in candidates if not ABOUT.fullmatch(p.name.partition(".")[0])] or candidates
    files = [p for p in texts if suffix_of(p) != ".md"] or texts
    if not files:
        raise InputError(f"{source}: no {KINDS} file in this folder")
    splits = [_split_of(path.relative_to(folder), anywhere=True) for path in files]
    if not all(splits):
        splits = [_split_of(path.relative_to(folder)) for path in files]
    by_split: dict[str, list[Path]] = {}
    for path, split in zip(files, splits, strict=True):
        by_split.setdefault(split, []).append(path)
    of_none, split_names = by_split.pop("", []), ", ".join(sorted(by_split))
    if by_split.keys() <= {"train"} or (len(by_split) == 1 and not of_none):
        by_split = {"train": files}
    elif of_none:
        more = f"{of_none[0].relative_to(folder)}, which belongs to none"
        raise InputError(f"{source} has the splits {split_names} and {more}: name the file or folder of one split")
    if "train" not in by_split:
        raise InputError(f"{source} has the splits {split_names}: name the file or folder of one split")
    paths: dict[str, Path] = {}
    for path in by_split["train"]:
        if (twin := paths.setdefault(str(path)[: -len(suffix_of(path))], path)) is not path:
            raise InputError(f"{twin} and {path.name} bear one name, so this may be one text twice: name the file to "
                             "read, or move one elsewhere")  # fmt: skip
    return tuple(by_split["train"])


def _split_of(path: Path, *, anywhere: bool = False) -> str:
    """The split of a file, from a folder above it or the first or last word of its name; "" for none.

    With `anywhere`, words in the middle count too: en_train_v1 belongs to train, but a title may contain such a word by
    chance.
    """
    stem = path.name.lower().removesuffix(suffix_of(path))
    words = [word for word in re.split(r"[^a-z]+", stem) if word not in ("", "of")]
    for word in (*(part.lower() for part in path.parts[:-1]), *words[:1], *words[-1:], *(words if anywhere else ())):
        for split, names in SPLITS.items():
            if word in names:
                return split
    return ""


def is_saved(folder: Path) -> bool:
    """Whether a folder is one of `datasets`' `save_to_disk`."""
    is_dataset = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return is_dataset or (folder / "dataset_dict.json").is_file()


def digest(path: Path, root: Path) -> dict[str, Any]:
    """Name below `root`, sha256 and size of a file, for fingerprints and manifests; `InputError` for a pointer."""
    check_content(path)
    with reading(path, CHECK):
        return {"name": path.relative_to(root).as_posix(), "sha256": sha256(path), "bytes": path.stat().st_size}


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """("file:line", text) of the lines that are not blank."""
    empty = True
    with reading(path, CHECK):
        check_content(path)
        for number, line in enumerate(_decoded(path), 1):
            if line.strip():
                empty = False
                yield f"{path}:{number}", line.removesuffix("\n")
    if empty:
        raise InputError(f"{path}: the file is empty")


def json_lines(path: Path, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", object) of a JSONL file; `InputError` that names the line and `expected` for anything else."""
    for place, line in numbered_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{place}: expected {expected} on each line, found {line[:60]!r}")
        yield place, row


def strings(place: str, row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """The values of `names`, which must be there and be text."""
    if lacking := [name for name in names if not isinstance(row.get(name), str)]:
        raise InputError(f"{place}: expected an object with text under {', '.join(names)}; {lacking[0]!r} is missing")
    return tuple(row[name] for name in names)


def _decoded(path: Path, end: bytes = b"\n") -> Iterator[str]:
    """The text of a file in pieces, each up to a line with `end`. It must be UTF-8; CRLF becomes LF."""
    start, parts = 0, list[bytes]()
    openers: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".zst": _open_zst}
    with openers.get(path.suffix.lower(), partial(open, mode="rb"))(path) as file:
        for line in chain(file, (b"",)):
            parts.append(line)
            if line and end not in line:
                continue
            raw = b"".join(parts)
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = start + error.start
                raise InputError(f"{path}: not UTF-8 at byte {byte}; convert the file to UTF-8") from error
            if "\0" in text:
                change = "convert a UTF-16 file to UTF-8, remove a stray NUL, leave out a binary file"
                raise InputError(f"{path}: NUL at byte {start + raw.index(0)}; {change}")
            if text:
                yield (text.removeprefix("\ufeff") if start == 0 else text).replace("\r\n", "\n")
            start += len(raw)
            parts.clear()


def _open_zst(path: Path) -> io.BufferedIOBase:
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))


def _read_json(path: Path, expected: str) -> Iterator[tuple[str, Any]]:
    """Read a list of objects or texts, one object, or (often in .json files) one object per line."""
    try:
        lined = isinstance(json.loads(next(filter(str.strip, _decoded(path)), "")), dict)
    except (ValueError, RecursionError):
        lined = False
    if lined:
        yield from json_lines(path, expected)
    elif (text := "".join(_decoded(path))).strip():
        value = json.loads(text)
        for number, row in enumerate(value if isinstance(value, list) else [value], 1):
            place = f"{path}: record {number}"
            if not isinstance(row, str | dict):
                raise InputError(f"{place}: a JSON {type(row).__name__}, not {expected}")
            yield place, row


def _read_csv(
    path: Path, delimiter: str, columns: Callable[[list[str]], list[str]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Read CSV as in RFC 4180; the first line names the columns."""
    csv.field_size_limit(2**31 - 1)  # the library's default is 131,072
    lines = csv.reader(_decoded(path), delimiter=delimiter, strict=True)
    try:
        header = next(lines, [])
        names = columns(header) if header else []
        for name in names:
            if header.count(name) > 1:
                raise InputError(f"{path}: {header.count(name)} columns are called {name!r}; rename all but one")
        for row in filter(None, lines):
            place = f"{path}:{lines.line_num}"
            if len(row) != len(header):
                words = f"{len(row)} fields, but the first line has {len(header)}"
                raise InputError(f"{place}: {words}; quote texts with commas or line ends")
            yield place, {name: row[header.index(name)] for name in names}
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: not CSV ({error}); check the quotes") from error


def _read_batches(path: Path, columns: Callable[[list[str]], list[str]]) -> Iterator[Any]:
    """Read parquet, an Arrow stream (the format of the cache of `datasets`) or an Arrow file."""
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet

    if suffix_of(path) == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as parquet:
            yield from parquet.iter_batches(batch_size=1024, columns=columns(parquet.schema_arrow.names))
        return
    with pyarrow.memory_map(str(path)) as file:
        framed = file.read(6) == b"ARROW1"
        file.seek(0)
        reader = pyarrow.ipc.open_file(file) if framed else pyarrow.ipc.open_stream(file)
        names = columns(reader.schema.names)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if framed else reader:
            yield batch.select(names)


def record_text(row: Mapping[str, Any], text_field: str, place: str) -> str:
    """The document of a record: the text, or the chat (a list of messages), in its field."""
    value = row[field_of(row, text_field, place)]
    return chat_text(value, place) if isinstance(value, list) else checked_text(value, place)


def field_of(names: Iterable[str], text_field: str, place: str) -> str:
    """The field with the text: `text_field`, or messages if there is no field text."""
    fields = list(names)
    if text_field in fields:
        return text_field
    if text_field == "text" and "messages" in fields:
        return "messages"
    listing = ", ".join(fields) or "none"
    raise InputError(f"{place}: no field {text_field!r}; it has {listing}; name one of them with --text-field")


def chat_text(messages: Sequence[Any], place: str) -> str:
    """Convert a chat to a document with a line "Role: content" per message, as in the template of `text.pairs`.

    A message is {"role": …, "content": …}; content is a string or a list of parts {"type": "text", "text": …}.
    """
    lines = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise InputError(f"{place}: message {number} is a {type(message).__name__}, not an object with a role")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise InputError(f"{place}: message {number} has no role: give every message role and content")
        parts = content if isinstance(content, list) else [{"text": content}]
        values = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
        texts = [text for text in values if isinstance(text, str)]
        if len(texts) < len(values):
            raise InputError(f"{place}: message {number} has no content in text: leave it out")
        lines.append(f"{role.capitalize()}: {checked_text(''.join(texts), place)}")
    return "\n".join(lines)


def checked_text(value: object, place: str) -> str:
    """A value that is a text; "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{place}: the text is a {type(value).__name__}, not a string; name another field")
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise InputError(f"{place}: the text holds a lone surrogate, which UTF-8 cannot hold; remove it")
    return value


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
