"""Two conditions on the same cases, and two architectures over their training seeds.

Which test answers which claim:

- a head, an ablation, a steering vector *in one trained model*: `compare`, units are minimal pairs or documents;
- one order of the prompts against the other (App. F of paper LFA): `asymmetry`, units are minimal pairs;
- one *architecture* against another: `compare_seeds`, units are training seeds, however many prompts each saw.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from streamscope.models.errors import InputError
from streamscope.probes.stats.effect_sizes import Kind, cohens_d, d_interval
from streamscope.probes.stats.estimators import (
    BOOTSTRAP_CLUSTERS,
    cluster_codes,
    finite,
    mean,
    read_clusters,
    t_quantile,
)
from streamscope.probes.stats.permutations import relabel
from streamscope.probes.stats.t_tests import TTest, clustered_t, constant, welch_t
from streamscope.probes.undefined import note

NAN = float("nan")


class Comparison(NamedTuple):
    """Condition against baseline on the same cases; fields with units are in those of the values.

    `difference` is condition − baseline, sd that of the n differences, the interval, t and p are over `clusters`.
    d_low and d_high belong to `d`, the reading `d_kind`. `undefined` names the fields that are NaN, and why.
    """

    n: int
    clusters: int
    baseline: float
    condition: float
    difference: float
    sd: float
    ci_low: float
    ci_high: float
    t: float
    df: float
    p: float
    d_pooled: float
    d_pooled_n: float
    d_z: float
    d_kind: str
    d: float
    d_low: float
    d_high: float
    undefined: str = ""


class SeedComparison(NamedTuple):
    """Architecture a against b, difference = mean a − mean b in units of the values; p is Welch's."""

    n_a: int
    n_b: int
    mean_a: float
    mean_b: float
    sd_a: float
    sd_b: float
    difference: float
    ci_low: float
    ci_high: float
    t: float
    df: float
    p: float
    p_permutation: float
    p_permutation_min: float
    undefined: str = ""


class Asymmetry(NamedTuple):
    """An effect under the first condition minus under the second, over pairs that have both."""

    pairs: int
    dropped: int
    first: float
    second: float
    difference: float
    sd: float
    ci_low: float
    ci_high: float
    t: float
    df: float
    p: float
    undefined: str = ""


def compare(
    condition: ArrayLike,
    baseline: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    d_kind: Kind = "pooled",
    confidence: float = 0.95,
    resolution: float = 0.0,
    resamples: int = 5000,
    seed: int = 0,
) -> Comparison:
    """Condition against baseline, case by case; inference over clusters (the two orders of a prompt, a document).

    difference = mean of (condition − baseline) over observations; t, interval and p from `clustered_t`; Cohen's d
    in every reading (`effect_sizes.cohens_d`; SPEC §7.3), the interval of one of them from a bootstrap over clusters.
    LFA's own numbers (§5.2, Table 5) take the two orders for independent: pass no clusters to repeat that.

    Where no difference exceeds `resolution` (units of the values; pass the rounding error of float32) there is
    nothing to test: t, p, interval and d are undefined and not 0 (whether `difference` is 0 or undefined by
    construction only the caller knows: `undefined.mark`). The interval of d needs eight clusters.

    Assumes independent clusters. Raises `InputError` for unequal lengths, values that are not finite, fewer than two
    clusters, and a negative resolution.
    """
    x1, x0 = finite(condition, "condition", 2), finite(baseline, "baseline", 2)
    if len(x1) != len(x0):
        raise InputError(f"a paired comparison needs equal lengths, got {len(x1)} and {len(x0)}")
    if not resolution >= 0:
        raise InputError(f"resolution {resolution} must not be negative")
    within = read_clusters(clusters, len(x1))
    totals, counts = within.totals(x1 - x0)
    if within.count < 2:
        raise InputError(f"a comparison needs at least two clusters, got {within.count}")
    test = clustered_t(totals, counts, within.shared)
    d = {kind: cohens_d(x1, x0, kind) for kind in ("pooled", "pooled_n", "d_z")}
    half = t_quantile(confidence, float(test.df)) * float(test.error)
    fields = {
        "difference": float(test.difference),
        "ci_low": float(test.difference) - half,
        "ci_high": float(test.difference) + half,
        "t": float(test.t),
        "p": float(test.p),
        "d_pooled": d["pooled"],
        "d_pooled_n": d["pooled_n"],
        "d_z": d["d_z"],
        "d": d[d_kind],
        "d_low": NAN,
        "d_high": NAN,
    }
    why: dict[str, str] = {}
    if np.abs(x1 - x0).max() <= resolution:
        effects = [name for name in fields if name != "difference"]
        why = dict.fromkeys(effects, "no case changed under the condition")
    else:
        if constant(totals / counts, max(np.abs(x1).max(), np.abs(x0).max())):
            why |= dict.fromkeys(("ci_low", "ci_high", "t", "p"), "the difference is the same in every cluster")
        flat = "values without spread"
        why |= {name: flat for name in ("d_pooled", "d_pooled_n", "d_z", "d") if not np.isfinite(fields[name])}
        if within.count < BOOTSTRAP_CLUSTERS:
            why |= dict.fromkeys(("d_low", "d_high"), f"fewer than {BOOTSTRAP_CLUSTERS} clusters to resample")
        elif "d" not in why:
            low, high = d_interval(x1, x0, clusters, d_kind, confidence=confidence, resamples=resamples, seed=seed)
            fields |= {"d_low": low, "d_high": high}
        if not np.isfinite(fields["d_low"]):
            why = dict.fromkeys(("d_low", "d_high"), "d does not vary over resamples") | why
    fields |= dict.fromkeys(why, NAN)
    return Comparison(
        n=len(x1),
        clusters=within.count,
        baseline=float(x0.mean()),
        condition=float(x1.mean()),
        sd=float((x1 - x0).std(ddof=1)),
        df=float(test.df),
        d_kind=d_kind,
        undefined=note(why),
        **fields,
    )


