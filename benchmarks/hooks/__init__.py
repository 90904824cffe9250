"""Time unused hooks, and our training step against a plain GPT.

    python -m benchmarks.hooks
    python -m benchmarks.hooks --compile --device cuda --batch 64

1. Forward and backward pass of a preset at scale small. The peer ("no hooks") is the same model with every hook point
   replaced by an identity.
2. One training step of `std-t` at scale small (forward, backward, clipping, AdamW). The peer is a plain GPT of the same
   shape (`benchmarks/plain_gpt.py`) with the same dtype and compile setting.

Each figure is a ratio of times measured in one run, pair by pair. Quote it with the shape printed above it.
"""

from dataclasses import dataclass

from streamscope.cli.bounds import Count
from streamscope.cli.parse import main_with_body


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.hooks`."""

    presets: tuple[str, ...] = ("std-t", "lfa", "pls")
    """Presets of the first comparison."""
    batch: Count = 16
    """Sequences of 256 tokens per step."""
    rounds: Count = 15
    """Timed pairs."""
    device: str = "cpu"
    """Device: cpu or cuda."""
    compile: bool = False
    """Compile the blocks of both models of the second comparison with torch.compile."""


main = main_with_body(Options, __doc__, "streamscope.benchmarks.hooks.measure")
