"""One process at a time writes a run folder.

The file `lock` in it is locked by the process that trains (`flock`, which ends with the process, however it ends) and
says who that is. Where two machines share a folder but not its locks, the file's time tells: a training touches it at
every row of its log, and one of another machine counts for `EXPIRES` seconds after that.
"""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.cli.provenance import now

NAME = "lock"
EXPIRES = 600.0
"""Seconds after which a process of another machine that was not heard of is taken for dead."""


class Lock:
    """Held from creation to `release`, or as long as somebody has this object. Raises `InputError` when another process
    trains in the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file = -1
        try:
            self._open()
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from None
        silent = time.time() - os.fstat(self._file).st_mtime
        if self._holder().get("host", socket.gethostname()) != socket.gethostname() and silent < EXPIRES:
            self._refuse(f"wait {EXPIRES - silent:.0f} s if that machine is gone, or delete {self.path}")
        os.ftruncate(self._file, 0)
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        os.pwrite(self._file, json.dumps(me).encode(), 0)

    def _open(self) -> None:
        """Open and lock the file; once more where its last holder removed it in between."""
        while True:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse("wait for it to end, or stop it")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), self.path.stat()):
                    return
            self._close()

    def _refuse(self, remedy: str) -> None:
        holder = self._holder()
        self._close()
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')} since {holder.get('since', '?')}"
        raise InputError(f"{self.path.parent} is being trained by {who}: {remedy}")

    def _holder(self) -> dict[str, Any]:
        """What the file says; nothing where its writer was killed over it."""
        with suppress(ValueError):
            found = json.loads(os.pread(self._file, 4096, 0))
            return found if isinstance(found, dict) else {}
        return {}

    def touch(self) -> None:
        """Say that the process lives."""
        os.utime(self._file)

    def release(self) -> None:
        """Give the folder free; the file goes."""
        self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close()
