"""A feature: its name, unit, formula and source (PLS App. B, C).

`features.compute.formulas.columns` lists the features of a model in order; each file lists its own.
"""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["core", "structural", "structural+position", "topk"]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature. `None` means not applicable."""

    name: str
    component: str
    layer: int | None = None
    head: int | None = None
    rank: int | None = None
    """Rank among a head's weights, from 1."""
    unit: str
    formula: str
    source: str
    constant: bool = False
    """Zero by construction."""
