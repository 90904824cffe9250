"""The provenance of a result: command, commit, versions, device."""

import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError

ROOT = Path(__file__).resolve().parents[2]  # the clone; of an installed package, the folder that it is installed in

CHANGES = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
"""Arguments of git: tracked files outside results/ that differ from the commit."""
PACKAGES = ("torch", "transformer-lens", "tokenizers", "safetensors", "numpy")


def version() -> str:
    """The version of this package: that of the clone, or that of the installed package outside a clone.

    "unknown" for a copy of the package that no installer put there.
    """
    if (file := ROOT / "pyproject.toml").is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "streamscope":
            return str(project["version"])
    try:
        return metadata.version("streamscope")
    except metadata.PackageNotFoundError:
        return "unknown"


def pick_device(name: str) -> str:
    """Resolve `auto` to CUDA if available; an unavailable device raises `InputError`."""
    check_device(name)
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {name}: torch finds no CUDA device; use --device cpu")
    return name


def check_device(name: str) -> None:
    """Raise `InputError` for what names no device, without importing torch."""
    if not re.fullmatch(r"auto|(cpu|cuda)(:\d+)?", name):
        raise InputError(f"device {name!r} is unknown: give auto, cpu, cuda or cuda:N")


def peak_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def provenance(device: str) -> dict[str, Any]:
    """Arguments, commit, versions and machine of this process."""
    import torch

    cuda = device.startswith("cuda")
    return {
        "argv": ["python", *sys.orig_argv[1:]],
        **code(),
        "device": torch.cuda.get_device_name(device) if cuda else f"cpu, {torch.get_num_threads()} threads",
        "cores": os.cpu_count(),
        "started": now(),
    }


def code() -> dict[str, Any]:
    """The code that runs: `commit` of the clone, and `versions` of this package, Python and what they stand on."""
    versions = dict(zip(PACKAGES, map(metadata.version, PACKAGES), strict=True))
    return {
        "commit": commit(), "versions": {"streamscope": version(), "python": platform.python_version(), **versions},
    }  # fmt: skip


@cache
def commit(root: Path = ROOT) -> str:
    """The commit of the clone `root`, with "+changes" if files outside results/ differ from it.

    "unknown" outside git, and for an installed package: the repository around it, if there is one, is somebody else's.
    """
    git = partial(subprocess.run, cwd=root, capture_output=True, text=True, check=True)
    try:
        top, head = git(["git", "rev-parse", "--show-toplevel", "HEAD"]).stdout.splitlines()
        if Path(top).resolve() != root:
            return "unknown"
        return head + ("+changes" if git(["git", *CHANGES]).stdout else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
