"""What the benchmark of hooks compares with: the same model, whose hook points are gone."""

import pytest
import torch

from streamscope.benchmarks.training import Options
from streamscope.benchmarks.training.measure import forward_backward
from streamscope.benchmarks.training.peers import hooks_disabled, without_hooks
from streamscope.models import build
from tests.tiny import randomise


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
