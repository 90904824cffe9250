"""Folders that are built once and found again: whole, or not there.

A cached folder is built aside and renamed into place, so neither a killed run nor two runs at once
leave half of one; a folder that does not open (a truncated file, a full disk) is built again.
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
    """`root`, else `$STREAMSCOPE_CACHE`, else `~/.cache/streamscope`."""
    return Path(root or os.environ.get("STREAMSCOPE_CACHE") or "~/.cache/streamscope").expanduser()


def cached(folder: Path, build: Callable[[Path], None], read: Callable[[Path], Entry]) -> Entry:
    """`read(folder)`, after `build` has filled it if it is missing or damaged.

    Args:
        build: writes the content into the empty folder it is given; an exception leaves no trace.
        read: opens a folder; raises `InputError` for one that is missing or damaged.

    Raises:
        InputError: the cache cannot be written, or does not keep what is written.
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
    """A hidden folder beside `folder`, hence on the same file system; it removes itself."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{folder.name[:12]}-", dir=folder.parent)
    except OSError as error:
        where = f"{folder.parent}: cannot be written ({error.strerror})"
        raise InputError(f"{where}; set STREAMSCOPE_CACHE to a folder that can") from error


def _install(built: Path, folder: Path, read: Callable[[Path], object]) -> None:
    """Rename `built` to `folder`, unless another run put a sound one there; a damaged one goes."""
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
            raise  # else another run was faster; the caller reads what it left
