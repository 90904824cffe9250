"""The configuration of a model as nested, frozen, keyword-only data. Nothing here imports torch.

A `ModelConfig` consists of *parts*: small dataclasses with a `kind`. The module that implements a part is found by the
part's class (`Part.computed_by`). So a new projection, norm, position encoding or residual topology is one class
here and one where it is computed. The docstring under each field is its help text on the command line.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

from annotated_types import Ge, Le, Lt

from streamscope.cli.bounds import Count, NotNegative, Positive, Whole, check
from streamscope.cli.errors import InputError

WIDEST = 2**24
"""Larger sizes are rejected as typing mistakes."""
Size = Annotated[int, Ge(1), Le(WIDEST)]
Rate = Annotated[float, Ge(0), Lt(1)]
"""Dropout rate."""
M = TypeVar("M", bound=type)


# ---- parts in kinds: initial weights, projections, norms, positions, Canon layers ---------------------


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Part:
    """Base of all parts; a subclass is a frozen dataclass, and `class Dense(Weighted, kind="dense")` is one of a kind.

    `kind` is its name in JSON files and in `--set`; other keywords are values of the class too.
    """

    kind: ClassVar[str]
    module: ClassVar[Any]
    """The class that computes it."""
    kinds: ClassVar[dict[str, type["Part"]]] = {}
    """By kind, the class itself if it is of one, and the kinds that derive from it."""

    def __init_subclass__(cls, **constants: Any) -> None:
        for name, value in constants.items():
            setattr(cls, name, value)
        cls.kinds = {}
        for base in cls.__mro__ if "kind" in constants else ():
            if issubclass(base, Part):
                base.kinds[cls.kind] = cls
        dataclass(frozen=True, kw_only=True)(cls)

    __post_init__ = check  # type: ignore[misc]

    @classmethod
    def computed_by(cls, module: M) -> M:
        """Class decorator: `part.module(part, …)` makes the module, as in `@Kronecker.computed_by` on a projection."""
        cls.module = module
        return module


class Init(Part):
    """The rule for the initial weights of a map or a table; `models.layers.projections.fill` draws them.

    The fan-in is the number of inputs that one output sums: d_in for a dense map, d_in / H for an independent one, H
    for a Kronecker one, D for a table (the unembedding sums over the width).
    """


class Normal(Init, kind="normal"):
    """N(0, std), independent of the fan-in (GPT-2)."""

    std: NotNegative | None = None
    """σ; none: the model's init_std."""


class Scaled(Init):
    """Base of the rules that preserve scale: an output is about `gain` times as large as an input."""

    gain: NotNegative = 1.0
    """Factor on the weights."""


class FanInUniform(Scaled, kind="fan_in_uniform"):
    """U(±gain / sqrt(fan-in)), so σ = gain / sqrt(3 fan-in): the default of PyTorch's and MLX's Linear."""


class FanInNormal(Scaled, kind="fan_in_normal"):
    """N(0, gain / sqrt(fan-in)): at gain 1, outputs are as large as inputs (MLX's Embedding, whose fan-in is D)."""


class UnitOutput(Scaled, kind="unit_output"):
    """N(0, gain / (s sqrt(fan-in))) for an input of size s: initial outputs of size `gain`.

    s is 1, the size of a normed input, except for values that read a raw stream: there it is the size of the initial
    embedding (`projections.embedding_size`). So raw values (LFA Eq. 2) start as large as normed ones (DST Eq. 8).
    """


class Orthogonal(Scaled, kind="orthogonal"):
    """gain times a matrix with orthonormal rows or columns (whichever are fewer); each block of an independent map."""


class Initial(Part, kind="initial"):
    """Initial weights of the parts that have no rule of their own (such as `attention.v.init`)."""

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


