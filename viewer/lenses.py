"""A fitted lens for the live page: the maps of one kind, from a file of `streamscope lenses`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks.controls import BRIDGED, stream_names
from streamscope.models.lenses import Map, lenses_of_kind

SUM = "sum"
"""The readout of the residual stream in the lens, next to its parallel streams."""


def lens_streams(config: Any) -> tuple[str, ...]:
    """The streams that the lens reads: the parallel ones, and their readout."""
    return (*stream_names(config), SUM)


@dataclass(frozen=True)
class PageLens:
    """The maps of the S streams that the page reads after every layer; where the file has none, they are 0."""

    about: dict[str, Any]
    """What the page says of it: the file, the kind, and for each layer and stream whether there is a map."""
    maps: dict[str, Tensor]
    """A [L, S, D, D] and b [L, S, D], by name."""


def lens_for_page(model: Any, name: str, spec: str) -> PageLens:
    """The maps of FILE:KIND. Raises `InputError` as `models.lenses` does, and for a model in a bridge."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} takes no --lens: {BRIDGED}")
    (lenses, kind), d, streams = lenses_of_kind(spec, model), model.config.d_model, lens_streams(model.config)
    places = [[place_of(layer, stream) for stream in streams] for layer in range(model.config.n_layers)]
    mapped = [[(kind, place) in lenses.maps for place in row] for row in places]
    if not any(map(any, mapped)):
        lenses.at(kind, places[-1][-1])  # says what the file has
    none = Map(torch.zeros(d, d), torch.zeros(d))
    rows = [[lenses.maps.get((kind, place), none) for place in row] for row in places]
    maps = {part: torch.stack([torch.stack([getattr(lens, part) for lens in row]) for row in rows]) for part in "Ab"}
    about = {"file": Path(lenses.where).name, "kind": kind, "mapped": mapped}
    return PageLens(about, {part: x.to(model.cfg.device) for part, x in maps.items()})


def place_of(layer: int, stream: str) -> str:
    """The name of a stream after a layer in a file of lenses."""
    if stream[1:].isdigit():
        return f"blocks.{layer}.hook_streams_post:{stream}"
    return f"blocks.{layer}.hook_{'resid' if stream == SUM else stream}_post"
