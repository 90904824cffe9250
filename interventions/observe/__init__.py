"""What a model does on the same cases, unedited and under many edits: losses, answers, SPS, coherence.

    observed = observe_prompts(model, ("sps", "coherence"), edits, aligned, tokenizer)
    observed["sps"].edited                       [edits, readouts, prompts]

`documents` measures loss and divergence, `answers` the probabilities of given tokens, `prompts` the probes.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from streamscope.probes.attention import RESOLUTION

Measure = Literal["loss", "sps", "coherence"]
UNIT = {
    "loss": "nats/token", "sps": "attention, target − competitor", "coherence": "nats, log-odds",
    "probability": "probability of the answer", "log_odds": "nats, answer against foil",
}  # fmt: skip
SMALLEST = {"loss": 1e-6, "sps": RESOLUTION, "coherence": 1e-5, "probability": 1e-6, "log_odds": 1e-5}
"""Changes up to this are rounding of float32, in the units of the measure."""
NAMES = ("id", "pair", "cluster", "category", "relation", "order")


@dataclass(frozen=True)
class Observed:
    """Values of one measure on N cases, unedited and under every edit."""

    measure: str
    cases: pd.DataFrame
    """One row per case: id, pair, cluster (the unit of inference), category, relation, order."""
    readouts: tuple[str, ...]
    """What was read: "all", and for SPS the heads of each layer "L0", "L1", …"""
    baseline: np.ndarray
    """[readouts, N]"""
    edited: np.ndarray
    """[edits, readouts, N]"""

    def under(self, edit: int | None, readout: str = "all") -> np.ndarray:
        """Values [N] under an edit, by index; None is the baseline."""
        at = self.readouts.index(readout)
        return self.baseline[at] if edit is None else self.edited[edit, at]
