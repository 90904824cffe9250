"""Options of `python -m benchmarks.hooks`."""

from dataclasses import dataclass

from streamscope.cli.bounds import Count


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
