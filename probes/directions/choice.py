"""The direction for an intervention, from a file of `probes.directions` or found in the model itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.disk import parse
from streamscope.cli.errors import InputError, unknown
from streamscope.cli.terminal import counted
from streamscope.instruments.data import Opened, Sets
from streamscope.models.checkpoint import run_label
from streamscope.models.dictionaries import read_dictionary
from streamscope.models.hooks import layer_of
from streamscope.models.tensors import read_tensors
from streamscope.probes.directions import CHOICES, MAKE_ONE, NO_FILE, Directions, file_of, in_model
from streamscope.probes.stream_states import RESID, streams_of


@dataclass(frozen=True)
class Direction:
    """A unit vector [D] of the residual stream and its origin; `about` is JSON data."""

    vector: Tensor
    layer: int
    about: dict[str, Any]


def check_choice(spec: str, model: Any, stream: str, method: str) -> None:
    """Raise `InputError` before the work for a direction that `direction_of` cannot find for this model."""
    if not in_model(spec):
        check_direction(read_direction(spec, stream, method, model), model)
        return
    if stream not in (names := [*dict.fromkeys((*streams_of(model), RESID))]):
        raise unknown("stream", stream, names)
    if spec.isdigit() and int(spec) >= (n := model.cfg.n_layers):
        raise InputError(f"--direction {spec}: give one of the layers 0 to {n - 1}")


def direction_of(spec: str, data: Opened, stream: str = "resid", method: str = "mean") -> tuple[Direction, str]:
    """The direction `spec`, between the two sets in this model or of a file (`read_direction`), and a note for titles:
    its model if it is another one, or the positions that it leaves out. Raises `InputError` if it does not fit."""
    if not in_model(spec):
        direction = read_direction(spec, stream, method, data.model)
        return direction, check_direction(direction, data.model)
    result = Directions(draws=0).measure(data.model, data[Sets])
    arrays = {name: torch.from_numpy(x) for name, x in result.arrays.items()}
    n, direction = result.about["massive"], pick(arrays, spec, result.about, stream, method, "the model")
    return direction, f"found without {counted(n, 'position', ',')} of massive activations" if n else ""


def read_direction(spec: str, stream: str = "resid", method: str = "mean", model: Any = None) -> Direction:
    """The direction FILE[:LAYER|best|norm] of a stream, FILE alone is FILE:best; or FOLDER:17, what latent 17 writes.

    best is the layer with the largest d on held-out prompts, norm that with the largest difference of means (SPEC
    §1.8). Raises `InputError` for another file, a layer or stream that it lacks, a layer without a direction, and a
    dictionary of other weights than the model's, if one is given.
    """
    path, selector = file_of(spec)
    if path.is_dir():
        return _latent(path, int(selector), model)
    if path.suffix == ".parquet":
        arrays = path.with_suffix(".safetensors")
        raise InputError(f"{path} is a table; {f'its arrays are in {arrays}' if arrays.is_file() else MAKE_ONE}")
    tensors, meta = read_tensors(path, MAKE_ONE)
    if "run0-mean.resid" in tensors:
        raise InputError(f"{path} holds the directions of several runs; make a file of one run")
    if "about" not in meta or "mean.resid" not in tensors:
        raise InputError(f"{path} {NO_FILE}")
    about = parse(meta["about"], dict[str, Any], f"about of {path}")
    return pick(tensors, selector, about, stream, method, str(path))


def _latent(folder: Path, latent: int, model: Any) -> Direction:
    """The row of a dictionary's decoder, as a unit vector, after the layer of its hook, or that before a `_pre`."""
    dictionary = read_dictionary(str(folder), model)
    layer = layer_of(dictionary.target) - dictionary.target.endswith("_pre")
    if layer < 0:
        raise InputError(f"{folder} is of a state before layer 0: give a dictionary of a later hook")
    if latent >= len(dictionary.W_dec):
        raise InputError(f"{folder}:{latent}: give one of the latents 0 to {len(dictionary.W_dec) - 1}")
    about = {"folder": None, "model": dictionary.about.get("model_name")}
    about |= {"from": str(folder), "latent": latent, "stream": dictionary.stream}
    vector = dictionary.W_dec[latent].double()
    return Direction((vector / vector.norm()).float(), layer, about)


def pick(
    tensors: Mapping[str, Tensor], selector: str, about: Mapping[str, Any], stream: str, method: str, source: str
) -> Direction:
    """The direction of a layer, or of the best one by d or norm, from the arrays of `probes.directions`. Raises
    `InputError` as `read_direction` does, with the origin `source`."""
    if f"mean.{stream}" not in tensors:
        raise unknown("stream", stream, [k.removeprefix("mean.") for k in tensors if k.startswith("mean.")])
    vectors = tensors[f"{method}.{stream}"]
    if selector in CHOICES:
        score = tensors[f"{'d' if selector == 'best' else 'norm'}.{stream}"]
        if score.isnan().all():
            raise InputError(f"{source}: no layer of {stream} separates the sets; name a layer")
        layer = int(score.nan_to_num(-torch.inf).argmax())
    elif not selector.isdigit() or int(selector) >= len(vectors):
        raise InputError(f"{source}:{selector}: give best, norm or one of the layers 0 to {len(vectors) - 1}")
    else:
        layer = int(selector)
    vector = (vectors[layer] if method == "mean" else vectors[layer, 0]).double()
    if not vector.norm() > 0:
        raise InputError(f"{source}: the two sets do not differ in layer {layer} of {stream}; choose another layer")
    origin = {name: about.get(name) for name in ("folder", "model", "options", "data")}
    origin |= {"from": source, "layer": layer, "stream": stream, "method": method}
    return Direction((vector / vector.norm()).float(), layer, origin)


def check_direction(direction: Direction, model: Any) -> str:
    """The origin of a direction from another run, "" for the model's own. Raises `InputError` if its width differs from
    the model's residual stream."""
    if len(direction.vector) != model.cfg.d_model:
        raise InputError(
            f"the direction has {len(direction.vector)} dimensions, the residual stream {model.cfg.d_model}; "
            "it belongs to another model, or to the joined streams"
        )
    run, folder = getattr(model, "run", None), direction.about["folder"]
    same = run is not None and folder and (folder == run_label(run) or Path(folder).resolve() == run.resolve())
    return "" if same else f"found in {folder or direction.about['model']}"
