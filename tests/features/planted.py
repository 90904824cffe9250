"""A feature table of random numbers on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from streamscope.features.schema import FeatureOptions
from streamscope.features.store import INDEX, about_features, feature_schema


def planted_table(about: dict[str, Any], n: int = 12, *, document: int = 0, seed: int = 0) -> pd.DataFrame:
    """`n` tokens of one document with random features."""
    rng = np.random.default_rng(seed)
    names = [column["name"] for column in about["schema"]]
    index = {name: (["x"] * n if kind == "string" else np.arange(n)) for name, kind in INDEX.items()}
    table = pd.DataFrame(index).assign(document=document)
    return pd.concat([table, pd.DataFrame(rng.random((n, len(names))), columns=names)], axis=1)


def planted_file(
    path: Path, *, table: pd.DataFrame | None = None, options: FeatureOptions | None = None, **more: Any
) -> Path:
    """A file that `read_features` reads, of a model with two layers and two heads."""
    about = about_features(2, 2, options or FeatureOptions(), **{"model": {"checkpoint": "abc"}, "data": {}, **more})
    table = planted_table(about) if table is None else table
    pq.write_table(pa.Table.from_pandas(table, schema=feature_schema(about), preserve_index=False), path)
    return path
