"""Time HDBSCAN at the size of paper PLS against the `hdbscan` package and scikit-learn.

    python -m benchmarks.clustering                          blobs
    python -m benchmarks.clustering --features topk.parquet --clock cpu

Ours is `features.cluster.modes.ComputationalModes`; the peers are their HDBSCAN behind scikit-learn's `StandardScaler`
and `PCA`: from features to labels in every case. All run in turn in one process. Ours measures distances in one thread,
the package starts four processes for its core distances unless --jobs says otherwise. Labels are compared by their ARI,
noise as a cluster. New tokens: `predict` beside the package's `approximate_predict`, fitted on the even tokens, for the
odd ones.
"""

from collections.abc import Sequence

from streamscope.benchmarks.clustering.options import Options
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.benchmarks.clustering.measure import measure

    measure(options)
