"""The comparison of computational modes: printed numbers, quantities beside the commands, the page, bad input."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

import streamscope.papers.modes
from streamscope.cli.errors import InputError
from streamscope.features.cluster import Cluster
from streamscope.features.extract import main as extract
from streamscope.features.tables import FeatureTables
from streamscope.instruments.table import read_about
from streamscope.models.train import main as train
from streamscope.papers.modes import main
from streamscope.papers.modes.report import CLAIMS, unfit
from streamscope.papers.pls.claims import printed
from streamscope.papers.pls.verdicts import claims, comparisons, presets
from tests.conftest import ROOT
from tests.papers.pages import changed, once_more, planted, refused, short_page, unexplained
from tests.tiny import arguments

TOKENS = 400


def test_printed_numbers_come_from_the_ledger() -> None:
    assert (one := printed("pls", "hdbscan.coverage")) is not None and one.value == pytest.approx(0.46)
    assert printed("c2", "hdbscan.coverage") is None


def test_clusters_that_are_flat_by_construction_are_no_evidence() -> None:
    """All clusters of both models are flat in every seed, as in the tables: the number's side would "hold"."""
    table = planted({(p, "hdbscan.flat"): [1.0, 1.0, 1.0] for p in ("pls", "c2")})
    plain = claims(table, CLAIMS, printed).set_index("quantity")["direction"]
    assert plain["hdbscan.flat"].startswith("holds")
    judged = claims(table, CLAIMS, printed, unfit).set_index("quantity")["direction"]
    assert judged["hdbscan.flat"].startswith("undefined by construction: ")
    assert judged.drop("hdbscan.flat").equals(plain.drop("hdbscan.flat"))


def test_verdicts_follow_from_planted_seeds() -> None:
    names = {c.quantity for c in CLAIMS}
    values = {("pls", q): [0.3, 0.31, 0.32] for q in names} | {("c2", q): [0.1, 0.12, 0.11] for q in names}
    values |= {("pls", "depth.late"): [0.3, 0.31, 0.32], ("c2", "depth.late"): [0.1, 0.12, 0.11]}
    values["pls", "kmeans.ari"] = [0.008, 0.01, 0.006]
    table = planted(values)
    found = claims(table, CLAIMS, printed).set_index(["quantity", "claim"])["direction"]
    assert found["kmeans.ari", "pls below 0.1"] == "holds"
    assert found["hdbscan.ari", "pls below 0.1"] == "opposite"
    assert found["kmeans.identity", "pls below 0.1"] == "opposite" and found["hdbscan.coverage", "pls > c2"] == "holds"
    assert not any(c.quantity.startswith("depth") for c in CLAIMS), "depth is judged once, by papers.pls"
    means = presets(table, printed).set_index(["quantity", "preset"])
    assert means.loc[("kmeans.ari", "pls"), "printed"] == "0.008" and means.loc[("kmeans.ari", "c2"), "printed"] == ""
    assert comparisons(table, printed).set_index("quantity").loc["depth.late", "paper"] == pytest.approx(-0.16)


# ---- the command on tiny runs ------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("modes")
    for preset in ("pls", "c2"):
        train(arguments(corpus, folder / f"{preset}-0", "--seed", "0", preset=preset))
        shutil.copytree(folder / f"{preset}-0", folder / f"{preset}-1")
        changed("manifest.json", lambda m: m.update(seed=1))(folder / f"{preset}-1")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def out(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "modes"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streamscope.papers.modes, "LEAST", 100)
        asked = ["--tokens", str(TOKENS), "--kmeans-tokens", "200", "--resamples", "100", "--static", "none"]
        main([*map(str, runs.values()), "--out", str(folder), *asked, "--no-html", "--device", "cpu"])
    return folder


