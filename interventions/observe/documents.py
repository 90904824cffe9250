"""Loss of every document under many edits, and how far each edit departs from the unedited model: KL, a projection.

    found = document_losses(model, shards, [scale_heads([head], 0.0) for head in heads], kl="forward")
    (found.edited - found.baseline) / found.tokens      [edits, documents], nats/token

A variant is a set of edits on the same model, in passes that the variants share (`models.sweep`), or another model of
the same vocabulary. Nothing holds [tokens, vocabulary] for more than a chunk of rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Measure
from streamscope.interventions.observe import SMALLEST, UNIT, Observed
from streamscope.interventions.observe.answers import ticks
from streamscope.models.hooks import Edits, edited_at
from streamscope.models.readout import divergences, token_losses
from streamscope.models.sweep.driver import measure_rows
from streamscope.models.sweep.stages import Plan
from streamscope.models.transformer import StreamTransformer
from streamscope.text.shards import NO_TARGET, TokenShards, document_batches

Variant = Edits | StreamTransformer
NATS = Measure(name="loss", unit=UNIT["loss"], resolution=SMALLEST["loss"])
"""Loss of documents, with their tokens as sizes."""
PERCENT = Measure(
    name="percent of the loss", unit="percent", resolution=100 * SMALLEST["loss"], factor=100.0, shift=-100.0
)
"""The same with the unedited losses as sizes: 100 (loss / unedited loss − 1)."""
KL = Literal["none", "forward", "reverse"]
"""forward is KL(unedited ‖ edited), reverse is KL(edited ‖ unedited), of the distributions of the next token."""


@dataclass(frozen=True)
class Losses:
    """Sums over the positions of each document that have a target: nats, and units of the residual stream for `shift`.

    baseline [documents]; edited, kl, shift [variants, documents]; tokens [documents]. kl and shift are 0 when not
    asked for.
    """

    baseline: np.ndarray
    edited: np.ndarray
    kl: np.ndarray
    shift: np.ndarray
    tokens: np.ndarray


@torch.no_grad()
def document_losses(
    model: Any,
    shards: TokenShards,
    variants: Sequence[Variant],
    *,
    kl: KL = "none",
    direction: Float[Tensor, " D"] | None = None,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
    budget: int | None = None,
) -> Losses:
    """Loss of every document, unedited and of each variant. Documents are cut at the context.

    `kl` costs one more product with the head per variant. With `direction` d [D] also the shift of d·x, x the last
    layer's readout before the final norm. `budget` is the number of tokens that run at once. Raises `InputError` as
    `Trajectories` does, for data of another vocabulary and for values that are not finite.
    """
    if shards.meta["d_vocab"] > model.config.d_vocab:
        raise InputError(f"data of {shards.meta['d_vocab']} token ids for a model of {model.config.d_vocab}")
    if edited_at(model) and not all(isinstance(variant, Mapping) for variant in variants):
        raise InputError("an edit around the sweep is not on the other model: give it among the variants")
    device = model.cfg.device
    edited = [i for i, variant in enumerate(variants) if isinstance(variant, Mapping)]
    plans = [Plan(model, edits) for edits in ({}, *(v for v in variants if isinstance(v, Mapping)))]
    n = min(shards.n_documents, max_documents or shards.n_documents)
    found = np.zeros((3, len(variants), n))
    edited_loss, divergence, shift = found
    baseline, tokens_of = np.zeros(n), np.zeros(n, dtype=np.int64)
    along = None if direction is None else direction.to(device).double()
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    options: dict[str, Any] = {} if along is None else {"names": [last], "keep": lambda _, x: x.double() @ along}
    batches = list(document_batches(shards, model.config.n_ctx, batch_size, max_documents))
    done = ticks(progress, len(batches) * (1 + len(variants)))
    for index, tokens, targets in batches:
        tokens, targets = tokens.to(device), targets.to(device)
        tokens_of[index] = (targets != NO_TARGET).sum(1).cpu().numpy()
        sums = _Sums(model, targets, kl, last)
        unedited, *values = measure_rows(model, tokens, plans, sums, done=done, budget=budget, **options)
        baseline[index] = unedited[0]
        for at, value in zip(edited, values, strict=True):
            found[:, at, index] = value
        for at, variant in enumerate(variants):
            if isinstance(variant, StreamTransformer):
                x = variant.readout(variant.segment(variant.embed_tokens(tokens)))
                place = {} if along is None else {last: x.double() @ along}
                found[:, at, index] = sums(variant.ln_final(x), place, variant.head)
                done(1)
    done(0)
    out = Losses(baseline, edited_loss, divergence, shift, tokens_of)
    for name in ("baseline", "edited", "kl"):
        values = getattr(out, name)
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            what = "loss" if name == "baseline" else f"{name.replace('edited', 'loss')} under an edit"
            raise InputError(f"the {what} is not finite on {bad} documents: the change is too large for these weights")
    return out


class _Sums:
    """[3, B] of each document from its final streams: loss, KL and shift of d·x from the first that it was given."""

    def __init__(self, model: Any, targets: Int[Tensor, "B T"], kl: KL, last: str) -> None:
        self.head, self.targets, self.kl, self.last, self.real = model.head, targets, kl, last, targets != NO_TARGET
        self.first: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, stream: Tensor, captured: Mapping[str, Any], head: Tensor | None = None) -> np.ndarray:
        h, place, head = stream[self.real], captured.get(self.last), self.head if head is None else head
        self.first = self.first or (h, place)
        unedited, before = self.first
        loss = document_sums(token_losses(h, head, self.targets[self.real]), self.real)
        kl = shift = np.zeros_like(loss)
        if self.kl == "forward":
            kl = document_sums(divergences(unedited, h, self.head, head), self.real)
        elif self.kl == "reverse":
            kl = document_sums(divergences(h, unedited, head, self.head), self.real)
        if place is not None and before is not None:
            shift = document_sums((place - before)[self.real], self.real)
        return np.stack([loss, kl, shift])


def document_sums(values: Float[Tensor, " targets"], real: Bool[Tensor, "B T"]) -> np.ndarray:
    """Sums [B] over each document's targets."""
    table = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
    table[real] = values.double()
    return table.sum(1).cpu().numpy()


def observe_loss(
    model: Any,
    sweep: Sequence[Edits],
    shards: TokenShards,
    *,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Observed:
    """Loss per token of every document and edit, in nats; a document is a case and a cluster, long or short."""
    losses = document_losses(
        model, shards, sweep, max_documents=max_documents, batch_size=batch_size, progress=progress
    )
    if (losses.tokens < 1).any():
        raise InputError(f"{int((losses.tokens < 1).sum())} documents have no token to predict; leave them out")
    ids = [str(i) for i in range(len(losses.tokens))]
    cases = pd.DataFrame({"id": ids, "pair": "", "cluster": ids, "category": "", "relation": "", "order": ""})
    edited = losses.edited / losses.tokens
    return Observed("loss", cases, ("all",), (losses.baseline / losses.tokens)[None], edited[:, None])