def compare_seeds(a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> SeedComparison:
    """Architecture a against b, one number per training seed; p of Welch's t test, and of exact relabelling.

    Three seeds against three: Welch rejects 3 to 5 % of true nulls at 5 % (2 against 2: 2.5 %); relabelling has
    p ≥ 2/20 and cannot reject at 5 % (`p_permutation_min`), so it is a check that assumes no normality and not the
    claim. With one seed in a group there is no spread to compare with: interval, t and p are undefined, the
    difference is not.

    Assumes seeds independent between groups (shared data order or initialisation would make pairs: use `compare`).
    Raises `InputError` for values that are not finite and an empty group.
    """
    x, y = finite(a, "first group"), finite(b, "second group")
    few = min(len(x), len(y)) < 2
    test = TTest(*(np.array(NAN),) * 5) if few else welch_t(x, y)
    counted = relabel(x, y, seed=seed) if not few else None
    why: dict[str, str] = {}
    if few:
        reason = f"{len(x)} and {len(y)} training seeds, two in each group are needed to know their spread"
        why = dict.fromkeys(("ci_low", "ci_high", "t", "df", "p", "p_permutation", "p_permutation_min"), reason)
        why |= {f"sd_{g}": "one training seed" for g, values in (("a", x), ("b", y)) if len(values) < 2}
    elif constant(x) and constant(y):
        why = dict.fromkeys(("ci_low", "ci_high", "t", "df", "p"), "seeds without spread")
    difference = float(x.mean() - y.mean())
    half = NAN if "p" in why else t_quantile(confidence, float(test.df)) * float(test.error)
    return SeedComparison(
        n_a=len(x),
        n_b=len(y),
        mean_a=float(x.mean()),
        mean_b=float(y.mean()),
        sd_a=float(x.std(ddof=1)) if len(x) > 1 else NAN,
        sd_b=float(y.std(ddof=1)) if len(y) > 1 else NAN,
        difference=difference,
        ci_low=difference - half,
        ci_high=difference + half,
        t=NAN if "p" in why else float(test.t),
        df=NAN if "p" in why else float(test.df),
        p=NAN if "p" in why else float(test.p),
        p_permutation=counted.p if counted else NAN,
        p_permutation_min=counted.p_min if counted else NAN,
        undefined=note(why),
    )


def asymmetry(
    effects: ArrayLike,
    first: ArrayLike,
    pairs: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    resolution: float = 0.0,
    confidence: float = 0.95,
) -> Asymmetry:
    """Does an effect depend on the condition, as the order of the nouns? Paper LFA App. F, over minimal pairs.

    effects: one number per case (edited − baseline); first: True for the first condition (target first), False for
    the second; pairs: the minimal pair of each case. Per pair, mean effect under the first minus under the second;
    t test and interval over pairs, or over the `clusters` of the cases where pairs share words (`read_clusters`). Pairs
    with one condition only are dropped and counted.

    A large p is no evidence of symmetry. An asymmetry below m is shown when the 95 % interval lies within ±m
    (equivalence by confidence interval, at 2.5 % on each side); LFA's m is 0.01.

    Raises `InputError` for unequal lengths, values that are not finite, and fewer than two complete pairs.
    """
    x = finite(effects, "effects", 2)
    codes = cluster_codes(pairs, len(x))
    one = np.asarray(first)
    if one.dtype != bool or one.shape != x.shape:
        raise InputError(f"`first` must be {len(x)} booleans, got {one.dtype} of shape {one.shape}")
    sums = [np.bincount(codes[side], x[side], minlength=codes.max() + 1) for side in (one, ~one)]
    counts = [np.bincount(codes[side], minlength=codes.max() + 1) for side in (one, ~one)]
    complete = (counts[0] > 0) & (counts[1] > 0)
    n = int(complete.sum())
    if n < 2:
        raise InputError(f"an asymmetry needs at least two pairs with both conditions, got {n} of {len(complete)}")
    under = [s[complete] / c[complete] for s, c in zip(sums, counts, strict=True)]
    difference = under[0] - under[1]
    _, labels = np.unique(codes, return_index=True)  # a pair's first case
    given = None if clusters is None else pd.Series(clusters, dtype=object).to_numpy()[labels][complete]
    within = read_clusters(given, n)
    result = mean(difference, given, confidence=confidence)
    test = clustered_t(*within.totals(difference), within.shared)
    why: dict[str, str] = {}
    if np.abs(x).max() <= resolution:
        why = dict.fromkeys(("ci_low", "ci_high", "t", "p"), "no case changed under either condition")
    elif constant(difference, np.abs(x).max()):
        why = dict.fromkeys(("ci_low", "ci_high", "t", "p"), "the difference is the same in every pair")
    return Asymmetry(
        pairs=n,
        dropped=len(complete) - n,
        first=float(under[0].mean()),
        second=float(under[1].mean()),
        difference=result.mean,
        sd=result.sd,
        ci_low=NAN if why else result.ci_low,
        ci_high=NAN if why else result.ci_high,
        t=NAN if why else float(test.t),
        df=float(test.df),
        p=NAN if why else float(test.p),
        undefined=note(why),
    )
