"""Compare per-layer supervision with the same model without it (C2), over training seeds (PLS).

    python -m papers.pls runs/tinystories/pls-{0,1,2} runs/tinystories/c2-{0,1,2} --out results/pls_tinystories
    python -m papers.pls runs/pls-0 runs/c2-0 --groups found --tasks capitalization gender winograd
    python -m papers.pls --tables results/pls_tinystories --out results/pls_tinystories
    python -m papers.pls --scale zoo --seeds 4            train what is missing, measure, judge, write

Takes finished runs of pls and c2, each seed of both, that differ in the supervision only. Per run: the effect of
ablating groups of heads on tasks and its spread between cases (Table 2, Fig. 4b), control curves (Fig. 3), task × group
matrix and diagonality (Fig. 4a), direct against total effect (Hydra), the depth at which predictions settle (Table 1).
Per pair of a seed: ratios with bootstrap intervals over cases; over pairs: intervals whose units are training seeds.
Per claim of the paper: whether it holds here, by a rule, for the paper's heads and for those that attention names in
all layers of each model (--layers). No claim is judged of a task that the models cannot do, or of heads whose roles are
not above shuffled ones: there is no such head. --tables judges the claims of an earlier comparison again and writes its
page, from its tables alone.
"""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count, Seed, Whole
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
from streamscope.papers.scales import comparison_main
from streamscope.papers.scales.options import ScaleOptions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured, and how much of it."""

    tasks: tuple[str, ...] = ("capitalization", "gender", "winograd")
    """capitalization, gender, winograd; the paper's sizes capitalization-8, gender-16; a JSONL file; FORMAT:PATH."""
    groups: tuple[str, ...] = ("entity", "anchor", "semantic", "found")
    """entity, anchor, semantic (the paper's heads), found (by each model's attention), heads as L5.H4+L5.H5."""
    layers: Literal["last", "all"] = "all"
    """Where found heads are looked for: everywhere, or in the last layer, where the paper's are."""
    tokens: Count = 10_000
    """Validation tokens whose processing depth is read, as many as in the paper."""
    draws: Whole = 19
    """Random groups of as many heads for every ablation; 0: none."""
    seed: Seed = 0
    """Of the random groups and the permutations."""


@dataclass(frozen=True, kw_only=True)
class Options(Settings, FigureOptions, ScaleOptions, PageOptions):
    """Arguments of `python -m papers.pls`."""


main = comparison_main(Options, __doc__, "papers.pls runs/pls-0 runs/c2-0")
