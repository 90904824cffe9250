"""Lenses: what a state of a stream says about the next token, through a linear map to the last layer's state.

    x̂ = x A + b                     A [D, D], b [D]; x a stream after a layer
    p = softmax(head(norm(x̂)))

    lenses = read_lenses(Path("lenses.safetensors"), model)     a file of `streamscope lenses RUN --out lenses.parquet`
    lenses.at("tuned", "blocks.3.hook_resid_post").to_last(x)

A file names the weights that its maps belong to, and is refused for others. A published file of Jacobian lenses (.pt,
one matrix per layer) is read as the kind jacobian of `blocks.L.hook_resid_post`; `probes.lenses.formats` writes one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError, reading, unknown
from streamscope.models.tensors import read_tensors, weights_digest

MAKE_ONE = "write one with `streamscope lenses RUN --out FILE.parquet`"


@dataclass(frozen=True)
class Map:
    """x̂ = x A + b, from a stream after a layer to the state after the last layer."""

    A: Float[Tensor, "D D"]
    b: Float[Tensor, " D"]

    def to_last(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """The state after the last layer that the lens reads in x."""
        return x @ self.A.to(x) + self.b.to(x)


@dataclass(frozen=True)
class Lenses:
    """Maps by kind and place; a place is the name of a hook and, of parallel streams, the stream: `hook:s0`."""

    maps: Mapping[tuple[str, str], Map]
    where: str

    def at(self, kind: str, place: str) -> Map:
        """One map. Raises `InputError` for a kind or a place that the file lacks."""
        places = [p for k, p in self.maps if k == kind]
        if not places:
            raise unknown(f"kind of lens in {self.where}", kind, sorted({k for k, _ in self.maps}))
        if place not in places:
            raise InputError(f"{self.where} has no {kind} lens of {place}; it has {', '.join(places)}")
        return self.maps[kind, place]


def read_lenses(path: Path, model: Any) -> Lenses:
    """The lenses of a file, for the model that they were fitted on.

    Raises `InputError` for maps of another width, and of other weights; published files of others name none.
    """
    if path.suffix == ".pt":  # published: matrices J by layer, x̂ = J x; a file of ours names the weights as well
        with reading(path, "give a file with the matrices J of layers"):
            payload = torch.load(path, map_location="cpu", weights_only=True)
            matrices = {f"blocks.{int(layer)}.hook_resid_post": J.float() for layer, J in payload["J"].items()}
            owner = (payload.get("metadata") or {}).get("weights_digest", "")
        maps = {("jacobian", name): Map(J.T.contiguous(), torch.zeros(len(J))) for name, J in matrices.items()}
    else:
        tensors, metadata = read_tensors(path, MAKE_ONE)
        with reading(path, MAKE_ONE):
            owner = json.loads(metadata.get("about", "{}")).get("weights_digest")
        keys = [name[:-2].split(".", 1) for name in tensors if name.endswith(".A")]
        if not owner or not keys:
            raise InputError(f"{path} holds no lenses: {MAKE_ONE}")
        maps = {(kind, place): Map(*(tensors[f"{kind}.{place}.{part}"] for part in "Ab")) for kind, place in keys}
    if owner and owner != weights_digest(model):
        raise InputError(f"{path}: these lenses were fitted on other weights: {MAKE_ONE}")
    d = model.cfg.d_model
    for (_, place), lens in maps.items():
        if lens.A.shape != (d, d):
            raise InputError(f"{path}: the lens of {place} maps {len(lens.A)} dimensions, the model has {d}")
    return Lenses(maps, str(path))


def lenses_of_kind(spec: str, model: Any) -> tuple[Lenses, str]:
    """The lenses of a file, and the kind of FILE:KIND. Raises `InputError` as `read_lenses`, and for maps of an
    untrained model's states, which say nothing of this model's."""
    path, _, kind = spec.rpartition(":")
    if not path:
        raise InputError(f"--lens {spec}: give FILE:KIND, such as lenses.safetensors:tuned")
    if kind == "untrained":
        raise InputError(f"--lens {spec} reads states of an untrained model: give another kind, such as {path}:tuned")
    return read_lenses(Path(path), model), kind
