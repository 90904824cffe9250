"""Losses per document under many edits, from passes that the edits share (`models.sweep.batched_sweep`)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from streamscope.interventions.batch import ticks
from streamscope.models.errors import InputError
from streamscope.models.hooks import Edits
from streamscope.models.readout import IGNORE, divergences, token_losses
from streamscope.models.sweep.driver import Measured, measure_rows
from streamscope.models.sweep.stages import Plan
from streamscope.models.text.shards import TokenShards, document_batches
from streamscope.models.transformer import StreamTransformer


@dataclass(frozen=True)
class Losses:
    """Summed loss in nats per document: `baseline` [documents], `edited` [edits, documents]; targets per document.

    `divergence` [edits, documents] is Σ KL(unedited ‖ edited) over a document's targets, in nats; 0 when not asked for.
    """

    baseline: np.ndarray
    edited: np.ndarray
    tokens: np.ndarray
    divergence: np.ndarray


@torch.no_grad()
def document_losses(
    model: StreamTransformer,
    shards: TokenShards,
    sweep: Sequence[Edits],
    *,
    divergence: bool = False,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
    budget: int | None = None,
) -> Losses:
    """Loss of every document, unedited and under each of `sweep`'s edits. Documents are cut at the context.

    With `divergence` also how far the predictions move, for one more product with the head per edit. `budget` is the
    number of tokens that run at once. Raises `InputError` as `Trajectories` does, for data of another vocabulary and
    for losses that are not finite.
    """
    if shards.meta["d_vocab"] > model.config.d_vocab:
        raise InputError(f"data of {shards.meta['d_vocab']} token ids for a model of {model.config.d_vocab}")
    plans = [Plan(model, edits) for edits in [{}, *sweep]]
    n = min(shards.n_documents, max_documents or shards.n_documents)
    losses, moved = np.zeros((2, len(plans), n))
    counts = np.zeros(n, dtype=np.int64)
    batches = list(document_batches(shards, model.config.n_ctx, batch_size, max_documents))
    done = ticks(progress, len(batches) * len(plans))
    for index, tokens, targets in batches:
        tokens, targets = tokens.to(model.cfg.device), targets.to(model.cfg.device)
        real = targets != IGNORE
        counts[index] = real.sum(1).cpu().numpy()
        values = measure_rows(model, tokens, plans, _sums(model, targets, divergence), done=done, budget=budget)
        losses[:, index], moved[:, index] = values[:, 0], values[:, 1]
    done(0)
    out = Losses(losses[0], losses[1:], counts, moved[1:])
    for name, values in (("baseline", out.baseline), ("edited", out.edited)):
        if not np.isfinite(values).all():
            raise InputError(f"the {name} loss is not finite on {int((~np.isfinite(values)).sum())} documents")
    return out


def _sums(model: StreamTransformer, targets: Tensor, divergence: bool) -> Measured:
    """[2, B]: summed loss and KL(unedited ‖ edited) of each document, from its final streams; unedited comes first."""
    real = targets != IGNORE
    first: list[Tensor] = []

    def sums(stream: Tensor, _: dict[str, Any]) -> np.ndarray:
        h = stream[real]
        first[:] = first or [h]
        loss = document_sums(token_losses(h, model.head, targets[real]), real)
        kl = document_sums(divergences(first[0], h, model.head), real) if divergence else np.zeros_like(loss)
        return np.stack([loss, kl])

    return sums


def document_sums(values: Float[Tensor, " targets"], real: Bool[Tensor, "B T"]) -> np.ndarray:
    """Sums [B] over each document's targets."""
    table = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
    table[real] = values.double()
    return table.sum(1).cpu().numpy()
