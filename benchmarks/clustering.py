"""HDBSCAN of 50,453 × 455 features, as many as in PLS C.5, beside the `hdbscan` package and scikit-learn.

    python -m benchmarks.clustering                          blobs
    python -m benchmarks.clustering --features topk.parquet --clock cpu

Ours is `features.cluster.modes.ComputationalModes`; the peers are their HDBSCAN behind scikit-learn's `StandardScaler`
and `PCA`: from features to labels in every case. All run in turn in one process. Ours measures distances in one thread,
the package starts four processes for its core distances unless --jobs says otherwise. Labels are compared by their ARI,
noise as a cluster. New tokens: `predict` beside the package's `approximate_predict`, fitted on the even tokens, for the
odd ones.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from streamscope.models.bounds import Count
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError

if TYPE_CHECKING:
    import numpy as np

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


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)

    from importlib.metadata import version

    import numpy as np

    from streamscope.benchmarks.timing import interleaved
    from streamscope.features.cluster.modes import ComputationalModes

    try:
        import hdbscan  # noqa: F401
    except ImportError:
        raise InputError("the peer is missing: pip install 'streamscope[cluster]'") from None
    x = _table(options)
    modes = ComputationalModes()
    modes.fit(x[:2000])  # the first calls of a process are slow
    labels: dict[str, np.ndarray] = {}
    steps: dict[str, Callable[[], object]] = {"ours": lambda: labels.update(ours=modes.fit_predict(x))}
    for peer in options.peers:

        def step(peer: Peer = peer) -> None:
            labels[peer] = _peer(peer, options.jobs).fit_predict(x)

        steps[peer] = step
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    seconds = interleaved(steps, rounds=options.rounds, clock=clock)
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "hdbscan", "scikit-learn"))
    source = options.features or "blobs"
    explained = modes.explained_variance_ratio_
    print(
        f"{source}: {x.shape[0]:,} x {x.shape[1]} columns that vary, {modes.n_distinct_:,} distinct rows, "
        f"{len(explained)} components with {explained.sum():.1%} of the variance; {versions}; {options.clock} time"
    )
    for name, times in seconds.items():
        print(_line(name, times, labels[name], seconds["ours"], labels["ours"]))
    if options.predict:
        _compare_new(x)


def _line(name: str, times: list[float], found: "np.ndarray", ours: list[float], same: "np.ndarray") -> str:
    from streamscope.features.cluster.agreement import adjusted_rand

    line = f"{name:10s} {median(times):7.1f} s  {found.max() + 1:5d} clusters  {(found >= 0).mean():.1%} of the tokens"
    if name == "ours":
        return line
    ratios = [a / b for a, b in zip(ours, times, strict=True)]
    return f"{line}  ours/theirs {median(ratios):.3f}  ARI {adjusted_rand(found, same):.4f}"


def _peer(peer: Peer, jobs: int) -> Any:
    """The peer as it does the same: 30 components, the plain distance, clusters of ten."""
    import hdbscan
    from sklearn.cluster import HDBSCAN
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if peer == "hdbscan":
        clusters = hdbscan.HDBSCAN(min_cluster_size=10, min_samples=1, core_dist_n_jobs=jobs)
    else:
        clusters = HDBSCAN(min_cluster_size=10, min_samples=1, copy=True)
    return make_pipeline(StandardScaler(), PCA(30, svd_solver="covariance_eigh"), clusters)


def _table(options: Options) -> "np.ndarray":
    """[tokens, columns] float32 without constant columns."""
    import numpy as np

    if options.features is not None:
        from streamscope.features.store import read_features

        x = read_features(options.features).X[: options.tokens]
        return x[:, np.ptp(x, axis=0) > 0]
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((300, 455))
    x = centers[rng.integers(300, size=options.tokens)] + 0.3 * rng.standard_normal((options.tokens, 455))
    noise = rng.random(options.tokens) < 0.2
    x[noise] = rng.standard_normal((noise.sum(), 455))
    return x.astype(np.float32)


def _compare_new(x: "np.ndarray") -> None:
    """Labels of odd rows after a fit on the even ones."""
    import hdbscan

    from streamscope.features.cluster.agreement import adjusted_rand
    from streamscope.features.cluster.modes import ComputationalModes

    modes = ComputationalModes().fit(x[::2])
    start = time.perf_counter()
    ours = modes.predict(x[1::2])
    took = time.perf_counter() - start
    peer = hdbscan.HDBSCAN(min_cluster_size=10, min_samples=1, prediction_data=True).fit(modes.transform(x[::2]))
    start = time.perf_counter()
    theirs, _ = hdbscan.approximate_predict(peer, modes.transform(x[1::2]))
    took_them, both = time.perf_counter() - start, (ours >= 0) & (theirs >= 0)
    print(
        f"new tokens  ours {took:.1f} s, {(ours >= 0).mean():.1%} in clusters; "
        f"approximate_predict {took_them:.1f} s, {(theirs >= 0).mean():.1%}; "
        f"ARI where both are in clusters {adjusted_rand(ours[both], theirs[both]):.4f}"
    )


if __name__ == "__main__":
    command(main)
