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
    """Table of `features.extract`; default: blobs with noise between them."""
    tokens: Count = 50453
    """Rows, at most as many as there are."""
    rounds: Count = 1
    """Times that everything is measured, in turn; medians are printed."""
    peers: tuple[Peer, ...] = ("hdbscan", "sklearn")
    """What to compare with."""
    jobs: Count = 4
    """Processes of the hdbscan package for its core distances."""
    clock: Literal["wall", "cpu"] = "wall"
    """cpu: processor seconds, for one thread and --jobs 1 on a machine that others keep busy."""
    predict: bool = False
    """Compare labels of new tokens as well (the package takes minutes)."""
