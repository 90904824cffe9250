"""Tidy tables on disk: parquet with units and provenance in the schema metadata."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from streamscope.cli.disk import CHECKSUM, parse, with_checksum, write_atomically
from streamscope.cli.errors import InputError
from streamscope.text.readers import first_line


def read_meta(path: Path) -> dict[bytes, bytes]:
    """The schema metadata of a parquet file; `InputError` where it is not what was written with its checksum.

    Other errors are those of the library, for a file that is missing or no parquet.
    """
    meta = pq.read_schema(path).metadata or {}
    sums = parse(meta.get(CHECKSUM, b"{}"), dict[str, str], f"{CHECKSUM.decode()} of {path}")
    for name, was in sums.items():
        if name.encode() not in meta or hashlib.sha256(meta[name.encode()]).hexdigest() != was:
            raise InputError(f"{path} is damaged: {name} is not what was written; restore it, or make it again")
    return dict(meta)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a parquet file; `InputError` for one that is damaged, where pages have a checksum by that."""
    with reading(path):
        return pq.read_table(path, columns=columns, page_checksum_verification=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the library raises for a damaged file as `InputError`."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}); restore it, or make it again") from None


def write_table(table: pd.DataFrame, path: Path, *, units: Mapping[str, str], about: Mapping[str, Any]) -> None:
    """Write parquet under a temporary name, then rename. Schema metadata: `units` and `about`, as JSON.

    Raises `InputError` for a unit of a column that does not exist and for a path that cannot be written.
    """
    strange = sorted(set(units) - set(table.columns))
    if strange:
        raise InputError(f"units given for columns that the table lacks: {', '.join(strange)}")
    rows = pa.Table.from_pandas(table, preserve_index=False)
    meta = {b"units": json.dumps(dict(units)).encode(), b"about": json.dumps(dict(about)).encode()}
    whole = rows.replace_schema_metadata({**(rows.schema.metadata or {}), **with_checksum(meta)})
    write_atomically(path, lambda part: pq.write_table(whole, part, write_page_checksum=True))


def read_about(path: Path) -> dict[str, Any]:
    """The `about` and `units` of a table written here; `InputError` for a file that is no parquet or is damaged."""
    try:
        meta = read_meta(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no parquet file ({str(error).splitlines()[0]})") from None
    return {
        name: parse(meta[name.encode()], dict[str, Any], f"{name} of {path}")
        for name in ("about", "units")
        if name.encode() in meta
    }


def command_of(path: Path) -> str:
    """The instrument or the module, as papers.claims.count, that wrote the table at `path`; "" for no table of ours."""
    try:
        about = read_about(path).get("about", {}) if path.is_file() else {}
    except InputError:
        return ""
    words = about.get("argv", [])
    words = words.split() if isinstance(words, str) else words
    made = words[words.index("-m") + 1].removeprefix("streamscope.") if "-m" in words[:-1] else ""
    return str(about.get("instrument", made if made.startswith("papers.") else ""))


def check_own(path: Path, module: str, folders: Sequence[Path] = ()) -> None:
    """Raise `InputError` if another command than `module` wrote the table at `path`, or if it is a CSV or parquet file
    of somebody else in one of `folders`, which are read."""
    maker = command_of(path)
    if maker and maker != module:
        raise InputError(f"{path} holds a table of {maker}, which would be lost; name another file, or delete it")
    read = path.is_file() and not maker and path.suffix in (".csv", ".parquet")
    if read and any(folder.resolve() in path.resolve().parents for folder in folders):
        raise InputError(f"--out {path} is an input, which would be lost; name another file")
