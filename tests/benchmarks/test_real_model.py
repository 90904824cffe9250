"""What an instrument costs is read from its process, whatever its end."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamscope.benchmarks.real_model import Options, measure
from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("echo done", "completed"),
        ("echo working; echo 'InputError: no such suite'; exit 2", "InputError: no such suite"),
        ("exit 3", "exit code 3"),
        ("echo '40 %'; kill -9 $$", "ended by signal 9"),
        ("exec sleep 20", "stopped after 1 s"),
    ],
)
def test_the_outcome_says_why_an_instrument_did_not_complete(
    script: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    os.chmod(program, 0o755)
    monkeypatch.setattr(measure, "sys", SimpleNamespace(executable=str(program)))
    found = measure.cost(["sps"], 1.0)
    assert found["outcome"] == outcome and found["memory"] > 0 and 0 <= found["cpu"] < 1
    assert (found["silence"] > 0.9) == outcome.startswith("stopped")


def test_measuring_some_instruments_keeps_the_rows_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(command: list[str], limit: float) -> dict[str, float | str]:
        return {"memory": 1.0, "cpu": limit, "silence": 0.0, "outcome": "completed"}

    monkeypatch.setattr(measure, "cost", cost)
    out = tmp_path / "costs.parquet"
    measure.measure(Options(only=("sps", "pds"), out=out, limit=1.0))
    measure.measure(Options(only=("sps", "ablate"), out=out, limit=2.0))
    found = Result.load(out).table().frame
    assert found["instrument"].tolist() == ["ablate", "pds", "sps"] and found["cpu"].tolist() == [2.0, 1.0, 2.0]
    with pytest.raises(InputError, match="has the costs on runs/smollm2: name another file"):
        measure.measure(Options(run="runs/other", only=("sps",), out=out))
