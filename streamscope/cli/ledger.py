"""Many tasks, any number of workers: each task is done by one of them, survives their death, and is done once.

    ledger = Ledger(Path("runs/grid/.ledger"))
    ledger.work(["lfa-s0", "lfa-s1"], do)         what a worker does; start as many as you like, wherever the folder is
    ledger.state("lfa-s0")                        done, with what `do` returned, or failed, running, open

Workers that `--launch` starts and the trainings of a grid meet here. A command that works alone needs none of it: it
writes parts and skips those that exist.

    NAME.claim-3      a worker holds NAME: made by an atomic create, touched every few seconds while it works
    NAME.done         what do(NAME) returned, written last, so that a task is done or not
    NAME.failed       the line that says why it could not be done; other tasks go on

A claim is dead when it has not been touched for `expires` seconds, or when its process is gone from this machine. A
dead one is taken over by creating the next number, which only one worker can: the highest number holds. A worker that
was only asleep may then do the task at the same time as its heir. So what a task writes must appear whole (under a
temporary name, renamed) and be the same from every worker: results do not depend on how many workers there were, nor on
which died.
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamscope.cli.disk import is_alive
from streamscope.cli.errors import InputError

NAME = re.compile(r"[\w@+=,.-]+")
EXPIRES = 60.0
"""Seconds without a sign of life after which a claim of another machine is dead."""


class Released(Exception):
    """Raised by a task that stops unfinished, as on a signal: its claim is given back, and the worker ends."""


class Gone(Exception):
    """The ledger's folder was deleted under a worker: all was done, and whoever saw that has tidied up."""


@dataclass(frozen=True)
class State:
    """Where a task stands."""

    kind: str
    """open, running, done or failed."""
    detail: Any = None
    """What a done one returned, why a failed one failed, who holds a running one."""


class Ledger:
    """The tasks of a folder; see this module's docstring."""

    def __init__(self, folder: Path, *, expires: float = EXPIRES) -> None:
        self.folder, self.expires = folder, expires
        self._made = False

    # ---- what a worker does ----------------------------------------------------------------------

    def work(
        self,
        tasks: Sequence[str],
        do: Callable[[str], Any],
        *,
        wait: bool = False,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Do the tasks that nobody has done or holds, one after the other. `do` returns plain JSON data.

        `wait` stays until those that others hold are done, or dead and then done here. An `InputError` of a task is
        recorded as its failure; any other exception ends the worker and leaves the task open. `after` is called after
        every task, for a progress bar. Raises `InputError` for a name that is no file name, and `Gone`.
        """
        for name in tasks:
            if not NAME.fullmatch(name):
                raise InputError(f"task {name!r}: letters, digits and @ + = , . - _ only")
        self._make()
        while True:
            held = False
            for name in tasks:
                if self._over(name):
                    continue
                with self._claim(name) as mine:
                    held |= not mine
                    if mine and not self._over(name):  # else another was done with it in the meantime
                        try:
                            self._write(name, "done", do(name))
                        except Released:
                            return
                        except InputError as error:
                            self._write(name, "failed", str(error))
                        after()
            if not (wait and held):
                return
            time.sleep(min(1.0, self.expires / 4))

    def forget(self, name: str) -> None:
        """Open a task again that failed, or whose output is gone."""
        for kind in ("done", "failed"):
            (self.folder / f"{name}.{kind}").unlink(missing_ok=True)

    # ---- what one can ask ------------------------------------------------------------------------

    def state(self, name: str) -> State:
        """Where a task stands now."""
        for kind in ("done", "failed"):
            path = self.folder / f"{name}.{kind}"
            if path.is_file():
                try:
                    return State(kind, json.loads(path.read_text(encoding="utf-8")))
                except (ValueError, RecursionError):
                    raise InputError(f"{path} is damaged: delete it, and the task is done again") from None
        found = self._last_claim(name)
        if found is not None and self._alive(found[1]):
            return State("running", _who(found[1]))
        return State("open")

    # ---- claims ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _claim(self, name: str) -> Iterator[bool]:
        """Hold a task while the context lasts; False where another worker does."""
        found = self._last_claim(name)
        if found is not None and self._alive(found[1]):
            yield False
            return
        path = self.folder / f"{name}.claim-{0 if found is None else found[0] + 1}"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:  # another was faster
            yield False
            return
        except FileNotFoundError:
            raise Gone(f"{self.folder} is gone") from None
        me = {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}
        with os.fdopen(handle, "w") as file:
            json.dump(me, file)
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(self.expires / 6):
                with contextlib.suppress(OSError):
                    os.utime(path)

        heart = threading.Thread(target=beat, daemon=True)
        heart.start()
        try:
            yield True
        finally:
            stop.set()
            heart.join()
            for old in self._claims(name):  # this one and the dead before it; a successor's stays
                if old[0] <= int(path.suffix.removeprefix(".claim-")):
                    old[1].unlink(missing_ok=True)

    def _claims(self, name: str) -> list[tuple[int, Path]]:
        start = f"{name}.claim-"
        numbers = (p.name.removeprefix(start) for p in self.folder.glob(f"{name}.claim-*"))
        return sorted((int(n), self.folder / f"{start}{n}") for n in numbers if n.isdecimal())

    def _last_claim(self, name: str) -> tuple[int, Path] | None:
        return max(self._claims(name), default=None)

    def _alive(self, claim: Path) -> bool:
        """Whether the holder of a claim gave a sign of life lately, by the clock of the file system."""
        try:
            silent = self._now() - claim.stat().st_mtime
            holder = json.loads(claim.read_text())
        except FileNotFoundError:
            return False  # given back
        except ValueError:
            return silent < self.expires  # being written
        if holder.get("host") == socket.gethostname() and _born(holder.get("pid", -1)) != holder.get("born"):
            return False
        return silent < self.expires

    def _now(self) -> float:
        """The file system's time: workers on several machines may have clocks that differ."""
        probe = self.folder / f".now-{uuid.uuid4().hex}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except FileNotFoundError:
            raise Gone(f"{self.folder} is gone") from None
        finally:
            probe.unlink(missing_ok=True)

    # ---- files -----------------------------------------------------------------------------------

    def _make(self) -> None:
        """Create the folder, once: a worker that would create it again would do everything again."""
        if self._made:
            return
        self._made = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create {self.folder}: {error.strerror}") from None

    def _over(self, name: str) -> bool:
        return any((self.folder / f"{name}.{kind}").exists() for kind in ("done", "failed"))

    def _write(self, name: str, kind: str, value: Any) -> None:
        path = self.folder / f"{name}.{kind}"
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        part.write_text(json.dumps(value, indent=1), encoding="utf-8")
        os.replace(part, path)


def _who(claim: Path) -> str:
    try:
        holder = json.loads(claim.read_text())
        return f"{holder['host']}, process {holder['pid']}"
    except (OSError, ValueError, KeyError):
        return "another worker"


def _born(pid: int) -> str | None:
    """When a process of this machine began, so that a number that is used again is no sign of life; None if gone.

    Where there is no /proc it is "unknown" for every process that is alive.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    return "unknown" if is_alive(pid) else None
