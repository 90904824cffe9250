"""Settings for measuring a run of paper LFA, and the names of what it measures."""

from dataclasses import dataclass
from typing import Literal

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

    k: tuple[int, ...] = (1, 2, 3, 5)
    """Heads to suppress, largest PDS first (LFA §3.3)."""
    draws: int = 20
    """Matched-random sets of heads per selection."""
    seed: int = 0
    """Of the random sets, and of the halves in which coreference heads are chosen and scored."""
    documents: int = 20
    """Validation documents on which suppression is measured; `loss` itself takes all."""
    batch_size: int = 32
    """Documents per batch."""
    resamples: int = 2000
    """Of the bootstrap intervals of Cohen's d."""
