"""Labels of a user's own go through `features.profile` to the map, as a join by hand has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.features.profile import Profile, main
from streamscope.features.profile.measure import read_labels
from streamscope.features.store import read_features
from streamscope.features.tables import FeatureTables
from streamscope.instruments.result import Result
from tests.features.test_profiles import MODEL, planted
from tests.tiny import refused


def labels_file(features: Path, **columns: Any) -> tuple[Path, pd.DataFrame]:
    """Every token but those of document 3 labelled by its text, in another order, and two of no token."""
    table = pd.read_parquet(features)[["document", "position", "token"]]
    word = table["token"].map({".": "stop", "She": "name", " red": "colour"})
    made = table[["document", "position"]].assign(label=word)[table["document"] != 3]
    more = pd.DataFrame({"document": [0, 99], "position": [50, 1], "label": ["stop", "name"]})
    made = pd.concat([made, more]).sample(frac=1, random_state=0).assign(**columns)
    path = features.with_name("mine.parquet")
    made.to_parquet(path, index=False)
    return path, made


def test_own_labels_reach_profiles_samples_and_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features, clusters = planted(tmp_path, **MODEL)
    mine, given = labels_file(features)
    out, page = tmp_path / "p.parquet", tmp_path / "map.html"
    argv = ["--features", str(features), "--labels", str(mine), "--clusters", str(clusters), "--diverse", "2"]
    main([*argv, "--out", str(out), "--figure", str(page)])
    said = " ".join(capsys.readouterr().out.split())
    of = pd.read_parquet(features).merge(given, on=["document", "position"], how="left")
    none = int(of["label"].isna().sum())
    assert f"labels of mine.parquet: {none} of 240 tokens have no label, 2 of {len(given)} labels have no token" in said
    result = Result.load(out)
    tokens = result.table("tokens").frame
    assert tokens["label"].tolist() == of["label"].fillna("").tolist()
    profiles = result.table().frame.set_index("label")
    assert profiles.loc["stop", "n"] == (of["label"] == "stop").sum() == 19 and profiles.loc["", "n"] == none
    assert profiles.loc["stop", "depth_mean"] == 0 and profiles.loc["", "cluster"] == -1
    assert profiles.loc["colour", "top_tokens"] == "` red` 100%"
    some = result.table("samples").frame
    assert (some.loc[some["label"] == "name", "token"] == "She").all()
    drawn = result.figure("tokens-y-by-label")
    names = {trace.name.partition(" (")[0] for trace in drawn.data}
    assert names == {"in no label", "label stop", "label name", "label colour"}
    (stop,) = (trace for trace in drawn.data if trace.name == "label stop (19): .")
    np.testing.assert_array_equal(stop.x, tokens["x"][tokens["label"] == "stop"])
    assert result.figure().to_json() == drawn.to_json() and page.is_file()
    assert result.about["clusters"]["names"] == ["colour", "name", "stop"]


def test_labels_are_numbered_by_size(tmp_path: Path) -> None:
    features, _ = planted(tmp_path, **MODEL)
    found = read_features(features)
    table = found.table[["document", "position"]]
    few = np.select([table["position"] < 2, table["position"] < 5], [7, -1], 3)
    for label in (few, np.where(few == -1, np.nan, few), [None if v < 0 else str(v) for v in few]):
        path = tmp_path / "numbers.parquet"
        table.assign(label=label).to_parquet(path)
        cluster, names, title = read_labels(path, found)
        assert names == ("3", "7") and "60 of 240 tokens have no label, 0 of 240 labels" in title
        assert cluster.tolist() == [{7: 1, -1: -1, 3: 0}[int(v)] for v in few]


def test_tokens_are_held_against_the_features(tmp_path: Path) -> None:
    features, _ = planted(tmp_path, **MODEL)
    table = pd.read_parquet(features)[["document", "position", "token", "token_id"]].assign(label="x")
    path = tmp_path / "mine.parquet"
    table.to_parquet(path)
    assert read_labels(path, read_features(features))[1] == ("x",)
    table.assign(token_id=table["token_id"] + (table["position"] == 4)).to_parquet(path)
    with refused("belongs to other data: token_id of document 0, position 4 is 5 there, 4 in the"):
        read_labels(path, read_features(features))


@pytest.mark.slow
def test_the_map_of_own_labels_is_made_where_there_are_no_clusters(tmp_path: Path) -> None:
    pytest.importorskip("umap")
    features, _ = planted(tmp_path, **MODEL)
    mine, _ = labels_file(features)
    given = FeatureTables(features=(features,))
    assert np.isfinite(Profile(labels=mine).measure(None, given).table("tokens").frame[["x", "y"]]).all(axis=None)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({"document": [0], "position": [1]}, "lacks the column 'label', it has document, position"),
        ({"document": [0, 0], "position": [1, 1], "label": ["a", "b"]}, "document 0, position 1 has two labels"),
        ({"document": [500], "position": [1], "label": ["a"]}, r"matches a token .*500 to 500 there, 0 to 19 here"),
        ({"document": ["a"], "position": [1], "label": ["a"]}, "document must be whole numbers"),
        ({"document": [0], "position": [1], "label": [0.5]}, "labels must be text or whole numbers, not float64"),
        ({"document": [0], "position": [1], "label": [-1]}, "every label is null or −1"),
    ],
)
def test_other_files_are_one_line(made: Any, line: str, tmp_path: Path) -> None:
    features, _ = planted(tmp_path, **MODEL)
    path = tmp_path / "mine.parquet"
    pd.DataFrame(made).to_parquet(path)
    with refused(line):
        main(["--features", str(features), "--labels", str(path), "--no-umap"])
