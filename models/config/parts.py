"""The parts of a configuration that come in kinds: projections, norms, positions, residual topologies."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from streamscope.cli.bounds import Bounds, NotNegative, Whole, check
from streamscope.cli.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Part:
    """Base of all parts. `kind` is its name in JSON files and in `--set`.

    Raises `InputError` for a number that is not finite, or outside the `Bounds` of its field.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        check(self, lambda name: f"{self.kind}.{name}", nested=False)


@dataclass(frozen=True, kw_only=True)
class Init(Part):
    """The rule for the initial weights of a map or a table; `models.layers.initialisation.fill` draws them.

    The fan-in is the number of inputs that one output sums: d_in for a dense map, d_in / H for an independent one, H
    for a Kronecker one, D for a table (the unembedding sums over the width).
    """


@dataclass(frozen=True, kw_only=True)
class Normal(Init):
    """N(0, std), independent of the fan-in (GPT-2)."""

    kind: ClassVar[str] = "normal"
    std: NotNegative | None = None
    """σ; none: the model's init_std."""


@dataclass(frozen=True, kw_only=True)
class Scaled(Init):
    """Base of the rules that preserve scale: an output is about `gain` times as large as an input."""

    gain: NotNegative = 1.0
    """Factor on the weights."""


@dataclass(frozen=True, kw_only=True)
class FanInUniform(Scaled):
    """U(±gain / sqrt(fan-in)), so σ = gain / sqrt(3 fan-in): the default of PyTorch's and MLX's Linear."""

    kind: ClassVar[str] = "fan_in_uniform"


@dataclass(frozen=True, kw_only=True)
class FanInNormal(Scaled):
    """N(0, gain / sqrt(fan-in)): at gain 1, outputs are as large as inputs (MLX's Embedding, whose fan-in is D)."""

    kind: ClassVar[str] = "fan_in_normal"


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Scaled):
    """gain times a matrix with orthonormal rows or columns (whichever are fewer); each block of an independent map."""

    kind: ClassVar[str] = "orthogonal"


@dataclass(frozen=True, kw_only=True)
class Initial(Part):
    """Initial weights of the parts that have no rule of their own (such as `attention.v.init`)."""

    kind: ClassVar[str] = "initial"
    weights: Init = Normal()
    """Dense, independent and Kronecker maps."""
    embed: Init = Normal()
    """The token embedding and an untied unembedding."""
    positions: Init = Normal()
    """A learned position table."""
    head: Literal["own", "copy"] = "own"
    """Initial untied unembedding: its own random numbers, or a copy of the embedding."""
    scale_residual: bool = True
    """Divide the initial attention.o and mlp.down, which write to the residual stream, by sqrt(2 L), as GPT-2 does."""


@dataclass(frozen=True, kw_only=True)
class Projection(Part):
    """One linear map D_in -> D_out between H channels; its kind says which channels may exchange information."""

    short: ClassVar[str]
    mix: ClassVar[str | None] = None
    """Shape of the mixing matrix that gets a hook; None where a kind has no such matrix."""

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        """Raise `InputError` if this kind cannot map d_in to d_out."""


@dataclass(frozen=True, kw_only=True)
class Identity(Projection):
    """The identity y = x, without parameters; for square maps only."""

    kind: ClassVar[str] = "identity"
    short: ClassVar[str] = "id"

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        _square(self, name, d_in, d_out)


@dataclass(frozen=True, kw_only=True)
class Weighted(Projection):
    """Base of the projections with plain weights."""

    bias: bool = False
    """Add a bias."""
    init: Init | None = None
    """Initial weights; none: the model's init.weights."""


@dataclass(frozen=True, kw_only=True)
class Independent(Weighted):
    """Independent channels, y_h = x_h W_h: H · (d_in/H) · (d_out/H) parameters (DST Eq. 4)."""

    kind: ClassVar[str] = "independent"
    short: ClassVar[str] = "ind"
    mix: ClassVar[str | None] = "B H in out"

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        if d_in % n_heads or d_out % n_heads:
            raise InputError(
                f"{name}: independent mixing needs both widths divisible by the {n_heads} heads, got {d_in} -> {d_out}"
            )


@dataclass(frozen=True, kw_only=True)
class Kronecker(Weighted):
    """Weighted sums of channels, y_k = Σ_h W_kh x_h, or W ⊗ I: H² parameters; square maps only (DST Eq. 5)."""

    kind: ClassVar[str] = "kronecker"
    short: ClassVar[str] = "kron"
    mix: ClassVar[str | None] = "B H H"

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        _square(self, name, d_in, d_out)


