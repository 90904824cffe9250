"""Options of `python -m benchmarks.ablation_sweep`."""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count

Case = Literal["answers", "losses", "pairs"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.ablation_sweep`."""

    cases: tuple[Case, ...] = ("answers", "losses")
    """Cases to time; pairs take a minute per round."""
    vocab: tuple[Count, ...] = (50257, 4096)
    """Vocabulary sizes."""
    batch: Count = 8
    """Sequences per batch."""
    length: Count = 128
    """Tokens per sequence."""
    layers: Count = 6
    """Layers of the model."""
    heads: Count = 6
    """Heads per layer."""
    width: Count = 384
    """Width, a multiple of the heads."""
    rounds: Count = 3
    """Repetitions; the medians of the ratios are printed."""
    budget: Count | None = None
    """Tokens per forward pass; default: the sweep's own."""
    clock: Literal["wall", "cpu"] = "wall"
    """Wall time or processor seconds (cpu: for a busy machine, with one thread)."""
    peer: bool = True
    """Also measure TransformerLens."""
