"""Parameter counts, by a formula that does not read the models' code."""

from dataclasses import dataclass, replace

import pytest
import torch

from streamscope.models import config as c
from streamscope.models.config.presets import PRESETS, preset
from streamscope.models.make import build


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
    return {
        "identity": 0,
        "independent": heads * (d_in // heads) * (d_out // heads),
        "kronecker": heads * heads,
        "dense": d_in * d_out,
    }[kind]


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
    "std-t": Shape(table=512),
    "d-cas": Shape(),
    "lfa": Shape(**LFA),
    "cfm": Shape(**LFA, **FFN),
    "dst-dense": Shape(**DST),
    "dst-kron": Shape(**DST, v="kronecker", o="kronecker"),
    "dst-ind": Shape(**DST, **LFA),
    "dst-full-ind": Shape(**DST, **LFA, **FFN),
    "c2": PLS,
    "pls": PLS,
    "gpt2": Shape(**KROM),
    "canon": Shape(**KROM, canon="ABCD"),
    "kromhc": Shape(**KROM, streams=4),
    "kromcanon": Shape(**KROM, streams=4, canon="ABCD"),
}
HDPL = {"llama": 67_113_472, "hdpl": 62_531_072}
"""HDPL Table 1, exact (SPEC §5)."""
PRINTED = {"std-t": 30.12, "d-cas": 29.93, "lfa": 28.45, "cfm": 22.55, "dst-dense": 23.42}


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """Parameters of every preset at paper scale, built without memory."""
    with torch.device("meta"):
        return {name: build(name).n_params() for name in SHAPES}


def test_every_preset_has_a_formula() -> None:
    assert set(SHAPES) | set(HDPL) == set(PRESETS)


@pytest.mark.parametrize("name", SHAPES)
def test_paper_scale_by_formula(name: str, counts: dict[str, int]) -> None:
    assert counts[name] == expected(SHAPES[name])


def test_pls_and_its_control_have_the_count_of_the_paper(counts: dict[str, int]) -> None:
    assert counts["pls"] == counts["c2"] == 30_086_784
    with torch.device("meta"):
        assert build("pls", **{"attention.gate": None}).n_params() == 29_937_024


def test_the_models_of_krom_have_the_counts_of_their_code(counts: dict[str, int]) -> None:
    """SPEC §1.1, to the last parameter."""
    krom = {name: counts[name] for name in ("gpt2", "canon", "kromhc", "kromcanon")}
    assert krom == {"gpt2": 51_192_320, "canon": 51_339_776, "kromhc": 51_618_544, "kromcanon": 51_766_000}
    assert kromhc_module(4, 512) == 26_639
    with torch.device("meta"):
        assert build("canon", **{"canon.places": "AB"}).n_params() == 51_257_856
        assert sum(p.numel() for p in build("kromhc").blocks[0].attn_hc.parameters()) == 26_639


@pytest.mark.parametrize(
    ("kind", "n", "d", "dynamic", "static"),
    [
        ("hc", 4, 32, 32 * (1 + 1 + 4 + 1) + 2, 4 + 4 + 16),
        ("mhc", 4, 32, 128 * (1 + 4 + 4 + 16) + 3, 4 + 4 + 16),
        ("mhc_lite", 4, 32, 128 * (1 + 4 + 4 + 24) + 3, 4 + 4 + 24),
        ("kromhc", 4, 32, 128 * (1 + 4 + 4 + 4) + 3, 4 + 4 + 4),
        ("kromhc", 8, 32, 256 * (1 + 8 + 8 + 6) + 3, 8 + 8 + 6),
        ("kromhc", 2, 32, 64 * (1 + 2 + 2 + 2) + 3, 2 + 2 + 2),
    ],
)
def test_one_hyper_connection(kind: str, n: int, d: int, dynamic: int, static: int) -> None:
    """The dynamic part (norm, maps, scales) and the biases."""
    residual = {"residual": kind, "residual.n": n}
    assert sum(p.numel() for p in build("gpt2", "tiny", **residual).blocks[0].attn_hc.parameters()) == dynamic + static
    still = build("gpt2", "tiny", **residual, **{"residual.dynamic": False})
    assert sum(p.numel() for p in still.blocks[0].attn_hc.parameters()) == static


@pytest.mark.parametrize(("name", "millions"), PRINTED.items())
def test_millions(name: str, millions: float, counts: dict[str, int]) -> None:
    assert abs(counts[name] / 1e6 - millions) < 0.01  # the table truncates


def hdpl(d_in: int, d_out: int, groups: int, rank: int) -> int:
    """Blocks, two encoders with biases, a decoder without."""
    return d_in * d_out // groups + 2 * (d_in + 1) * rank + rank * d_out


def llama(d: int, layers: int, vocab: int, hybrid: tuple[int, int] | None) -> int:
    """Untied, gated FFN of 4 d, one γ per norm; `hybrid` = (groups, rank) of Q, K, V, gate and up."""
    wide, square = (d * 4 * d, d * d) if hybrid is None else (hdpl(d, 4 * d, *hybrid), hdpl(d, d, *hybrid))
    return 2 * vocab * d + layers * (3 * square + d * d + 2 * wide + 4 * d * d + 2 * d) + d


