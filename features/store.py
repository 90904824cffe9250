"""Feature tables on disk: parquet, index columns first, then one float32 column per feature.

`position` is the query position t_q, `token` the token there, `target` the next token, `prediction` the argmax of the
final layer. `read_raw` reads the raw activations. The files are results of `features.extract`; `about` is its entry
"features": tier, schema, options, run, preset, checkpoint (of the weights), layers, heads and data. Several tables are
read as one: a column `file` gives the table of each row, and document numbers continue from file to file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from streamscope.cli.disk import parse
from streamscope.cli.errors import InputError, reading
from streamscope.cli.terminal import counted
from streamscope.features.extract import FORMAT, INDEX, Feature
from streamscope.instruments.result import Result
from streamscope.instruments.table import read_about, read_parquet

KEY = ["document", "position"]
"""Columns that identify a row."""


class About(TypedDict):
    tier: str
    schema: list[Feature]
    options: dict[str, Any]
    run: str
    preset: str
    checkpoint: str
    n_layers: int
    n_heads: int
    data: dict[str, Any]


@dataclass(frozen=True)
class Features:
    """A table of features (index columns and features, one row per token) with its description.

    For several files, `about` is that of the first, with a list of the `data` of all.
    """

    table: pd.DataFrame
    columns: tuple[Feature, ...]
    about: dict[str, Any]

    @property
    def X(self) -> np.ndarray:
        """[n, d] float32."""
        return self.table[[column.name for column in self.columns]].to_numpy(np.float32)


@dataclass(frozen=True)
class Raw:
    """Raw activations for the rows of a feature table: index columns and X [n, F] float32, hook by hook."""

    table: pd.DataFrame
    X: np.ndarray
    hooks: tuple[str, ...]
    about: dict[str, Any]


def read_features(path: str | Path | Sequence[str | Path]) -> Features:
    """Read a feature table, or several of one model and different data, and check their descriptions.

    Several tables get one more index column, `file`: the number of the row's file in `path`, from 0. Document numbers
    continue from file to file.

    Raises `InputError` for a file that is not a feature table, another format or schema, no rows, missing or infinite
    values, repeated positions, files of different checkpoints or options, and documents that occur in two files.
    """
    paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    parts = [_read_one(p) for p in paths]
    first = parts[0]
    if len(parts) == 1:
        return first
    tables, start = list[pd.DataFrame](), 0
    owner: dict[Any, Path] = {}
    for i, (p, part) in enumerate(zip(paths, parts, strict=True)):
        for field in ("checkpoint", "options"):
            if part.about[field] != first.about[field]:
                raise InputError(f"{p} and {paths[0]} have different {field}; extract both with one model and options")
        data = part.about["data"]
        texts = part.table.sort_values(KEY).groupby("document")["token_id"].agg(tuple)
        corpus = [f"{data['corpus']} {data.get('rule')}"] if data.get("corpus") else []
        if twice := [owner[key] for key in (*corpus, *texts) if key in owner]:
            raise InputError(f"{p} and {twice[0]} hold the same documents; give tables of different data")
        owner |= dict.fromkeys((*corpus, *texts), p)
        table = part.table.assign(document=part.table["document"] + start)
        table.insert(len(INDEX), "file", np.int32(i))
        tables.append(table)
        start = int(table["document"].max()) + 1
    about = first.about | {"data": [part.about["data"] for part in parts]}
    return Features(pd.concat(tables, ignore_index=True), first.columns, about)


def features_of(result: Result) -> Features:
    """The features in a result of `features.extract`."""
    about = dict(result.about["features"])
    return Features(result.table("features").frame, tuple(Feature(**feature) for feature in about["schema"]), about)


def read_raw(path: str | Path) -> Raw:
    """Read raw activations from `features.extract --raw`, one list column per hook. Raises as `read_features`."""
    path = Path(path)
    about = read_about_of(path, "features")
    if not (hooks := about.get("raw")) or not set(hooks) <= set(pq.read_schema(path).names):
        raise InputError(f"{path} lacks the hooks {hooks} that it describes; extract it again with --raw")
    return _raw(read_columns(path, INDEX), read_parquet(path, hooks), about, str(path))


def raw_of(result: Result) -> Raw:
    """The raw activations in a result of `features.extract --raw`."""
    about = dict(result.about["features"])
    table = pa.concat_tables(result.table("raw").batches())
    return _raw(table.select(list(INDEX)), table.select(list(about["raw"])), about, "raw activations")


def _raw(index: pa.Table, hooks: pa.Table, about: dict[str, Any], where: str) -> Raw:
    """The vectors of the hooks, concatenated; `InputError` for missing or infinite values."""
    flat = [column.combine_chunks().flatten().to_numpy().reshape(len(index), -1) for column in hooks.columns]
    X = np.concatenate(flat, axis=1)
    if bad := not_finite(X):
        raise InputError(f"{where}: {bad}; extract it again")
    return Raw(index.to_pandas(), X, tuple(hooks.column_names), about)


def not_finite(x: np.ndarray) -> str:
    """The number of rows of `x` [n, d] with missing (NaN) and infinite values, in words; "" if all are finite."""
    rows = {"missing": np.isnan(x).any(1).sum(), "infinite": np.isinf(x).any(1).sum()}
    return ", ".join(f"{counted(n, 'row')} with {kind} values" for kind, n in rows.items() if n)


def _read_one(path: Path) -> Features:
    about = read_about_of(path, "features")
    schema = parse(json.dumps(about), About, f"description of the features in {path}")["schema"]
    names = [column.name for column in schema]
    table = read_columns(path, INDEX | dict.fromkeys(names, "float")).to_pandas()
    x = table[names].to_numpy()
    if bad := not_finite(x):
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InputError(f"{path}: {bad}, first row {row}, {names[column]}; extract it again")
    if not len(table):
        raise InputError(f"{path} has no rows; extract it again")
    if twice := int(table.duplicated(KEY).sum()):
        raise InputError(f"{path}: {counted(twice, 'row')} with the document and position of another; extract it again")
    return Features(table, tuple(schema), about)


def read_effects(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows and description of a table of `interventions.token_effects`. `InputError` for another kind of file."""
    if not path.exists():
        raise InputError(f"{path} does not exist; python -m interventions.token_effects --out {path} writes one")
    about = read_about_of(path, "effects")
    return read_parquet(path).to_pandas(), about


