"""Cells without a value, and why: "undefined by construction" is neither 0 nor a silent NaN.

A number that does not exist (the attention of heads in the last layer after that layer was gated; a p with one
training seed) is NaN in its column, and the row says so in a text column `undefined`:

    ci_low, ci_high, p: one training seed in a group; r2: the mean response is the same at every gate

Parquet keeps both. `printable` shows such a cell as "undefined", and any other NaN as "NaN (unexplained)".
Corrections for several tests leave the cells out and count them (`instruments.stats.p_values`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from streamscope.cli.errors import InputError, unknown

COLUMN = "undefined"


def note(reasons: Mapping[str, str]) -> str:
    """The text of an `undefined` cell, "column, column: reason; column: reason"; "" when everything is defined.

    Raises `InputError` for the separators ":", ";" and "," in a column's name, and for ";" in a reason or no reason.
    """
    together: dict[str, list[str]] = {}
    for column, reason in reasons.items():
        if set(":;,") & set(column) or ";" in reason or not reason.strip():
            raise InputError(f"undefined cell {column!r}: a name without ':;,' and a reason without ';', please")
        together.setdefault(reason, []).append(column)
    return "; ".join(f"{', '.join(columns)}: {reason}" for reason, columns in together.items())


def reasons(text: str) -> dict[str, str]:
    """`note` read back: column -> reason."""
    parts = (part.split(": ", 1) for part in text.split("; ") if part)
    return {column: reason for columns, reason in parts for column in columns.split(", ")}


def mark(table: pd.DataFrame, columns: Sequence[str], where: ArrayLike, reason: str) -> pd.DataFrame:
    """A copy whose `columns` are NaN in the rows `where`, with the reason in the column `undefined`.

    Raises `InputError` for a column that does not exist or holds no floats, and a mask of another length.
    """
    rows = np.asarray(where, bool)
    if rows.shape != (len(table),):
        raise InputError(f"{len(table)} rows but a mask of shape {rows.shape}")
    for column in columns:
        if column not in table:
            raise unknown("column", column, list(table.columns))
        if not pd.api.types.is_float_dtype(table[column]):
            raise InputError(f"column {column!r} is {table[column].dtype}: only floats can be undefined")
    new = table.copy()
    before = new[COLUMN].to_list() if COLUMN in new else [""] * len(new)
    added = {column: reason for column in columns}
    new[COLUMN] = [note({**reasons(b), **added}) if hit else b for b, hit in zip(before, rows, strict=True)]
    new.loc[rows, list(columns)] = np.nan
    return new


def mask(table: pd.DataFrame) -> pd.DataFrame:
    """True where the cell is undefined by construction, same rows and columns as the table."""
    out = pd.DataFrame(False, index=table.index, columns=table.columns)
    if COLUMN in table:
        for row, text in enumerate(table[COLUMN]):
            for column in reasons(text):
                if column in out:
                    out.iat[row, out.columns.get_loc(column)] = True
    return out


def printable(table: pd.DataFrame) -> pd.DataFrame:
    """A copy for the screen: marked cells say "undefined", other NaN "NaN (unexplained)"; numbers stay numbers.

    The column `undefined` is left out, too wide for a table: print `legend` below. Raises `InputError` for a marked
    cell with a number.
    """
    marked = mask(table)
    new = table.drop(columns=COLUMN, errors="ignore")
    for column in new.columns:
        missing = table[column].isna()
        if (marked[column] & ~missing).any():
            raise InputError(f"column {column!r} has a number in a cell marked undefined")
        if missing.any():
            text = np.where(marked[column], "undefined", "NaN (unexplained)")
            new[column] = table[column].astype(object).where(~missing, text)
    return new


def legend(table: pd.DataFrame) -> str:
    """One line per reason, "undefined (2 rows) p, t: reason", to print below the table; "" when all is defined."""
    texts = table[COLUMN].to_list() if COLUMN in table else []
    count = Counter(part for text in texts for part in text.split("; ") if part)
    return "\n".join(f"undefined ({n} row{'s' if n > 1 else ''}) {part}" for part, n in count.items())
