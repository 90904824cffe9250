"""Measurements of `python -m benchmarks.clustering`."""

import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

import hdbscan
import numpy as np
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streamscope.benchmarks.clustering import Options, Peer
from streamscope.benchmarks.timing import CLOCKS, interleaved, ratios
from streamscope.features.cluster.agreement import adjusted_rand
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.store import read_features


def _line(name: str, times: list[float], labels: np.ndarray, ours: list[float], our_labels: np.ndarray) -> str:
    share = (labels >= 0).mean()
    line = f"{name:10s} {median(times):7.1f} s  {labels.max() + 1:5d} clusters  {share:.1%} of the tokens"
    if name == "ours":
        return line
    return f"{line}  ours/theirs {ratios(ours, times)[0]:.3f}  ARI {adjusted_rand(labels, our_labels):.4f}"


def _peer(peer: Peer, jobs: int) -> Any:
    """The peer with our settings: 30 components, the plain distance, clusters of ten."""
    if peer == "hdbscan":
        clusters = hdbscan.HDBSCAN(min_cluster_size=10, min_samples=1, core_dist_n_jobs=jobs)
    else:
        clusters = HDBSCAN(min_cluster_size=10, min_samples=1, copy=True)
    return make_pipeline(StandardScaler(), PCA(30, svd_solver="covariance_eigh"), clusters)


def _table(options: Options) -> np.ndarray:
    """[tokens, columns] float32 without constant columns."""
    if options.features is not None:
        x = read_features(options.features).X[: options.tokens]
        return x[:, np.ptp(x, axis=0) > 0]
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((300, 455))
    x = centers[rng.integers(300, size=options.tokens)] + 0.3 * rng.standard_normal((options.tokens, 455))
    noise = rng.random(options.tokens) < 0.2
    x[noise] = rng.standard_normal((noise.sum(), 455))
    return x.astype(np.float32)


def _compare_new(x: np.ndarray) -> None:
    """Labels of odd rows after a fit on the even ones."""
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


def measure(options: Options) -> None:
    """Measure and print."""
    x = _table(options)
    modes = ComputationalModes()
    modes.fit(x[:2000])  # the first calls of a process are slow
    labels: dict[str, np.ndarray] = {}
    steps: dict[str, Callable[[], object]] = {"ours": lambda: labels.update(ours=modes.fit_predict(x))}
    for peer in options.peers:
        steps[peer] = lambda peer=peer: labels.update({peer: _peer(peer, options.jobs).fit_predict(x)})  # type: ignore[misc]
    seconds = interleaved(steps, rounds=options.rounds, clock=CLOCKS[options.clock])
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