def test_hdpl_and_its_baseline_have_the_counts_of_the_paper() -> None:
    with torch.device("meta"):
        found = {name: build(name).n_params() for name in HDPL}
        bare = build("hdpl", **{"readout.tied": True}).n_params()
    assert found == HDPL
    assert found == {"llama": llama(512, 4, 49152, None), "hdpl": llama(512, 4, 49152, (8, 128))}
    assert bare == 37_365_248  # SPEC §5, tied
    assert f"{HDPL['hdpl'] * 4 / 2**20:.2f}" == "238.54" and f"{HDPL['llama'] * 4 / 2**20:.2f}" == "256.02"
    assert f"{(HDPL['hdpl'] - 20 * 256) * 4 / 2**20:.2f}" == "238.52", "without encoder biases: not the printed size"


@pytest.mark.parametrize(
    ("scale", "sizes"),
    [("small", (192, 6, 4096, (6, 48))), ("zoo", (96, 6, 2048, (6, 24))), ("tiny", (32, 2, 256, (4, 8)))],
)
def test_hdpl_at_other_scales_keeps_a_block_per_head_and_a_rank_of_a_quarter(scale: str, sizes: tuple) -> None:
    with torch.device("meta"):
        hybrid, plain = build("hdpl", scale).n_params(), build("llama", scale).n_params()
    assert (hybrid, plain) == (llama(*sizes), llama(*sizes[:3], None))
    assert hybrid < plain


def test_differences_between_the_models_of_lfa(counts: dict[str, int]) -> None:
    """SPEC §7.1: V and O dense to independent save 1.475 M, the FFN 5.898 M, whatever the vocabulary."""
    assert counts["d-cas"] - counts["lfa"] == 6 * 2 * (384**2 - 384**2 // 6) == 1_474_560
    assert counts["lfa"] - counts["cfm"] == 6 * 8 * (384**2 - 384**2 // 6) == 5_898_240


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", ["scalar", "vector"])
@pytest.mark.parametrize("source", ["query", "normed", "value"])
def test_gate(tied: bool, shape: str, source: str) -> None:
    """A gate reads d_h numbers per head, or from the normed input all D of them."""
    d, heads, vocab, layers = 32, 4, 256, 2
    bare = build("d-cas", "tiny", **{"readout.tied": tied}).n_params()
    gate = c.Gate(shape=shape, source=source, bias=True)  # type: ignore[arg-type]
    gated = build("d-cas", "tiny", **{"readout.tied": tied, "attention.gate": gate}).n_params()
    out = d // heads if shape == "vector" else 1
    assert gated - bare == layers * heads * out * ((d if source == "normed" else d // heads) + 1)
    assert bare == expected(Shape(d=d, heads=heads, vocab=vocab, layers=layers, tied=tied))


@pytest.mark.parametrize("scale", ["small", "zoo", "tiny"])
@pytest.mark.parametrize("name", ["lfa", "dst-kron", "pls", "gpt2", "kromcanon"])
def test_other_scales(name: str, scale: str) -> None:
    sizes = {"small": (6, 6, 192, 4096, 256), "zoo": (6, 6, 96, 2048, 128), "tiny": (2, 4, 32, 256, 32)}[scale]
    layers, heads, d, vocab, context = sizes
    table = context if SHAPES[name].table else 0
    shape = replace(SHAPES[name], layers=layers, heads=heads, d=d, vocab=vocab, table=table)
    with torch.device("meta"):
        assert build(name, scale).n_params() == expected(shape)


def test_ffn_keeps_four_times_the_width_when_the_width_is_overridden_at_a_scale() -> None:
    """`d_mlp` follows the width at every scale alike."""
    with torch.device("meta"):
        paper, small = build("lfa", d_model=96), build("lfa", "small", d_model=96)
    assert paper.config.d_mlp == small.config.d_mlp == 4 * 96


@pytest.mark.parametrize(
    ("spec", "count"), [(c.Identity(), 0), (c.Independent(), 32_768), (c.Kronecker(), 64), (c.Dense(), 262_144)]
)
def test_one_projection(spec: c.Projection, count: int) -> None:
    """DST Table 7: 512 -> 512 with 8 heads; a bias adds the width."""
    assert sum(p.numel() for p in spec.module(spec, 512, 512, 8).parameters()) == count
    if count:
        biased = spec.module(type(spec)(bias=True), 512, 512, 8)
        assert sum(p.numel() for p in biased.parameters()) == count + 512


@pytest.mark.parametrize(
    ("scale", "sizes"),
    [("paper", (384, 50257, 512)), ("small", (192, 4096, 256)), ("zoo", (96, 2048, 128)), ("tiny", (32, 256, 32))],
)
def test_scales_are_what_they_say(scale: str, sizes: tuple[int, ...]) -> None:
    config = preset("lfa", scale)
    assert (config.d_model, config.d_vocab, config.n_ctx) == sizes and config.d_mlp == 4 * sizes[0]
