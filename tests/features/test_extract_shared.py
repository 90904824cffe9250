"""Several workers on one extraction: the same file as one alone, whoever reads which part, and whoever dies."""

import os
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from streamscope.cli.ledger import Ledger
from streamscope.features.extract import Extract, main, measure
from streamscope.features.extract.measure import Work
from streamscope.instruments.data import Opened, Tokens
from streamscope.instruments.result import Result
from streamscope.models.checkpoint import load
from tests.tiny import untrained

HOW = Extract(raw=("blocks.1.hook_context_post",))


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained("pls", tiny_run, tmp_path_factory.mktemp("runs") / "pls")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PART_ROWS", 64)
    monkeypatch.setattr(measure, "BATCH_TOKENS", 96)


def opened(run: Path, corpus, work: Path | None = None) -> Opened:
    found = HOW.open(load(run), Tokens(data=str(corpus[1])))
    found.work = work
    return found


def same(a: Result, b: Result) -> bool:
    return all(
        list(a.tables[name].batches()) == list(b.tables[name].batches()) for name in ("features", "raw")
    ) and a.tables["depth"].frame.equals(b.tables["depth"].frame)


def test_many_workers_read_what_one_reads(run: Path, corpus, tmp_path: Path) -> None:
    alone = HOW.run(opened(run, corpus))
    assert len(list(alone.table().batches())) > 5
    for n, workers in ((1, 1), (3, 2)):  # callers that wait for all parts, and workers that only read
        work, barrier = tmp_path / f"{n}-{workers}", threading.Barrier(n + workers)
        errors: list[Exception] = []
        results: list[Result] = []

        def read(only: bool, work: Path = work, barrier: threading.Barrier = barrier, errors: list = errors,
                 results: list = results) -> None:  # fmt: skip
            mine = opened(run, corpus, work)
            barrier.wait()
            try:
                HOW.share(mine, iter) if only else results.append(HOW.run(mine))
            except Exception as error:  # a thread's own would be lost
                errors.append(error)

        threads = [threading.Thread(target=read, args=(i >= n,)) for i in range(n + workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not errors and len(results) == n
        assert all(same(one, alone) for one in results)


def test_a_part_that_a_dead_worker_held_is_read_by_another(run: Path, corpus, tmp_path: Path) -> None:
    alone, shared = HOW.run(opened(run, corpus)), opened(run, corpus, tmp_path)
    work = Work(HOW, shared.model, shared[Tokens], tmp_path)
    folder, n = work.folder, len(work.plan)
    claim = folder / "ledger" / "000001.claim-0"
    claim.parent.mkdir(parents=True)
    claim.write_text('{"host": "elsewhere", "pid": 1, "born": "1"}')
    HOW.share(shared, iter)  # alive for all it knows: left alone
    names = [f"{i:06d}" for i in range(n)]
    assert [Ledger(folder / "ledger").state(name).kind for name in names[:3]] == ["done", "running", "done"]
    assert not work.path(1, 0).exists()
    os.utime(claim, (1, 1))
    HOW.share(shared, iter)
    assert work.path(1, 0).exists() and same(HOW.run(shared), alone)


def test_a_command_that_works_alone_claims_nothing(run: Path, corpus, tmp_path: Path) -> None:
    """It writes parts and skips those that exist."""
    alone, mine = HOW.run(opened(run, corpus)), opened(run, corpus, tmp_path)
    work = Work(HOW, mine.model, mine[Tokens], tmp_path)
    work.write(2)
    before = work.path(2, 0).stat().st_mtime_ns
    assert same(HOW.run(mine), alone) and work.path(2, 0).stat().st_mtime_ns == before
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".parquet"}


@pytest.mark.slow  # a worker imports everything again; how it is launched, tests/cli/test_launch.py asks
def test_launched_workers_read_all_parts(run: Path, corpus, tmp_path: Path, monkeypatch, capsys) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[dev]'")
    monkeypatch.undo()  # parts of the size that the worker's process has
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    wrote, write = [], measure.write_batches
    monkeypatch.setattr(measure, "write_batches", lambda *args: (wrote.append(args), write(*args)))
    argv = [str(run), "--data", str(corpus[1]), "--device", "cpu"]
    main([*argv, "--out", str(tmp_path / "a" / "f.parquet")])
    assert wrote
    wrote.clear()
    launched = ["--launch", "submitit", "--workers", "1", "--hours", "0.1"]
    main([*argv, "--out", str(tmp_path / "b" / "f.parquet"), *launched])
    assert not wrote, "the caller read nothing itself"
    one, two = (pq.read_table(tmp_path / name / "f.parquet") for name in "ab")
    assert one.equals(two)
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "f-depth.parquet", "f-observations.parquet", "f.parquet"
    ]  # fmt: skip
