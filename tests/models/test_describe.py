"""`describe` counts what there is: parameters, FLOPs against torch's own counter, hooks."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from streamscope.models import build, preset
from streamscope.models.config.presets import PRESETS
from streamscope.models.config.serialization import override
from streamscope.models.describe import main, parameters_by_part
from streamscope.models.flops import flops_per_token, peak_flops, training_flops_per_token

VARIANTS = {
    "swiglu": {"mlp.gate": "dns", "mlp.activation": "silu"},
    "gate-normed": {"attention.gate": "gate", "attention.gate.source": "normed"},
    "hc": {"residual": "hc"},
    "mhc-lite": {"residual": "mhc_lite", "canon": "canon"},
    "static mhc": {"residual": "mhc", "residual.dynamic": False},
    "identity": {"attention.v": "id", "attention.o": "id"},
}


@pytest.mark.parametrize("name", PRESETS)
def test_parts_add_up(name: str) -> None:
    model = build(name, "tiny")
    assert sum(count for _, count in parameters_by_part(model)) == model.n_params()


@pytest.mark.parametrize("name", [*PRESETS, *VARIANTS])
def test_flops_equal_what_torch_counts(name: str) -> None:
    """Every product of a forward pass, and of a training step with supervision, penalties and noise."""
    config = preset(name, "tiny") if name in PRESETS else override(preset("lfa", "tiny"), VARIANTS[name])
    model, tokens = build(config), torch.zeros(3, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as forward, model.explicit_attention():  # written out, all is counted
        model(tokens)
    with FlopCounterMode(display=False) as step, model.explicit_attention():
        model.train().loss(tokens, tokens)[0].backward()
    for counter, flops in ((forward, flops_per_token), (step, training_flops_per_token)):
        assert counter.get_total_flops() == tokens.numel() * sum(flops(model, 16).values())


@pytest.mark.parametrize("tied", [True, False])
def test_a_frozen_weight_needs_no_gradient(tied: bool) -> None:
    model, tokens = build("pls", "tiny", **{"readout.tied": tied}), torch.zeros(3, 16, dtype=torch.long)
    for weight in (model.blocks[1].attn.o.weight, model.blocks[1].mlp.up.weight, model.unembed.weight):
        weight.requires_grad_(False)
    with FlopCounterMode(display=False) as step, model.explicit_attention():
        model.train().loss(tokens, tokens)[0].backward()
    assert step.get_total_flops() == tokens.numel() * sum(training_flops_per_token(model, 16).values())


def test_ceilings_are_known_by_the_name_of_the_device() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12 and peak_flops("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak_flops("Some Other GPU") is None


PRINTED = {
    "pls": ("30,086,784", "dns-dns/dns-dns", "blocks.L.attn.hook_gate"), "": ("dst-kron",),
    "kromcanon": ("51,766,000", "canon ABCD", "kromhc", "blocks.L.attn_hc.hook_res", "213,112", "hyper-connections"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_command_prints_counts_signature_and_hooks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(name.split())
    text = capsys.readouterr().out
    assert all(word in text for word in PRINTED[name])


def test_command_describes_a_run(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--run", str(tiny_run)])
    text = capsys.readouterr().out
    assert "4 heads, width 32" in text
    main([str(tiny_run)])
    assert capsys.readouterr().out == text
