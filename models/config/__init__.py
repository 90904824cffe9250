"""The configuration of a model as nested, frozen, keyword-only data. Nothing here imports torch.

A `ModelConfig` consists of *parts*: small dataclasses with a `kind`. The module that implements a part is found by the
part's class (`models.layers.registry`). So a new projection, norm, position encoding or residual topology is one class
here and one where it is computed. The docstring under each field is its help text on the command line.
"""
# ruff: noqa: F401  (the parts belong to this module's names)

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from streamscope.cli.bounds import Bounds, NotNegative, Whole, check
from streamscope.cli.errors import InputError
from streamscope.models.config.hyper import HC, MHC, Hyper, KromHC, MHCLite, Stochastic
from streamscope.models.config.parts import (
    Alibi,
    Canon,
    ChannelLayerNorm,
    Dense,
    DualStream,
    FanInNormal,
    FanInUniform,
    FrozenToken,
    Hdpl,
    Identity,
    Independent,
    Init,
    Initial,
    Kronecker,
    LayerNorm,
    Learned,
    NoPositions,
    Norm,
    Normal,
    Orthogonal,
    Part,
    Positions,
    Projection,
    Residual,
    RMSNorm,
    Rope,
    Single,
    Stretch,
    TokenFactor,
)

WIDEST = 2**24
"""Larger sizes are rejected as typing mistakes."""
Size = Annotated[int, Bounds(low=1, high=WIDEST)]
Rate = Annotated[float, Bounds(low=0, below=1)]
"""Dropout rate."""


@dataclass(frozen=True, kw_only=True)
class Gate(Part):
    """A gate g = σ(W s + b) that multiplies each head's output (DST Eq. 14, PLS A.4.2)."""

    kind: ClassVar[str] = "gate"
    shape: Literal["scalar", "vector"] = "scalar"
    """One number per head, or one per head dimension."""
    source: Literal["query", "normed", "value"] = "query"
    """The input s: the head's query before positions, the normed input, or the input of the values."""
    bias: bool = False
    """Add a bias."""
    init: Literal["zero", "normal"] = "zero"
    """Initial weights: 0 (g = 1/2) or N(0, 0.02)."""


@dataclass(frozen=True, kw_only=True)
class Attention(Part):
    """Causal multi-head attention (DST Eq. 7–10)."""

    kind: ClassVar[str] = "attention"
    q: Projection = Dense()
    """Queries."""
    k: Projection = Dense()
    """Keys."""
    v: Projection = Dense()
    """Values."""
    o: Projection = Dense()
    """Output."""
    gate: Gate | None = None
    """Head gate."""
    dropout: Rate = 0.0
    """Dropout rate of the attention weights in training."""
    d_head: Whole = 0
    """Width of a head; 0: the model width divided by the number of heads."""
    kv_heads: Whole = 0
    """Number of key-value heads, each shared by consecutive query heads (grouped queries); 0: one per query head."""
    qk_norm: Norm | None = None
    """Norm of each head's queries and keys, before positions."""
    qk_norm_over: Literal["head", "layer"] = "head"
    """Statistics of qk_norm: over a head, or over all heads of the layer (OLMo 2)."""
    window: Whole = 0
    """Keys that a query sees, the last ones up to its own (Mistral); 0: all."""
    full_every: Whole = 0
    """k: layers k, 2k, …, counted from 1, have no window (Gemma: 2 or 6); 0: every layer has it."""
    scale_width: NotNegative = 0.0
    """w of the scores q·k / sqrt(w) (Gemma's query_pre_attn_scalar); 0: the width of a head."""
    softcap: NotNegative = 0.0
    """c of capped scores s → c · tanh(s / c) (Gemma 2); 0: no cap."""


