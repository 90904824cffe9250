"""Clusters of planted tables, as the command writes them, and every bad input."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamscope import InputError, Result
from streamscope.features import Cluster, Extract
from streamscope.features.cluster import main
from streamscope.features.cluster.measure import _place, _umap
from streamscope.features.tables import FeatureTables
from tests.features.planted import ABOUT, planted_file, planted_table, raw_file
from tests.tiny import refused

NAMES = [column["name"] for column in ABOUT["schema"] if not column["constant"]]


def planted(n: int = 240, noise: int = 0, seed: int = 0) -> pd.DataFrame:
    """Tokens of 12 documents whose k* (0, 1, 2) says what all their features are near to; `noise` of them far away."""
    rng = np.random.default_rng(seed)
    table = planted_table(n, seed=seed)
    k_star = np.repeat([0, 1, 2], [n // 2, n // 3, n - n // 2 - n // 3])
    centers = rng.choice([0.0, 40.0], (3, len(NAMES)))
    x = centers[k_star] + rng.standard_normal((n, len(NAMES)))
    if noise:
        x[-noise:] = 3000 * rng.standard_normal((noise, len(NAMES)))
    table[NAMES] = x
    table["k_star"] = k_star.astype(float)
    order = rng.permutation(n)
    table[[column["name"] for column in ABOUT["schema"] if column["constant"]]] = 0.0
    return table.iloc[order].assign(document=np.arange(n) % 12, position=np.arange(n) // 12).reset_index(drop=True)


def clustered(*paths: Path, **how) -> Result:
    """Clusters of the tables, without a map unless it is asked for."""
    return Cluster(**{"umap": False, **how}).measure(None, FeatureTables(features=paths))


def test_k_star_clusters_are_found(tmp_path: Path) -> None:
    table, out = planted(noise=6), tmp_path / "out.parquet"
    path = planted_file(tmp_path / "f.parquet", table=table)
    main(["--features", str(path), "--out", str(out), "--no-umap"])
    result = Result.load(out)
    labels = result.table("labels").frame
    assert labels["cluster"].dtype == np.int32 and labels["probability"].dtype == np.float32
    pd.testing.assert_frame_equal(labels[["document", "position"]], table[["document", "position"]], check_dtype=False)
    far = (table[NAMES[0]].abs() > 200).to_numpy() | (table[NAMES[1]].abs() > 200).to_numpy()
    np.testing.assert_array_equal(labels["cluster"], np.where(far, -1, table["k_star"]))
    clusters = result.table().frame
    assert clusters["n"].tolist() == [120, 80, 34] and clusters["k_star_sd"].tolist() == [0, 0, 0]
    assert clusters[["early", "middle", "late"]].to_numpy().tolist() == np.eye(3).tolist()
    assert clusters["held"].tolist() == pytest.approx([120 / 240, 200 / 240, 234 / 240])
    about = result.about["clusters"]
    assert about["method"] == "hdbscan" and about["files"] == [str(path)] and len(about["sha256"]) == 64
    summary = result.table("summary").frame.iloc[0]
    assert summary["coverage"] == pytest.approx(234 / 240) and summary["zero"] == 4
    assert summary["coverage_low"] < 234 / 240 < summary["coverage_high"]


def test_kmeans_and_all_options(tmp_path: Path) -> None:
    path = planted_file(tmp_path / "f.parquet", table=planted())
    raw = raw_file(tmp_path / "raw.parquet", planted(), planted()[NAMES].to_numpy())
    result = clustered(path, method="kmeans", clusters=3, raw=(raw,), resamples=100, stability=2)
    labels = result.table("labels").frame
    assert (labels["cluster"] == labels["k_star"]).all() and (labels["probability"] == 1).all()
    assert result.table("agreement").frame["value"].tolist() == pytest.approx([1] * 4)
    stability = result.table("stability").frame
    assert stability["kind"].tolist() == ["seed", "seed", "documents", "documents"]
    assert stability["ari"].tolist() == [1] * 4 and stability["n"].tolist() == [240, 240, 200, 200]
    assert "no components" in result.table("summary").missing[0, "variance"]


def test_parts_beside_other_features_and_parameters(tmp_path: Path) -> None:
    """Sixty documents of three kinds of tokens; without the columns that tell two kinds apart there are two."""
    table = planted(1800).assign(document=np.arange(1800) % 60)
    merged = table.copy()
    merged.loc[table["k_star"] == 2, NAMES] = merged.loc[table["k_star"] == 1, NAMES].to_numpy()[:300]
    how = {"f": {}, "other": {"table": merged}, "strange": {"checkpoint": "other"}, "fewer": {"table": table.iloc[:-1]}}
    path, other, strange, fewer = (
        planted_file(tmp_path / f"{name}.parquet", **{"table": table, **given}) for name, given in how.items()
    )
    for against, numbers in (({"against": other}, [3, 2, 1]), ({"against_samples": 5}, [3, 3, 0])):
        frame = clustered(path, parts=4, **against).table("parts").frame.set_index("of")
        assert frame.loc["clusters", ["own", "against", "difference"]].tolist() == numbers
    for given, message in ((strange, "another checkpoint than the features; extract both"), (fewer, "other tokens")):
        with refused(message):
            clustered(path, parts=4, against=given)
    with refused("--parts is at least 2"):
        Cluster(against_size=20)


def test_kmeans_of_fewer_vectors_than_clusters_says_where(tmp_path: Path) -> None:
    """Of all tokens there are enough; neither of a part of the documents nor of raw activations."""
    table = planted().assign(document=np.arange(240) % 40, position=np.arange(240) // 40)
    path = planted_file(tmp_path / "f.parquet", table=table)
    raw = raw_file(tmp_path / "raw.parquet", table, table[NAMES].round(-1).to_numpy() > 0)
    for how, message in (({"parts": 4}, "60 distinct feature vectors in a part of the documents are fewer than"),
                         ({"stability": 1}, "192 distinct feature vectors in a part"),
                         ({"raw": (raw,)}, r"\d distinct raw activations are fewer")):  # fmt: skip
        with refused(message):
            clustered(path, method="kmeans", clusters=200, **how)


def test_kmeans_takes_fewer_tokens_than_a_cluster_of_hdbscan(tmp_path: Path) -> None:
    result = clustered(planted_file(tmp_path / "f.parquet", table=planted(6)), method="kmeans", clusters=3)
    assert result.table().frame["n"].tolist() == [3, 2, 1]


def test_tables_of_two_corpora_are_clustered_together(tmp_path: Path) -> None:
    tables = [planted(), planted().assign(token_id=lambda t: t["token_id"] + 1000)]
    names = "ab"
    paths = [planted_file(tmp_path / n, table=t, data={"corpus": n}) for n, t in zip(names, tables, strict=True)]
    x = [table[NAMES].to_numpy() for table in tables]
    raw = [raw_file(tmp_path / f"raw-{n}", t, v, data={"corpus": n}) for n, t, v in zip(names, tables, x, strict=True)]
    result = clustered(*paths, raw=tuple(raw), resamples=100)
    labels = result.table("labels").frame
    assert labels["file"].tolist() == [0] * 240 + [1] * 240 and labels["document"].nunique() == 24
    assert (labels["cluster"] == labels["k_star"]).all()
    assert result.about["clusters"]["files"] == [str(path) for path in paths]
    assert result.table("agreement").frame["value"].tolist() == pytest.approx([1] * 4)
    other = raw_file(tmp_path / "hook", tables[1], x[1], hook="g", data={"corpus": "b"})
    for given, message in ((raw[:1], "1 file for 2 tables"), ([raw[0], other], "has other hooks than")):
        with pytest.raises(InputError, match=message):
            clustered(*paths, raw=tuple(given))
    with pytest.raises(InputError, match="hold the same documents"):
        clustered(paths[0], paths[0])


def test_new_tokens_get_the_labels_of_their_kind(tmp_path: Path) -> None:
    out = tmp_path / "modes.parquet"
    first = clustered(planted_file(tmp_path / "f.parquet", table=planted()))
    first.save(out)
    new = planted(seed=0).assign(document=lambda t: t["document"] + 100)
    new["kappa"] += 0.01
    result = clustered(planted_file(tmp_path / "other.parquet", table=new), fitted=out)
    labels = result.table("labels").frame
    assert (labels["cluster"] == new["k_star"]).mean() > 0.9 and set(labels["cluster"]) <= {-1, 0, 1, 2}
    assert labels["document"].min() == 100
    assert result.about["clusters"]["files"] == [str(tmp_path / "other.parquet")]
    assert result.about["clusters"]["parameters"] == first.about["clusters"]["parameters"]
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(result.arrays[name], array)
    one = clustered(planted_file(tmp_path / "one.parquet", table=new.iloc[:1]), fitted=out)
    for fitted in (result, one):  # what does not vary among new tokens is not left out
        columns = fitted.table("summary").frame[["columns", "constant", "zero"]]
        assert columns.equals(first.table("summary").frame[["columns", "constant", "zero"]])
    again = clustered(tmp_path / "f.parquet", fitted=out).table("labels").frame
    assert (again["cluster"] == first.table("labels").frame["cluster"]).all()
    with pytest.raises(InputError, match="--fitted fits no clusters"):
        Cluster(fitted=out, stability=1)


def test_strict_tables_have_late_tokens(tmp_path: Path) -> None:
    """Two layers: k* is 0 or 1; only the options of the table say that 1 is the end."""
    table = planted().assign(k_star=lambda t: t["k_star"].clip(upper=1))
    result = clustered(planted_file(tmp_path / "f.parquet", table=table, options=Extract(kstar="strict")))
    depth = result.table("depth").frame.set_index(["group", "depth"])["share"]
    assert depth[("all", "late")] == 0.5 and depth[("all", "middle")] == 0
    clusters = result.table().frame
    assert (clusters["late"] == (clusters["k_star_mean"] == 1)).all()


def test_where_there_is_no_cluster(tmp_path: Path) -> None:
    table = planted()
    table[NAMES] = np.random.default_rng(1).random((len(table), len(NAMES)))
    table["k_star"] = 1.0
    result = clustered(planted_file(tmp_path / "f.parquet", table=table), min_cluster_size=100)
    assert not len(result.table().frame) and result.table("summary").frame["coverage"].tolist() == [0]
    assert result.table("summary").missing[0, "largest"] == "no cluster"
    written = result.save(tmp_path / "out.parquet")
    assert len(Result.load(written[0]).table("labels").frame) == 240


@pytest.mark.slow
def test_map_places_equal_tokens_once(tmp_path: Path) -> None:
    pytest.importorskip("umap")
    table = planted()
    table.loc[1, NAMES] = table.loc[0, NAMES]
    labels = clustered(planted_file(tmp_path / "f.parquet", table=table), umap=True).table("labels").frame
    xy = labels[["x", "y"]].to_numpy()
    assert xy.dtype == np.float32 and np.isfinite(xy).all() and (xy[0] == xy[1]).all()
    centers = labels.groupby("cluster")[["x", "y"]].transform("mean").to_numpy()
    assert np.linalg.norm(xy - centers, axis=1).mean() < 0.5 * np.linalg.norm(xy - xy.mean(0), axis=1).mean()


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    table = planted()
    x, text = table[NAMES].to_numpy(), table.assign(token_id=table["token_id"].mask(table.index == 7, 999))
    path = planted_file(tmp_path / "f.parquet", table=table)
    constant = planted_file(tmp_path / "constant.parquet", table=table.assign(**dict.fromkeys(NAMES, 1.0)))
    few = planted_file(tmp_path / "few.parquet", table=table[:5].assign(kappa=1.0))
    other = planted_file(tmp_path / "other.parquet", table=table, checkpoint="other")
    clustered(path).save(tmp_path / "modes.parquet")
    raw = {
        "fewer": (table[:200], x[:200], {}), "strange": (table, x, {"checkpoint": "other"}), "texts": (text, x, {}),
        "corpus": (table, x, {"data": {"corpus": "another"}}),
    }  # fmt: skip
    raws = {name: raw_file(tmp_path / f"{name}.parquet", t, v, **how) for name, (t, v, how) in raw.items()}
    for paths, how, message in (
        ((path,), {"min_samples": 240}, "--min-samples 240: a token has 239 others"),
        ((few,), {}, "5 tokens, fewer than --min-cluster-size 10"),
        ((constant,), {}, "all feature columns are constant"),
        ((path,), {"fitted": path}, "f.safetensors does not exist"),
        ((other,), {"fitted": tmp_path / "modes.parquet"}, "another checkpoint than the clusters"),
        ((path,), {"method": "kmeans", "clusters": 241}, "240 distinct feature vectors are fewer than --clusters 241"),
        ((path,), {"raw": (path,)}, "lacks the hooks"), ((path,), {"raw": (raws["strange"],)}, "another checkpoint"),
        *(((path,), {"raw": (raws[name],)}, "holds other data or tokens") for name in ("fewer", "corpus", "texts")),
    ):  # fmt: skip
        with refused(message):
            clustered(*paths, **how)


def test_constant_columns_are_left_out_and_named(tmp_path: Path) -> None:
    result = clustered(planted_file(tmp_path / "f.parquet", table=planted().assign(kappa=1.0)))
    summary = result.table("summary").frame.iloc[0]
    assert summary["columns"] == len(NAMES) - 1 and summary["constant"] == 1
    assert result.about["constant"] == ["kappa"]


@pytest.mark.slow
def test_umap_warns_of_groups_that_nothing_joins() -> None:
    """Eight groups far apart, of which UMAP warns, and one group, of which it does not."""
    rng, labels = np.random.default_rng(0), pd.DataFrame(index=range(160))
    apart = np.concatenate([rng.normal(0, 0.01, (20, 5)) + 1000 * j for j in range(8)])
    assert "unconnected groups" in _place(_umap(0), labels, apart, np.arange(160))
    assert labels[["x", "y"]].notna().all(axis=None)
    assert _place(_umap(0), labels, rng.normal(0, 1, (160, 5)), np.arange(160)) == ""
