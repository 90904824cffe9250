"""Options of `python -m benchmarks.clustering`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamscope.cli.bounds import Count

Peer = Literal["hdbscan", "sklearn"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.clustering`."""

    features: Path | None = None
    """Table of `features.extract`; default: synthetic clusters with noise."""
    tokens: Count = 50453
    """Rows to use."""
    rounds: Count = 1
    """Repetitions; the medians are printed."""
    peers: tuple[Peer, ...] = ("hdbscan", "sklearn")
    """Packages to compare with."""
    jobs: Count = 4
    """Processes that the hdbscan package starts for its core distances."""
    clock: Literal["wall", "cpu"] = "wall"
    """Wall time or processor seconds (cpu: for a busy machine, with one thread and --jobs 1)."""
    predict: bool = False
    """Also compare the labels of new tokens (the package takes minutes)."""
