"""Parameters by a formula that does not read the models' code, FLOPs against torch's counter, and `describe`."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from streamscope.models import build, preset
from streamscope.models.config.presets import PRESETS
from streamscope.models.config.serialization import override
from streamscope.models.describe import main, parameters_by_part
from streamscope.models.flops import flops_per_token, peak_flops, training_flops_per_token


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the number of parameters of a paper's model, as its text states it."""

    d: int = 384
    heads: int = 6
    layers: int = 6
    vocab: int = 50257
    tied: bool = True
    table: int = 0  # rows of a learned position table
    v: str = "dense"
    o: str = "dense"
    up: str = "dense"
    down: str = "dense"
    ffn_bias: bool = False
    norms: int = 2  # per layer
    gate: bool = False  # vector gate with bias
    affine: int = 2  # γ and β, or γ alone
    canon: str = ""
    streams: int = 0  # of KromHC


def mixing(kind: str, d_in: int, d_out: int, heads: int) -> int:
    """DST Table 7, also for maps that change the width."""
    dense = d_in * d_out
    return {"identity": 0, "independent": dense // heads, "kronecker": heads**2, "dense": dense}[kind]


def expected(s: Shape) -> int:
    d, m, head = s.d, 4 * s.d, s.d // s.heads
    layer = 2 * d * d  # Q and K
    layer += mixing(s.v, d, d, s.heads) + mixing(s.o, d, d, s.heads)
    layer += mixing(s.up, d, m, s.heads) + mixing(s.down, m, d, s.heads)
    layer += (m + d) * s.ffn_bias + s.norms * s.affine * d
    layer += s.heads * (head * head + head) * s.gate
    layer += 4 * sum({"A": d, "B": 3 * d, "C": d, "D": m}[place] for place in s.canon)  # kernels of 4
    layer += 2 * kromhc_module(s.streams, d) if s.streams else 0
    return s.vocab * d * (1 if s.tied else 2) + s.table * d + s.layers * layer + s.affine * d


def kromhc_module(n: int, d: int) -> int:
    """SPEC §1.1: the norm, W_pre, W_post, W_res^k, their biases, three scales."""
    factors = {2: 1, 4: 2, 8: 3}[n]
    return n * d + 2 * n * d * n + factors * n * d * 2 + n + n + factors * 2 + 3


LFA = dict(v="independent", o="independent")
FFN = dict(up="independent", down="independent")
DST = dict(d=516, vocab=4096, tied=False, norms=3)  # values are read through a norm of their own
KROM = dict(d=512, heads=8, layers=8, vocab=50304, table=512, affine=1)
PLS = Shape(ffn_bias=True, gate=True)
SHAPES = {
    "std-t": Shape(table=512), "d-cas": Shape(), "lfa": Shape(**LFA), "cfm": Shape(**LFA, **FFN),
    "dst-dense": Shape(**DST), "dst-kron": Shape(**DST, v="kronecker", o="kronecker"),
    "dst-ind": Shape(**DST, **LFA), "dst-full-ind": Shape(**DST, **LFA, **FFN), "c2": PLS, "pls": PLS,
    "gpt2": Shape(**KROM), "canon": Shape(**KROM, canon="ABCD"), "kromhc": Shape(**KROM, streams=4),
    "kromcanon": Shape(**KROM, streams=4, canon="ABCD"),
}  # fmt: skip
HDPL = {"llama": 67_113_472, "hdpl": 62_531_072}
"""HDPL Table 1, exact (SPEC §5)."""
PRINTED = {"std-t": 30.12, "d-cas": 29.93, "lfa": 28.45, "cfm": 22.55, "dst-dense": 23.42}
"""Millions, of the papers."""
EXACT = {"c2": 30_086_784, "pls": 30_086_784,
         "gpt2": 51_192_320, "canon": 51_339_776, "kromhc": 51_618_544, "kromcanon": 51_766_000}  # fmt: skip
"""Of PLS and of KROM's code (SPEC §1.1)."""


def test_every_preset_has_a_formula() -> None:
    assert set(SHAPES) | set(HDPL) == set(PRESETS)


def test_paper_scale_by_formula() -> None:
    with torch.device("meta"):
        counts = {name: build(name).n_params() for name in SHAPES}
        without_gate = build("pls", **{"attention.gate": None}).n_params()
        two_places = build("canon", **{"canon.places": "AB"}).n_params()
    assert counts == {name: expected(shape) for name, shape in SHAPES.items()}
    assert {name: counts[name] / 1e6 for name in PRINTED} == pytest.approx(PRINTED, abs=0.01)  # some are truncated
    assert counts | EXACT == counts and (without_gate, two_places) == (29_937_024, 51_257_856)


@pytest.mark.parametrize(
    ("kind", "n", "norm", "res", "scales"),
    [("hc", 4, 32, 4, 2), ("mhc", 4, 128, 16, 3), ("mhc_lite", 4, 128, 24, 3), ("kromhc", 8, 256, 6, 3)],
)
def test_one_hyper_connection(kind: str, n: int, norm: int, res: int, scales: int) -> None:
    """The dynamic part (norm, maps, scales) and the biases; of hc a map each for every stream alone."""
    residual = {"residual": kind, "residual.n": n}
    static = n + n + (n * n if kind == "hc" else res)
    dynamic = norm * (1 + (1 + 1 if kind == "hc" else n + n) + res) + scales
    assert sum(p.numel() for p in build("gpt2", "tiny", **residual).blocks[0].attn_hc.parameters()) == dynamic + static
    still = build("gpt2", "tiny", **residual, **{"residual.dynamic": False})
    assert sum(p.numel() for p in still.blocks[0].attn_hc.parameters()) == static


def hdpl(d_in: int, d_out: int, groups: int, rank: int) -> int:
    """Blocks, two encoders with biases, a decoder without."""
    return d_in * d_out // groups + 2 * (d_in + 1) * rank + rank * d_out


def llama(d: int, layers: int, vocab: int, hybrid: tuple[int, int] | None) -> int:
    """Untied, gated FFN of 4 d, one γ per norm; `hybrid` = (groups, rank) of Q, K, V, gate and up."""
    wide, square = (d * 4 * d, d * d) if hybrid is None else (hdpl(d, 4 * d, *hybrid), hdpl(d, d, *hybrid))
    return 2 * vocab * d + layers * (3 * square + d * d + 2 * wide + 4 * d * d + 2 * d) + d


def test_hdpl_and_its_baseline_have_the_counts_of_the_paper() -> None:
    """At other scales it keeps a block per head and a rank of a quarter of the width."""
    sizes = {"paper": (512, 4, 49152, (8, 128)), "small": (192, 6, 4096, (6, 48)), "zoo": (96, 6, 2048, (6, 24)),
             "tiny": (32, 2, 256, (4, 8))}  # fmt: skip
    with torch.device("meta"):
        found = {scale: {name: build(name, scale).n_params() for name in HDPL} for scale in sizes}
        bare = build("hdpl", **{"readout.tied": True}).n_params()
    assert found["paper"] == HDPL and bare == 37_365_248  # SPEC §5, tied
    assert found == {s: {"llama": llama(*given[:3], None), "hdpl": llama(*given)} for s, given in sizes.items()}


@pytest.mark.parametrize("scale", ["small", "zoo", "tiny"])
@pytest.mark.parametrize("name", ["lfa", "dst-kron", "pls", "gpt2", "kromcanon"])
def test_other_scales(name: str, scale: str) -> None:
    sizes = {"small": (6, 6, 192, 4096, 256), "zoo": (6, 6, 96, 2048, 128), "tiny": (2, 4, 32, 256, 32)}[scale]
    layers, heads, d, vocab, context = sizes
    table = context if SHAPES[name].table else 0
    shape = replace(SHAPES[name], layers=layers, heads=heads, d=d, vocab=vocab, table=table)
    with torch.device("meta"):
        assert build(name, scale).n_params() == expected(shape)
        narrow = build(name, scale, d_model=16 * heads).n_params()
    assert narrow == expected(replace(shape, d=16 * heads)), "the FFN keeps four times the width"


COUNTED = {
    "swiglu": {"mlp.gate": "dns", "mlp.activation": "silu"},
    "gate-normed": {"attention.gate": "gate", "attention.gate.source": "normed"},
    "hc": {"residual": "hc"},
    "mhc-lite": {"residual": "mhc_lite", "canon": "canon"},
    "static mhc": {"residual": "mhc", "residual.dynamic": False},
    "identity": {"attention.v": "id", "attention.o": "id"},
}


@pytest.mark.parametrize("name", [*PRESETS, *COUNTED])
def test_flops_equal_what_torch_counts(name: str) -> None:
    """Every product of a forward pass, and of a training step with supervision, penalties and noise."""
    config = preset(name, "tiny") if name in PRESETS else override(preset("lfa", "tiny"), COUNTED[name])
    model, tokens = build(config), torch.zeros(3, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as forward, model.explicit_attention():  # written out, all is counted
        model(tokens)
    with FlopCounterMode(display=False) as step, model.explicit_attention():
        model.train().loss(tokens, tokens)[0].backward()
    assert sum(count for _, count in parameters_by_part(model)) == model.n_params()
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


WORDS = {
    "pls": ("30,086,784", "dns-dns/dns-dns", "blocks.L.attn.hook_gate"), "": ("dst-kron",),
    "{}": ("4 heads, width 32",), "--run {}": ("4 heads, width 32",),
    "kromcanon": ("51,766,000", "canon ABCD", "kromhc", "blocks.L.attn_hc.hook_res", "213,112", "hyper-connections"),
}  # fmt: skip


def test_command_prints_counts_signature_and_hooks(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for argv, words in WORDS.items():
        main(argv.format(tiny_run).split())
        printed[argv] = capsys.readouterr().out
        assert all(word in printed[argv] for word in words)
    assert printed["{}"] == printed["--run {}"]
