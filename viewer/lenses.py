"""A fitted lens for the live page: the maps of one kind, from a file of `streamscope lenses`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks.controls import BRIDGED
from streamscope.models.lenses import lenses_of_kind
from streamscope.viewer.engine import SUM, lens_streams


@dataclass(frozen=True)
class PageLens:
    """The maps of the S streams that the page reads after every layer; where the file has none, they are 0."""

    file: str
    kind: str
    maps: dict[str, Tensor]
    """A [L, S, D, D] and b [L, S, D], by name."""
    mapped: Float[Tensor, "L S"]
    """1 where the file has a map."""

    def about(self) -> dict[str, Any]:
        """What the page says of it."""
        return {"file": self.file, "kind": self.kind, "mapped": self.mapped.bool().tolist()}


def lens_for_page(model: Any, name: str, spec: str) -> PageLens:
    """The maps of FILE:KIND. Raises `InputError` as `models.lenses` does, and for a model in a bridge."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} takes no --lens: {BRIDGED}")
    lenses, kind = lenses_of_kind(spec, model)
    layers, streams, width = model.config.n_layers, lens_streams(model.config), model.config.d_model
    A, b = torch.zeros(layers, len(streams), width, width), torch.zeros(layers, len(streams), width)
    mapped = torch.zeros(layers, len(streams))
    for layer in range(layers):
        for i, stream in enumerate(streams):
            if lens := lenses.maps.get((kind, place_of(layer, stream))):
                A[layer, i], b[layer, i], mapped[layer, i] = lens.A, lens.b, 1
    if not mapped.any():
        lenses.at(kind, place_of(layers - 1, SUM))  # says what the file has
    device = model.cfg.device
    return PageLens(Path(lenses.where).name, kind, {"A": A.to(device), "b": b.to(device)}, mapped)


def place_of(layer: int, stream: str) -> str:
    """The name of a stream after a layer in a file of lenses."""
    if stream[1:].isdigit():
        return f"blocks.{layer}.hook_streams_post:{stream}"
    return f"blocks.{layer}.hook_{'resid' if stream == SUM else stream}_post"
