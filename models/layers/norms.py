"""LayerNorm, ChannelLayerNorm (DST Eq. 13) and RMSNorm."""

from operator import attrgetter

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from streamscope.models import config as c
from streamscope.models.hooks.points import OnDemand


@c.LayerNorm.computed_by
@c.ChannelLayerNorm.computed_by
@c.RMSNorm.computed_by
class Norm(nn.Module):
    """LayerNorm, ChannelLayerNorm (DST Eq. 13) and RMSNorm: one formula with three ranges of statistics.

        y = γ ⊙ (x − μ) / s + β,    s = sqrt(mean((x − μ)²) + eps)

    over all D (layer), over each head's d_h (channel), or with μ = 0 and no β (rms); γ, β are [D] in all. `hook_scale`
    is s and `hook_normalized` is (x − μ)/s, as in TransformerLens 4. If nobody listens to either, a fused kernel
    computes y. `groups` is H for a channel norm, otherwise 1.
    """

    def __init__(self, spec: c.Norm, d_model: int, n_heads: int, *, hooks: bool = True) -> None:
        super().__init__()
        self.eps, self.d_model = spec.eps, d_model
        self.centred, self.by_head = not isinstance(spec, c.RMSNorm), isinstance(spec, c.ChannelLayerNorm)
        self.groups = n_heads if self.by_head else 1
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if self.centred else None
        self.hooks = hooks
        if hooks:
            self.hook_scale = OnDemand()
            self.hook_normalized = OnDemand()

    w, b = property(attrgetter("weight")), property(attrgetter("bias"))
    """TransformerLens' names of γ and β."""

    @property
    def listening(self) -> bool:
        return self.hooks and (self.hook_scale.listening or self.hook_normalized.listening)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        heard = self.hooks and (self.hook_scale._forward_hooks or self.hook_normalized._forward_hooks)
        if heard and self.listening:
            g = x.unflatten(-1, (self.groups, -1)) if self.groups > 1 else x
            if self.centred:
                g = g - g.mean(-1, keepdim=True)
            scale = self.hook_scale((g.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
            n = self.hook_normalized((g / scale).reshape(x.shape))
            return n * self.weight if self.bias is None else n * self.weight + self.bias
        if not self.centred:
            return F.rms_norm(x, (self.d_model,), self.weight, self.eps)
        if not self.by_head:
            return F.layer_norm(x, (self.d_model,), self.weight, self.bias, self.eps)
        n = F.layer_norm(x.unflatten(-1, (self.groups, -1)), (self.d_model // self.groups,), eps=self.eps)
        return torch.addcmul(self.bias, n.flatten(-2), self.weight)  # type: ignore[arg-type]

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.d_model}, groups={self.groups}, eps={self.eps}"
