"""How far a changed model departs from the unchanged one, document by document: loss, KL, a projection.

A variant is a set of edits on the same model, started from a cached prefix as in `interventions.sweep`, or another
model of the same vocabulary. Nothing holds [tokens, vocabulary] for more than a chunk of rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interventions.sweep import first_layer
from models.capture import Edits, edit
from models.errors import InputError
from models.readout import chunk_rows
from models.text.shards import NO_TARGET, TokenShards, document_batches
from models.transformer import StreamTransformer

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
    starts = [first_layer(v) if isinstance(v, Mapping) else 0 for v in variants]
    n = min(shards.n_documents, max_documents or shards.n_documents)
    loss, kl_sums, shift = np.zeros((3, len(variants), n))
    out = Divergence(np.zeros(n), loss, kl_sums, shift, np.zeros(n, dtype=np.int64))
    device = model.cfg.device
    for index, tokens, targets in progress(list(document_batches(shards, model.config.n_ctx, batch_size, n))):
        tokens, targets = tokens.to(device), targets.to(device)
        states = [model.embed_tokens(tokens)]
        for layer in range(model.config.n_layers):
            states.append(model.segment(states[-1], layer, layer + 1))
        real = targets != NO_TARGET
        out.tokens[index] = real.sum(1).cpu().numpy()
        out.baseline[index] = _sums(model.losses_from(states[-1], targets))
        x = model.readout(states[-1])
        h = model.ln_final(x)[real]
        for i, variant in enumerate(variants):
            if isinstance(variant, Mapping):
                changed: StreamTransformer = model
                with edit(model, variant):
                    state = model.segment(states[starts[i]], starts[i])
            else:
                changed = variant
                state = variant.segment(variant.embed_tokens(tokens))
            out.loss[i, index] = _sums(changed.losses_from(state, targets))
            y = changed.readout(state)
            kl = torch.zeros(real.shape, dtype=torch.float64, device=device)
            kl[real] = kl_rows(changed.ln_final(y)[real], changed.head, h, model.head)
            out.kl[i, index] = _sums(kl)
            if direction is not None:
                out.shift[i, index] = _sums(((y - x).double() @ direction.to(device).double()) * real)
    for name in ("baseline", "loss", "kl"):
        if not np.isfinite(getattr(out, name)).all():
            raise InputError(f"the {name} is not finite: the change is too large for these weights")
    return out


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


def _sums(values: Tensor) -> np.ndarray:
    return values.double().sum(1).cpu().numpy()


def per_token(totals: np.ndarray, tokens: np.ndarray) -> dict[str, Any]:
    """mean, sd, ci_low, ci_high per token of sums per document: `statistics.ratio_of_sums`, documents as units."""
    from probes.statistics import ratio_of_sums

    e = ratio_of_sums(totals, tokens)
    return {"mean": e.mean, "sd": e.sd, "ci_low": e.ci_low, "ci_high": e.ci_high, "n": e.n}
