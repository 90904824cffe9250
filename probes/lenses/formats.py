"""Writes Jacobian lenses in the format in which they are published: `.pt`, a matrix per layer."""

from pathlib import Path

import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result
from streamscope.models.lenses import Map, names_of, to_published
from streamscope.probes.stream_states import last_hook


def export(result: Result, path: Path) -> list[Path]:
    """Write the lenses of a result. Raises `InputError` where it has none of a single stream."""
    arrays = {name: torch.from_numpy(x) for name, x in result.arrays.items()}
    maps = dict[int, Map]()
    for layer in range(result.about["layers"]):
        names = names_of("jacobian", last_hook(layer))
        if names[0] in arrays:
            maps[layer] = Map(*(arrays[name] for name in names))
    if not maps:
        raise InputError(
            f"{path} holds jacobian lenses of one model with one stream: write .parquet, or give such a model"
        )
    to_published(maps, result.about["texts"], {"weights_digest": result.about["weights_digest"]}, path)
    return [path]
