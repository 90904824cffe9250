"""Residual topologies with n parallel streams: hyper-connections and their doubly stochastic variants."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from streamscope.cli.bounds import Count, NotNegative
from streamscope.cli.errors import InputError
from streamscope.models.config.parts import Residual


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class HC(Hyper):
    """Hyper-connections with unconstrained matrices that start as the identity (arXiv 2409.19606)."""

    kind: ClassVar[str] = "hc"
    dyn_act: Literal["tanh", "none"] = "tanh"
    """Activation of the dynamic terms."""
    norm: Literal["rms", "layer"] = "rms"
    """Norm of each stream before the dynamic terms: rms as in the public code, layer as in the paper."""


@dataclass(frozen=True, kw_only=True)
class Stochastic(Hyper):
    """Base of the kinds with a doubly stochastic H_res: mixing preserves the mean of the streams."""

    b_res: float = -8.0
    """Initial logit of mixing, where the identity has logit 0; 0, −1 and −2 mix from the start."""


@dataclass(frozen=True, kw_only=True)
class MHC(Stochastic):
    """mHC: H_res is a Sinkhorn-normalised n × n matrix (arXiv 2512.24880)."""

    kind: ClassVar[str] = "mhc"
    iterations: Count = 20
    """Sinkhorn iterations, columns then rows."""
    eps: NotNegative = 0.0
    """ε added to H_pre, to the columns' first shares and to all later sums (DeepSeek-V4: 1e-6)."""


@dataclass(frozen=True, kw_only=True)
class MHCLite(Stochastic):
    """mHC-lite: H_res is a convex combination of all n! permutations."""

    kind: ClassVar[str] = "mhc_lite"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n > 5:
            raise InputError(
                f"residual.n={self.n}: mhc_lite sums over n! permutations and takes at most 5 streams; use kromhc"
            )


@dataclass(frozen=True, kw_only=True)
class KromHC(Stochastic):
    """KromHC: H_res is a Kronecker product of 2 × 2 matrices [[p, 1−p], [1−p, p]] (arXiv 2601.21579)."""

    kind: ClassVar[str] = "kromhc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 2 or self.n & (self.n - 1):
            raise InputError(f"residual.n={self.n}: kromhc multiplies 2 x 2 matrices, so n must be 2, 4, 8, …")

    @property
    def factors(self) -> int:
        """K = log2 n."""
        return self.n.bit_length() - 1
