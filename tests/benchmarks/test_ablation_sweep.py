"""The benchmark of sweeps runs, and compares what it says it compares."""

import pytest
import torch

from streamscope.benchmarks.ablation_sweep import main
from streamscope.benchmarks.ablation_sweep.measure import as_bridge
from streamscope.benchmarks.timing import interleaved
from streamscope.cli.errors import InputError
from streamscope.models import build
from tests.tiny import randomise


def test_prints_a_row_per_case_and_vocabulary(capsys: pytest.CaptureFixture) -> None:
    small = ["--layers", "1", "--batch", "1", "--length", "6", "--rounds", "1", "--no-peer"]
    main(["--vocab", "300", *small])
    out = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["answers", "losses"]
    assert [row[2].strip() for row in rows] == ["6", "6"]
    assert all(float(row[-1]) < 1e-5 for row in rows)
    assert "1 x 6 tokens" in out


@pytest.mark.parametrize("option", [["--cases", "losses"], ["--no-peer"], ["--layers", "2"]])
def test_an_option_of_random_models_is_refused_with_a_run(option: list[str]) -> None:
    with pytest.raises(InputError, match=f"^{option[0]} has no effect with --run: leave it out$"):
        main(["--run", "stories/llama", *option])
    with pytest.raises(InputError, match="--every has no effect without --run"):
        main(["--every", "2"])


@pytest.mark.slow  # two processes that import both sides
def test_a_given_run_is_measured_in_two_processes_with_the_same_losses(capsys: pytest.CaptureFixture) -> None:
    small = ["--every", "18", "--batch", "2", "--length", "20", "--rounds", "1", "--clock", "cpu"]
    main(["--run", "stories/llama", *small])
    out = capsys.readouterr().out
    (row,) = ([cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│"))
    assert row[0] == "2" and float(row[3].split()[0]) > 0 and float(row[-1]) < 1e-5
    assert all(100 < float(cell.replace(",", "")) < 5000 for cell in row[4:6]), row
    assert "stories/llama: 2 x 20 tokens" in out


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_peer_has_our_weights() -> None:
    model = randomise(build("std-t", "tiny", init_std=0.2), std=0.2)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(as_bridge(model)(tokens), model(tokens), rtol=0, atol=1e-4)


def test_interleaved_runs_every_step_in_every_round_and_turns_round() -> None:
    order: list[str] = []
    seconds = interleaved({n: lambda n=n: order.append(n) for n in "ab"}, rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {n: len(s) for n, s in seconds.items()} == {"a": 3, "b": 3}
