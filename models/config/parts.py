"""The parts of a configuration that come in kinds: projections, norms, positions, residual topologies."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from streamscope.cli.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Part:
    """Base of all parts. `kind` is the name used in JSON files and in `--set`."""

    kind: ClassVar[str]


# ---- how weights start -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Init(Part):
    """How the weights of a map or a table start; `models.layers.initialisation.fill` draws them.

    The fan-in is how many inputs one output sums: d_in of a dense map, d_in / H of an independent one, H of a
    Kronecker one, D of a table (the head sums over the width).
    """


@dataclass(frozen=True, kw_only=True)
class Normal(Init):
    """N(0, std), whatever the fan-in (GPT-2)."""

    kind: ClassVar[str] = "normal"
    std: float | None = None
    """σ; none means the model's init_std."""

    def __post_init__(self) -> None:
        if self.std is not None and self.std < 0:
            raise InputError(f"the std of an initialisation must not be negative, got {self.std}")


@dataclass(frozen=True, kw_only=True)
class Scaled(Init):
    """Base of the rules that keep the size of what passes through: an output is about `gain` times an input."""

    gain: float = 1.0
    """Factor on the weights."""

    def __post_init__(self) -> None:
        if self.gain < 0:
            raise InputError(f"the gain of an initialisation must not be negative, got {self.gain}")


@dataclass(frozen=True, kw_only=True)
class FanInUniform(Scaled):
    """U(±gain / sqrt(fan-in)), of σ gain / sqrt(3 fan-in): the default of PyTorch's and MLX's Linear."""

    kind: ClassVar[str] = "fan_in_uniform"


@dataclass(frozen=True, kw_only=True)
class FanInNormal(Scaled):
    """N(0, gain / sqrt(fan-in)): outputs as large as inputs at gain 1. MLX's Embedding, with the width as fan-in."""

    kind: ClassVar[str] = "fan_in_normal"


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Scaled):
    """gain times an orthogonal matrix (rows or columns, whichever are fewer); each block of an independent map."""

    kind: ClassVar[str] = "orthogonal"


@dataclass(frozen=True, kw_only=True)
class Initial(Part):
    """How the parts of a model start that do not say it themselves, as `attention.v.init` does for the values."""

    kind: ClassVar[str] = "initial"
    weights: Init = Normal()
    """Dense, independent and Kronecker maps."""
    embed: Init = Normal()
    """The token embedding and an untied head."""
    positions: Init = Normal()
    """A learned position table."""
    head: Literal["own", "copy"] = "own"
    """An untied head starts with numbers of its own, or as a copy of the embedding."""
    scale_residual: bool = True
    """Divide what writes to the residual, attention.o and mlp.down, by sqrt(2 L), as GPT-2 does, whatever the rule."""


# ---- projections: the mixing strategies of DST §2.2 --------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Projection(Part):
    """One linear map D_in -> D_out seen as H channels; how information crosses between channels."""

    short: ClassVar[str]
    mix: ClassVar[str | None] = None
    """Shape of the mixing matrix that gets a hook, None for kinds without one."""

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
    mix: ClassVar[str | None] = "B H in out"
    bias: bool = False
    """Add a bias."""
    init: Init | None = None
    """How the weights start; none means the model's init.weights."""

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        if d_in % n_heads or d_out % n_heads:
            raise InputError(
                f"{name}: independent mixing needs both widths divisible by the {n_heads} heads, got {d_in} -> {d_out}"
            )


@dataclass(frozen=True, kw_only=True)
class Kronecker(Projection):
    """y_k = Σ_h W_kh x_h, that is W ⊗ I: H² parameters (DST Eq. 5). Square maps only."""

    kind: ClassVar[str] = "kronecker"
    short: ClassVar[str] = "kron"
    mix: ClassVar[str | None] = "B H H"
    bias: bool = False
    """Add a bias."""
    init: Init | None = None
    """How the weights start; none means the model's init.weights."""

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        _square(self, name, d_in, d_out)


@dataclass(frozen=True, kw_only=True)
class Dense(Projection):
    """y = x W: any channel may reach any other, d_in · d_out parameters (DST Eq. 6)."""

    kind: ClassVar[str] = "dense"
    short: ClassVar[str] = "dns"
    bias: bool = False
    """Add a bias."""
    init: Init | None = None
    """How the weights start; none means the model's init.weights."""


