"""Options of `python -m papers.lfa`, and the names of its quantities. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated, Literal

from streamscope.cli.bounds import Bounds, Count, Seed
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales.options import ScaleOptions

COREFERENCE, COMPETING = "coreference", "competing"
DOMAINS = ("candidates", "keys")
MEASURES: tuple[Literal["sps", "coherence", "loss"], ...] = ("sps", "coherence", "loss")
HARD = 0.0
"""The gate of LFA's table of effects: outputs of the heads times 0 (App. D)."""
GATES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""The gates of LFA's response curves (Figs. 5 and 6)."""
OVER = "over"
"""The selection of all heads with PDS over `FIXED` (LFA Table 5); the others are top1, top3, … (App. D)."""
UNITS = {"loss": "nats/token", "sps": "attention", "coherence": "nats, log-odds"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the suppression costs most time for; the rest of a run's measures have no settings."""

    k: tuple[Count, ...] = (1, 2, 3, 5)
    """Heads to suppress, those with the largest PDS (LFA §3.3)."""
    draws: Annotated[int, Bounds(low=20)] = 20
    """Random sets of heads per selection, at least 20."""
    documents: Annotated[int, Bounds(low=2)] = 20
    """Documents to measure the loss under suppression on; the loss itself takes all."""
    batch_size: Count = 32
    """Documents per batch."""
    resamples: Annotated[int, Bounds(low=100)] = 2000
    """Bootstrap resamples for the intervals of Cohen's d."""
    seed: Seed = 0
    """Of the random sets, and of the halves in which coreference heads are chosen and scored."""


@dataclass(frozen=True, kw_only=True)
class Options(Settings, FigureOptions, ScaleOptions, PageOptions):
    """Arguments of `python -m papers.lfa`."""

    data: str | None = None
    """SOURCE to measure the loss on; default: the runs' validation data."""
