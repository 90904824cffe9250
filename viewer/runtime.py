"""Fetch ONNX Runtime for pages that run a model without a server, once, into the cache.

    python -m viewer.runtime
    python -m viewer.runtime onnxruntime-web-1.30.0.tgz

A page holds the program that computes its model: ONNX Runtime for the web, 3.7 MB packed (MIT). It is neither in the
repository nor in the wheel. This command gets the package onnxruntime-web by `npm pack`, from the registry of npm's own
settings, or reads the package's file, checks its sha256 and keeps the two files that pages need.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.disk import read_bytes, write_atomically
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
FILES = {"script": "ort.wasm.bundle.min.mjs", "wasm": "ort-wasm-simd-threaded.wasm"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m viewer.runtime`."""

    file: Annotated[Path | None, tyro.conf.Positional] = None
    """The package's file, if you have it already. Default: fetch it by npm."""


def folder() -> Path:
    from streamscope.text.cache import cache_root

    return cache_root() / "viewer" / f"{PACKAGE}-{VERSION}"


def read(name: str) -> bytes:
    """A file of ONNX Runtime: "script" or "wasm". Raises `InputError` where it was not fetched."""
    path = folder() / FILES[name]
    if not path.is_file():
        raise InputError(
            "a page needs ONNX Runtime, which is fetched once: run python -m viewer.runtime, or leave out --out for "
            "the local server"
        )
    return read_bytes(path)


def install(package: bytes) -> None:
    """Keep the files of the package. Raises `InputError` unless its content is the expected one."""
    if (digest := hashlib.sha256(package).hexdigest()) != SHA256:
        raise InputError(f"this is not {PACKAGE} {VERSION}: its sha256 is {digest}, not {SHA256}")
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in FILES.values():
            member = archive.extractfile(f"package/dist/{name}")
            assert member is not None
            write_atomically(folder() / name, partial(Path.write_bytes, data=member.read()))


def fetched() -> bytes:
    """The package by npm. Raises `InputError` without npm, and with npm's own last line where it fails."""
    if (npm := shutil.which("npm")) is None:
        raise InputError(
            f"npm is not installed: install it (on Debian: apt install npm), or give the file of {PACKAGE} {VERSION}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        process = subprocess.run(
            [npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=scratch, capture_output=True, text=True
        )
        files = list(Path(scratch).glob("*.tgz"))
        if process.returncode or len(files) != 1:
            message = (process.stderr.strip() or "npm wrote no file").splitlines()[-1]
            raise InputError(f"npm could not fetch {PACKAGE} {VERSION}: {message}")
        return files[0].read_bytes()


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if options.file is not None:
        install(read_bytes(options.file))
    elif not all((folder() / name).is_file() for name in FILES.values()):
        install(fetched())
    print(f"{PACKAGE} {VERSION} lies in {folder()}")


if __name__ == "__main__":
    command(main)
