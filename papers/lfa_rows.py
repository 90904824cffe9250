"""The rows that measuring one run collects, and what it can be told."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

NAN = float("nan")
COREFERENCE, COMPETING = "coreference", "competing"
DOMAINS = ("candidates", "keys")
MEASURES = ("sps", "coherence", "loss")
HARD = 0.0
"""The gate of LFA's table of effects: outputs of the heads times 0 (App. D)."""
OVER = "over"
"""The selection of all heads with PDS over `FIXED` (LFA Table 5); the others are top1, top3, … (App. D)."""
ONE_PER_RUN = "one number per run, its spread is that over seeds"
UNITS = {"loss": "nats/token", "sps": "attention", "coherence": "nats, log-odds"}

Progress = Callable[[str], Callable[[Iterable], Iterable]]
"""Label -> a wrapper that shows how far an iteration is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the suppression costs most time for; the rest of a run's measures have no settings."""

    k: tuple[int, ...] = (1, 3)
    """Heads to suppress, largest PDS first."""
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


@dataclass
class Rows:
    """Quantities while they are collected."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        quantity: str,
        family: str,
        unit: str,
        value: float,
        *,
        sd: float = NAN,
        interval: tuple[float, float] = (NAN, NAN),
        n: int = 1,
        detail: str = "",
        why: str = "",
    ) -> None:
        """One row; `why` says why there is no value."""
        from probes.undefined import note

        cells = {"value": float(value), "sd": float(sd), "ci_low": float(interval[0]), "ci_high": float(interval[1])}
        reason = why.replace(";", ",") or ONE_PER_RUN
        if value != value and not why:
            raise AssertionError(f"{quantity} has no value and no reason")
        missing = note({name: reason for name, x in cells.items() if x != x})
        row = {"quantity": quantity, "family": family, "unit": unit, **cells, "n": n, "detail": detail}
        self.rows.append({**row, "undefined": missing})


def why_of(undefined: str) -> str:
    """The reasons of an `undefined` cell, without the names of its columns."""
    from probes.undefined import reasons

    return ", ".join(dict.fromkeys(reasons(undefined).values()))
