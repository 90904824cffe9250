"""What a feature is: its name, what it is counted in, how it is computed and where it is defined (PLS App. B, C).

The features of a model, in order, are `features.compute.formulas.columns`; a file says those that it has.
"""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["core", "structural", "structural+position", "topk"]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature. `None`: not applicable."""

    name: str
    component: str
    layer: int | None = None
    head: int | None = None
    rank: int | None = None
    """Place among a head's weights, from 1."""
    unit: str
    formula: str
    source: str
    constant: bool = False
    """Zero by construction."""
