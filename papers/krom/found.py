"""What `papers.krom` measured: the runs, their tables, and who made them."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from streamscope.papers.comparison.runs import Run

CONTROL = "gpt2"
BUNDLED = ("canon", "kromcanon")
"""Bundled models, trained alike, whose loss curves are shown with the order of losses; gpt2 has another recipe."""


@dataclass(frozen=True)
class Found:
    """The runs, their tables, and who made them."""

    runs: list[Run]
    about: dict[str, Any]
    losses: pd.DataFrame
    curves: pd.DataFrame
    """Every evaluation of the runs; of comparisons from before it was kept, empty, as `gaps`."""
    gaps: pd.DataFrame
    online: pd.DataFrame
    """The loss of the training text at the end of the runs; empty as `curves`, as `online_gaps`."""
    online_gaps: pd.DataFrame
    comparison: pd.DataFrame
    order: pd.DataFrame
    factors: pd.DataFrame
    mixing: pd.DataFrame
    ways: pd.DataFrame
    """Mean static swap over the steps; of comparisons from before it was kept, empty."""
    topologies: pd.DataFrame
    """Runs of several streams that do not mix by Kronecker factors; of comparisons from before there were, empty."""
    bundled: pd.DataFrame
    """Loss curves of the bundled models."""
