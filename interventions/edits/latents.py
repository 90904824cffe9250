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
from streamscope.cli.terminal import counted
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
        """The name used in columns, such as L2.q."""
        return f"L{self.layer}.{self.path.split('.')[1]}"

    @property
    def hook(self) -> str:
        """The hook of its latent."""
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


Change = Callable[[Tensor], Tensor]


def clamp_latents(
    places: Iterable[Place], value: float, dims: Sequence[int] | None = None, positions: Sequence[int] | None = None
) -> dict[str, Edit]:
    """z ← value. The prior is N(0, 1); 0 in every dimension switches the latent path off, because SiLU(0) = 0."""
    return _edits(places, lambda z: torch.full_like(z, value), dims, positions)


def scale_latents(
    places: Iterable[Place], g: float, dims: Sequence[int] | None = None, positions: Sequence[int] | None = None
) -> dict[str, Edit]:
    """z ← g z. g = 1 changes nothing, g = 0 switches the latent path off."""
    return _edits(places, lambda z: g * z, dims, positions)


def blend_latents(
    latents: Latents, share: float, dims: Sequence[int] | None = None, positions: Sequence[int] | None = None
) -> dict[str, Edit]:
    """z ← (1 − s) z + s z', between two prompts: s = 1 swaps, s = 0 changes nothing.

    z' [P, R] goes to the P `positions`, in order, of every row of the batch. Raises `InputError` in the forward pass
    for another number of positions.
    """
    edits: dict[str, Edit] = {}
    for place, donor in latents.items():
        edits |= _edits([place], partial(_blend, donor=donor, share=share, positions=positions), dims, positions)
    return edits


def _blend(z: Tensor, *, donor: Tensor, share: float, positions: Sequence[int] | None) -> Tensor:
    rows = list(range(z.shape[1]) if positions is None else positions)
    if donor.shape[0] != len(rows):
        raise InputError(
            f"{counted(donor.shape[0], 'position')} of latents are given for {counted(len(rows), 'position')} to edit"
        )
    new = z.clone()
    new[:, rows] = (1 - share) * z[:, rows] + share * donor.to(z)
    return new


def _edits(
    places: Iterable[Place], change: Change, dims: Sequence[int] | None, at_positions: Sequence[int] | None
) -> dict[str, Edit]:
    return {place.hook: partial(_apply, change=change, dims=dims, positions=at_positions) for place in places}


def _apply(
    z: Tensor, hook: Any, *, change: Change, dims: Sequence[int] | None, positions: Sequence[int] | None
) -> Tensor:
    rows, columns = _mask(z.shape[1], positions, "position", z), _mask(z.shape[2], dims, "latent dimension", z)
    return torch.where(rows[:, None] & columns, change(z), z)


def _mask(n: int, chosen: Sequence[int] | None, noun: str, like: Tensor) -> Tensor:
    """[n], True at the chosen indices (all if None)."""
    mask = torch.full((n,), chosen is None, device=like.device)
    for i in chosen or ():
        if not -n <= i < n:
            raise InputError(f"{noun} {i} does not exist: there are {n}")
        mask[i] = True
    return mask
