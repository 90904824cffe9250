"""Reads JSON files, rows and metadata with validation, and writes files atomically.

    read_json(folder / "manifest.json", Manifest)       a file
    read_rows(folder / "metrics.jsonl", Row)             a file of rows
    parse(text, About, place="x.parquet")                metadata inside another file

A kind is a `TypedDict`: the fields that a reader uses have types here, and other fields are kept. Missing fields, other
types, too deep nesting, other encodings than UTF-8, and files that are not regular (reading a pipe would never end)
raise `InputError` with file, field and remedy. This module imports nothing heavy.
"""

import glob
import hashlib
import json
import os
import secrets
import stat
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NotRequired

from typing_extensions import TypedDict, is_typeddict

from streamscope.cli.bounds import LARGEST_INT, SplitAt
from streamscope.cli.errors import InputError, reading

# ruff: noqa: UP013  # what files must hold, as a list; nobody makes one of these in Python
Source = TypedDict("Source", {"source": str})
Digest = TypedDict("Digest", {"sha256": str})
PackedCorpus = TypedDict(
    "PackedCorpus",
    {"corpus": str, "n_tokens": int, "n_documents": int, "source": Source, "rule": NotRequired[str]},
)
DataOf = TypedDict("DataOf", {"train": PackedCorpus, "valid": PackedCorpus, "tokenizer": Digest})
Parent = TypedDict("Parent", {"run": str, "sha256": NotRequired[str]})
"""The run that a derived run started from, and its weights where they must not have changed."""
Manifest = TypedDict(
    "Manifest",
    {
        "preset": str, "scale": str | None, "seed": int | None, "parameters": int, "argv": list[str],
        "commit": str | None, "data": DataOf, "parent": Parent, "sft": dict[str, Any], "step": int, "steps": int | None,
        "outcome": str, "wall_seconds": float, "weights": str, "config_sha256": str,
    },
    total=False,
)  # fmt: skip
"""manifest.json: origin, data and progress of a run."""
Sources = TypedDict(
    "Sources",
    {
        "data": str, "valid": str | None, "text_field": str, "max_documents": int | None,
        "split_at": NotRequired[SplitAt], "valid_fraction": NotRequired[float | None],
        "valid_blocks": NotRequired[int | None],
    },
)  # fmt: skip
"""The data options of a training."""
Pairs = TypedDict("Pairs", {"data": str, "valid": str | None})
Config = TypedDict(
    "Config",
    {
        "format": int, "model": dict[str, Any], "training": NotRequired[dict[str, Any]],
        "data": NotRequired[dict[str, Any]], "sft": NotRequired[Pairs],
    },
)  # fmt: skip
"""config.json: the model of a run, and how it was trained, on text (`data`) or on pairs (`sft`)."""
ValidatedConfig = TypedDict("ValidatedConfig", {"format": int, "model": dict[str, Any], "data": NotRequired[Sources]})
TrainedConfig = TypedDict(
    "TrainedConfig", {"format": int, "model": dict[str, Any], "training": dict[str, Any], "data": Sources}
)
Row = TypedDict(
    "Row",
    {
        "step": int, "kind": str, "loss": NotRequired[float], "perplexity": NotRequired[float],
        "text": NotRequired[str], "module": NotRequired[str], "metric": NotRequired[str], "part": NotRequired[str],
        "value": NotRequired[float | None],
    },
)  # fmt: skip
"""A row of metrics.jsonl: a loss, a text sampled from the model, or a number about a mixing matrix."""
Snapshot = TypedDict("Snapshot", {"step": int, "sha256": str})


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config

    config = ConfigDict(extra="allow", allow_inf_nan=True)  # also of the `TypedDict`s inside
    if is_typeddict(kind):
        return TypeAdapter(with_config(config)(kind))
    return TypeAdapter(kind) if isinstance(kind, type) else TypeAdapter(kind, config=config)  # a model has its own


