"""Linear maps between channels (identity, independent, Kronecker, dense: DST §2.2, Table 7) and how weights start.

Every projection maps [B, T, d_in] to [B, T, d_out] and, if linear, has `matrix` [d_in, d_out]. A projection with a
per-head mixing matrix computes with the matrix that its hook returns.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from streamscope.models import config as c
from streamscope.models.hooks.points import OnDemand

ALIGNMENT = 8
"""bf16 numbers in 16 bytes; tensor cores are fast only for rows that are a multiple of it."""


def gains_from_padding(x: Tensor) -> bool:
    """Whether padding speeds up products with x: on CUDA in half precision, unless compiled (the compiler pads)."""
    half = x.dtype.itemsize == 2 or torch.is_autocast_enabled(x.device.type)
    return x.device.type == "cuda" and half and not torch.compiler.is_compiling()


ONEDNN = 2**18
"""Least size of a weight whose products oneDNN computes without a gradient on a CPU, where it is faster than MKL: one
core of an AMD EPYC with AVX-512, width 576: 104 against 93 GFLOPS in the FFN, 98 against 67 with 49,152 logits."""


def prefers_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether x Wᵀ is computed by oneDNN: in fp32, without autocast, gradients (forward-mode too) and compilation."""
    return (
        weight.numel() >= ONEDNN
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())
        and torch.backends.mkldnn.is_available()
        and all(unpack_dual(t).tangent is None for t in (x, weight))  # its product would drop them in silence
    )


def linear(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """x Wᵀ + b by oneDNN for large weights, and padded with zeros (DST's 516) on a GPU, where that is faster."""
    if prefers_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    more_out, more_in = -weight.shape[0] % ALIGNMENT, -weight.shape[1] % ALIGNMENT
    if not (more_in or more_out) or not gains_from_padding(x):
        return F.linear(x, weight, bias)
    y = F.linear(F.pad(x, (0, more_in)), F.pad(weight, (0, more_in, 0, more_out)))[..., : weight.shape[0]]
    return y if bias is None else y + bias.to(y.dtype)


class Projection(nn.Module):
    """Base of the projections. `spec` is the configuration, `n_heads` the number H of channels."""

    weight: nn.Parameter
    default_init: c.Init = c.Normal()  # `WithProjections.add_projection` sets the model's

    def __init__(self, spec: c.Projection, d_in: int, d_out: int, n_heads: int) -> None:
        super().__init__()
        self.spec, self.d_in, self.d_out, self.n_heads = spec, d_in, d_out, n_heads
        self.init_scale = self.input_size = 1.0
        self.fan_in = d_in  # number of inputs that one output sums
        self.bias = nn.Parameter(torch.zeros(d_out)) if getattr(spec, "bias", False) else None

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        """Draw weights by the rule of the spec or the model, times `init_scale`, and set biases to 0."""
        if isinstance(self.spec, c.Weighted):
            rule, sizes = self.spec.init or self.default_init, {"scale": self.init_scale, "input_size": self.input_size}
            fill(self.weight, rule, self.fan_in, std=std, generator=generator, **sizes)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, mix: OnDemand | None = None) -> Tensor:
        """Map x [B, T, d_in] to [B, T, d_out]; `mix` is the parent's hook on the mixing matrix."""
        raise NotImplementedError

    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        """The equivalent dense matrix, without the bias."""
        raise NotImplementedError

    def bias_or_zeros(self) -> Float[Tensor, " d_out"]:
        if self.bias is not None:
            return self.bias
        like = next(iter((*self.parameters(), *self.buffers())))
        return torch.zeros(self.d_out, dtype=like.dtype, device=like.device)

    def flops(self) -> int:
        """FLOPs per token; a multiply-add counts as two. Each weight is used once, unless a kind says otherwise."""
        return 2 * self.weight.numel() if isinstance(self.spec, c.Weighted) else 0

    def extra_repr(self) -> str:
        return f"{self.d_in} -> {self.d_out}, {self.n_heads} heads"


@c.Identity.computed_by
class IdentityProjection(Projection):
    """The identity y = x."""

    like: Tensor

    def __init__(self, spec: c.Identity, d_in: int, d_out: int, n_heads: int) -> None:
        super().__init__(spec, d_in, d_out, n_heads)
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the dtype and device

    def forward(self, x: Tensor, mix: OnDemand | None = None) -> Tensor:
        return x

    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        return torch.eye(self.d_in, dtype=self.like.dtype, device=self.like.device)


@c.Dense.computed_by
class DenseProjection(Projection):
    """A dense map y = x W (DST Eq. 6). `weight` is [d_out, d_in], as in `nn.Linear`."""

    def __init__(self, spec: c.Dense, d_in: int, d_out: int, n_heads: int) -> None:
        super().__init__(spec, d_in, d_out, n_heads)
        self.weight = nn.Parameter(torch.empty(d_out, d_in))

    def forward(self, x: Tensor, mix: OnDemand | None = None) -> Tensor:
        return linear(x, self.weight, self.bias)

    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        return self.weight.T