@dataclass(frozen=True, kw_only=True)
class Mlp(Part):
    """The FFN (DST Eq. 11–12); with `gate`, act(gate x) ⊙ up x (SwiGLU with silu)."""

    kind: ClassVar[str] = "mlp"
    d_mlp: Whole = 0
    """Hidden width; 0: four times the model width."""
    up: Projection = Dense()
    """Input projection."""
    down: Projection = Dense()
    """Output projection."""
    gate: Projection | None = None
    """Gate projection, for a gated FFN."""
    activation: Literal["gelu", "gelu_tanh", "silu", "relu"] = "gelu"
    """Activation function; gelu is exact, gelu_tanh is GPT-2's approximation."""


@dataclass(frozen=True, kw_only=True)
class Supervision(Part):
    """Per-layer supervision, L = L_final + strength · Σ_ℓ w_ℓ L^(ℓ) (DST Eq. 15, PLS A.5)."""

    kind: ClassVar[str] = "supervision"
    weights: Literal["linear", "uniform", "exponential"] = "linear"
    """Layer weights w_ℓ = (ℓ+1)/L, 1, or 2^(ℓ+1−L), with ℓ from 0."""
    strength: float = 0.1
    """Weight λ of the sum."""
    normalise: bool = False
    """Divide the weights by their sum over all L layers."""
    include_last: bool = False
    """Include the last layer in the sum."""

    def layer_weights(self, n_layers: int) -> list[float]:
        """λ w_ℓ of the supervised layers, in order of depth."""
        rule = {
            "linear": lambda layer: (layer + 1) / n_layers,
            "uniform": lambda layer: 1.0,
            "exponential": lambda layer: 2.0 ** (layer + 1 - n_layers),
        }[self.weights]
        weights = [rule(layer) for layer in range(n_layers)]
        total = sum(weights) if self.normalise else 1.0
        return [self.strength * w / total for w in (weights if self.include_last else weights[:-1])]


