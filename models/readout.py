"""Computes losses and predictions from the residual stream without holding [tokens, vocabulary].

Logits exist only for a chunk of rows at a time: the loss and its gradient cost one more matrix product than the forward
pass, and memory of [chunk, V].
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from streamscope.models.layers.head import Capped, Head, softcap, unembed

IGNORE = -100
"""The target that stands for “none”: padding, for example."""


def chunk_rows(d_vocab: int, budget: int = 2**22, least: int = 160) -> int:
    """Rows per chunk: `budget` logits (16 MiB in fp32), but at least `least` rows, for an efficient product."""
    return max(least, budget // d_vocab)


LOSS_BUDGET = {"cpu": (2**22, 640), "cuda": (2**27, 2048)}
"""(logits, least rows) per chunk of the training loss, by device. Each chunk reads and writes the gradient of the head,
so few rows are slow: on two CPU cores at V = 50,257, width 384, 640 rows take a quarter of the time of 160. On a GPU a
chunk has some hundred MB, for few kernels."""
CACHE = 2**18
"""Logits per CPU thread whose softmax is computed at once: 1 MiB in fp32, which stays in the cache."""
VOCABULARY_MULTIPLE, WIDTH_MULTIPLE = 64, 8
"""On CUDA, the product pads the head to these multiples for tensor cores: 50,257 to 50,304 rows, 516 to 520 columns."""


def loss_rows(d_vocab: int, device: str) -> int:
    return chunk_rows(d_vocab, *LOSS_BUDGET.get(device, LOSS_BUDGET["cuda"]))


def _padding(d_vocab: int, d_model: int, device: str) -> tuple[int, int]:
    """Rows and columns of zeros that pad the head inside the product."""
    return (-d_vocab % VOCABULARY_MULTIPLE, -d_model % WIDTH_MULTIPLE) if device == "cuda" else (0, 0)


class _CrossEntropy(torch.autograd.Function):
    """Σ_l scale_l · mean over the targets of −log softmax(h_l W^T)[target], and the means (without a gradient).

    The forward pass computes the gradients of all h_l together: W is converted once, and its gradient exists once.
    """

    @staticmethod
    def forward(
        ctx: Any, w: Tensor, target: Tensor, dtype: torch.dtype, scales: tuple[float, ...], cap: float, *hs: Tensor
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(torch.promote_types(hs[0].dtype, w.dtype), torch.float32)
        wants_w, wants_h = ctx.needs_input_grad[0], any(ctx.needs_input_grad[5:])
        real = target != IGNORE
        index = torch.where(real, target, 0)[:, None]
        share = real.to(wide)[:, None] / real.sum().clamp(min=1)  # of the mean, per row
        (v, d), (more_v, more_d) = w.shape, _padding(w.shape[0], w.shape[1], w.device.type)
        wd = F.pad(w.to(dtype), (0, more_d, 0, more_v)) if more_v or more_d else w.to(dtype)
        grad_hs = [torch.empty_like(h) for h in hs] if wants_h else []
        grad_w: Tensor | None = None
        slices = _even(len(target), loss_rows(v, w.device.type))
        means = []
        for number, h in enumerate(hs):
            log_probs = []
            for rows in slices:
                hd = F.pad(h[rows].to(dtype), (0, more_d)) if more_d else h[rows].to(dtype)
                logits = hd @ wd.T
                if cap:  # c tanh(y / c), whose derivative is 1 − tanh²(y / c)
                    slope = 1 - logits.div_(cap).tanh_().square()
                    logits *= cap
                if more_v:
                    logits[:, v:] = -torch.inf  # probability and gradient of a padded row are exactly 0
                scale = share[rows] * scales[number] if wants_h or wants_w else None
                log_probs.append(_log_probs(logits, index[rows], wide, scale))
                if cap and scale is not None:
                    logits *= slope
                if wants_h:
                    grad_hs[number][rows] = (logits @ wd)[:, :d]
                if wants_w:
                    part = (logits.T @ hd)[:v, :d]
                    grad_w = part.to(w.dtype) if grad_w is None else grad_w.add_(part)
            means.append(-(torch.cat(log_probs) * share).sum())
        losses = torch.stack(means)
        total = torch.zeros_like(means[0])
        for weight, mean in zip(scales, means, strict=True):  # avoids copying a list to the device
            total = total + weight * mean
        ctx.save_for_backward(grad_w, *grad_hs)
        ctx.mark_non_differentiable(losses)
        return total, losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_w, *grad_hs = ctx.saved_tensors
        g, n = grads[0], len(ctx.needs_input_grad) - 5
        gradients = [g * grad for grad in grad_hs] if grad_hs else [None] * n
        return (None if grad_w is None else g * grad_w), None, None, None, None, *gradients


def _log_probs(logits: Tensor, index: Tensor, wide: torch.dtype, scale: Tensor | None) -> Tensor:
    """ln softmax(logits)[index] [rows, 1] in dtype `wide`; with `scale` [rows, 1], logits are overwritten by their
    gradient.

    The gradient of −log softmax[index] is softmax − one-hot; it is scaled before it is rounded to the logits' dtype.
    """
    size, out = 2**31, []  # rows at once: one cache full on a CPU; the whole chunk elsewhere, or if compiled
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        size = max(1, torch.get_num_threads() * CACHE // logits.shape[1])
    for rows in (slice(i, i + size) for i in range(0, logits.shape[0], size)):
        z, t = logits[rows], index[rows]
        if scale is None:
            out.append(z.log_softmax(-1, dtype=wide).gather(-1, t))
            continue
        p = z.softmax(-1, dtype=wide)  # ln p from the largest, which is no less than 1 / V: half the exponentials
        out.append(z.gather(-1, t).to(wide) - z.amax(-1, keepdim=True).to(wide) + p.amax(-1, keepdim=True).log())
        p.scatter_add_(-1, t, p.new_full((), -1.0).expand_as(t))
        torch.mul(p, scale[rows], out=z)
    return torch.cat(out)


def _even(n: int, most: int) -> list[slice]:
    """Split 0 … n−1 into slices of nearly equal size, at most `most`."""
    size = max(1, -(-n // max(1, -(-n // most))))
    cuts = [*range(0, max(1, n), size), n]
    return list(map(slice, cuts, cuts[1:]))


def cross_entropy(h: Float[Tensor, "*rows D"], w: Head, target: Int[Tensor, "*rows"]) -> Float[Tensor, ""]:
    """The mean of −log softmax(h W^T)[target] in nats over the targets other than `IGNORE`.

    Matrix products use the dtype of autocast; logits are reduced in fp32 (fp64 for fp64 input).
    """
    return cross_entropies([h], w, target, [1.0])[0]


def cross_entropies(
    hs: Sequence[Float[Tensor, "*rows D"]], w: Head, target: Int[Tensor, "*rows"],
    scales: Sequence[float],
) -> tuple[Float[Tensor, ""], Float[Tensor, " hs"]]:  # fmt: skip
    """(Σ_l scale_l · cross_entropy(h_l), each cross_entropy(h_l) without a gradient), for per-layer supervision.

    All layers share one gradient of W, where separate losses would hold one each.
    """
    w, cap = (w.weight, w.cap) if isinstance(w, Capped) else (w, 0.0)
    if not torch.is_grad_enabled():  # grad mode is always off inside the Function
        hs, w = [h.detach() for h in hs], w.detach()
    device = w.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else torch.promote_types(hs[0].dtype, w.dtype)
    flat = [h.reshape(-1, h.shape[-1]) for h in hs]
    return _CrossEntropy.apply(w, target.reshape(-1), dtype, tuple(scales), cap, *flat)


@torch.no_grad()
def map_logits(h: Float[Tensor, "rows D"], w: Head, fn: Callable[[Tensor, slice], Tensor]) -> Float[Tensor, "rows ..."]:
    """Concatenate fn(logits [n, V], rows) over chunks of rows; `fn` must not keep the logits.

    Chunks are even, because a product of one to three rows takes another path and rounds differently.
    """
    slices = _even(h.shape[0], chunk_rows(w.shape[0]))
    return torch.cat([fn(unembed(h[rows], w.to(h.dtype)), rows) for rows in slices])


def log_probs_at(logits: Float[Tensor, "rows V"], ids: Int[Tensor, "rows ids"]) -> Float[Tensor, "rows ids"]:
    """ln softmax(logits) at some ids, in nats, in at least fp32.

    torch's fused kernel is as exact as `logsumexp` with 4,096 ids (2e-6 nats for logits with a standard deviation of
    3), and slightly less with 50,257 (8e-6).
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).gather(-1, ids)