@dataclass(frozen=True, kw_only=True)
class Dense(Weighted):
    """A dense map y = x W between all channels: d_in · d_out parameters (DST Eq. 6)."""

    kind: ClassVar[str] = "dense"
    short: ClassVar[str] = "dns"


@dataclass(frozen=True, kw_only=True)
class Hdpl(Projection):
    """Block-diagonal detail and variational global path: y = x W_block + W_dec SiLU(z), z ~ N(μ, σ²) (HDPL §2.1)."""

    kind: ClassVar[str] = "hdpl"
    short: ClassVar[str] = "hdpl"
    rank: int = 0
    """Latent width R; 0: a quarter of the narrower side (HDPL: 128 of 512)."""
    groups: int = 0
    """Blocks K of the detail path; 0: one per head (HDPL: 8 blocks, 8 heads)."""
    dirac: Literal["first", "every"] = "first"
    """Blocks of a square map that start as the identity: the authors' dirac_(groups=1), or dirac_(groups=K)."""
    kl_weight: NotNegative = 1e-3
    """β of HDPL Eq. 9."""
    kl: Literal["clamp", "free_bits"] = "clamp"
    """min(KL, ln 2) as printed (HDPL Eq. 9), or max(KL, ln 2), the usual free bits."""

    def latent_width(self, d_in: int, d_out: int) -> int:
        """Latent width R."""
        return self.rank or min(d_in, d_out) // 4

    def blocks(self, n_heads: int) -> int:
        """Number of blocks K."""
        return self.groups or n_heads

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        r, k = self.latent_width(d_in, d_out), self.blocks(n_heads)
        if not 1 <= r < min(d_in, d_out):
            raise InputError(f"{name}: a latent of {r} is not a bottleneck between {d_in} and {d_out}; set {name}.rank")
        if k < 1 or d_in % k or d_out % k:
            raise InputError(
                f"{name}: the detail path needs both widths divisible by its {k} blocks, got {d_in} -> {d_out}; "
                f"set {name}.groups"
            )


def _square(spec: Projection, name: str, d_in: int, d_out: int) -> None:
    if d_in != d_out:
        raise InputError(
            f"{name}: {spec.kind} mixing keeps the width, but this projection maps {d_in} to {d_out}; "
            "use independent or dense"
        )


@dataclass(frozen=True, kw_only=True)
class Norm(Part):
    """Base of the normalisations over the model width."""

    eps: float = 1e-5
    """Added to the variance."""


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Norm):
    """LayerNorm, γ (x − mean) / sqrt(var + eps) + β over all D."""

    kind: ClassVar[str] = "layer"


@dataclass(frozen=True, kw_only=True)
class ChannelLayerNorm(Norm):
    """LayerNorm of each head's d_h dimensions separately, with γ_h, β_h (DST Eq. 13)."""

    kind: ClassVar[str] = "channel"


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Norm):
    """RMSNorm, γ x / sqrt(mean(x²) + eps)."""

    kind: ClassVar[str] = "rms"


@dataclass(frozen=True, kw_only=True)
class Positions(Part):
    """Base of the position encodings."""

    table: ClassVar[bool] = False  # adds a learned table to the embedding
    rotates: ClassVar[bool] = False  # changes q and k
    slopes: ClassVar[bool] = False  # adds −m_h (q − k) to the scores


@dataclass(frozen=True, kw_only=True)
class Stretch(Part):
    """Slower rotations for contexts longer than in training, by Llama 3.1's rule.

    A frequency θ of wavelength λ = 2π/θ becomes θ ((1 − s)/factor + s), with s = (original/λ − low)/(high − low)
    clamped to [0, 1]. Short waves stay, waves longer than original/low become `factor` times as long, and those between
    are blended. With original = 0 all waves become `factor` times as long (linear scaling).
    """

    kind: ClassVar[str] = "stretch"
    factor: float
    """Factor by which the longest waves are lengthened."""
    original: int
    """Context length in training, in tokens; 0: stretch every wave equally."""
    low: float = 1.0
    """Waves longer than original/low are stretched by the full factor."""
    high: float = 4.0
    """Waves shorter than original/high are unchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor <= 0 or self.original < 0 or not 0 <= self.low < self.high:
            raise InputError(
                f"stretched positions need factor > 0, original >= 0 and 0 <= low < high, got {self.factor}, "
                f"{self.original}, {self.low}, {self.high}"
            )


@dataclass(frozen=True, kw_only=True)
class Rope(Positions):
    """Rotary positions, half-rotate layout."""

    kind: ClassVar[str] = "rope"
    rotates: ClassVar[bool] = True
    base: float = 10_000.0
    """Wavelength base θ."""
    fraction: float = 1.0
    """Fraction of each head's width that is rotated (Canon recommends 0.25)."""
    stretch: Stretch | None = None
    """Slower rotations for a longer context than in training."""
    skip: Whole = 0
    """k: layers k, 2k, …, counted from 1, are not rotated and have no positions (SmolLM3); 0: every layer is."""
    local_base: NotNegative = 0.0
    """θ of the layers with a window, which are not stretched either (Gemma 3); 0: that of all layers."""


