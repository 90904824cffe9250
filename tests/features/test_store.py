"""Feature tables are read back as they were written, and refused when they are something else."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamscope import InputError, Tokens, load
from streamscope.features import Extract
from streamscope.features.compute import columns
from streamscope.features.store import read_features, read_raw
from tests.features.planted import ABOUT, planted_file, planted_table, raw_file, written
from tests.tiny import refused


def changed(path: Path, **about: Any) -> Path:
    """A file with other entries in `about`."""
    return written(path, pq.read_table(planted_file(path)), ABOUT | about)


def test_round_trip(tmp_path: Path) -> None:
    table = planted_table()
    found = read_features(planted_file(tmp_path / "f.parquet", table=table))
    assert found.columns == columns(2, 2, Extract())
    assert found.X.dtype == np.float32 and found.X.shape == (12, 23)
    np.testing.assert_array_equal(found.X, table.iloc[:, 8:].to_numpy(np.float32))
    assert list(found.table.columns) == list(table.columns)
    assert (found.about["n_layers"], found.about["n_heads"], found.about["checkpoint"]) == (2, 2, "abc")


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "f.parquet"
    Extract().measure(load("stories/gpt2"), Tokens(data="stories:1:3", max_tokens=60)).save(path)
    return path


def test_a_flipped_bit_is_no_traceback(extracted: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    whole, wrong, rng = extracted.read_bytes(), 0, np.random.default_rng(0)
    for place in rng.choice(len(whole), 40, replace=False):
        raw = bytearray(whole)
        raw[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(raw)
        try:
            read_features(path)
        except InputError as error:
            wrong += 1
            assert "\n" not in str(error)
    assert wrong


@pytest.mark.parametrize("text", ["large_string", "string_view", "category"])
def test_a_table_that_others_wrote_again(extracted: Path, tmp_path: Path, text: str) -> None:
    """pandas writes text as large_string: the values are the same, so they are read."""
    again = tmp_path / "again.parquet"
    was, rows = read_features(extracted), pq.read_table(extracted)
    kinds = {"large_string": pa.large_string(), "string_view": pa.string_view()}
    kind = kinds.get(text, pa.dictionary(pa.int32(), pa.string()))
    fields = [field.with_type(kind) if pa.types.is_string(field.type) else field for field in rows.schema]
    pq.write_table(rows.cast(pa.schema(fields, rows.schema.metadata)), again)
    found = read_features(again)
    assert found.about == was.about and found.columns == was.columns
    pd.testing.assert_frame_equal(found.table, was.table, check_exact=True)


def test_several_files_of_one_model(tmp_path: Path) -> None:
    """Extraction numbers the documents of every file from 0: they are numbered on, and the file is named."""
    tables = [planted_table().assign(token_id=lambda t, i=i: t["token_id"] + i) for i in range(3)]
    tables[1]["document"] = np.arange(12) // 6
    paths = [
        planted_file(tmp_path / f"{i}.parquet", table=table, data={"corpus": str(i), "rule": "all"})
        for i, table in enumerate(tables)
    ]
    found = read_features(paths)
    assert found.table["document"].tolist() == [0] * 12 + [1] * 6 + [2] * 6 + [3] * 12
    assert found.table["file"].tolist() == [0] * 12 + [1] * 12 + [2] * 12
    assert [data["corpus"] for data in found.about["data"]] == ["0", "1", "2"]
    np.testing.assert_array_equal(found.X[12:24], read_features(paths[1]).X)
    assert "file" not in read_features(paths[0]).table


def test_the_same_data_in_two_files(tmp_path: Path) -> None:
    table, other = planted_table(), planted_table().assign(token_id=7)
    a = planted_file(tmp_path / "a.parquet", table=table, data={"corpus": "one", "rule": "all"})
    for name, rows, data in (
        ("b", other, {"corpus": "one", "rule": "all"}),  # says so
        ("c", pd.concat([other, table.assign(document=1)]), {"corpus": "two", "rule": "all"}),  # has a document of a
    ):
        path = planted_file(tmp_path / f"{name}.parquet", table=rows, data=data)
        with pytest.raises(InputError, match=f"{name}.parquet and .*a.parquet hold the same documents"):
            read_features([a, path])
    part = planted_file(tmp_path / "d.parquet", table=other, data={"corpus": "one", "rule": "held out"})
    assert len(read_features([a, part]).table) == 24
    with pytest.raises(InputError, match="hold the same documents"):
        read_features([a, a])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:0], "has no rows"),
        (lambda t: pd.concat([t, t[:2]]), "2 rows with the document and position of another"),
        (lambda t: t.assign(kappa=t["kappa"].mask(t.index.isin([3, 5]))), "2 rows with missing values, first row 3, k"),
        (lambda t: t.assign(kappa=t["kappa"].mask(t.index == 3, np.inf), k_star=t["k_star"].mask(t.index.isin([2, 5]))),
         "2 rows with missing values, 1 row with infinite values, first row 2, k_star"),
        (lambda t: t.drop(columns="kappa"), "kappa is missing"),
        (lambda t: t.assign(document="a"), "Failed to parse string: 'a'"),
        (lambda t: t.assign(position=0.5), "was truncated"),
        (lambda t: t.assign(kappa=1e300), "infinite values"),
        (lambda t: t.assign(token=t["token"].mask(t.index == 0)), "null values"),
        (lambda t: t[["kappa"]], "document is missing"),
    ],
)  # fmt: skip
def test_values_and_columns_that_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    table = pa.Table.from_pandas(change(planted_table()), preserve_index=False)
    with refused(message):
        read_features(written(tmp_path / "f.parquet", table, ABOUT))


def test_tables_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    for table, message in ((pd.read_parquet(planted_file(path)), "its metadata lack 'about', which pandas drops"),
                           (pd.DataFrame({"a": [1]}), "not a table of features")):  # fmt: skip
        table.to_parquet(path)
        with refused(message):
            read_features(path)


def test_descriptions_that_are_refused(tmp_path: Path) -> None:
    for about, message in (({"format": 99}, "format 99"), ({"schema": 7}, "is damaged"),
                           ({"n_layers": "many"}, "is damaged .n_layers")):  # fmt: skip
        with refused(message):
            read_features(changed(tmp_path / "f.parquet", **about))
    a = planted_file(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="different checkpoint"):
        read_features([a, planted_file(tmp_path / "b.parquet", checkpoint="def")])
    with pytest.raises(InputError, match="different options"):
        read_features([a, changed(tmp_path / "c.parquet", options=ABOUT["options"] | {"theta_gate": 0.2})])


def test_raw_activations_that_are_no_numbers(tmp_path: Path) -> None:
    for value, kind in ((np.inf, "infinite"), (-np.inf, "infinite"), (np.nan, "missing")):
        x = np.ones((12, 3))
        x[[1, 4], [0, 2]] = value
        path = raw_file(tmp_path / "raw.parquet", planted_table(), x)
        with pytest.raises(InputError, match=f"raw.parquet: 2 rows with {kind} values; extract it again"):
            read_raw(path)
