"""How far a measurement is: the bar of a command, the bar of a notebook, and what an instrument tells either of them.

for batch in progress(batches): ...                   an instrument wraps its steps in what `observe` is given
tick = ticks(progress, len(batches) * len(edits))     or counts them, where they are not one loop
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

from streamscope.cli.provenance import peak_resident_bytes
from streamscope.cli.terminal import counted, visible

Progress = Callable[[Iterable], Iterable]
DELAY, EVERY = 3.0, 1.0
"""Seconds after which a bar appears, since what is quicker needs none, and between two signs of it."""
LOG_EVERY = 8.0  # most seconds between two signs of life on stderr
_SIGNS: list[tuple[Event, str]] = []
"""What gives a sign of life, the innermost last: its end, and the label of work that has no bar, "" of a bar."""
_LAST_SIGN = [0.0]  # when the last sign was given (`time.monotonic`)


def say(progress: Any, line: str) -> None:
    """Print a line on stderr if `progress` is a command's bar; for other callables, nothing."""
    getattr(progress, "say", lambda line: None)(line)


def notebook_bar(label: str) -> Callable[[Iterable], Iterable]:
    """A wrapper of iterables that shows a bar with the time left: in a notebook, in IPython, and in a command that has
    none at the time; elsewhere `iter`."""
    if _SIGNS:  # a measurement inside that of a command, as of features that `cluster` extracts now
        return progress_bar(f"{_SIGNS[-1][1]}: {label}") if _SIGNS[-1][1] else iter
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return iter
    from tqdm import tqdm

    bar = partial(tqdm, desc=visible(label), leave=False, delay=DELAY, mininterval=EVERY)
    bar.say = lambda line: tqdm.write(visible(line), file=sys.stderr)  # type: ignore[attr-defined]
    return bar


def ticks(progress: Progress, total: int) -> Callable[[int], None]:
    """A function that advances a bar of `total` steps by n; 0 ends it, −1 closes it after an interruption."""
    bar = iter(progress(range(total)))

    def done(n: int) -> None:
        if n < 0:
            getattr(bar, "close", lambda: None)()
        for _ in range(n) if n else bar:
            next(bar, None)

    return done


FIRST_SECONDS, LONG_SECONDS = 2.0, 10.0
"""A sweep is timed for `FIRST_SECONDS`. If it will take more than `LONG_SECONDS`, its duration is announced."""


class Forecast:
    """Says on stderr how long a sweep will take, once it has run for `FIRST_SECONDS`; a short one is not announced.
    Call it with the number of the member that has finished a batch, and the padded tokens of the batch."""

    def __init__(self, progress: Progress, shares: Any, tokens: int, cases: str) -> None:
        """`shares` [1 + edits]: what the pass of each member costs (`models.sweep.pass_shares`)."""
        self.progress, self.shares, self.all, self.spent = progress, shares, shares.sum() * tokens, 0.0
        self.what, self.start, self.printed = f"{counted(len(shares) - 1, 'edit')} on {cases}", time.monotonic(), False

    def __call__(self, member: int, tokens: int) -> None:
        self.spent += self.shares[member] * tokens
        seconds = time.monotonic() - self.start
        if self.printed or seconds < FIRST_SECONDS:
            return
        self.printed, total = True, seconds * self.all / self.spent
        if total > LONG_SECONDS:
            say(self.progress, f"about {duration(total)} for {self.what}; {peak_gigabytes():.1f} GB of memory so far")


def duration(seconds: float) -> str:
    """ "40 s", "4 min" or "1.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def peak_gigabytes() -> float:
    """Largest memory of the process so far, in GB; if a GPU is in use, its memory."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 1e9
    return peak_resident_bytes() / 1e9


def keep_after(interrupt: KeyboardInterrupt, progress: Any, n: int, total: int, noun: str, *, least: int = 1) -> None:
    """Note on a command's bar that only `n` of `total` were measured, so that the command ends with these.

    Raises the interrupt again where fewer than `least` are done, and in a notebook, where Ctrl-C ends the call.
    """
    notes = getattr(progress, "interrupted", None)
    if notes is None or n < least:
        raise interrupt
    notes.append(f"interrupted: {n:,} of {total:,} {noun} measured")
    say(progress, f"{notes[-1]}; the tables are of these")


@contextmanager
def signs_of_life(label: str, show: Callable[[], None] | None = None) -> Iterator[None]:
    """Print a line whenever the last sign was `LOG_EVERY` seconds ago, until the block ends, or call a bar's `show`.

    While a block inside this one gives signs, this one gives none."""
    began, sign = time.monotonic(), (Event(), label if show is None else "")
    if show is None or not _LAST_SIGN[0]:
        _LAST_SIGN[0] = began

    def repeat() -> None:
        while not sign[0].wait(LOG_EVERY / 8):
            if _SIGNS[-1] is not sign or time.monotonic() - _LAST_SIGN[0] < LOG_EVERY:
                continue
            _LAST_SIGN[0] = time.monotonic()
            if show is None:
                print(visible(f"{label}: working for {_LAST_SIGN[0] - began:.0f} s"), file=sys.stderr, flush=True)
            else:
                show()

    _SIGNS.append(sign)
    (thread := Thread(target=repeat, daemon=True)).start()
    try:
        yield
    finally:
        sign[0].set()
        thread.join()
        _SIGNS.remove(sign)
        _LAST_SIGN[0] = time.monotonic()


def progress_bar(label: str, *, keep: bool = False) -> Callable[[Iterable], Iterable]:
    """A wrapper of iterables that shows a bar on stderr: the share done, the time taken, the time left.

    With `keep` an instrument that is interrupted gives what it has measured, and notes it in `interrupted`. Where
    stderr is no terminal, a line comes every `LOG_EVERY` seconds before the bar of the end, also in a long step.
    """

    def bar(steps: Iterable) -> Iterator[Any]:
        from rich import progress
        from rich.console import Console
        from rich.markup import escape

        columns = (
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
        )  # fmt: skip

        def line() -> None:
            for task in shown.tasks if not shown.console.is_terminal else ():
                shown.print(*(column(task) for column in (columns[0], *columns[2:])))

        shown = progress.Progress(*columns, console=Console(file=sys.stderr), speed_estimate_period=math.inf)
        with shown, signs_of_life(label, line):  # the time left is that of all steps so far, not of the last 30 s
            yield from shown.track(steps, description=escape(visible(label)))

    bar.say = lambda line: print(visible(line), file=sys.stderr, flush=True)  # type: ignore[attr-defined]
    bar.interrupted = [] if keep else None  # type: ignore[attr-defined]
    return bar
