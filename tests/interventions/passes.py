"""One pass of a model under edits, its losses, and what it captures."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamscope.models.hooks import capture, edit
from streamscope.text.shards import document_batches


@torch.no_grad()
def under(model: Any, tokens: Tensor, edits: Any) -> Tensor:
    """Logits."""
    with edit(model, edits):
        return model(tokens)


@torch.no_grad()
def captured(model: Any, tokens: Tensor, names: Any) -> dict[str, Tensor]:
    """Activations of the unedited pass."""
    with capture(model, names) as seen:
        model(tokens)
    return seen


def losses_alone(model: Any, shards: Any, edits: Any, documents: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Summed loss and number of targets of each document, one pass per document, plain cross-entropy."""
    loss, tokens = np.zeros((2, documents or shards.n_documents))
    for (i,), ids, targets in document_batches(shards, model.config.n_ctx, 1, documents):
        logits = under(model, ids, edits)[0]
        loss[i] = torch.nn.functional.cross_entropy(logits, targets[0], reduction="sum", ignore_index=-100)
        tokens[i] = (targets != -100).sum()
    return loss, tokens
