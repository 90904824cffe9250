"""What a model is, as nested, frozen, keyword-only data. Nothing here imports torch.

A `ModelConfig` is put together from *parts*. A part is a small dataclass with a `kind`; the module
that implements it is found by its class (`models.registry`), so that a new kind of projection,
norm, position encoding or residual topology is one class here and one class where it is computed.
The docstring under each field is the help text of the command line.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from models.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Part:
    """Base of all parts. `kind` is the name used in JSON files and in `--set`."""

    kind: ClassVar[str]


# ---- projections: the mixing strategies of DST §2.2 --------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Projection(Part):
    """One linear map D_in -> D_out seen as H channels; how information crosses between channels."""

    short: ClassVar[str]
    linear: ClassVar[bool] = True

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        """Raise `InputError` with the reason when this kind cannot map d_in to d_out."""


@dataclass(frozen=True, kw_only=True)
class Identity(Projection):
    """y = x. No parameters. Square maps only."""

    kind: ClassVar[str] = "identity"
    short: ClassVar[str] = "id"

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        _square(self, name, d_in, d_out)


@dataclass(frozen=True, kw_only=True)
class Independent(Projection):
    """y_h = x_h W_h: block-diagonal, H · (d_in/H) · (d_out/H) parameters (DST Eq. 4)."""

    kind: ClassVar[str] = "independent"
    short: ClassVar[str] = "ind"
    bias: bool = False
    """Add a bias."""

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        if d_in % n_heads or d_out % n_heads:
            raise InputError(
                f"{name}: independent mixing needs both widths divisible by the {n_heads} heads, "
                f"got {d_in} -> {d_out}"
            )


@dataclass(frozen=True, kw_only=True)
class Kronecker(Projection):
    """y_k = Σ_h W_kh x_h, that is W ⊗ I: H² parameters (DST Eq. 5). Square maps only."""

    kind: ClassVar[str] = "kronecker"
    short: ClassVar[str] = "kron"
    bias: bool = False
    """Add a bias."""

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        _square(self, name, d_in, d_out)


@dataclass(frozen=True, kw_only=True)
class Dense(Projection):
    """y = x W: any channel may reach any other, d_in · d_out parameters (DST Eq. 6)."""

    kind: ClassVar[str] = "dense"
    short: ClassVar[str] = "dns"
    bias: bool = False
    """Add a bias."""


def _square(spec: Projection, name: str, d_in: int, d_out: int) -> None:
    if d_in != d_out:
        raise InputError(
            f"{name}: {spec.kind} mixing keeps the width, but this projection maps {d_in} to {d_out}; "
            "use independent or dense"
        )


# ---- norms -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Norm(Part):
    """A normalisation over the model width."""

    eps: float = 1e-5
    """Added to the variance."""


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Norm):
    """γ (x − mean) / sqrt(var + eps) + β over all D."""

    kind: ClassVar[str] = "layer"


@dataclass(frozen=True, kw_only=True)
class ChannelLayerNorm(Norm):
    """LayerNorm of each head's d_h dimensions by themselves, with γ_h, β_h (DST Eq. 13)."""

    kind: ClassVar[str] = "channel"


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Norm):
    """γ x / sqrt(mean(x²) + eps)."""

    kind: ClassVar[str] = "rms"


# ---- positions ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Positions(Part):
    """How a model knows the order of its tokens."""

    table: ClassVar[bool] = False  # has a learned table that is added to the embedding
    rotates: ClassVar[bool] = False  # changes q and k


@dataclass(frozen=True, kw_only=True)
class Rope(Positions):
    """Rotary positions, half-rotate layout."""

    kind: ClassVar[str] = "rope"
    rotates: ClassVar[bool] = True
    base: float = 10_000.0
    """Wavelength base θ."""
    fraction: float = 1.0
    """Share of each head's width that is rotated (Canon recommends 0.25)."""


@dataclass(frozen=True, kw_only=True)
class Alibi(Positions):
    """Linear biases −m_h (q − k) added to the scores, m_h by the rule of the ALiBi paper."""

    kind: ClassVar[str] = "alibi"


