"""Folders that are built once and then read from the cache.

A folder is built under a temporary name and renamed, so a killed run never leaves half a folder; a second run waits for
the first one's. A folder that cannot be read (a truncated file, a full disk) is built again.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from streamscope.cli.errors import InputError

Entry = TypeVar("Entry")


def cache_root(root: str | Path | None = None) -> Path:
    """The folder of the cache: `root`, else `$STREAMSCOPE_CACHE`, else `~/.cache/streamscope`."""
    return Path(root or os.environ.get("STREAMSCOPE_CACHE") or "~/.cache/streamscope").expanduser()


def cached(folder: Path, build: Callable[[Path], object], load: Callable[[Path], Entry]) -> Entry:
    """Return `load(folder)`, which raises `InputError` for a missing or damaged folder, then filled by `build`."""
    from streamscope.cli.locks import locked

    with suppress(InputError):
        return load(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=f".{folder.name[:12]}-", dir=folder.parent)
    except OSError as error:
        cause = f"{folder.parent}: cannot be written ({error.strerror})"
        raise InputError(f"{cause}; set STREAMSCOPE_CACHE to a writable folder") from error
    with temporary as scratch, locked(folder.with_name(f".{folder.name}.lock")):
        with suppress(InputError):
            return load(folder)  # another run has built it
        built = Path(scratch) / "built"
        built.mkdir()
        build(built)
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
    try:
        return load(folder)
    except InputError as error:
        raise InputError(f"{error}: damaged after being written; check the disk") from error
