"""Losses per document under many edits, each started from a cached prefix of the baseline.

An edit that first acts in layer ℓ changes nothing before it, so its forward pass starts from the baseline's
state at ℓ: a sweep over all heads of L layers costs about (L+1)/(2L) of as many full passes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.capture import Edits, edit
from models.errors import InputError
from models.readout import IGNORE, divergences
from models.text.shards import TokenShards, document_batches
from models.transformer import StreamTransformer


@dataclass(frozen=True)
class Losses:
    """Summed loss in nats per document: `baseline` [documents], `edited` [edits, documents]; targets per document.

    `divergence` [edits, documents] is Σ KL(unedited ‖ edited) over a document's targets, in nats; 0 when not asked for.
    """

    baseline: np.ndarray
    edited: np.ndarray
    tokens: np.ndarray
    divergence: np.ndarray


def first_layer(edits: Edits) -> int:
    """The first layer an edit acts in; 0 for hooks outside the blocks, whose effect starts at the embedding."""
    layers = []
    for name in edits:
        parts = name.split(".")
        if parts[0] != "blocks" or not parts[1].isdigit():
            raise InputError(f"a sweep edits hooks inside the blocks by their full name, not {name!r}")
        layers.append(int(parts[1]))
    return min(layers)


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
) -> Losses:
    """Loss of every document, unedited and under each of `sweep`'s edits. Documents are cut at the context.

    With `divergence` also how far the predictions move, for one more product with the head per edit.
    """
    if shards.meta["d_vocab"] > model.config.d_vocab:
        raise InputError(f"data of {shards.meta['d_vocab']} token ids for a model of {model.config.d_vocab}")
    starts = [first_layer(edits) for edits in sweep]
    n = min(shards.n_documents, max_documents or shards.n_documents)
    shape = (len(sweep), n)
    out = Losses(np.zeros(n), np.zeros(shape), np.zeros(n, dtype=np.int64), np.zeros(shape))
    batches = list(document_batches(shards, model.config.n_ctx, batch_size, max_documents))
    device = model.cfg.device
    for index, tokens, targets in progress(batches):
        tokens, targets = tokens.to(device), targets.to(device)
        states = [model.embed_tokens(tokens)]
        for layer in range(model.config.n_layers):
            states.append(model.segment(states[-1], layer, layer + 1))
        out.tokens[index] = (targets != -100).sum(1).cpu().numpy()
        out.baseline[index] = _sums(model, states[-1], targets)
        for i, edits in enumerate(sweep):
            with edit(model, edits):
                final = model.segment(states[starts[i]], starts[i])
            out.edited[i, index] = _sums(model, final, targets)
            if divergence:
                out.divergence[i, index] = _divergences(model, states[-1], final, targets)
    for name, values in (("baseline", out.baseline), ("edited", out.edited)):
        if not np.isfinite(values).all():
            raise InputError(f"the {name} loss is not finite on {int((~np.isfinite(values)).sum())} documents")
    return out


def _sums(model: StreamTransformer, state: object, targets: torch.Tensor) -> np.ndarray:
    return model.losses_from(state, targets).double().sum(1).cpu().numpy()


def _divergences(model: StreamTransformer, state: object, edited: object, targets: torch.Tensor) -> np.ndarray:
    x, y = (model.ln_final(model.readout(s)) for s in (state, edited))
    return divergences(x, y, model.head).masked_fill(targets == IGNORE, 0.0).double().sum(1).cpu().numpy()
