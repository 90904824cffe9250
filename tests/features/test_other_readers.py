"""The file of an extraction, 163 columns and its metadata, in programs that are not pandas."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamscope.features.compute.formulas import columns
from streamscope.features.extract import Extract, main
from streamscope.features.store import INDEX, Features, read_features

NAMES = [*INDEX, *(column.name for column in columns(6, 6, Extract()))]


@pytest.fixture(scope="module")
def extracted(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Features]:
    """40 tokens as the bundled LFA, of six layers and six heads, processes them."""
    out = tmp_path_factory.mktemp("features") / "f.parquet"
    main(["lfa", "--data", str(corpus[1]), "--max-tokens", "40", "--device", "cpu", "--out", str(out)])
    return out, read_features(out)


def by_duckdb(path: Path) -> tuple[list[str], set[str], dict[str, Any], dict[str, str]]:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed; it is no dependency")
    relation = duckdb.sql(f"select * from read_parquet('{path}')")
    rows = duckdb.sql(f"select key, value from parquet_kv_metadata('{path}')").fetchall()
    meta = {key.decode(): value.decode() for key, value in rows}
    return relation.columns, set(map(str, relation.types[len(INDEX) :])), relation.fetchnumpy(), meta


def by_polars(path: Path) -> tuple[list[str], set[str], dict[str, Any], dict[str, str]]:
    polars = pytest.importorskip("polars", reason="polars is not installed; it is no dependency")
    table = polars.read_parquet(path)
    values = {name: table[name].to_numpy() for name in table.columns}
    return table.columns, set(map(str, table.dtypes[len(INDEX) :])), values, polars.read_parquet_metadata(path)


@pytest.mark.parametrize(("reads", "kind"), [(by_duckdb, "FLOAT"), (by_polars, "Float32")])
def test_another_program_reads_it(reads: Any, kind: str, extracted: tuple[Path, Features]) -> None:
    path, found = extracted
    names, kinds, values, meta = reads(path)
    assert names == NAMES and len(NAMES) - len(INDEX) == 163 and kinds == {kind}
    np.testing.assert_array_equal(np.stack([values[name] for name in NAMES[len(INDEX) :]], 1), found.X)
    assert values["token"].tolist() == found.table["token"].tolist()
    about, units = json.loads(meta["about"]), json.loads(meta["units"])
    assert about["features"] == found.about
    assert [column["name"] for column in found.about["schema"]] == NAMES[len(INDEX) :]
    assert units["head_ent_final_L5H5"] == "nats" and set(units) <= set(NAMES)
