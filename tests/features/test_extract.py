"""The command: what is in the file, killed and resumed, a full disk, bad input."""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import streamscope.features.extract
from streamscope.features.extract import main, stream_names
from streamscope.features.reader import FeatureReader
from streamscope.features.schema import FeatureOptions, columns
from streamscope.features.store import read_features, read_raw
from streamscope.models import build
from streamscope.models.checkpoint import load
from streamscope.models.errors import InputError
from streamscope.models.text.corpus import open_corpus
from streamscope.models.text.shards import pack
from streamscope.probes.tables import read_about
from tests.features.planted import planted_file
from tests.tiny import untrained

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamscope.features.extract, "PART_ROWS", 64)
    monkeypatch.setattr(streamscope.features.extract, "BATCH_TOKENS", 96)


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained PLS, whose layers disagree more than those of a trained one."""
    return untrained("pls", tiny_run, tmp_path_factory.mktemp("runs") / "pls")


def arguments(run: Path, corpus: tuple[Path, Path], out: Path, *more: str) -> list[str]:
    return [str(run), "--data", str(corpus[1]), "--out", str(out), "--device", "cpu", *more]


def test_rows_are_those_of_the_documents(run: Path, corpus: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "f.parquet"
    main(arguments(run, corpus, out, "--tier", "topk", "--k", "3", "--raw"))
    found, model = read_features(out), load(run)
    assert found.columns == columns(2, 4, FeatureOptions(tier="topk", k=3))
    shards, n_ctx = pack(open_corpus(str(corpus[1])), model.tokenizer), model.config.n_ctx
    reader, raw = FeatureReader(model, FeatureOptions(tier="topk", k=3)), read_raw(tmp_path / "f-raw.parquet")
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
    assert cut > 0 and f"{cut} documents cut at {n_ctx} tokens ({lost:,} tokens lost)" in capsys.readouterr().out


def test_the_file_says_what_it_is(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "f.parquet"
    main(arguments(run, corpus, out, "--theta-gate", "0.2", "--max-tokens", "100"))
    meta = read_about(out)
    about = meta["about"]
    assert (about["kind"], about["format"], about["tier"]) == ("features", 1, "structural")
    assert about["options"]["theta_gate"] == 0.2 and len(about["schema"]) == 3 * 2 + 1 + 4 * 2 * 4
    assert about["model"]["preset"] == "pls" and len(about["model"]["checkpoint"]) == 64
    assert about["data"]["rows"] == 100 == len(read_features(out).table)
    assert {"argv", "commit", "versions"} <= about.keys()
    assert meta["units"]["traj_prob_L0"] == "probability"
    assert not list(tmp_path.glob(".*"))


def test_raw_activations_of_an_earlier_run_do_not_stay_beside_a_new_table(
    run: Path, corpus: tuple[Path, Path], tmp_path: Path, capsys
) -> None:
    out, raw = tmp_path / "f.parquet", tmp_path / "f-raw.parquet"
    main(arguments(run, corpus, out, "--max-tokens", "70", "--raw"))
    with pytest.raises(InputError):
        main(arguments(run, corpus, out, "--max-tokens", "70", "--data", "nowhere.txt"))
    assert raw.exists()
    capsys.readouterr()
    main(arguments(run, corpus, out, "--max-tokens", "70"))
    assert not raw.exists() and f"deleted {raw}" in capsys.readouterr().out
    planted_file(raw)  # another table that only has such a name
    main(arguments(run, corpus, out, "--max-tokens", "70"))
    assert read_features(raw).about["model"]["checkpoint"] == "abc" and "deleted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("preset", "names"),
    [("std-t", ["resid"]), ("lfa", ["token", "context"]), ("kromhc", ["streams"])],
)
def test_raw_alone_means_the_streams_of_the_last_layer(preset: str, names: list[str]) -> None:
    assert stream_names(build(preset, "tiny")) == tuple(f"blocks.1.hook_{name}_post" for name in names)


KILLED = """
import os, signal, sys
import pyarrow.parquet as pq
import streamscope.features.extract as command
command.PART_ROWS, command.BATCH_TOKENS = 64, 96
write, calls = pq.write_table, []
def dying(table, path, **options):
    calls.append(path)
    if len(calls) == 6:  # half of the third part's files, and half of that one
        write(table.slice(0, 10), path, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    write(table, path, **options)
pq.write_table = dying
command.main(sys.argv[1:])
"""


@pytest.mark.slow  # a dead worker of shared extraction is quick, tests/features/test_extract_shared.py
def test_killed_and_resumed_it_is_the_file_of_a_run_in_one_go(
    run: Path, corpus: tuple[Path, Path], tmp_path: Path, capsys
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "f.parquet"
    main(arguments(run, corpus, whole, "--raw"))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments(run, corpus, out, "--raw")], cwd=ROOT, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL and not out.exists()
    parts = sorted(path.name for path in (tmp_path / ".f.parquet.parts").iterdir())
    assert [p for p in parts if p.startswith("000002")] == ["000002-1.parquet"]
    manifest = json.loads((tmp_path / ".f.parquet.parts" / "manifest.json").read_text())
    assert manifest["device"] == "cpu"  # one half of a table on another device would not be the same numbers
    with pytest.raises(InputError, match="interrupted extraction of something else"):
        main(arguments(run, corpus, out, "--raw", "--k", "3"))
    capsys.readouterr()
    main(arguments(run, corpus, out, "--raw"))
    rows = sum(pq.ParquetFile(whole).metadata.row_group(i).num_rows for i in range(2))
    assert f"{rows:,} tokens found done" in capsys.readouterr().out
    for a, b in ((whole, out), (tmp_path / "whole-raw.parquet", tmp_path / "f-raw.parquet")):
        assert pq.read_table(a).equals(pq.read_table(b))
    assert read_about(whole)["units"] == read_about(out)["units"]
    assert not (tmp_path / ".f.parquet.parts").exists()


@pytest.mark.parametrize(("limit", "which"), [(3_000, r"\.parts/manifest\.json"), (100_000, r"/f\.parquet")])
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
    assert not list(tmp_path.glob("*.parquet")) and not list(tmp_path.rglob("*.part"))
    main(arguments(run, corpus, out))  # there is room again
    assert len(read_features(out).table) > 500


def test_the_last_document_is_cut_to_the_rows_asked_for(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    few, all_ = tmp_path / "few.parquet", tmp_path / "all.parquet"
    main(arguments(run, corpus, few, "--max-tokens", "83"))
    main(arguments(run, corpus, all_))
    a, b = read_features(few), read_features(all_)
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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-tokens", "0"], "max_tokens must be at least 1"),
        (["--out", "f.csv"], "f.parquet"),
        (["--out", "None"], "name one"),
        (["--tier", "core", "--anchor-heads", "L9.H0"], "layers go from 0 to 1"),
        (["--raw", "blocks.1.hook_nothing"], "unknown hook"),
        (["--data", "nowhere.txt"], "no such file"),
    ],
)
def test_bad_input(run: Path, corpus: tuple[Path, Path], tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main([*arguments(run, corpus, tmp_path / "f.parquet"), *more])
    assert not list(tmp_path.iterdir())


def test_data_without_a_row(run: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.txt"
    one.write_text("a")
    with pytest.raises(InputError, match="no document has"):
        main([str(run), "--data", str(one), "--out", str(tmp_path / "f.parquet"), "--logits-row", "next"])


def test_a_foreign_folder_of_parts(run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    folder, few = tmp_path / ".f.parquet.parts", arguments(run, corpus, tmp_path / "f.parquet", "--max-tokens", "9")
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(["?"]))
    (folder / "000000-0.parquet").touch()
    with pytest.raises(InputError, match="something else"):
        main(few)
    (folder / "000000-0.parquet").unlink()  # without a part there is nothing to lose
    main(few)
    assert len(read_features(tmp_path / "f.parquet").table) == 9 and not folder.exists()
