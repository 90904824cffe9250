"""Locks what one process at a time may write; the system gives a lock back when its process ends.

    with locked(out / ".grid.lock"):                  waits for another holder
        ...
    lock = take(folder / "lock", "it is being written")         or raises `Held` with this line
    give_back(lock)

On a file system without locks the package `filelock` falls back to a file that marks the holder.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from streamscope.cli.errors import InputError


class Held(InputError):
    """Another process holds the lock."""


def take(path: Path, refusal: str | None = None) -> FileLock:
    """Lock the file `path`, which is created. While another holds it, wait, or with `refusal` raise `Held`."""
    lock = FileLock(path, blocking=refusal is None, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise Held(refusal or "") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    return lock


def give_back(lock: FileLock) -> None:
    """Release a lock and remove its file."""
    with suppress(OSError):  # Windows keeps the name of an open file
        Path(lock.lock_file).unlink()
    lock.release()


@contextmanager
def locked(path: Path, refusal: str | None = None) -> Iterator[None]:
    """`take` the lock while the block runs."""
    lock = take(path, refusal)
    try:
        yield
    finally:
        give_back(lock)
