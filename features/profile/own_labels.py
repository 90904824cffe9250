"""A user's own labels for the tokens of a feature table, as parquet: any clustering, annotation or tagging.

    document, position, label         numbered as in the table (or by `features.cluster` for several tables)
    token or token_id                 optional; must equal the table's, so that labels of other data are refused

A label is text or a whole number; null and −1 mean none. Clusters are numbered by size, 0 the largest. Tokens without a
label count as noise, labels without a token are left out; both are counted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from streamscope.cli.errors import InputError, reading
from streamscope.features.store import KEY, Features
from streamscope.instruments.table import read_parquet

NOISE = -1
TOKEN = ("token_id", "token")


class OwnLabels(NamedTuple):
    """Labels for the tokens of a feature table."""

    cluster: np.ndarray
    """[n] cluster of each token, numbered by size; −1 for none."""
    names: tuple[str, ...]
    """The label of each cluster."""
    title: str
    """The labels' source, and how many tokens and labels did not match."""


def read_labels(path: Path, features: Features) -> OwnLabels:
    """The labels at `path` for the tokens of `features`. Raises `InputError` for a file that is not parquet or lacks a
    column, a token with two labels, labels that match no token, and labels whose tokens differ from the table's."""
    table, tokens = _read(path), features.table[[*KEY, *TOKEN]]
    if (twice := table[table.duplicated(KEY)]).size:
        document, position = twice[KEY].iloc[0]
        raise InputError(f"{path}: document {document}, position {position} has two labels; give each token one")
    matches = tokens.merge(table, on=KEY, suffixes=("", " there"))
    if matches.empty:
        there, here = (f"{frame['document'].min()} to {frame['document'].max()}" for frame in (table, tokens))
        raise InputError(
            f"{path}: no label matches a token of these features (documents {there} there, {here} here); number "
            "documents and positions as in the feature table"
        )
    for name in table.columns.intersection(TOKEN):
        if (other := matches[matches[name] != matches[f"{name} there"]]).size:
            row = other.astype(object).iloc[0]
            raise InputError(
                f"{path} belongs to other data: {name} of document {row['document']}, position {row['position']} is "
                f"{row[f'{name} there']!r} there, {row[name]!r} in the features"
            )
    table["label"] = _texts(table["label"], path)
    of = tokens[KEY].merge(table, "left", KEY)["label"]
    if of.isna().all():
        raise InputError(f"{path}: every label is null or −1; give at least one")
    counts = of.value_counts()
    names = sorted(counts.index, key=lambda name: (-counts[name], name))
    cluster = of.map({name: i for i, name in enumerate(names)}).fillna(NOISE).astype("int32").to_numpy()
    lost = len(table) - len(matches)
    title = f"labels of {path.name}: {int((cluster < 0).sum()):,} of {len(of):,} tokens have no label, "
    return OwnLabels(cluster, tuple(names), f"{title}{lost:,} of {len(table):,} labels have no token")


def _read(path: Path) -> pd.DataFrame:
    with reading(path, "--labels is parquet with the columns document, position, label"):
        names = pq.read_schema(path).names
    if lacks := [name for name in (*KEY, "label") if name not in names]:
        raise InputError(
            f"{path} lacks the column {lacks[0]!r}, it has {', '.join(names)}; it needs {', '.join(KEY)}, label"
        )
    table = read_parquet(path, [*KEY, "label", *(name for name in TOKEN if name in names)]).to_pandas()
    for name in KEY:
        if table[name].isna().any() or not pd.api.types.is_integer_dtype(table[name]):
            raise InputError(f"{path}: {name} must be whole numbers, as in the feature table")
    return table


def _texts(labels: pd.Series, path: Path) -> list[str | None]:
    """Labels as text; None for null and −1."""
    if pd.api.types.is_float_dtype(labels) and (labels.dropna() % 1 == 0).all():  # whole numbers with nulls
        labels = labels.astype("Int64")
    elif not (pd.api.types.is_integer_dtype(labels) or all(isinstance(x, str) for x in labels.dropna())):
        raise InputError(f"{path}: labels must be text or whole numbers, not {labels.dtype}")
    return [None if pd.isna(x) or str(x) == str(NOISE) else str(x) for x in labels]


def with_labels(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The table with a column for the label of each cluster."""
    label = [names[cluster] if cluster >= 0 else "" for cluster in table["cluster"]]
    result = table.copy()
    result.insert(result.columns.get_loc("cluster") + 1, "label", label)
    return result
