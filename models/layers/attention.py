"""Causal multi-head attention with channelized projections and head gates (DST §2.3, §2.6; PLS A.4)."""

import math
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from streamscope.models import config as c
from streamscope.models.hooks.points import OnDemand, ReadPoint
from streamscope.models.interop.transformer_lens_core import HookPoint
from streamscope.models.layers.head import softcap
from streamscope.models.layers.noise import dropout
from streamscope.models.layers.projections import DenseProjection, Projection, WithProjections, embedding_size, linear

if TYPE_CHECKING:
    from streamscope.models.generate import KeyValues
    from streamscope.models.layers.gate import HeadGate


def _per_head(name: str, method: str) -> property:
    """A property with `method` of the projection `name`, its outputs split into heads; the head axis comes first."""

    def read(self: "Attention") -> Tensor:
        heads = getattr(self._modules[name], method)().unflatten(-1, (-1, self.d_head)).movedim(-2, 0)
        return heads.repeat_interleave(self.n_heads // len(heads), 0)

    return property(read)


class Attention(WithProjections):
    """The attention update [B, T, D] from x (for Q and K) and x_v (for V), both [B, T, D] and already normed.

    A = softmax(Q K^T / sqrt(d_h)) over the keys up to the query (DST Eq. 9), perhaps with a cap on the scores; z = A V,
    times the gate if there is one; update = z through the output projection (DST Eq. 10).
    """

    v: Projection
    o: Projection
    gate: "HeadGate | None"

    def __init__(self, config: c.ModelConfig, layer: int = 0) -> None:
        super().__init__()
        self.memory: dict[int, KeyValues] = {}
        """By thread, keys and values of earlier passes, during `models.generate`."""
        spec, d, self.n_heads = config.attention, config.d_model, config.n_heads
        self.d_head, self.dropout, self.softcap = config.d_head, spec.dropout, spec.softcap
        self.window = 0 if spec.full_every and (layer + 1) % spec.full_every == 0 else spec.window
        self.query_scale = math.sqrt(self.d_head / spec.scale_width) if spec.scale_width else 1.0
        skip, positions = getattr(config.positions, "skip", 0), config.positions
        if skip and (layer + 1) % skip == 0:
            positions = c.NoPositions()
        elif isinstance(positions, c.Rope) and positions.local_base and self.window:
            positions = replace(positions, base=positions.local_base, stretch=None)
        self.positions = positions.module(positions, self.d_head, self.n_heads, config.n_ctx)
        self.kv_heads = config.kv_heads
        self.widths = (self.n_heads * self.d_head, *(self.kv_heads * self.d_head,) * 2)
        for name, width in zip("qkv", self.widths, strict=True):
            self.add_projection(name, getattr(spec, name), d, width, config)
        if config.residual.value_path == "raw":
            self.v.input_size = embedding_size(config)
        if spec.qk_norm is not None:
            wide = spec.qk_norm_over == "layer"
            self.q_norm, self.k_norm = (
                spec.qk_norm.module(spec.qk_norm, width if wide else self.d_head, 1, hooks=False)
                for width in self.widths[:2]
            )
        # an identity projection returns a view of the stream
        self.hook_q, self.hook_k, self.hook_v = ReadPoint(), ReadPoint(), ReadPoint()
        if config.positions.rotates:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        if config.positions.slopes:
            self.hook_slopes = OnDemand()
        self.hook_attn_scores, self.hook_pattern = OnDemand(), OnDemand()
        self.gate = None
        if spec.gate is not None:
            from streamscope.models.layers.gate import HeadGate

            self.gate = HeadGate(spec.gate, d, self.n_heads, self.d_head)
            self.hook_z_ungated, self.hook_gate = HookPoint(), HookPoint()
        self.hook_z = HookPoint()
        self.add_projection("o", spec.o, self.widths[0], d, config, writes=True)
        if not isinstance(spec.o, c.Hdpl):
            self.hook_result = OnDemand()

    def forward(
        self, x: Float[Tensor, "B T D"], x_v: Float[Tensor, "B T D"], canon: nn.Module | None = None
    ) -> Float[Tensor, "B T D"]:
        """The update; `canon` is the block's Canon-B layer, applied to the concatenated q, k, v."""
        return self.write(self.hook_z(self.heads(x, x_v, canon)))

    def heads(
        self,
        x: Float[Tensor, "B T D"],
        x_v: Float[Tensor, "B T D"],
        canon: nn.Module | None = None,
        positions: Int[Tensor, "B P"] | None = None,
    ) -> Float[Tensor, "B rows H K"]:
        """z of every head before its hook: A V, times the gate if there is one.

        `positions` restricts the queries to these of each row, z [B, P, H, K]; keys and values are computed
        everywhere. It excludes a Canon-B layer, which convolves queries over positions.
        """
        x_q = x if positions is None else pick(x, positions)
        if self.training and positions is None:
            q, k, v = self._project_jointly({"q": x, "k": x, "v": x_v})
        else:
            q, k, v = self.project("q", x_q), self.project("k", x), self.project("v", x_v)
        if canon is not None:
            q, k, v = canon(torch.cat([q, k, v], -1)).split(self.widths, -1)
        q, k, v = self.split_heads("q", q), self.split_heads("k", k), self.split_heads("v", v)
        gate = self.gate(q, x_q, x_v if positions is None else pick(x_v, positions)) if self.gate is not None else None
        return self.attend(q, k, v, gate, positions)

    def attend(
        self, q: Float[Tensor, "B rows H K"], k: Float[Tensor, "B T G K"], v: Float[Tensor, "B T G K"],
        gate: Float[Tensor, "B rows H O"] | None = None, positions: Int[Tensor, "B P"] | None = None,
    ) -> Float[Tensor, "B rows H K"]:  # fmt: skip
        """z of every head from queries, keys and values before positions: A V, times the gate if there is one.

        Scores and attention weights are only materialised if somebody listens to them. `positions` [B, P] are those of
        the queries, if not all: only in evaluation and without listeners.
        """
        memory = self.memory.get(get_ident()) if self.memory else None
        positions = positions if memory is None else memory.at
        q = self.positions.rotate(q, positions)
        k = self.positions.rotate(k, None if memory is None else positions)
        if "hook_rot_q" in self._modules:
            q, k = self.hook_rot_q(q), self.hook_rot_k(k)
        q = q if self.query_scale == 1 else q * self.query_scale
        if memory is not None:
            k, v = memory.add(k, v)
        if self.kv_heads != self.n_heads:
            copies = self.n_heads // self.kv_heads
            k, v = k.repeat_interleave(copies, 2), v.repeat_interleave(copies, 2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H, T, K]
        n, rate, slopes, bias = k.shape[2], self.dropout if self.training else 0.0, self.positions.slopes, None
        if slopes is not None:  # with a batch axis only if somebody listens to them
            slopes = self.hook_slopes(slopes.repeat(len(q), 1)) if self.hook_slopes.listening else slopes
            bias = self.positions.bias(n, slopes)
            bias = bias if positions is None else bias[:, positions].transpose(0, 1)
        heard = self.hook_attn_scores._forward_hooks or self.hook_pattern._forward_hooks
        has_listener = heard and (self.hook_attn_scores.listening or self.hook_pattern.listening)
        drops = rate > 0 and q.device.type == "cpu"  # torch has no fused CPU kernel with dropout
        if drops or has_listener or self.softcap:
            scores = softcap(q @ k.mT / math.sqrt(self.d_head), self.softcap)
            scores = (scores if bias is None else scores + bias).masked_fill(self._hidden(k, positions), -torch.inf)
            pattern = self.hook_attn_scores(scores).softmax(-1) if has_listener else scores.softmax(-1)
            pattern = self.hook_pattern(pattern) if has_listener else pattern
            z = (dropout(pattern, rate) if rate else pattern).to(v.dtype) @ v
        elif positions is None and bias is None and not 0 < self.window < n:
            z = causal_attention(q, k, v, rate)
        else:
            mask = ~self._hidden(k, positions)
            if bias is not None:
                mask = bias.masked_fill(~mask, -torch.inf).to(q.dtype)
                mask = mask.expand(q.shape[0], *mask.shape[-3:])  # one kernel, whether or not slopes are listened to
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)
        if not self.training:  # NaN where a query or its own key is not finite; torch's kernel would give 0 there
            own_keys = k if positions is None else pick(k.transpose(1, 2), positions).transpose(1, 2)
            z = z.add((q + own_keys).to(z.dtype), alpha=0)
        z = z.transpose(1, 2)
        return z if gate is None else self.hook_z_ungated(z) * self.hook_gate(gate)

    def _project_jointly(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Apply the projections; dense ones without a bias that read the same tensor become one product.

        Their input is then converted and read once, and the product sums its gradient. Only for training: with separate
        products an analysis gives the same bits at all positions and at some.
        """
        dense = [
            name for name, x in inputs.items()
            if x is inputs["k"] and isinstance(p := self._modules[name], DenseProjection) and p.bias is None
        ]  # fmt: skip
        if len(dense) < 2:
            return [self.project(name, x) for name, x in inputs.items()]
        weights = [self._modules[name].weight for name in dense]  # type: ignore[union-attr]
        product = linear(inputs["k"], torch.cat(weights))  # type: ignore[arg-type]
        outputs = dict(zip(dense, product.split([len(w) for w in weights], -1), strict=True))  # type: ignore[arg-type]
        return [outputs[name] if name in outputs else self.project(name, x) for name, x in inputs.items()]

    def write(self, z: Float[Tensor, "B T H K"]) -> Float[Tensor, "B T D"]:
        """The update, z through the output projection; if somebody listens to the results, head by head and summed."""
        result = self._modules.get("hook_result")
        if result is None or not result._forward_hooks or not result.listening:
            return self.project("o", z.flatten(-2))
        own_head = torch.eye(self.n_heads, dtype=torch.bool, device=z.device)[..., None]
        alone = z[:, :, None].where(own_head, 0.0).flatten(-2)  # [B, T, H, H K], one head in each row
        updates = self.project("o", alone.flatten(1, 2)).unflatten(1, (-1, self.n_heads))
        return result(updates - self.b_O).sum(2) + self.b_O

    def split_heads(self, name: str, y: Tensor) -> Float[Tensor, "B T heads K"]:
        """Split into heads [B, T, H or G, K], apply the norm of queries and keys if there is one, and the hook."""
        norm = self._modules.get(f"{name}_norm")
        over_layer = norm is not None and norm.d_model != self.d_head
        y = (norm(y) if norm is not None and over_layer else y).unflatten(-1, (-1, self.d_head))
        y = y if norm is None or over_layer else norm(y)
        return getattr(self, f"hook_{name}")(y)

    def _hidden(self, k: Tensor, positions: Tensor | None) -> Bool[Tensor, "*B_1 rows T"]:
        """True where a key lies after its query, or before the query's window."""
        keys = torch.arange(k.shape[2], device=k.device)
        at = keys[:, None] if positions is None else positions[:, None, :, None]
        return (keys > at) | (keys <= at - self.window) if self.window else keys > at

    # TransformerLens' names for the weights per head; key and value heads are repeated for grouped queries
    W_Q, W_K, W_V = _per_head("q", "matrix"), _per_head("k", "matrix"), _per_head("v", "matrix")
    """Weights [H, D, K] of queries, keys and values."""
    b_Q, b_K, b_V = _per_head("q", "bias_or_zeros"), _per_head("k", "bias_or_zeros"), _per_head("v", "bias_or_zeros")
    """Biases [H, K]; zeros without a bias."""

    @property
    def W_O(self) -> Float[Tensor, "H K D"]:
        return self.o.matrix().unflatten(0, (self.n_heads, self.d_head))

    b_O = property(lambda self: self.o.bias_or_zeros())
    """Bias [D]."""


NARROW_HEAD = 48
"""Widest head whose gradients a CPU computes faster in fp32 than in bf16, whose kernel packs every tile again. One
core, 8 x 6 x 256: 16.1 against 26.4 ms at width 32, 21.5 against 28.1 at 48, 32.0 against 33.9 at 64."""


def causal_attention(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B H T K"], v: Float[Tensor, "B H T K"], dropout: float = 0.0
) -> Float[Tensor, "B H T K"]:
    """torch's fused causal attention in the dtype of the inputs, or of autocast.

    In bf16 training on a CPU, narrow heads take their gradients from the fp32 kernel, which is faster and more exact.
    """
    device = q.device.type
    if torch.is_autocast_enabled(device):
        q, k, v = (t.to(torch.get_autocast_dtype(device)) for t in (q, k, v))
    narrow = device == "cpu" and q.dtype == torch.bfloat16 and q.shape[-1] <= NARROW_HEAD and not dropout
    if narrow and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _NarrowAttention.apply(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


class _NarrowAttention(torch.autograd.Function):
    """bf16 forward and fp32 backward with torch's fused CPU kernel."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        ctx.save_for_backward(q, k, v, z, logsumexp)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        *saved, logsumexp = ctx.saved_tensors
        wide = (t.float() for t in (*grads, *saved))
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*wide, logsumexp, 0.0, True)
        return tuple(g.to(saved[0].dtype) for g in gradients)


def pick(x: Float[Tensor, "B T ..."], positions: Int[Tensor, "B P"]) -> Float[Tensor, "B P ..."]:
    """Select from each row of x its own positions, counted from 0."""
    return x[torch.arange(x.shape[0], device=x.device)[:, None], positions]
