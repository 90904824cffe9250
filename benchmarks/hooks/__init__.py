"""Time unused hooks, and our training step against a plain GPT.

    python -m benchmarks.hooks
    python -m benchmarks.hooks --compile --device cuda --batch 64

1. Forward and backward of a preset at scale small, against the same modules with every hook point replaced by a
   bare identity (peer "no hooks").
2. One training step of `std-t` at scale small (forward, backward, clipping, AdamW), against a plain GPT of the same
   shape (`benchmarks/plain_gpt.py`), same dtype, same compile setting.

Each figure is a ratio of times measured in one run, pair by pair; state the shape printed with it.
"""

from collections.abc import Sequence

from streamscope.benchmarks.hooks.options import Options
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.benchmarks.hooks.measure import measure

    measure(options)
