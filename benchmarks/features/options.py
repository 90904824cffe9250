"""Options of `python -m benchmarks.features`."""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count
from streamscope.features.schema import Tier


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.features`."""

    vocab: tuple[Count, ...] = (50257, 4096)
    """Vocabularies."""
    tier: Tier = "structural"
    """Which features."""
    preset: str = "pls"
    """Architecture, with `layers` layers, 6 heads and width 384."""
    layers: Count = 6
    """Layers."""
    documents: Count = 12
    """Documents, of 40 to `length` tokens."""
    length: Count = 256
    """Tokens of the longest document; the context."""
    rounds: Count = 3
    """Times that everything is measured, in turn; medians of the ratios are printed."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: processor seconds, for one thread on a machine that others keep busy."""
    memory: bool = False
    """Measure memory instead of time."""
    tokens: tuple[Count, ...] = (20_000, 200_000)
    """Tokens of --memory."""
    width: Count = 384
    """Width of the model."""
