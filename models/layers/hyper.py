"""Hyper-connections as a residual topology: the state is n streams, X [B, T, N, D] (SPEC §2).

The embedding is repeated n times. The head reads the sum or mean of the streams, which differ only in scale; a final
norm removes it except for its ε. `models.layers.hyper_mixing` computes the connection around a branch.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.hooks.points import observe, read_point
from streamscope.models.layers.hyper_mixing import CONNECTIONS
from streamscope.models.layers.registry import implements
from streamscope.models.layers.residual import AttentionBranch, Block, MlpBranch, Topology


def combine_streams(spec: c.Hyper, X: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T D"]:
    """The sum or mean over the streams."""
    return X.sum(-2) if spec.reduce == "sum" else X.mean(-2)


class HyperBlock(Block):
    """A layer whose branches read Σ_s H_pre,s X_s and write by H_post, while H_res mixes the streams."""

    def __init__(self, config: c.ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        assert isinstance(config.residual, c.Hyper)
        self.spec = config.residual
        make = CONNECTIONS[type(self.spec)]
        self.attn_hc = make(self.spec, config.d_model, 2 * layer)
        self.mlp_hc = make(self.spec, config.d_model, 2 * layer + 1)

    def around_attn(self, X: Tensor, attn: AttentionBranch) -> Tensor:
        X = self._apply_hooks(X, "pre")
        return self._apply_hooks(self.attn_hc(X, lambda h: attn(h, h)), "mid")

    def around_mlp(self, X: Tensor, mlp: MlpBranch) -> Tensor:
        return self._apply_hooks(self.mlp_hc(X, mlp), "post")

    def _apply_hooks(self, X: Tensor, place: Literal["pre", "mid", "post"]) -> Tensor:
        """Apply the hook of the streams, and show their readout to `hook_resid_{place}`."""
        X = read_point(getattr(self, f"hook_streams_{place}"), X)
        observe(getattr(self, f"hook_resid_{place}"), lambda: combine_streams(self.spec, X))
        return X


@implements(c.HC)
@implements(c.MHC)
@implements(c.MHCLite)
@implements(c.KromHC)
class HyperStreams(Topology):
    """n parallel streams X that start as copies of the embedding."""

    block: type[Block] = HyperBlock
    spec: c.Hyper

    def init(self, embedding: Tensor) -> Tensor:
        # a copy: an expanded state has other strides than layers return, so layer 0 would be compiled separately
        return embedding.unsqueeze(-2).repeat(1, 1, self.spec.n, 1)

    def readout(self, state: Tensor) -> Tensor:
        return combine_streams(self.spec, state)
