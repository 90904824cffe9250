"""The hybrid dual-path linear operator (HDPL, arXiv 2602.07070, Eq. 1–9).

    y = x W_block + W_dec SiLU(z),    z = μ + σ ε in training, z = μ at evaluation
    μ = W_μ x + b_μ,   log σ² = W_σ x + b_σ,   ε ~ N(0, I)

The encoders read x and have biases: the equations print none, but the model size implies them (Table 1, 238.54 MB;
238.52 without). ε comes from torch's global generator, whose state is in a run's checkpoint.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from streamscope.cli.errors import InputError
from streamscope.models import config as c
from streamscope.models.hooks.points import ObservePoint, OnDemand, ReadPoint
from streamscope.models.interop.transformer_lens_core import HookPoint
from streamscope.models.layers.noise import noise
from streamscope.models.layers.projections import Projection

LN2 = math.log(2)
"""The bound of HDPL Eq. 9, in nats per token."""
NOISE = 0.01
"""Standard deviation added to a detail path that starts as the identity (authors' code)."""


def kl_by_dimension(mu: Float[Tensor, "*tokens R"], logvar: Float[Tensor, "*tokens R"]) -> Float[Tensor, "*tokens R"]:
    """KL of each latent dimension, −½ (1 + log σ² − μ² − σ²), in nats per token, in at least fp32 (HDPL Eq. 8)."""
    dtype = torch.promote_types(mu.dtype, torch.float32)
    mu, logvar = mu.to(dtype), logvar.to(dtype)
    return -0.5 * (1 + logvar - mu.square() - logvar.exp())


def kl_to_prior(mu: Float[Tensor, "*tokens R"], logvar: Float[Tensor, "*tokens R"]) -> Float[Tensor, "*tokens"]:
    """KL(N(μ, σ²) ‖ N(0, I)) in nats per token, summed over dimensions (HDPL Eq. 8)."""
    return kl_by_dimension(mu, logvar).sum(-1)


def latent_widths(config: c.ModelConfig) -> dict[str, int]:
    """{path inside a block, such as attn.q: R} of the HDPL projections. Raises `InputError` if there is none."""
    widths = {path: spec.latent_width(i, o) for path, spec, i, o in config.projections() if isinstance(spec, c.Hdpl)}
    if not widths:
        raise InputError(
            f"{config.name} has no HDPL projection and so no latent: train a model with one, by "
            "python -m models.train hdpl --data SOURCE --out RUN, or any preset with --set attention.v=hdpl"
        )
    return widths


class Affine(nn.Linear):
    """`nn.Linear` whose weights come only from the seeded generator of `init_weights`."""

    def reset_parameters(self) -> None:
        """Do nothing; torch would draw from the global generator."""


@c.Hdpl.computed_by
class HdplProjection(Projection):
    """An HDPL projection [B, T, d_in] -> [B, T, d_out], with `detail` [K, d_in/K, d_out/K] and a latent of width R.

    After a training pass, `penalty` is β mean_tokens min(KL, ln 2) in nats (HDPL Eq. 9; max with free bits). `kl` [2]
    holds the mean KL in nats and the share of tokens whose KL is clamped and so has no gradient. Means are over all
    positions, including padding. At evaluation both are None.
    """

    spec: c.Hdpl

    def __init__(self, spec: c.Hdpl, d_in: int, d_out: int, n_heads: int) -> None:
        super().__init__(spec, d_in, d_out, n_heads)
        self.rank, self.groups = spec.latent_width(d_in, d_out), spec.blocks(n_heads)
        self.detail = nn.Parameter(torch.empty(self.groups, d_in // self.groups, d_out // self.groups))
        self.mu, self.logvar = Affine(d_in, self.rank), Affine(d_in, self.rank)
        self.decoder = Affine(self.rank, d_out, bias=False)
        self.hook_detail, self.hook_mu = HookPoint(), HookPoint()
        self.hook_logvar = ObservePoint("hook_latent", "the log-variance of z, which evaluation does not use")
        self.hook_latent, self.hook_global = ReadPoint(), HookPoint()  # an in-place hook must not reach μ
        self.penalty: Tensor | None = None
        self.kl: Tensor | None = None

    def forward(self, x: Tensor, mix: OnDemand | None = None) -> Tensor:
        # K products: one batched product would copy x to [K, tokens, d_in/K], 8 % of a compiled training step
        parts = zip(x.chunk(self.groups, -1), self.detail, strict=True)
        detail = self.hook_detail(torch.cat([part @ block for part, block in parts], -1))
        mu = self.hook_mu(self.mu(x))
        if self.training:
            logvar = self.logvar(x)
            if self.hook_logvar._forward_hooks:
                self.hook_logvar.show(logvar)
            z = mu + (0.5 * logvar).exp() * noise(mu.detach())
            kl, printed = kl_to_prior(mu, logvar), self.spec.kl == "clamp"
            self.penalty = self.spec.kl_weight * (kl.clamp(max=LN2) if printed else kl.clamp(min=LN2)).mean()
            clamped = kl > LN2 if printed else kl < LN2
            self.kl = torch.stack([kl.mean(), clamped.to(kl.dtype).mean()]).detach()
        else:
            if self.hook_logvar._forward_hooks:
                self.hook_logvar.show(self.logvar(x))
            z, self.penalty, self.kl = mu, None, None
        return detail + self.hook_global(self.decoder(F.silu(self.hook_latent(z))))

    @torch.no_grad()
    def init_weights(self, std: float, generator: torch.Generator) -> None:
        """Initialise as in the authors' code, without `std`.

        `detail` of a square map: N(0, 0.01), plus the identity in the first or every block; of other maps: orthonormal
        columns over all blocks. W_μ and W_dec are orthogonal, W_σ = 0, biases U(±1/sqrt(d_in)). Both outputs are scaled
        by `init_scale`, which is 1 except for projections that write to the residual stream.
        """
        k, i, o = self.detail.shape
        if self.d_in == self.d_out:
            nn.init.normal_(self.detail, std=NOISE, generator=generator)
            self.detail[: k if self.spec.dirac == "every" else 1] += torch.eye(i).to(self.detail)
        else:
            rows = nn.init.orthogonal_(self.detail.new_empty(k * o, i), generator=generator)
            self.detail.copy_(rows.unflatten(0, (k, o)).mT)
        nn.init.orthogonal_(self.mu.weight, generator=generator)
        nn.init.zeros_(self.logvar.weight)
        nn.init.orthogonal_(self.decoder.weight, generator=generator)
        for encoder in (self.mu, self.logvar):
            bound = 1 / math.sqrt(self.d_in)
            nn.init.uniform_(encoder.bias, -bound, bound, generator=generator)
        self.detail.mul_(self.init_scale)
        self.decoder.weight.mul_(self.init_scale)

    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        """Raises `InputError`: a nonlinear map is not a matrix."""
        raise InputError(
            f"an HDPL projection {self.d_in} -> {self.d_out} is not linear (its latent passes a SiLU), so it has no "
            "weight matrix: read its hook_detail, hook_latent and hook_global instead"
        )

    def flops(self) -> int:
        """FLOPs per token at evaluation; training adds log σ², 2 d_in R."""
        return 2 * (self.d_in * self.d_out // self.groups + self.rank * (self.d_in + self.d_out))

    def extra_repr(self) -> str:
        return f"{self.d_in} -> {self.d_out}, {self.groups} blocks, latent {self.rank}"


def take_penalties(projections: Sequence[HdplProjection]) -> dict[str, Float[Tensor, ""]]:
    """Take the penalties of the last training pass from the projections; empty after an evaluation.

    `kl` is the term of the loss, Σ penalties in nats (HDPL §2.3). `kl_nats` is the mean KL per token and projection
    before the clamp, `kl_clamped` the share of tokens · projections whose KL is clamped.
    """
    penalties = [p.penalty for p in projections if p.penalty is not None]
    if not penalties:
        return {}
    nats, clamped = torch.stack([p.kl for p in projections if p.kl is not None]).mean(0)
    for p in projections:
        p.penalty = p.kl = None
    return {"kl": torch.stack(penalties).sum(), "kl_nats": nats, "kl_clamped": clamped}