class Projection(Part):
    """One linear map D_in -> D_out between H channels; its kind says which channels may exchange information."""

    short: ClassVar[str]
    square: ClassVar[bool] = False
    """Whether the kind keeps the width."""
    mix: ClassVar[str | None] = None
    """Shape of the mixing matrix that gets a hook; None where a kind has no such matrix."""
    by_head: ClassVar[bool] = False
    """Whether the kind maps each head's share of the input to its share of the output."""

    def check(self, name: str, d_in: int, d_out: int, n_heads: int) -> None:
        """Raise `InputError` if this kind cannot map d_in to d_out."""
        if self.square and d_in != d_out:
            raise InputError(f"{name}: {self.kind} mixing keeps the width, but here {d_in} become {d_out}: use dense")
        if self.by_head and (d_in % n_heads or d_out % n_heads):
            raise InputError(f"{name}: {n_heads} independent heads do not divide both widths, {d_in} -> {d_out}")


class Identity(Projection, kind="identity", short="id", square=True):
    """The identity y = x, without parameters; for square maps only."""


class Weighted(Projection):
    """Base of the projections with plain weights."""

    bias: bool = False
    """Add a bias."""
    init: Init | None = None
    """Initial weights; none: the model's init.weights."""


class Independent(Weighted, kind="independent", short="ind", mix="B H in out", by_head=True):
    """Independent channels, y_h = x_h W_h: H · (d_in/H) · (d_out/H) parameters (DST Eq. 4)."""


class Kronecker(Weighted, kind="kronecker", short="kron", square=True, mix="B H H"):
    """Weighted sums of channels, y_k = Σ_h W_kh x_h, or W ⊗ I: H² parameters; square maps only (DST Eq. 5)."""


class Dense(Weighted, kind="dense", short="dns"):
    """A dense map y = x W between all channels: d_in · d_out parameters (DST Eq. 6)."""


class Hdpl(Projection, kind="hdpl", short="hdpl"):
    """Block-diagonal detail and variational global path: y = x W_block + W_dec SiLU(z), z ~ N(μ, σ²) (HDPL §2.1)."""

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
            raise InputError(f"{name}: {k} blocks do not divide both widths, {d_in} -> {d_out}; set {name}.groups")


class Norm(Part):
    """Base of the normalisations over the model width."""

    eps: NotNegative = 1e-5
    """Added to the variance."""


class LayerNorm(Norm, kind="layer"):
    """LayerNorm, γ (x − mean) / sqrt(var + eps) + β over all D."""


class ChannelLayerNorm(Norm, kind="channel"):
    """LayerNorm of each head's d_h dimensions separately, with γ_h, β_h (DST Eq. 13)."""


class RMSNorm(Norm, kind="rms"):
    """RMSNorm, γ x / sqrt(mean(x²) + eps)."""


class Positions(Part):
    """Base of the position encodings."""

    table: ClassVar[bool] = False  # adds a learned table to the embedding
    rotates: ClassVar[bool] = False  # changes q and k
    slopes: ClassVar[bool] = False  # adds −m_h (q − k) to the scores


class Stretch(Part, kind="stretch"):
    """Slower rotations for contexts longer than in training, by Llama 3.1's rule.

    A frequency θ of wavelength λ = 2π/θ becomes θ ((1 − s)/factor + s), with s = (original/λ − low)/(high − low)
    clamped to [0, 1]. Short waves stay, waves longer than original/low become `factor` times as long, and those between
    are blended. With original = 0 all waves become `factor` times as long (linear scaling).
    """

    factor: Positive
    """Factor by which the longest waves are lengthened."""
    original: Whole
    """Context length in training, in tokens; 0: stretch every wave equally."""
    low: NotNegative = 1.0
    """Waves longer than original/low are stretched by the full factor."""
    high: float = 4.0
    """Waves shorter than original/high are unchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise InputError(f"stretch.low must be below stretch.high, got {self.low} and {self.high}")


class Rope(Positions, kind="rope", rotates=True):
    """Rotary positions, half-rotate layout."""

    base: Positive = 10_000.0
    """Wavelength base θ."""
    fraction: float = 1.0
    """Fraction of each head's width that is rotated (Canon recommends 0.25)."""
    stretch: Stretch | None = None
    """Slower rotations for a longer context than in training."""
    skip: Whole = 0
    """k: layers k, 2k, …, counted from 1, are not rotated and have no positions (SmolLM3); 0: every layer is."""
    local_base: NotNegative = 0.0
    """θ of the layers with a window, which are not stretched either (Gemma 3); 0: that of all layers."""


