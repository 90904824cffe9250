"""Features and effects of the same tokens, joined by document and position."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype, is_integer_dtype

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.store import KEY, Features, not_finite
from streamscope.features.tables import OpenEffects

IDS = ["token_id", "target_id"]
MEASURES = ("delta_loss", "delta_log_p")


@dataclass(frozen=True)
class MatchedTokens:
    """The n tokens in both tables."""

    x: np.ndarray
    """Features [n, d], without columns that are zero by construction."""
    table: pd.DataFrame
    """document, position, loss, log_p and the effects `delta_loss_NAME`, `delta_log_p_NAME`, row by row as x."""
    edits: tuple[str, ...]
    features_only: int
    """Number of feature rows without an effect."""
    effects_only: int
    """Number of effect rows without features."""
    repeated: int
    """Number of rows whose text from the start of the document also begins another document. Their features (except κ
    of the true token) and Δ ln p are the same there, possibly in another fold."""


def match_effects(found: Features, effects: OpenEffects, features: str = "the features") -> MatchedTokens:
    """Join the rows of both tables; errors call the first `features`.

    Raises `InputError` for files of another kind, different models, missing or mistyped columns, different tokens
    (other data or cuts), repeated rows, missing or infinite values, and no row in common.
    """
    table, about, where = effects.table, effects.description, effects.where
    one, other = str(found.about["checkpoint"]), str(about.get("checkpoint"))
    if one != other:
        raise InputError(f"{features} and {where} come from different models ({one[:8]}, {other[:8]}); use one run")
    edits = tuple(about.get("edits") or ())
    values = [f"{measure}_{edit}" for measure in MEASURES for edit in edits] + ["loss", "log_p"]
    table = _with_types(table, where, values)
    if bad := not_finite(table[values].to_numpy()):
        raise InputError(f"{where}: {bad}; compute it again")
    if twice := int(table.duplicated(KEY).sum()):
        raise InputError(f"{where}: {counted(twice, 'position')} given twice; compute it again")
    index = found.table[[*KEY, *IDS]].assign(row=np.arange(len(found.table)))
    both = index.merge(table, on=KEY, suffixes=("", "_effects"))
    if not len(both):
        raise InputError(f"{features} and {where} have no token in common; compute both from the same data")
    same = np.all([both[name] == both[f"{name}_effects"] for name in IDS], axis=0)
    if not same.all():
        raise InputError(
            f"{int((~same).sum())} of {len(both)} tokens or targets differ: {features} and {where} come from different "
            "data, or the features were extracted with another --logits-row than query"
        )
    prefix = prefixes(found.table)[both["row"].to_numpy()]
    _, at, times = np.unique(prefix, return_inverse=True, return_counts=True)
    keep = [i for i, column in enumerate(found.columns) if not column.constant]
    return MatchedTokens(
        x=found.X[both["row"].to_numpy()][:, keep], table=both[[*KEY, *values]], edits=edits,
        features_only=len(found.table) - len(both), effects_only=len(table) - len(both),
        repeated=int(((times[at] > 1) & (prefix >= 0)).sum()),
    )  # fmt: skip


def _with_types(table: pd.DataFrame, path: str, values: list[str]) -> pd.DataFrame:
    """The table with integer `KEY` and `IDS` and real `values`; `InputError` otherwise, and without edits."""
    if len(values) == 2:
        raise InputError(f"{path} names no edits; compute it again")
    for name in (*KEY, *IDS, *values):
        right, kind = (is_float_dtype, "real numbers") if name in values else (is_integer_dtype, "integers")
        if name not in table or not right(table[name]):
            found = f"holds {table[name].dtype}" if name in table else "is missing"
            raise InputError(f"{path}: column {name} {found}, it should hold {kind}; compute it again")
    return table[[*KEY, *IDS, *values]]


def prefixes(table: pd.DataFrame) -> np.ndarray:
    """[n] a number for the text from the document's start to each row, equal for equal texts; −1 if rows before are
    missing. `table` has columns document, position, token_id."""
    of, known = np.full(len(table), -1), dict[tuple[int, int], int]()
    order = np.lexsort((table["position"], table["document"]))
    rows = table[[*KEY, "token_id"]].to_numpy()[order].tolist()
    before, node = (-1, -1), -1
    for i, (document, position, token) in zip(order, rows, strict=True):
        start, follows = position == 0, (document, position - 1) == before
        parent = -1 if start else node
        node = known.setdefault((parent, token), len(known)) if start or (follows and node >= 0) else -1
        of[i], before = node, (document, position)
    return of