@dataclass(frozen=True, kw_only=True)
class Alibi(Positions):
    """ALiBi: biases −m_h (q − k) added to the scores, with m_h by the rule of the paper."""

    kind: ClassVar[str] = "alibi"
    slopes: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Learned(Positions):
    """A learned table [n_ctx, D] added to the token embedding."""

    kind: ClassVar[str] = "learned"
    table: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class NoPositions(Positions):
    """No position information except the causal mask."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class Canon(Part):
    """Short causal convolutions, one kernel per channel, inside the branches (SPEC §1.3, §3; PhysicsLM4).

    Places: A, the normed input of Q and K, and of V if V shares that norm (values with their own norm, or raw values,
    are not convolved); B, queries, keys and values, before heads and positions; C, the normed input of the FFN; D, the
    input of the activation (in a gated FFN, the gate and the linear half). A window of packed documents is one
    sequence, as for attention: the last k−1 tokens of a document reach the next document.
    """

    kind: ClassVar[str] = "canon"
    places: str = "ABCD"
    """Places of the convolutions: any of A, B, C, D."""
    kernel: Annotated[int, Bounds(low=2, high=4)] = 4
    """Kernel size k, 2 to 4: a position and the k−1 before it."""
    activation: Literal["none", "silu"] = "none"
    """Activation after the convolution."""
    residual: bool = True
    """Add the input to the convolution."""
    init: Literal["uniform", "normal"] = "uniform"
    """Initial kernels: U(±1/sqrt(k)) or N(0, init_std)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.places or list(self.places) != sorted(set(self.places) & set("ABCD")):
            raise InputError(f"canon.places must be some of A, B, C, D in this order, got {self.places!r}")


@dataclass(frozen=True, kw_only=True)
class Residual(Part):
    """Base of the residual topologies. `streams` are the names in the hooks, () for one stream."""

    streams: ClassVar[tuple[str, ...]] = ()

    @property
    def value_path(self) -> Literal["shared", "own", "raw"]:
        """Norm of the values' input: shared with Q and K, its own, or none (raw)."""
        return "shared"


@dataclass(frozen=True, kw_only=True)
class Single(Residual):
    """One residual stream, as in a standard pre-norm transformer."""

    kind: ClassVar[str] = "single"
    order: Literal["sequential", "parallel"] = "sequential"
    """sequential: the FFN sees the attention update of its layer; parallel: both branches read the same (GPT-NeoX)."""


@dataclass(frozen=True, kw_only=True)
class DualStream(Residual):
    """Base of the two-stream topologies, x = x_t + x_e (DST Eq. 1)."""

    streams: ClassVar[tuple[str, ...]] = ("token", "context")
    values: Literal["token", "combined"] = "token"
    """Input of the values: x_t (DST Eq. 8) or x_t + x_e (PLS Eq. 5)."""
    value_norm: bool = True
    """Normalise the input of the values (DST Eq. 8), or not (DST Eq. 2, LFA Eq. 14)."""
    order: Literal["sequential", "parallel"] = "sequential"
    """sequential: the FFN sees the attention update of its layer (DST Alg. 1); parallel: DST Eq. 3."""

    @property
    def value_path(self) -> Literal["shared", "own", "raw"]:
        if not self.value_norm:
            return "raw"
        return "own" if self.values == "token" else "shared"


@dataclass(frozen=True, kw_only=True)
class TokenFactor(DualStream):
    """Attention writes to x_t, the FFN writes to x_e (DST §2.1)."""

    kind: ClassVar[str] = "token_factor"


@dataclass(frozen=True, kw_only=True)
class FrozenToken(DualStream):
    """x_t stays the embedding; attention and FFN write to x_e (DST §2.1, LFA Eq. 18–21, CASCADE)."""

    kind: ClassVar[str] = "frozen_token"
    detach_token: bool = False
    """Stop gradients through x_t into the embedding (LFA "no gradient flow into X_T")."""
