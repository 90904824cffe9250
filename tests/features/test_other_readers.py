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
def duckdb() -> Any:
    return pytest.importorskip("duckdb", reason="DuckDB is not installed; it is no dependency")


@pytest.fixture(scope="module")
def polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed; it is no dependency")


@pytest.fixture(scope="module")
def extracted(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Features]:
    """40 tokens as the bundled LFA, of six layers and six heads, processes them."""
    out = tmp_path_factory.mktemp("features") / "f.parquet"
    main(["lfa", "--data", str(corpus[1]), "--max-tokens", "40", "--device", "cpu", "--out", str(out)])
    return out, read_features(out)


def check_metadata(meta: dict[str, str], found: Features) -> None:
    about, units = json.loads(meta["about"]), json.loads(meta["units"])
    assert about["features"] == found.about
    assert [column["name"] for column in found.about["schema"]] == NAMES[len(INDEX) :]
    assert units["head_ent_final_L5H5"] == "nats" and set(units) <= set(NAMES)


def test_duckdb_reads_it(duckdb: Any, extracted: tuple[Path, Features]) -> None:
    path, found = extracted
    relation = duckdb.sql(f"select * from read_parquet('{path}')")
    assert relation.columns == NAMES and len(NAMES) - len(INDEX) == 163
    assert set(map(str, relation.types[len(INDEX) :])) == {"FLOAT"}
    values = relation.fetchnumpy()
    np.testing.assert_array_equal(np.stack([values[name] for name in NAMES[len(INDEX) :]], 1), found.X)
    assert values["token"].tolist() == found.table["token"].tolist()
    rows = duckdb.sql(f"select key, value from parquet_kv_metadata('{path}')").fetchall()
    check_metadata({key.decode(): value.decode() for key, value in rows}, found)


def test_polars_reads_it(polars: Any, extracted: tuple[Path, Features]) -> None:
    path, found = extracted
    table = polars.read_parquet(path)
    assert table.columns == NAMES and set(table.dtypes[len(INDEX) :]) == {polars.Float32}
    np.testing.assert_array_equal(table.select(NAMES[len(INDEX) :]).to_numpy(), found.X)
    assert table["token"].to_list() == found.table["token"].tolist()
    check_metadata(polars.read_parquet_metadata(path), found)
