"""Options of `python -m papers.pls`. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count, Seed, Whole
from streamscope.papers.comparison.options import PageOptions
from streamscope.papers.figures.options import FigureOptions
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
