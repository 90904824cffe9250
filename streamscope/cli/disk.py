"""What lies on disk: every JSON file, row and piece of metadata is read by one validator, every file written whole.

    read_json(folder / "manifest.json", Manifest)       a file
    read_rows(folder / "metrics.jsonl", Row)             a file of rows
    parse(text, About, where="x.parquet")                metadata inside another file

A kind is a `TypedDict`: fields that a reader uses have their types here, others may be there and pass through. What is
missing, of another type, too deep, no UTF-8 or no regular file (a pipe would be waited for without end) raises
`InputError` that names file, field and remedy. This module imports nothing heavy.
"""

import hashlib
import json
import os
import re
import secrets
import socket
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, Required

from typing_extensions import TypedDict

from streamscope.cli.bounds import LARGEST_INT, SplitAt
from streamscope.cli.errors import InputError

# ---- what a run folder holds -------------------------------------------------------------------


class Source(TypedDict):
    """Where documents came from."""

    source: str


class Packed(TypedDict):
    """A packed corpus: its fingerprint, its size and where it came from."""

    corpus: str
    n_tokens: int
    n_documents: int
    source: Source
    rule: NotRequired[str]


class TokenizerOf(TypedDict):
    """A tokenizer by its content."""

    sha256: str


class DataOf(TypedDict):
    """What a run was trained and validated on."""

    train: Packed
    valid: Packed
    tokenizer: TokenizerOf


class Parent(TypedDict):
    """The run that a derived one was made from."""

    run: str


class Manifest(TypedDict, total=False):
    """manifest.json: who made a run, from what, how far it came."""

    preset: str
    scale: str | None
    seed: int | None
    parameters: int
    argv: list[str]
    commit: str | None
    data: DataOf
    parent: Parent
    step: int
    steps: int | None
    outcome: str
    wall_seconds: float
    weights: str
    config_sha256: str


class Listed(Manifest):
    """The manifest of a run that can be listed."""

    preset: Required[str]  # type: ignore[misc]
    scale: Required[str | None]  # type: ignore[misc]
    parameters: Required[int]  # type: ignore[misc]


class Trained(Listed):
    """The manifest of a run that was trained on packed data."""

    argv: Required[list[str]]  # type: ignore[misc]
    data: Required[DataOf]  # type: ignore[misc]


class Sources(TypedDict):
    """The data options of a training."""

    data: str
    valid: str | None
    text_field: str
    max_documents: int | None
    split_at: NotRequired[SplitAt]
    valid_fraction: NotRequired[float | None]
    valid_blocks: NotRequired[int | None]


class Config(TypedDict):
    """config.json: the format, the model's configuration, and how and on what it was trained."""

    format: int
    model: dict[str, Any]
    training: NotRequired[dict[str, Any]]
    data: NotRequired[dict[str, Any]]


class ValidatedConfig(Config):
    """config.json of a run that says what it was validated on, if it does."""

    data: NotRequired[Sources]  # type: ignore[misc]


class TrainedConfig(Config):
    """config.json of a training."""

    training: Required[dict[str, Any]]  # type: ignore[misc]
    data: Required[Sources]  # type: ignore[misc]


class Pairs(TypedDict):
    """The data options of a fine-tuning."""

    data: str
    valid: str | None


class TunedConfig(Config):
    """config.json of a fine-tuning."""

    training: Required[dict[str, Any]]  # type: ignore[misc]
    sft: Pairs


class Checked(Parent):
    """A parent whose weights must be the same still."""

    sha256: str


class Tuned(Manifest):
    """The manifest of a fine-tuning."""

    parent: Required[Checked]  # type: ignore[misc]
    sft: Required[dict[str, Any]]


class State(TypedDict):
    """What is written beside a sharded checkpoint."""

    step: int
    config: str
    state: dict[str, Any]


class Row(TypedDict):
    """A row of metrics.jsonl."""

    step: int
    kind: str


class Evaluation(Row):
    """Loss on the validation data."""

    loss: float
    perplexity: float


class Sample(Row):
    """A text that the model wrote."""

    text: str


class Mixing(Row):
    """A number about a mixing matrix."""

    module: str
    metric: str
    part: str
    value: float | None


ROWS: dict[str, type] = {"eval": Evaluation, "sample": Sample, "mixing": Mixing}
"""What the rows of a kind have besides step and kind."""


class Snapshot(TypedDict):
    """A line of snapshots.json."""

    step: int
    sha256: str


# ---- reading -----------------------------------------------------------------------------------


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config

    for one in _dicts(kind):
        with_config(ConfigDict(extra="allow", allow_inf_nan=True))(one)
    return TypeAdapter(kind)


def _dicts(kind: Any) -> Iterator[Any]:
    """The `TypedDict`s in a kind."""
    import typing

    from typing_extensions import is_typeddict

    if is_typeddict(kind):
        yield kind
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            yield from _dicts(hint)
    for inner in typing.get_args(kind):
        yield from _dicts(inner)