@dataclass(frozen=True, kw_only=True)
class Hdpl(Projection):
    """y = x W_block + W_dec SiLU(z), z ~ N(μ(x), σ²(x)): block-diagonal detail, variational global path (HDPL §2.1)."""

    kind: ClassVar[str] = "hdpl"
    short: ClassVar[str] = "hdpl"
    rank: int = 0
    """Latent width R; 0 means a quarter of the narrower side (HDPL: 128 of 512)."""
    groups: int = 0
    """Blocks K of the detail path; 0 means one per head (HDPL: 8 blocks, 8 heads)."""
    dirac: Literal["first", "every"] = "first"
    """Blocks of a square map that start as the identity: the authors' dirac_(groups=1), or dirac_(groups=K)."""
    kl_weight: float = 1e-3
    """β of HDPL Eq. 9."""
    kl: Literal["clamp", "free_bits"] = "clamp"
    """min(KL, ln 2) as printed (HDPL Eq. 9), or max(KL, ln 2), the usual free bits."""

    def latent_width(self, d_in: int, d_out: int) -> int:
        """R."""
        return self.rank or min(d_in, d_out) // 4

    def blocks(self, n_heads: int) -> int:
        """K."""
        return self.groups or n_heads

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        r, k = self.latent_width(d_in, d_out), self.blocks(n_heads)
        if not 1 <= r < min(d_in, d_out):
            raise InputError(f"{name}: a latent of {r} is no bottleneck between {d_in} and {d_out}; set {name}.rank")
        if k < 1 or d_in % k or d_out % k:
            raise InputError(
                f"{name}: the detail path needs both widths divisible by its {k} blocks, got {d_in} -> {d_out}; "
                f"set {name}.groups"
            )
        if self.kl_weight < 0:
            raise InputError(f"{name}.kl_weight must not be negative, got {self.kl_weight}")


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
    slopes: ClassVar[bool] = False  # adds −m_h (q − k) to the scores


@dataclass(frozen=True, kw_only=True)
class Stretch(Part):
    """Slower rotations for contexts longer than those of the training, by Llama 3.1's rule.

    A frequency θ of wavelength λ = 2π/θ becomes θ ((1 − s)/factor + s), s = (original/λ − low)/(high − low), held
    between 0 and 1: short waves stay, waves longer than original/low are `factor` times as long, those between are
    blended. With original = 0 all are `factor` times as long (linear scaling).
    """

    kind: ClassVar[str] = "stretch"
    factor: float
    """How many times as long the longest waves become."""
    original: int
    """The context of the training, in tokens; 0 stretches every wave alike."""
    low: float = 1.0
    """Waves longer than original/low are stretched whole."""
    high: float = 4.0
    """Waves shorter than original/high stay."""

    def __post_init__(self) -> None:
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
    """Share of each head's width that is rotated (Canon recommends 0.25)."""
    stretch: Stretch | None = None
    """Slower rotations, for a longer context than that of the training."""


@dataclass(frozen=True, kw_only=True)
class Alibi(Positions):
    """Linear biases −m_h (q − k) added to the scores, m_h by the rule of the ALiBi paper."""

    kind: ClassVar[str] = "alibi"
    slopes: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Learned(Positions):
    """A learned table [n_ctx, D] added to the token embedding."""

    kind: ClassVar[str] = "learned"
    table: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class NoPositions(Positions):
    """No position information but the causal mask."""

    kind: ClassVar[str] = "none"


# ---- Canon layers ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Canon(Part):
    """Short causal convolutions, one kernel per channel, inside the branches (SPEC §1.3, §3; PhysicsLM4).

    A: what Q and K read, after the norm, and V where it shares that norm; values with a norm of their own, or
    raw ones, keep their path untouched. B: queries, keys and values, before heads and positions. C: what the FFN
    reads, after the norm. D: what the activation reads, the gate and the linear half in a gated FFN. A window of
    packed documents is one sequence, here as for attention: the last k−1 tokens of a document reach the next.
    """

    kind: ClassVar[str] = "canon"
    places: str = "ABCD"
    """Any of A, B, C, D."""
    kernel: int = 4
    """k, 2 to 4: a position and the k−1 before it."""
    activation: Literal["none", "silu"] = "none"
    """Applied to the convolution."""
    residual: bool = True
    """Add the input to the convolution."""
    init: Literal["uniform", "normal"] = "uniform"
    """U(±1/sqrt(k)), or N(0, init_std)."""

    def __post_init__(self) -> None:
        if not self.places or list(self.places) != sorted(set(self.places) & set("ABCD")):
            raise InputError(f"canon.places must be some of A, B, C, D in this order, got {self.places!r}")
        if self.kernel not in (2, 3, 4):
            raise InputError(f"canon.kernel must be 2, 3 or 4, got {self.kernel}")


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
    order: Literal["sequential", "parallel"] = "sequential"
    """sequential: the FFN sees the attention's update of its layer; parallel: both read the same (GPT-NeoX)."""


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
