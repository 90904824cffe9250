"""Options of `python -m papers.modes`. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from streamscope.cli.bounds import Bounds, Count, Seed
from streamscope.papers.comparison.options import PageOptions

LEAST = 1000
"""Tokens below which clusters of ten say nothing."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured."""

    tokens: Count = 50_453
    """Validation tokens for HDBSCAN, as many as in the paper."""
    kmeans_tokens: Count = 10_000
    """Validation tokens for k-means, as many as in the paper."""
    resamples: Annotated[int, Bounds(low=100)] = 1000
    """Of the bootstrap over documents."""
    seed: Seed = 0
    """Of k-means and the resamples."""


@dataclass(frozen=True, kw_only=True)
class Options(Settings, PageOptions):
    """Arguments of `python -m papers.modes`."""

    data: str | None = None
    """SOURCE to cluster the tokens of; default: the runs' validation data."""