def parse(text: str | bytes, kind: Any, where: object, remedy: str = "restore it, or make it again") -> Any:
    """JSON as a kind, with a byte order mark or without; `InputError` naming `where`, field and remedy otherwise."""
    from pydantic import ValidationError

    text = text.removeprefix("\ufeff") if isinstance(text, str) else text.removeprefix(BOM_UTF8)
    try:
        found = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        told = f"{field}: {first['msg']}" if field else first["msg"]
        raise InputError(f"{where} is damaged ({told[0].lower()}{told[1:]}); {remedy}") from None
    if (large := _too_large(found)) is not None:
        raise InputError(f"{where} is damaged (a number of {len(str(large))} digits); {remedy}")
    return found


def _too_large(value: Any) -> int | None:
    """A whole number in a value that 64 bits do not hold."""
    values = [value]
    while values:
        one = values.pop()
        if isinstance(one, dict):
            values += one.values()
        elif isinstance(one, list):
            values += one
        elif isinstance(one, int) and abs(one) > LARGEST_INT:
            return one
    return None


def read_bytes(path: Path, missing: str = "check the path") -> bytes:
    """A file's content; `InputError` for what is missing, may not be read or is no regular file."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no file; {missing}")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {missing}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; {missing}") from None


def read_json(path: Path, kind: Any = Any, remedy: str = "restore it or train the run again") -> Any:
    """A JSON file as a kind; `InputError` as `read_bytes` and `parse`."""
    return parse(read_bytes(path, f"{path.parent} is no complete run folder"), kind, path, remedy)


def read_toml(path: Path, kind: Any, remedy: str = "restore it") -> Any:
    """A TOML file as a kind; `InputError` as `read_bytes` and `parse`. Arrays may be tuples of the kind."""
    import json
    import tomllib

    text = read_bytes(path, f"{path} is missing; {remedy}").decode("utf-8-sig", errors="replace")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is damaged ({error}); {remedy}") from None
    return parse(json.dumps(found), kind, path, remedy)


def read_rows(path: Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl. A torn last line is dropped unless `strict`; other damage raises `InputError`."""
    rows: list[dict[str, Any]] = []
    lines = read_bytes(path, f"{path.parent} is no complete run folder").split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse(line, Row, f"{path}:{number}", "--resume repairs a torn last line")
            rows.append(parse(line, ROWS[row["kind"]], f"{path}:{number}") if row["kind"] in ROWS else row)
        except InputError:
            if strict or any(later.strip() for later in lines[number:]):
                raise
    return rows


# ---- writing -----------------------------------------------------------------------------------


CHECKSUM = b"sha256"
"""In the metadata of a parquet file: sha256 of the other entries, by their names. Of the rows every page has a CRC."""


def with_checksum(meta: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Metadata with `CHECKSUM` of its entries, so that a change of any byte is noticed."""
    sums = {name.decode(): hashlib.sha256(entry).hexdigest() for name, entry in meta.items()}
    return {**meta, CHECKSUM: json.dumps(sums).encode()}


def write_atomically(path: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Put a new file at `path`: write(a temporary name of this process), sync, rename, sync the folder.

    The file has the mode that the umask leaves, whatever wrote it. With `keep` the file that was there gets that name.
    Raises `InputError` where it cannot be written; then, and where the user stops it, the previous file is untouched.
    """
    part = path.with_name(f".{path.name[:190]}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_parts(path.parent)
        part.touch()
        mode = stat.S_IMODE(part.stat().st_mode)
        write(part)
        part.chmod(mode)  # safetensors makes files that only their owner can read
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(part, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            left = "the previous file is untouched" if path.exists() else "nothing was written"
            raise InputError(f"cannot write {path}: {error.strerror or error}; {left}") from None
        raise


@cache
def _host() -> str:
    """This machine, in the names of its temporary files."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


@cache
def _remove_parts(folder: Path) -> None:
    """Delete the temporary files that killed processes of this machine left in a folder; once per process."""
    for part in folder.glob(f".*.{_host()}-*.part"):
        found = re.search(r"-(\d+)-[0-9a-f]{8}\.part$", part.name)
        if found and not _lives(int(found[1])):
            with suppress(OSError):
                part.unlink()


def _lives(pid: int) -> bool:
    """Whether this machine has a process of this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        pass
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all (`write_atomically`)."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; some file systems cannot, and need not."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_writable(path: Path) -> None:
    """Raise `InputError` where a file cannot be made at `path`; its folder is made if it is not there.

    An empty file is made in that folder and taken away again: permissions do not say whether a file system takes files.
    """
    part = path.parent / f".probe.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        if os.path.isdir(path):  # a name that is too long is no error there
            raise InputError(f"cannot write {path}: it is a folder; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        part.unlink()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def check_folder(folder: Path) -> None:
    """Raise `InputError` where `folder` is a file, or cannot be made and written to."""
    if os.path.isfile(folder):
        raise InputError(f"--out {folder} is a file; give a folder")
    check_writable(folder / "README.md")
