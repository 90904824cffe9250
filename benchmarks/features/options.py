"""Options of `python -m benchmarks.features`."""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count
from streamscope.features.schema import Tier


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.features`."""

    vocab: tuple[Count, ...] = (50257, 4096)
    """Vocabulary sizes."""
    tier: Tier = "structural"
    """Tier of features to extract."""
    preset: str = "pls"
    """Architecture preset; it gets 6 heads."""
    layers: Count = 6
    """Layers of the model."""
    documents: Count = 12
    """Documents, of 40 to --length tokens each."""
    length: Count = 256
    """Tokens of the longest document, and the context length."""
    rounds: Count = 3
    """Repetitions; the medians of the ratios are printed."""
    clock: Literal["wall", "cpu"] = "wall"
    """Wall time or processor seconds (cpu: for a busy machine, with one thread)."""
    memory: bool = False
    """Measure memory instead of time."""
    tokens: tuple[Count, ...] = (20_000, 200_000)
    """Numbers of tokens for --memory."""
    width: Count = 384
    """Width of the model."""
