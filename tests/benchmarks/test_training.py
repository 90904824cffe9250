"""The benchmark of trainings measures what it says: shapes, parts, ratios, and a step that trains."""

import pytest
import torch

from streamscope.benchmarks.training import PARTS, Options, main
from streamscope.benchmarks.training.measure import forward_backward, optimizer_step, shape, training_step
from streamscope.benchmarks.training.peers import PlainGPT, hooks_disabled, without_hooks
from streamscope.cli.errors import InputError
from streamscope.models import build
from tests.tiny import randomise

SMALL = ["--layers", "1", "--batch", "1", "--context", "8", "--rounds", "1", "--widths", "48", "--vocabularies", "64"]


@pytest.mark.slow
def test_prints_a_line_per_comparison(capsys: pytest.CaptureFixture) -> None:
    main([*SMALL, "--presets", "lfa", "--pairs", "hdpl:llama"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 x 8 tokens, 1 rounds")
    kinds = [line.split(":")[0] for line in lines[1:]]
    assert [kinds.count(k) for k in PARTS] == [2, 1, 1, 1]
    assert ", eager: " in lines[1] and "x the same without hooks" in lines[1] and "x plain GPT" in lines[3]
    assert "lfa, width 48" in lines[4] and "hdpl, width 512: " in lines[5] and "x llama" in lines[5]


def test_bad_options_raise() -> None:
    for argv, words in ((["--pairs", "hdpl"], "PRESET:PEER"), (["--rounds", "0"], "at least 1")):
        with pytest.raises(InputError, match=words):
            main(argv)


def test_both_sides_have_the_same_parameters() -> None:
    c = shape("std-t", Options(context=16), 48, 300)
    assert sum(p.numel() for p in PlainGPT(c).parameters()) == build(c).n_params()


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


@pytest.mark.parametrize("preset", ["std-t", "lfa", "kromcanon"])
def test_without_hooks_it_is_the_same_model_and_nothing_is_called(preset: str) -> None:
    model = randomise(build(preset, "tiny").eval(), std=0.2)
    tokens = torch.arange(6)[None]
    seen: list[str] = []
    model.blocks[0].hook_attn_in.add_hook(lambda x, hook: seen.append(hook.name))
    want = model(tokens)
    assert seen
    seen.clear()
    with hooks_disabled():
        assert torch.equal(without_hooks(model)(tokens), want)
        assert torch.equal(model(tokens), want) and not seen, "no hook is called"
    model(tokens)
    assert seen, "hooks are back"


def test_the_timed_pass_is_the_same_with_and_without_hooks() -> None:
    """Both sides compute the gradients that a plain backward pass gives; the step clears them again."""
    o = Options(batch=2, context=8, dtype="fp32")
    model = randomise(build("lfa", "tiny", **{"dropout": 0.0, "attention.dropout": 0.0}).train(), std=0.2)
    bare, seen = without_hooks(model), list[torch.Tensor]()
    for one in (model, bare):
        one.embed.weight.register_hook(seen.append)
    forward_backward(model, o)()
    hooks_disabled()(forward_backward(bare, o))()
    assert seen[0].abs().max() > 0 and torch.equal(*seen)
    assert all(p.grad is None for p in (*model.parameters(), *bare.parameters()))
