"""Compare DST models: the loss without a stream (Table 4) and under sharpened attention (Table 5).

    python -m papers.dst runs/tinystories/dst-kron-0 --out results/dst_tinystories
    python -m papers.dst runs/dst-dense-* runs/dst-kron-* runs/dst-ind-* --out results/dst
    python -m papers.dst runs/kron-0 runs/kron-0@1000 runs/kron-normal-0 …    by initialization and tokens
    python -m papers.dst --tables results/dst_tinystories --out results/dst_tinystories
    python -m papers.dst --scale zoo --seeds 4            train what is missing, measure, judge, write

Takes finished runs of any presets that differ in preset, mode (+frozen_token), head gates (+gate), number of heads and
seed only; and in how their weights began (init.weights, init.embed) and in the step of a snapshot RUN@STEP, which are
factors: a claim about one model is judged where every cell of them says the same, and is confounded elsewhere. Table 4
is judged on token-factor models, Table 5 on frozen-token ones, as the paper has them. Per run, with intervals over
documents: the loss with x_t or x_e at 0, random words', mean or other text's in its place, everywhere, for the head and
layer by layer (models with two streams); the loss at α = 1, 2, 4, 8, 16, its degradation, areas in every reading. Over
seeds: means with intervals, and whether the paper's claims hold. Several presets with dst-dense also give the losses of
Table 1, frozen-token ones those of Table 8. --scale measures a snapshot near half of the training as well, of what
began in more than one way. --tables judges the claims of an earlier comparison again and writes its page, from its
tables alone.
"""

from dataclasses import dataclass
from typing import Annotated

from streamscope.cli.bounds import Bounds, Count, Seed
from streamscope.cli.errors import InputError
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales import comparison_main
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


main = comparison_main(Options, __doc__, "papers.dst runs/dst-kron-0")
