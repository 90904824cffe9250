"""Tables from our weights to those of other files: one table serves reading, refusing and exporting.

    ours = take(table, names, read, shapes)      their tensors as ours
    theirs = give(table, ours, shapes)           and back

A table has our name, their name and the conversion of every weight; names that a model lacks are not used. In names,
{l} stands for every layer, {k} for each of several tensors that make up one of ours.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from streamscope.cli.errors import InputError, reading
from streamscope.models.config import ModelConfig
from streamscope.models.decoder import Decoder

LAYER = re.compile(r"^blocks\.(\d+)\.")
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Conversion:
    """From their tensors to ours and back."""

    take: Callable[[Sequence[Tensor], Sequence[int]], Tensor]
    """(their tensors, our shape) -> ours."""
    join: Callable[[Sequence[Tensor]], Tensor] = lambda tensors: tensors[0]
    """All of ours that one of theirs contains, in our order -> theirs."""


Table = Mapping[str, tuple[str, Conversion]]  # our name -> (their name, conversion)
Names = Mapping[str, str | tuple[str, Conversion]]  # our module -> theirs, perhaps with a conversion


def _turned(x: Sequence[Tensor], shape: Sequence[int] = ()) -> Tensor:
    return x[0].mT if x[0].ndim == 2 else x[0]


WHOLE = Conversion(lambda x, shape: x[0])  # the identical tensor
TRANSPOSED = Conversion(_turned, _turned)  # a map [d_in, d_out], ours is [d_out, d_in]; biases are identical


def modules(blocks: str, outer: Names, inner: Names) -> Table:
    """The table of weights and biases of modules; `inner` are those of a layer, which is theirs at `blocks`.N."""
    names = {**outer, **{f"blocks.{{l}}.{our_name}": their for our_name, their in inner.items()}}
    table: dict[str, tuple[str, Conversion]] = {}
    for our_name, target in names.items():
        their, conversion = (target, WHOLE) if isinstance(target, str) else target
        their = f"{blocks}.{{l}}.{their}" if our_name.startswith("blocks.") else their
        table |= {f"{our_name}.{end}": (f"{their}.{end}", conversion) for end in ("weight", "bias")}
    return table


def shapes_of(config: ModelConfig) -> dict[str, torch.Size]:
    """The shapes of our tensors by name, without allocating them."""
    with torch.device("meta"):
        return {name: x.shape for name, x in Decoder(config).state_dict().items()}


def rows(table: Table, shapes: Shapes) -> Iterator[tuple[str, str, Conversion]]:
    """(our name, their name, conversion) of every tensor of `shapes`."""
    for our_name in shapes:
        pattern, layer = LAYER.sub("blocks.{l}.", our_name), LAYER.match(our_name)
        if pattern not in table:
            raise InputError(f"files of this format have no {our_name}: change the configuration back")
        their, conversion = table[pattern]
        yield our_name, their.replace("{l}", layer[1] if layer else ""), conversion


def take(
    table: Table, names: Collection[str], reader: Callable[[str], Tensor], shapes: Shapes, *, factors: int = 0,
    unread: Collection[str] = (),
) -> dict[str, Tensor]:  # fmt: skip
    """Convert tensors to those that `shapes` names; `reader` gives one by its name, {k} counts to `factors`."""
    tensors: dict[str, Tensor] = {}
    used_names: set[str] = set()
    for our_name, their, conversion in rows(table, shapes):
        several = [their.replace("{k}", str(k)) for k in range(factors)] if "{k}" in their else [their]
        if lacking := [name for name in several if name not in names]:
            raise InputError(f"{lacking[0]} is missing, which {our_name} needs")
        x, shape = {name: reader(name) for name in several}, torch.Size(shapes[our_name])
        with reading(f"{', '.join(several)} for {our_name}", "the file belongs to another configuration"):
            converted = conversion.take(list(x.values()), shape)
        if converted.shape != shape:
            shapes_read = ", ".join(f"{name} {list(part.shape)}" for name, part in x.items())
            raise InputError(f"{shapes_read} cannot become {our_name} {list(shape)}")
        tensors[our_name] = converted.contiguous()
        used_names.update(several)
    if extra := [name for name in names if name not in used_names and name not in unread]:
        more = f" and {len(extra) - 1} more are" if len(extra) > 1 else " is"
        raise InputError(f"{extra[0]} {list(reader(extra[0]).shape)}{more} not used by any part")
    return tensors


def give(table: Table, tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Convert our tensors to theirs by name, the inverse of `take`; those of `shapes` that are missing become zeros."""
    if extra := sorted(tensors.keys() - shapes.keys()):
        raise InputError(f"{extra[0]} has no counterpart")
    parts: dict[str, tuple[Conversion, list[Tensor]]] = {}
    for our_name, their, conversion in rows(table, shapes):
        if (x := tensors.get(our_name)) is None:
            x = torch.zeros(tuple(shapes[our_name]), dtype=tensors["embed.weight"].dtype)
        parts.setdefault(their, (conversion, []))[1].append(x)
    return {name: conversion.join(pieces).contiguous() for name, (conversion, pieces) in parts.items()}


def opened(path: Path) -> Any:
    """An open safetensors file of another program. Raises `InputError` for a damaged one."""
    with reading(path, "download it again"):
        path.open("rb").close()  # safetensors knows no reason but "No such file"
        return safe_open(path, framework="pt")


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, in any dtype."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.shape == b.shape and torch.equal(a.to(dtype), b.to(dtype))
