"""Who writes one output: commands that do the same work share its folder, others are refused while one works.

    with shared(folder, "what is done", out):
        ...                              # unfinished work in `folder`; it goes with the last that ends well

Each command holds a lock (`flock`, which ends with the process, however it ends) on a file named after its work.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamscope.cli.errors import InputError


@contextmanager
def shared(folder: Path, work: str, out: Path, *, keep: bool = False) -> Iterator[None]:
    """Hold `folder`, where unfinished work on `out` lies; delete it at the end, unless others hold it still.

    `keep` leaves it, for the one who waits for a worker's part.
    Raises `InputError` where another command does other work for the same `out`.
    """
    own = folder / f"{hashlib.sha256(work.encode()).hexdigest()[:16]}.lock"
    lock = _held(own)
    try:
        for other in folder.glob("*.lock"):
            if other != own and _locked(other):
                raise InputError(f"another command is writing {out}, of other runs or options: give another --out")
        yield
        if not keep and _alone(lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if own.exists() and _alone(lock):
            own.unlink(missing_ok=True)
            with suppress(OSError):  # unfinished work, for the same command to go on with
                folder.rmdir()
        os.close(lock)


def _held(path: Path) -> int:
    """The lock of a file, shared; taken again where its last holder deleted it in between."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the folder was deleted in between
            continue
        except OSError as error:
            raise InputError(f"cannot write {path.parent}: {error.strerror}") from None
        fcntl.flock(found, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(found), path.stat()):
                return found
        os.close(found)


def _alone(lock: int) -> bool:
    """Whether nobody else holds the lock; then it is held alone."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; one that nobody holds is deleted."""
    try:
        found = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if not _alone(found):
            return True
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(found)