@pytest.mark.slow
def test_the_numbers_are_those_of_the_commands(out: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    features, raw = tmp_path / "f.parquet", tmp_path / "f-raw.parquet"
    extract(
        [
            str(runs["pls-0"]),
            "--tier",
            "topk",
            "--max-tokens",
            str(TOKENS),
            "--stride",
            "0",
            "--raw",
            "--out",
            str(features),
        ]
    )
    result = Cluster(raw=(raw,), umap=False).measure(None, FeatureTables(features=(features,)))
    summary = result.table("summary").frame.iloc[0]
    agreement = result.table("agreement").frame.set_index(["tokens", "measure"])["value"]
    table = pd.read_parquet(out / "runs.parquet")
    ours = table[(table["preset"] == "pls") & (table["seed"] == 0)].set_index("quantity")["value"]
    assert ours["hdbscan.clusters"] == summary["clusters"] > 1
    assert ours["hdbscan.coverage"] == pytest.approx(summary["coverage"])
    assert ours["hdbscan.variance"] == pytest.approx(summary["variance"])
    assert ours["hdbscan.sd"] == pytest.approx(summary["sd"])
    assert ours["hdbscan.ari"] == pytest.approx(agreement["all, noise a cluster", "ARI"])
    assert ours["hdbscan.ami_clustered"] == pytest.approx(agreement["in clusters of both", "AMI"])


@pytest.mark.slow
def test_identity_is_the_ami_with_token_ids(out: Path, runs: dict[str, Path]) -> None:
    from streamscope.features.cluster.modes import ComputationalModes
    from streamscope.models.checkpoint import load
    from streamscope.models.training.data import evaluation_shards
    from streamscope.papers.modes.measure import _extracted

    model = load(runs["pls-0"])
    shards = evaluation_shards(runs["pls-0"], model._text(), None)
    found, raw = _extracted(model, shards, "structural", 200, lambda label: iter)
    names = [c.name for c in found.columns if not c.constant and found.table[c.name].nunique() > 1]
    ours, theirs = (ComputationalModes("kmeans").fit_predict(x) for x in (found.table[names], raw))
    ids = found.table["token_id"]
    table = pd.read_parquet(out / "runs.parquet")
    one = table[(table["preset"] == "pls") & (table["seed"] == 0)].set_index("quantity")["value"]
    assert one["kmeans.identity"] == pytest.approx(adjusted_mutual_info_score(ids, ours))
    assert one["kmeans.identity_raw"] == pytest.approx(adjusted_mutual_info_score(ids, theirs))
    assert one["kmeans.ari"] == pytest.approx(adjusted_rand_score(ours, theirs))
    assert one["kmeans.identity_gap"] == pytest.approx(one["kmeans.identity_raw"] - one["kmeans.identity"])


def test_the_tables_are_those_of_the_runs(out: Path) -> None:
    short_page(out)
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert set(tables) == {"runs", "presets", "comparisons", "claims", "depth", "clusters", "agreement"}
    shares = tables["depth"].groupby(["preset", "seed"])["share"].sum()
    assert shares.to_numpy() == pytest.approx(1)


def test_another_text_is_measured_and_named(out: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    """The layers where tokens settle are of the other text, and its tables do not pool with those of the runs'."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streamscope.papers.modes, "LEAST", 100)
        asked = f"--tokens {TOKENS} --kmeans-tokens 200 --resamples 100 --static none --no-html".split()
        pair = [str(runs[name]) for name in ("pls-0", "c2-0")]
        main([*pair, "--data", "stories:9:40", "--out", str(tmp_path / "both" / "a"), *asked, "--device", "cpu"])
    about = read_about(tmp_path / "both" / "a" / "runs.parquet")["about"]
    assert "--data stories:9:40" in about["argv"] and about["data"]["documents"] == 40
    text = "seed == 0 and preset == 'pls'"
    own, other = (pd.read_parquet(folder / "depth.parquet").query(text) for folder in (out, tmp_path / "both" / "a"))
    assert set(own["n"]) == set(other["n"]) == {TOKENS} and own["share"].tolist() != other["share"].tolist()
    shutil.copytree(out, tmp_path / "both" / "b")
    with pytest.raises(InputError, match="data .* measure it again"):
        main(["--tables", str(tmp_path / "both")])


def test_tables_judged_again_give_the_same_page_without_a_model(out: Path, tmp_path: Path) -> None:
    once_more(main, out, tmp_path)


def test_the_published_tables_judged_again_are_the_same(tmp_path: Path) -> None:
    once_more(main, ROOT / "results" / "pls_modes", tmp_path)
    claims = pd.read_parquet(ROOT / "results" / "pls_modes" / "claims.parquet")
    flat = claims[claims["quantity"] == "hdbscan.flat"]
    assert len(flat) and not flat["direction"].str.startswith("holds").any(), "undefined by construction"


def test_no_value_is_missing_without_a_reason(out: Path) -> None:
    assert unexplained(out) == {}


def test_bad_input_is_told_in_one_line(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pls = str(runs["pls-0"])
    (tmp_path / "file").write_text("")
    for argv, message in (
        ([], "give run folders"),
        ([pls], "no run of c2"),
        ([pls, "--tokens", "10"], "--tokens, --kmeans-tokens: at least 1000"),
        ([pls, "--out", str(tmp_path / "file")], "is a file"),
        ([pls, "--tables", str(tmp_path)], "not both"),
        (["--tables", str(tmp_path / "file")], "is no folder of a comparison"),
        (["--tables", str(tmp_path), "--data", "stories:3:9"], "--data is for measuring"),
    ):
        assert message in refused(main, argv, monkeypatch, capsys)
