"""The layer: its FFN, and the residual topologies. A topology owns its state and defines where the branches read and
write:

    init(embedding) -> state       around_attn(state, attn) -> state
    readout(state) -> [B, T, D]    around_mlp(state, mlp)   -> state

Every layer is a `Block`: the first makes the state, each makes the two calls on the right (DST Algorithm 1), the last
reads it. Its branches `attn(x, x_v)` and `mlp(x)` are norm, module, dropout and hooks. States are tensors or tuples of
tensors, so they can be cached, repeated along the batch and passed to `model.segment`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from streamscope.models import config as c
from streamscope.models.hooks.points import ObservePoint, ReadPoint
from streamscope.models.interop.transformer_lens_core import HookPoint
from streamscope.models.layers.attention import Attention
from streamscope.models.layers.noise import Dropout
from streamscope.models.layers.projections import Projection, WithProjections

AttentionBranch = Callable[[Tensor, Tensor], Tensor]
MlpBranch = Callable[[Tensor], Tensor]
State = Any
"""The state between layers: a tensor [B, T, D], or a named tuple of tensors."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu, "relu": F.relu,
}  # fmt: skip


def _read(name: str, method: str) -> property:
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
        self.hook_pre = ReadPoint()
        if self.gated:
            self.hook_pre_linear = ReadPoint()
        self.hook_post = HookPoint()
        self.add_projection("down", spec.down, m, d, config, writes=True)

    def forward(self, x: Float[Tensor, "B T D"], canon: nn.Module | None = None) -> Float[Tensor, "B T D"]:
        """The update; `canon` is the block's Canon-D layer, applied to the inputs of the activation and of the linear
        half."""
        if self.gated:
            gate, up = self.project("gate", x), self.project("up", x)
            if canon is not None:
                gate, up = canon(torch.cat([gate, up], -1)).chunk(2, -1)
            hidden = self.act(self.hook_pre(gate)) * self.hook_pre_linear(up)
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
        return self._modules["gate"].matrix() if self.gated else None  # type: ignore[operator, union-attr]


