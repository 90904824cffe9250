"""Time scores of all edges of a GPT-2 against plain torch code, and compare them.

    python -m benchmarks.circuits
    python -m benchmarks.circuits --methods eap-ig --pairs 64

The peer (`benchmarks/circuits/plain.py`) has no hooks and none of our code: it multiplies the weights itself, gives
every reader an input of its own and takes gradients with autograd. Its exact scores run the whole model once for each
edge; ours start where the edge is read. Pairs of equally many tokens run together on both sides.

Each side and method runs in a process of its own, round by round, so that memory is the peak of one side. Loading is
not timed.
"""

from dataclasses import dataclass
from typing import Literal

from streamscope.benchmarks import main_of
from streamscope.cli.bounds import Count


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.circuits`."""

    run: str = "stories/std-t"
    """A GPT-2, with biases or not: a run folder, a bundled model or hf:FOLDER."""
    task: str = "stories"
    """A suite with pairs, or a JSONL file."""
    pairs: Count = 8
    """Approximate number of pairs."""
    methods: tuple[Literal["exact", "eap-ig"], ...] = ("exact", "eap-ig")
    """How edges are scored."""
    steps: Count = 10
    """Steps of the integrated gradient."""
    rounds: Count = 3
    """Timed rounds."""
    clock: Literal["wall", "cpu"] = "wall"
    """wall time, or cpu seconds for a machine that others keep busy."""


main = main_of(Options, __name__)
