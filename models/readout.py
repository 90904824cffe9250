"""From the stream to losses and per-layer predictions, never holding [tokens, vocabulary].

A chunk of rows is turned into logits, used, and dropped: the loss and its gradient cost one matrix
product more than the forward pass and memory of [chunk, V].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE = -100
"""Target of a position that has none (padding)."""


def chunk_rows(d_vocab: int, budget: int = 2**22, least: int = 160) -> int:
    """Rows per chunk: `budget` logits (16 MiB in fp32), but no fewer rows than make a product efficient."""
    return max(least, budget // d_vocab)


class _CrossEntropy(torch.autograd.Function):
    """Sum of −log softmax(h W^T)[target] over the rows; gradients are formed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
        wants_h, wants_w = ctx.needs_input_grad[:2]
        total = torch.zeros((), dtype=torch.promote_types(h.dtype, torch.float32), device=h.device)
        grad_h = torch.zeros_like(h) if wants_h else None
        grad_w = torch.zeros_like(w) if wants_w else None
        wd = w.to(dtype)
        size = chunk_rows(w.shape[0])
        for rows in (slice(i, i + size) for i in range(0, h.shape[0], size)):
            hd, t = h[rows].to(dtype), target[rows]
            real = t != IGNORE
            logits = (hd @ wd.T).to(total.dtype)
            lse = logits.logsumexp(-1)
            t = torch.where(real, t, 0)
            hit = logits.gather(-1, t[:, None])[:, 0]
            total += torch.where(real, lse - hit, 0.0).sum()
            if grad_h is None and grad_w is None:
                continue
            delta = logits.sub_(lse[:, None]).exp_()  # softmax − one-hot, zero where there is no target
            delta.scatter_add_(-1, t[:, None], -torch.ones_like(delta[:, :1]))
            delta = (delta * real[:, None]).to(dtype)
            if grad_h is not None:
                grad_h[rows] = (delta @ wd).to(h.dtype)
            if grad_w is not None:
                grad_w += (delta.T @ hd).to(w.dtype)
        ctx.save_for_backward(grad_h, grad_w)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_h, grad_w = ctx.saved_tensors
        (g,) = grads
        return (None if grad_h is None else g * grad_h), (None if grad_w is None else g * grad_w), None, None


def cross_entropy(
    h: Float[Tensor, "*rows D"], w: Float[Tensor, "V D"], target: Int[Tensor, "*rows"]
) -> Float[Tensor, ""]:
    """Mean of −log softmax(h W^T)[target], in nats, over the targets that are not `IGNORE`.

    Under autocast the matrix products are in its dtype; logits are reduced in fp32 (fp64 for fp64 input).
    """
    if not torch.is_grad_enabled():  # inside the Function grad mode is always off
        h, w = h.detach(), w.detach()
    device = h.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else torch.promote_types(h.dtype, w.dtype)
    n = (target != IGNORE).sum().clamp(min=1)
    return _CrossEntropy.apply(h.reshape(-1, h.shape[-1]), w, target.reshape(-1), dtype) / n


