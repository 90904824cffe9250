"""Estimates with intervals and tests that follow the design of the experiment.

A unit is what was sampled independently: a minimal pair (its two orders are one unit), a document, a training
seed. Observations within a unit may depend on each other in any way; units may not. Everything here treats
clusters as the units and reduces to the textbook formula when every cluster holds one observation.

Where cases share more than one thing (a thousand pairs made from a hundred nouns; words crossed with templates) a case
has several labels, one per kind of thing: `read_clusters`. Two cases that agree in any of them may depend on each
other.

    Var R = D/(D−1) · Σ_{i,j that share a label} e_i e_j / n²          e = y − R, D the fewest labels of a kind

Computed by inclusion and exclusion over the kinds (Cameron, Gelbach & Miller 2011, Journal of Business & Economic
Statistics 29:238). A word that is of one kind in some cases and of another in others (a noun meant here, competing
there) makes those depend on each other as well (dyadic clustering: Fafchamps & Gubert 2007, Journal of Development
Economics 83:326). Such sums need not be positive, and may nearly cancel; so the variance is the largest of the two and
of those clustered by one kind alone: no interval is narrower than clustering by words, or by pairs, would give.
"""

import warnings
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri, stdtrit

from streamscope.cli.errors import InputError

CONFIDENCE = 0.95  # of every interval
UPPER = 0.5 + CONFIDENCE / 2  # stdtrit(df, UPPER), Student's quantile, is half an interval in standard errors
Z = float(ndtri(UPPER))
BOOTSTRAP_CLUSTERS = 8  # below this no bootstrap interval of d held 93 % in simulation
EVEN = 0.8  # clusters are about equal in size where (Σw)²/Σw² is at least this share of their number
_BATCH_CELLS = 2_000_000  # resampled numbers in memory at once


Term = tuple[int, np.ndarray, np.ndarray]  # sign, cells, codes: the cells of one code share a combination of labels