class Alibi(Positions, kind="alibi", slopes=True):
    """ALiBi: biases −m_h (q − k) added to the scores, with m_h by the rule of the paper."""


class Learned(Positions, kind="learned", table=True):
    """A learned table [n_ctx, D] added to the token embedding."""


class NoPositions(Positions, kind="none"):
    """No position information except the causal mask."""


class Canon(Part, kind="canon"):
    """Short causal convolutions, one kernel per channel, inside the branches (SPEC §1.3, §3; PhysicsLM4).

    Places: A, the normed input of Q and K, and of V if V shares that norm (values with their own norm, or raw values,
    are not convolved); B, queries, keys and values, before heads and positions; C, the normed input of the FFN; D, the
    input of the activation (in a gated FFN, the gate and the linear half). A window of packed documents is one
    sequence, as for attention: the last k−1 tokens of a document reach the next document.
    """

    places: str = "ABCD"
    """Places of the convolutions: any of A, B, C, D."""
    kernel: Annotated[int, Ge(2), Le(4)] = 4
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


# ---- residual topologies ---------------------------------------------------------------------------


class Residual(Part):
    """Base of the residual topologies. `streams` are the names in the hooks, () for one stream."""

    streams: ClassVar[tuple[str, ...]] = ()

    @property
    def value_path(self) -> Literal["shared", "own", "raw"]:
        """Norm of the values' input: shared with Q and K, its own, or none (raw)."""
        return "shared"


class Single(Residual, kind="single"):
    """One residual stream, as in a standard pre-norm transformer."""

    order: Literal["sequential", "parallel"] = "sequential"
    """sequential: the FFN sees the attention update of its layer; parallel: both branches read the same (GPT-NeoX)."""


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


class TokenFactor(DualStream, kind="token_factor"):
    """Attention writes to x_t, the FFN writes to x_e (DST §2.1)."""


class FrozenToken(DualStream, kind="frozen_token"):
    """x_t stays the embedding; attention and FFN write to x_e (DST §2.1, LFA Eq. 18–21, CASCADE)."""

    detach_token: bool = False
    """Stop gradients through x_t into the embedding (LFA "no gradient flow into X_T")."""


class Hyper(Residual):
    """Hyper-connections, X ← H_res X + H_post ⊗ F(H_pre X), around each branch F on n streams X (SPEC §2)."""

    streams: ClassVar[tuple[str, ...]] = ("streams",)
    n: Count = 4
    """Number of streams."""
    dynamic: bool = True
    """Let the coefficients depend on the token; false: only their biases are used."""
    dyn_act: Literal["tanh", "none"] = "none"
    """Activation of the dynamic terms: tanh (the KromCanon port, HC) or none (KromHC, mHC)."""
    post_input: Literal["same", "mixed"] = "same"
    """Input of H_post: X, like the other coefficients, or H_res X (the KromCanon port)."""
    reduce: Literal["sum", "mean"] = "sum"
    """How the streams are combined for the readout."""
    alpha: float = 0.01
    """Initial scale of the dynamic terms."""
    freeze_res: bool = False
    """Fix H_res = I: streams are read and written but never mixed."""
    hc_dtype: Literal["fp32", "bf16"] = "fp32"
    """Storage dtype of the parameters; computation is in fp32. In bf16 a step of 0.005 never moves a bias of −8."""


