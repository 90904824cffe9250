"""Options of `python -m papers.dst`. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from streamscope.cli.bounds import Bounds, Count, Seed
from streamscope.cli.errors import InputError
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much of the data, which α, how many draws."""

    alpha: tuple[Annotated[float, Bounds(low=1)], ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Factors on the scores, at least 1; 1 is always measured."""
    documents: Annotated[int, Bounds(low=2)] = 100
    """Validation documents to measure on."""
    draws: Count = 3
    """Draws of random words and of other texts."""
    seed: Seed = 0
    """Of the draws."""

    def __post_init__(self) -> None:
        if len(self.alphas) < 2:
            raise InputError("--alpha: areas go upwards from 1; give more than 1")

    @property
    def alphas(self) -> tuple[float, ...]:
        """The factors that are measured, upwards from 1."""
        return tuple(sorted({1.0, *self.alpha}))


@dataclass(frozen=True, kw_only=True)
class Options(Settings, FigureOptions, ScaleOptions, PageOptions):
    """Arguments of `python -m papers.dst`."""
