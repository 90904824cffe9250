"""Hyper-connections: how a branch reads n streams, writes to them, and how the streams mix (SPEC §1.4, §2).

    h = Σ_s H_pre,s X_s        X ← H_res X + H_post ⊗ F(h)        X [B, T, N, D], F = norm, attention or FFN

The kinds differ in H_res and in the input of the coefficients. Coefficients are computed in at least fp32, also under
autocast and for bf16 parameters, and used in the dtype of the streams, which are the residual stream: fp32 under
autocast, bf16 in a model that is loaded as bf16. The embedding is repeated n times. The head reads the sum or mean of
the streams, which differ only in scale; a final norm removes it except for its ε.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from streamscope.models import config as c
from streamscope.models.hooks.points import ReadPoint
from streamscope.models.layers.residual import AttentionBranch, Block, MlpBranch
from streamscope.models.tensors import DTYPES

EPS = 1e-5
Dynamic = dict[str, Tensor] | None
"""Dynamic terms by coefficient, from `HyperConnection.dynamic`; None: no terms."""


def mix(weights: Float[Tensor, "B T M N"], X: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T M D"]:
    """Y_m = Σ_n w_mn X_n at every position."""
    if torch.compiler.is_compiling():  # fused: three times as fast as small products; eagerly five times as slow
        return (weights[..., None] * X[..., None, :, :]).sum(-2)
    return weights @ X


def spread(
    mixed: Float[Tensor, "B T N D"], post: Float[Tensor, "B T N"], update: Float[Tensor, "B T D"]
) -> Float[Tensor, "B T N D"]:
    """X_s + post_s · update for every stream s."""
    if torch.compiler.is_compiling():  # is fused
        return mixed + post.unsqueeze(-1) * update.unsqueeze(-2)
    B, T = mixed.shape[:2]  # a product, which needs no copy of the streams, nor do its gradients
    flat = torch.baddbmm(mixed.flatten(0, 1), post.flatten(0, 1).unsqueeze(-1), update.flatten(0, 1).unsqueeze(-2))
    return flat.unflatten(0, (B, T))


def rms_product(
    X: Float[Tensor, "*batch width"], W: Float[Tensor, "out width"], eps: float = EPS
) -> Float[Tensor, "*batch out"]:
    """(X / rms(X)) Wᵀ as (X Wᵀ) / rms(X), rms² = mean(x²) + ε over the last axis."""
    if torch.compiler.is_compiling():  # is fused
        return F.linear(X, W) * (X.square().mean(-1, keepdim=True) + eps).rsqrt()
    return _RmsProduct.apply(X, W, eps)


class _RmsProduct(torch.autograd.Function):
    """`rms_product` with gradient ∂X = (s g) W − X s³ (g · y) / width, s = 1 / rms(X), y = X Wᵀ, in two passes over
    X."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, W: Tensor, eps: float) -> Tensor:
        y = F.linear(X, W)
        s = (torch.linalg.vector_norm(X, dim=-1, keepdim=True).square() / X.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(X, W, y, s)
        return y * s

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        X, W, y, s = ctx.saved_tensors
        g = grads[0] * s
        grad_X = (g @ W).addcmul_(X, -(g * y).sum(-1, keepdim=True) * s.square() / X.shape[-1])
        return grad_X, g.flatten(0, -2).T @ X.flatten(0, -2), None


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


class HyperConnection(nn.Module):
    """Base of the connections. Module m = 2ℓ is attention, 2ℓ + 1 the FFN; it initially favours stream m mod n.

    `b` holds the biases of pre, post and res. With `dynamic` there are also `norm_weight`, the maps `W` [outputs,
    width], initially 0, and their scales `alpha`. With `freeze_res`, res has no parameters and H_res = I.
    """

    scale_of: ClassVar[dict[str, str]] = {"pre": "pre", "post": "post", "res": "res"}
    """The α that scales the dynamic term of each coefficient."""
    eps: float = EPS
    """ε of the norm before the dynamic terms; public code that divides by the norm has no ε."""
    biases: Callable[[], dict[str, Tensor]]
    normed_product: Callable[[Tensor, Tensor], Tensor]
    """norm(X) Wᵀ of X [B, T, N, D] and W [out, width]."""
    mixing: Callable[[Tensor], Tensor]
    """H_res [*B_T, N, N] of logits."""

    def __init__(self, spec: c.Hyper, d_model: int, module: int) -> None:
        super().__init__()
        self.spec, self.d_model, self.favoured = spec, d_model, module % spec.n
        self.width = d_model if isinstance(spec, c.HC) else spec.n * d_model  # of one normalised input
        self.hook_pre, self.hook_res, self.hook_post = ReadPoint(), ReadPoint(), ReadPoint()
        biases = {name: b for name, b in self.biases().items() if not (name == "res" and spec.freeze_res)}
        self.b = nn.ParameterDict({name: self._empty(*bias.shape) for name, bias in biases.items()})
        self.norm_weight = self._empty(self.width) if spec.dynamic else None
        inputs = spec.n * d_model // self.width  # normalised inputs of a token, which share the outputs
        maps = {name: bias.numel() // inputs for name, bias in biases.items()} if spec.dynamic else {}
        self.W = nn.ParameterDict({name: self._empty(out, self.width) for name, out in maps.items()})
        self.alpha = nn.ParameterDict({self.scale_of[name]: self._empty() for name in maps})

    def _empty(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, dtype=DTYPES[self.spec.hc_dtype]))

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        """Set W = 0, α = spec.alpha, γ = 1 and the biases of the kind, so coefficients start independent of the
        input."""
        start = self.biases()
        with torch.no_grad():
            for name, bias in self.b.items():
                bias.copy_(start[name])
            for p in self.W.values():
                p.zero_()
            for p in self.alpha.values():
                p.fill_(self.spec.alpha)
            if self.norm_weight is not None:
                self.norm_weight.fill_(1.0)

    def forward(self, X: Float[Tensor, "B T N D"], branch: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T N D"]:
        with torch.autocast(X.device.type, enabled=False):
            pre, _, post, mixed = self.coefficients(X)
            h = mix(pre.unsqueeze(-2), X).squeeze(-2)
        update = branch(h)
        with torch.autocast(X.device.type, enabled=False):
            return spread(mixed, post, update.to(mixed.dtype))

    def coefficients(self, X: Float[Tensor, "B T N D"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """H_pre [B, T, N], H_res [B, T, N, N], H_post [B, T, N] and H_res X, in the order of their hooks."""
        mixed_first = self.spec.post_input == "mixed"
        y = self.dynamic(X, [name for name in self.W if name != "post" or not mixed_first])
        pre = self._apply_hook("pre", self.H_pre(y), X)
        res = self._apply_hook("res", self.H_res(y), X)
        mixed = mix(res, X)
        if mixed_first:
            y = self.dynamic(mixed, [name for name in self.W if name == "post"])
        return pre, res, self._apply_hook("post", self.H_post(y), X), mixed

    def _apply_hook(self, name: str, H: Tensor, X: Tensor) -> Tensor:
        n = self.spec.n
        full = H.to(X.dtype).expand(*X.shape[:2], n, *([n] if name == "res" else []))
        return getattr(self, f"hook_{name}")(full)

    def dynamic(self, X: Float[Tensor, "B T N D"], names: list[str] | None = None) -> dict[str, Tensor]:
        """norm(X) W of these coefficients (default: all) before their activation; empty without dynamic terms.

        One product serves all, and its few outputs are normalised: norm(X) W = (X (γ ⊙ W)) / rms(X). So no normalised
        copy of the streams is needed.
        """
        names = list(self.W) if names is None else names
        if self.norm_weight is None or not names:
            return {}
        # gradients of a weight [width, few outputs] would be 20 times slower
        W = torch.cat([_wide(self.W[name]) for name in names]) * _wide(self.norm_weight)
        y = self.normed_product(_wide(X), W)
        return dict(zip(names, y.split([len(self.W[name]) for name in names], -1), strict=True))

    def H_pre(self, y: Dynamic) -> Float[Tensor, "*B_T N"]:
        """Weight of each stream in the branch's input; [N] (the static part) if y has no such term."""
        return self.logits("pre", y)

    def H_post(self, y: Dynamic) -> Float[Tensor, "*B_T N"]:
        return self.logits("post", y)

    def H_res(self, y: Dynamic) -> Float[Tensor, "*B_T N N"]:
        """Mixing of the streams; row s gives the new stream s."""
        if self.spec.freeze_res:
            return torch.eye(self.spec.n, device=self.b["pre"].device)
        return self.mixing(self.logits("res", y))

    def logits(self, name: str, y: Dynamic) -> Tensor:
        """The logits α · act(y) + b, or b if y has no term of that name."""
        b = _wide(self.b[name])
        if not y or name not in y:
            return b
        term = y[name].tanh() if self.spec.dyn_act == "tanh" else y[name]
        return _wide(self.alpha[self.scale_of[name]]) * term.reshape(*term.shape[:2], *b.shape) + b

    def flops(self) -> int:
        """FLOPs per token (a multiply-add counts as two) of the maps and of reading, mixing and writing streams."""
        n = self.spec.n
        maps = sum(2 * b.numel() * self.width for b in self.b.values()) if self.spec.dynamic else 0
        return maps + 2 * self.d_model * n * (n + 2)

    def constant_flops(self) -> int:
        """FLOPs per token whose second factor is constant, so that its gradient is not computed."""
        return 0

    def extra_repr(self) -> str:
        return f"{self.spec.kind}, {self.spec.n} streams, favours {self.favoured}"


class UnconstrainedConnection(HyperConnection):
    """HC (arXiv 2409.19606), for `config.HC`: the coefficients of stream s depend on h̄_s = norm(X_s).

        A_m = s_α act(h̄ W_m) + e_{m mod n}     h = A_mᵀ X
        A_r = s_α act(h̄ W_r) + I               X ← A_rᵀ X + B ⊗ F(h),     B = s_β act(h̄ W_β) + 1

    A_m, A_r, B are pre, res (transposed: H_res = A_rᵀ) and post here; s_α is `alpha.pre`, s_β is `alpha.post`.
    Initially every stream is the residual stream of a plain pre-norm network.
    """

    spec: c.HC
    scale_of: ClassVar[dict[str, str]] = {"pre": "pre", "post": "post", "res": "pre"}

    def biases(self) -> dict[str, Tensor]:
        n = self.spec.n
        return {"pre": torch.eye(n)[self.favoured], "post": torch.ones(n), "res": torch.eye(n)}

    def normed_product(self, X: Tensor, W: Tensor) -> Tensor:
        if self.spec.norm == "rms":
            return rms_product(X, W, self.eps)
        return F.linear(F.layer_norm(X, (self.d_model,), eps=self.eps), W)

    def mixing(self, logits: Tensor) -> Tensor:
        return logits.mT


class StochasticConnection(HyperConnection):
    """Base of the kinds whose H_res is doubly stochastic; coefficients depend on all streams of a token:

        x' = RMSNorm(X_1 ‖ … ‖ X_n)              H_pre  =   σ(α_pre act(x' W_pre) + b_pre)    in (0, 1)
        H_res from α_res act(x' W_res) + b_res   H_post = 2 σ(α_post act(x' W_post) + b_post) in (0, 2)

    b_pre = b_post = −1, or +1 at the favoured stream. Rows and columns of H_res sum to 1, so mixing changes neither
    equal streams nor the sum of streams. So b_res, W_res and α_res have no gradient beyond rounding in a model's first
    module, nor in its last one unless H_post reads the mixed streams.
    """

    spec: c.Stochastic
    identity_logits: Callable[[], Tensor]
    """Initial b_res: 0 for the identity, `spec.b_res` for mixing."""

    def biases(self) -> dict[str, Tensor]:
        outer = torch.full((self.spec.n,), -1.0)
        outer[self.favoured] = 1.0
        return {"pre": outer, "post": outer, "res": self.identity_logits()}

    def normed_product(self, X: Tensor, W: Tensor) -> Tensor:
        return rms_product(X.flatten(-2), W, self.eps)

    def H_pre(self, y: Dynamic) -> Tensor:
        return super().H_pre(y).sigmoid()

    def H_post(self, y: Dynamic) -> Tensor:
        return 2.0 * super().H_post(y).sigmoid()


class SinkhornConnection(StochasticConnection):
    """mHC (arXiv 2512.24880): M = exp(logits), with columns and rows divided by their sums t times.

    Rows sum to 1; columns only as far as the iteration has converged. It converges slowly near the identity: for logits
    about −8 that differ by 1, twenty iterations leave errors of a few per cent.
    """

    spec: c.MHC

    def identity_logits(self) -> Tensor:
        n = self.spec.n
        return torch.full((n, n), self.spec.b_res).fill_diagonal_(0.0)

    def mixing(self, logits: Tensor) -> Tensor:
        M, eps = (logits - logits.amax(-2, keepdim=True)).exp(), self.spec.eps
        M = M / M.sum(-2, keepdim=True) + eps
        M = M / (M.sum(-1, keepdim=True) + eps)
        for _ in range(self.spec.iterations - 1):
            M = M / (M.sum(-2, keepdim=True) + eps)
            M = M / (M.sum(-1, keepdim=True) + eps)
        return M

    def H_pre(self, y: Dynamic) -> Tensor:
        return super().H_pre(y) + self.spec.eps


class PermutationConnection(StochasticConnection):
    """mHC-lite: H_res = Σ_m a_m P_m, a = softmax(logits) over all n! permutations, the identity first."""

    spec: c.MHCLite
    P: Tensor

    def __init__(self, spec: c.MHCLite, d_model: int, module: int) -> None:
        super().__init__(spec, d_model, module)
        orders = torch.tensor(list(itertools.permutations(range(spec.n))))
        self.register_buffer("P", F.one_hot(orders, spec.n).float(), persistent=False)

    def identity_logits(self) -> Tensor:
        logits = torch.full((math.factorial(self.spec.n),), self.spec.b_res)
        logits[0] = 0.0
        return logits

    def mixing(self, logits: Tensor) -> Tensor:
        a = logits.softmax(-1)
        return (a @ self.P.to(a.dtype).flatten(1)).unflatten(-1, (self.spec.n, -1))

    def flops(self) -> int:
        return super().flops() + self.constant_flops()

    def constant_flops(self) -> int:
        n = self.spec.n
        return 2 * math.factorial(n) * n * n if self.spec.dynamic else 0


class KroneckerConnection(StochasticConnection):
    """KromHC (arXiv 2601.21579): H_res = U_1 ⊗ … ⊗ U_K, U_k = a_0 I + a_1 [[0, 1], [1, 0]], a = softmax of two logits.

    For swap probability s = a_1 in both of two factors, the eigenvalues are 1, 1−2s, 1−2s, (1−2s)².
    """

    spec: c.KromHC

    def identity_logits(self) -> Tensor:
        return torch.tensor([0.0, self.spec.b_res]).repeat(self.spec.factors, 1)

    def mixing(self, logits: Tensor) -> Tensor:
        a = logits.softmax(-1)  # [..., K, 2]
        U = torch.stack([a, a.flip(-1)], -2)
        H = U[..., 0, :, :]
        for k in range(1, self.spec.factors):
            H = (H[..., :, None, :, None] * U[..., k, None, :, None, :]).flatten(-4, -3).flatten(-2)
        return H


CONNECTIONS: dict[type[c.Part], type[HyperConnection]] = {
    c.HC: UnconstrainedConnection,
    c.MHC: SinkhornConnection,
    c.MHCLite: PermutationConnection,
    c.KromHC: KroneckerConnection,
}


@c.HC.computed_by
@c.MHC.computed_by
@c.MHCLite.computed_by
@c.KromHC.computed_by
class HyperBlock(Block):
    """A layer whose branches read Σ_s H_pre,s X_s and write by H_post, while H_res mixes the streams.

    The n parallel streams X start as copies of the embedding.
    """

    spec: c.Hyper

    def __init__(self, config: c.ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        make = CONNECTIONS[type(self.spec)]
        self.attn_hc = make(self.spec, config.d_model, 2 * layer)
        self.mlp_hc = make(self.spec, config.d_model, 2 * layer + 1)

    def init(self, embedding: Tensor) -> Tensor:
        # a copy: an expanded state has other strides than layers return, so layer 0 would be compiled separately
        return embedding.unsqueeze(-2).repeat(1, 1, self.spec.n, 1)

    def readout(self, state: Tensor) -> Tensor:
        return state.sum(-2) if self.spec.reduce == "sum" else state.mean(-2)

    def around_attn(self, X: Tensor, attn: AttentionBranch) -> Tensor:
        X = self._apply_hooks(X, "pre")
        return self._apply_hooks(self.attn_hc(X, lambda h: attn(h, h)), "mid")

    def around_mlp(self, X: Tensor, mlp: MlpBranch) -> Tensor:
        return self._apply_hooks(self.mlp_hc(X, mlp), "post")

    def _apply_hooks(self, X: Tensor, place: Literal["pre", "mid", "post"]) -> Tensor:
        """Apply the hook of the streams, and show their readout to `hook_resid_{place}`."""
        X = getattr(self, f"hook_streams_{place}")(X)
        readout = getattr(self, f"hook_resid_{place}")
        if readout._forward_hooks:
            readout.show(self.readout(X))
        return X