class HC(Hyper, kind="hc"):
    """Hyper-connections with unconstrained matrices that start as the identity (arXiv 2409.19606)."""

    dyn_act: Literal["tanh", "none"] = "tanh"
    """Activation of the dynamic terms."""
    norm: Literal["rms", "layer"] = "rms"
    """Norm of each stream before the dynamic terms: rms as in the public code, layer as in the paper."""


class Stochastic(Hyper):
    """Base of the kinds with a doubly stochastic H_res: mixing preserves the mean of the streams."""

    b_res: float = -8.0
    """Initial logit of mixing, where the identity has logit 0; 0, −1 and −2 mix from the start."""


class MHC(Stochastic, kind="mhc"):
    """mHC: H_res is a Sinkhorn-normalised n × n matrix (arXiv 2512.24880)."""

    iterations: Count = 20
    """Sinkhorn iterations, columns then rows."""
    eps: NotNegative = 0.0
    """ε added to H_pre, to the columns' first shares and to all later sums (DeepSeek-V4: 1e-6)."""


class MHCLite(Stochastic, kind="mhc_lite"):
    """mHC-lite: H_res is a convex combination of all n! permutations."""

    n: Annotated[int, Ge(1), Le(5)] = 4
    """Number of streams, at most 5; kromhc takes more."""


class KromHC(Stochastic, kind="kromhc"):
    """KromHC: H_res is a Kronecker product of 2 × 2 matrices [[p, 1−p], [1−p, p]] (arXiv 2601.21579)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 2 or self.n & (self.n - 1):
            raise InputError(f"residual.n={self.n}: kromhc multiplies 2 x 2 matrices, so n must be 2, 4, 8, …")

    @property
    def factors(self) -> int:
        """K = log2 n."""
        return self.n.bit_length() - 1


# ---- a model ---------------------------------------------------------------------------------------


class Gate(Part, kind="gate"):
    """A gate g = σ(W s + b) that multiplies each head's output (DST Eq. 14, PLS A.4.2)."""

    shape: Literal["scalar", "vector"] = "scalar"
    """One number per head, or one per head dimension."""
    source: Literal["query", "normed", "value"] = "query"
    """The input s: the head's query before positions, the normed input, or the input of the values."""
    bias: bool = False
    """Add a bias."""
    init: Literal["zero", "normal"] = "zero"
    """Initial weights: 0 (g = 1/2) or N(0, 0.02)."""


class Attention(Part, kind="attention"):
    """Causal multi-head attention (DST Eq. 7–10)."""

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


class Mlp(Part, kind="mlp"):
    """The FFN (DST Eq. 11–12); with `gate`, act(gate x) ⊙ up x (SwiGLU with silu)."""

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


class Supervision(Part, kind="supervision"):
    """Per-layer supervision, L = L_final + strength · Σ_ℓ w_ℓ L^(ℓ) (DST Eq. 15, PLS A.5)."""

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
        depths = range(1, n_layers + 1)
        rules = {"linear": [depth / n_layers for depth in depths], "uniform": [1.0] * n_layers}
        weights = rules.get(self.weights) or [2.0 ** (depth - n_layers) for depth in depths]
        total = sum(weights) if self.normalise else 1.0
        return [self.strength * w / total for w in (weights if self.include_last else weights[:-1])]


