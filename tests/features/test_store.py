"""Feature tables are read back as they were written, and refused when they are something else."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.schema import FeatureOptions, columns
from features.store import about_features, read_features
from models.errors import InputError
from probes.tables import read_about
from tests.features.planted import planted_file, planted_table

ABOUT = about_features(2, 2, FeatureOptions())


def changed(path: Path, **about) -> Path:
    """The same file with other entries in `about`."""
    table = pq.read_table(path)
    meta = dict(table.schema.metadata)
    meta[b"about"] = json.dumps(json.loads(meta[b"about"]) | about).encode()
    pq.write_table(table.replace_schema_metadata(meta), path)
    return path


def test_round_trip(tmp_path: Path) -> None:
    table = planted_table(ABOUT)
    found = read_features(planted_file(tmp_path / "f.parquet", table=table))
    assert found.columns == columns(2, 2, FeatureOptions())
    assert found.X.dtype == np.float32 and found.X.shape == (12, 23)
    np.testing.assert_array_equal(found.X, table.iloc[:, 8:].to_numpy(np.float32))
    assert list(found.table.columns) == list(table.columns)
    assert found.about["model"] == {"n_layers": 2, "n_heads": 2, "checkpoint": "abc"}


def test_pandas_and_pyarrow_read_it_with_metadata(tmp_path: Path) -> None:
    path = planted_file(tmp_path / "f.parquet")
    assert pd.read_parquet(path)["traj_prob_L0"].dtype == np.float32
    about = read_about(path)
    assert about["units"]["head_ent_final_L1H0"] == "nats"
    assert [c["name"] for c in about["about"]["schema"]] == pq.read_schema(path).names[8:]


def test_several_files_of_one_model(tmp_path: Path) -> None:
    paths = [planted_file(tmp_path / f"{i}.parquet", table=planted_table(ABOUT, document=i)) for i in range(2)]
    found = read_features(paths)
    assert len(found.table) == 24 and list(found.table["document"].unique()) == [0, 1]
    with pytest.raises(InputError, match="document 0 is in two"):
        read_features([paths[0], paths[0]])


def test_mixed_checkpoints_and_options(tmp_path: Path) -> None:
    a = planted_file(tmp_path / "a.parquet")
    b = planted_file(tmp_path / "b.parquet", model={"checkpoint": "def"})
    with pytest.raises(InputError, match="different checkpoint"):
        read_features([a, b])
    c = changed(planted_file(tmp_path / "c.parquet"), options=ABOUT["options"] | {"theta_gate": 0.2})
    with pytest.raises(InputError, match="different options"):
        read_features([a, c])


def test_other_kinds_formats_and_schemas(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    for about, message in [
        ({"kind": "clusters"}, "no table of features but of clusters"),
        ({"format": 99}, "format 99"),
        ({"schema": ABOUT["schema"][:-1]}, "other columns"),
        ({"options": {"tier": "structural", "colour": 1}}, "does not describe"),
        ({"model": {}}, "does not describe"),
    ]:
        with pytest.raises(InputError, match=message):
            read_features(changed(planted_file(path), **about))
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="no table of features"):
        read_features(path)
    path.write_text("not parquet")
    with pytest.raises(InputError, match="no parquet file"):
        read_features(path)
    with pytest.raises(InputError, match="does not exist"):
        read_features(tmp_path / "none.parquet")
    with pytest.raises(InputError, match="no feature table given"):
        read_features([])


def test_missing_values_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    table = planted_table(ABOUT)
    with pytest.raises(InputError, match="2 rows with missing values, first row 3, kappa"):
        read_features(planted_file(path, table=table.assign(kappa=table["kappa"].mask(table.index.isin([3, 5])))))
    planted_file(path, table=table)
    for broken, message in [
        (pq.read_table(path).drop_columns(["kappa"]), "kappa is missing"),
        (pq.read_table(path).drop_columns(["token"]), "token is missing"),
        (pq.read_table(path).cast(_double("kappa", path)), "kappa is double"),
    ]:
        pq.write_table(broken, path)
        with pytest.raises(InputError, match=message):
            read_features(path)
        planted_file(path, table=table)


def _double(name: str, path: Path) -> pa.Schema:
    schema = pq.read_schema(path)
    return schema.set(schema.get_field_index(name), pa.field(name, pa.float64()))
