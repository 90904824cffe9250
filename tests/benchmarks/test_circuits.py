"""The benchmark of circuits: both sides score the same edges, and other models than GPT-2 are refused."""

import numpy as np
import pytest

from streamscope.benchmarks.circuits import Options, main
from streamscope.benchmarks.circuits.measure import measured, opened
from streamscope.cli.errors import InputError


def test_both_sides_have_the_same_scores_of_a_bundled_gpt2_without_biases() -> None:
    options = Options(pairs=4, steps=2, clock="cpu")
    (seconds, a), (_, b) = (measured(side, "eap-ig", options) for side in ("ours", "peer"))
    assert a.shape == (2188, 4) and np.abs(a).max() > 0.1
    assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()
    assert seconds > 0


@pytest.mark.parametrize("run", ["stories/gpt2", "stories/llama", "stories/lfa", "stories/canon"])
def test_other_models_are_refused(run: str) -> None:
    with pytest.raises(InputError, match=f"--run {run} is no GPT-2: give stories/std-t"):
        opened(Options(run=run))


@pytest.mark.slow  # two processes for each method
def test_prints_a_row_per_method(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--pairs", "2", "--steps", "2", "--rounds", "1", "--clock", "cpu"])
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[:3] for row in rows] == [["exact", "2,188", "2"], ["eap-ig", "2,188", "2"]]
    assert all(float(row[-1]) < 1e-4 and float(row[5].split()[0]) > 0 for row in rows)
