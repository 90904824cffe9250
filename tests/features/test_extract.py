"""The command: what is in the file, killed and resumed, a full disk, bad input."""

import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from streamscope import InputError, Tokens, build, load
from streamscope.features import Extract
from streamscope.features.compute import FeatureReader, columns
from streamscope.features.extract import main, measure
from streamscope.features.extract.measure import stream_names
from streamscope.features.store import features_of, read_features, read_raw
from streamscope.instruments.table import read_about
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import pack
from tests.tiny import untrained, with_options


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PART_ROWS", 64)
    monkeypatch.setattr(measure, "BATCH_TOKENS", 96)


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained PLS, whose layers disagree more than those of a trained one."""
    return untrained("pls", tiny_run, tmp_path_factory.mktemp("runs") / "pls")


def arguments(run: Path, corpus: tuple[Path, Path], out: Path, *more: str) -> list[str]:
    return with_options([str(run), "--data", str(corpus[1]), "--out", str(out), "--device", "cpu"], more)


def test_rows_are_those_of_the_documents(run: Path, corpus: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "f.parquet"
    main(arguments(run, corpus, out, "--tier", "topk", "--k", "3", "--raw", "--stride", "0"))
    found, model = read_features(out), load(run)
    assert found.columns == columns(2, 4, Extract(tier="topk", k=3))
    shards, n_ctx = pack(open_corpus(str(corpus[1])), model.tokenizer), model.config.n_ctx
    reader, raw = FeatureReader(model, Extract(tier="topk", k=3)), read_raw(tmp_path / "f-raw.parquet")
    assert raw.hooks == ("blocks.1.hook_token_post", "blocks.1.hook_context_post") and raw.X.shape[1] == 2 * 32
    pd.testing.assert_frame_equal(raw.table, found.table.iloc[:, :8])
    position = 0
    for d in range(shards.n_documents):
        ids = shards.document(d).tolist()
        n = min(len(ids) - 1, n_ctx)
        rows, expected = found.table.iloc[position : position + n], reader.read([ids])
        assert (rows["document"] == d).all() and rows["position"].tolist() == list(range(n))
        assert rows["token_id"].tolist() == ids[:n] and rows["target_id"].tolist() == ids[1 : n + 1]
        assert rows["prediction_id"].tolist() == expected.prediction.tolist()
        np.testing.assert_allclose(found.X[position : position + n], expected.X, rtol=1e-5, atol=1e-5)
        position += n
    assert position == len(found.table) and pq.ParquetFile(out).num_row_groups > 3
    assert found.table["token"].tolist() == model.tokenizer.pieces(found.table["token_id"])
    assert found.table["prediction"].tolist() == model.tokenizer.pieces(found.table["prediction_id"])
    cut = int((shards.lengths > n_ctx + 1).sum())
    lost = int(np.maximum(shards.lengths - n_ctx - 1, 0).sum())
    told = " ".join(capsys.readouterr().out.split())
    assert cut > 0 and f"{cut} documents cut at {n_ctx} tokens ({lost:,} tokens lost)" in told


def test_depth_is_that_of_the_rows(run: Path, corpus: tuple[Path, Path]) -> None:
    result = Extract(tier="topk").measure(run, Tokens(data=str(corpus[1]), max_tokens=300))
    rows, depth = result.table().frame, result.table("depth").frame
    assert len(rows) == 300 and depth["k_star"].tolist() == [0, 1, 2]
    for _, row in depth.iterrows():
        hit = rows["k_star"] == row["k_star"]
        assert (row["share"], row["tokens"], row["n"]) == (hit.mean(), hit.sum(), rows["document"].nunique())
    core = Extract(tier="core", anchor_heads=("L0.H0",), entity_heads=("L0.H1",))
    again = core.measure(run, Tokens(data=str(corpus[1]), max_tokens=300)).table("depth").frame
    pd.testing.assert_frame_equal(again, depth)


@pytest.mark.parametrize(
    ("preset", "names"), [("std-t", ["resid"]), ("lfa", ["token", "context"]), ("kromhc", ["streams"])]
)
def test_raw_alone_means_the_streams_of_the_last_layer(preset: str, names: list[str]) -> None:
    assert stream_names(build(preset, "tiny")) == tuple(f"blocks.1.hook_{name}_post" for name in names)


def test_parts_that_exist_are_not_read_again(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    extract = Extract(raw=("blocks.1.hook_context_post",))
    whole = extract.run(extract.open(load(run), Tokens(data=str(corpus[1]))))
    opened = extract.open(load(run), Tokens(data=str(corpus[1])))
    opened.work = tmp_path / "work"
    extract.run(opened)
    features, raw = (sorted(opened.work.rglob(f"*-{output}.parquet")) for output in (0, 1))
    assert len(features) == len(raw) > 5
    for path in [*features[:2], *features[3:], *raw[3:]]:  # killed before the features of the first two parts
        path.unlink()
    before = features[2].stat().st_mtime_ns
    continued = extract.run(opened)
    for name in ("features", "raw"):
        assert list(continued.tables[name].batches()) == list(whole.tables[name].batches())
    assert continued.tables["depth"].frame.equals(whole.tables["depth"].frame)
    assert features[2].stat().st_mtime_ns == before
    assert {path.suffix for path in opened.work.rglob("*") if path.is_file()} == {".parquet"}


def test_parts_of_something_else_are_not_taken_for_this(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    """Another tier, or another device, whose half of a table would not be the same numbers."""
    opened = Extract().open(load(run), Tokens(data=str(corpus[1]), max_tokens=9))
    opened.work = tmp_path
    folders = set()
    for how in (Extract(), Extract(tier="topk"), Extract(raw=())):
        how.run(opened)
        folders |= set(tmp_path.iterdir())
    assert len(folders) == 3 and len(list(tmp_path.rglob("*.parquet"))) == 4


@pytest.mark.parametrize(
    ("limit", "which"),
    [(100_000, r"/f\.parquet"), pytest.param(3_000, r"\.parts/.*000000-0\.parquet", marks=pytest.mark.slow)],
)
def test_a_full_disk_leaves_nothing_under_the_final_name(
    run: Path, corpus: tuple[Path, Path], tmp_path: Path, limit: int, which: str
) -> None:
    out = tmp_path / "f.parquet"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(InputError, match=f"cannot write .*{which}: .*File too large"):
            main(arguments(run, corpus, out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not out.exists() and not list(tmp_path.rglob("*.part"))
    main(arguments(run, corpus, out))  # there is room again
    assert len(read_features(out).table) > 500


def test_the_last_document_is_cut_to_the_rows_asked_for(run: Path, corpus: tuple[Path, Path]) -> None:
    a, b = (features_of(Extract().measure(run, Tokens(data=str(corpus[1]), max_tokens=n))) for n in (83, None))
    pd.testing.assert_frame_equal(a.table.iloc[:, :8], b.table.iloc[:83, :8])
    np.testing.assert_allclose(a.X, b.X[:83], rtol=1e-5, atol=1e-5)
    assert 0 < a.table["position"].iloc[-1] < 31  # inside a document


def test_rows_with_logits_of_the_next_position(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "f.parquet"
    main(arguments(run, corpus, out, "--logits-row", "next", "--max-tokens", "40"))
    table, model = read_features(out).table, load(run)
    ids = pack(open_corpus(str(corpus[1])), model.tokenizer).document(0)
    assert table["token_id"].tolist()[:31] == ids[:31].tolist()
    assert table["target_id"].tolist()[:31] == ids[2:33].tolist()


def test_the_file_says_of_which_weights_and_options_it_is(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "f.parquet"
    main(arguments(run, corpus, out, "--theta-entropy", "0.2", "--max-tokens", "100"))
    meta, about = read_about(out), read_features(out).about
    assert (about["tier"], about["preset"], len(about["checkpoint"])) == ("structural", "pls", 64)
    assert about["options"]["theta_entropy"] == 0.2 and about["data"]["rows"] == len(read_features(out).table) == 100
    assert {"argv", "commit", "versions"} <= meta["about"].keys() and meta["units"]["traj_prob_L0"] == "probability"
