"""Time HDBSCAN at the size of paper PLS against the `hdbscan` package and scikit-learn.

    python -m benchmarks.clustering                          blobs
    python -m benchmarks.clustering --features topk.parquet --clock cpu

Ours is `features.cluster.modes.ComputationalModes`. The peers run scikit-learn's `StandardScaler` and `PCA`, then their
HDBSCAN: every side goes from features to labels. All run in turn in one process. Ours measures distances in one thread;
the package starts four processes for its core distances (--jobs). The adjusted Rand index (ARI) compares the labels,
with noise as a cluster. --predict fits on the even tokens and labels the odd ones, with `predict` and with the
package's `approximate_predict`.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from streamscope.benchmarks.clustering.options import Options
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)
    if find_spec("hdbscan") is None:
        raise InputError("the peer is missing: pip install 'streamscope[cluster]'")

    from streamscope.benchmarks.clustering.measure import measure

    measure(options)
