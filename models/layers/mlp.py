"""The FFN: two channelized projections around an activation, optionally gated (DST Eq. 11–12)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from streamscope.models import config as c
from streamscope.models.hooks.points import read_point
from streamscope.models.interop.transformer_lens_core import HookPoint
from streamscope.models.layers.projections import Projection, WithProjections, residual_scale

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu, "relu": F.relu,
}  # fmt: skip


def _read(name: str, method: str) -> property:
    """A property with `method` of the projection `name`."""
    return property(lambda mlp: getattr(mlp._modules[name], method)())


class Mlp(WithProjections):
    """The FFN of a normed x [B, T, D]: down(act(up x)), or down(act(gate x) ⊙ up x) when gated."""

    up: Projection
    down: Projection

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__()
        spec, d, m = config.mlp, config.d_model, config.d_mlp
        self.act = ACTIVATIONS[spec.activation]
        self.gated = spec.gate is not None
        if spec.gate is not None:
            self.add_projection("gate", spec.gate, d, m, config)
        self.add_projection("up", spec.up, d, m, config)
        self.hook_pre = HookPoint()
        if self.gated:
            self.hook_pre_linear = HookPoint()
        self.hook_post = HookPoint()
        self.add_projection("down", spec.down, m, d, config, init_scale=residual_scale(config))

    def forward(self, x: Float[Tensor, "B T D"], canon: nn.Module | None = None) -> Float[Tensor, "B T D"]:
        """The update; `canon` is the block's Canon-D layer, applied to the inputs of the activation and of the linear
        half."""
        if self.gated:
            gate, up = self.project("gate", x), self.project("up", x)
            if canon is not None:
                gate, up = canon(torch.cat([gate, up], -1)).chunk(2, -1)
            hidden = self.act(read_point(self.hook_pre, gate)) * read_point(self.hook_pre_linear, up)
        else:
            up = self.project("up", x)
            hidden = self.act(self.hook_pre(up if canon is None else canon(up)))
        return self.project("down", self.hook_post(hidden))

    # TransformerLens' names for the weights
    W_in, W_out = _read("up", "matrix"), _read("down", "matrix")
    """Input weights [D, M] (in a gated FFN, of the linear half) and output weights [M, D]."""
    b_in, b_out = _read("up", "bias_or_zeros"), _read("down", "bias_or_zeros")
    """Biases [M] and [D]; zeros without a bias."""

    @property
    def W_gate(self) -> Float[Tensor, "D M"] | None:
        """Gate weights of a gated FFN, else None."""
        return self._modules["gate"].matrix() if self.gated else None  # type: ignore[operator, union-attr]
