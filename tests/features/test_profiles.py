"""Profiles of planted clusters: texts, kinds, samples and enrichment against loops; the files of the command."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope import InputError, Result
from streamscope.features import Cluster, Extract, Profile
from streamscope.features.cluster.measure import fingerprint
from streamscope.features.compute import columns
from streamscope.features.profile import main
from streamscope.features.profile import measure as profiling
from streamscope.features.profile.contexts import Contexts
from streamscope.features.profile.measure import CLUSTER
from streamscope.features.profile.token_kinds import enrichment, kinds
from streamscope.features.store import Features, read_features
from streamscope.features.tables import FeatureTables
from streamscope.instruments.stats.estimators import holm
from streamscope.instruments.table import LongTable, Table, key
from tests.features.planted import planted_file

TEXT = ["<|endoftext|>", "Lil", "y", " had", " 3", " red", " balls", ".", "\n", "She", " saw", " it", "!"]


def rows(document: int, positions: range) -> pd.DataFrame:
    """Rows of a document with the tokens `TEXT`."""
    table = pd.DataFrame({"document": document, "position": list(positions)})
    table["token"] = [TEXT[p] for p in positions]
    return table.assign(target=[TEXT[p + 1] for p in positions])


def test_contexts_are_the_text_around_a_token() -> None:
    parts = [rows(0, range(12)), rows(1, range(3, 6)), rows(1, range(7, 9))]
    table = pd.concat(parts).sample(frac=1, random_state=0).reset_index(drop=True)
    contexts = Contexts(Features(table, (), {"options": {"logits_row": "query"}}))
    before, after = contexts.neighbours()
    for row in range(len(table)):
        d, p = table["document"][row], table["position"][row]
        known = range(12) if d == 0 else range(3, 6) if p < 6 else range(7, 9)
        left = [q for q in known if p - 4 <= q < p and q > 0]
        right = [q for q in (*known, known[-1] + 1) if p < q <= p + 3]
        text = contexts.at(row, before=4, after=3)
        starts = d == 0 and p - 4 <= 1
        assert text.left == ("" if starts else "…") + "".join(TEXT[q] for q in left)
        assert text.token == TEXT[p]
        assert text.right == "".join(TEXT[q] for q in right) + "…"
        assert (before[row], after[row]) == (TEXT[p - 1] if p > 1 and p - 1 in known else "", TEXT[p + 1])
    row = int(table.index[(table["document"] == 0) & (table["position"] == 5)][0])
    assert contexts.at(row).marked() == "Lily had 3 ⟦red⟧ balls.⏎She saw it…"


def test_contexts_of_targets_that_are_two_tokens_on() -> None:
    """With --logits-row next, and the token after the last row is not known."""
    table = rows(0, range(11)).assign(target=TEXT[2:]).sample(frac=1, random_state=1).reset_index(drop=True)
    contexts = Contexts(Features(table, (), {"options": {"logits_row": "next"}}))
    _, after = contexts.neighbours()
    for row, p in enumerate(table["position"]):
        assert after[row] == (TEXT[p + 1] if p < 10 else "")
        assert contexts.at(row, after=3).right == "".join(TEXT[p + 1 : min(p + 4, 11)]) + "…"


def test_a_first_token_that_is_no_bos_is_a_word_of_the_text() -> None:
    table = pd.DataFrame({"document": 0, "position": range(11), "token": TEXT[1:12], "target": TEXT[2:13]})
    contexts = Contexts(Features(table, (), {"options": {"logits_row": "query"}}))
    assert contexts.at(4).marked() == "Lily had 3 ⟦red⟧ balls.⏎She saw it…" and contexts.at(4, before=3).left[0] == "…"
    before, after = contexts.neighbours()
    assert before[:3].tolist() == ["", "Lil", "y"]
    found = kinds(TEXT[1:12], before, after, np.arange(11) == 0)
    assert [np.flatnonzero(found[kind]).tolist() for kind in ("start", "capitalised", "piece")] == [[0], [0, 8], [0, 1]]


def test_kinds_of_tokens() -> None:
    expected = {
        "start": [0], "newline": [8], "punctuation": [7, 12], "digit": [4], "capitalised": [1, 9], "piece": [1, 2],
        "pronoun": [9, 11], "function": [3], "content": [5, 6, 10],
    }  # fmt: skip
    found = kinds(TEXT, ["", *TEXT[:-1]], [*TEXT[1:], ""], np.arange(len(TEXT)) == 0)
    # what goes before "Lil" is the name of a special token, which ends in no letter
    assert {kind: np.flatnonzero(member).tolist() for kind, member in found.items()} == expected


def test_enrichment_is_that_of_counting_by_hand() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(-1, 3, 40)
    member = rng.random(40) < np.where(clusters == 1, 0.9, 0.3)
    found = enrichment(clusters, {"word": member, "never": np.zeros(40, bool), "always": np.ones(40, bool)})
    assert set(found["kind"]) == {"word"} and len(found) == 4
    for row in found.itertuples():
        inside = clusters == row.cluster
        n, k, whole = int(inside.sum()), int((inside & member).sum()), int(member.sum())
        chance = stats.hypergeom(40, whole, n)
        assert row.p == pytest.approx(min(1, 2 * min(chance.cdf(k), chance.sf(k - 1))))
        a, b, c, d = k + 0.5, n - k + 0.5, whole - k + 0.5, 40 - n - (whole - k) + 0.5
        assert row.log_odds == pytest.approx(math.log(a / b * d / c))
        assert (row.n, row.k, row.share) == (n, k, k / n)
        assert row.share_elsewhere == pytest.approx((whole - k) / (40 - n))
    np.testing.assert_allclose(found["p_holm"], holm(found["p"].to_numpy()))


def test_samples_are_central_and_spread() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(14, 2))
    distance = [math.dist(row, z.mean(0)) for row in z]
    np.testing.assert_allclose(profiling.centre_distance(z, np.zeros(14)), distance)
    assert profiling.nearest(z, 3).tolist() == sorted(range(14), key=lambda i: distance[i])[:3]
    chosen = [profiling.nearest(z, 1)[0]]
    while len(chosen) < 4:
        chosen.append(max(range(14), key=lambda i: min(math.dist(z[i], z[j]) for j in chosen)))
    assert profiling.farthest_points(z, 4).tolist() == chosen

    assert len(profiling.farthest_points(np.repeat(z[:3], 5, axis=0), 15)) == 3
    plain = profiling.standardised(np.column_stack([z, np.full(14, 0.1, np.float32)]))
    np.testing.assert_allclose(plain[:, :2].std(0), 1)
    assert (plain[:, 2] == 0).all()


def test_distances_are_those_of_plain_loops(tmp_path: Path) -> None:
    """Of every cluster and of the tokens in the others, noise left out; one that is spread out is farther."""
    path, clusters = planted(tmp_path)
    result = Profile(clusters=clusters, umap=False).measure(None, FeatureTables(features=(path,)))
    table = result.table("distances").frame.set_index("cluster")
    found, labels = read_features(path), Result.load(clusters).table("labels").frame
    x = found.X.astype(float)
    z = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    far = {}
    for cluster in (-1, 0, 1):
        rows = [z[i] for i in range(len(z)) if labels["cluster"][i] == cluster]
        centre = np.mean(rows, 0)
        far[cluster] = [math.dist(row, centre) for row in rows]
        assert table.loc[cluster, "distance"] == pytest.approx(np.mean(far[cluster]), rel=1e-5)
    assert table.loc[0, "farther"] == pytest.approx(np.mean(far[0]) - np.mean(far[1]), abs=1e-4)
    assert table.loc[1, "farther"] == pytest.approx(-table.loc[0, "farther"])
    assert table.loc[-1, "farther"] == pytest.approx(np.mean(far[-1]) - np.mean(far[0] + far[1]), abs=1e-4)
    assert table.loc[0, "farther_low"] < table.loc[0, "farther"] < table.loc[0, "farther_high"]


NAMES = [c.name for c in columns(2, 2, Extract())]


def planted(folder: Path, n: int = 240, **more: Any) -> tuple[Path, Path]:
    """Twenty documents of TEXT; cluster 0: the full stop (k* = 0), cluster 1: "She" (k* = 2), the others in none."""
    rng = np.random.default_rng(0)
    table = pd.concat([rows(d, range(12)) for d in range(n // 12)], ignore_index=True)
    ids = {name: [TEXT.index(t) for t in table[name]] for name in ("token", "target")}
    own = np.where(table["position"] == 11, 100 + table["document"], 0)  # no document is another's copy
    table = table.assign(token_id=ids["token"] + own, target_id=ids["target"], prediction_id=10, prediction=" saw")
    cluster = np.select([table["token"] == ".", table["token"] == "She"], [0, 1], -1)
    features = pd.DataFrame(rng.random((n, len(NAMES))), columns=NAMES) + 5 * (cluster[:, None] == 1)
    features["k_star"] = np.select([cluster == 0, cluster == 1], [0.0, 2.0], rng.integers(0, 3, n))
    path = planted_file(folder / "f.parquet", table=pd.concat([table, features], axis=1), **more)
    labels = table.assign(k_star=features["k_star"].astype("int32"), cluster=cluster.astype("int32"), probability=1.0)
    labels = labels.assign(x=rng.random(n).astype("float32"), y=rng.random(n).astype("float32"))
    of = {"method": "planted", "files": [str(path)], "sha256": fingerprint(read_features(path))}
    return path, clusters_file(folder / "clusters.parquet", labels, of)


def clusters_file(path: Path, labels: pd.DataFrame, of: dict[str, Any] | None, name: str = "cluster") -> Path:
    """A result of `features.cluster` that says so of its labels."""
    tables = {"clusters": Table(pd.DataFrame({"cluster": [0, 1]}), (CLUSTER,))}
    tables["labels"] = LongTable.of([labels], tuple(key(c, c, c) for c in labels))
    for old in path.parent.glob(f"{path.stem}*.parquet"):  # another instrument's would stay
        old.unlink()
    Result(tables, about={"instrument": name, "clusters": of}).save(path)
    return path


def profile(features: Path, clusters: Path | None, **how: Any) -> Result:
    return Profile(clusters=clusters, **how).measure(None, FeatureTables(features=(features,)))


MODEL: dict[str, Any] = {"run": "planted", "preset": "lfa"}


@pytest.mark.usefixtures("own_plotly")
def test_the_command_says_what_was_planted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    features, clusters = planted(tmp_path, **MODEL)
    out, page = tmp_path / "out.parquet", tmp_path / "map.html"
    given = ["--features", str(features), "--clusters", str(clusters), "--out", str(out), "--figure", str(page)]
    main([*given, "--diverse", "4"])
    result = Result.load(out)
    table = result.table().frame.set_index("cluster")
    assert table.index.tolist() == [0, 1, -1]
    assert (table.loc[0, "n"], table.loc[0, "documents"], table.loc[0, "share"]) == (20, 20, 20 / 240)
    assert (table.loc[[0, 1], "depth_mean"] == [0, 2]).all() and (table.loc[[0, 1], "depth_sd"] == 0).all()
    assert result.table().missing[0, "depth_mean_low"] == "the same in every independent case"
    assert table.loc[-1, "depth_mean_low"] < table.loc[-1, "depth_mean"] < table.loc[-1, "depth_mean_high"]
    assert json.loads(table.loc[1, "tokens"]) == {"She": 1.0} and json.loads(table.loc[1, "predictions"]) == {
        " saw": 1.0
    }
    assert table.loc[1, "mean_head_act_stable_L1H0"] == pytest.approx(5.5, abs=0.2)
    assert "mean_head_act_final_L0H0" not in table and "mean_traj_prob_L1" in table
    kind = result.table("kinds").frame.set_index(["cluster", "kind"])
    assert kind.loc[(0, "punctuation"), "share"] == 1 and kind.loc[(0, "punctuation"), "p_holm"] < 1e-6
    assert kind.loc[(1, "pronoun"), "log_odds"] > 3 > 0 > kind.loc[(1, "content"), "log_odds"]
    some = result.table("samples").frame
    assert some.groupby(["cluster", "kind"]).size()[1].to_dict() == {"diverse": 4, "representative": 8}
    assert (some.loc[some["cluster"] == 1, "left"].str.endswith("balls.\n")).all()
    assert result.about["clusters"]["method"] == "planted"
    assert table.loc[1, "top_tokens"] == "`She` 100%" and "pronouns 100% (9%)" in table.loc[1, "more_or_fewer"]
    assert re.match(r"L1\.H\d at k\* 5\.\d\d \(0\.\d\d\), ", table.loc[1, "heads"])
    assert some.loc[some["cluster"] == 1, "text"].iloc[0] == "Lily had 3 red balls.⏎⟦She⟧ saw it!…"
    assert "240 tokens in 2 clusters" in " ".join(capsys.readouterr().out.split())
    assert page.stat().st_size > 10_000


def test_samples_are_those_of_each_cluster_alone(tmp_path: Path) -> None:
    features, clusters = planted(tmp_path, **MODEL)
    found, labels = read_features(features), Result.load(clusters).table("labels").frame
    wide = profiling.standardised(found.X)
    far = profiling.centre_distance(wide, labels["cluster"].to_numpy())
    some = profiling.samples(found, labels, wide, far, representative=3, diverse=5)
    x = found.X.astype(float)
    z = (x - x.mean(0)) / x.std(0)
    inside = labels["cluster"].to_numpy() == 0
    distance = np.sqrt(((z[inside] - z[inside].mean(0)) ** 2).sum(1))
    mine = some[(some["cluster"] == 0) & (some["kind"] == "representative")]
    np.testing.assert_allclose(mine["distance"], np.sort(distance)[:3], rtol=1e-5)
    where = labels.loc[inside].iloc[np.argsort(distance)[:3]]
    assert mine["document"].tolist() == where["document"].tolist()
    table, _ = profiling.profiles(found, labels, far)
    assert table["radius"][0] == pytest.approx(np.sqrt((distance**2).mean()), rel=1e-5)


def test_the_map_shows_every_token_in_its_text(tmp_path: Path) -> None:
    features, clusters = planted(tmp_path, **MODEL)
    labels, result = Result.load(clusters).table("labels").frame, profile(features, clusters)
    drawn = result.figure("tokens-y-by-cluster")
    for trace, cluster in zip(drawn.data, [-1, 0, 1], strict=True):
        mine = labels[labels["cluster"] == cluster]
        np.testing.assert_array_equal([trace.x, trace.y], [mine["x"], mine["y"]])
    assert drawn.data[2].customdata[0].tolist() == ["Lily had 3 red balls.⏎⟦She⟧ saw it!…", " saw", "1"]
    names = ["document", "position", "cluster"]
    pd.testing.assert_frame_equal(result.table("tokens").frame[names], labels[names])


def test_clusters_of_two_tables_say_which(tmp_path: Path) -> None:
    paths = []
    for i, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        first, _ = planted(tmp_path / name, **MODEL, data={"corpus": name})
        table = pd.read_parquet(first).assign(token_id=lambda t, i=i: t["token_id"] + 100 * i)
        table = table[: 240 - 120 * i]
        paths.append(planted_file(tmp_path / f"{name}.parquet", table=table, **MODEL, data={"corpus": name}))
    both, clusters = FeatureTables(features=tuple(paths)), tmp_path / "clusters.parquet"
    made = Cluster(umap=False, method="kmeans", clusters=2).measure(None, both)
    made.save(clusters)
    result, names = Profile(clusters=clusters).measure(None, both), [str(path) for path in paths]
    held = made.table("labels").frame.groupby(["cluster", "file"]).size().unstack(fill_value=0)
    for row in result.table().frame.to_dict("records"):
        shares = (held.loc[row["cluster"]] / row["n"]).tolist()
        found = json.loads(row["files"])
        assert [found.get(path, 0) for path in names] == pytest.approx(shares, abs=1e-4)
    some = result.table("samples").frame
    assert ((some["document"] >= 20) == (some["file"] == names[1])).all() and some["file"].nunique() == 2
    with pytest.raises(InputError, match="clusters of other features"):
        Profile(clusters=clusters).measure(None, FeatureTables(features=tuple(paths[::-1])))


def test_without_clusters_they_are_made_now(tmp_path: Path) -> None:
    features, _ = planted(tmp_path, **MODEL)
    result = profile(features, None, umap=False)
    made = Cluster(umap=False).measure(None, FeatureTables(features=(features,)))
    assert result.table().frame["n"].sum() == 240
    assert set(result.table().frame["cluster"]) == set(made.table("labels").frame["cluster"])
    assert not {"x", "y"} & set(result.table("tokens").frame)
    assert result.figure().data and result.about["clusters"] == made.about["clusters"]


def test_clusters_that_do_not_match(tmp_path: Path) -> None:
    features, clusters = planted(tmp_path, **MODEL)
    labels, other = Result.load(clusters).table("labels").frame, {"sha256": "0" * 64, "files": ["g.parquet"]}
    for of, name, message in (
        (other, "cluster", r"other features \(g\.parquet\)"),
        (None, "extract", "of extract, not"),
    ):
        clusters_file(clusters, labels, of, name)
        with pytest.raises(InputError, match=message):
            profile(features, clusters)
