"""Where a result is written, checked before the work; imports nothing heavy."""

import os
from collections.abc import Sequence
from pathlib import Path

from streamscope.cli.disk import check_writable
from streamscope.cli.errors import InputError


def check_out(path: Path, instrument: str = "", inputs: Sequence[Path] = (), exports: Sequence[str] = ()) -> Path:
    """`path` where a table of an instrument can be written there. Raises `InputError` before anything is measured where
    it cannot, and where that would destroy what is there: one of the `inputs` (files, or what lies in folders), the
    table of another instrument, tensors that are none of its arrays. `exports` are further suffixes."""
    if path.name == ".." or os.path.isdir(path):
        raise InputError(f"--out {path} is a folder; name a file in it, as {path / 'table.parquet'}")
    if path.suffix not in (".parquet", ".csv", *exports):
        other = "".join(f" or {one}" for one in exports)
        raise InputError(
            f"--out {path}: a table is parquet or CSV, name it {path.with_suffix('.parquet')} or .csv{other}"
        )
    whole, arrays = path.resolve(), path.with_suffix(".safetensors")
    if os.path.exists(path) or os.path.exists(arrays):
        from streamscope.instruments.table import check_own, maker_of  # pandas, only where there is a table
    for one in (given.resolve() for given in inputs):
        if one == whole or (one.is_dir() and os.path.exists(path) and one in whole.parents and not maker_of(path)):
            raise InputError(f"--out {path} is an input, which would be lost; name another file")
        if one == arrays.resolve():
            raise InputError(f"--out {path}: {one.name} is an input, and arrays are written there; name another file")
        if one.parent == whole.parent and one.suffix == whole.suffix and one.name.startswith(f"{whole.stem}-"):
            raise InputError(f"--out {path}: {one.name} is an input, and other tables are named so; name another file")
    for one in filter(os.path.exists, (path, arrays) if instrument else ()):
        check_own(one, instrument)
    check_writable(path)
    return path
