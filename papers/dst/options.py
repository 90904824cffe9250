"""Options of `python -m papers.dst`."""

from dataclasses import dataclass

from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Options(FigureOptions, ScaleOptions, PageOptions):
    """Arguments of `python -m papers.dst`."""

    alpha: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Factors on the scores, at least 1; 1 is always measured."""
    documents: int = 100
    """Validation documents to measure on."""
    draws: int = 3
    """Draws of random words and of other texts."""
    seed: int = 0
    """Of the draws."""
