"""The GPU script runs here without a GPU: what can run does, what cannot says so, and a second call goes on."""

import json
from pathlib import Path

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.training.loop import gather_ahead
from tests.benchmarks import gpu
from tests.benchmarks.gpu import main


def rows(path: Path) -> dict[tuple, dict]:
    return {tuple(row["case"]): row for row in map(json.loads, path.read_text().splitlines())}


def test_a_dry_run_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "gpu.jsonl"
    argv = ["--device", "cpu", "--scale", "tiny", "--out", str(out)]
    main([*argv, "--presets", "lfa", "hdpl"])
    printed = capsys.readouterr().out
    assert "sync: skipped, it needs CUDA" in printed
    found = rows(out)
    assert found["correctness", "lfa"]["equal"] and found["correctness", "hdpl"]["loss_difference"] == 0
    assert not any("error" in row for row in found.values())
    before = out.read_text()
    main([*argv, "--presets", "lfa", "hdpl", "pls"])
    assert out.read_text().startswith(before) and rows(out).keys() - found.keys() == {("correctness", "pls")}


def test_a_wrong_result_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose gradient is off by a thousandth on the other side is not equal."""
    real, calls = gpu.gradients, []

    def off(loss: object, model: object) -> list:
        calls.append(1)
        return [g * (1.01 if len(calls) == 2 else 1.0) for g in real(loss, model)]

    monkeypatch.setattr(gpu, "gradients", off)
    out = tmp_path / "gpu.jsonl"
    main(["--device", "cpu", "--scale", "tiny", "--pieces", "correctness", "--presets", "lfa", "--out", str(out)])
    assert rows(out)["correctness", "lfa"]["equal"] is False


def test_time_that_is_over_stops_before_the_next_case(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "gpu.jsonl"
    main(["--device", "cpu", "--scale", "tiny", "--pieces", "correctness", "--minutes", "1e-9", "--out", str(out)])
    assert "time is over" in capsys.readouterr().out and not out.exists()


def test_a_failing_preset_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gpu.correctness

    def fails_for_gpt2(options: object, name: str) -> dict:
        if name == "gpt2":
            raise RuntimeError("out of memory")
        return real(options, name)

    monkeypatch.setattr(gpu, "correctness", fails_for_gpt2)
    out = tmp_path / "gpu.jsonl"
    argv = ["--device", "cpu", "--scale", "tiny", "--pieces", "correctness", "--out", str(out), "--presets"]
    main([*argv, "gpt2", "lfa"])
    found = rows(out)
    assert found["correctness", "gpt2"]["error"] == "RuntimeError: out of memory"
    assert found["correctness", "lfa"]["equal"]
    with pytest.raises(InputError, match=r"unknown preset 'nonsense'"):
        main([*argv, "nonsense", "lfa"])
    assert rows(out) == found, "a wrong name is no finding"


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
