"""What a circuit is worth: how much of a model's ability its edges carry, when all others are patched.

    f(k) = (m(C_k) − m(∅)) / (m(M) − m(∅))       CPR = ∫ f dk        CMD = ∫ |1 − f| dk        from k = .001 to 1

C_k are the best share k of the edges, M is the clean run, ∅ the corrupted one. f is a ratio of means over pairs, and
integrals are trapezoids between the shares `SHARES` (MIB, Mueller et al. 2025). CPR ranks edges by score, CMD by its
size. Edges are chosen on one half of the pairs. The other half judges them, compared with random circuits of as many
edges.
Edges that lie on no path from the input to the logits count, but are patched.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from streamscope.instruments.stats.estimators import Clusters, cluster_totals
from streamscope.interventions.circuits import Metric, metrics
from streamscope.interventions.circuits.graph import Graph
from streamscope.interventions.circuits.metrics import Batch
from streamscope.interventions.circuits.run import run

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares k of the edges, those of MIB."""
Ranking = Literal["score", "size"]
WHOLE = 0.9
"""Share of the effect for which edges are counted."""


def size_of(k: float, edges: int) -> int:
    """Number of edges of a share, rounded down as in MIB."""
    return int(k * edges)


def ranks(scores: np.ndarray, ranking: Ranking = "score") -> np.ndarray:
    """The place of every score [edges], 0 for the largest; earlier edges first among equals."""
    order = np.argsort(-(np.abs(scores) if ranking == "size" else scores), kind="stable")
    return np.argsort(order)


def top(scores: np.ndarray, n: int, ranking: Ranking = "score") -> np.ndarray:
    """Which of the scores [edges] are the n largest; earlier edges first among equals."""
    return ranks(scores, ranking) < n


@torch.no_grad()
def circuit_values(
    model: Any, graph: Graph, batches: Sequence[Batch], metric: Metric, circuits: Sequence[np.ndarray],
    progress: Callable[[Iterable], Iterable] = iter,
) -> np.ndarray:  # fmt: skip
    """m of the clean run, the corrupted run and every circuit [2 + circuits, pairs]; a circuit says which edges it
    keeps."""
    values = np.zeros((2 + len(circuits), sum(len(b.rows) for b in batches)))
    masks = [torch.tensor(graph.matrix(~graph.pruned(circuit), fill=False)) for circuit in circuits]
    for batch in progress(batches):
        corrupt = run(model, graph, batch.corrupt)
        clean = run(model, graph, batch.clean).logits(batch.at)
        values[0, batch.rows] = metrics.value(metric, clean, batch, clean).cpu()
        values[1, batch.rows] = metrics.value(metric, corrupt.logits(batch.at), batch, clean).cpu()
        for i, (circuit, mask) in enumerate(zip(circuits, masks, strict=True)):
            if circuit.all():
                values[2 + i, batch.rows] = values[0, batch.rows]
                continue
            logits = run(model, graph, batch.clean, patched=mask.to(clean.device), other=corrupt.out).logits(batch.at)
            values[2 + i, batch.rows] = metrics.value(metric, logits, batch, clean).cpu()
    return values


def faithfulness(total: Any, size: Any, axis: int = -1) -> np.ndarray:
    """f of cells [clean, corrupted, circuits …] from totals and sizes: [circuits …]."""
    m = total.sum(axis) / size.sum(axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((m[2:] - m[1]) / (m[0] - m[1]))


def mean_faithfulness(total: Any, size: Any, axis: int = -1) -> np.ndarray:
    """f of the only circuit, or the mean of several."""
    return np.asarray(faithfulness(total, size, axis).mean(0))


def cpr(total: Any, size: Any, axis: int = -1) -> np.ndarray:
    """∫ f dk of circuits in the order of `SHARES`, for several sequences of them their mean."""
    return np.asarray(np.trapezoid(_by_share(total, size, axis), SHARES, axis=1).mean(0))


def cmd(total: Any, size: Any, axis: int = -1) -> np.ndarray:
    """∫ |1 − f| dk, as `cpr`."""
    return np.asarray(np.trapezoid(np.abs(1 - _by_share(total, size, axis)), SHARES, axis=1).mean(0))


def whole_at(f: np.ndarray) -> float:
    """The smallest share k at which f [shares] reaches `WHOLE`, interpolated in log k; NaN where it does not."""
    reached = np.flatnonzero(f >= WHOLE)
    if not len(reached):
        return float("nan")
    index, x = int(reached[0]), np.log10(SHARES)
    if not index:
        return SHARES[0]
    part = (WHOLE - f[index - 1]) / (f[index] - f[index - 1])
    return float(10 ** (x[index - 1] + part * (x[index] - x[index - 1])))


def _by_share(total: Any, size: Any, axis: int) -> np.ndarray:
    f = faithfulness(total, size, axis)
    return f.reshape(-1, len(SHARES), *f.shape[1:])


def resampled(scores: np.ndarray, within: Clusters, draws: int, seed: int = 0) -> np.ndarray:
    """Sums of the scores [edges, pairs] over bootstraps of the pairs, in whole clusters: [draws, edges]."""
    sums = cluster_totals(scores.astype(float), within.codes)[0]
    n = sums.shape[1]
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    return np.stack([sums @ w for w in weights])


def stability(
    scores: np.ndarray, within: Clusters, sizes: Sequence[int], ranking: Ranking, *, draws: int = 40, seed: int = 0
) -> list[tuple[float, float, float]]:  # fmt: skip
    """For each n of `sizes`, the Jaccard index of the n best edges of two bootstraps of the pairs [edges, pairs]: mean,
    2.5 % and 97.5 % point."""
    drawn = resampled(scores, within, 2 * draws, seed)
    overlaps = np.zeros((draws, len(sizes)))
    for i, (a, b) in enumerate(zip(drawn[::2], drawn[1::2], strict=True)):
        first, second = (ranks(sample, ranking) for sample in (a, b))
        overlaps[i] = [jaccard(first < n, second < n) for n in sizes]
    low, high = np.quantile(overlaps, (0.025, 0.975), axis=0)
    return list(zip(overlaps.mean(0).tolist(), low.tolist(), high.tolist(), strict=True))


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """|A ∩ B| / |A ∪ B| of two sets; 1 for two empty ones."""
    union = (a | b).sum()
    return float((a & b).sum() / union) if union else 1.0


def chance(n: int, edges: int) -> float:
    """The Jaccard index of two random sets of n edges, from the mean size of their intersection."""
    shared = n * n / edges
    return shared / (2 * n - shared) if n else 1.0
