"""The best head of one half of the cases, scored on the other half: no luck of the best of many.

Reads the table of `probes.coreference`: columns cluster, relation, layer, index, head, hit, attention, chance, and
one column of booleans per rule.
"""

from collections import namedtuple
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtr, ndtri, stdtr, stdtrit

from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.stats.estimators import (
    UPPER,
    Z,
    cluster_totals,
    degrees_of_freedom,
    ratio_and_error,
    read_clusters,
    sign_flip,
)

RULES = ("recency", "first_mention", "longest")
LEAST = 4  # fewest independent cases of which a half can choose a head
CHOSEN, SIGNED = 1 + 1 / np.pi, 1 + 2 / np.pi
"""Variance of the best head's mean, scored on both halves, over that of as many independent cases, where no head does
anything: each half has also chosen the head that judges the other. For one head and its sign, the score is (s₁ x̄₂ +
s₂ x̄₁)/2 with s the sign of x̄, of variance (σ²/n)(1 + E|z|²) and E|z|² = 2/π; for the better of two independent heads
half of that is added. For many independent heads, and where one head is much the best, the factor falls to 1."""


def held_out(table: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """The best head of one half of the cases, scored on the other half, both ways, against the rules without meaning.

    Independent cases (pairs, texts) are split by `halves`, which the column `apart` describes; the best head has the
    largest Top-1, then the largest mean attention. Rows: half A → B, B → A, and both, where every case is scored by the
    head that was chosen without it; each against the rules `RULES` on the same cases (`paired_proportions`:
    McNemar's test, or its clustered forms). "Beats recency by 15 points" means difference_low ≥ 0.15. On both halves
    intervals are sqrt(`CHOSEN`) as wide and p is that of z / sqrt(`CHOSEN`).
    """
    side, separation = halves(table, seed)
    rows, heads = best_head_held_out(table.assign(side=side), ("hit", "attention"), side)
    first, second = heads.split(" / ")
    parts = {"A→B": (first, rows[rows["side"] == 1]), "B→A": (second, rows[rows["side"] == 0]), "both": (heads, rows)}
    records = []
    for name, (head, cases) in parts.items():
        cluster_index = read_clusters(cases["cluster"], len(cases))
        is_independent = cluster_index.shared is None and cluster_index.count == len(cases)
        clusters = None if is_independent else cases["cluster"].to_numpy()
        for rule in RULES:
            result = paired_proportions(cases["hit"].to_numpy(), cases[rule].to_numpy(), clusters, seed=seed)
            wider = CHOSEN**0.5 if name == "both" else 1.0
            low, high = (result.difference + wider * (end - result.difference) for end in (result.low, result.high))
            records.append({
                "halves": name, "head": head, "rule": rule, "top1": result.share, "rule_share": result.reference,
                "chance": float(np.mean(cases["chance"])), "difference": result.difference,
                "difference_low": max(low, -1.0), "difference_high": min(high, 1.0),
                "difference_p": 2 * float(ndtr(ndtri(result.p / 2) / wider)), "n": result.n,
                "clusters": result.clusters, "apart": separation,
            })  # fmt: skip
    return pd.DataFrame(records)


ProportionDifference = namedtuple(
    "ProportionDifference", ("n", "clusters", "share", "reference", "difference", "low", "high", "p")
)
"""Hits of one method minus hits of another on the same cases, as shares; p that they hit equally often."""


def paired_proportions(
    hits: ArrayLike, reference: ArrayLike, clusters: ArrayLike | None = None, *, resamples: int = 9999, seed: int = 0
) -> ProportionDifference:
    """Does a head hit more often than a rule (recency, chance's pick) on the same cases?

    difference = (b − c)/n with b cases only this method hits, c only the reference. Without clusters: p of McNemar's
    exact test, min(1, 2 P(Bin(b+c, ½) ≤ min(b, c))), conservative; adjusted Wald interval of Bonett & Price 2012,
    British Journal of Mathematical and Statistical Psychology 65:430,
    p12 − p21 ± z sqrt((p12 + p21 − (p12 − p21)²)/(n+2)) with p12 = (b+1)/(n+2), p21 = (c+1)/(n+2). With clusters
    (several pronouns of one story): p of `estimators.sign_flip` on whole clusters, which is McNemar's test when
    clusters hold one case; interval R ± t_df SE of the ratio estimator. With labels of several kinds (nouns that cases
    share) signs cannot be flipped independently: p is t's of the ratio estimator, 1 where both hit the same cases.

    low and high are NaN where clusters differ by the same, low, high and p with one cluster. "Beats the rule by at
    least x points" holds when low ≥ x, not when the difference is x and p small. Choose the head on other cases.
    """
    x, y = np.asarray(hits, float), np.asarray(reference, float)
    n = len(x)
    b, c = int(((x == 1) & (y == 0)).sum()), int(((x == 0) & (y == 1)).sum())
    difference, groups = (b - c) / n, n
    low = high = p = float("nan")
    if clusters is None:
        p = min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))
        p12, p21 = (b + 1) / (n + 2), (c + 1) / (n + 2)
        centre, half = p12 - p21, Z * float(np.sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2)))
        low, high = max(-1.0, centre - half), min(1.0, centre + half)
    elif (groups := (cluster_index := read_clusters(clusters, n)).count) > 1:
        shared, (totals, counts) = cluster_index.shared, cluster_totals(x - y, cluster_index.codes)
        error, df = float(ratio_and_error(totals, counts, shared)[1]), float(degrees_of_freedom(counts, shared))
        if shared is None:
            p = sign_flip(x - y, clusters, resamples=resamples, seed=seed)
        else:
            p = float(2 * stdtr(df, -abs(difference) / error)) if error > 0 else 1.0
        if error != 0:
            half = float(stdtrit(df, UPPER)) * error
            low, high = max(-1.0, difference - half), min(1.0, difference + half)
    return ProportionDifference(n, groups, float(x.mean()), float(y.mean()), difference, low, high, p)


