"""The provenance of a result: command, commit, versions, device."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError

CHANGES = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
"""Arguments of git: tracked files outside results/ that differ from the commit."""
PACKAGES = ("torch", "transformer-lens", "tokenizers", "safetensors", "numpy")


def pick_device(name: str) -> str:
    """Resolve `auto` to CUDA if available; an unavailable device raises `InputError`."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {name}: torch finds no CUDA device; use --device cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is unknown: give auto, cpu, cuda or cuda:N")
    return name


def peak_resident_bytes() -> int:
    """Peak resident memory of this process; 0 if the operating system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def now() -> str:
    """UTC time in seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def provenance(device: str) -> dict[str, Any]:
    """Arguments, commit, versions and machine of this process."""
    import torch

    cuda = device.startswith("cuda")
    return {
        "argv": ["python", *sys.orig_argv[1:]],
        "commit": commit(),
        "versions": {"python": platform.python_version(), **{p: metadata.version(p) for p in PACKAGES}},
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "cores": os.cpu_count(),
        "started": now(),
    }


def commit() -> str:
    """The clone's commit, with "+changes" if files outside results/ differ from it; "unknown" outside git."""
    root = Path(__file__).resolve().parents[2]

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git(*CHANGES) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