def parse(
    text: str | bytes, kind: Any, place: object, remedy: str = "restore it, or make it again", any_int: bool = False,
    needs: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Parse JSON (with or without a byte order mark) as a kind; `InputError` with `place`, field and remedy.

    `needs` are optional fields of the kind that must be there.

    An integer beyond 64 bits is damage, unless `any_int`: the files of a tokenizer write "no limit" as 10³⁰.
    """
    from pydantic import ValidationError

    text = text.removeprefix("\ufeff") if isinstance(text, str) else text.removeprefix(BOM_UTF8)
    try:
        value = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        message = f"{field}: {first['msg']}" if field else first["msg"]
        raise InputError(f"{place} is damaged ({message[0].lower()}{message[1:]}); {remedy}") from None
    for name in needs:
        if name not in value:
            raise InputError(f"{place} is damaged ({name}: Field required); {remedy}")
    values = [] if any_int else [value]
    while values:
        item = values.pop()
        if isinstance(item, dict | list):
            values += item.values() if isinstance(item, dict) else item
        elif isinstance(item, int) and abs(item) > LARGEST_INT:
            raise InputError(f"{place} is damaged (a number of {len(str(item))} digits); {remedy}")
    return value


def read_bytes(path: Path, missing: str = "check the path") -> bytes:
    """Read a file; `InputError` if it is missing, unreadable or not a regular file."""
    with reading(path, missing):
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a file; {missing}")
        return path.read_bytes()


def sha256(path: Path) -> str:
    """sha256 of a file as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(
    path: Path, kind: Any = Any, remedy: str = "restore it or train the run again", any_int: bool = False,
    needs: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Read a JSON file as a kind; `InputError` like `read_bytes` and `parse`."""
    return parse(read_bytes(path, f"{path.parent} is not a complete run folder"), kind, path, remedy, any_int, needs)


def read_toml(path: Path, kind: Any, remedy: str = "restore it") -> Any:
    """Read a TOML file as a kind; `InputError` like `read_bytes` and `parse`. Arrays may be tuples of the kind."""
    import tomllib

    with reading(path, remedy):
        value = tomllib.loads(read_bytes(path, remedy).decode("utf-8-sig"))
    return parse(json.dumps(value, default=str), kind, path, remedy)  # a date is its text


def read_rows(path: Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """Read metrics.jsonl. An incomplete last line is dropped unless `strict`; other damage raises `InputError`."""
    rows: list[dict[str, Any]] = []
    lines = read_bytes(path, f"{path.parent} is not a complete run folder").split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(parse(line, Row, f"{path}:{number}", "--resume repairs an incomplete last line"))
        except InputError:
            if strict or any(later.strip() for later in lines[number:]):
                raise
    return rows


STALE = 3600.0  # seconds after its last change at which a temporary file is one that a killed process left


def write_atomically(path: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Write a file at `path`: call `write` on a temporary name, sync, rename, sync the folder.

    With `keep`, the previous file is renamed to it. After an error it is unchanged.
    """
    part = path.with_name(f".{path.name[:190]}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for stale in path.parent.glob(f".{glob.escape(path.name[:190])}.*.part"):  # left by a killed process
            with suppress(FileNotFoundError):  # another process has given it its name
                if time.time() - stale.stat().st_mtime > STALE:
                    stale.unlink()
        part.touch()
        mode = stat.S_IMODE(part.stat().st_mode)
        write(part)
        part.chmod(mode)  # safetensors writes files that only their owner can read
        with open(part, "r+b") as file:  # Windows syncs only what is open for writing
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(part, path)
        with suppress(OSError):  # a file system that cannot
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            outcome = "the previous file is unchanged" if path.exists() else "nothing was written"
            raise InputError(f"cannot write {path}: {error.strerror or error}; {outcome}") from None
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file by `write_atomically`."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def check_writable(path: Path) -> None:
    """Raise `InputError` if a file cannot be written at `path`, in a folder that is there or can be made."""
    if os.path.isdir(path):  # does not raise for a name that is too long
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    try:
        with suppress(FileNotFoundError):
            path.lstat()  # raises for a name that is too long, and for a folder that is a file
        with TemporaryFile(dir=next(filter(os.path.exists, path.absolute().parents))):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def check_folder(folder: Path) -> None:
    """Raise `InputError` if `folder` is a file, or cannot be created and written."""
    if os.path.isfile(folder):
        raise InputError(f"--out {folder} is a file: give a folder")
    check_writable(folder / "README.md")
