"""One pass of a model under edits, and what it captures."""

from typing import Any

import torch
from torch import Tensor

from streamscope.models.hooks import capture, edit


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
