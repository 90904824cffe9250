"""The models of the papers, by name and scale.

preset("lfa")                       as printed in the paper (SPEC §7 where it contradicts itself)
preset("lfa", "small", n_layers=4)  width 192, and one override
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streamscope.cli.errors import unknown
from streamscope.models import config as c
from streamscope.models.config.serialization import override

SCALES: dict[str, dict[str, int]] = {
    "paper": {},
    "small": dict(n_layers=6, n_heads=6, d_model=192, d_vocab=4096, n_ctx=256),
    "zoo": dict(n_layers=6, n_heads=6, d_model=96, d_vocab=2048, n_ctx=128),
    "tiny": dict(n_layers=2, n_heads=4, d_model=32, d_vocab=256, n_ctx=32),
}
"""Sizes that each scale replaces. `tiny` is for tests."""

PRESETS: dict[str, Callable[[], c.ModelConfig]] = {}


def register(make: Callable[[], c.ModelConfig]) -> Callable[[], c.ModelConfig]:
    """Add a preset under its function's name, with `-` for `_`."""
    PRESETS[make.__name__.replace("_", "-")] = make
    return make


def preset(name: str, scale: str = "paper", **overrides: Any) -> c.ModelConfig:
    """The configuration `name` at `scale`, with dotted overrides (`models.config.serialization.override`).

    Raises `InputError` for an unknown preset, scale or field.
    """
    if name not in PRESETS:
        raise unknown("preset", name, sorted(PRESETS))
    if scale not in SCALES:
        raise unknown("scale", scale, list(SCALES))
    config = replace(PRESETS[name](), name=name)
    if scale != "paper":  # the FFN keeps its ratio to the width
        ratio = {"mlp.d_mlp": config.mlp.d_mlp * SCALES[scale]["d_model"] // config.d_model}  # 0 stays: four widths
        config = override(config, {**SCALES[scale], **ratio})
    return override(config, overrides)


# ---- LFA §2.6, App. A: 6 layers, 6 heads, 384, GPT-2 BPE ---------------------------------------


def _lfa_frame() -> c.ModelConfig:
    return c.ModelConfig(n_layers=6, n_heads=6, d_model=384, d_vocab=50257, n_ctx=512)


@register
def std_t() -> c.ModelConfig:
    """Std-T: one stream, dense everywhere, learned positions (GPT-2 style)."""
    return replace(_lfa_frame(), residual=c.Single(), positions=c.Learned())


@register
def d_cas() -> c.ModelConfig:
    """D-Cas: frozen token stream, raw values from x_t (Eq. 2) that start as large as normed ones, dense attention and
    FFN (SPEC §7.2)."""
    frame = replace(
        _lfa_frame(), residual=c.FrozenToken(value_norm=False), norm=c.ChannelLayerNorm(), positions=c.Rope()
    )
    return replace(frame, attention=c.Attention(v=c.Dense(init=c.UnitOutput())))


@register
def lfa() -> c.ModelConfig:
    """LFA: D-Cas with independent V and O."""
    return replace(d_cas(), attention=c.Attention(v=c.Independent(init=c.UnitOutput()), o=c.Independent()))


@register
def cfm() -> c.ModelConfig:
    """CFM: LFA with an independent FFN."""
    return replace(lfa(), mlp=c.Mlp(up=c.Independent(), down=c.Independent()))


# ---- DST §3.1: 6 layers, 6 heads, 516, 4K vocabulary -------------------------------------------


@register
def dst_dense() -> c.ModelConfig:
    """DST with dense projections everywhere (dns-dns/dns-dns), token-factor."""
    sizes: dict[str, Any] = dict(n_layers=6, n_heads=6, d_model=516, d_vocab=4096, n_ctx=512)
    return c.ModelConfig(**sizes, residual=c.TokenFactor(), norm=c.ChannelLayerNorm(), readout=c.Readout(tied=False))


@register
def dst_kron() -> c.ModelConfig:
    """DST's recommended configuration: heads of V and O mixed by Kronecker routing, dense FFN (kron-kron/dns-dns)."""
    return replace(dst_dense(), attention=c.Attention(v=c.Kronecker(), o=c.Kronecker()))


@register
def dst_ind() -> c.ModelConfig:
    """DST with independent heads in V and O, dense FFN (ind-ind/dns-dns)."""
    return replace(dst_dense(), attention=c.Attention(v=c.Independent(), o=c.Independent()))


@register
def dst_full_ind() -> c.ModelConfig:
    """DST with independent heads in V and O, and an FFN of such channels (ind-ind/ind-ind)."""
    return replace(dst_ind(), mlp=c.Mlp(up=c.Independent(), down=c.Independent()))


# ---- PLS App. A: 6 layers, 6 heads, 384, GPT-2 BPE, gated, dropout 0.1 -------------------------


@register
def c2() -> c.ModelConfig:
    """C2: CASCADE with vector gates, trained on the last layer alone (PLS §3.5)."""
    return replace(
        _lfa_frame(),
        residual=c.FrozenToken(values="combined"),
        attention=c.Attention(gate=c.Gate(shape="vector", bias=True), dropout=0.1),
        mlp=c.Mlp(up=c.Dense(bias=True), down=c.Dense(bias=True)),
        dropout=0.1,
    )


@register
def pls() -> c.ModelConfig:
    """PLS: C2 with per-layer supervision (PLS A.5)."""
    return replace(c2(), readout=c.Readout(supervision=c.Supervision()))


# ---- HDPL §3.1, App. A: 4 layers, 8 heads, 512, SmolLM2 vocabulary -----------------------------


_AS_TORCH = c.Initial(
    weights=c.FanInUniform(), embed=c.FanInUniform(), positions=c.FanInUniform(), head="copy", scale_residual=False
)
"""As in the authors' code: torch's default for every Linear. The embedding is the head's weight, so both start equal,
as a Linear of width D (SPEC §5, §9)."""


@register
def llama() -> c.ModelConfig:
    """HDPL's baseline: RMSNorm, RoPE, SwiGLU, dense; untied, which the printed parameter counts imply (SPEC §5)."""
    sizes: dict[str, Any] = dict(n_layers=4, n_heads=8, d_model=512, d_vocab=49152, n_ctx=2048)
    return c.ModelConfig(
        **sizes,
        positions=c.Rope(base=500_000.0),
        norm=c.RMSNorm(eps=1e-6),
        mlp=c.Mlp(gate=c.Dense(), activation="silu"),
        readout=c.Readout(norm=c.RMSNorm(eps=1e-6), tied=False),
        init=_AS_TORCH,
    )


@register
def hdpl() -> c.ModelConfig:
    """HDPL: llama with hybrid dual-path Q, K, V, gate and up; O and down stay dense (HDPL §2.4)."""
    mlp = c.Mlp(gate=c.Hdpl(), up=c.Hdpl(), activation="silu")
    return replace(llama(), attention=c.Attention(q=c.Hdpl(), k=c.Hdpl(), v=c.Hdpl()), mlp=mlp)


# ---- KROM (SPEC §1): 8 layers, 8 heads, 512, GPT-2 BPE padded to 50304 -------------------------

_AS_MLX = c.Initial(weights=c.FanInUniform(), embed=c.FanInNormal(), positions=c.FanInNormal(), scale_residual=False)
"""MLX's defaults: Linear U(±1/sqrt(fan-in)), Embedding N(0, 1/sqrt(D)) (SPEC §1.1)."""


@register
def gpt2() -> c.ModelConfig:
    """KROM's vanilla model: one stream, RMSNorm, GELU, learned positions, no biases."""
    norm = c.RMSNorm()
    sizes: dict[str, Any] = dict(n_layers=8, n_heads=8, d_model=512, d_vocab=50304, n_ctx=512)
    return c.ModelConfig(**sizes, positions=c.Learned(), norm=norm, readout=c.Readout(norm=norm), init=_AS_MLX)


@register
def canon() -> c.ModelConfig:
    """gpt2 with Canon layers A, B, C and D."""
    return replace(gpt2(), canon=c.Canon())


@register
def kromhc() -> c.ModelConfig:
    """gpt2 with four streams mixed by KromHC, as in the blog's port."""
    return replace(gpt2(), residual=c.KromHC(dyn_act="tanh", post_input="mixed", reduce="mean"))


@register
def kromcanon() -> c.ModelConfig:
    """canon with the streams of kromhc; residual.b_res=-2 is the blog's milder start."""
    return replace(canon(), residual=kromhc().residual)
