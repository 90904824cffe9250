"""The benchmark of trainings measures what it says: shapes, parts, ratios, and a step that trains."""

import pytest
import torch

from streamscope.benchmarks.training import PARTS, Options, main
from streamscope.benchmarks.training.measure import matmul_ceiling, optimizer_step, shape, training_step
from streamscope.cli.errors import InputError
from streamscope.models import build

SMALL = ["--layers", "1", "--batch", "1", "--context", "8", "--rounds", "1", "--widths", "48", "--vocabularies", "64"]


@pytest.mark.slow
def test_prints_a_line_per_comparison(capsys: pytest.CaptureFixture) -> None:
    main([*SMALL, "--presets", "lfa", "--pairs", "hdpl:llama"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 x 8 tokens, 1 rounds")
    kinds = [line.split(":")[0] for line in lines[1:]]
    assert [kinds.count(k) for k in PARTS] == [2, 1, 1, 1, 1, 7, 6]
    profiles = {line.split()[1].strip(","): line for line in lines if line.startswith("profile:")}
    assert list(profiles) == ["std-t", "lfa", "c2", "pls", "hdpl", "llama"] and all("%" in p for p in profiles.values())
    assert ", eager: " in lines[1] and "x the same without hooks" in lines[1] and "x plain GPT" in lines[3]
    assert "lfa, width 48" in lines[4] and "FLOPs predict" in lines[5]


def test_bad_options_raise() -> None:
    for argv, words in ((["--pairs", "hdpl"], "PRESET:PEER"), (["--rounds", "0"], "at least 1")):
        with pytest.raises(InputError, match=words):
            main(argv)


def test_both_sides_have_the_same_parameters() -> None:
    from streamscope.benchmarks.training.peers import PlainGPT

    c = shape("std-t", Options(context=16), 48, 300)
    plain = PlainGPT(d_vocab=300, n_ctx=16, d=48, heads=c.n_heads, layers=c.n_layers, d_mlp=c.d_mlp)
    assert sum(p.numel() for p in plain.parameters()) == build(c).n_params()


def test_a_step_trains() -> None:
    """The loss on the benchmark's own tokens falls: the step it times is a step of training."""
    o = Options(context=8, batch=2, layers=1)
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


def test_a_ceiling_is_positive() -> None:
    assert 1e6 < matmul_ceiling(Options(rounds=1)) < 1e16
