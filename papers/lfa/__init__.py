"""Compare the four architectures of paper LFA over training seeds with the printed values.

    python -m papers.lfa runs/tinystories/*
    python -m papers.lfa runs/std-t-0 runs/std-t-1 runs/lfa-0 runs/lfa-1 --out results/lfa
    python -m papers.lfa --tables results/lfa --out results/lfa        judge and write again, without a model
    python -m papers.lfa --scale zoo --seeds 4            train what is missing, measure, judge, write

Takes finished runs of std-t, d-cas, lfa and cfm that differ in preset, seed, positions and norm only. Per run: loss,
PDS, coreference heads against chance, recency and the longest word, stability, SPS, and what suppressing the position
heads does against bottom-k and random controls. Per architecture: mean and interval over seeds, and against std-t,
paired by seed. Per claim of the paper: whether it holds here, by a rule. --out writes tables, figures and a short
README.md.

The presets differ in more than their architecture: std-t has learned positions and LayerNorm, the others RoPE and
ChannelLayerNorm. A std-t that differs in the architecture alone is made with --set; where given it is the control:

    python -m models.train std-t --set positions=rope --set norm=channel --seed 0 … --out runs/std-t-rope-cln-0
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from streamscope.cli.bounds import Bounds, Count, Seed
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales import comparison_main
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


main = comparison_main(Options, __doc__, "papers.lfa runs/std-t-0 runs/lfa-0")