class Readout(Part, kind="readout"):
    """Final norm, unembedding and per-layer readouts."""

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
    n_layers: Annotated[int, Ge(1), Le(4096)] = 6
    """Number of layers L."""
    d_model: Size = 192
    """Width D of the residual stream."""
    n_heads: Annotated[int, Ge(1), Le(2**16)] = 6
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
        attention, readout, residual, positions = self.attention, self.readout, self.residual, self.positions
        d, h, d_head, kv_heads, gate = self.d_model, self.n_heads, self.d_head, attention.kv_heads, attention.gate
        channels = "channel" in (self.norm.kind, readout.norm.kind)
        rotated = d_head * positions.fraction if isinstance(positions, Rope) else 0
        detached = isinstance(residual, FrozenToken) and residual.detach_token
        faults = [
            (kv_heads and h % kv_heads, f"{kv_heads} key-value heads do not divide the {h} heads"),
            (d % h and (not attention.d_head or gate or channels),
             f"{h} heads do not divide the width {d}; the nearest width that fits is {max(1, round(d / h)) * h}"),
            (gate and gate.source == "value" and d_head * h != d,
             f"attention.gate.source=value reads {d // h} dimensions per head, but a head has {d_head}: leave out "
             "attention.d_head, or choose another source"),
            (d_head > WIDEST, f"d_head must be at most {WIDEST:,}, got {d_head}"),
            (self.d_mlp > WIDEST, f"d_mlp must be at most {WIDEST:,}, got {self.d_mlp}"),
            (self.norm_place != "before" and (residual.streams or self.canon),
             f"norm_place={self.norm_place} needs one residual stream (residual=single) and no Canon layers"),
            (attention.softcap and positions.slopes,
             "attention.softcap is not defined with ALiBi: choose other positions"),
            (isinstance(positions, Rope) and (rotated % 2 or not 0 < rotated <= d_head),
             f"RoPE rotates pairs: {rotated:g} of {d_head} head dimensions is not an even number"),
            (detached and not readout.tied,
             "residual.detach_token with an untied head never trains the embedding: set readout.tied=true"),
            (readout.layer_norms == "own" and readout.supervision is None,
             "readout.layer_norms=own needs readout.supervision; otherwise these norms are never trained"),
        ]  # fmt: skip
        for is_wrong, line in faults:
            if is_wrong:
                raise InputError(line)
        for name, spec, d_in, d_out in self.projections():
            spec.check(name, d_in, d_out, self.n_heads)

    @cached_property
    def d_head(self) -> int:
        """Head width d_h, by default D / H."""
        return self.attention.d_head or self.d_model // self.n_heads

    @cached_property
    def kv_heads(self) -> int:
        """Number of key and value heads G."""
        return self.attention.kv_heads or self.n_heads

    @cached_property
    def d_mlp(self) -> int:
        """Hidden width of the FFN."""
        return self.mlp.d_mlp or 4 * self.d_model

    def projections(self) -> list[tuple[str, Projection, int, int]]:
        """(hook prefix inside a block, spec, d_in, d_out) of every projection, in order of use."""
        attn, mlp, d, m = self.attention, self.mlp, self.d_model, self.d_mlp
        q, kv = self.n_heads * self.d_head, self.kv_heads * self.d_head
        rows = [("attn.q", attn.q, d, q), ("attn.k", attn.k, d, kv), ("attn.v", attn.v, d, kv)]
        gate = [("mlp.gate", mlp.gate, d, m)] if mlp.gate is not None else []
        return [*rows, ("attn.o", attn.o, q, d), *gate, ("mlp.up", mlp.up, d, m), ("mlp.down", mlp.down, m, d)]

    def canon_widths(self) -> dict[str, int]:
        """Channels of each Canon layer of a block: {"a": D, "b": 3 D, "c": D, "d": M or 2 M}."""
        if self.canon is None:
            return {}
        d, m = self.d_model, self.d_mlp
        qkv = (self.n_heads + 2 * self.kv_heads) * self.d_head
        widths = {"a": d, "b": qkv, "c": d, "d": m if self.mlp.gate is None else 2 * m}
        return {place: widths[place] for place in self.canon.places.lower()}

    @property
    def mixing(self) -> str:
        """The signature `<v>-<o>/<up>-<down>` of DST §2.7; q and k are appended unless both are dense."""
        a, m = self.attention, self.mlp
        signature = f"{a.v.short}-{a.o.short}/{m.up.short}-{m.down.short}"
        plain = isinstance(a.q, Dense) and isinstance(a.k, Dense)
        return signature if plain else f"{signature} (q-k {a.q.short}-{a.k.short})"
