"""Ensures that only one process at a time writes a run folder.

The training process locks the file `lock` in it (`flock`, which always ends with the process) and writes its identity
to it. If two machines share a folder but not its locks, the file's time decides: a training touches it at every row of
its log, and the lock of another machine counts for `EXPIRES` seconds after that.
"""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamscope.cli.disk import lock as lock_file
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import now

NAME = "lock"
EXPIRES = 600.0
"""Seconds without a sign of life after which a process of another machine counts as dead."""


class Lock:
    """The lock of a run folder, held until `release` or until this object is deleted.

    Raises `InputError` when another process trains in the folder.
    """

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
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, json.dumps(me).encode())

    def _open(self) -> None:
        """Open and lock the file; try again if its last holder removed it in between."""
        while True:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            if not lock_file(self._file):
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
        """The content of the file; {} if its writer was killed while writing."""
        with suppress(ValueError):
            os.lseek(self._file, 0, os.SEEK_SET)
            holder = json.loads(os.read(self._file, 4096))
            return holder if isinstance(holder, dict) else {}
        return {}

    def touch(self) -> None:
        """Show that the process is alive."""
        os.utime(self._file if os.utime in os.supports_fd else self.path)

    def release(self) -> None:
        """Release the folder and remove the file."""
        with suppress(PermissionError):  # Windows keeps the name of an open file
            self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close()
