"""Feature tables on disk: parquet, index columns first, then one float32 column per feature.

    found = read_features("features.parquet")
    found.table        pandas: document, position, token_id, token, target_id, target, prediction_id, prediction, …
    found.columns      what each feature is (`features.schema.Feature`)
    found.X            [n, d] float32, in the order of `columns`

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
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.features.schema import Feature
from streamscope.instruments.result import Result
from streamscope.instruments.table import LongTable, read_about, read_parquet

FORMAT = 3
"""Version of the description of features in a file."""
INDEX = {
    "document": "int32", "position": "int32", "token_id": "int32", "token": "string", "target_id": "int32",
    "target": "string", "prediction_id": "int32", "prediction": "string",
}  # fmt: skip
"""Index columns and their Arrow types."""
WINDOWS = ("window", "offset")
"""Index columns of documents that were read in windows."""
KEY = ["document", "position"]
"""Columns that identify a row."""


class About(TypedDict):
    """Description of the features in a file."""

    tier: str
    schema: list[dict[str, Any]]
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
    if not paths:
        raise InputError("no feature table given: python -m features.extract --out features.parquet writes one")
    parts = [_read_one(p) for p in paths]
    first = parts[0]
    for p, part in zip(paths[1:], parts[1:], strict=True):
        for field in ("checkpoint", "options"):
            if part.about.get(field) != first.about.get(field):
                raise InputError(
                    f"{p} and {paths[0]} have different {field}; extract both from one model with one set of options"
                )
    return first if len(parts) == 1 else _concatenated(paths, parts)


def _concatenated(paths: Sequence[Path], parts: Sequence[Features]) -> Features:
    """The rows of all files with column `file` and continued document numbers; `InputError` for repeated data."""
    tables, start = list[pd.DataFrame](), 0
    owner: dict[Any, Path] = {}
    for i, (path, part) in enumerate(zip(paths, parts, strict=True)):
        data = part.about.get("data") or {}
        corpus = [(data["corpus"], data.get("rule"))] if data.get("corpus") else []
        texts = part.table.sort_values(KEY).groupby("document")["token_id"].agg(tuple)
        sources = dict.fromkeys([*map(str, corpus), *texts], path)
        if twice := [owner[key] for key in sources if key in owner]:
            raise InputError(f"{path} and {twice[0]} hold the same documents; give tables of different data")
        owner |= sources
        names = list(INDEX)
        index = part.table[names].assign(document=part.table["document"] + start, file=i).astype({"file": "int32"})
        tables.append(pd.concat([index, part.table.drop(columns=names)], axis=1))
        start = int(index["document"].max()) + 1
    about = parts[0].about | {"data": [part.about.get("data") for part in parts]}
    return Features(pd.concat(tables, ignore_index=True), parts[0].columns, about)


def features_of(result: Result) -> Features:
    """The features in a result of `features.extract`."""
    about = dict(result.about["features"])
    return Features(result.table("features").frame, tuple(Feature(**feature) for feature in about["schema"]), about)


def read_raw(path: str | Path) -> Raw:
    """Read raw activations from `features.extract --raw`, one list column per hook. Raises as `read_features`."""
    path = Path(path)
    about = read_about_of(path, "features")
    hooks = tuple(name for name in pq.read_schema(path).names if name not in (*INDEX, *WINDOWS))
    if not hooks or hooks != tuple(about.get("raw", ())):
        raise InputError(f"{path} lacks the hooks {about.get('raw')} that it describes; extract it again with --raw")
    index = read_columns(path, INDEX)
    return _raw(index, read_parquet(path, list(hooks)), about, str(path))


def raw_of(result: Result) -> Raw:
    """The raw activations in a result of `features.extract --raw`."""
    about, raw_table = dict(result.about["features"]), result.table("raw")
    assert isinstance(raw_table, LongTable)
    table = pa.concat_tables(raw_table.batches())
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
    kinds = {"missing": np.isnan(x), "infinite": np.isinf(x)}
    rows = {kind: int(bad.any(1).sum()) for kind, bad in kinds.items()}
    return ", ".join(f"{n} row{'s' if n > 1 else ''} with {kind} values" for kind, n in rows.items() if n)


def _read_one(path: Path) -> Features:
    about = read_about_of(path, "features")
    about = parse(json.dumps(about), About, f"description of the features in {path}")
    try:
        schema = tuple(Feature(**column) for column in about["schema"])
    except TypeError as error:
        raise InputError(f"{path} does not describe its features ({error}); extract it again") from None
    names = [column.name for column in schema]
    table = read_columns(path, INDEX | dict.fromkeys(names, "float"))
    x = np.stack([column.to_numpy() for column in table.select(names).columns], axis=1)
    if bad := not_finite(x):
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InputError(f"{path}: {bad}, first row {row}, {names[column]}; extract it again")
    index = table.select(list(INDEX)).to_pandas()
    if not len(index):
        raise InputError(f"{path} has no rows; extract it again")
    if twice := int(index.duplicated(KEY).sum()):
        raise InputError(f"{path}: {counted(twice, 'row')} with the document and position of another; extract it again")
    return Features(pd.concat([index, pd.DataFrame(x, columns=names)], axis=1), schema, about)


def read_effects(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows and description of a table of `interventions.token_effects`. `InputError` for another kind of file."""
    if not path.exists():
        raise InputError(f"{path} does not exist; python -m interventions.token_effects --out {path} writes one")
    about = read_about_of(path, "effects")
    return read_parquet(path).to_pandas(), about


def read_about_of(path: Path, kind: str) -> dict[str, Any]:
    """The entry `kind` in the description of a result; `InputError` for another kind of file or another format."""
    about = read_about(path).get("about")
    entry = about.get(kind) if isinstance(about, dict) else None
    if not isinstance(entry, dict):
        if not isinstance(about, dict):
            raise InputError(
                f"{path} is not a table of {kind}: its metadata lack 'about', which pandas drops when it rewrites a "
                "table; copy the schema's metadata with pyarrow, or make the table again"
            )
        instrument = about.get("instrument")
        raise InputError(f"{path} is not a table of {kind}{f' but of {instrument}' if instrument else ''}")
    if entry.get("format", FORMAT) != FORMAT:
        raise InputError(f"{path} has format {entry.get('format')}, this version reads {FORMAT}; make it again")
    return entry


def read_columns(path: Path, types: Mapping[str, str]) -> pa.Table:
    """The columns `types` (name -> Arrow type) of a file; text may have any Arrow text type.

    Raises `InputError` for a missing or mistyped column, and for nulls in the index columns.
    """
    schema = pq.read_schema(path)
    for name, kind in types.items():
        if name not in schema.names or _plain(schema.field(name).type) != kind:
            problem = f"is {schema.field(name).type}" if name in schema.names else "is missing"
            raise InputError(f"{path}: column {name} {problem}, it should be {kind}; extract it again")
    table = read_parquet(path, list(types))
    for name in INDEX.keys() & types:
        if nulls := table[name].null_count:
            raise InputError(f"{path}: {counted(nulls, 'row')} without {name}; extract it again")
    return table.cast(pa.schema([(name, pa.type_for_alias(types[name])) for name in table.column_names]))


def _plain(kind: pa.DataType) -> str:
    """An Arrow type by name; "string" for every text type, such as pandas' large strings and dictionaries."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return "string" if plain in (pa.string(), pa.large_string(), pa.string_view()) else str(kind)