@dataclass(frozen=True, kw_only=True)
class Learned(Positions):
    """A learned table [n_ctx, D] added to the token embedding."""

    kind: ClassVar[str] = "learned"
    table: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class NoPositions(Positions):
    """No position information but the causal mask."""

    kind: ClassVar[str] = "none"


# ---- residual topologies -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Residual(Part):
    """What flows between the branches. `streams` are the names in the hooks, () for one stream."""

    streams: ClassVar[tuple[str, ...]] = ()

    @property
    def value_path(self) -> Literal["shared", "own", "raw"]:
        """What normalises the values' input: the norm of Q and K, a norm of their own, or nothing."""
        return "shared"


@dataclass(frozen=True, kw_only=True)
class Single(Residual):
    """One residual stream: a standard pre-norm transformer."""

    kind: ClassVar[str] = "single"


@dataclass(frozen=True, kw_only=True)
class DualStream(Residual):
    """x = x_t + x_e (DST Eq. 1)."""

    streams: ClassVar[tuple[str, ...]] = ("token", "context")
    values: Literal["token", "combined"] = "token"
    """What the values read: x_t (DST Eq. 8) or x_t + x_e (PLS Eq. 5)."""
    value_norm: bool = True
    """Normalise what the values read (DST Eq. 8) or take it raw (DST Eq. 2, LFA Eq. 14)."""
    order: Literal["sequential", "parallel"] = "sequential"
    """sequential: the FFN sees the attention's update of its layer (DST Alg. 1); parallel: DST Eq. 3."""

    @property
    def value_path(self) -> Literal["shared", "own", "raw"]:
        if not self.value_norm:
            return "raw"
        return "own" if self.values == "token" else "shared"


@dataclass(frozen=True, kw_only=True)
class TokenFactor(DualStream):
    """Attention writes x_t, the FFN writes x_e (DST §2.1)."""

    kind: ClassVar[str] = "token_factor"


@dataclass(frozen=True, kw_only=True)
class FrozenToken(DualStream):
    """x_t stays the embedding; attention and FFN write x_e (DST §2.1, LFA Eq. 18–21, CASCADE)."""

    kind: ClassVar[str] = "frozen_token"
    detach_token: bool = False
    """Stop gradients into the embedding through x_t (LFA "no gradient flow into X_T")."""


# ---- attention, FFN, readout -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gate(Part):
    """g = σ(W s + b), multiplied onto each head's output (DST Eq. 14, PLS A.4.2)."""

    kind: ClassVar[str] = "gate"
    shape: Literal["scalar", "vector"] = "scalar"
    """One number per head, or one per head dimension."""
    source: Literal["query", "normed", "value"] = "query"
    """What s is: the head's query before positions, the normed input, or what the values read."""
    bias: bool = False
    """Add a bias."""
    init: Literal["zero", "normal"] = "zero"
    """Weights start at 0 (g = 1/2) or at N(0, 0.02)."""


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
    dropout: float = 0.0
    """Dropout of the attention weights, in training."""


@dataclass(frozen=True, kw_only=True)
class Mlp(Part):
    """FFN (DST Eq. 11–12); with `gate` it is gated: act(gate x) ⊙ up x (SwiGLU with silu)."""

    kind: ClassVar[str] = "mlp"
    d_mlp: int = 0
    """Hidden width; 0 means four times the model width."""
    up: Projection = Dense()
    """Input projection."""
    down: Projection = Dense()
    """Output projection."""
    gate: Projection | None = None
    """Gate projection, for a gated FFN."""
    activation: Literal["gelu", "silu"] = "gelu"
    """Activation; gelu is the exact one."""


