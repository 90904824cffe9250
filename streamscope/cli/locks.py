"""Locks what one process at a time may write; the system gives a lock back when its process ends.

    with locked(out / ".grid.lock"):                              waits for another holder
    with locked(folder / "lock", "it is being written"):          or raises `Held` with this line

On a file system without locks the package `filelock` falls back to a file that marks the holder.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from streamscope.cli.errors import InputError


class Held(InputError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock while the block runs: the file `path`, which is then removed."""
    lock = FileLock(path, blocking=refusal is None, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise Held(refusal or "") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows keeps the name of an open file
            path.unlink()
        lock.release()
