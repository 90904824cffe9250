"""The models of the papers, by name and scale.

preset("lfa")                       as printed in the paper (SPEC §7 where it contradicts itself)
preset("lfa", "small", n_layers=4)  width 192, and one override
"""

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

PRESETS: dict[str, tuple[str, c.ModelConfig]] = {}
"""Name -> (what it is, in one line; its configuration as printed)."""


def preset(name: str, scale: str = "paper", **overrides: Any) -> c.ModelConfig:
    """The configuration `name` at `scale`, with dotted overrides (`models.config.serialization.override`).

    Raises `InputError` for an unknown preset, scale or field.
    """
    if name not in PRESETS:
        raise unknown("preset", name, sorted(PRESETS))
    if scale not in SCALES:
        raise unknown("scale", scale, list(SCALES))
    config = PRESETS[name][1]
    if scale != "paper":  # the FFN keeps its ratio to the width
        ratio = {"mlp.d_mlp": config.mlp.d_mlp * SCALES[scale]["d_model"] // config.d_model}  # 0 stays: four widths
        config = override(config, {**SCALES[scale], **ratio})
    return override(config, overrides)


def _add(name: str, base: str | dict[str, Any], line: str, **parts: Any) -> None:
    """Add a preset: another one, or one of these sizes, with some parts replaced."""
    config = PRESETS[base][1] if isinstance(base, str) else c.ModelConfig(**base)
    PRESETS[name] = line, replace(config, name=name, **parts)


IND = c.Independent()

# ---- LFA §2.6, App. A: 6 layers, 6 heads, 384, GPT-2 BPE ---------------------------------------

LFA = dict(n_layers=6, n_heads=6, d_model=384, d_vocab=50257, n_ctx=512)
RAW = c.UnitOutput()
_add("std-t", LFA, "Std-T: one stream, dense everywhere, learned positions (GPT-2 style).", positions=c.Learned())
_add(
    "d-cas", LFA,
    "D-Cas: frozen token stream, raw values from x_t (Eq. 2) that start as large as normed ones, dense attention and "
    "FFN (SPEC §7.2).",
    residual=c.FrozenToken(value_norm=False), norm=c.ChannelLayerNorm(), attention=c.Attention(v=c.Dense(init=RAW)),
)  # fmt: skip
by_head = c.Attention(v=c.Independent(init=RAW), o=IND)
_add("lfa", "d-cas", "LFA: D-Cas with independent V and O.", attention=by_head)
_add("cfm", "lfa", "CFM: LFA with an independent FFN.", mlp=c.Mlp(up=IND, down=IND))

# ---- DST §3.1: 6 layers, 6 heads, 516, 4K vocabulary -------------------------------------------

DST = dict(n_layers=6, n_heads=6, d_model=516, d_vocab=4096, n_ctx=512)
_add(
    "dst-dense", DST, "DST with dense projections everywhere (dns-dns/dns-dns), token-factor.",
    residual=c.TokenFactor(), norm=c.ChannelLayerNorm(), readout=c.Readout(tied=False),
)  # fmt: skip
_add(
    "dst-kron", "dst-dense",
    "DST's recommended configuration: heads of V and O mixed by Kronecker routing, dense FFN (kron-kron/dns-dns).",
    attention=c.Attention(v=c.Kronecker(), o=c.Kronecker()),
)  # fmt: skip
_add(
    "dst-ind", "dst-dense", "DST with independent heads in V and O, dense FFN (ind-ind/dns-dns).",
    attention=c.Attention(v=IND, o=IND),
)  # fmt: skip
_add(
    "dst-full-ind", "dst-ind",
    "DST with independent heads in V and O, and an FFN of such channels (ind-ind/ind-ind).",
    mlp=c.Mlp(up=IND, down=IND),
)  # fmt: skip

# ---- PLS App. A: 6 layers, 6 heads, 384, GPT-2 BPE, gated, dropout 0.1 -------------------------

_add(
    "c2", LFA, "C2: CASCADE with vector gates, trained on the last layer alone (PLS §3.5).",
    residual=c.FrozenToken(values="combined"), dropout=0.1,
    attention=c.Attention(gate=c.Gate(shape="vector", bias=True), dropout=0.1),
    mlp=c.Mlp(up=c.Dense(bias=True), down=c.Dense(bias=True)),
)  # fmt: skip
_add("pls", "c2", "PLS: C2 with per-layer supervision (PLS A.5).", readout=c.Readout(supervision=c.Supervision()))

# ---- HDPL §3.1, App. A: 4 layers, 8 heads, 512, SmolLM2 vocabulary -----------------------------

HDPL = dict(n_layers=4, n_heads=8, d_model=512, d_vocab=49152, n_ctx=2048)
AS_TORCH = c.Initial(
    weights=c.FanInUniform(), embed=c.FanInUniform(), positions=c.FanInUniform(), head="copy", scale_residual=False
)
"""As in the authors' code: torch's default for every Linear. The embedding is the head's weight, so both start equal,
as a Linear of width D (SPEC §5, §9)."""
_add(
    "llama", HDPL,
    "HDPL's baseline: RMSNorm, RoPE, SwiGLU, dense; untied, which the printed parameter counts imply (SPEC §5).",
    positions=c.Rope(base=500_000.0), norm=c.RMSNorm(eps=1e-6), mlp=c.Mlp(gate=c.Dense(), activation="silu"),
    readout=c.Readout(norm=c.RMSNorm(eps=1e-6), tied=False), init=AS_TORCH,
)  # fmt: skip
_add(
    "hdpl", "llama",
    "HDPL: llama with hybrid dual-path Q, K, V, gate and up; O and down stay dense (HDPL §2.4).",
    attention=c.Attention(q=c.Hdpl(), k=c.Hdpl(), v=c.Hdpl()), mlp=c.Mlp(gate=c.Hdpl(), up=c.Hdpl(), activation="silu"),
)  # fmt: skip

# ---- KROM (SPEC §1): 8 layers, 8 heads, 512, GPT-2 BPE padded to 50304 -------------------------

KROM = dict(n_layers=8, n_heads=8, d_model=512, d_vocab=50304, n_ctx=512)
AS_MLX = c.Initial(weights=c.FanInUniform(), embed=c.FanInNormal(), positions=c.FanInNormal(), scale_residual=False)
"""MLX's defaults: Linear U(±1/sqrt(fan-in)), Embedding N(0, 1/sqrt(D)) (SPEC §1.1)."""
_add(
    "gpt2", KROM, "KROM's vanilla model: one stream, RMSNorm, GELU, learned positions, no biases.",
    positions=c.Learned(), norm=c.RMSNorm(), readout=c.Readout(norm=c.RMSNorm()), init=AS_MLX,
)  # fmt: skip
_add("canon", "gpt2", "gpt2 with Canon layers A, B, C and D.", canon=c.Canon())
mixed = c.KromHC(dyn_act="tanh", post_input="mixed", reduce="mean")
_add("kromhc", "gpt2", "gpt2 with four streams mixed by KromHC, as in the blog's port.", residual=mixed)
_add(
    "kromcanon", "canon", "canon with the streams of kromhc; residual.b_res=-2 is the blog's milder start.",
    residual=mixed,
)  # fmt: skip
