"""Locks an output: commands with the same work share its folder, others are refused meanwhile.

    with share_output(folder, "description of the work", out):
        ...                              # unfinished work in `folder`; the last command deletes it

Each command holds a lock (`flock`, which always ends with the process) on a file named after its work. On Windows, and
on file systems without locks (such as Lustre mounted without flock), nothing is locked and nobody is refused.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamscope.cli.disk import lock as lock_file
from streamscope.cli.errors import InputError


@contextmanager
def share_output(folder: Path, work: str, out: Path, *, keep: bool = False) -> Iterator[None]:
    """Hold `folder` with unfinished work on `out`; delete it at the end, unless others still hold it or with `keep`.

    Raises `InputError` if another command does other work for the same `out`.
    """
    own = folder / f"{hashlib.sha256(work.encode()).hexdigest()[:16]}.lock"
    lock = _hold(own)
    try:
        for other in folder.glob("*.lock"):
            if other != own and _locked(other):
                raise InputError(f"another command is writing {out} with other runs or options: give another --out")
        yield
        if not keep and _lock(lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if own.exists() and _lock(lock):
            own.unlink(missing_ok=True)
            with suppress(OSError):  # not empty: unfinished work, which the same command continues
                folder.rmdir()
        os.close(lock)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until nobody else who holds `folder` is here: files that belong together are of one save."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:  # on Windows a folder is no file
        yield
        return
    try:
        _lock(lock, wait=True)
        yield
    finally:
        os.close(lock)


def _hold(path: Path) -> int:
    """Take the shared lock of a file; try again if its last holder deleted it in between."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the folder was deleted in between
            continue
        except OSError as error:
            raise InputError(f"cannot write {path.parent}: {error.strerror}") from None
        _lock(lock, shared=True, wait=True)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        os.close(lock)


def _lock(lock: int, *, shared: bool = False, wait: bool = False) -> bool:
    """`disk.lock`, by default for nobody else; True as well on a file system without locks."""
    try:
        return lock_file(lock, shared=shared, wait=wait)
    except OSError:
        return True


def _locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; an unheld file is deleted."""
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if not _lock(lock):
            return True
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(lock)
