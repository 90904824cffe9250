"""How far a changed model departs from the unchanged one, document by document: loss, KL, a projection.

A variant is a set of edits on the same model, in passes that the variants share (`models.sweep`), or another
model of the same vocabulary. Nothing holds [tokens, vocabulary] for more than a chunk of rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from streamscope.models.sweep.driver import measure_rows
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
    edited = [i for i, variant in enumerate(variants) if isinstance(variant, Mapping)]
    plans = [Plan(model, edits) for edits in ({}, *(v for v in variants if isinstance(v, Mapping)))]
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    along = None if direction is None else direction.to(device).double()
    options: dict[str, Any] = {} if along is None else {"names": [last], "keep": lambda _, x: x.double() @ along}
    for index, tokens, targets in progress(list(document_batches(shards, model.config.n_ctx, batch_size, n))):
        tokens, targets = tokens.to(device), targets.to(device)
        out.tokens[index] = (targets != NO_TARGET).sum(1).cpu().numpy()
        departs = _Departure(model, targets, last)
        found = measure_rows(model, tokens, plans, departs, **options)
        out.baseline[index] = found[0, 0]
        for at, values in zip(edited, found[1:], strict=True):
            loss[at, index], kl_sums[at, index], shift[at, index] = values
        for i, variant in enumerate(variants):
            if not isinstance(variant, Mapping):
                x = variant.readout(variant.segment(variant.embed_tokens(tokens)))
                place = {} if along is None else {last: x.double() @ along}
                loss[i, index], kl_sums[i, index], shift[i, index] = departs(variant.ln_final(x), place, variant.head)
    for name in ("baseline", "loss", "kl"):
        if not np.isfinite(getattr(out, name)).all():
            raise InputError(f"the {name} is not finite: the change is too large for these weights")
    return out


class _Departure:
    """[3, B] of each document from its final streams: summed loss, KL from the first that was asked, shift of d·x."""

    def __init__(self, model: StreamTransformer, targets: Tensor, last: str) -> None:
        self.head, self.targets, self.last, self.real = model.head, targets, last, targets != NO_TARGET
        self.first: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, stream: Tensor, captured: Mapping[str, Any], head: Tensor | None = None) -> np.ndarray:
        h, place, head = stream[self.real], captured.get(self.last), self.head if head is None else head
        if self.first is None:
            self.first = h, place
        unchanged, before = self.first
        loss = document_sums(token_losses(h, head, self.targets[self.real]), self.real)
        kl = document_sums(kl_rows(h, head, unchanged, self.head), self.real)
        shift = np.zeros_like(loss)
        if place is not None and before is not None:
            shift = document_sums((place - before)[self.real], self.real)
        return np.stack([loss, kl, shift])


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