class MixedProjection(Projection):
    """Base of the projections whose `weight` is a mixing matrix with a hook."""

    plain: str
    batched: str

    def forward(self, x: Tensor, mix: OnDemand | None = None) -> Tensor:
        x = x.unflatten(-1, (self.n_heads, -1))  # [B, T, H, i]
        if mix is not None and mix._forward_hooks and mix.listening:
            # a clone, so that a hook cannot write into the parameter through an expanded view
            w = mix(self.weight.expand(x.shape[0], *self.weight.shape).clone())
            y = torch.einsum(self.batched, x, w)
        else:
            y = torch.einsum(self.plain, x, self.weight)
        y = y.flatten(-2)
        return y if self.bias is None else y + self.bias


@c.Independent.computed_by
class IndependentProjection(MixedProjection):
    """Independent channels, y_btho = Σ_i x_bthi W_hio (DST Eq. 4). `weight` is [H, d_in/H, d_out/H]."""

    plain, batched = "bthi,hio->btho", "bthi,bhio->btho"

    def __init__(self, spec: c.Independent, d_in: int, d_out: int, n_heads: int) -> None:
        super().__init__(spec, d_in, d_out, n_heads)
        self.fan_in = d_in // n_heads
        self.weight = nn.Parameter(torch.empty(n_heads, self.fan_in, d_out // n_heads))

    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        return torch.block_diag(*self.weight)


@c.Kronecker.computed_by
class KroneckerProjection(MixedProjection):
    """Weighted sums of channels, y_btki = Σ_h x_bthi W_kh (DST Eq. 5). `weight` is [H to, H from]."""

    plain, batched = "bthi,kh->btki", "bthi,bkh->btki"

    def __init__(self, spec: c.Kronecker, d_in: int, d_out: int, n_heads: int) -> None:
        super().__init__(spec, d_in, d_out, n_heads)
        self.fan_in = n_heads
        self.weight = nn.Parameter(torch.empty(n_heads, n_heads))

    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        eye = torch.eye(self.d_in // self.n_heads, dtype=self.weight.dtype, device=self.weight.device)
        return torch.kron(self.weight.T.contiguous(), eye)

    def flops(self) -> int:
        return 2 * self.n_heads * self.d_in


@torch.no_grad()
def fill(
    weight: Tensor, rule: c.Init, fan_in: int, *, std: float, generator: torch.Generator, scale: float = 1.0,
    input_size: float = 1.0,
) -> None:  # fmt: skip
    """Draw `weight` in place by `rule`, times `scale`; a weight with three axes is a stack of independent blocks.

    `std` is the σ of a normal rule that has none; `input_size` the s of `UnitOutput`, its input's root mean square.
    """
    if isinstance(rule, c.Normal):
        nn.init.normal_(weight, std=scale * (std if rule.std is None else rule.std), generator=generator)
    elif isinstance(rule, c.FanInNormal):
        nn.init.normal_(weight, std=scale * rule.gain / math.sqrt(fan_in), generator=generator)
    elif isinstance(rule, c.UnitOutput):
        nn.init.normal_(weight, std=scale * rule.gain / (input_size * math.sqrt(fan_in)), generator=generator)
    elif isinstance(rule, c.FanInUniform):
        bound = scale * rule.gain / math.sqrt(fan_in)
        nn.init.uniform_(weight, -bound, bound, generator=generator)
    elif isinstance(rule, c.Orthogonal):
        for block in weight if weight.ndim == 3 else [weight]:
            nn.init.orthogonal_(block, gain=scale * rule.gain, generator=generator)


def embedding_size(config: c.ModelConfig) -> float:
    """Root mean square of the initial embedding that enters layer 0: tokens times `embed_scale`, plus positions."""

    def size(rule: c.Init, rows: int) -> float:
        if isinstance(rule, c.Normal):
            return config.init_std if rule.std is None else rule.std
        assert isinstance(rule, c.Scaled)
        if isinstance(rule, c.Orthogonal):
            return rule.gain / math.sqrt(max(rows, config.d_model))
        return rule.gain / math.sqrt(config.d_model * (3 if isinstance(rule, c.FanInUniform) else 1))

    tokens = config.embed_scale * size(config.init.embed, config.d_vocab)
    learned = isinstance(config.positions, c.Learned)
    return math.hypot(tokens, size(config.init.positions, config.n_ctx)) if learned else tokens


class WithProjections(nn.Module):
    """A module with named projections, and `hook_{name}_mix` for each one with a mixing matrix."""

    def add_projection(
        self, name: str, spec: c.Projection, d_in: int, d_out: int, config: c.ModelConfig, *, writes: bool = False
    ) -> None:
        """Create `self.{name}` and, for a kind with a mixing matrix, `self.hook_{name}_mix`. One that `writes` to the
        residual stream starts smaller, by 1 / sqrt(2 L) as in GPT-2, with `init.scale_residual`."""
        if spec.mix is not None:
            self.add_module(f"hook_{name}_mix", OnDemand())
        projection = spec.module(spec, d_in, d_out, config.n_heads)
        if writes and config.init.scale_residual:
            projection.init_scale = 1.0 / math.sqrt(2 * config.n_layers)
        projection.default_init = config.init.weights
        self.add_module(name, projection)

    def project(self, name: str, x: Tensor) -> Tensor:
        return self._modules[name](x, self._modules.get(f"hook_{name}_mix"))  # type: ignore[misc]
