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


def match_effects(feature_table: Features, effects: OpenEffects, features: str = "the features") -> MatchedTokens:
    """Join the rows of both tables; errors call the first `features`.

    Raises `InputError` for files of another kind, different models, missing or mistyped columns, different tokens
    (other data or cuts), repeated rows, missing or infinite values, and no row in common.
    """
    table, about, where = effects.table, effects.description, effects.where
    checkpoint, other_checkpoint = str(feature_table.about["checkpoint"]), str(about.get("checkpoint"))
    if checkpoint != other_checkpoint:
        raise InputError(
            f"{features} and {where} come from different models ({checkpoint[:8]}, {other_checkpoint[:8]}); use one run"
        )
    edits = tuple(about.get("edits") or ())
    values = [f"{measure}_{edit}" for measure in MEASURES for edit in edits] + ["loss", "log_p"]
    table = _with_types(table, where, values)
    if bad := not_finite(table[values].to_numpy()):
        raise InputError(f"{where}: {bad}; compute it again")
    if twice := int(table.duplicated(KEY).sum()):
        raise InputError(f"{where}: {counted(twice, 'position')} given twice; compute it again")
    index = feature_table.table[[*KEY, *IDS]].assign(row=np.arange(len(feature_table.table)))
    matches = index.merge(table, on=KEY, suffixes=("", "_effects"))
    if not len(matches):
        raise InputError(f"{features} and {where} have no token in common; compute both from the same data")
    same_ids = np.all([matches[name] == matches[f"{name}_effects"] for name in IDS], axis=0)
    if not same_ids.all():
        raise InputError(
            f"{int((~same_ids).sum())} of {len(matches)} tokens or targets differ: {features} and {where} come from "
            "different data, or the features were extracted with another --logits-row than query"
        )
    prefix = prefixes(feature_table.table)[matches["row"].to_numpy()]
    _, inverse, times = np.unique(prefix, return_inverse=True, return_counts=True)
    keep = [i for i, column in enumerate(feature_table.columns) if not column.constant]
    return MatchedTokens(
        x=feature_table.X[matches["row"].to_numpy()][:, keep], table=matches[[*KEY, *values]], edits=edits,
        features_only=len(feature_table.table) - len(matches), effects_only=len(table) - len(matches),
        repeated=int(((times[inverse] > 1) & (prefix >= 0)).sum()),
    )  # fmt: skip


def _with_types(table: pd.DataFrame, path: str, values: list[str]) -> pd.DataFrame:
    """The table with integer `KEY` and `IDS` and real `values`; `InputError` otherwise, and without edits."""
    if len(values) == 2:
        raise InputError(f"{path} names no edits; compute it again")
    for name in (*KEY, *IDS, *values):
        right, kind = (is_float_dtype, "real numbers") if name in values else (is_integer_dtype, "integers")
        if name not in table or not right(table[name]):
            problem = f"holds {table[name].dtype}" if name in table else "is missing"
            raise InputError(f"{path}: column {name} {problem}, it should hold {kind}; compute it again")
    return table[[*KEY, *IDS, *values]]


def prefixes(table: pd.DataFrame) -> np.ndarray:
    """[n] a number for the text from the document's start to each row, equal for equal texts; −1 if rows before are
    missing. `table` has columns document, position, token_id."""
    of, nodes = np.full(len(table), -1), dict[tuple[int, int], int]()
    order = np.lexsort((table["position"], table["document"]))
    rows = table[[*KEY, "token_id"]].to_numpy()[order].tolist()
    previous, node = (-1, -1), -1
    for i, (document, position, token) in zip(order, rows, strict=True):
        start, follows = position == 0, (document, position - 1) == previous
        parent = -1 if start else node
        node = nodes.setdefault((parent, token), len(nodes)) if start or (follows and node >= 0) else -1
        of[i], previous = node, (document, position)
    return of
