"""What the benchmark of hooks compares with: the same model, whose hook points are gone."""

import pytest
import torch

from streamscope.benchmarks.hooks import main
from streamscope.benchmarks.hooks.measure import hooks_disabled, without_hooks
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


@pytest.mark.slow
def test_prints_a_ratio_for_each_comparison(capsys: pytest.CaptureFixture) -> None:
    main(["--presets", "lfa", "--batch", "1", "--rounds", "1"])
    printed = capsys.readouterr().out
    assert "lfa forward+backward fp32" in printed and "times the plain GPT" in printed