@dataclass(frozen=True)
class Shared:
    """Cells that share labels of several kinds; a cell is a combination of labels, D cells in all."""

    kinds: tuple[np.ndarray, ...]
    """For each kind, codes [D] of the cells' labels."""
    sums: tuple[tuple[Term, ...], ...]
    """Terms of inclusion and exclusion: equal labels of two kinds taken for different; and for the same."""
    sizes: np.ndarray
    """[D]: observations of each cell."""

    @classmethod
    def of(cls, labels: Sequence[np.ndarray], sizes: np.ndarray) -> "Shared":
        """From the labels [D] of each kind."""
        kinds, d, every = [pd.factorize(column)[0] for column in labels], len(sizes), range(1, len(labels) + 1)
        term_of: dict[bytes, Term] = {}
        for subset in (subset for k in every for subset in combinations(kinds, k)):
            codes = pd.MultiIndex.from_arrays(subset).factorize()[0] if len(subset) > 1 else subset[0]
            sign = term_of.get(codes.tobytes(), (0,))[0] + (-1) ** (len(subset) + 1)
            term_of[codes.tobytes()] = (sign, np.arange(d), codes)
        sums = [tuple(term for term in term_of.values() if term[0])]
        if len(set().union(*(set(column) for column in labels))) < sum(int(codes.max()) + 1 for codes in kinds):
            names = pd.factorize(np.concatenate(labels))[0].reshape(len(labels), d).T  # [D, kinds]
            is_repeat = np.array([[name in row[:i] for i, name in enumerate(row)] for row in names.tolist()])
            names[is_repeat] = names.max() + 1 + np.arange(is_repeat.sum())  # a label that a cell has twice counts once
            terms = []
            for k in every:
                subsets = combinations(range(len(labels)), k)
                rows = np.concatenate([np.sort(names[:, list(subset)]) for subset in subsets])
                codes = pd.MultiIndex.from_arrays(list(rows.T)).factorize()[0] if k > 1 else pd.factorize(rows[:, 0])[0]
                terms.append(((-1) ** (k + 1), np.tile(np.arange(d), len(rows) // d), codes))
            sums.append(tuple(terms))
        return cls(tuple(kinds), tuple(sums), sizes)

    def squares(self, residuals: np.ndarray) -> np.ndarray:
        """Σ e_i e_j over the pairs of cells that share a label, of residuals [..., D]; see this module."""
        by_kind = [((1, np.arange(residuals.shape[-1]), codes),) for codes in self.kinds]
        totals = []
        for terms in (*self.sums, *by_kind):
            sums = ((sign, cluster_totals(residuals[..., cells], codes)[0]) for sign, cells, codes in terms)
            totals.append(np.sum([sign * np.square(x).sum(-1) for sign, x in sums], axis=0))
        return np.asarray(np.max(totals, axis=0))


Clusters = namedtuple("Clusters", ("codes", "shared", "count"))
"""Codes 0..D−1 [n] of the cells of n observations, how cells share labels (`Shared`), and the number to go by.

With one label per observation a cell is a cluster, and `shared` None; else `count` is the fewest labels of a kind."""


def read_clusters(clusters: ArrayLike | Sequence[tuple] | None, n: int) -> Clusters:
    """Clusters of n observations from one label each (any hashable), or several: tuples, or an array [n, kinds].

    None makes every observation its own cluster. Equal texts are one label, of whatever kind; numbers are labels of
    their kind only.
    """
    if clusters is None:
        return Clusters(np.arange(n), None, n)
    labels = clusters if isinstance(clusters, np.ndarray) else np.asarray(pd.Series(clusters, dtype=object))
    if len(labels) != n:
        raise InputError(f"{n} values but {len(labels)} cluster labels")
    if labels.dtype == object:
        kinds = set[int]()
        for label in labels:
            kinds.add(len(label) if isinstance(label, tuple | list) else 0)
        if len(kinds) > 1:
            raise InputError("cluster labels must be of equally many kinds for every value")
        if kinds - {0}:
            return _crossed(tuple(map(tuple, labels)))
    if labels.ndim == 2:
        return _crossed(tuple(map(tuple, labels.tolist())))
    codes = pd.factorize(labels)[0]
    if missing := int((codes < 0).sum()):
        raise InputError(f"{missing} cluster labels are missing")
    return Clusters(codes, None, int(codes.max()) + 1 if n else 0)


@lru_cache(maxsize=64)  # one table is summarised for every head, with the same labels
def _crossed(labels: tuple[tuple, ...]) -> Clusters:
    """`read_clusters` of labels of several kinds."""
    columns = [np.array([*column, None], object)[:-1] for column in zip(*labels, strict=True)]
    kinds = [pd.factorize(column)[0] for column in columns]
    if missing := sum(int((kind < 0).sum()) for kind in kinds):
        raise InputError(f"{missing} cluster labels are missing")
    codes = pd.MultiIndex.from_arrays(kinds).factorize()[0] if len(kinds) > 1 else kinds[0]
    first = np.unique(codes, return_index=True)[1]
    sizes = np.bincount(codes).astype(float)
    if len(kinds) == 1:
        return Clusters(codes, None, len(sizes))
    names = []
    for i, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        text = all(isinstance(label, str) for label in column)
        names.append(np.array([str(column[cell]) if text else f"{i}: {kind[cell]}" for cell in first]))
    return Clusters(codes, Shared.of(names, sizes), min(int(kind.max()) + 1 for kind in kinds))


def cluster_totals(values: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums [..., D] of values [..., n] by cluster code, and the counts [D]."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return np.add.reduceat(values[..., order], starts, axis=-1), np.diff(np.append(starts, len(codes))).astype(float)


def ratio_and_error(
    totals: np.ndarray, counts: np.ndarray, shared: Shared | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """R = Σ y_d / Σ n_d over the last axis and its standard error; leading axes are separate estimates.

    With e_d = y_d − R n_d, Var R = D/(D−1) · Σ e_d² / (Σ n_d)² (linearised; Cochran, Sampling Techniques, §6): with
    equal n_d sd / sqrt(D) of the cluster means, exactly; with unequal ones a few long clusters decide, which
    `degrees_of_freedom` accounts for. Of cells that share labels Σ e_d² is `Shared.squares`, D the fewest of a kind.
    """
    size = counts.sum(-1)
    value = np.asarray(totals.sum(-1) / size)
    return value, np.asarray(np.sqrt(clustered_square(totals - value[..., None] * counts, shared)) / size)


def clustered_square(residuals: np.ndarray, shared: Shared | None = None) -> np.ndarray:
    """D/(D−1) Σ e_d² over the last axis, or over the pairs of cells that share a label: the variance of Σ e_d."""
    d = residuals.shape[-1] if shared is None else min(int(codes.max()) + 1 for codes in shared.kinds)
    squares = np.square(residuals).sum(-1) if shared is None else shared.squares(residuals)
    return np.asarray(d / (d - 1) * squares)


def degrees_of_freedom(counts: np.ndarray, shared: Shared | None = None) -> np.ndarray:
    """Degrees of freedom of t for `ratio_and_error`, from the cluster sizes n_d on the last axis.

    df = 1 / (Σ p_d² + (Σ w_d)² − Σ w_d²), p_d = n_d / Σ n, w_d = p_d² / (1 − p_d): Satterthwaite's for a clustered
    variance and independent observations (Bell & McCaffrey 2002, Survey Methodology 28:169, for the mean). D−1 with
    equal sizes, less the more the sizes differ. Where cells share labels (`shared`): the smallest over the kinds.
    """
    if shared is not None:
        df_of_kinds = [degrees_of_freedom(cluster_totals(counts, codes)[0]) for codes in shared.kinds]
        return np.asarray(np.min(df_of_kinds, axis=0))
    p = counts / counts.sum(-1, keepdims=True)
    w = p**2 / (1 - p)
    return np.asarray(1 / (np.square(p).sum(-1) + w.sum(-1) ** 2 - np.square(w).sum(-1)))


# ---- means that have a smallest or largest possible value: shares, probabilities, counts --------------
# t is symmetric: where values are skewed it covers too little, and it can end beyond the limit. How often each of these
# holds: docs/guides/measuring.md


def bounded_interval(
    value: np.ndarray, error: np.ndarray, t: np.ndarray, residuals: np.ndarray, clusters: np.ndarray,
    sizes: np.ndarray, limits: tuple[float, float], shared: Shared | None = None,
) -> np.ndarray:  # fmt: skip
    """The intervals [2, means] of means between `limits`, from their standard errors, quantiles t, residuals e
    [means, clusters] that sum to 0, numbers of clusters, and the clusters' sizes.

    Hall's interval (1992, Journal of the Royal Statistical Society B 54:221) removes the skewness g of the mean; where
    it is 0 this is value ± t · error:

        g = Σ e³ / (Σ e²)^{3/2}      U(q) = ((1 + g (q − g/6))^{1/3} − 1) / (g/3)
        value − U(t) · error   to   value − U(−t) · error

    Of clusters with labels of several kinds (`shared`) g is the largest of those by one kind. Ends beyond a limit, and
    both of fewer than 8 clusters or unequal ones, where g cannot be estimated, are those of `inside`.
    """
    skews = []
    for codes in (None, *(shared.kinds if shared else ())):
        e = residuals if codes is None else cluster_totals(residuals, codes)[0]
        skews.append(np.nan_to_num((e**3).sum(-1) / np.square(e).sum(-1) ** 1.5))
    g = np.take_along_axis(np.array(skews), np.abs(skews).argmax(0)[None], 0)[0]
    q = np.array([t, -t])
    ends = value - error * np.where(np.abs(g) < 1e-9, q, (np.cbrt(1 + g * (q - g / 6)) - 1) / (g / 3))
    is_unknown = sizes.sum(-1) ** 2 / np.square(sizes).sum(-1) < EVEN * (sizes > 0).sum(-1)
    is_unknown |= clusters < BOOTSTRAP_CLUSTERS
    return inside(np.where(is_unknown, np.nan, ends), value, t * error, limits)


def inside(ends: np.ndarray, value: np.ndarray, half: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Intervals [2, …] whose ends beyond the limits, or NaN, are those on the log-odds scale (the delta method).

    y(value) ± y'(value) · half carried back, y = log((x − a)/(b − x)) between the limits a and b, `half` the half-width
    of t. Without b it is log(x − a), without both x itself. A value at a limit has its end there.
    """
    (a, b), sides = limits, np.array([-half, half])
    below, above = value - a, b - value  # infinite without a limit
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = sides * (1 / below + 1 / above)
        if np.isfinite(b - a):
            moved = a + (b - a) * expit(np.log(below) - np.log(above) + steps)
        elif np.isfinite(a):
            moved = a + below * np.exp(steps)
        else:
            moved = b - above * np.exp(-steps) if np.isfinite(b) else value + sides
    moved = np.where((a < value) & (value < b), moved, np.clip(value + sides, a, b))
    return np.where((ends >= a) & (ends <= b), ends, moved)


def wilson(hits: np.ndarray, clusters: Clusters | None, inflation: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95 % intervals of shares of hits (0 or 1) [..., cases]; None: every case is a cluster.

    p = k/n; the interval is {π : |p − π| ≤ z sqrt(π(1−π)/n)}, never outside [0, 1], never of width 0. Clusters: n is
    replaced by the effective n* = p(1−p)/SE² · (z/t_df)², SE of the ratio estimator, at most n (Korn & Graubard
    1998, with Wilson for Clopper-Pearson); n* = D where all or no cases hit. With `inflation` n or n* is divided by it
    (`observations.Measure`).
    """
    n = _worth(hits, clusters) / inflation
    p, z2 = hits.mean(-1), Z**2
    centre, half = p + z2 / (2 * n), np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2)))
    return np.maximum(0.0, (centre - half) / (1 + z2 / n)), np.minimum(1.0, (centre + half) / (1 + z2 / n))


def score_p(
    hits: np.ndarray, null: np.ndarray | float, clusters: Clusters | None, inflation: float = 1.0
) -> np.ndarray:
    """p that shares of hits [..., cases] are `null`: 2 Φ(−|p − π| / sqrt(π(1−π)/n*)), below .05 where π is outside
    `wilson`.

    1 where π is 0 or 1.
    """
    error = np.sqrt(null * (1 - null) * inflation / _worth(hits, clusters))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 1.0, 2 * ndtr(-np.abs(hits.mean(-1) - null) / error))


def _worth(hits: np.ndarray, clusters: Clusters | None) -> np.ndarray:
    """n, or n* of clusters."""
    if clusters is None:
        return np.asarray(hits.shape[-1], float)
    return effective_n(*cluster_totals(hits, clusters.codes), clusters)


def effective_n(totals: np.ndarray, counts: np.ndarray, clusters: Clusters | None = None) -> np.ndarray:
    """Independent cases worth as much as clusters of hits [..., clusters]: p(1−p)/SE² · (z/t)², from 1 to Σ counts."""
    shared, d = (None, len(counts)) if clusters is None else (clusters.shared, clusters.count)
    share, error = ratio_and_error(totals, counts, shared)
    spread, ratio_zt = share * (1 - share), Z / stdtrit(degrees_of_freedom(counts, shared), UPPER)
    with np.errstate(invalid="ignore"):
        worth = spread / np.maximum(error**2, spread / counts.sum()) * ratio_zt**2
    return np.where(spread == 0, float(d), np.maximum(1.0, worth))


def expanded_level(d: int) -> float:
    """Level for a bootstrap of d clusters to cover 95 %; see `cluster_bootstrap`."""
    return float(1 - 2 * ndtr(-np.sqrt(d / (d - 1)) * stdtrit(d - 1, UPPER)))


def cluster_bootstrap(
    statistic: Callable[..., np.ndarray], *columns: np.ndarray, resamples: int = 5000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """BCa bootstrap interval of a statistic of totals in 8 clusters or more, whole clusters drawn with replacement.

    `columns` are [..., D]: per cluster a count, a sum, a sum of squares, …; `statistic(*columns, axis)` reduces the
    last axis. Leading axes (heads, scales) share the resamples. Returns (low, high) of shape [...]; NaN where the
    statistic does not vary over resamples, −∞ and ∞ where an end has no value because it is not finite in some.

    The level is expanded to that of t with D−1 degrees of freedom, α' = 2 Φ(−sqrt(D/(D−1)) t_{D−1, 1−α/2}), because a
    bootstrap is sqrt((D−1)/D) too narrow (Hesterberg 2015, The American Statistician 69:371). For a mean use a contrast
    of observations. scipy.stats.bootstrap; Efron & Tibshirani 1993, §14.3.
    """
    from scipy import stats

    d = columns[0].shape[-1]
    if d < BOOTSTRAP_CLUSTERS:
        raise InputError(f"a bootstrap over clusters needs at least {BOOTSTRAP_CLUSTERS} clusters, got {d}")
    data = np.broadcast_arrays(*columns)
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # without variation it is NaN in the answer
        result = stats.bootstrap(
            data, statistic, paired=True, vectorized=True, axis=-1, confidence_level=expanded_level(d),
            method="BCa", n_resamples=resamples, batch=max(1, _BATCH_CELLS // data[0].size),
            rng=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = map(np.asarray, result.confidence_interval)
    is_lost = ~np.isfinite(low + high) & ~np.isfinite(result.bootstrap_distribution).all(-1)
    return np.where(is_lost, -np.inf, low), np.where(is_lost, np.inf, high)


def statistic_interval(
    statistic: Callable[..., np.ndarray], *columns: np.ndarray, clusters: Clusters, resamples: int = 5000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of one statistic of totals per cell: `cluster_bootstrap`, or linearised where cells share labels.

    Cells that share labels cannot be drawn independently. There θ = g(Σ c_1d, Σ c_2d, …) has θ ± t_df sqrt(Var), Var =
    `clustered_square` of e_d = Σ_k ∂g/∂C_k c_kd with derivatives by central differences (the delta method; e_d sums to
    0 where g does not change with the number of cases) and df = `degrees_of_freedom`. NaN where it does not vary.
    """
    shared = clusters.shared
    if shared is None:
        return cluster_bootstrap(statistic, *columns, resamples=resamples, seed=seed)
    sums, influence = [column.sum(-1, keepdims=True) for column in columns], np.zeros(len(shared.sizes))
    for k, column in enumerate(columns):
        for place in np.ndindex(column.shape[:-1]):
            step = np.zeros_like(sums[k])
            step[place] = 1e-6 * np.abs(column[place]).sum()
            rise = statistic(*sums[:k], sums[k] + step, *sums[k + 1 :], axis=-1)
            rise = rise - statistic(*sums[:k], sums[k] - step, *sums[k + 1 :], axis=-1)
            influence += rise / (2 * step.sum() or 1.0) * column[place]
    error = np.sqrt(clustered_square(influence - influence.mean(), shared))
    half = stdtrit(degrees_of_freedom(shared.sizes, shared), UPPER) * np.where(error > 0, error, np.nan)
    centre = np.asarray(statistic(*columns, axis=-1))
    return centre - half, centre + half


def ratio(totals: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
    """Σ totals / Σ counts, as a statistic for `cluster_bootstrap`."""
    return np.asarray(totals.sum(axis) / counts.sum(axis))


def cohens_d(condition: ArrayLike, baseline: ArrayLike, kind: Literal["pooled", "d_z"] = "pooled") -> float:
    """Standardised difference (no unit) of two conditions; NaN where the standardiser is 0, and for one case.

    pooled     (m1 − m0) / sqrt((s1² + s0²)/2)     the default, LFA Eq. 9 as read in SPEC §7.3
    d_z        mean(x1 − x0) / sd(x1 − x0)         pairs of cases; t = d_z sqrt(n) when independent

    s are sample standard deviations (n−1) over cases. With r the correlation of the conditions and equal spreads
    d_z = d_pooled / sqrt(2(1−r)): at r = 0.86 d_z is 1.9 times d_pooled. None is corrected for small n (Hedges).
    """
    x1, x0 = np.asarray(condition, float), np.asarray(baseline, float)
    if min(len(x1), len(x0)) < 2:
        return float("nan")
    difference = x1.mean() - x0.mean()
    spread = (x1 - x0).std(ddof=1) if kind == "d_z" else np.sqrt((x1.var(ddof=1) + x0.var(ddof=1)) / 2)
    scale = max(np.abs(x1).max(), np.abs(x0).max())
    return float(difference / spread) if spread > 8 * np.finfo(float).eps * scale else float("nan")


def d_columns(total: np.ndarray, size: np.ndarray | None = None) -> list[np.ndarray]:
    """What `d_of_totals` sums over the cases of two conditions [2, …, cases]: 1, x1, x0, x1², x0², each […, cases].

    x is total / size, or the total. The origin is the row's grand mean, so that squares do not swallow small
    differences. These are the columns of `observations.bootstrap`.
    """
    x = total if size is None else total / size
    a, b = x - x.mean((0, -1), keepdims=True)
    return [np.ones_like(a), a, b, a * a, b * b]


def d_of_totals(
    n: np.ndarray, x1: np.ndarray, x0: np.ndarray, x11: np.ndarray, x00: np.ndarray, axis: int = -1
) -> np.ndarray:
    """The pooled d of paired cases from the columns of `d_columns`, or their totals in clusters, summed over `axis`."""
    m, s1, s0 = n.sum(axis), x1.sum(axis), x0.sum(axis)
    variance = (x11.sum(axis) - s1**2 / m + x00.sum(axis) - s0**2 / m) / (m - 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((s1 - s0) / m / np.sqrt(variance))


Rank = namedtuple("Rank", ("p", "p_min"))
"""p of a rank, and the smallest it can be; it can reject at α only if p_min ≤ α."""


def sign_flip(
    differences: ArrayLike, clusters: ArrayLike | None = None, *, resamples: int = 9999, seed: int = 0
) -> float:
    """Two-sided p that paired differences are symmetric about 0. The sign of a whole cluster is flipped at once.

    Statistic: the mean over observations, (1/n) Σ_d s_d Y_d with Y_d the cluster's sum and s_d = ±1. Exact over all
    2^m sign patterns of the m clusters whose sum is not 0 when they are at most `resamples` (m ≤ 13), else that many
    random ones with p = (1 + #{as extreme}) / (1 + resamples). The smallest p is 2^(1−m), so fewer than six clusters
    cannot reject at 5 %. p is 1 where every sum is 0.

    Assumes independent clusters with sums symmetric about 0 under the null. scipy.stats.permutation_test.
    """
    from scipy import stats

    x = np.asarray(differences, float)
    cells = read_clusters(clusters, len(x))
    if cells.shared is not None:
        raise InputError("this statistic takes one cluster label per value, here are several; give the coarsest")
    totals, counts = cluster_totals(x, cells.codes)
    moving = totals[totals != 0]
    m = len(moving)
    result = stats.permutation_test(
        (np.pad(moving, (0, max(0, 2 - m))) / counts.sum(),), np.sum, permutation_type="samples", vectorized=True,
        n_resamples=resamples, batch=max(1, 1_000_000 // max(m, 1)), rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(result.pvalue)


def rank_among(
    observed: float, draws: ArrayLike, *, alternative: Literal["two-sided", "greater"] = "two-sided"
) -> Rank:
    """Rank of an effect among matched-random draws: p = (1 + #{draw as extreme}) / (1 + draws).

    "greater" counts draws ≥ observed up to rounding, "two-sided" twice the smaller p of both sides, at most 1. p_min is
    1/(1+draws), twice that two-sided: 19 draws are needed to reject at 5 % on one side, 39 on two.

    The p is exact if the selection is as good as one more random draw under the null. The draws are heads, so it
    speaks about these heads of this model, not about prompts or seeds. Phipson & Smyth 2010.
    """
    x = np.asarray(draws, float)
    n, tied = len(x), 1e-12 * max(abs(observed), float(np.abs(x).max()))
    above = (1 + int((x - observed >= -tied).sum())) / (1 + n)
    below = (1 + int((observed - x >= -tied).sum())) / (1 + n)
    if alternative == "greater":
        return Rank(above, 1 / (1 + n))
    return Rank(min(1.0, 2 * min(above, below)), 2 / (1 + n))


def holm(p: ArrayLike) -> np.ndarray:
    """Corrected p of one family, any shape, NaN where undefined: max over j ≤ i of (m−j+1) p_(j), at most 1.

    Holm (1979): it controls the chance of any false rejection under any dependence. m counts the defined cells only: a
    cell that is undefined by construction was never a test. (statsmodels' `multipletests` took a fifth of a command.)
    """
    values = np.asarray(p, float)
    defined = ~np.isnan(values)
    family = values[defined]
    order = np.argsort(family)
    family[order] = np.minimum(np.maximum.accumulate(family[order] * np.arange(len(family), 0, -1)), 1.0)
    corrected = np.full(values.shape, np.nan)
    corrected[defined] = family
    return corrected
