"""Reads tensors of other checkpoints by name: theirs = read("model.npz"). Nothing is unpickled."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError, reading
from streamscope.models.interop.tables import opened

BF16 = np.dtype("V2")


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of an .npz, .pt, .pth or .safetensors file by name, in the dtypes of the file.

    Raises `InputError` for a missing or damaged file, for pickled objects, and for tensors that are not floating-point.
    """
    readers = {".npz": _npz, ".pt": _pt, ".pth": _pt, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise InputError(f"{path} is not a supported checkpoint ({', '.join(readers)})")
    with reading(path, "save it again: only arrays, or torch.save(model.state_dict(), FILE)"):
        tensors = readers[path.suffix](path)
    if not tensors:
        raise InputError(f"{path} holds no tensor")
    for name, x in tensors.items():
        if not x.is_floating_point() or x.layout != torch.strided:
            raise InputError(f"{name} of {path} is {x.dtype}, {x.layout}: weights must be dense and floating-point")
    return tensors


def _npz(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("not a valid .npz file")
        return {name: _of_numpy(file[name], name) for name in file.files}


def _of_numpy(x: np.ndarray, name: str) -> Tensor:
    """Convert an array; bfloat16, which numpy lacks, is stored as two untyped bytes (by MLX, too)."""
    if x.dtype.kind not in "fV" or (x.dtype.kind == "V" and x.dtype != BF16):
        raise ValueError(f"{name} is {x.dtype}: weights must be floating-point")
    if x.dtype == BF16:
        return torch.from_numpy(np.array(x, order="C").view("<i2").astype(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))


def _pt(path: Path) -> dict[str, Tensor]:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {str(name): x.detach() for name, x in tensors.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def matrix(tensors: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """The shape of a matrix. Raises `InputError` if it is missing or not a matrix."""
    if name not in tensors:
        raise InputError(f"{name} is missing; is it a file of this format?")
    if tensors[name].ndim != 2:
        raise InputError(f"{name} {list(tensors[name].shape)} is not a matrix")
    rows, columns = tensors[name].shape
    return rows, columns


def count_layers(tensors: Mapping[str, Tensor], start: str) -> int:
    """Count the different numbers after `start` in the names. Raises `InputError` if there are none."""
    numbers = {name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)}
    if not numbers:
        raise InputError(f"no name begins with {start}; is it a file of this format?")
    return len(numbers)
