"""A feature table of random numbers on disk."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from streamscope.features.compute import columns
from streamscope.features.extract import FORMAT, INDEX, Extract


def about_features(how: Extract, **more: Any) -> dict[str, Any]:
    """What a file says of its features, of a model with two layers and two heads."""
    options = {name: value for name, value in asdict(how).items() if name != "raw"}
    of = {"run": "runs/x", "preset": "x", "checkpoint": "abc", "n_layers": 2, "n_heads": 2}
    about = {"format": FORMAT, "tier": how.tier, "options": options, "raw": [], "data": {}}
    return about | of | {"schema": [asdict(one) for one in columns(2, 2, how)]} | more


ABOUT = about_features(Extract())


def planted_table(n: int = 12, *, seed: int = 0) -> pd.DataFrame:
    """`n` tokens of one document with random features."""
    rng = np.random.default_rng(seed)
    names = [column["name"] for column in ABOUT["schema"]]
    index = {name: (["x"] * n if kind == "string" else np.arange(n)) for name, kind in INDEX.items()}
    table = pd.DataFrame(index).assign(document=0)
    return pd.concat([table, pd.DataFrame(rng.random((n, len(names))), columns=names)], axis=1)


def written(path: Path, table: pa.Table, about: dict[str, Any]) -> Path:
    """Write a table that says `about` of its features."""
    pq.write_table(table.replace_schema_metadata({"about": json.dumps({"features": about})}), path)
    return path


def planted_file(path: Path, *, table: pd.DataFrame | None = None, options: Extract | None = None, **more: Any) -> Path:
    """A file that `read_features` reads."""
    about = about_features(options or Extract(), **more)
    table = planted_table() if table is None else table
    fields = {**INDEX, **{column["name"]: "float32" for column in about["schema"]}}
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in fields.items()])
    return written(path, pa.Table.from_pandas(table, schema=schema, preserve_index=False), about)


def raw_file(path: Path, table: pd.DataFrame, x: np.ndarray, checkpoint: str = "abc", hook: str = "h", **more) -> Path:
    """Raw activations of the tokens of a table, as `features.extract --raw` writes them."""
    fields = {name: pa.array(table[name], pa.type_for_alias(kind)) for name, kind in INDEX.items()}
    rows = pa.FixedSizeListArray.from_arrays(pa.array(x.astype(np.float32).ravel(), from_pandas=False), x.shape[1])
    about = about_features(Extract(), checkpoint=checkpoint, raw=[hook], **more)
    return written(path, pa.table({**fields, hook: rows}), about)
