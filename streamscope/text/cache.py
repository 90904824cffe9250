"""Folders that are built once and then read from the cache.

A folder is built under a temporary name and renamed, so a killed run or two parallel runs never leave half a folder. A
folder that cannot be read (a truncated file, a full disk) is built again.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from streamscope.cli.errors import InputError

Entry = TypeVar("Entry")
REBUILDS = 3


def cache_root(root: str | Path | None = None) -> Path:
    """The folder of the cache: `root`, else `$STREAMSCOPE_CACHE`, else `~/.cache/streamscope`."""
    return Path(root or os.environ.get("STREAMSCOPE_CACHE") or "~/.cache/streamscope").expanduser()


def cached(folder: Path, build: Callable[[Path], None], read: Callable[[Path], Entry]) -> Entry:
    """Return `read(folder)`, after filling a missing or damaged folder by `build`.

    `build` writes into an empty folder; an exception leaves no trace. `read` raises `InputError` for a missing or
    damaged folder. Raises `InputError` if the cache cannot be written, or does not keep its content.
    """
    for _ in range(REBUILDS):
        try:
            return read(folder)
        except InputError:
            with _scratch(folder) as scratch:
                built = Path(scratch) / "built"
                built.mkdir()
                build(built)
                _install(built, folder, read)
    try:
        return read(folder)
    except InputError as error:
        raise InputError(f"{error}: damaged {REBUILDS} times after being written; check the disk") from error


def _scratch(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A hidden temporary folder on the file system of `folder`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{folder.name[:12]}-", dir=folder.parent)
    except OSError as error:
        where = f"{folder.parent}: cannot be written ({error.strerror})"
        raise InputError(f"{where}; set STREAMSCOPE_CACHE to a writable folder") from error


def _install(built: Path, folder: Path, read: Callable[[Path], object]) -> None:
    """Rename `built` to `folder`, replacing a damaged folder, unless another run has built a valid one."""
    try:
        read(folder)
        return
    except InputError:
        pass
    with contextlib.suppress(FileNotFoundError):  # there was none, or another run moved it first
        os.rename(folder, built.parent / "damaged")
    try:
        os.rename(built, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # otherwise another run was faster, and the caller reads its folder
