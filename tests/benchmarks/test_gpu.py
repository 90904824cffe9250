"""The GPU script runs here without a GPU: what can run does, what cannot says so, and a second call goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.training.loop import gather_ahead
from tests.benchmarks import gpu
from tests.benchmarks.gpu import main

Call = Callable[..., dict[tuple, dict]]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """The findings after a dry run with these arguments; several calls add to one file."""
    out = tmp_path / "gpu.jsonl"

    def findings(*argv: str) -> dict[tuple, dict]:
        main(["--device", "cpu", "--scale", "tiny", "--out", str(out), *argv])
        lines = out.read_text().splitlines() if out.exists() else []
        return {tuple(row["case"]): row for row in map(json.loads, lines)}

    return findings


def test_a_dry_run_on_the_cpu(call: Call, capsys: pytest.CaptureFixture) -> None:
    found = call("--presets", "lfa", "hdpl")
    assert "sync: skipped, it needs CUDA" in capsys.readouterr().out
    assert found["correctness", "lfa"]["equal"] and found["correctness", "hdpl"]["loss_difference"] == 0
    assert not any("error" in row for row in found.values())
    more = call("--presets", "lfa", "hdpl", "pls")
    assert more.keys() - found.keys() == {("correctness", "pls")}
    assert [*more.items()][: len(found)] == [*found.items()], "measured once"


def test_a_wrong_result_is_seen(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose gradient is off by a hundredth on the other side is not equal."""
    real, calls = gpu.gradients, []

    def off(loss: object, model: object) -> list:
        calls.append(1)
        return [g * (1.01 if len(calls) == 2 else 1.0) for g in real(loss, model)]

    monkeypatch.setattr(gpu, "gradients", off)
    assert call("--pieces", "correctness", "--presets", "lfa")["correctness", "lfa"]["equal"] is False


def test_time_that_is_over_stops_before_the_next_case(call: Call, capsys: pytest.CaptureFixture) -> None:
    assert call("--pieces", "correctness", "--minutes", "1e-9") == {}
    assert "time is over" in capsys.readouterr().out


def test_a_failing_preset_does_not_hide_the_others(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpu.correctness

    def fails_for_gpt2(options: object, name: str) -> dict:
        if name == "gpt2":
            raise RuntimeError("out of memory")
        return real(options, name)

    monkeypatch.setattr(gpu, "correctness", fails_for_gpt2)
    found = call("--pieces", "correctness", "--presets", "gpt2", "lfa")
    assert found["correctness", "gpt2"]["error"] == "RuntimeError: out of memory"
    assert found["correctness", "lfa"]["equal"]
    with pytest.raises(InputError, match=r"unknown preset 'nonsense'"):
        call("--pieces", "correctness", "--presets", "nonsense", "lfa")
    assert call("--presets", "lfa") == found, "a wrong name is no finding"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no CUDA device here; --device cpu --scale tiny is a dry run"):
        main(["--out", str(tmp_path / "gpu.jsonl")])
    with pytest.raises(InputError, match="--out FILE is missing"):
        main(["--device", "cpu"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs CUDA")
def test_batches_are_page_locked() -> None:
    (pair,) = gather_ahead(lambda i: (torch.tensor([i]), torch.tensor([i])), iter([0]), pin=True)
    assert all(t.is_pinned() for t in pair)
