"""The peers of our training step: a plain GPT of the shape of `std-t`, and a model of ours without its hook points."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from streamscope.models.config import ModelConfig
from streamscope.models.transformer import StreamTransformer


class PlainBlock(nn.Module):
    """Pre-norm block with a fused QKV projection."""

    def __init__(self, d: int, heads: int, d_mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, d_mlp, bias=False), nn.Linear(d_mlp, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, dim=-1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(z)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class PlainGPT(nn.Module):
    """Learned positions, tied head, loss by `F.cross_entropy` over all logits at once."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.d_vocab, c.d_model), nn.Embedding(c.n_ctx, c.d_model)
        self.blocks = nn.ModuleList([PlainBlock(c.d_model, c.n_heads, c.d_mlp) for _ in range(c.n_layers)])
        self.ln_f = nn.LayerNorm(c.d_model)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def loss(self, tokens: Tensor, targets: Tensor, *, blocks: list | None = None) -> Tensor:
        """Mean cross-entropy in nats per token."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in blocks or self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def without_hooks(model: StreamTransformer) -> StreamTransformer:
    """A copy whose hook points are bare identities."""

    class Bare:
        listening, _forward_hooks = False, ()

        def __call__(self, x: Any) -> Any:
            return x

    bare = copy.deepcopy(model)
    for module in bare.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, HookPoint):
                del module._modules[name]
                object.__setattr__(module, name, Bare())
    return bare