class Block(nn.Module):
    """One layer. Subclasses define the state, and where the branches read and write."""

    hook_resid_pre: HookPoint
    hook_resid_mid: HookPoint
    hook_resid_post: HookPoint

    def __init__(self, config: c.ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.spec = layer, config.residual
        self.positionwise = not set(config.canon_widths()) - {"a"}
        """Whether positions only mix in attention and before its projections. Then a layer's output at some positions
        needs keys and values everywhere, and everything else only there."""
        spec, d, heads = self.spec, config.d_model, config.n_heads
        shows = f"the {getattr(spec, 'reduce', 'sum')} of the streams"
        for place in ("pre", "mid", "post"):  # several streams are edited, their sum is only shown
            names: list[str] = []
            for stream in spec.streams:
                names.append(f"hook_{stream}_{place}")
                self.add_module(names[-1], ReadPoint())
            self.add_module(f"hook_resid_{place}", ObservePoint(" or ".join(names), shows) if names else ReadPoint())
        self.hook_attn_in, self.hook_attn_v_in = ReadPoint(), ReadPoint()
        norm = config.norm.module
        places = {"before": ("",), "after": ("_post",), "both": ("", "_post")}[config.norm_place]
        for place in places:
            self.add_module(f"ln1{place}", norm(config.norm, d, heads))
        self.value_path = spec.value_path
        if self.value_path == "own":
            self.ln1_v = norm(config.norm, d, heads)
        self.attn = Attention(config, layer)
        self.hook_attn_out = HookPoint()
        self.hook_mlp_in = ReadPoint()
        for place in places:
            self.add_module(f"ln2{place}", norm(config.norm, d, heads))
        self.mlp = Mlp(config)
        self.hook_mlp_out = HookPoint()
        if config.canon is not None:
            from streamscope.models.layers.canon import CanonLayer

            for place, width in config.canon_widths().items():
                self.add_module(f"canon_{place}", CanonLayer(config.canon, width))
        self.dropout = Dropout(config.dropout) if config.dropout else nn.Identity()

    def init(self, embedding: Float[Tensor, "B T D"]) -> State:
        """The state before layer 0; with one stream the embedding."""
        return embedding

    def readout(self, state: State) -> Float[Tensor, "B T D"]:
        """The stream that the final norm and the head read; with one stream the state."""
        return state

    def forward(self, state: State) -> State:
        """Run one layer of DST Algorithm 1."""
        state = self.around_attn(state, self.attend)
        return self.around_mlp(state, self.feed_forward)

    def attend(self, x: Float[Tensor, "B T D"], x_v: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The attention branch: its update from x (for Q and K) and x_v (for V)."""
        update = self.attn(*self._attn_input(x, x_v), self._modules.get("canon_b"))
        return self.hook_attn_out(self._part("ln1_post", self.dropout(update)))

    def heads(self, x: Tensor, x_v: Tensor, positions: Int[Tensor, "B P"] | None = None) -> Float[Tensor, "B rows H K"]:
        """The first half of `attend`: z of the heads before its hook, optionally at `positions`, [B, P, H, K]."""
        return self.attn.heads(*self._attn_input(x, x_v), self._modules.get("canon_b"), positions)

    def write(self, z: Float[Tensor, "B T H K"]) -> Float[Tensor, "B T D"]:
        """The second half of `attend`: the update from z after its hook."""
        return self.hook_attn_out(self._part("ln1_post", self.dropout(self.attn.write(z))))

    def _attn_input(self, x: Tensor, x_v: Tensor) -> tuple[Tensor, Tensor]:
        x_read, x_v_read = self.hook_attn_in(x), self.hook_attn_v_in(x_v)
        if self.value_path == "shared":
            same_input = x_v_read is x_read  # otherwise before ln1 of Q and K, so that captures of ln1 keep their input
            v_norm = None if same_input else self._part("canon_a", self._part("ln1", x_v_read))
        else:
            v_norm = self.ln1_v(x_v_read) if self.value_path == "own" else x_v_read
        x_norm = self._part("canon_a", self._part("ln1", x_read))
        return x_norm, x_norm if v_norm is None else v_norm

    def _part(self, name: str, x: Tensor) -> Tensor:
        part = self._modules.get(name)
        return x if part is None else part(x)

    def feed_forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        x_norm = self._part("canon_c", self._part("ln2", self.hook_mlp_in(x)))
        update = self.dropout(self.mlp(x_norm, self._modules.get("canon_d")))
        return self.hook_mlp_out(self._part("ln2_post", update))

    def around_attn(self, state: State, attn: AttentionBranch) -> State:
        """Run attention on its input and write its update to the state."""
        raise NotImplementedError

    def around_mlp(self, state: State, mlp: MlpBranch) -> State:
        """Run the FFN on its input and write its update to the state."""
        raise NotImplementedError


@c.Single.computed_by
class SingleBlock(Block):
    """A one-stream layer: x ← x + attn(x); x ← x + mlp(x). In parallel order, x ← x + attn(x) + mlp(x)."""

    spec: c.Single

    def around_attn(self, x: Tensor, attn: AttentionBranch) -> tuple[Tensor, Tensor]:
        """The stream after attention, and the FFN's input."""
        x = self.hook_resid_pre(x)
        mid = self.hook_resid_mid(x + attn(x, x))
        return mid, x if self.spec.order == "parallel" else mid

    def around_mlp(self, state: tuple[Tensor, Tensor], mlp: MlpBranch) -> Tensor:
        x, x_ffn = state
        return self.hook_resid_post(x + mlp(x_ffn))


class Streams(NamedTuple):
    """The state of the dual-stream topologies, x = x_t + x_e (DST Eq. 1)."""

    x_t: Tensor
    x_e: Tensor


@c.TokenFactor.computed_by
@c.FrozenToken.computed_by
class DualStreamBlock(Block):
    """A layer whose branches read x_t + x_e. Attention writes to x_t (token-factor) or x_e (frozen token), the FFN to
    x_e.

    x_t starts as the embedding, x_e as 0 (DST Alg. 1, lines 1–2); the readout is their sum (LFA Eq. 3). `detach_token`
    stops the gradients through x_t.
    """

    spec: c.DualStream

    def init(self, embedding: Tensor) -> Streams:
        detached = isinstance(self.spec, c.FrozenToken) and self.spec.detach_token
        return Streams(embedding.detach() if detached else embedding, torch.zeros_like(embedding))

    def readout(self, state: Streams) -> Tensor:
        return state.x_t + state.x_e

    def around_attn(self, state: Streams, attn: AttentionBranch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run lines 4–12 of DST Algorithm 1; with a frozen token stream LFA Eq. 18–20. Returns x_t, x_e and, in
        parallel order, the FFN's input x^(ℓ)."""
        x_t, x_e = self._apply_hooks(state.x_t, state.x_e, "pre")
        x = x_t + x_e
        a = attn(x, x_t if self.spec.values == "token" else x)
        x_t, x_e = (x_t + a, x_e) if isinstance(self.spec, c.TokenFactor) else (x_t, x_e + a)
        return *self._apply_hooks(x_t, x_e, "mid"), x if self.spec.order == "parallel" else None

    def around_mlp(self, state: tuple[Tensor, Tensor, Tensor | None], mlp: MlpBranch) -> Streams:
        """Run lines 14–18 of DST Algorithm 1; in parallel order the FFN reads x^(ℓ) (DST Eq. 3)."""
        x_t, x_e, x_ffn = state
        x_e = x_e + mlp(x_t + x_e if x_ffn is None else x_ffn)
        return Streams(*self._apply_hooks(x_t, x_e, "post"))

    def _apply_hooks(self, x_t: Tensor, x_e: Tensor, place: str) -> tuple[Tensor, Tensor]:
        """Apply the hooks of both streams, and show their sum to `hook_resid_{place}`."""
        x_t = getattr(self, f"hook_token_{place}")(x_t)
        x_e = getattr(self, f"hook_context_{place}")(x_e)
        readout = getattr(self, f"hook_resid_{place}")
        if readout._forward_hooks:
            readout.show(x_t + x_e)
        return x_t, x_e
