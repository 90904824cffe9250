"""Places of HDPL latents, and pure functions that return edits of them.

An HDPL projection adds a detail path and a latent path, which encodes the input into a small vector z and decodes it.

Places are written like heads: `L2.q` is one projection, `L2.*` a layer, `L0-2.up` a range, `*.v` one in every layer,
`all` every one. Hook: `blocks.L.attn.q.hook_latent` [B, T, R], z; at evaluation z is its mean μ (HDPL §2.1.2).

Every edit acts on the dimensions `dims` and the `positions` (None: all; negative positions count from the end of the
padded row) and leaves the rest unchanged, bit for bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.config import ModelConfig
from streamscope.models.head_spec import parse_parts
from streamscope.models.hooks import Edit
from streamscope.models.layers.hdpl import latent_widths


class Place(NamedTuple):
    """An HDPL projection: its layer, and its path inside the block (attn.q, mlp.up)."""

    layer: int
    path: str

    @property
    def label(self) -> str:
        return f"L{self.layer}.{self.path.split('.')[1]}"

    @property
    def hook(self) -> str:
        return f"blocks.{self.layer}.{self.path}.hook_latent"


Latents = Mapping[Place, Float[Tensor, "P R"]]
"""z of one prompt at the edited positions."""


def parse_places(specs: str | Sequence[str], config: ModelConfig) -> list[Place]:
    """Places in order of layer and use, each once. Raises `InputError` for places that the model lacks."""
    names = {path.split(".")[1]: path for path in latent_widths(config)}
    parts = parse_parts(specs, config.n_layers, list(names), "HDPL projection")
    return [Place(layer, names[name]) for layer, name in parts]


def check_dims(places: Iterable[Place], dims: Iterable[int], config: ModelConfig) -> None:
    """Raise `InputError` unless every place has every dimension, counted from 0."""
    widths = latent_widths(config)
    for place in places:
        for d in dims:
            if not 0 <= d < widths[place.path]:
                raise InputError(f"{place.label} has latent dimensions 0 to {widths[place.path] - 1}, not {d}")


Indices = Sequence[int] | None


def clamp_latents(
    places: Iterable[Place], value: float, dims: Indices = None, positions: Indices = None
) -> dict[str, Edit]:
    """z ← value. The prior is N(0, 1); 0 in every dimension switches the latent path off, because SiLU(0) = 0."""
    return {place.hook: _edit(lambda z: torch.full_like(z, value), dims, positions) for place in places}


def scale_latents(
    places: Iterable[Place], g: float, dims: Indices = None, positions: Indices = None
) -> dict[str, Edit]:
    """z ← g z. g = 1 changes nothing, g = 0 switches the latent path off."""
    return {place.hook: _edit(lambda z: g * z, dims, positions) for place in places}


def blend_latents(latents: Latents, share: float, dims: Indices = None, positions: Indices = None) -> dict[str, Edit]:
    """z ← (1 − s) z + s z', between two prompts: s = 1 swaps, s = 0 changes nothing. z' [P, R] goes to the P
    `positions`, in order, of every row of the batch."""

    def blended(z: Tensor, donor: Tensor) -> Tensor:
        new, rows = z.clone(), slice(None) if positions is None else list(positions)
        new[:, rows] = (1 - share) * z[:, rows] + share * donor.to(z)
        return new

    return {place.hook: _edit(partial(blended, donor=donor), dims, positions) for place, donor in latents.items()}


def _edit(change: Callable[[Tensor], Tensor], dims: Indices, positions: Indices) -> Edit:
    def apply(z: Tensor, hook: Any) -> Tensor:
        chosen = zip(z.shape[1:], (positions, dims), strict=True)
        rows, columns = (torch.arange(n)[slice(None) if indices is None else list(indices)] for n, indices in chosen)
        mask = torch.zeros(z.shape[1:], dtype=torch.bool, device=z.device)
        mask[rows[:, None], columns] = True
        return torch.where(mask, change(z), z)

    return apply
