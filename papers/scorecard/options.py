"""Options of `python -m papers.scorecard`. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from streamscope.cli.bounds import Bounds, Count, Seed
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured."""

    documents: Annotated[int, Bounds(low=2)] = 60
    """Validation documents to measure on."""
    pairs: Count = 40
    """Random pairs of heads whose interaction is measured."""
    modes: Annotated[int, Bounds(low=100)] = 3000
    """Validation tokens whose features are clustered."""
    seed: Seed = 0
    """Of the pairs, of controls and of permutations."""


@dataclass(frozen=True, kw_only=True)
class Options(Settings, ScaleOptions, PageOptions):
    """Arguments of `python -m papers.scorecard`."""

    control: str = "std-t+positions=rope"
    """Arm that the others are held against: a preset, with what was changed of it behind a +."""
