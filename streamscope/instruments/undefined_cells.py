"""Cells without a value, and why: "undefined by construction" is neither 0 nor a silent NaN.

A number that does not exist (the attention of heads in the last layer after that layer was gated; a p with one
training seed) is NaN in its column, and the row says so in a text column `undefined`:

    delta_low, delta_high, delta_p: one training seed in a group; r2: the mean response is the same at every gate

Parquet keeps both. A table (`instruments.table`) shows such a cell as "undefined", with the reason below.
Corrections for several tests leave the cells out and count them (`instruments.stats.estimators`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from streamscope.cli.errors import InputError

COLUMN = "undefined"


def note(reasons: Mapping[str, str]) -> str:
    """The text of an `undefined` cell, "column, column: reason; column: reason"; "" when everything is defined."""
    by_reason: dict[str, list[str]] = {}
    for column, reason in reasons.items():
        if set(":;,") & set(column) or ";" in reason or not reason.strip():
            raise InputError(f"undefined cell {column!r}: a name without ':;,' and a reason without ';', please")
        by_reason.setdefault(reason, []).append(column)
    return "; ".join(f"{', '.join(columns)}: {reason}" for reason, columns in by_reason.items())


def reasons(text: str) -> dict[str, str]:
    """`note` read back: column -> reason."""
    parts = (part.split(": ", 1) for part in text.split("; ") if part)
    return {column: reason for columns, reason in parts for column in columns.split(", ")}


def mark(table: pd.DataFrame, columns: Sequence[str], mask: ArrayLike, reason: str) -> pd.DataFrame:
    """A copy whose `columns` are NaN in the rows `mask`, with the reason in the column `undefined`."""
    rows, new = np.asarray(mask, bool), table.copy()
    texts = new[COLUMN].to_list() if COLUMN in new else [""] * len(new)
    added = {column: reason for column in columns}
    new[COLUMN] = [note({**reasons(b), **added}) if hit else b for b, hit in zip(texts, rows, strict=True)]
    new.loc[rows, list(columns)] = np.nan
    return new
