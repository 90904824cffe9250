"""Tensors of other people's checkpoints by name, and ours made of them by a table. Nothing is unpickled.

    theirs = read("model.npz")
    ours = take(table, theirs, shapes)

A table is rows (our name, their name, how ours lies in theirs). In names {l} stands for every layer, {k} for each of
several tensors of theirs that make one of ours.
"""

import math
import pickle
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from streamscope.cli.errors import InputError

Take = Callable[[Sequence[Tensor], Sequence[int]], Tensor]
"""(their tensors, our shape) -> ours."""
Row = tuple[str, str, Take]
Table = Sequence[Row]


def whole(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Ours is theirs."""
    return x[0]


def transposed(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """A map [d_in, d_out], ours is [d_out, d_in]."""
    return x[0].mT


def stacked(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """One row of ours each."""
    return torch.stack(list(x))


def maps(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Maps [d_in, some of d_out]."""
    return torch.cat([one.mT for one in x])


BF16 = np.dtype("V2")
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
DEFLATE = 1032
"""Bytes that one packed byte can hold at most."""


# ---- reading -----------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of an .npz, .pt, .pth or .safetensors file by name, in the dtypes of the file.

    Raises `InputError` for a file that is missing or damaged, for pickled objects and for what is no floating tensor.
    """
    readers = {".npz": _npz, ".pt": _pt, ".pth": _pt, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise InputError(f"{path} is no checkpoint that is read here: {', '.join(readers)} are")
    if not path.is_file():
        raise InputError(f"{path} is no file: check the path")
    found = readers[path.suffix](path)
    if not found:
        raise InputError(f"{path} holds no tensor")
    for name, x in found.items():
        if not x.is_floating_point() or x.layout != torch.strided:
            raise InputError(f"{name} of {path} is {x.dtype}, {x.layout}: weights are dense and floating")
    return found


def _npz(path: Path) -> dict[str, Tensor]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is no sound .npz file; save it again")
    found: dict[str, Tensor] = {}
    name = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                _check_size(file.zip, name)
                found[name] = _of_numpy(file[name], name, path)
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise InputError(f"{name} of {path} is pickled, which is not read: save arrays alone") from None
        raise InputError(f"{name or 'the list of names'} of {path} is damaged ({error}); save it again") from None
    return found


def _check_size(archive: zipfile.ZipFile, name: str) -> None:
    """Raise `ValueError` where the header of an array claims other bytes than follow, so that no memory is asked for
    that the file does not fill. What a zip entry says of itself is held against what deflate can pack (1,032 to 1)."""
    info = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"a header of version {version}")
        shape, _, dtype = HEADERS[version](file)
        there = info.file_size - file.tell()
    if dtype.hasobject:
        return  # pickled, which is refused by its name
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != there or info.file_size > DEFLATE * max(info.compress_size, 1):
        raise ValueError(f"its header claims {claimed:,} bytes, the file has {there:,}")


def _of_numpy(x: object, name: str, path: Path) -> Tensor:
    """bfloat16 is two bytes of no type there: what MLX writes, and what numpy makes of it."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fV" or (x.dtype.kind == "V" and x.dtype != BF16):
        raise InputError(f"{name} of {path} is {getattr(x, 'dtype', 'no array')}: weights are floating")
    if x.dtype == BF16:
        return torch.from_numpy(np.array(x, order="C").view("<i2").astype(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))
    except TypeError:  # of 80 bits
        raise InputError(f"{name} of {path} is {x.dtype}, which no weight is") from None


def _pt(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} holds pickled objects that are no tensors, which are not read, or is damaged: "
            "torch.save(model.state_dict(), FILE) saves tensors alone"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged ({str(error).split('. ')[0]}); save it again") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}; torch.save(model.state_dict(), FILE) is read")
    for name, x in found.items():
        if not isinstance(x, Tensor):
            raise InputError(
                f"{name} of {path} is of the type {type(x).__name__}, no tensor: "
                "torch.save(model.state_dict(), FILE) saves tensors alone"
            )
    return {str(name): x.detach() for name, x in found.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no sound safetensors file ({error})") from None


# ---- by name -----------------------------------------------------------------------------------


def take(
    table: Table,
    theirs: Mapping[str, Tensor],
    shapes: Mapping[str, Sequence[int]],
    *,
    layers: int = 1,
    factors: int = 0,
    unread: Container[str] = (),
) -> dict[str, Tensor]:
    """Our tensors, those that `shapes` names, made of theirs by `table`; {l} counts to `layers`, {k} to `factors`.

    Raises `InputError` for a tensor that is not there, one of another shape, and one that is in no row of a tensor of
    ours and not in `unread`.
    """
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for pattern, their, how in table:
        for layer in range(layers if "{l}" in pattern else 1):
            ours = pattern.replace("{l}", str(layer))
            if ours not in shapes:
                continue
            one = their.replace("{l}", str(layer))
            names = [one.replace("{k}", str(k)) for k in range(factors)] if "{k}" in one else [one]
            if lacking := [name for name in names if name not in theirs]:
                raise InputError(f"{lacking[0]} is missing, which makes {ours}")
            found[ours] = _made(how, {name: theirs[name] for name in names}, ours, shapes[ours])
            used.update(names)
    if rest := [name for name in theirs if name not in used and name not in unread]:
        more = f" and {len(rest) - 1} more are" if len(rest) > 1 else " is"
        raise InputError(f"{rest[0]} {list(theirs[rest[0]].shape)}{more} read by no part of ours")
    if lacking := [name for name in shapes if name not in found]:
        raise InputError(f"no file of this format holds {lacking[0]}: change the configuration back")
    return found


def _made(how: Take, x: Mapping[str, Tensor], ours: str, shape: Sequence[int]) -> Tensor:
    try:
        made = how(list(x.values()), shape)
        if made.shape == torch.Size(shape):
            return made.contiguous()
    except (RuntimeError, IndexError):
        pass
    shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in x.items())
    raise InputError(f"{shapes} cannot be {ours} {list(shape)}")


def matrix(theirs: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """The shape of a matrix of theirs. Raises `InputError` where it is not there, or is none."""
    if name not in theirs:
        raise InputError(f"{name} is missing; is it a file of this format?")
    if theirs[name].ndim != 2:
        raise InputError(f"{name} {list(theirs[name].shape)} is no matrix")
    rows, columns = theirs[name].shape
    return rows, columns


def count_layers(theirs: Mapping[str, Tensor], start: str) -> int:
    """How many different numbers follow `start` in their names. Raises `InputError` for none."""
    found = {name.removeprefix(start).split(".")[0] for name in theirs if name.startswith(start)}
    if not found:
        raise InputError(f"no name begins with {start}; is it a file of this format?")
    return len(found)
