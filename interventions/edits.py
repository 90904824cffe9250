"""Pure functions that return edits: hook name -> function(activation, hook) -> new activation."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interventions.head_spec import Head
from models.capture import Edit


def scale_heads(heads: Iterable[Head], g: float) -> dict[str, Edit]:
    """Multiply the outputs z of the heads by g, before the output projection (LFA App. D).

    g = 0 removes a head, g = 1 changes nothing (bit for bit). Hook: `blocks.L.attn.hook_z` [B, T, H, K].
    """
    by_layer: dict[int, list[int]] = {}
    for head in heads:
        by_layer.setdefault(head.layer, []).append(head.head)
    return {
        f"blocks.{layer}.attn.hook_z": partial(_scale, index=sorted(set(index)), g=g)
        for layer, index in sorted(by_layer.items())
    }


def _scale(z: Tensor, hook: Any, *, index: list[int], g: float) -> Tensor:
    factor = torch.ones(z.shape[2], dtype=z.dtype, device=z.device)
    factor[index] = g
    return z * factor[:, None]
