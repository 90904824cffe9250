"""Reads tensors of other checkpoints by name: theirs = read("model.npz"). Nothing is unpickled."""

import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from streamscope.cli.errors import InputError

BF16 = np.dtype("V2")


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of an .npz, .pt, .pth or .safetensors file by name, in the dtypes of the file.

    Raises `InputError` for a missing or damaged file, for pickled objects, and for tensors that are not floating-point.
    """
    readers = {".npz": _npz, ".pt": _pt, ".pth": _pt, ".safetensors": load_file}
    if path.suffix not in readers:
        raise InputError(f"{path} is not a supported checkpoint ({', '.join(readers)})")
    if not path.is_file():
        raise InputError(f"{path} is not a file: check the path")
    try:
        tensors = readers[path.suffix](path)
    except (pickle.UnpicklingError, AttributeError):  # what is loaded has no items, or is no tensor
        raise InputError(
            f"{path} is damaged, or holds objects other than tensors, which are not read: "
            "torch.save(model.state_dict(), FILE) and numpy.savez save only tensors"
        ) from None
    except (OSError, EOFError, MemoryError, RuntimeError, ValueError, KeyError, TypeError, zipfile.BadZipFile,
            zlib.error) as error:  # fmt: skip
        raise InputError(f"{path} is damaged ({str(error).split('. ')[0]}): save it again") from None
    if not tensors:
        raise InputError(f"{path} holds no tensor")
    for name, x in tensors.items():
        if not x.is_floating_point() or x.layout != torch.strided:
            raise InputError(f"{name} of {path} is {x.dtype}, {x.layout}: weights must be dense and floating-point")
    return tensors


def _npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return {name: _of_numpy(file[name]) for name in file.files}


def _of_numpy(x: np.ndarray) -> Tensor:
    """Convert an array; bfloat16, which numpy lacks, is stored as two untyped bytes (by MLX, too)."""
    if x.dtype == BF16:
        return torch.from_numpy(np.array(x, order="C").view("<i2").astype(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))


def _pt(path: Path) -> dict[str, Tensor]:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {str(name): x.detach() for name, x in tensors.items()}


def matrix(theirs: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """The shape of a matrix. Raises `InputError` if it is missing or not a matrix."""
    if name not in theirs or theirs[name].ndim != 2:
        raise InputError(f"{name} is missing or not a matrix; is it a file of this format?")
    rows, columns = theirs[name].shape
    return rows, columns


def count_layers(theirs: Mapping[str, Tensor], start: str) -> int:
    """Count the different numbers after `start` in the names. Raises `InputError` if there are none."""
    numbers = {name.removeprefix(start).split(".")[0] for name in theirs if name.startswith(start)}
    if not numbers:
        raise InputError(f"no name begins with {start}; is it a file of this format?")
    return len(numbers)
