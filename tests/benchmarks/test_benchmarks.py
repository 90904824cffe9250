"""The benchmarks print what they measure, compare what they say they compare, and read what an instrument costs."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.benchmarks import ablation_sweep, circuits, features, training
from streamscope.benchmarks.circuits.measure import measured, opened
from streamscope.benchmarks.features.measure import straightforward
from streamscope.benchmarks.real_model import Options, measure
from streamscope.benchmarks.timing import interleaved
from streamscope.benchmarks.training.measure import forward_backward, optimizer_step, shape, training_step
from streamscope.benchmarks.training.peers import PlainGPT, without_hooks
from streamscope.cli.errors import InputError
from streamscope.features.compute import FeatureReader
from streamscope.features.extract import Extract
from streamscope.instruments.result import Result
from streamscope.models import build
from tests.tiny import randomise


def cells(printed: str) -> list[list[str]]:
    """The rows of a table in a terminal."""
    return [[c.strip() for c in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]


def above_zero(cell: str) -> bool:
    return float(cell.split()[0]) > 0


def test_sweeps_print_a_row_per_case_and_vocabulary(capsys: pytest.CaptureFixture) -> None:
    small = ["--layers", "1", "--batch", "1", "--length", "6", "--rounds", "1", "--no-peer"]
    ablation_sweep.main(["--vocab", "300", *small])
    out = capsys.readouterr().out
    assert [(row[0], row[2]) for row in cells(out)] == [("answers", "6"), ("losses", "6")]
    assert all(float(row[-1]) < 1e-5 for row in cells(out)) and "1 x 6 tokens" in out


@pytest.mark.slow  # two processes that import both sides
def test_a_given_run_is_measured_in_two_processes_with_the_same_losses(capsys: pytest.CaptureFixture) -> None:
    small = ["--every", "18", "--batch", "2", "--length", "20", "--rounds", "1", "--clock", "cpu"]
    ablation_sweep.main(["--run", "stories/llama", *small])
    out = capsys.readouterr().out
    (row,) = cells(out)
    assert row[0] == "2" and above_zero(row[3]) and float(row[-1]) < 1e-5
    assert all(100 < float(cell.replace(",", "")) < 5000 for cell in row[4:6]), row
    assert "stories/llama: 2 x 20 tokens" in out


@pytest.mark.slow  # two processes for each method
def test_circuits_print_a_row_per_method(capsys: pytest.CaptureFixture) -> None:
    circuits.main(["--pairs", "2", "--steps", "2", "--rounds", "1", "--clock", "cpu"])
    rows = cells(capsys.readouterr().out)
    assert [row[:3] for row in rows] == [["exact", "2,188", "2"], ["eap-ig", "2,188", "2"]]
    assert all(float(row[-1]) < 1e-4 and above_zero(row[5]) for row in rows)


def test_features_print_a_row_per_vocabulary(capsys: pytest.CaptureFixture) -> None:
    small = ["--vocab", "300", "--layers", "2", "--width", "48", "--length", "40", "--documents", "2"]
    features.main([*small, "--rounds", "1"])
    (row,) = cells(capsys.readouterr().out)
    assert row[:2] == ["300", "80"] and above_zero(row[5]) and above_zero(row[7]) and float(row[-1]) < 1e-4


@pytest.mark.slow
def test_trainings_print_a_line_per_comparison(capsys: pytest.CaptureFixture) -> None:
    small = ["--layers", "1", "--batch", "1", "--context", "8", "--rounds", "1"]
    training.main([*small, "--widths", "48", "--vocabularies", "64", "--presets", "lfa", "--pairs", "hdpl:llama"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 x 8 tokens, 1 rounds")
    kinds = [line.split(":")[0] for line in lines[1:]]
    assert [kinds.count(k) for k in training.PARTS] == [2, 1, 1, 1]
    assert ", eager: " in lines[1] and "x the same without hooks" in lines[1] and "x plain GPT" in lines[3]
    assert "lfa, width 48" in lines[4] and "hdpl, width 512: " in lines[5] and "x llama" in lines[5]


@pytest.mark.parametrize(
    ("main", "argv", "line"),
    [
        *((ablation_sweep.main, ["--run", "stories/llama", *option], f"^{option[0]} has no effect with --run: leave it")
          for option in (["--cases", "losses"], ["--no-peer"], ["--layers", "2"])),
        (ablation_sweep.main, ["--every", "2"], "--every has no effect without --run"),
        (training.main, ["--pairs", "hdpl"], "PRESET:PEER"),
        (training.main, ["--rounds", "0"], "at least 1"),
    ],
)  # fmt: skip
def test_options_without_effect_and_bad_values_are_refused(main: Any, argv: list[str], line: str) -> None:
    with pytest.raises(InputError, match=line):
        main(argv)


def test_interleaved_runs_every_step_in_every_round_and_turns_round() -> None:
    order: list[str] = []
    seconds = interleaved({n: lambda n=n: order.append(n) for n in "ab"}, rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {n: len(s) for n, s in seconds.items()} == {"a": 3, "b": 3}


def test_both_sides_have_the_same_scores_of_a_bundled_gpt2_without_biases() -> None:
    options = circuits.Options(pairs=4, steps=2, clock="cpu")
    (seconds, a), (_, b) = (measured(side, "eap-ig", options) for side in ("ours", "peer"))
    assert a.shape == (2188, 4) and np.abs(a).max() > 0.1
    assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()
    assert seconds > 0


@pytest.mark.parametrize("run", ["stories/gpt2", "stories/llama", "stories/lfa", "stories/canon"])
def test_circuits_of_other_models_are_refused(run: str) -> None:
    with pytest.raises(InputError, match=f"--run {run} is no GPT-2: give stories/std-t"):
        opened(circuits.Options(run=run))


@pytest.mark.parametrize("tier", ["structural", "structural+position", "topk"])
@pytest.mark.parametrize("preset", ["pls", "std-t"])
def test_the_straightforward_features_are_the_features(preset: str, tier: Any) -> None:
    model = randomise(build(preset, "tiny", init_std=0.3).eval(), std=0.2)
    docs = torch.randint(256, (2, 20), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        expected = straightforward(model, docs, Extract(tier=tier))
    np.testing.assert_allclose(FeatureReader(model, Extract(tier=tier)).read(docs).X, expected, rtol=1e-4, atol=1e-4)


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


def test_both_sides_have_the_same_parameters() -> None:
    c = shape("std-t", training.Options(context=16), 48, 300)
    assert sum(p.numel() for p in PlainGPT(c).parameters()) == build(c).n_params()


def test_a_step_trains() -> None:
    """The loss on the benchmark's own tokens falls: the step it times is a step of training."""
    o = training.Options(context=8, batch=2, layers=1)
    model, losses = build(shape("std-t", o, 48, 64)).train(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(16).reshape(2, 8)

    def loss() -> torch.Tensor:
        value = model.loss(tokens, tokens)[0]
        losses.append(value.item())
        return value

    step = optimizer_step(model, optimizer, loss, o)
    for _ in range(5):
        step()
    assert losses[-1] < losses[0] - 0.1
    training_step(shape("kromcanon", o, 48, 64), "kromcanon", o)()  # Muon as well


@pytest.mark.parametrize("preset", ["std-t", "lfa", "kromcanon"])
def test_without_hooks_it_is_the_same_model_and_nothing_is_called(preset: str) -> None:
    model, tokens, seen = randomise(build(preset, "tiny").eval(), std=0.2), torch.arange(6)[None], list[str]()
    model.blocks[0].hook_attn_in.add_hook(lambda x, hook: seen.append(hook.name))
    want = model(tokens)
    assert len(seen) == 1
    assert torch.equal(without_hooks(model)(tokens), want) and len(seen) == 1, "no hook is called"


def test_the_timed_pass_is_the_same_with_and_without_hooks() -> None:
    """Both sides compute the gradients that a plain backward pass gives; the step clears them again."""
    o = training.Options(batch=2, context=8, dtype="fp32")
    model = randomise(build("lfa", "tiny", **{"dropout": 0.0, "attention.dropout": 0.0}).train(), std=0.2)
    bare, seen = without_hooks(model), list[torch.Tensor]()
    for one in (model, bare):
        one.embed.weight.register_hook(seen.append)
    forward_backward(model, o)()
    forward_backward(bare, o)()
    assert seen[0].abs().max() > 0 and torch.equal(*seen)
    assert all(p.grad is None for p in (*model.parameters(), *bare.parameters()))
