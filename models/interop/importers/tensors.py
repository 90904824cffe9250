"""Reads tensors of other checkpoints by name: theirs = read("model.npz"). Nothing is unpickled."""

import math
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.interop.tables import opened

BF16 = np.dtype("V2")
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
DEFLATE = 1032
"""Maximum number of bytes per compressed byte."""


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of an .npz, .pt, .pth or .safetensors file by name, in the dtypes of the file.

    Raises `InputError` for a missing or damaged file, for pickled objects, and for tensors that are not floating-point.
    """
    readers = {".npz": _npz, ".pt": _pt, ".pth": _pt, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise InputError(f"{path} is not a supported checkpoint ({', '.join(readers)})")
    if not path.is_file():
        raise InputError(f"{path} is not a file: check the path")
    tensors = readers[path.suffix](path)
    if not tensors:
        raise InputError(f"{path} holds no tensor")
    for name, x in tensors.items():
        if not x.is_floating_point() or x.layout != torch.strided:
            raise InputError(f"{name} of {path} is {x.dtype}, {x.layout}: weights must be dense and floating-point")
    return tensors


def _npz(path: Path) -> dict[str, Tensor]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a valid .npz file: save it again")
    tensors: dict[str, Tensor] = {}
    name = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                _check_size(file.zip, name)
                tensors[name] = _of_numpy(file[name], name, path)
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise InputError(f"{name} of {path} is pickled and not read: save only arrays") from None
        raise InputError(f"{name or 'the list of names'} of {path} is damaged ({error}): save it again") from None
    return tensors


def _check_size(archive: zipfile.ZipFile, name: str) -> None:
    """Raise `ValueError` if the header of an array claims more or fewer bytes than follow, before memory is allocated.

    The size that a zip entry claims is checked against the limit of deflate (1,032 to 1).
    """
    info = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"a header of version {version}")
        shape, _, dtype = HEADERS[version](file)
        actual = info.file_size - file.tell()
    if dtype.hasobject:
        return  # pickled, refused when it is read
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != actual or info.file_size > DEFLATE * max(info.compress_size, 1):
        raise ValueError(f"its header claims {claimed:,} bytes, but the file has {actual:,}")


def _of_numpy(x: object, name: str, path: Path) -> Tensor:
    """Convert an array; bfloat16, which numpy lacks, is stored as two untyped bytes (by MLX, too)."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fV" or (x.dtype.kind == "V" and x.dtype != BF16):
        raise InputError(f"{name} of {path} is {getattr(x, 'dtype', 'not an array')}: weights must be floating-point")
    if x.dtype == BF16:
        return torch.from_numpy(np.array(x, order="C").view("<i2").astype(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))
    except TypeError:  # of 80 bits
        raise InputError(f"{name} of {path} is {x.dtype}, which torch does not support") from None


def _pt(path: Path) -> dict[str, Tensor]:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} is damaged, or holds pickled objects other than tensors, which are not read: "
            "torch.save(model.state_dict(), FILE) only saves tensors"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged ({str(error).split('. ')[0]}): save it again") from None
    if not isinstance(tensors, dict):
        raise InputError(f"{path} holds a {type(tensors).__name__}: use torch.save(model.state_dict(), FILE)")
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise InputError(
                f"{name} of {path} is of type {type(x).__name__}, not a tensor: "
                "torch.save(model.state_dict(), FILE) only saves tensors"
            )
    return {str(name): x.detach() for name, x in tensors.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def matrix(theirs: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """The shape of a matrix. Raises `InputError` if it is missing or not a matrix."""
    if name not in theirs:
        raise InputError(f"{name} is missing; is it a file of this format?")
    if theirs[name].ndim != 2:
        raise InputError(f"{name} {list(theirs[name].shape)} is not a matrix")
    rows, columns = theirs[name].shape
    return rows, columns


def count_layers(theirs: Mapping[str, Tensor], start: str) -> int:
    """Count the different numbers after `start` in the names. Raises `InputError` if there are none."""
    numbers = {name.removeprefix(start).split(".")[0] for name in theirs if name.startswith(start)}
    if not numbers:
        raise InputError(f"no name begins with {start}; is it a file of this format?")
    return len(numbers)
