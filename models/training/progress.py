"""The progress bar of a training: step, loss, tokens per second, time left."""

import contextlib
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from streamscope.cli.terminal import visible as printable


class Progress:
    """A bar on a terminal or in a notebook, plain lines if standard error is a file, nothing without `visible`."""

    def __init__(self, steps: int, done: int = 0, visible: bool = True) -> None:
        self.steps, self.console = steps, Console(file=sys.stderr, quiet=not visible)
        self.every = max(1, steps // 20)
        self.lines = done // self.every
        self.bar = Bar(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not visible or not (self.console.is_terminal or self.console.is_jupyter),
        )
        self.task = self.bar.add_task("training", total=steps, completed=done, loss=float("nan"), rate=0.0)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.bar.stop()

    def update(self, step: int, loss: float, rate: float) -> None:
        """Move the bar; without a terminal, print about twenty lines per run."""
        self.bar.update(self.task, completed=step, loss=loss, rate=rate)
        if self.bar.disable and step // self.every > self.lines:
            self.lines = step // self.every
            self.say(f"step {step}/{self.steps}: loss {loss:.4f}, {rate:,.0f} tokens/s")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        with contextlib.suppress(BrokenPipeError):  # a closed pipe must not end a training
            self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
