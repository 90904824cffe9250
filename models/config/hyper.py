"""Residual topologies with n parallel streams: hyper-connections and their doubly stochastic descendants."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from streamscope.cli.errors import InputError
from streamscope.models.config.parts import Residual


@dataclass(frozen=True, kw_only=True)
class Hyper(Residual):
    """X ← H_res X + H_post ⊗ F(H_pre X) around each branch F, X of n streams (SPEC §2)."""

    streams: ClassVar[tuple[str, ...]] = ("streams",)
    n: int = 4
    """Number of streams."""
    dynamic: bool = True
    """Coefficients depend on the token; false leaves their biases alone."""
    dyn_act: Literal["tanh", "none"] = "none"
    """What bounds the dynamic terms: a tanh (the KromCanon port, HC) or nothing (KromHC, mHC)."""
    post_input: Literal["same", "mixed"] = "same"
    """H_post is computed from X, as the others, or from H_res X (the KromCanon port)."""
    reduce: Literal["sum", "mean"] = "sum"
    """What the head reads."""
    alpha: float = 0.01
    """Initial scale of the dynamic terms."""
    freeze_res: bool = False
    """H_res = I: streams are read and written but never mixed."""
    hc_dtype: Literal["fp32", "bf16"] = "fp32"
    """Storage of the parameters; they are computed with in fp32. In bf16 a step of 0.005 never moves a bias of −8."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"residual.n must be at least 1, got {self.n}")


@dataclass(frozen=True, kw_only=True)
class HC(Hyper):
    """Hyper-connections: unconstrained matrices, the identity at first (arXiv 2409.19606)."""

    kind: ClassVar[str] = "hc"
    dyn_act: Literal["tanh", "none"] = "tanh"
    """What bounds the dynamic terms."""
    norm: Literal["rms", "layer"] = "rms"
    """Norm of each stream before the dynamic terms: as in its public code, or as in the paper."""


@dataclass(frozen=True, kw_only=True)
class Stochastic(Hyper):
    """H_res is doubly stochastic: mixing neither grows nor shrinks the mean of the streams."""

    b_res: float = -8.0
    """Initial bias of every way to mix, beside 0 for the identity; 0, −1 and −2 mix from the start."""


@dataclass(frozen=True, kw_only=True)
class MHC(Stochastic):
    """mHC: H_res by Sinkhorn normalisation of an n × n matrix (arXiv 2512.24880)."""

    kind: ClassVar[str] = "mhc"
    iterations: int = 20
    """Sinkhorn iterations, columns then rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise InputError(f"residual.iterations must be at least 1, got {self.iterations}")


@dataclass(frozen=True, kw_only=True)
class MHCLite(Stochastic):
    """mHC-lite: H_res as a convex sum of all n! permutations."""

    kind: ClassVar[str] = "mhc_lite"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n > 5:
            raise InputError(f"residual.n={self.n}: mhc_lite sums over n! permutations, at most 5 streams; use kromhc")


@dataclass(frozen=True, kw_only=True)
class KromHC(Stochastic):
    """KromHC: H_res as a Kronecker product of 2 × 2 matrices [[p, 1−p], [1−p, p]] (arXiv 2601.21579)."""

    kind: ClassVar[str] = "kromhc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 2 or self.n & (self.n - 1):
            raise InputError(f"residual.n={self.n}: kromhc multiplies 2 x 2 matrices, n must be a power of 2 from 2")

    @property
    def factors(self) -> int:
        """K = log2 n."""
        return self.n.bit_length() - 1
