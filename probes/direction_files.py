"""Directions on disk: a safetensors file that interventions read.

    mean.<stream> [L, D]   unit difference of means          svd.<stream> [L, k, D]   singular vectors
    norm.<stream> [L]      norm of the difference            d.<stream> [L]           Cohen's d, held-out prompts

and metadata `about`: the run, the sets, pooling. Streams: s0 …, token, context, joint, resid (`probes.stream_states`).
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from streamscope.models.disk import parse
from streamscope.models.errors import InputError, unknown
from streamscope.models.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from streamscope.probes.direction_tables import Found

CHOICES = ("best", "norm")


@dataclass(frozen=True)
class Direction:
    """A unit vector [D] of the residual stream and where it is from; `about` is JSON data."""

    vector: Tensor
    layer: int
    about: dict[str, Any]


def save_directions(path: Path, found: "Found", about: Mapping[str, Any]) -> None:
    """Write the directions of a run; nothing half-written."""
    tensors: dict[str, np.ndarray] = {}
    for stream, vectors in found.vectors.items():
        own = found.layers[found.layers["stream"] == stream].sort_values("layer")
        tensors |= {f"mean.{stream}": vectors, f"svd.{stream}": found.svd[stream]}
        tensors |= {f"{name}.{stream}": own[name].to_numpy(float) for name in ("norm", "d")}
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: torch.from_numpy(np.ascontiguousarray(x, np.float32)) for name, x in tensors.items()}
    write_tensors(path, plain, {"about": json.dumps({**about, "width": found.width, "streams": list(found.vectors)})})


def read_direction(spec: str, stream: str = "resid", method: str = "mean") -> Direction:
    """The direction FILE[:LAYER|best|norm] of a stream; FILE alone is FILE:best.

    best is the layer with the largest d on held-out prompts, norm that with the largest difference of means (as
    SPEC §1.8). method: mean, or svd for the first singular vector. Raises `InputError` for a file that is none, a layer
    or stream that it lacks, and a layer without a direction.
    """
    name, _, which = spec.rpartition(":") if not Path(spec).is_file() else (spec, "", "best")
    path = Path(name or spec)
    if not path.is_file():
        raise InputError(f"{path} is no file of directions; make one with python -m probes.directions RUN --out FILE")
    tensors, meta = read_tensors(path)
    if "about" not in meta or "mean.resid" not in tensors:
        raise InputError(f"{path} is no file of directions; make one with python -m probes.directions RUN --out FILE")
    if f"mean.{stream}" not in tensors:
        raise unknown("stream", stream, [k.removeprefix("mean.") for k in tensors if k.startswith("mean.")])
    layer = _layer(which, tensors, stream, path)
    vectors = tensors[f"{method}.{stream}"]
    vector = vectors[layer] if method == "mean" else vectors[layer, 0]
    norm = vector.double().norm()
    if not norm > 0:
        raise InputError(f"{path}: the two sets do not differ in layer {layer} of {stream}; choose another layer")
    about = {
        "file": str(path),
        "layer": layer,
        "stream": stream,
        "method": method,
        **parse(meta["about"], dict[str, Any], f"about of {path}"),
    }
    return Direction((vector.double() / norm).float(), layer, about)


def _layer(which: str, tensors: Mapping[str, Tensor], stream: str, path: Path) -> int:
    n = len(tensors[f"mean.{stream}"])
    if which in CHOICES:
        score = tensors[f"{'d' if which == 'best' else 'norm'}.{stream}"]
        if score.isnan().all():
            raise InputError(f"{path}: no layer of {stream} separates the sets; name a layer as {path}:0")
        return int(score.nan_to_num(-torch.inf).argmax())
    if not which.isdigit():
        raise InputError(f"{path}:{which}: give a layer from 0 to {n - 1}, best or norm")
    if int(which) >= n:
        raise InputError(f"{path}:{which}: the file has layers 0 to {n - 1}")
    return int(which)


def check_direction(direction: Direction, model: Any, folder: Path) -> None:
    """Raise `InputError` when a direction does not fit the residual stream of the run in `folder`; say on stderr when
    it is of another run: it fits by its width alone."""
    if len(direction.vector) != model.cfg.d_model:
        raise InputError(
            f"a direction of {len(direction.vector)} dimensions for a residual stream of {model.cfg.d_model}; "
            "it is of another model, or of the streams joined"
        )
    if Path(direction.about["run"]).resolve() != folder.resolve():
        print(f"note: the direction was found in {direction.about['run']}, not in {folder}", file=sys.stderr)