def token_losses(h: Float[Tensor, "*rows D"], w: Head, target: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """−log softmax(h W^T)[target] per position in nats, 0 if the target is `IGNORE`; without a gradient."""
    ids = torch.where(target == IGNORE, 0, target).reshape(-1, 1)
    flat = h.reshape(-1, h.shape[-1])
    log_probs = map_logits(flat, w, lambda logits, rows: log_probs_at(logits, ids[rows]))
    return torch.where(target == IGNORE, 0.0, -log_probs.reshape(target.shape))


def divergences(
    h_p: Float[Tensor, "*rows D"], h_q: Float[Tensor, "*rows D"], w_p: Head,
    w_q: Head | None = None,
) -> Float[Tensor, "*rows"]:  # fmt: skip
    """KL(P ‖ Q) = Σ_v p_v (ln p_v − ln q_v) in nats per position, P = softmax(h_p w_p^T), Q = softmax(h_q w_q^T); fp64.

    `w_q` defaults to `w_p`. The KL of equal inputs is exactly 0. Logits are products in the dtype of the inputs, so in
    fp32 differences below 1e-6 are rounding. There is no gradient.
    """
    flat, head_q = h_q.reshape(-1, h_q.shape[-1]), w_p if w_q is None else w_q

    def kl(logits: Tensor, rows: slice) -> Tensor:
        log_p = logits.double().log_softmax(-1)
        log_q = unembed(flat[rows], head_q.to(flat.dtype)).double().log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    return map_logits(h_p.reshape(-1, h_p.shape[-1]), w_p, kl).reshape(h_p.shape[:-1])


TILE, TILE_ROWS = 512, 1024
"""Columns and rows of a tile of logits, which stays in the cache and makes the product faster too."""


@torch.no_grad()
def top_two(
    h: Float[Tensor, "rows D"], w: Head, target: Int[Tensor, " rows"]
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"], Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Per row, the most probable token by softmax(h W^T), its probability, the second-highest and that of `target`.

    Probabilities are in at least fp32. Logits are computed in tiles [1024, 512]; of each tile only ln Σ exp and its
    largest logits are kept.
    """
    parts = [_top_two(h[i : i + TILE_ROWS], w, target[i : i + TILE_ROWS]) for i in range(0, h.shape[0], TILE_ROWS)]
    ids, first, second, of_target = map(torch.cat, zip(*parts, strict=True))
    return ids, first, second, of_target


def _top_two(h: Tensor, head: Head, target: Tensor) -> tuple[Tensor, ...]:
    w, cap = (head.weight, head.cap) if isinstance(head, Capped) else (head, 0.0)
    dtype = torch.promote_types(h.dtype, torch.float32)
    h, n = h.to(dtype), h.shape[0]
    tiles = w.tensor_split(-(-w.shape[0] // TILE))
    buffer, lse = h.new_empty(n * len(tiles[0])), h.new_empty(len(tiles), n)
    first, second = h.new_full((2, n), -torch.inf)
    ids, start = torch.zeros(n, dtype=torch.long, device=h.device), 0
    for j, tile in enumerate(tiles):
        logits = torch.mm(h, tile.to(dtype).T, out=buffer[: n * len(tile)].view(n, len(tile)))
        if cap:
            logits.div_(cap).tanh_().mul_(cap)
        largest = logits.amax(-1)
        lse[j] = largest - logits.softmax(-1).amax(-1).log()  # the largest softmax is 1 / Σ exp(z − max)
        rows = (largest > first).nonzero()[:, 0]
        values, index = logits[rows].topk(2, -1)
        second = torch.maximum(second, largest)
        second[rows] = torch.maximum(first[rows], values[:, 1])
        first[rows], ids[rows] = values[:, 0], index[:, 0] + start
        start += len(tile)
    total = lse.logsumexp(0)
    p_first = (first - total).exp()
    p_target = (softcap((h * w[target].to(dtype)).sum(-1), cap) - total).exp()
    return ids, p_first, (second - total).exp(), torch.where(ids == target, p_first, p_target)


def settling_depth(predicted: Int[Tensor, "L tokens"]) -> Int[Tensor, " tokens"]:
    """The first layer from which on all layers predict what the last one does."""
    return len(predicted) - (predicted == predicted[-1]).flip(0).long().cumprod(0).sum(0)