def read_about_of(path: Path, kind: str) -> dict[str, Any]:
    """The entry `kind` in the description of a result; `InputError` for another kind of file or another format."""
    about = read_about(path).get("about")
    if about is None:
        raise InputError(
            f"{path} is not a table of {kind}: its metadata lack 'about', which pandas drops when it rewrites a "
            "table; copy the schema's metadata with pyarrow, or make the table again"
        )
    if not isinstance(entry := about.get(kind), dict):
        raise InputError(f"{path} is not a table of {kind} but of {about.get('instrument')}")
    if entry.get("format", FORMAT) != FORMAT:
        raise InputError(f"{path} has format {entry.get('format')}, this version reads {FORMAT}; make it again")
    return entry


def read_columns(path: Path, types: Mapping[str, str]) -> pa.Table:
    """The columns `types` (name -> Arrow type) of a file, whatever Arrow type holds them there. Raises `InputError` for
    a missing column, values of another kind, and nulls in the index columns."""
    present = pq.read_schema(path).names
    if missing := [name for name in types if name not in present]:
        raise InputError(f"{path}: column {missing[0]} is missing; extract it again")
    fields = [pa.field(name, pa.type_for_alias(kind), name not in INDEX) for name, kind in types.items()]
    with reading(path, "extract it again"):
        return read_parquet(path, list(types)).cast(pa.schema(fields))
