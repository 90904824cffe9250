"""A feature table of random numbers on disk."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from streamscope.features.compute.formulas import columns
from streamscope.features.extract import Extract
from streamscope.features.store import FORMAT, INDEX


def about_features(n_layers: int, n_heads: int, how: Extract, **more: Any) -> dict[str, Any]:
    """What a file says of its features."""
    options = {name: value for name, value in asdict(how).items() if name != "raw"}
    schema = [asdict(one) for one in columns(n_layers, n_heads, how)]
    of = {"run": "runs/x", "preset": "x", "checkpoint": "abc", "n_layers": n_layers, "n_heads": n_heads}
    about = {"format": FORMAT, "tier": how.tier, "schema": schema, "options": options, "raw": [], "data": {}}
    return about | of | more


def planted_table(about: dict[str, Any], n: int = 12, *, document: int = 0, seed: int = 0) -> pd.DataFrame:
    """`n` tokens of one document with random features."""
    rng = np.random.default_rng(seed)
    names = [column["name"] for column in about["schema"]]
    index = {name: (["x"] * n if kind == "string" else np.arange(n)) for name, kind in INDEX.items()}
    table = pd.DataFrame(index).assign(document=document)
    return pd.concat([table, pd.DataFrame(rng.random((n, len(names))), columns=names)], axis=1)


def written(path: Path, table: pa.Table, about: dict[str, Any]) -> Path:
    """Write a table that says `about` of its features."""
    pq.write_table(table.replace_schema_metadata({"about": json.dumps({"features": about})}), path)
    return path


def planted_file(path: Path, *, table: pd.DataFrame | None = None, options: Extract | None = None, **more: Any) -> Path:
    """A file that `read_features` reads, of a model with two layers and two heads."""
    about = about_features(2, 2, options or Extract(), **more)
    table = planted_table(about) if table is None else table
    fields = {**INDEX, **{column["name"]: "float32" for column in about["schema"]}}
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in fields.items()])
    return written(path, pa.Table.from_pandas(table, schema=schema, preserve_index=False), about)
