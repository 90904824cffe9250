"""An extraction that was killed goes on with the parts that are not there yet."""

from pathlib import Path

import pytest

from streamscope.features.extract import Extract, measure
from streamscope.features.extract.measure import Work
from streamscope.instruments.data import Tokens
from streamscope.models.checkpoint import load
from tests.tiny import untrained


def test_parts_that_exist_are_not_read_again(
    tiny_run: Path, corpus: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PART_ROWS", 64)
    monkeypatch.setattr(measure, "BATCH_TOKENS", 96)
    run = untrained("pls", tiny_run, tmp_path / "pls")
    extract = Extract(raw=("blocks.1.hook_context_post",))
    whole = extract.run(extract.open(load(run), Tokens(data=str(corpus[1]))))
    opened = extract.open(load(run), Tokens(data=str(corpus[1])))
    opened.work = tmp_path / "work"
    parts = Work(extract, opened.model, opened[Tokens], opened.work)
    assert len(parts.plan) > 5
    parts.write(2)
    before = parts.path(2, 0).stat().st_mtime_ns
    continued = extract.run(opened)
    for name in ("features", "raw"):
        assert list(continued.tables[name].batches()) == list(whole.tables[name].batches())
    assert continued.tables["depth"].frame.equals(whole.tables["depth"].frame)
    assert parts.path(2, 0).stat().st_mtime_ns == before
    assert {path.suffix for path in opened.work.rglob("*") if path.is_file()} == {".parquet"}