@dataclass(frozen=True, kw_only=True)
class Supervision(Part):
    """L = L_final + strength · Σ_ℓ w_ℓ L^(ℓ) (DST Eq. 15, PLS A.5)."""

    kind: ClassVar[str] = "supervision"
    weights: Literal["linear", "uniform", "exponential"] = "linear"
    """w_ℓ = (ℓ+1)/L, 1, or 2^(ℓ+1−L), ℓ counted from 0."""
    strength: float = 0.1
    """λ."""
    normalise: bool = False
    """Divide the weights by their sum over all L layers."""
    include_last: bool = False
    """Count the last layer in the sum as well."""

    def layer_weights(self, n_layers: int) -> list[float]:
        """λ w_ℓ for the layers that are supervised, in order of depth."""
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
    """From a residual state to logits."""

    kind: ClassVar[str] = "readout"
    norm: Norm = LayerNorm()
    """Norm before the head."""
    tied: bool = True
    """The head is the token embedding."""
    layer_norms: Literal["shared", "own"] = "shared"
    """Per-layer readouts use the final norm, or one norm per layer."""
    supervision: Supervision | None = None
    """Per-layer supervision; none trains on the last layer alone."""


# ---- the whole ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A transformer. Flat names of TransformerLens (`n_layers`, `d_head`, `d_mlp`, …) read from it."""

    name: str = "custom"
    """The preset it came from."""
    n_layers: int = 6
    """L."""
    d_model: int = 192
    """D."""
    n_heads: int = 6
    """H; must divide the width."""
    d_vocab: int = 4096
    """V."""
    n_ctx: int = 256
    """Longest sequence."""
    positions: Positions = Rope()
    """Position encoding."""
    norm: Norm = LayerNorm()
    """Norm before attention and FFN."""
    residual: Residual = Single()
    """Residual topology."""
    attention: Attention = Attention()
    """Attention."""
    mlp: Mlp = Mlp()
    """FFN."""
    readout: Readout = Readout()
    """Final norm, head, per-layer readouts."""
    dropout: float = 0.0
    """Dropout of the embedding and of each branch's output, in training."""
    init_std: float = 0.02
    """Standard deviation of initial weights; output projections get it divided by sqrt(2 L)."""

    def __post_init__(self) -> None:
        for field in ("n_layers", "d_model", "n_heads", "d_vocab", "n_ctx"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.d_model % self.n_heads:
            raise InputError(
                f"{self.n_heads} heads do not divide the width {self.d_model}; "
                f"the nearest width that fits is {round(self.d_model / self.n_heads) * self.n_heads}"
            )
        for name, rate in (("dropout", self.dropout), ("attention.dropout", self.attention.dropout)):
            if not 0.0 <= rate < 1.0:
                raise InputError(f"{name} must lie in [0, 1), got {rate}")
        if isinstance(self.positions, Rope):
            rotated = self.d_head * self.positions.fraction
            if rotated != int(rotated) or int(rotated) % 2 or rotated <= 0:
                raise InputError(f"RoPE rotates pairs: {rotated:g} of {self.d_head} head dimensions is no even number")
        for name, spec, d_in, d_out in self.projections():
            spec.check(name, d_in, d_out, self.n_heads)

    @property
    def d_head(self) -> int:
        """d_h = D / H."""
        return self.d_model // self.n_heads

    @property
    def d_mlp(self) -> int:
        """Hidden width of the FFN."""
        return self.mlp.d_mlp or 4 * self.d_model

    def projections(self) -> list[tuple[str, Projection, int, int]]:
        """(hook prefix inside a block, spec, d_in, d_out) of every projection, in order of use."""
        attn, mlp, d, m = self.attention, self.mlp, self.d_model, self.d_mlp
        rows = [(f"attn.{n}", getattr(attn, n), d, d) for n in "qkvo"]
        rows += [("mlp.gate", mlp.gate, d, m)] if mlp.gate is not None else []
        return [*rows, ("mlp.up", mlp.up, d, m), ("mlp.down", mlp.down, m, d)]

    @property
    def mixing(self) -> str:
        """The signature `<v>-<o>/<up>-<down>` of DST §2.7; other than dense q, k are appended."""
        a, m = self.attention, self.mlp
        signature = f"{a.v.short}-{a.o.short}/{m.up.short}-{m.down.short}"
        plain = isinstance(a.q, Dense) and isinstance(a.k, Dense)
        return signature if plain else f"{signature} (q-k {a.q.short}-{a.k.short})"


def field_names(part: object) -> list[str]:
    """Names of the fields of a part, for error messages."""
    return [f.name for f in fields(part)]  # type: ignore[arg-type]
