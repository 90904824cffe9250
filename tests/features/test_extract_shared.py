"""Several workers on one extraction: the same file as one alone, whoever reads which part, and whoever dies."""

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import streamscope.features.extract
from streamscope.features.extract import extract, main, plan
from streamscope.features.parts import Parts
from streamscope.features.reader import FeatureReader
from streamscope.features.schema import FeatureOptions
from streamscope.models.checkpoint import load
from streamscope.models.ledger import Ledger
from streamscope.models.text.corpus import open_corpus
from streamscope.models.text.shards import pack
from tests.tiny import untrained

ABOUT = {"run": "pls", "preset": "pls", "checkpoint": "abc"}


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained("pls", tiny_run, tmp_path_factory.mktemp("runs") / "pls")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamscope.features.extract, "PART_ROWS", 64)
    monkeypatch.setattr(streamscope.features.extract, "BATCH_TOKENS", 96)


def task(run: Path, corpus) -> tuple:
    model = load(run)
    raw = ("blocks.1.hook_context_post",)
    return FeatureReader(model, FeatureOptions(), raw), pack(open_corpus(str(corpus[1])), model.tokenizer)


def files(out: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(out.parent.iterdir())]


def test_many_workers_write_the_file_of_one(run: Path, corpus, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "f.parquet"
    counts = extract(*task(run, corpus), alone, model=ABOUT)
    assert pq.ParquetFile(alone).num_row_groups > 5
    for n, workers in ((1, 1), (3, 2)):  # callers that assemble, and workers that only read
        out, barrier, errors = tmp_path / f"{n}-{workers}" / "f.parquet", threading.Barrier(n + workers), []

        def work(only: bool, out: Path = out, barrier: threading.Barrier = barrier, errors: list = errors) -> None:
            mine = task(run, corpus)
            barrier.wait()
            try:
                extract(*mine, out, model=ABOUT, worker=only)
            except Exception as error:  # a thread's own would be lost
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i >= n,)) for i in range(n + workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not errors
        assert files(out) == files(alone), "byte for byte, raw activations too, and nothing beside them"
    assert counts["resumed"] == 0


def test_a_part_that_a_dead_worker_held_is_read_by_another(run: Path, corpus, tmp_path: Path) -> None:
    reader, shards = task(run, corpus)
    alone, out = tmp_path / "alone" / "f.parquet", tmp_path / "shared" / "f.parquet"
    extract(reader, shards, alone, model=ABOUT)
    folder = out.with_name(".f.parquet.parts")
    n = len(plan(reader, shards, None)[0])
    claim = folder / "ledger" / "000001.claim-0"
    claim.parent.mkdir(parents=True)
    claim.write_text('{"host": "elsewhere", "pid": 1, "born": "1"}')
    extract(reader, shards, out, model=ABOUT, worker=True)  # alive for all it knows: left alone
    names = [f"{i:06d}" for i in range(n)]
    assert [Ledger(folder / "ledger").state(name).kind for name in names[:3]] == ["done", "running", "done"]
    assert not out.exists() and not (folder / "000001-0.parquet").exists()
    import os

    os.utime(claim, (1, 1))
    assert extract(reader, shards, out, model=ABOUT)["resumed"] > 0
    assert files(out) == files(alone)


@pytest.mark.slow  # a worker imports everything again; how it is launched, tests/models/test_launch.py asks
def test_launched_workers_read_all_parts(run: Path, corpus, tmp_path: Path, monkeypatch, capsys) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[dev]'")
    monkeypatch.undo()  # parts of the size that the worker's process has
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    wrote, write = [], Parts.write
    monkeypatch.setattr(Parts, "write", lambda *args: (wrote.append(args), write(*args)))
    argv = [str(run), "--data", str(corpus[1]), "--device", "cpu"]
    main([*argv, "--out", str(tmp_path / "a" / "f.parquet")])
    assert wrote
    wrote.clear()
    launched = ["--launch", "submitit", "--workers", "1", "--hours", "0.1"]
    main([*argv, "--out", str(tmp_path / "b" / "f.parquet"), *launched])
    assert not wrote, "the caller read nothing itself"
    one, two = (pq.read_table(tmp_path / name / "f.parquet") for name in "ab")
    assert one.equals(two) and [p.name for p in (tmp_path / "b").iterdir()] == ["f.parquet"]
