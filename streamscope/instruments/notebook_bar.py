"""The progress of a measurement that Python code asks for."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from streamscope.cli.terminal import visible

OF_COMMAND: list[Callable[[str], Callable[[Iterable], Iterable]]] = []
"""What gives the bar of a measurement inside that of a command (features that `cluster` extracts now)."""
DELAY, EVERY = 3.0, 1.0
"""Seconds after which a bar appears, since what is quicker needs none, and between two signs of it."""


def notebook_bar(label: str) -> Callable[[Iterable], Iterable]:
    """A wrapper of iterables that shows a bar with the time left: in a notebook, in IPython, and in a command that has
    none at the time; elsewhere `iter`."""
    if OF_COMMAND:
        return OF_COMMAND[-1](label)
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return iter
    from tqdm import tqdm

    bar = partial(tqdm, desc=visible(label), leave=False, delay=DELAY, mininterval=EVERY)
    bar.say = lambda line: tqdm.write(visible(line), file=sys.stderr)  # type: ignore[attr-defined]
    return bar