@torch.no_grad()
def map_logits(
    h: Float[Tensor, "rows D"], w: Float[Tensor, "V D"], fn: Callable[[Tensor, slice], Tensor]
) -> Float[Tensor, "rows ..."]:
    """Concatenate fn(logits [n, V], rows) over chunks of rows. `fn` must not keep the logits.

    Chunks are even, for a product of one to three rows takes another path and rounds otherwise.
    """
    chunks = max(1, -(-h.shape[0] // chunk_rows(w.shape[0])))
    size = max(1, -(-h.shape[0] // chunks))
    slices = [slice(i, min(i + size, h.shape[0])) for i in range(0, max(1, h.shape[0]), size)]
    return torch.cat([fn(h[rows] @ w.to(h.dtype).T, rows) for rows in slices])


def log_probs_at(logits: Float[Tensor, "rows V"], ids: Int[Tensor, "rows ids"]) -> Float[Tensor, "rows ids"]:
    """ln softmax(logits) at some ids, in nats, in fp32 at least.

    By torch's fused kernel: in fp32 as near to the truth as `logsumexp` with 4,096 ids (2e-6 nats where logits have a
    standard deviation of 3), a little farther with 50,257 (8e-6).
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).gather(-1, ids)


def token_losses(
    h: Float[Tensor, "*rows D"], w: Float[Tensor, "V D"], target: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """−log softmax(h W^T)[target] per position, in nats; 0 where the target is `IGNORE`. No gradient."""
    flat = target.reshape(-1)

    def loss(logits: Tensor, rows: slice) -> Tensor:
        t = flat[rows]
        real = t != IGNORE
        return torch.where(real, -log_probs_at(logits, torch.where(real, t, 0)[:, None])[:, 0], 0.0)

    return map_logits(h.reshape(-1, h.shape[-1]), w, loss).reshape(target.shape)


def divergences(
    h: Float[Tensor, "*rows D"], other: Float[Tensor, "*rows D"], w: Float[Tensor, "V D"]
) -> Float[Tensor, "*rows"]:
    """KL(softmax(h W^T) ‖ softmax(other W^T)) per position, in nats. No gradient."""
    flat = other.reshape(-1, other.shape[-1])

    def kl(logits: Tensor, rows: slice) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        p, q = logits.to(dtype).log_softmax(-1), (flat[rows] @ w.to(flat.dtype).T).to(dtype).log_softmax(-1)
        return (p.exp() * (p - q)).sum(-1)

    return map_logits(h.reshape(-1, h.shape[-1]), w, kl).reshape(h.shape[:-1])


class TopTwo(NamedTuple):
    """Per row: the most probable token, its probability, the second-highest, and the target's."""

    ids: Int[Tensor, " rows"]
    first: Float[Tensor, " rows"]
    second: Float[Tensor, " rows"]
    target: Float[Tensor, " rows"]


TILE = 512
"""Columns of a tile of logits: with `TILE_ROWS` rows it stays in the cache, which makes the product faster too."""
TILE_ROWS = 1024


@torch.no_grad()
def top_two(h: Float[Tensor, "rows D"], w: Float[Tensor, "V D"], target: Int[Tensor, " rows"]) -> TopTwo:
    """The two highest probabilities of softmax(h W^T) and that of `target`, from tiles [1024, 512] of the logits.

    Of each tile only ln Σ exp is kept, and the two largest logits where it holds the largest so far. At least fp32.
    """
    parts = [_top_two(h[i : i + TILE_ROWS], w, target[i : i + TILE_ROWS]) for i in range(0, h.shape[0], TILE_ROWS)]
    return TopTwo(*map(torch.cat, zip(*parts, strict=True)))


def _top_two(h: Tensor, w: Tensor, target: Tensor) -> TopTwo:
    dtype = torch.promote_types(h.dtype, torch.float32)
    h, n = h.to(dtype), h.shape[0]
    tiles = w.tensor_split(-(-w.shape[0] // TILE))
    buffer, lse = h.new_empty(n * len(tiles[0])), h.new_empty(len(tiles), n)
    first, second = h.new_full((2, n), -torch.inf)
    ids, start = torch.zeros(n, dtype=torch.long, device=h.device), 0
    for j, tile in enumerate(tiles):
        logits = torch.mm(h, tile.to(dtype).T, out=buffer[: n * len(tile)].view(n, len(tile)))
        largest = logits.amax(-1)
        lse[j] = largest - logits.softmax(-1).amax(-1).log()  # the largest softmax is 1 / Σ exp(z − max)
        rows = (largest > first).nonzero()[:, 0]
        values, at = logits[rows].topk(2, -1)
        second = torch.maximum(second, largest)
        second[rows] = torch.maximum(first[rows], values[:, 1])
        first[rows], ids[rows] = values[:, 0], at[:, 0] + start
        start += len(tile)
    total = lse.logsumexp(0)
    p_first = (first - total).exp()
    p_target = ((h * w[target].to(dtype)).sum(-1) - total).exp()
    return TopTwo(ids, p_first, (second - total).exp(), torch.where(ids == target, p_first, p_target))
