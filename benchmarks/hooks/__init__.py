"""Time unused hooks, and our training step against a plain GPT.

    python -m benchmarks.hooks
    python -m benchmarks.hooks --compile --device cuda --batch 64

1. Forward and backward pass of a preset at scale small. The peer ("no hooks") is the same model with every hook point
   replaced by an identity.
2. One training step of `std-t` at scale small (forward, backward, clipping, AdamW). The peer is a plain GPT of the same
   shape (`benchmarks/plain_gpt.py`) with the same dtype and compile setting.

Each figure is a ratio of times measured in one run, pair by pair. Quote it with the shape printed above it.
"""

from collections.abc import Sequence

from streamscope.benchmarks.hooks.options import Options
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.benchmarks.hooks.measure import measure

    measure(options)
