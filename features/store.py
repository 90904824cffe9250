"""Feature tables on disk: parquet, index columns first, then one float32 column per feature.

    found = read_features("features.parquet")
    found.table        pandas: document, position, token_id, token, target_id, target, prediction_id, prediction, …
    found.columns      what each feature is (`features.schema.Feature`)
    found.X            [n, d] float32, in the order of `columns`

`position` is the query position t_q, `token` stands there, `target` is the token that follows what is predicted from,
`prediction` the final layer's argmax; `read_raw` reads the raw activations that lie beside. The files are those of a
result of `features.extract`; `about` is what it says under "features": tier, schema, options, run, preset, checkpoint
(of the weights), layers, heads and data. Several tables are read as one: a column `file` says from which, and documents
are numbered on from file to file.
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
from streamscope.features.schema import Feature
from streamscope.instruments.parquet import read_about, read_parquet
from streamscope.instruments.result import Result
from streamscope.instruments.table import LongTable

FORMAT = 2
"""Of what a file says about its features."""
INDEX = {
    "document": "int32",
    "position": "int32",
    "token_id": "int32",
    "token": "string",
    "target_id": "int32",
    "target": "string",
    "prediction_id": "int32",
    "prediction": "string",
}
"""Index columns and their Arrow types."""
WINDOWS = ("window", "offset")
"""Index columns of documents that were read in windows."""
KEY = ["document", "position"]
"""What a row is known by."""


class About(TypedDict):
    """What a file says of its features."""

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
    """A table of features with its description."""

    table: pd.DataFrame
    """Index columns and features, one row per token."""
    columns: tuple[Feature, ...]
    about: dict[str, Any]
    """Where several files were read, that of the first, with a list of the `data` of all."""

    @property
    def X(self) -> np.ndarray:
        """[n, d] float32."""

        return self.table[[column.name for column in self.columns]].to_numpy(np.float32)


@dataclass(frozen=True)
class Raw:
    """Raw activations of the rows of a feature table."""

    table: pd.DataFrame
    """Index columns."""
    X: np.ndarray
    """[n, F] float32, the hooks one after the other."""
    hooks: tuple[str, ...]
    about: dict[str, Any]


def read_features(path: str | Path | Sequence[str | Path]) -> Features:
    """Read a feature table, or several of one model and different data, and check what they say they are.

    Of several the table has one more index column, `file`: the place of the row's file among `path`, from 0. Documents
    of a file are numbered behind those of the files before it.

    Raises `InputError` for a file that is no feature table, another format or schema, no rows, missing or infinite
    values, positions that occur twice, files of different checkpoints or options, and data that are in two files.
    """
    paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    if not paths:
        raise InputError("no feature table given: python -m features.extract --out features.parquet writes one")
    parts = [_read_one(p) for p in paths]
    first = parts[0]
    for p, part in zip(paths[1:], parts[1:], strict=True):
        for what in ("checkpoint", "options"):
            if part.about.get(what) != first.about.get(what):
                raise InputError(f"{p} and {paths[0]} have different {what}; extract both from one model, alike")
    return first if len(parts) == 1 else _joined(paths, parts)


def _joined(paths: Sequence[Path], parts: Sequence[Features]) -> Features:
    """The rows of all files, with column `file` and documents numbered on; `InputError` for data that are in two."""
    tables, start = list[pd.DataFrame](), 0
    owner: dict[Any, Path] = {}
    for i, (path, part) in enumerate(zip(paths, parts, strict=True)):
        data = part.about.get("data") or {}
        said = [(data["corpus"], data.get("rule"))] if data.get("corpus") else []
        texts = part.table.sort_values(KEY).groupby("document")["token_id"].agg(tuple)
        held = dict.fromkeys([*map(str, said), *texts], path)
        if twice := [owner[key] for key in held if key in owner]:
            raise InputError(f"{path} and {twice[0]} hold the same documents; give tables of different data")
        owner |= held
        names = list(INDEX)
        index = part.table[names].assign(document=part.table["document"] + start, file=i).astype({"file": "int32"})
        tables.append(pd.concat([index, part.table.drop(columns=names)], axis=1))
        start = int(index["document"].max()) + 1
    about = parts[0].about | {"data": [part.about.get("data") for part in parts]}
    return Features(pd.concat(tables, ignore_index=True), parts[0].columns, about)


def features_of(result: Result) -> Features:
    """The features of a result of `features.extract`, in memory."""
    about = dict(result.about["features"])
    return Features(result.table("features").frame, tuple(Feature(**one) for one in about["schema"]), about)


def read_raw(path: str | Path) -> Raw:
    """Read raw activations, one list column per hook, that `features.extract --raw` wrote beside a feature table.

    Raises `InputError` as `read_features`.
    """
    path = Path(path)
    about = read_about_of(path, "features")
    hooks = tuple(name for name in pq.read_schema(path).names if name not in (*INDEX, *WINDOWS))
    if not hooks or hooks != tuple(about.get("raw", ())):
        raise InputError(f"{path} has not the hooks {about.get('raw')} that it describes; extract it again, with --raw")
    index = read_columns(path, INDEX)
    return _raw(index, read_parquet(path, list(hooks)), about, str(path))


def raw_of(result: Result) -> Raw:
    """The raw activations of a result of `features.extract --raw`, in memory."""
    about, whole = dict(result.about["features"]), result.table("raw")
    assert isinstance(whole, LongTable)
    table = pa.concat_tables(whole.batches())
    return _raw(table.select(list(INDEX)), table.select(list(about["raw"])), about, "raw activations")


def _raw(index: pa.Table, hooks: pa.Table, about: dict[str, Any], where: str) -> Raw:
    """The vectors of the hooks one after the other; `InputError` for missing or infinite values."""
    flat = [column.combine_chunks().flatten().to_numpy().reshape(len(index), -1) for column in hooks.columns]
    X = np.concatenate(flat, axis=1)
    if bad := not_finite(X):
        raise InputError(f"{where}: {bad}; extract it again")
    return Raw(index.to_pandas(), X, tuple(hooks.column_names), about)


def not_finite(x: np.ndarray) -> str:
    """How many rows of `x` [n, d] have missing (NaN) and infinite values, in words; "" where all are finite."""
    kinds = {"missing": np.isnan(x), "infinite": np.isinf(x)}
    rows = {kind: int(bad.any(1).sum()) for kind, bad in kinds.items()}
    return ", ".join(f"{n} row{'s' if n > 1 else ''} with {kind} values" for kind, n in rows.items() if n)


def _read_one(path: Path) -> Features:

    about = read_about_of(path, "features")
    about = parse(json.dumps(about), About, f"what {path} says of its features")
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
        raise InputError(f"{path}: {twice} rows of a document and position that are there before; extract it again")
    return Features(pd.concat([index, pd.DataFrame(x, columns=names)], axis=1), schema, about)


def read_effects(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a table of `interventions.token_effects`, and what it says of itself.

    Raises `InputError` for another kind of file.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; python -m interventions.token_effects --out {path} writes one")
    about = read_about_of(path, "effects")
    return read_parquet(path).to_pandas(), about


def read_about_of(path: Path, kind: str) -> dict[str, Any]:
    """What a result says about itself under `kind`; `InputError` for another kind of file or another format."""

    try:
        about = read_about(path).get("about")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; python -m features.extract --out {path} writes one") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} is no parquet file, or a damaged one ({str(error).splitlines()[0]})") from None
    said = about.get(kind) if isinstance(about, dict) else None
    if not isinstance(said, dict):
        if not isinstance(about, dict):
            raise InputError(
                f"{path} is no table of {kind}: its metadata lack 'about', which pandas drops when it writes a table "
                "again; copy the schema's metadata with pyarrow, or make the table again"
            )
        of = about.get("instrument")
        raise InputError(f"{path} is no table of {kind}{f' but of {of}' if of else ''}")
    if said.get("format", FORMAT) != FORMAT:
        raise InputError(f"{path} has format {said.get('format')}, this version reads {FORMAT}; make it again")
    return said


def read_columns(path: Path, types: Mapping[str, str]) -> pa.Table:
    """The columns `types` (name -> Arrow type) of a file, where text may be in any type that Arrow has for it.

    Raises `InputError` for a column that is missing or of another type, and for nulls among the index columns.
    """

    schema = pq.read_schema(path)
    for name, kind in types.items():
        if name not in schema.names or _plain(schema.field(name).type) != kind:
            found = f"is {schema.field(name).type}" if name in schema.names else "is missing"
            raise InputError(f"{path}: column {name} {found}, it should be {kind}; extract it again")
    table = read_parquet(path, list(types))
    for name in INDEX.keys() & types:
        if nulls := table[name].null_count:
            raise InputError(f"{path}: {nulls} rows without {name}; extract it again")
    return table.cast(pa.schema([(name, pa.type_for_alias(types[name])) for name in table.column_names]))


def _plain(kind: pa.DataType) -> str:
    """An Arrow type by name; "string" for text of every kind, which pandas writes as large strings or dictionaries."""
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    return "string" if of in (pa.string(), pa.large_string(), pa.string_view()) else str(kind)