def best_head_held_out(
    table: pd.DataFrame, by: Sequence[str], side: np.ndarray, *, signs: tuple[str, str] | None = None
) -> tuple[pd.DataFrame, str]:
    """On each half (`side` 0 or 1), the rows of the head with the largest mean on the other half; and both heads.

    Means are those of the first column of `by`, among equals of the next. With `signs`, names of values below 0 and
    above, the size of the mean chooses, and values are multiplied by its sign, so that a head with mean 0 gives 0 on
    average and not the size of its noise; the heads are named with their sign.
    """
    parts, heads = [], []
    for train in (0, 1):
        means = table[side == train].groupby("head", sort=False)[list(by)].mean()
        size = means.assign(**{by[0]: means[by[0]].abs()}) if signs else means
        best = size.sort_values(list(by), ascending=False, kind="stable").index[0]
        test_rows = table[(side != train) & (table["head"] == best)]
        sign = -1 if signs and means.loc[best, by[0]] < 0 else 1
        parts.append(test_rows.assign(**{by[0]: test_rows[by[0]] * sign}) if signs else test_rows)
        heads.append(f"{best} ({signs[sign > 0]})" if signs else str(best))
    return pd.concat(parts), " / ".join(heads)


def halves(table: pd.DataFrame, seed: int) -> tuple[np.ndarray, str]:
    """(half 0 or 1 of every row, what the halves share none of: "texts", or "texts, first words").

    Independent cases alternate in random order within each relation. Where cases share words (`suite.Prompt.words`)
    those that share a first word (a target noun) stay together, so that a head is never scored on a noun it was chosen
    by; the groups go in random order to the half that has fewer cases of their relation. Texts that name many nouns can
    chain all words together: if no half of at least a quarter of the cases comes out, whole texts alternate.
    """
    if (n := table["cluster"].map(unit_of).nunique()) < LEAST:
        raise InputError(f"choosing heads on one half of the cases needs at least four independent ones, got {n}")
    return deal(table, seed)


def unit_of(label: str | tuple[str, ...]) -> str:
    """The unit of a label of `suite.units`, without the words."""
    return label if isinstance(label, str) else label[0]


def sides_of(cases: pd.DataFrame, by: str, source: str) -> np.ndarray:
    """Half 0 or 1 of every case, by `deal`; no value of the column `by` is in both, and both have a case."""
    if by not in cases:
        raise unknown("column to split by", by, list(cases))
    labels = cases[by].map(lambda label: label if isinstance(label, tuple) else str(label))
    if (n := labels.map(unit_of).nunique()) < 2:
        raise InputError(f"{source}: {n} {by} has no two halves; give more data, or split by another column")
    relation = cases.get("relation", pd.Series("", index=cases.index))
    return deal(pd.DataFrame({"cluster": labels, "relation": relation}), 0)[0]


def deal(table: pd.DataFrame, seed: int) -> tuple[np.ndarray, str]:
    """`halves` of any number of cases from two."""
    rng = np.random.default_rng(seed)
    unit = table["cluster"].map(unit_of)
    cases = table.assign(unit=unit).drop_duplicates("unit")[["unit", "relation"]]
    cluster_index = read_clusters(table["cluster"], len(table))
    if cluster_index.shared is not None:
        group = pd.Series(_joined(*cluster_index.shared.kinds[:2])[cluster_index.codes], index=table.index)
        sides = _by_group(group, table["relation"], rng)
        if min((sides == side).mean() for side in (0, 1)) >= 0.25:
            return sides, "texts, first words"
    shuffled = cases.iloc[rng.permutation(len(cases))].sort_values("relation", kind="stable")
    side = pd.Series(np.arange(len(shuffled)) % 2, shuffled["unit"])
    return unit.map(side).to_numpy(), "texts"


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Codes of the groups of cells that are linked by equal labels of either kind."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = a.max() + 1
    graph = coo_array(([1] * len(a), (a, n + b)), shape=(n + b.max() + 1,) * 2)
    return connected_components(graph, directed=False)[1][a]


def _by_group(group: pd.Series, relation: pd.Series, rng: np.random.Generator) -> np.ndarray:
    """Half of every row, whole groups, evenly within the commonest relation of each group."""
    sizes = group.value_counts().sort_index()
    relation_of = relation.groupby(group).agg(lambda names: names.mode()[0])
    counts: dict[str, list[int]] = {}
    side = {}
    for label in rng.permutation(sizes.index.to_numpy()):
        sums = counts.setdefault(relation_of[label], [0, 0])
        side[label] = int(np.argmin(sums))
        sums[side[label]] += int(sizes[label])
    return group.map(side).to_numpy()
