"""How far a changed model departs from the unchanged one, document by document: loss, KL, a projection.

A variant is a set of edits on the same model, in passes that the variants share (`models.sweep`), or another
model of the same vocabulary. Nothing holds [tokens, vocabulary] for more than a chunk of rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.interventions.sweep import document_sums
from streamscope.models.errors import InputError
from streamscope.models.hooks import Edits
from streamscope.models.readout import chunk_rows, token_losses
from streamscope.models.sweep.batched_sweep import Trajectories
from streamscope.models.sweep.stages import Plan
from streamscope.models.text.shards import NO_TARGET, TokenShards, document_batches
from streamscope.models.transformer import StreamTransformer

Variant = Edits | StreamTransformer


@dataclass(frozen=True)
class Divergence:
    """Sums over the positions of each document that have a target: nats, and units of the residual stream for `shift`.

    baseline [documents], loss, kl, shift [variants, documents], tokens [documents].
    """

    baseline: np.ndarray
    loss: np.ndarray
    kl: np.ndarray
    shift: np.ndarray
    tokens: np.ndarray


@torch.no_grad()
def document_divergence(
    model: StreamTransformer,
    shards: TokenShards,
    variants: Sequence[Variant],
    *,
    direction: Float[Tensor, " D"] | None = None,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Divergence:
    """Loss, KL(P_variant ‖ P_model) of next-token distributions, and the shift of d·x at the last layer.

    x is the readout before the final norm; without `direction` the shift is 0. Documents are cut at the context. Raises
    `InputError` for data of another vocabulary and for values that are not finite.
    """
    if shards.meta["d_vocab"] > model.config.d_vocab:
        raise InputError(f"data of {shards.meta['d_vocab']} token ids for a model of {model.config.d_vocab}")
    n = min(shards.n_documents, max_documents or shards.n_documents)
    loss, kl_sums, shift = np.zeros((3, len(variants), n))
    out = Divergence(np.zeros(n), loss, kl_sums, shift, np.zeros(n, dtype=np.int64))
    device = model.cfg.device
    along = None if direction is None else direction.to(device).double()
    for index, tokens, targets in progress(list(document_batches(shards, model.config.n_ctx, batch_size, n))):
        tokens, targets = tokens.to(device), targets.to(device)
        real = targets != NO_TARGET
        out.tokens[index] = real.sum(1).cpu().numpy()
        passes = _streams(model, tokens, variants, along)
        _, stream, before = next(passes)
        unchanged = stream[real]
        out.baseline[index] = document_sums(token_losses(unchanged, model.head, targets[real]), real)
        for which, stream, place in passes:
            h, cells = stream[real], np.ix_(np.array(which), index)
            variant = variants[which[0]]
            head = model.head if isinstance(variant, Mapping) else variant.head
            out.loss[cells] = document_sums(token_losses(h, head, targets[real]), real)
            out.kl[cells] = document_sums(kl_rows(h, head, unchanged, model.head), real)
            if place is not None and before is not None:
                out.shift[cells] = document_sums((place - before)[real], real)
    for name in ("baseline", "loss", "kl"):
        if not np.isfinite(getattr(out, name)).all():
            raise InputError(f"the {name} is not finite: the change is too large for these weights")
    return out


def _streams(
    model: StreamTransformer, tokens: Tensor, variants: Sequence[Variant], along: Tensor | None
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """(variants, their final normed stream [B, T, D], d·x [B, T] of the readout before the norm); none first."""
    edited = [i for i, variant in enumerate(variants) if isinstance(variant, Mapping)]
    plans = [Plan(model, edits) for edits in ({}, *(v for v in variants if isinstance(v, Mapping)))]
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    options: dict[str, Any] = {} if along is None else {"names": [last], "keep": lambda _, x: x.double() @ along}
    for arrived in Trajectories(model, tokens, plans, **options):
        assert arrived.h is not None
        for members, h, found in zip(arrived.edits, arrived.h, arrived.found, strict=True):
            if 0 in members:
                yield [], h, found.get(last)
            if which := [edited[e - 1] for e in members if e]:
                yield which, h, found.get(last)
    for i, variant in enumerate(variants):
        if not isinstance(variant, Mapping):
            x = variant.readout(variant.segment(variant.embed_tokens(tokens)))
            yield [i], variant.ln_final(x), None if along is None else x.double() @ along


@torch.no_grad()
def kl_rows(
    h_p: Float[Tensor, "rows D"], w_p: Float[Tensor, "V D"], h_q: Float[Tensor, "rows D"], w_q: Float[Tensor, "V D"]
) -> Float[Tensor, " rows"]:
    """KL(P ‖ Q) = Σ_v p_v (ln p_v − ln q_v) in nats per row, P = softmax(h_p w_p^T), Q = softmax(h_q w_q^T); float64.

    Exactly 0 for equal inputs; the logits are float32, so differences below 1e-6 are rounding.
    """
    size, parts = chunk_rows(w_p.shape[0]), [h_p.new_zeros(0, dtype=torch.float64)]
    for start in range(0, h_p.shape[0], size):
        rows = slice(start, start + size)
        log_p = (h_p[rows] @ w_p.T).double().log_softmax(-1)
        log_q = (h_q[rows] @ w_q.T).double().log_softmax(-1)
        parts.append((log_p.exp() * (log_p - log_q)).sum(-1))
    return torch.cat(parts)


def per_token(totals: np.ndarray, tokens: np.ndarray) -> dict[str, Any]:
    """mean, sd, ci_low, ci_high per token of sums per document: `estimators.ratio_of_sums`, documents as units."""
    from streamscope.probes.stats.estimators import ratio_of_sums

    e = ratio_of_sums(totals, tokens)
    return {"mean": e.mean, "sd": e.sd, "ci_low": e.ci_low, "ci_high": e.ci_high, "n": e.n}