@dataclass(frozen=True, kw_only=True)
class Readout(Part):
    """Final norm, unembedding and per-layer readouts."""

    kind: ClassVar[str] = "readout"
    norm: Norm = LayerNorm()
    """Norm before the unembedding."""
    tied: bool = True
    """The unembedding is the transposed token embedding."""
    softcap: NotNegative = 0.0
    """c of capped logits y → c · tanh(y / c) (Gemma 2); 0: no cap."""
    layer_norms: Literal["shared", "own"] = "shared"
    """Norm of the per-layer readouts: the shared final norm, or one norm per layer."""
    supervision: Supervision | None = None
    """Per-layer supervision; none: only the last layer is trained on."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A transformer. TransformerLens' flat names (`n_layers`, `d_head`, `d_mlp`, …) are available too."""

    name: str = "custom"
    """Name of the preset."""
    n_layers: Annotated[int, Bounds(low=1, high=4096)] = 6
    """Number of layers L."""
    d_model: Size = 192
    """Width D of the residual stream."""
    n_heads: Annotated[int, Bounds(low=1, high=2**16)] = 6
    """Number of heads H; must divide the width."""
    d_vocab: Size = 4096
    """Vocabulary size V."""
    n_ctx: Size = 256
    """Longest sequence in tokens."""
    positions: Positions = Rope()
    """Position encoding."""
    norm: Norm = LayerNorm()
    """Norm of attention and FFN."""
    norm_place: Literal["before", "after", "both"] = "before"
    """Norm what the branches read, what they write to the residual stream (OLMo 2), or both (Gemma 2)."""
    embed_scale: float = 1.0
    """Factor of the token embedding, which a tied head does not have (Gemma: sqrt(width))."""
    residual: Residual = Single()
    """Residual topology."""
    attention: Attention = Attention()
    """Attention."""
    mlp: Mlp = Mlp()
    """FFN."""
    canon: Canon | None = None
    """Canon layers."""
    readout: Readout = Readout()
    """Final norm, head, per-layer readouts."""
    dropout: Rate = 0.0
    """Dropout rate of the embedding and of each branch's output, in training."""
    init: Initial = Initial()
    """Initial weights of all parts that have no rule of their own."""
    init_std: NotNegative = 0.02
    """σ of the rule normal, and of gates and Canon kernels that use it. `--set init_std=` replaces the preset's rules
    in `init` by N(0, σ)."""

    def __post_init__(self) -> None:
        check(self, nested=False)
        attention = self.attention
        if attention.kv_heads and self.n_heads % attention.kv_heads:
            raise InputError(f"{attention.kv_heads} key-value heads do not divide the {self.n_heads} heads")
        if self.d_model % self.n_heads and (not attention.d_head or attention.gate or self.norm.kind == "channel"):
            raise InputError(
                f"{self.n_heads} heads do not divide the width {self.d_model}; "
                f"the nearest width that fits is {max(1, round(self.d_model / self.n_heads)) * self.n_heads}"
            )
        for name, width in (("d_head", self.d_head), ("d_mlp", self.d_mlp)):
            if width > WIDEST:
                raise InputError(f"{name} must be at most {WIDEST:,}, got {width}")
        if self.norm_place != "before" and (self.residual.streams or self.canon is not None):
            raise InputError(
                f"norm_place={self.norm_place} needs one residual stream (residual=single) and no Canon layers"
            )
        if attention.softcap and self.positions.slopes:
            raise InputError("attention.softcap is not defined with ALiBi: choose other positions")
        if isinstance(self.positions, Rope):
            rotated = self.d_head * self.positions.fraction
            if rotated != int(rotated) or int(rotated) % 2 or not 0 < rotated <= self.d_head:
                raise InputError(
                    f"RoPE rotates pairs: {rotated:g} of {self.d_head} head dimensions is not an even number"
                )
        readout, residual = self.readout, self.residual
        if isinstance(residual, FrozenToken) and residual.detach_token and not readout.tied:
            raise InputError(
                "residual.detach_token with an untied head never trains the embedding: set readout.tied=true"
            )
        if readout.layer_norms == "own" and readout.supervision is None:
            raise InputError(
                "readout.layer_norms=own needs readout.supervision; otherwise these norms are never trained"
            )
        for name, spec, d_in, d_out in self.projections():
            spec.check(name, d_in, d_out, self.n_heads)

    @property
    def d_head(self) -> int:
        """Head width d_h, by default D / H."""
        return self.attention.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads G."""
        return self.attention.kv_heads or self.n_heads

    @property
    def d_mlp(self) -> int:
        """Hidden width of the FFN."""
        return self.mlp.d_mlp or 4 * self.d_model

    def projections(self) -> list[tuple[str, Projection, int, int]]:
        """(hook prefix inside a block, spec, d_in, d_out) of every projection, in order of use."""
        attn, mlp, d, m = self.attention, self.mlp, self.d_model, self.d_mlp
        q, kv = self.n_heads * self.d_head, self.kv_heads * self.d_head
        widths = {"q": (d, q), "k": (d, kv), "v": (d, kv), "o": (q, d)}
        rows = [(f"attn.{n}", getattr(attn, n), *width) for n, width in widths.items()]
        rows += [("mlp.gate", mlp.gate, d, m)] if mlp.gate is not None else []
        return [*rows, ("mlp.up", mlp.up, d, m), ("mlp.down", mlp.down, m, d)]

    def canon_widths(self) -> dict[str, int]:
        """Channels of each Canon layer of a block: {"a": D, "b": 3 D, "c": D, "d": M or 2 M}."""
        d, m = self.d_model, self.d_mlp
        qkv = (self.n_heads + 2 * self.kv_heads) * self.d_head
        widths = {"a": d, "b": qkv, "c": d, "d": m if self.mlp.gate is None else 2 * m}
        return {p: width for p, width in widths.items() if self.canon is not None and p.upper() in self.canon.places}

    @property
    def mixing(self) -> str:
        """The signature `<v>-<o>/<up>-<down>` of DST §2.7; q and k are appended unless both are dense."""
        a, m = self.attention, self.mlp
        signature = f"{a.v.short}-{a.o.short}/{m.up.short}-{m.down.short}"
        plain = isinstance(a.q, Dense) and isinstance(a.k, Dense)
        return signature if plain else f"{signature} (q-k {a.q.short}-{a.k.short})"
