"""Contributions of every part of a model to answer minus foil, with the final norm's scale held fixed.

The head reads y = (W_a − W_f) · norm(x), and x = Σ_i v_i sums the embedding, every head's output and every FFN's. For a
given scale s the norm is linear, so at one position

    y = Σ_i c(v_i; s) + const,      c(v; s) = (W_a − W_f) · (γ ⊙ (v − mean v) / s)      nats (logits)

(no mean with RMSNorm; mean and s per head channel with ChannelLayerNorm). A head's v is z_h W_O,h; attention's bias is
the rest of attention's update. With one or two streams (DST Eq. 1: x = x_t + x_e) v_i is the update itself. With
hyper-connections an update f_m enters every stream by H_post and is mixed by each later H_res, all per position, so
v_m = w_m f_m with

    w_m = rᵀ H_res^(M) … H_res^(m+1) H_post^(m),    r = 1 (sum) or 1/N (mean of the streams),    embedding: rᵀ Π H_res 1

and a change of w (dynamic coefficients) is part of a change of v.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.config import Hyper
from streamscope.models.hooks import Edits, Query, run
from streamscope.models.transformer import StreamTransformer

HOOKS = ("blocks.0.hook_resid_pre", "blocks.*.attn.hook_z", "blocks.*.hook_attn_out", "blocks.*.hook_mlp_out")


@dataclass(frozen=True)
class Contributions:
    """Parts of answer − foil in nats for N cases: embed [N], heads [L, H, N], attn [L, N] (with its bias), mlp [L, N];
    `read` [N] is c(x; s) of the stream itself, embed + Σ attn + Σ mlp."""

    embed: np.ndarray
    heads: np.ndarray
    attn: np.ndarray
    mlp: np.ndarray
    read: np.ndarray


@dataclass(frozen=True)
class Pass:
    """The final position of every case, in float64: embed [N, D], z [L, N, H, K], attn [L, N, D] and mlp [L, N, D],
    weighted along their path; final [N, D], the input of the final norm; scale [N, 1] or [N, H, 1], its s; weights
    [1 + 2 L, N], w of the embedding and of every update in order."""

    embed: Tensor
    z: Tensor
    attn: Tensor
    mlp: Tensor
    final: Tensor
    scale: Tensor
    weights: Tensor


def observe(
    model: StreamTransformer, tokens: Sequence[Sequence[int]], positions: Sequence[int], edits: Edits | None = None
) -> Pass:
    """One pass over the cases, read at their positions."""
    n, config = model.config.n_layers, model.config
    hooks = [*HOOKS, f"blocks.{n - 1}.hook_resid_post", "ln_final.hook_scale"]
    if isinstance(config.residual, Hyper):
        hooks += [f"blocks.*.{branch}_hc.hook_{name}" for branch in ("attn", "mlp") for name in ("res", "post")]
    captures = run(model, Query(tokens=list(tokens), hooks=tuple(hooks), positions=[[p] for p in positions]), edits)

    def at(name: str) -> Tensor:
        return torch.stack([x[0] for x in captures.hooks[name]]).double()

    def layers(name: str) -> Tensor:
        return torch.stack([at(f"blocks.{layer}.{name}") for layer in range(n)])

    first = at("blocks.0.hook_resid_pre")
    if isinstance(config.residual, Hyper):
        names = [f"blocks.{layer}.{branch}_hc.hook_" for layer in range(n) for branch in ("attn", "mlp")]
        res, post = ([at(name + part) for name in names] for part in ("res", "post"))
        weights = path_weights(res, post, config.residual)
        first = first / (config.residual.n if config.residual.reduce == "sum" else 1)  # the readout of n copies
    else:
        weights = first.new_ones(1 + 2 * n, len(first))
    w, final, scale = weights[..., None], at(f"blocks.{n - 1}.hook_resid_post"), at("ln_final.hook_scale")
    z, attn, mlp = (layers(name) for name in ("attn.hook_z", "hook_attn_out", "hook_mlp_out"))
    return Pass(w[0] * first, z * w[1::2, ..., None], attn * w[1::2], mlp * w[2::2], final, scale, weights)


def path_weights(res: Sequence[Tensor], post: Sequence[Tensor], spec: Hyper) -> Tensor:
    """w [1 + M, N] above, from H_res [N, S, S] and H_post [N, S] of the M updates in order."""
    reader = torch.full_like(post[-1], 1.0 if spec.reduce == "sum" else 1.0 / spec.n)
    weights = []
    for H_res, H_post in zip(reversed(res), reversed(post), strict=True):
        weights.append((reader * H_post).sum(-1))
        reader = torch.einsum("bs,bst->bt", reader, H_res)
    return torch.stack([reader.sum(-1), *reversed(weights)])


def check_heads(model: StreamTransformer) -> None:
    """Raise `InputError` for output projections that are not linear, and norms after them: their heads have no
    contributions of their own."""
    model.no_norm_after()
    blocks: Any = model.blocks
    for layer, block in enumerate(blocks):
        try:
            _ = block.attn.W_O
        except InputError:
            raise InputError(
                f"the output projection of layer {layer} is not linear in z, so heads do not add up; use a model with "
                "a linear one, such as dense or independent"
            ) from None


def directions(model: StreamTransformer, answers: Sequence[Sequence[int]], scale: Tensor) -> Tensor:
    """d [N, D] with c(v; s) = d · v for every case; answers [N, 2] are the ids of answer and foil. Raises `InputError`
    for capped logits."""
    _ = model.logit_scale  # refuses capped logits
    ids = torch.as_tensor([list(pair) for pair in answers], device=model.head.device)
    u = (model.head[ids[:, 0]] - model.head[ids[:, 1]]).detach().double() * model.ln_final.weight.detach().double()
    norm = model.ln_final
    groups = u.unflatten(-1, (norm.groups, -1))  # statistics over each group
    if norm.centred:
        groups = groups - groups.mean(-1, keepdim=True)
    return (groups / scale.reshape(len(u), norm.groups, 1)).flatten(-2)


def contributions(model: StreamTransformer, states: Pass, d: Tensor) -> Contributions:
    """The parts of a pass along d [N, D]."""
    blocks: Any = model.blocks
    w_o = torch.stack([block.attn.W_O.detach().double() for block in blocks])  # [L, H, K, D]
    heads = torch.einsum("lnhk,lhkd,nd->lhn", states.z, w_o, d).cpu().numpy()
    embed, attn, mlp, final = (
        (x * d).sum(-1).cpu().numpy() for x in (states.embed, states.attn, states.mlp, states.final)
    )
    return Contributions(embed, heads, attn, mlp, final)
