"""Time the live page: size of the file, start, updates in the page, edits at the server.

    python -m benchmarks.viewer
    python -m benchmarks.viewer --run stories/kromcanon --server runs/smollm2

The page is written as one file and opened from disk, without a network, in a Chromium that is installed on the system.
start: from opening until the first numbers are drawn. update: another scale of one head, computed in the page on one
thread; draw: drawing it. server: the answer to an edit on 32 tokens, in torch, without the way to the browser. Medians
and extremes of `rounds`. Pause background work: the page has one thread, and a busy machine shows in every number.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from streamscope.benchmarks import main_of
from streamscope.cli.bounds import Count


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.viewer`."""

    run: str = "stories/lfa"
    """Model of the page: a run folder or a bundled model."""
    server: str = "stories/lfa"
    """Model of the server, such as runs/smollm2."""
    lengths: tuple[Annotated[int, Ge(2)], ...] = (32, 128)
    """Lengths of the text in tokens, BOS included."""
    rounds: Count = 15
    """Timed updates at every length, and edits at the server."""
    threads: Count = 2
    """Threads of torch at the server."""


main = main_of(Options, __name__)
