"""Writes Jacobian lenses in the format in which they are published: `.pt`, a matrix J in fp16 per layer, x̂ = J x."""

from pathlib import Path

import torch

from streamscope.cli.disk import write_atomically
from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result


def export(result: Result, path: Path) -> list[Path]:
    """Write the lenses of a result. Raises `InputError` where it has none of a single stream."""
    names = {layer: f"jacobian.blocks.{layer}.hook_resid_post.A" for layer in range(result.about["layers"])}
    matrices = {layer: result.arrays[name] for layer, name in names.items() if name in result.arrays}
    J = {layer: torch.from_numpy(A.T.copy()).half() for layer, A in matrices.items()}
    if not J:
        needed = "jacobian lenses of one model with one stream"
        raise InputError(f"{path} holds {needed}: write .parquet, or give such a model")
    payload = {
        "J": J, "n_prompts": result.about["texts"], "source_layers": sorted(J), "d_model": len(next(iter(J.values()))),
        "metadata": {"weights_digest": result.about["weights_digest"]},
    }  # fmt: skip
    write_atomically(path, lambda part: torch.save(payload, part))
    return [path]
