"""Time HDBSCAN at the size of paper PLS against the `hdbscan` package and scikit-learn.

    python -m benchmarks.clustering                          blobs
    python -m benchmarks.clustering --features topk.parquet --clock cpu

Ours is `features.cluster.modes.ComputationalModes`. The peers run scikit-learn's `StandardScaler` and `PCA`, then their
HDBSCAN: every side goes from features to labels. All run in turn in one process. Ours measures distances in one thread;
the package starts four processes for its core distances (--jobs). The adjusted Rand index (ARI) compares the labels,
with noise as a cluster. --predict fits on the even tokens and labels the odd ones, with `predict` and with the
package's `approximate_predict`.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from streamscope.cli.bounds import Count
from streamscope.cli.errors import InputError
from streamscope.cli.parse import main_with_body

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

    def __post_init__(self) -> None:
        if find_spec("hdbscan") is None:
            raise InputError("the peer is missing: pip install 'streamscope[cluster]'")


main = main_with_body(Options, __doc__, "streamscope.benchmarks.clustering.measure")
