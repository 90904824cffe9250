"""Options of `python -m papers.lfa`."""

from dataclasses import dataclass

from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales.options import ScaleOptions

MIN_DRAWS = 20


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, ScaleOptions, PageOptions):
    """Arguments of `python -m papers.lfa`."""

    data: str | None = None
    """SOURCE to measure the loss on; default: the runs' validation data."""
    k: tuple[int, ...] = (1, 2, 3, 5)
    """Heads to suppress, those with the largest PDS (LFA §3.3)."""
    draws: int = 20
    """Random sets of heads per selection, at least 20."""
    documents: int = 20
    """Documents to measure the loss under suppression on; the loss itself takes all."""
    batch_size: int = 32
    """Documents per batch."""
    resamples: int = 2000
    """Bootstrap resamples for the intervals of Cohen's d."""
    seed: int = 0
    """Of the random sets, and of the halves in which coreference heads are chosen and scored."""
