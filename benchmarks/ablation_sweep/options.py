"""Options of `python -m benchmarks.ablation_sweep`."""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count

Case = Literal["answers", "losses", "pairs"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.ablation_sweep`."""

    cases: tuple[Case, ...] = ("answers", "losses")
    """What to time; pairs take a minute per round."""
    vocab: tuple[Count, ...] = (50257, 4096)
    """Vocabularies."""
    batch: Count = 8
    """Sequences."""
    length: Count = 128
    """Tokens of each."""
    layers: Count = 6
    """Layers."""
    heads: Count = 6
    """Heads of each layer."""
    width: Count = 384
    """Width, a multiple of the heads."""
    rounds: Count = 3
    """Times that everything is measured, in turn; medians of the ratios are printed."""
    budget: Count | None = None
    """Tokens that run at once; default: the engine's."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: processor seconds, for one thread on a machine that others keep busy."""
    peer: bool = True
    """Measure TransformerLens as well."""
