"""What no model can have is refused in one line that says what to change."""

from typing import Any

import pytest

from streamscope.models import config as c
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict
from tests.tiny import refused

OVERRIDES: list[tuple[str, dict[str, Any], str]] = [
    ("lfa", {"n_layer": 2}, "unknown field of model 'n_layer': did you mean n_layers"),
    ("lfa", {"attention.w": "dns"}, "unknown field of attention 'w'"),
    ("lfa", {"attention.v": "krone"}, "unknown kind of attention.v 'krone': did you mean kronecker"),
    ("lfa", {"attention.gate.shape": "vector"}, "attention.gate is none: set attention.gate=KIND"),
    ("lfa", {"n_layers.x": 1}, "n_layers has no fields"),
    ("lfa", {"residual.values": "both"}, "residual.values must be one of token, combined"),
    ("lfa", {"n_layers": "two"}, "n_layers must be int, got 'two'"),
    ("lfa", {"dropout": 1.0}, r"dropout must be below 1, got 1\.0"),
    ("lfa", {"mixing": "kron/dns"}, "mixing 'kron/dns' is not <v>-<o>/<up>-<down>"),
    ("lfa", {"mixing": "kron-krn/dns-dns"}, "unknown mixing 'krn': did you mean kron"),
    ("lfa", {"mixing": "kron-kron/dns-dns (q-k ind)"}, r"mixing 'kron.*ind\)' is not <v>-<o>/<up>-<down>"),
    ("lfa", {"positions.stretch": "stretch"}, r"positions\.stretch lacks the field factor"),
    ("lfa", {"init.weight": "normal"}, "unknown field of init 'weight': did you mean weights"),
    ("lfa", {"init.weights": "xavier"}, "unknown kind of init.weights 'xavier'"),
    ("lfa", {"init.weights.gian": "1"}, "unknown field of init.weights 'gian'"),
    ("lfa", {"attention.q.init.gain": "1"}, "set attention.q.init=KIND before"),
    ("lfa", {"attention.v.init": c.FanInNormal}, "attention.v.init: expected an object"),
    ("lfa", {"init.head": "tied"}, "init.head must be one of own, copy"),
    ("lfa", {"init.embed.std": float("nan")}, "must be a finite number"),
    ("gpt2", {"residual": "kromhc", "residual.values": "token"}, "unknown field of residual 'values'"),
    ("d-cas", {"mlp.up": "id"}, "mlp.up: identity mixing keeps the width, but this projection maps 32 to 128"),
    ("d-cas", {"mlp.up": "kron"}, "mlp.up: kronecker mixing keeps the width, but this projection maps 32 to 128"),
    ("d-cas", {"mlp.down": "kron"}, "mlp.down: kronecker mixing keeps the width, .* maps 128 to 32"),
    ("d-cas", {"mlp.gate": "id"}, "mlp.gate: identity mixing keeps the width"),
    ("d-cas", {"mlp.up": "ind", "mlp.d_mlp": 130}, "mlp.up: independent mixing needs both widths divisible by the 4"),
    ("d-cas", {"mlp.down": "ind", "mlp.d_mlp": 130}, "mlp.down: independent mixing needs .* got 130 -> 32"),
    ("d-cas", {"n_heads": 6}, "6 heads do not divide the width 32; the nearest width that fits is 30"),
    ("std-t", {"d_model": 30, "attention.d_head": 8, "readout.norm": "channel"}, "4 heads do not divide the width 30"),
    (
        "d-cas",
        {"attention.gate": c.Gate(source="value"), "attention.d_head": 16},
        "gate.source=value reads 8 dimensions per head, but a head has 16",
    ),
    ("d-cas", {"n_heads": 32, "positions": "rope"}, "RoPE rotates pairs"),
    ("d-cas", {"n_heads": 0}, "n_heads must be at least 1, got 0"),
    ("hdpl", {"attention.q.rank": 32}, "attn.q: a latent of 32 is not a bottleneck between 32 and 32"),
    ("hdpl", {"mlp.up.rank": -1}, "mlp.up: a latent of -1 is not a bottleneck"),
    ("hdpl", {"mlp.up.groups": 3}, "mlp.up: the detail path needs .* divisible by its 3 blocks, got 32 -> 128"),
    ("hdpl", {"mlp.d_mlp": 130}, "mlp.gate: the detail path needs .* 4 blocks, got 32 -> 130"),
    ("hdpl", {"attention.q.kl_weight": -1.0}, r"hdpl\.kl_weight must be at least 0, got -1"),
    ("hdpl", {"attention.q.kl": "max"}, "attention.q.kl must be one of clamp, free_bits"),
]
CALLS: list[tuple[Any, str]] = [
    (lambda: preset("lfaa"), "unknown preset 'lfaa': did you mean lfa"),
    (lambda: preset("lfa", "huge"), "unknown scale 'huge': known: paper, small, zoo, tiny"),
    (lambda: from_dict(c.ModelConfig, {"layers": 2}), "unknown field of config 'layers'"),
    (lambda: from_dict(c.ModelConfig, {"norm": {"kind": "batch"}}), "unknown kind of config.norm 'batch'"),
    (lambda: from_dict(c.ModelConfig, [1]), r"config: expected an object, got \[1\]"),
    (lambda: c.KromHC(n=3), "kromhc multiplies 2 x 2 matrices, so n must be 2, 4, 8, …"),
    (lambda: c.KromHC(n=1), "kromhc multiplies 2 x 2 matrices, so n must be 2, 4, 8, …"),
    (lambda: c.MHCLite(n=6), r"mhc_lite\.n must be at most 5, got 6"),
    (lambda: c.HC(n=0), "at least 1, got 0"),
    (lambda: c.MHC(iterations=0), "iterations must be at least 1"),
    (lambda: c.Stretch(factor=0.0, original=40), r"stretch\.factor must be above 0"),
    (lambda: c.FanInUniform(gain=-1.0), r"fan_in_uniform\.gain must be at least 0, got"),
    (lambda: c.Normal(std=-1.0), r"normal\.std must be at least 0, got"),
    (lambda: c.Canon(places="BA"), "some of A, B, C, D in this order"),
    (lambda: c.Canon(places=""), "some of A, B, C, D"),
    (lambda: c.Canon(places="AE"), "got 'AE'"),
    (lambda: c.Canon(kernel=5), r"canon\.kernel must be at most 4, got 5"),
]


@pytest.mark.parametrize(("name", "changes", "line"), OVERRIDES)
def test_overrides(name: str, changes: dict[str, Any], line: str) -> None:
    with refused(line):
        preset(name, "tiny", **changes)


@pytest.mark.parametrize(("call", "line"), CALLS)
def test_parts_and_files(call: Any, line: str) -> None:
    with refused(line):
        call()
