"""Residual topologies. A topology owns its state and says what each branch reads and where it writes:

    init(embedding) -> state       around_attn(state, attn) -> state
    readout(state) -> [B, T, D]    around_mlp(state, mlp)   -> state

A block is those two calls (DST Algorithm 1). `attn(x, x_v)` and `mlp(x)` are the block's branches: norm,
module, dropout, hooks. States are tensors or named tuples of tensors, so they can be cached, repeated along
the batch and handed to `model.segment`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from models import config as c
from models.attention import Attention
from models.hooks import ObservePoint, observe, resid_point, tap
from models.mlp import Mlp
from models.registry import implements, module_for

AttentionBranch = Callable[[Tensor, Tensor], Tensor]
MlpBranch = Callable[[Tensor], Tensor]
State = Any
"""What flows from layer to layer: a tensor [B, T, D], or a named tuple of them."""


class Block(nn.Module):
    """One layer. Subclasses are the topologies; branches and hooks common to all are here."""

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__()
        spec, d, heads = config.residual, config.d_model, config.n_heads
        for place in ("pre", "mid", "post"):
            for stream in spec.streams:
                self.add_module(f"hook_{stream}_{place}", HookPoint())
            self.add_module(f"hook_resid_{place}", resid_point(config, place))
        self.hook_attn_in, self.hook_attn_v_in = HookPoint(), HookPoint()
        norm = module_for(config.norm)
        self.ln1 = norm(config.norm, d, heads)
        self.value_path = spec.value_path
        if self.value_path == "own":
            self.ln1_v = norm(config.norm, d, heads)
        self.attn = Attention(config)
        self.hook_attn_out = HookPoint()
        self.hook_mlp_in = HookPoint()
        self.ln2 = norm(config.norm, d, heads)
        self.mlp = Mlp(config)
        self.hook_mlp_out = HookPoint()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, state: State) -> State:
        """One layer of DST Algorithm 1."""
        state = self.around_attn(state, self.attend)
        return self.around_mlp(state, self.feed_forward)

    def attend(self, x: Float[Tensor, "B T D"], x_v: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The attention branch: Q, K read x, V reads x_v; returns attention's update."""
        x_read, x_v_read = tap(self.hook_attn_in, x), tap(self.hook_attn_v_in, x_v)
        x_norm = self.ln1(x_read)
        if self.value_path == "own":
            v_norm = self.ln1_v(x_v_read)
        elif self.value_path == "raw":
            v_norm = x_v_read
        else:  # the norm is computed once unless somebody edited one of the two readers
            v_norm = x_norm if x_v_read is x_read else self.ln1.fused(x_v_read)
        return self.hook_attn_out(self.dropout(self.attn(x_norm, v_norm)))

    def feed_forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The FFN branch; returns the FFN's update."""
        return self.hook_mlp_out(self.dropout(self.mlp(self.ln2(tap(self.hook_mlp_in, x)))))

    def init(self, embedding: Float[Tensor, "B T D"]) -> State:
        """The state before layer 0."""
        raise NotImplementedError

    def around_attn(self, state: State, attn: AttentionBranch) -> State:
        """What attention reads, and where its update goes."""
        raise NotImplementedError

    def around_mlp(self, state: State, mlp: MlpBranch) -> State:
        """What the FFN reads, and where its update goes."""
        raise NotImplementedError

    def readout(self, state: State) -> Float[Tensor, "B T D"]:
        """The stream that the final norm and the head read."""
        raise NotImplementedError


@implements(c.Single)
class SingleBlock(Block):
    """x ← x + attn(x); x ← x + mlp(x)."""

    hook_resid_pre: HookPoint
    hook_resid_mid: HookPoint
    hook_resid_post: HookPoint

    def init(self, embedding: Tensor) -> Tensor:
        return embedding

    def around_attn(self, x: Tensor, attn: AttentionBranch) -> Tensor:
        x = tap(self.hook_resid_pre, x)
        return self.hook_resid_mid(x + attn(x, x))

    def around_mlp(self, x: Tensor, mlp: MlpBranch) -> Tensor:
        return self.hook_resid_post(x + mlp(x))

    def readout(self, x: Tensor) -> Tensor:
        return x


class Streams(NamedTuple):
    """x = x_t + x_e (DST Eq. 1). `x_ffn` is set between the branches when the FFN is parallel."""

    x_t: Tensor
    x_e: Tensor
    x_ffn: Tensor | None = None


class DualStreamBlock(Block):
    """Both branches read x_t + x_e; subclasses say where attention writes. The FFN writes x_e."""

    hook_resid_pre: ObservePoint
    hook_resid_mid: ObservePoint
    hook_resid_post: ObservePoint

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__(config)
        assert isinstance(config.residual, c.DualStream)
        self.spec = config.residual

    def init(self, embedding: Tensor) -> Streams:
        """x_t = embedding, x_e = 0 (DST Alg. 1, lines 1–2)."""
        return Streams(embedding, torch.zeros_like(embedding))

    def around_attn(self, state: Streams, attn: AttentionBranch) -> Streams:
        """Lines 4–12 of DST Algorithm 1."""
        x_t, x_e = self._shown(state.x_t, state.x_e, "pre")
        x = x_t + x_e
        a = attn(x, x_t if self.spec.values == "token" else x)
        x_t, x_e = self._shown(*self.write_attn(x_t, x_e, a), "mid")
        return Streams(x_t, x_e, x if self.spec.order == "parallel" else None)

    def around_mlp(self, state: Streams, mlp: MlpBranch) -> Streams:
        """Lines 14–18 of DST Algorithm 1; in parallel order the FFN reads x^(ℓ) (DST Eq. 3)."""
        x_t, x_e, x_ffn = state
        x_e = x_e + mlp(x_t + x_e if x_ffn is None else x_ffn)
        return Streams(*self._shown(x_t, x_e, "post"))

    def readout(self, state: Streams) -> Tensor:
        """x_t + x_e (LFA Eq. 3)."""
        return state.x_t + state.x_e

    def write_attn(self, x_t: Tensor, x_e: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Where attention's update goes."""
        raise NotImplementedError

    def _shown(self, x_t: Tensor, x_e: Tensor, place: str) -> tuple[Tensor, Tensor]:
        """The two streams after their hooks; their sum is shown to `hook_resid_{place}`."""
        x_t = tap(getattr(self, f"hook_token_{place}"), x_t)
        x_e = tap(getattr(self, f"hook_context_{place}"), x_e)
        observe(getattr(self, f"hook_resid_{place}"), lambda: x_t + x_e)
        return x_t, x_e


@implements(c.TokenFactor)
class TokenFactorBlock(DualStreamBlock):
    """x_t ← x_t + attn, x_e ← x_e + mlp (DST Eq. 2–3)."""

    def write_attn(self, x_t: Tensor, x_e: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return x_t + a, x_e


@implements(c.FrozenToken)
class FrozenTokenBlock(DualStreamBlock):
    """x_t is the embedding in every layer; x_e ← x_e + attn, x_e ← x_e + mlp (LFA Eq. 18–21)."""

    def init(self, embedding: Tensor) -> Streams:
        """As the base, with gradients through x_t stopped when `detach_token` is set."""
        x_t, x_e, _ = super().init(embedding)
        return Streams(x_t.detach() if self.spec.detach_token else x_t, x_e)  # type: ignore[attr-defined]

    def write_attn(self, x_t: Tensor, x_e: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return x_t, x_e + a
