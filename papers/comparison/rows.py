"""The rows that measuring one run collects: a table of quantities, one number each."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from streamscope.instruments.undefined_cells import note, reasons

NAN = float("nan")
ONE_PER_RUN = "one number per run, its spread is that over seeds"

Progress = Callable[[str], Callable[[Iterable], Iterable]]
"""Label -> a wrapper that shows how far an iteration is."""


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

        cells = {"value": float(value), "sd": float(sd), "ci_low": float(interval[0]), "ci_high": float(interval[1])}
        reason = why.replace(";", ",") or ONE_PER_RUN
        if value != value and not why:
            raise AssertionError(f"{quantity} has no value and no reason")
        missing = note({name: reason for name, x in cells.items() if x != x})
        row = {"quantity": quantity, "family": family, "unit": unit, **cells, "n": n, "detail": detail}
        self.rows.append({**row, "undefined": missing})


def why_of(undefined: str) -> str:
    """The reasons of an `undefined` cell, without the names of its columns."""

    return ", ".join(dict.fromkeys(reasons(undefined).values()))
